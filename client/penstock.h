/* Penstock's C ABI: what a trainer rank needs to take batches.
 *
 *   penstock_options options = PENSTOCK_OPTIONS_INIT;
 *   options.dataset = "train.yaml";
 *   penstock_reader* reader;
 *   if (penstock_attach(&options, &reader)) die(penstock_error());
 *   penstock_batch* batch;
 *   int code;
 *   while ((code = penstock_next(reader, &batch)) != PENSTOCK_END_OF_DATA) {
 *     if (code == PENSTOCK_END_OF_EPOCH) continue;
 *     if (code != PENSTOCK_OK) die(penstock_error());
 *     ... penstock_batch_data(batch, 0) ...
 *     penstock_release(batch);
 *   }
 *   penstock_detach(reader);
 *
 * Threads: one thread at a time uses a reader, a producer or a broker; only
 * penstock_interrupt may be called meanwhile. Several readers (ranks) of one
 * process are independent. Any thread may read and release a batch, in any
 * order. penstock_error() is per thread. After fork the child cannot use its
 * parent's readers and producers: FAILED_PRECONDITION; batches read as zeros.
 *
 * Errors: a function that returns int returns one of the results below, unless
 * its comment says otherwise; comments leave out the PENSTOCK_ of their names.
 * Any of them may return INTERNAL; those that talk to the broker also
 * UNAVAILABLE, DEADLINE_EXCEEDED (timeout_s) and CANCELLED.
 * Nothing here throws, exits or installs a signal handler. Pointers must not be
 * NULL where NULL is not mentioned; a function that returns a result answers it
 * with INVALID_ARGUMENT.
 *
 * Times are seconds. Arrays are row-major, values in the host's byte order. */
#ifndef PENSTOCK_H_
#define PENSTOCK_H_

#include <stdint.h>

#if defined(__GNUC__)
#define PENSTOCK_API __attribute__((visibility("default")))
#else
#define PENSTOCK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Results. Positive values are not errors. */
enum {
  PENSTOCK_OK = 0,
  PENSTOCK_END_OF_EPOCH = 1, /* the epoch is over; call again for the next */
  PENSTOCK_END_OF_DATA = 2,  /* the last epoch is over; returned from then on */
  /* Errors: minus the gRPC status number. penstock_error() has the text. */
  PENSTOCK_CANCELLED = -1,        /* penstock_interrupt, or options.cancelled */
  PENSTOCK_INVALID_ARGUMENT = -3, /* wrong spec, option or argument */
  PENSTOCK_DEADLINE_EXCEEDED = -4,   /* timeout_s or wait_s passed; storage
                                        did not answer for read_timeout */
  PENSTOCK_NOT_FOUND = -5,           /* no such socket, dataset or file */
  PENSTOCK_ALREADY_EXISTS = -6,      /* this rank is already attached */
  PENSTOCK_PERMISSION_DENIED = -7,   /* file or socket not for this user */
  PENSTOCK_RESOURCE_EXHAUSTED = -8,  /* memory limit; hold_max batches held */
  PENSTOCK_FAILED_PRECONDITION = -9, /* ranks disagree; other layout version */
  PENSTOCK_ABORTED = -10,            /* fenced, evicted or stopped */
  PENSTOCK_INTERNAL = -13,           /* a bug, or out of memory */
  PENSTOCK_UNAVAILABLE = -14,        /* the broker is gone */
  PENSTOCK_DATA_LOSS = -15 /* a record is corrupt and on_error is fail; rows
                              of a stream, or its journal, are lost */
};

/* Element types; shapes are row-major. */
enum {
  PENSTOCK_UINT8 = 1,
  PENSTOCK_INT8 = 2,
  PENSTOCK_INT16 = 3,
  PENSTOCK_INT32 = 4,
  PENSTOCK_INT64 = 5,
  PENSTOCK_FLOAT16 = 6,
  PENSTOCK_BFLOAT16 = 7,
  PENSTOCK_FLOAT32 = 8,
  PENSTOCK_FLOAT64 = 9,
  PENSTOCK_BOOL = 10 /* one byte, 0 or 1 */
};

