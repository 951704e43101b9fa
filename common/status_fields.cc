#include "common/status_fields.h"

#include <algorithm>

namespace penstock {
namespace {

using enum FieldType;

// A field that is absent, or null, where it does not apply.
constexpr AnswerField Maybe(std::string_view key, FieldType type,
                            std::string_view text, std::string_view column = "",
                            std::string_view table = "",
                            std::string_view of = "") {
  return {key, type, text, false, column, table, of};
}

constexpr AnswerField kBroker[] = {
    {"version", kText, "of penstockd"},
    {"pid", kId, "of penstockd"},
    {"uptime_s", kSeconds, "since it started"},
    {"cpu_s", kSeconds, "CPU time of all of its threads"},
    {"rows", kCount, "rows made, of all jobs since it started"},
    {"workers", kCount, "worker threads"},
    {"workers_chosen", kText, "the processors they use, and why so many"},
    {"read_backend", kText, "how files are read: io_uring or pread"},
    {"sandbox", kText,
     "what holds the process that decodes: Landlock and its version, seccomp"},
    {"read_depth", kCount, "reads in flight at most, of one job in one worker"},
    {"read_depth_auto", kFlag, "the broker chooses read_depth"},
    {"read_depth_chosen", kText,
     "why read_depth is so, with what was measured"},
    {"pinned_bytes", kBytes,
     "memory that workers have pinned for direct reads"},
    {"hidden_jobs", kCount,
     "jobs of other users, which only root, the broker's own user and its "
     "observers see"},
    {"memory_bytes", kBytes,
     "reserved for all jobs, and what processes of former broker instances may "
     "still map"},
    Maybe("memory_limit_bytes", kBytes,
          "that all jobs may reserve; absent: only the machine and its control "
          "groups limit them"),
    {"resident_bytes", kBytes, "its memory, batches included"},
    {"nodes", kList, "the NUMA nodes"},
    {"numa", kText,
     "`one node`; whether memory is bound to its node; or why not"},
    {"connections", kCount, "processes connected to the control socket"},
    {"journal", kText,
     "what is wrong with the state directory, and since when; empty: nothing"},
    {"socket", kText, "path of the control socket"},
    {"private", kFlag, "started by a trainer for itself"},
    {"suspect_samples", kCount,
     "samples that were in work when a broker died: decoded alone"},
    {"condemned_samples", kCount,
     "samples that crashed brokers: an error without a try"},
};

constexpr AnswerField kNode[] = {
    {"node", kCount, "its number"},
    {"cpus", kText, "its processors, as a list of ranges"},
    {"memory_bytes", kBytes, "its memory"},
    {"workers", kCount, "workers pinned to its processors"},
};

constexpr AnswerField kLateRead[] = {
    {"worker", kCount, "the worker that waits"},
    {"uid", kId, "owner of the job"},
    {"job", kText, "name of the job"},
    {"dataset", kText, "name of its dataset"},
    {"file", kText, "what is read, with its offset"},
    {"seconds", kSeconds, "for how long"},
};

constexpr AnswerField kStores[] = {
    {"bytes", kBytes, "fetched"},
    {"bytes_per_s", kBytes, "fetched a second, in the last ones"},
    {"requests", kCount, "sent"},
    {"at_once", kCount, "requests that are sent at once at most"},
    {"in_flight", kCount, "requests without an answer"},
    {"queued", kCount, "ranges that are asked for and not requested yet"},
    {"retries", kCount, "of requests that failed"},
    {"throttled", kCount,
     "of these, because the store said that they were too many"},
    {"hedged", kCount, "requests sent once more because the first took long"},
    {"copies_bytes", kBytes, "of local copies in the cache folder"},
    {"copies_room_bytes", kBytes, "what they may take"},
};

constexpr AnswerField kJob[] = {
    {"job", kText, "its name", true, "JOB"},
    {"dataset", kText, "name of its dataset", true, "DATASET"},
    Maybe("delivery", kText, "split, dynamic, broadcast or independent",
          "DELIVERY"),
    {"state", kText, "`running`, `failed`, or what it waits for", true,
     "STATE"},
    {"uid", kId, "user that owns it", true, ">UID"},
    {"world_size", kCount, "ranks of the launch", true, ">RANKS"},
    Maybe("epoch", kCount, "the epoch of its next step, from 0", ">EPOCH", "",
          "epochs"),
    Maybe("step", kCount, "its next step of that epoch", ">STEP", "",
          "steps_per_epoch"),
    Maybe("rows", kCount, "rows made, redone ones included", ">ROWS"),
    Maybe("rows_skipped", kCount, "rows left out by `on_error: skip`",
          ">SKIPPED"),
    Maybe("rows_substituted", kCount, "rows replaced by `on_error: substitute`",
          ">SUBSTITUTED"),
    Maybe("rows_failed", kObject, "why rows were left out or replaced"),
    Maybe("rows_failed_first", kList, "the first of their messages"),
    Maybe("batches_redelivered", kCount,
          "batches given again, because a process that may have had them died"),
    Maybe("bytes_read", kBytes, "read for it", ">READ"),
    Maybe("memory_bytes", kBytes,
          "reserved for it: its batches, and of a stream retained_bytes",
          ">MEMORY"),
    Maybe("memory_used_bytes", kBytes,
          "of its batches' memory, what exists by now"),
    Maybe("io", kText, "how its records are read; empty: nothing is read", "IO",
          "reading"),
    Maybe("reads", kCount, "reads that have ended", ">READS", "reading"),
    Maybe("reads_cached", kCount, "of these, from the page cache at once",
          ">CACHED", "reading", "reads"),
    Maybe("read_wait_s", kSeconds, "time of workers that waited for its reads",
          ">READ WAIT", "reading"),
    Maybe("decode_s", kSeconds, "time of workers that made its rows", ">DECODE",
          "reading"),
    Maybe("cache", kText,
          "where its rows are kept, and whether more will be; absent: nowhere",
          "ROWS KEPT", "cache"),
    Maybe("cache_hits", kCount, "rows whose first steps the cache had", ">HITS",
          "cache"),
    Maybe("cache_misses", kCount, "rows that had to be read and made",
          ">MISSES", "cache"),
    Maybe("cache_entries", kCount, "records in the cache, which jobs may share",
          ">ENTRIES", "cache", "cache_records"),
    Maybe("cache_records", kCount, "records that there are"),
    Maybe("cache_bytes", kBytes, "that the entries take", ">BYTES", "cache"),
    Maybe("position", kCount,
          "rows of the plan before its next step, of all epochs"),
    Maybe("consumer", kCount, "independent: whose job it is"),
    Maybe("incarnation", kCount, "how often a job of this name has begun"),
    Maybe("on_rank_death", kText, "wait, fail or shrink"),
    Maybe("missing", kNumbers,
          "ranks that have not attached, or are to be replaced"),
    Maybe("slots", kObject, "its slots by state"),
    Maybe("local_world_size", kCount, "ranks of this host"),
    {"replicas", kCount, "processes that are one rank"},
    Maybe("steps_per_epoch", kCount, "0: unknown"),
    Maybe("epochs", kCount, "0: forever"),
    Maybe("records", kCount, "of the dataset; 0: unknown"),
    Maybe("rows_local", kCount,
          "rows made by a worker of their slot's NUMA node"),
    Maybe("rows_remote", kCount, "rows made by a worker of another node"),
    Maybe("pages_seen", kCount,
          "pages of slots whose node was checked; 0 while slots are moved"),
    Maybe("pages_elsewhere", kCount,
          "of these, not on the node they are bound to"),
    Maybe("prefetch", kCount, "batches that it makes ahead for each rank"),
    Maybe("prefetch_chosen", kText,
          "why prefetch is so, with what was measured"),
    Maybe("copies", kCount,
          "of every batch: in a broadcast one on each node, where there is "
          "memory"),
    Maybe(
        "weights", kList,
        "how the weights of its mix have changed: [epoch, row, weight, ...] of "
        "each"),
    Maybe("last_error", kText,
          "the last sample that failed, or why the job failed"),
    Maybe("warning", kText, "what works, but not as it should"),
    Maybe("waits_for", kNumbers,
          "ranks that are to reconnect, or whose replacements are to come"),
    Maybe("kept_s", kSeconds, "all ranks are gone: how long it still waits"),
    Maybe("producers_at_work", kCount, "of a stream: producers that may put"),
    Maybe("rows_put", kCount, "of a stream: rows put in all"),
    Maybe("rows_kept", kCount, "of a stream: rows that ranks still need"),
    Maybe("retained_rows", kCount,
          "of a stream: rows in the broker's own memory, for batches held for "
          "long"),
    Maybe("retained_bytes", kBytes, "of a stream: reserved for those"),
    Maybe("processes", kCount,
          "with a Python function: processes that call it for this job"),
    Maybe("processes_chosen", kText, "why so many, with what was measured"),
    Maybe("remote", kObject, "what it reads from object stores"),
    Maybe("remote_rows", kObject, "what other hosts make of its rows"),
    Maybe("bottleneck", kObject, "what limits it; in `status` only"),
    Maybe("ranks", kList, "in `status` only"),
    Maybe("parts", kList,
          "of a mix, in `status` only; absent where `select` or `batch.pack` "
          "goes across them"),
    Maybe("producers", kList, "of a stream, in `status` only"),
};

constexpr AnswerField kRemote[] = {
    {"bytes", kBytes, "that its rows need, those looked ahead to included",
     true, ">NEEDED"},
    {"fetched_bytes", kBytes,
     "asked of the stores for them, with what lies around; the rest was in "
     "local copies",
     true, ">FETCHED"},
    Maybe("hit_rate", kFraction,
          "of the bytes that its rows needed in the last seconds, those that "
          "were not fetched",
          ">FROM COPIES"),
    {"hit_rate_all", kFraction, "the same since the job began", true,
     ">OF ALL"},
    {"rows_ahead", kCount,
     "the next rows, those of other hosts counted, up to the first that is not "
     "there yet",
     true, ">ROWS AHEAD"},
    Maybe("ahead_s", kSeconds,
          "what these last at the rate of the last seconds; absent: no row is "
          "taken",
          ">AHEAD"),
    {"wait_s", kSeconds,
     "of read_wait_s, in which an object store had not answered yet", true,
     ">WAITED"},
};

constexpr AnswerField kRemoteRows[] = {
    {"steps", kCount, "of `map`, which other hosts run", true, ">STEPS"},
    {"row_bytes", kBytes, "that such a row has", true, ">ROW"},
    {"rows_wanted", kCount,
     "rows that other hosts could make and that none is asked for, because all "
     "that there are have enough to do",
     true, ">WANTED"},
    {"rows_asked", kCount, "rows that were asked for", true, ">ASKED"},
    {"rows_made", kCount, "of these, those that came in time", true, ">MADE"},
    {"rows_used", kCount, "of these, those that workers took", true, ">USED"},
    {"rows_late", kCount, "rows that a worker made before they came", true,
     ">LATE"},
    {"rows_lost", kCount, "rows that were asked for and not made", true,
     ">LOST"},
    {"rows_unused", kCount, "rows that came and that nobody needed any more",
     true, ">UNUSED"},
    {"rows_damaged", kCount, "rows whose checksum was another", true,
     ">DAMAGED"},
    {"asks", kCount, "that are not answered", true, ">ASKS"},
    {"answer_s", kSeconds, "that an answer takes", true, ">ANSWER"},
    {"rows_ahead", kCount,
     "how far ahead of the workers rows are asked for, so that they come in "
     "time",
     true, ">AHEAD"},
    {"makers", kList,
     "`maker`, `rows`, `bytes`, `checked` (rows that were made here too, and "
     "compared) and `distrusted` of each",
     true},
};

constexpr AnswerField kMaker[] = {
    {"maker", kText, "its address", true, "MAKER"},
    {"state", kText,
     "`connected`; `away`; `refuses`: it makes no rows of a job; `distrusted`: "
     "it made other rows than this host",
     true, "STATE"},
    {"connections", kCount, "to it", true, ">CONNECTIONS"},
    {"rows", kCount, "that it has made", true, ">ROWS"},
    {"bytes", kBytes, "that these had", true, ">BYTES"},
    {"bytes_per_s", kBytes, "of the last second", true, ">A SECOND"},
    {"error", kText, "why it makes none; empty: it does", true, "ERROR"},
};

constexpr AnswerField kSlots[] = {
    {"free", kCount, "empty"},
    {"filling", kCount, "of batches that are being made"},
    {"ready", kCount, "of batches that are finished and in no ring"},
    {"out", kCount, "of batches in rings, or held by ranks"},
    {"quarantined", kCount, "held by a process that was evicted and lives"},
};

constexpr AnswerField kRowsFailed[] = {
    {"damaged", kCount,
     "truncated, corrupt, of another shape, or refused by a step or a "
     "function"},
    {"missing", kCount, "of files that are gone"},
    {"other", kCount, "of reads that failed, and so on"},
};

constexpr AnswerField kBottleneck[] = {
    {"what", kText, "one of the values below"},
    {"text", kText, "the line above"},
    {"ranks_wait", kFraction,
     "of the time, in which the rank that waits most waited for a batch"},
    {"decoding", kFraction,
     "of all workers' time, in which they made rows of this job; with a Python "
     "function: of its own processes' time"},
    {"storage", kFraction,
     "of the same time, in which workers waited for this job's reads and had "
     "nothing else to do"},
    {"network", kFraction,
     "the part of storage in which an object store had not answered yet"},
    {"workers_decoding", kFraction, "as decoding, of all jobs"},
    {"workers_storage", kFraction, "as storage, of all jobs"},
    {"workers_idle", kFraction,
     "of the workers' time, in which they slept, because no row was to be "
     "made"},
    Maybe("rank", kCount, "only with `rank`: which one"),
    Maybe("replica", kCount,
          "only with `rank`: which of its processes, where it is several"),
    Maybe("behind", kFraction,
          "only with `rank`: of the checks, at which it was behind the others"),
    Maybe(
        "stands_s", kSeconds,
        "only with `rank`: how long it has neither taken nor released a batch "
        "while no other rank has gone on without it; it is named for that "
        "after "
        "3 s, and as long as it hangs"),
    Maybe("batch_s", kSeconds,
          "only with `rank`: what a batch takes it, without its waits for "
          "batches"),
    Maybe(
        "others_batch_s", kSeconds,
        "only with `rank`: the same of the others, without their waits for it"),
    Maybe("to_attach", kNumbers,
          "only with `absent`: ranks that have not attached"),
    Maybe("to_reconnect", kNumbers,
          "only with `absent`: ranks that have not reconnected"),
    Maybe("pids", kNumbers,
          "only with `evicted`: those of these processes that are known"),
};

constexpr AnswerField kRank[] = {
    {"rank", kCount, "its number", true, ">RANK"},
    Maybe("replica", kCount,
          "its number among the processes that are this rank; absent: it is "
          "one",
          ">REPLICA"),
    Maybe("pid", kId,
          "of its process, as the broker sees it; absent: it is not known, or "
          "in a "
          "PID namespace beside the broker's",
          ">PID"),
    {"state", kText,
     "`attached`, `away` (it has not reconnected), `waited for` and so on",
     true, "STATE"},
    Maybe("ready", kCount, "batches in its ring", ">READY"),
    Maybe("held", kCount, "batches it has and has not released", ">HELD"),
    Maybe("taken", kCount, "batches it has taken", ">TAKEN"),
    Maybe("skipped", kCount, "broadcast: batches it has missed", ">MISSED"),
    Maybe("waits", kCount, "how often it found no batch", ">WAITS"),
    Maybe("wait_s", kSeconds, "how long it has waited for batches", ">WAITED"),
    Maybe("batch_s", kSeconds,
          "what a batch takes it, without its waits for batches, of the last "
          "seconds",
          ">A BATCH"),
    Maybe("lag", kCount,
          "batches it has finished with fewer than the furthest rank", ">LAG"),
    Maybe("silent_s", kSeconds, "how long it has taken and released nothing",
          ">SILENT"),
    Maybe("seat", kId, "number of its ring; -1: it has none"),
    Maybe("node", kCount, "NUMA node where it runs"),
    Maybe("node_from", kText, "what tells its node, or why it is not known"),
    Maybe("memory_node", kCount, "NUMA node of its batches"),
};

constexpr AnswerField kProducer[] = {
    {"producer", kCount, "its number in the stream", true, ">PRODUCER"},
    Maybe("pid", kId,
          "of its process, as the broker sees it; absent: it is not connected, "
          "or "
          "in a PID namespace beside the broker's",
          ">PID"),
    {"state", kText,
     "`at work`; `waits for room`: its largest put does not fit behind rows "
     "that ranks need; `away`: it has not come back since the broker was "
     "restarted; `gone`: it finished or died, and rows of it are needed",
     true, "STATE"},
    {"rows_put", kCount, "rows it has put", true, ">ROWS PUT"},
    {"rows_kept", kCount, "of these in its memory, because ranks need them",
     true, ">KEPT"},
    {"room_rows", kCount, "rows it may put now", true, ">ROOM"},
    {"waits_for_room", kFlag, "as in state", true},
    {"memory_bytes", kBytes, "of its ring, which is its own", true, ">MEMORY"},
};

// Derived from the plan's position: rows in work or held count as delivered.
constexpr AnswerField kPart[] = {
    {"part", kCount, "its number in the mix", true, ">PART"},
    {"source", kText, "its kind of source, and what it is of", true, "SOURCE"},
    {"weight", kFraction,
     "the share of the rows that its weight gives it at the next step", true,
     ">WEIGHT"},
    {"share", kFraction, "the share that it has had", true, ">SHARE"},
    {"rows", kCount,
     "of it before the next step, of all epochs and former jobs", true,
     ">ROWS"},
    {"rows_of_job", kCount, "of these, since the job began", true, ">OF JOB"},
    {"rows_of_pass", kCount, "of it in this pass of the mix", true, ">OF PASS"},
    {"records", kCount, "rows of a pass over it", true, ">RECORDS"},
    {"epochs", kNumber, "rows / records: how often it has been passed through",
     true, ">EPOCHS"},
    Maybe("tokens", kCount,
          "of its rows, without padding (of packed rows as of those of a pass "
          "on average); absent: it has none, or they differ from row to row",
          ">TOKENS"),
};

constexpr StatusObject kObjectsOfAnswer[] = {
    {"broker", "`broker`", kBroker},
    {"node", "`broker.nodes[]`", kNode},
    {"stores",
     "`stores`: what was fetched from object stores; absent before the first",
     kStores},
    {"maker",
     "`makers[]`: hosts that make rows for this one; absent: no link is here",
     kMaker},
    {"late read", "`late_reads[]`: reads in flight for more than a second",
     kLateRead},
    {"job", "`jobs[]`", kJob},
    {"remote",
     "`jobs[].remote`: of a job whose rows are in object stores; absent: none "
     "is",
     kRemote},
    {"remote rows",
     "`jobs[].remote_rows`: of a job that `penstock link use` serves, or has "
     "served; absent: none",
     kRemoteRows},
    {"slots", "`jobs[].slots`", kSlots},
    {"rows failed", "`jobs[].rows_failed`", kRowsFailed},
    {"bottleneck",
     "`jobs[].bottleneck`: of the last seconds; times are fractions of them",
     kBottleneck},
    {"rank", "`jobs[].ranks[]`", kRank},
    {"part", "`jobs[].parts[]`", kPart},
    {"producer", "`jobs[].producers[]`", kProducer},
};

}  // namespace

std::span<const StatusObject> StatusObjects() { return kObjectsOfAnswer; }

const StatusObject& StatusObjectOf(std::string_view name) {
  return *std::find_if(
      std::begin(kObjectsOfAnswer), std::end(kObjectsOfAnswer),
      [name](const StatusObject& object) { return object.name == name; });
}

}  // namespace penstock
