/* Penstock's C ABI: what a trainer rank needs to take batches.
 *
 *   penstock_options options = PENSTOCK_OPTIONS_INIT;
 *   options.dataset = "train.yaml";
 *   penstock_reader* reader;
 *   if (penstock_attach(&options, &reader) != PENSTOCK_OK) die(penstock_error());
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
 * Threads: a reader is used by one thread at a time; several readers (ranks) of
 * one process are independent. A batch may be released on any thread and in any
 * order. penstock_error() is per thread.
 * Nothing here throws, exits or installs a signal handler. */
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
  PENSTOCK_END_OF_DATA = 2,  /* the last epoch is over; stays so */
  /* Errors: minus the gRPC status number. penstock_error() has the text. */
  PENSTOCK_CANCELLED = -1, /* penstock_interrupt, or options.cancelled */
  PENSTOCK_INVALID_ARGUMENT = -3,    /* wrong spec, option or argument */
  PENSTOCK_DEADLINE_EXCEEDED = -4,   /* timeout_s or wait_s passed; storage
                                        did not answer for read_timeout */
  PENSTOCK_NOT_FOUND = -5,           /* no socket, dataset, file */
  PENSTOCK_ALREADY_EXISTS = -6,      /* this rank is attached already */
  PENSTOCK_PERMISSION_DENIED = -7,   /* file or socket not for this user */
  PENSTOCK_RESOURCE_EXHAUSTED = -8,  /* memory limit; every lease is held */
  PENSTOCK_FAILED_PRECONDITION = -9, /* ranks disagree; other layout version */
  PENSTOCK_ABORTED = -10,            /* fenced, evicted or stopped */
  PENSTOCK_INTERNAL = -13,
  PENSTOCK_UNAVAILABLE = -14, /* the broker is gone */
  PENSTOCK_DATA_LOSS = -15    /* a record is corrupt and on_error is fail */
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
/* The sample id of a row that `last: pad` added: it is all zeros. */
#define PENSTOCK_PADDING_ID (-1)

typedef struct penstock_reader penstock_reader;
typedef struct penstock_batch penstock_batch;

/* How to attach. Zero or NULL means: from the launcher, else the default.
 * Launchers, first that is there: PENSTOCK_RANK (penstock run), Horovod, torchrun
 * (RANK with WORLD_SIZE), OpenMPI, Slurm, TF_CONFIG; else rank 0 of 1. */
typedef struct penstock_options {
  uint32_t struct_bytes; /* sizeof(penstock_options): set by the INIT macro */
  int32_t rank;          /* global rank; -1: from the launcher */
  int32_t world_size;       /* global; 0: from the launcher */
  int32_t local_world_size; /* ranks on this host; 0: from the launcher */
  const char* dataset;      /* name of a registered dataset, or the path of a
                               spec file (has a '/' or ends in .yaml, .json) */
  const char* spec;         /* or the spec's text; relative paths in it are
                               taken from the working directory */
  const char* job;          /* NULL: PENSTOCK_JOB, the launcher's run id, else
                               "default" */
  const char* socket;       /* NULL: PENSTOCK_SOCKET, else
                               /run/penstock/penstock.sock */
  double timeout_s;         /* of attach and of next; 0: wait for ever. A dead
                               broker is noticed at once all the same */
  int32_t repeat_first;     /* not 0: read one batch and return it for ever, to
                               measure the trainer's ideal speed (also
                               PENSTOCK_REPEAT_FIRST=1). What is written into
                               its writable data stays while any of those
                               handed out is held */
  /* How batches are handed out. All ranks of a job must say the same. */
  const char* delivery;      /* NULL, "split": a global batch is divided over the
                                ranks; "dynamic": each batch to the next rank
                                that has none; "broadcast": each batch to every
                                consumer; "independent": the whole dataset to
                                each, in its own order */
  const char* lag;           /* broadcast, when a consumer is `window` batches
                                behind: NULL, "block": the others wait; "skip":
                                it misses batches, penstock_batch_skipped;
                                "fail": it is taken off */
  const char* on_rank_death; /* "wait" (default of split; not in dynamic): its
                                batches wait for a rank of the same number;
                                "fail": the job fails;
                                "shrink" (default of the others): the others
                                take over, penstock_world_size changes */
  const char* state;         /* JSON of penstock_state: begin there. NULL: at the
                                beginning */
  int32_t window;            /* broadcast; 0: prefetch of the spec */
  int32_t consumers;         /* broadcast: as many at once, not fewer than
                                local_world_size; 0: that, 8 at least */
  int32_t full_epoch;        /* broadcast, not 0: this consumer's epochs begin
                                where it joins */
  int32_t autostart;         /* not 0: where no broker listens, a private one is
                                started (penstock_broker_start) and lives as
                                long as this process. For one rank alone */
  double wait_s;             /* for ranks that are missing or died, then the job
                                fails and names them; 0: 600 */
  double reconnect_s;        /* for the broker to come back when it died; 0: 60,
                                negative: do not wait */
  int32_t node;              /* NUMA node that the batches are to be on; -1:
                                PENSTOCK_NODE, else that of the processors this
                                process may run on, if it is one, else that of
                                its GPU */
  int32_t per_host;          /* dynamic, when ranks run on several hosts, not 0:
                                every host delivers all rows to its own ranks.
                                0: such an attach is refused, because hosts
                                cannot divide a dynamic job between them */
  /* Not NULL: called ten times a second, on the calling thread, while attach,
   * next, state, reset or stop_job waits; when it returns not 0 they return
   * PENSTOCK_CANCELLED. How Python looks for Ctrl-C. */
  int32_t (*cancelled)(void* context);
  void* cancelled_context;
  int32_t spec_generated;    /* not 0: a program wrote `spec`, and errors in it
                                name the key (map[0].cast.dtype), not the line */
  int32_t reserved2;
} penstock_options;
#define PENSTOCK_OPTIONS_INIT                                                \
  {                                                                          \
    sizeof(penstock_options), -1, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0.0, 0.0, -1, 0, 0, 0, 0, 0                                    \
  }