#define PENSTOCK_DIMENSIONS_MAX 9
/* The sample id of a row that `last: pad` added; all bytes of the row are 0. */
#define PENSTOCK_PADDING_ID (-1)

typedef struct penstock_reader penstock_reader;
typedef struct penstock_batch penstock_batch;

/* How to attach. Zero or NULL means: from the launcher, else the default.
 * The first launcher found counts: PENSTOCK_RANK (penstock run), Horovod,
 * torchrun (RANK with WORLD_SIZE), OpenMPI, Slurm, TF_CONFIG; else rank 0 of 1.
 * Penstock keeps no pointer of it but `cancelled` and its context. */
typedef struct penstock_options {
  uint32_t struct_bytes; /* sizeof(penstock_options): set by the INIT macro */
  int32_t rank;          /* global rank, from 0; -1: from the launcher */
  int32_t world_size;    /* global; 0: from the launcher */
  int32_t local_world_size; /* ranks on this host; 0: from the launcher */
  const char* dataset;      /* name of a registered dataset, or the path of a
                               spec file (has a '/' or ends in .yaml, .yml or
                               .json); NULL: PENSTOCK_DATASET */
  const char* spec;         /* the spec's text, instead of `dataset`; its
                               relative paths start at the working directory */
  const char* job;          /* job name; NULL: PENSTOCK_JOB, the launcher's run
                               id, else "default" */
  const char* socket;       /* broker's socket; NULL: PENSTOCK_SOCKET, else
                               /run/penstock/penstock.sock */
  double timeout_s;         /* limit of attach, next, state, reset and stop_job;
                               0: none. A broker's death is noticed at once */
  int32_t repeat_first;     /* not 0: read one batch and return it for ever, to
                               measure the trainer's ideal speed (also
                               PENSTOCK_REPEAT_FIRST=1). Writes to its writable
                               data last until all of its leases are released */
  /* How batches are handed out. All ranks of a job must agree. */
  const char* delivery; /* NULL, "split": a global batch is divided over the
                           ranks; "dynamic": each batch to the next rank
                           that has none; "broadcast": each batch to every
                           consumer; "independent": the whole dataset to
                           each, in its own order */
  const char* lag;      /* broadcast, a consumer `window` batches behind:
                           NULL, "block": the others wait; "skip": it
                           misses batches, see penstock_batch_skipped;
                           "fail": it is evicted, ABORTED */
  const char* on_rank_death; /* "wait" (default of split; not in dynamic): its
                                batches wait for a process of the same rank;
                                "fail": the job fails;
                                "shrink" (default of the others): the others
                                take over, penstock_world_size changes */
  const char* state;         /* JSON of penstock_state, or a position alone,
                                {"epoch": 0, "row": n}: begin there. NULL: the
                                file PENSTOCK_STATE names, else the beginning */
  int32_t window;            /* broadcast: batches; 0: prefetch of the spec */
  int32_t consumers;  /* broadcast: most consumers at once, not fewer than
                         local_world_size; 0: the larger of it and 8 */
  int32_t full_epoch; /* broadcast, not 0: this consumer's epochs begin
                         where it joins */
  int32_t autostart;  /* not 0: where no broker listens, start a private
                         one, as penstock_own_broker does */
  double wait_s;      /* for missing or dead ranks; then the job fails
                         and names them; 0: 600, else also for a broker
                         that is about to listen */
  double reconnect_s; /* for a dead broker to come back; 0: 60, negative:
                         do not wait */
  int32_t node;       /* NUMA node for the batches; -1: PENSTOCK_NODE,
                         else the node of the processors this process may
                         run on, if it is one, else its GPU's */
  int32_t per_host;   /* dynamic with ranks on several hosts, not 0: every
                         host delivers all rows to its own ranks. 0: such
                         an attach is refused, because hosts cannot
                         divide a dynamic job between them */
  /* Not NULL: called ten times a second, on the calling thread, while attach,
   * next, state, reset or stop_job waits. When it returns not 0, the waiting
   * call returns CANCELLED. Python checks for Ctrl-C here. */
  int32_t (*cancelled)(void* context);
  void* cancelled_context;
  int32_t spec_generated; /* not 0: a program wrote `spec`; errors in it name
                             the key (map[0].cast.dtype), not the line */
  int32_t replicas; /* split, independent: processes that are one rank, such
                       as the tensor and pipeline parallel ones of one
                       data-parallel number, each of which gets all of the
                       rank's batches; rank and world_size then count groups
                       of these. 0: in split PENSTOCK_REPLICAS, else 1 */
  int32_t replica;  /* which of them this is, given with rank; -1, with rank -1:
                       they follow one another in the launcher's ranks */
  int32_t local_replicas; /* those of each rank that are on this host, which
                             has some of local_world_size ranks; 0: as the
                             launcher's ranks follow one another */
} penstock_options;
#define PENSTOCK_OPTIONS_INIT                                                 \
  {                                                                           \
    sizeof(penstock_options), -1, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0.0, 0.0, -1, 0, 0, 0, 0, 0, -1, 0                              \
  }

/* One tensor of a row, without the batch dimension. Strings live as long as the
 * reader. */
typedef struct penstock_feature {
  const char* name;
  uint32_t dtype;      /* 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float16,
                          7 bfloat16, 8 float32, 9 float64, 10 bool */
  uint32_t dimensions; /* 0 (a scalar) to 8 */
  int64_t shape[PENSTOCK_DIMENSIONS_MAX]; /* -1: it differs from batch to
                                             batch, penstock_batch_feature */
  uint64_t row_bytes; /* bytes of one row; 0: a size in shape is -1, or a batch
                         has one value for all its rows (pickled datasets) */
} penstock_feature;

/* Counts since attach. */
typedef struct penstock_stats {
  uint64_t batches;     /* taken so far */
  uint64_t rows;        /* in them, padding not counted */
  double wait_s;        /* spent in penstock_next with nothing ready */
  uint64_t waits;       /* times it found nothing ready */
  uint32_t held;        /* batches held now */
  uint32_t hold_max;    /* batches that may be held at once */
  uint64_t skipped;     /* batches missed (lag: skip) */
  uint64_t redelivered; /* batches with penstock_batch_redelivered */
  uint64_t reconnects;  /* times the broker died and came back */
} penstock_stats;

/* The text of this thread's last error: what was wanted, what was found, and
 * how to fix it. Valid until the next call on this thread. Never NULL. */
PENSTOCK_API const char* penstock_error(void);

/* "0.1.0" */
PENSTOCK_API const char* penstock_version(void);

/* A private broker of this process: no configuration, no root. It is restarted
 * when it dies. It ends with penstock_broker_stop or with this process, however
 * that ends. */
typedef struct penstock_broker penstock_broker;
/* Returns once the broker listens. workers: threads, 1 to 4096; memory_limit:
 * such as "4GiB"; 0 and NULL: penstockd's own choice. Runs the `penstock`
 * program: PENSTOCK_COMMAND, else beside this library, else in PATH. NOT_FOUND:
 * no such program; INVALID_ARGUMENT: workers or memory_limit. */
PENSTOCK_API int penstock_broker_start(int32_t workers,
                                       const char* memory_limit,
                                       penstock_broker** broker);
/* Path for options.socket, or for PENSTOCK_SOCKET of processes started later.
 * Valid until penstock_broker_stop. */