/* One tensor of an element: without the batch dimension. Strings live as long
 * as the reader. */
typedef struct penstock_feature {
  const char* name;
  uint32_t dtype; /* 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float16,
                     7 bfloat16, 8 float32, 9 float64, 10 bool */
  uint32_t dimensions;
  int64_t shape[PENSTOCK_DIMENSIONS_MAX];
  uint64_t row_bytes;
} penstock_feature;

typedef struct penstock_stats {
  uint64_t batches;  /* taken so far */
  uint64_t rows;     /* in them, padding not counted */
  double wait_s;     /* spent in penstock_next with nothing ready */
  uint64_t waits;    /* times it found nothing ready */
  uint32_t held;     /* batches held now */
  uint32_t hold_max; /* batches that may be held at once */
  uint64_t skipped;     /* batches missed (lag: skip) */
  uint64_t redelivered; /* batches that another process had before */
  uint64_t reconnects;  /* times the broker died and came back */
} penstock_stats;

/* The text of this thread's last error: what was wanted, what was found, the
 * way out. Valid until the next call on this thread. Never NULL. */
PENSTOCK_API const char* penstock_error(void);

/* "0.1.0" */
PENSTOCK_API const char* penstock_version(void);

/* A private broker of this process: no configuration, no root. It is restarted
 * when it dies, and ends with penstock_broker_stop or with this process, however
 * that ends. workers 0, memory_limit NULL ("4GiB"): its own choice. Needs the
 * `penstock` program: PENSTOCK_COMMAND, else beside this library, else in PATH. */
typedef struct penstock_broker penstock_broker;
PENSTOCK_API int penstock_broker_start(int32_t workers, const char* memory_limit,
                                       penstock_broker** broker);
/* For options.socket, or PENSTOCK_SOCKET of processes that are started. */
PENSTOCK_API const char* penstock_broker_socket(const penstock_broker* broker);
PENSTOCK_API void penstock_broker_stop(penstock_broker* broker);

/* Attaches one rank to a job, which the first of its ranks creates. Returns once
 * the dataset is open and memory is promised (indexing a large folder takes
 * time). On success *reader must be passed to penstock_detach. */
PENSTOCK_API int penstock_attach(const penstock_options* options,
                                 penstock_reader** reader);

/* Leaves the job and frees the reader; NULL: does nothing. Batches still held stay
 * readable, as copies of this process's own that are made now, until they are
 * released; what they were counts as done. */
PENSTOCK_API void penstock_detach(penstock_reader* reader);

/* The next batch: PENSTOCK_OK and *batch, to be passed to penstock_release;
 * PENSTOCK_END_OF_EPOCH once after the last batch of each epoch;
 * PENSTOCK_END_OF_DATA after the last epoch's, from then on. Waits for one to be
 * ready. RESOURCE_EXHAUSTED at once when hold_max batches are held: release one
 * first. A batch may have 0 rows (fewer rows than ranks were left). */
PENSTOCK_API int penstock_next(penstock_reader* reader, penstock_batch** batch);
/* As next with this time limit instead of the option's; 0: do not wait.
 * DEADLINE_EXCEEDED when nothing is ready by then. */
PENSTOCK_API int penstock_next_within(penstock_reader* reader, double timeout_s,
                                      penstock_batch** batch);
/* Makes a next that waits on another thread return PENSTOCK_CANCELLED; it does
 * not stick. Async-signal-safe. */