PENSTOCK_API const char* penstock_broker_socket(const penstock_broker* broker);
/* Returns once the broker has ended, after 10 s by force. NULL: no effect. */
PENSTOCK_API void penstock_broker_stop(penstock_broker* broker);
/* The socket of a private broker that is started unless it runs. The ranks that
 * one launcher started on this host share it; it ends with the last of them.
 * Without a launcher it is this process's own. *socket: valid until the process
 * ends. Errors as of penstock_broker_start. Any thread. */
PENSTOCK_API int penstock_own_broker(const char** socket);

/* Attaches one rank to a job; the first rank creates it. Returns once the
 * dataset is open and its memory is reserved (indexing a large folder takes
 * time). On success *reader must be passed to penstock_detach; else it is NULL.
 * INVALID_ARGUMENT: an option, or the spec with the key or line; NOT_FOUND: no
 * broker listens, or no such dataset; ALREADY_EXISTS: this rank is attached;
 * RESOURCE_EXHAUSTED: the memory limit; FAILED_PRECONDITION: the ranks
 * disagree, with the field. */
PENSTOCK_API int penstock_attach(const penstock_options* options,
                                 penstock_reader** reader);

/* Leaves the job and frees the reader. Batches still held become private copies
 * and stay readable until released; they count as done. NULL: no effect. */
PENSTOCK_API void penstock_detach(penstock_reader* reader);

/* Takes the next batch, waiting until one is ready (timeout_s at most). Returns
 * OK and *batch, to be passed to penstock_release; else *batch is NULL. Returns
 * END_OF_EPOCH once after the last batch of each epoch, and END_OF_DATA after
 * the last epoch, from then on. RESOURCE_EXHAUSTED, without waiting: hold_max
 * batches are held, release one first. ABORTED: this rank was evicted, fenced
 * or stopped. Any other error is why the job failed. A batch has 0 rows where
 * fewer rows than ranks were left. */
PENSTOCK_API int penstock_next(penstock_reader* reader, penstock_batch** batch);
/* As next with this time limit instead of the option's; 0: do not wait;
 * negative: no limit. DEADLINE_EXCEEDED when nothing is ready by then. The
 * answer of a broker that came back is waited for beyond it, up to reconnect_s.
 */
PENSTOCK_API int penstock_next_within(penstock_reader* reader, double timeout_s,
                                      penstock_batch** batch);
/* As next_within(0), and never waits: a broker that died is reached again by
 * next and next_within alone. For callers that hold a lock. */
PENSTOCK_API int penstock_next_ready(penstock_reader* reader,
                                     penstock_batch** batch);
/* Any thread, and signal handlers. The next that is waiting, or else the first
 * that has to wait, returns CANCELLED once. */
PENSTOCK_API void penstock_interrupt(penstock_reader* reader);

/* Gives the batch back: its memory must not be read any more. To be called
 * once, by any thread, also while another one is in next. NULL: no effect. */
PENSTOCK_API void penstock_release(penstock_batch* batch);

/* The job's position for this rank: after the last batch that next returned.
 * *state is JSON (common/job_state.md), valid until this reader's next call.
 * A trainer keeps it in its checkpoint and passes it as options.state, with any
 * number of ranks. dynamic: the broker answers, and batches that some rank
 * holds are not done; UNAVAILABLE while it is gone. */
PENSTOCK_API int penstock_state(penstock_reader* reader, const char** state);

/* What all hosts of a job must have alike, so that each one's broker makes its
 * shares of the same batches: versions, world size, delivery, spec, data, and
 * where the job begins. JSON of about 1 KiB, [[name, value], ...], equal on all
 * ranks whose hosts agree; "#" and a digest stand for a long value. Ranks
 * compare it by what they have (MPI_Allreduce, a store); Python does so by
 * itself when it attaches. part: NULL, or the name of a part that differs, for
 * what it consists of: common/requests/fingerprint.md has the answer to
 * `fingerprint`. *text: valid until this reader's next call. INVALID_ARGUMENT:
 * no such part, or the broker is of an older version. */