PENSTOCK_API void penstock_interrupt(penstock_reader* reader);

/* The batch's memory must not be read any more. Async-safe against next. */
PENSTOCK_API void penstock_release(penstock_batch* batch);

/* Where the job stands for this rank: after the last batch that next returned.
 * *state is JSON (common/README.md), valid until the next call on this reader: a
 * trainer keeps it in its checkpoint and passes it as options.state, with any
 * number of ranks. In dynamic it is asked of the broker: batches that some rank
 * holds are not done. */
PENSTOCK_API int penstock_state(penstock_reader* reader, const char** state);

/* Leaves this incarnation of the job and joins the one that begins at state, as
 * this rank of this world: what an elastic trainer calls on every rank when the
 * ranks have changed. The first to call it fences the old incarnation: who is
 * still in it gets PENSTOCK_ABORTED from next and calls reset too. Batches that
 * are held stay valid. local_world_size 0: all ranks if all were here, else as
 * before. */
PENSTOCK_API int penstock_reset(penstock_reader* reader, int32_t rank,
                                int32_t world_size, int32_t local_world_size,
                                const char* state);

/* Ends the job for all of its ranks: they finish the step that the furthest has
 * and get PENSTOCK_END_OF_DATA; now not 0: at once, PENSTOCK_ABORTED. */
PENSTOCK_API int penstock_stop_job(penstock_reader* reader, int32_t now);

/* Readable (POLLIN) when something may have become ready: for event loops.
 * Then call penstock_next_within(reader, 0, ...). Owned by the reader. */
PENSTOCK_API int penstock_fileno(const penstock_reader* reader);

PENSTOCK_API int penstock_rank(const penstock_reader* reader);
/* After shrink: of the ranks that are left. */
PENSTOCK_API int penstock_world_size(const penstock_reader* reader);
/* Which life of the job this is: a reset or an attach with a state begins
 * another. */
PENSTOCK_API uint64_t penstock_incarnation(const penstock_reader* reader);
/* What may be wrong with the job, for people, "" if nothing: another dataset that
 * this user reads now numbers the same classes differently (train and val). The
 * broker looks when the job is opened. Valid until the next call on the reader. */
PENSTOCK_API const char* penstock_warning(const penstock_reader* reader);
/* The epoch the next batch belongs to; penstock_epoch_count at the end. */
PENSTOCK_API uint64_t penstock_epoch(const penstock_reader* reader);
PENSTOCK_API const char* penstock_job(const penstock_reader* reader);
PENSTOCK_API uint32_t penstock_feature_count(const penstock_reader* reader);
/* index < penstock_feature_count, else INVALID_ARGUMENT. */
PENSTOCK_API int penstock_feature_at(const penstock_reader* reader,
                                     uint32_t index, penstock_feature* feature);
/* The feature's index, or INVALID_ARGUMENT naming those there are. */
PENSTOCK_API int penstock_feature_index(const penstock_reader* reader,
                                        const char* name);
/* Records of the dataset; steps of one epoch (the same on every rank); of a stream
 * both are 0. Epochs of the job, 0 for forever. */
PENSTOCK_API uint64_t penstock_sample_count(const penstock_reader* reader);
PENSTOCK_API uint64_t penstock_steps_per_epoch(const penstock_reader* reader);
PENSTOCK_API uint64_t penstock_epoch_count(const penstock_reader* reader);
PENSTOCK_API void penstock_get_stats(const penstock_reader* reader,
                                     penstock_stats* stats);

/* A producer: any process that makes rows of a job whose dataset has the source
 * `stream`. It writes rows where the broker reads them, and says when they are
 * whole:
 *
 *   while (...) {
 *     if (penstock_producer_reserve(producer, 64) != PENSTOCK_OK) die(...);
 *     fill(penstock_producer_data(producer, 0), 64);
 *     if (penstock_producer_put(producer, 64) != PENSTOCK_OK) die(...);
 *   }
 *   penstock_producer_finish(producer);
 *   penstock_producer_close(producer);
 *
 * Several may feed one job, come and go at any time, and be killed: what was put
 * is delivered exactly once, what was only written is discarded. When the broker
 * dies, each call waits for it to come back and goes on; a put that it did not
 * hear of is put again. Only what was put last, and heard of by nobody, is lost
 * when the producer dies with the broker: finish waits until all was heard. Rows
 * come in the order of the puts; there is no shuffle and no way back, so a job
 * resumes only as far as its producers can go on where it was. The stream is over
 * when all of its producers have finished. One thread at a time. */
typedef struct penstock_producer penstock_producer;