PENSTOCK_API int penstock_fingerprint(penstock_reader* reader, const char* part,
                                      const char** text);

/* Leaves this incarnation of the job and joins the one that begins at state, as
 * rank `rank` of world_size: an elastic trainer calls it on every rank when the
 * ranks have changed. The first call fences the old incarnation: ranks still in
 * it get ABORTED from next and call reset too. Batches that are held
 * stay valid. local_world_size 0: the new world size if all ranks were on this
 * host, else unchanged. Errors: as attach. */
PENSTOCK_API int penstock_reset(penstock_reader* reader, int32_t rank,
                                int32_t world_size, int32_t local_world_size,
                                const char* state);

/* Ends the job for all of its ranks. Each rank finishes the last step that any
 * rank was given and gets END_OF_DATA; now not 0: at once, ABORTED. */
PENSTOCK_API int penstock_stop_job(penstock_reader* reader, int32_t now);

/* Gives the mix that the job's dataset is other weights, one for each part, for
 * all ranks: from the first step that nobody has begun to make, or, if epoch is
 * not negative, from this row of this epoch on. One process calls it. The
 * change is a part of every state from then on, and the last of its `weights`
 * says the epoch and the row. Errors: INVALID_ARGUMENT (no mix, wrong weights),
 * FAILED_PRECONDITION (the row is made already; a job of several hosts needs an
 * epoch and a row, the same on each: see penstock_first_free_row), UNAVAILABLE.
 */
PENSTOCK_API int penstock_set_weights(penstock_reader* reader,
                                      const double* weights, uint32_t count,
                                      int64_t epoch, int64_t row);

/* The first row that the broker does not make before a rank takes another
 * batch. Ranks of several hosts change the weights at the last of these rows of
 * all hosts: all of them ask here, agree on it (MPI_Allreduce of MPI_MAX), set
 * the weights, and take no batch until all have. UNAVAILABLE: not known yet
 * after a restart of the broker. */
PENSTOCK_API int penstock_first_free_row(penstock_reader* reader,
                                         int64_t* epoch, int64_t* row);

/* A descriptor that is readable (POLLIN) when a batch may have become ready,
 * for event loops: then call penstock_next_within(reader, 0, ...). Owned by the
 * reader. */
PENSTOCK_API int penstock_fileno(const penstock_reader* reader);

/* The rank this reader attached with; shrink does not change it. */
PENSTOCK_API int penstock_rank(const penstock_reader* reader);
/* Ranks of the job; after shrink, those that are left. */
PENSTOCK_API int penstock_world_size(const penstock_reader* reader);
/* Its number among the processes that are this rank. */
PENSTOCK_API int penstock_replica(const penstock_reader* reader);
/* How many processes are this rank. */
PENSTOCK_API int penstock_replicas(const penstock_reader* reader);
/* Not 0: some of the job's processes are on other hosts. */
PENSTOCK_API int penstock_several_hosts(const penstock_reader* reader);
/* Not 0: a process of its number had attached to this incarnation and died. */
PENSTOCK_API int penstock_replaces(const penstock_reader* reader);
/* The number of the job's incarnation: a reset or an attach with a state begins
 * another. */
PENSTOCK_API uint64_t penstock_incarnation(const penstock_reader* reader);
/* A warning about the job for people, "" if none: what of its data works but
 * not as it should (a tar file that seems cut off), or another dataset that
 * this user reads now numbers the same classes differently (train and val).
 * The broker checks when the job is opened. Valid until the next call on the
 * reader. */
PENSTOCK_API const char* penstock_warning(const penstock_reader* reader);
/* The epoch of the next batch, from 0; penstock_epoch_count at the end. */
PENSTOCK_API uint64_t penstock_epoch(const penstock_reader* reader);
/* The job's name. Valid until the next call on the reader. */
PENSTOCK_API const char* penstock_job(const penstock_reader* reader);
/* Features of a row, at least 1. */
PENSTOCK_API uint32_t penstock_feature_count(const penstock_reader* reader);
/* Describes a feature. INVALID_ARGUMENT: index >= penstock_feature_count. */
PENSTOCK_API int penstock_feature_at(const penstock_reader* reader,
                                     uint32_t index, penstock_feature* feature);
/* The feature's index, from 0; INVALID_ARGUMENT (negative) lists the names. */
PENSTOCK_API int penstock_feature_index(const penstock_reader* reader,
                                        const char* name);
/* Records of the dataset; 0 for a stream. */
PENSTOCK_API uint64_t penstock_sample_count(const penstock_reader* reader);
/* Steps of one epoch, the same on every rank; 0 for a stream. */
PENSTOCK_API uint64_t penstock_steps_per_epoch(const penstock_reader* reader);
/* Epochs of the job; 0: forever. */
PENSTOCK_API uint64_t penstock_epoch_count(const penstock_reader* reader);
/* Fills *stats with sums since the attach. */
PENSTOCK_API void penstock_get_stats(const penstock_reader* reader,
                                     penstock_stats* stats);

/* A producer: any process that makes rows of a job whose dataset has the source
 * `stream`. It writes rows where the broker reads them, then puts them:
 *
 *   while (...) {
 *     if (penstock_producer_reserve(producer, 64) != PENSTOCK_OK) die(...);
 *     fill(penstock_producer_data(producer, 0), 64);
 *     if (penstock_producer_put(producer, 64) != PENSTOCK_OK) die(...);
 *   }
 *   penstock_producer_finish(producer);
 *   penstock_producer_close(producer);
 *
 * Several may feed one job, come and go at any time, and be killed. Rows that
 * were put are delivered exactly once; rows not yet put are discarded. When the
 * broker dies, each call waits for it to come back, sends the puts again that
 * it did not record, and goes on. Only when a producer dies together with the
 * broker are its last unrecorded puts (32 at most) lost; finish waits until the
 * broker has recorded all. Rows come in the order of the puts, without shuffle
 * or seek, so a job resumes only as far as its producers can continue. The
 * stream is over when all of its producers have finished. */
typedef struct penstock_producer penstock_producer;

typedef struct penstock_producer_options {
  uint32_t struct_bytes; /* sizeof(penstock_producer_options): the INIT macro */
  uint32_t feature_count; /* at least 1 */
  /* The features of a row, as in the spec: name, dtype, dimensions, shape;
   * row_bytes is ignored. Copied. */
  const penstock_feature* features;
  uint64_t rows;       /* most rows of one put, at least 1 */
  const char* job;     /* NULL: PENSTOCK_JOB, the launcher's, else "default" */
  const char* dataset; /* NULL: the only one of that job */
  const char* socket;  /* NULL: PENSTOCK_SOCKET, else the default */
  double timeout_s;    /* limit of every call; 0: none */
  int32_t (*cancelled)(void* context); /* as penstock_options.cancelled */
  void* cancelled_context;
  double reconnect_s; /* for a dead broker to come back; 0: 60, negative:
                         do not wait */
} penstock_producer_options;
#define PENSTOCK_PRODUCER_OPTIONS_INIT \
  { sizeof(penstock_producer_options), 0, 0, 1, 0, 0, 0, 0.0, 0, 0, 0.0 }

/* Opens a producer; waits until a rank has attached to the job.
 * INVALID_ARGUMENT: the job wants other features; FAILED_PRECONDITION: its
 * source is not a stream, or the stream is over. On success *producer must be
 * passed to penstock_producer_close; else it is NULL. */
PENSTOCK_API int penstock_produce(const penstock_producer_options* options,
                                  penstock_producer** producer);
/* The stream's row number, from 0, that was next when this producer opened.
 * After a resume, a producer that knows its rows by number goes on there. */