typedef struct penstock_producer_options {
  uint32_t struct_bytes;  /* sizeof(penstock_producer_options): the INIT macro */
  uint32_t feature_count;
  /* Of a row, as the spec has them: name, dtype, dimensions, shape; row_bytes is
   * not looked at. Not kept. */
  const penstock_feature* features;
  uint64_t rows;          /* of one put, at most */
  const char* job;        /* NULL: PENSTOCK_JOB, the launcher's, else "default" */
  const char* dataset;    /* NULL: the only one of that job */
  const char* socket;     /* NULL: PENSTOCK_SOCKET, else the default */
  double timeout_s;       /* of every call; 0: none */
  int32_t (*cancelled)(void* context); /* as penstock_options.cancelled */
  void* cancelled_context;
  double reconnect_s;     /* for the broker to come back when it died; 0: 60,
                             < 0: never */
} penstock_producer_options;
#define PENSTOCK_PRODUCER_OPTIONS_INIT \
  { sizeof(penstock_producer_options), 0, 0, 1, 0, 0, 0, 0.0, 0, 0, 0.0 }

/* Waits until a rank has attached to the job. INVALID_ARGUMENT: the job wants
 * other features; FAILED_PRECONDITION: its source is no stream, or that is over.
 * On success *producer must be passed to penstock_producer_close. */
PENSTOCK_API int penstock_produce(const penstock_producer_options* options,
                                  penstock_producer** producer);
/* The number, in the stream, of the row that was next when it came: where a
 * producer goes on that knows its rows by number, after a resume. */
PENSTOCK_API uint64_t penstock_producer_next_row(const penstock_producer* producer);
/* Room for so many rows; waits until the ranks are through with what is there.
 * What was reserved before and not put is discarded. ABORTED: the ranks have left,
 * or the job's own error: nobody takes rows any more. */
PENSTOCK_API int penstock_producer_reserve(penstock_producer* producer,
                                           uint64_t rows);
/* [rows, shape...] of the feature, in what is reserved; NULL: no rows are,
 * or there is no such feature. */
PENSTOCK_API void* penstock_producer_data(const penstock_producer* producer,
                                          uint32_t feature);
/* The first rows of those reserved are whole. Returns without waiting for anybody
 * to take them. INVALID_ARGUMENT: a bool that is neither 0 nor 1; the rows are
 * still reserved, and can be put once they are mended. */
PENSTOCK_API int penstock_producer_put(penstock_producer* producer, uint64_t rows);
/* It has put all of its rows. */
PENSTOCK_API int penstock_producer_finish(penstock_producer* producer);
/* It cannot go on: the job fails, and why is what its ranks are told. */
PENSTOCK_API int penstock_producer_fail(penstock_producer* producer,
                                        const char* why);
/* NULL: does nothing. Without finish before: as if the process had died, another may
 * take its place. */
PENSTOCK_API void penstock_producer_close(penstock_producer* producer);

/* Rows in the batch, padding included: the batch dimension of every feature. */
PENSTOCK_API uint64_t penstock_batch_rows(const penstock_batch* batch);
/* Rows that are samples; those after them are padding. */
PENSTOCK_API uint64_t penstock_batch_valid_rows(const penstock_batch* batch);
/* Rows of the whole global batch, padding not counted: to weigh gradients. Rows
 * that on_error: skip leaves out are in it, on every rank alike. */
PENSTOCK_API uint64_t penstock_batch_global_rows(const penstock_batch* batch);
/* Epoch, from 0, and step in it, from 0. */
PENSTOCK_API uint64_t penstock_batch_epoch(const penstock_batch* batch);
PENSTOCK_API uint64_t penstock_batch_step(const penstock_batch* batch);
/* [rows, shape...] of the feature, row_bytes apart, 64-byte aligned, read only:
 * writing is SIGSEGV. NULL if there is no such feature. */
PENSTOCK_API const void* penstock_batch_data(const penstock_batch* batch,
                                             uint32_t feature);
/* The same bytes at another address, where they may be written: the pages written
 * are copied, this process alone sees it, and it is gone when the batch is
 * released. Any thread. NULL: no such feature, or they cannot be mapped;
 * penstock_error() says why. */
PENSTOCK_API void* penstock_batch_writable_data(penstock_batch* batch,
                                                uint32_t feature);
/* [rows] sample ids: the record's number in the dataset, PENSTOCK_PADDING_ID. */
PENSTOCK_API const int64_t* penstock_batch_ids(const penstock_batch* batch);
/* Not 0: this batch was handed out before, to a process that died with it, or
 * that may have had it: after a broker's death with which its pages were lost. */
PENSTOCK_API int penstock_batch_redelivered(const penstock_batch* batch);
/* Batches that this consumer missed before this one (lag: skip). */
PENSTOCK_API uint64_t penstock_batch_skipped(const penstock_batch* batch);

#ifdef __cplusplus
}
#endif
#endif /* PENSTOCK_H_ */