PENSTOCK_API uint64_t
penstock_producer_next_row(const penstock_producer* producer);
/* Reserves memory for 1 to options.rows rows; waits until the ranks have
 * finished with older rows. Discards rows that were reserved before and not
 * put. INVALID_ARGUMENT: rows out of range; ABORTED: all ranks have left; else
 * why the job failed. */
PENSTOCK_API int penstock_producer_reserve(penstock_producer* producer,
                                           uint64_t rows);
/* The reserved memory of the feature: [rows, shape...], row_bytes apart. NULL:
 * nothing is reserved, or there is no such feature. */
PENSTOCK_API void* penstock_producer_data(const penstock_producer* producer,
                                          uint32_t feature);
/* Puts the first `rows` of the reserved rows, and ends the reservation. Does
 * not wait for ranks; waits while 32 puts have no answer of the broker.
 * INVALID_ARGUMENT: 0 rows, or more than reserved; or a bool that is neither 0
 * nor 1: the rows are still reserved, and can be put once corrected. */
PENSTOCK_API int penstock_producer_put(penstock_producer* producer,
                                       uint64_t rows);
/* Says that no more rows come, and waits until the broker has recorded all
 * puts. Afterwards every call returns FAILED_PRECONDITION. */
PENSTOCK_API int penstock_producer_finish(penstock_producer* producer);
/* Fails the job: its ranks get `why` (500 bytes at most). Else as finish. */
PENSTOCK_API int penstock_producer_fail(penstock_producer* producer,
                                        const char* why);
/* Frees the producer. Without finish or fail before: as if the process had
 * died, and another may replace it. NULL: no effect. */
PENSTOCK_API void penstock_producer_close(penstock_producer* producer);

/* Copies to an NVIDIA GPU. The device reads a batch from shared memory, which
 * is pinned slot by slot; where the driver cannot pin it, from pinned buffers
 * that the batch is copied into (penstock_device_stats says so).
 *
 *   penstock_prefetch_to_device(reader, 0, 2);
 *   while (penstock_next(reader, &batch) == PENSTOCK_OK) {
 *     penstock_device_batch* copy;
 *     if (penstock_batch_to_device(batch, &copy)) die(penstock_error());
 *     penstock_release(batch);
 *     penstock_device_wait(copy, stream);
 *     step<<<..., stream>>>(penstock_device_data(copy, 0, NULL));
 *     penstock_device_release(copy);
 *   }
 *
 * Released early, the broker's memory is free once the copy has been made. */
typedef struct penstock_device_batch penstock_device_batch;

typedef struct penstock_device_stats {
  int32_t device;
  uint64_t copies;           /* issued, those ahead of the trainer included */
  uint64_t device_bytes;     /* the buffers' memory on the GPU, now */
  uint64_t registered_bytes; /* shared memory that is pinned, now */
  uint64_t staging_bytes;    /* memory of this process that is pinned, now */
  const char* why_staged;    /* NULL: batches are copied from shared memory */
} penstock_device_stats;

/* From now on each batch is copied to this GPU (by CUDA's numbers, from 0) when
 * next returns it, and up to `batches` (0 to 32; 2 is a good number) that are
 * published already before they are asked for. Those count as not taken: if
 * this process dies, its successor gets them. In dynamic delivery one is
 * published at a time. Memory on the GPU: the largest batch, rounded up to 2
 * MiB, times batches + 2 and what the trainer keeps beyond that. NOT_FOUND: no
 * driver (libcuda.so.1), or no such GPU; FAILED_PRECONDITION: the reader has a
 * GPU already. */
PENSTOCK_API int penstock_prefetch_to_device(penstock_reader* reader,
                                             int32_t device, uint32_t batches);
/* Fills *stats; strings are valid until the next call on this thread.
 * FAILED_PRECONDITION: the reader has no GPU. */
PENSTOCK_API int penstock_get_device_stats(const penstock_reader* reader,
                                           penstock_device_stats* stats);
/* The batch on the GPU: the copy that is under way or made; each further call
 * makes another one. To be passed to penstock_device_release, also after the
 * batch's release and the reader's detach. Any thread. RESOURCE_EXHAUSTED: no
 * memory on the GPU, or to be pinned; FAILED_PRECONDITION: the reader has no
 * GPU, or is detached. */
PENSTOCK_API int penstock_batch_to_device(penstock_batch* batch,
                                          penstock_device_batch** copy);
/* What is issued on `stream` (a CUstream or cudaStream_t; NULL: the default
 * stream) from now on finds the copy made. No thread waits. The stream has to
 * exist until penstock_device_release. */
PENSTOCK_API int penstock_device_wait(penstock_device_batch* copy,
                                      void* stream);
/* The feature's address on the GPU, 64-byte aligned, laid out as
 * penstock_batch_data's, and in *bytes (may be NULL) how many there are. NULL:
 * no rows, or no such feature. */
PENSTOCK_API const void* penstock_device_data(const penstock_device_batch* copy,
                                              uint32_t feature,
                                              uint64_t* bytes);
/* Gives the memory on the GPU back. It is not written before what has been
 * issued by now on the streams of penstock_device_wait is done. Any thread.
 * NULL: no effect. */
PENSTOCK_API void penstock_device_release(penstock_device_batch* copy);

/* Rows in the batch, padding included: the batch dimension of every feature. */
PENSTOCK_API uint64_t penstock_batch_rows(const penstock_batch* batch);
/* Rows that are samples; those after them are padding. */
PENSTOCK_API uint64_t penstock_batch_valid_rows(const penstock_batch* batch);
/* Rows of the whole global batch, padding not counted: to weigh gradients. The
 * same on every rank: rows that on_error: skip left out are counted. */
PENSTOCK_API uint64_t penstock_batch_global_rows(const penstock_batch* batch);
/* Epoch, from 0. */
PENSTOCK_API uint64_t penstock_batch_epoch(const penstock_batch* batch);
/* Step of the epoch, from 0. */
PENSTOCK_API uint64_t penstock_batch_step(const penstock_batch* batch);
/* The part of the source, from 0, that all its rows are of (batch.by_part); -1:
 * rows of any part. */
PENSTOCK_API int32_t penstock_batch_part(const penstock_batch* batch);
/* As penstock_feature_at, with the shape that it has in this batch. The reader
 * must exist. INVALID_ARGUMENT: no such feature. */
PENSTOCK_API int penstock_batch_feature(const penstock_batch* batch,
                                        uint32_t index,
                                        penstock_feature* feature);
/* [rows, shape...] of the feature, row_bytes apart, 64-byte aligned, read only:
 * writing is SIGSEGV. Valid until release. NULL: there is no such feature. */
PENSTOCK_API const void* penstock_batch_data(const penstock_batch* batch,
                                             uint32_t feature);
/* The same bytes at another address, writable: pages that are written are
 * copied for this process alone, and discarded when the batch is released.
 * NULL: no such feature, or not mapped; penstock_error() says why. */
PENSTOCK_API void* penstock_batch_writable_data(penstock_batch* batch,
                                                uint32_t feature);
/* [rows] sample ids: the record's number in the dataset, PENSTOCK_PADDING_ID
 * for padding. Valid until release. */
PENSTOCK_API const int64_t* penstock_batch_ids(const penstock_batch* batch);
/* Not 0: the batch was handed out before to a process that died with it, or may
 * have been (the broker died and that process's pages were lost). */
PENSTOCK_API int penstock_batch_redelivered(const penstock_batch* batch);
/* Batches that this consumer missed just before this one (lag: skip). */
PENSTOCK_API uint64_t penstock_batch_skipped(const penstock_batch* batch);
/* Rows that on_error: skip left out of it; 65,535: so many or more. */
PENSTOCK_API uint64_t penstock_batch_left_out(const penstock_batch* batch);

#ifdef __cplusplus
}
#endif
#endif /* PENSTOCK_H_ */
