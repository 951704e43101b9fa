#include "broker/request/requests.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "broker/job/asked_rows.h"
#include "broker/job/remote_rows.h"
#include "broker/memory/placement.h"
#include "broker/plan/plan.h"
#include "broker/workers/worker_pool.h"
#include "common/delivery_options.h"
#include "common/job_state.h"
#include "common/layout.h"
#include "common/text_file.h"

namespace penstock {
namespace {

using enum FieldType;

constexpr bool kSometimes = false;

constexpr uint64_t kNameBytesMax = 256;
constexpr uint64_t kPathBytesMax = 4096;
constexpr uint64_t kReasonBytesMax = 512;
constexpr uint64_t kWorldSizeMax = 1u << 20;
constexpr uint64_t kWaitSecondsMax = 1'000'000'000;

constexpr FieldValue Text(uint64_t bytes_max) { return {kText, 0, bytes_max}; }
constexpr FieldValue OneOf(std::span<const std::string_view> words) {
  return {kText, 0, 0, words};
}
constexpr FieldValue Number(uint64_t min, uint64_t max) {
  return {kCount, min, max};
}
constexpr FieldValue Flag() { return {kFlag}; }

// ---- fields of several requests

constexpr RequestField kDataset[] = {
    {"spec", Text(kSpecBytesMax), "the dataset spec, as YAML"},
    {"file", Text(kPathBytesMax),
     "name of its file, for messages; empty: a program wrote it", "spec"},
    {"base", Text(kPathBytesMax), "folder that its relative paths start from",
     "spec"},
    {"dataset", Text(kNameBytesMax),
     "instead of `spec`: the name of a registered dataset"},
};

constexpr RequestField kOfJob[] = {
    {"job", Text(kNameBytesMax),
     "name of the job; an attached rank leaves it out to mean its own"},
    {"dataset", Text(kNameBytesMax),
     "name of its dataset, where jobs of several have this name"},
    {"uid", Number(0, UINT32_MAX),
     "its user, where jobs of several have this name (for root)"},
};

constexpr AnswerField kDatasetName[] = {{"dataset", kText, "its name"}};

// ---- about the broker

constexpr AnswerField kPingAnswer[] = {
    {"version", kText, "of penstockd"},
    {"pid", kId, "of penstockd"},
    {"private", kFlag, "started by a trainer for itself"},
};

constexpr AnswerField kDatasetsAnswer[] = {
    {"datasets", kList, "`name`, `uid` and kind of `source` of each"}};

constexpr AnswerField kJobsAnswer[] = {
    {"jobs", kList,
     "as in `status`, without their ranks, parts and producers"}};

constexpr AnswerField kStatusAnswer[] = {
    {"broker", kObject, "the broker"},
    {"stores", kObject, "what was fetched from object stores", false},
    {"late_reads", kList, "reads in flight for more than a second"},
    {"makers", kList, "hosts that make rows for this one", false},
    {"jobs", kList, "the jobs, with their ranks, parts and producers"},
};

constexpr RequestField kWorkers[] = {{"workers", Number(0, kWorkersMax),
                                      "how many; 0: the broker chooses",
                                      kAlways}};
constexpr AnswerField kWorkersAnswer[] = {
    {"workers", kCount, "how many there are now"},
    {"workers_chosen", kText, "the processors they use, and why so many"},
};

// ---- about datasets

constexpr RequestField kRegister[] = {
    {"replace", Flag(), "an older spec of this name is forgotten"}};

constexpr AnswerField kParseAnswer[] = {
    {"dataset", kText, "its name"},
    {"spec", kText, "the spec as JSON, in full"},
    {"random_steps", kList,
     "the steps of `map` that draw random numbers; functions are left out"},
};

constexpr RequestField kIndex[] = {
    {"world_size", Number(1, kLocalRanksMax), "ranks, of all hosts; else 1"},
    {"hosts", Number(1, kLocalRanksMax),
     "that have equally many of them: memory is counted for those of one; "
     "else 1"},
    {"replicas", Number(1, kLocalRanksMax),
     "processes of this host that are one rank; else 1"},
    {"row", Number(0, Plan::kTotalRowsMax),
     "of an epoch, in its order over all ranks: asks where it is"},
    {"epoch", Number(0, Plan::kTotalRowsMax), "which one", "row"},
    {"scan", Flag(),
     "false: files of object stores are not read for an index "
     "that they lack; that is the error"},
};
constexpr AnswerField kIndexAnswer[] = {
    {"dataset", kText, "its name"},
    {"spec", kText, "the spec as JSON, in full"},
    {"records", kCount, "how many it has; 0: it is a stream"},
    {"element_spec", kList, "`name`, `dtype` and `shape` of each feature"},
    {"element_spec_by_part", kList,
     "the same for each part of the source, if their shapes differ", false},
    {"class_names", kList,
     "of an image folder or list: the names of its labels"},
    {"left_out", kText, "files that are no records of it, if there are any"},
    {"source_warning", kText,
     "what works in its source, but not as it should; may be empty"},
    {"fingerprint", kText,
     "of its files' records, the same on every host; empty: it has none"},
    {"source_fingerprint", kText,
     "the same, without files that `map` and `select` read"},
    {"source_records", kCount, "of all its records; 0: it is a stream"},
    {"data", kText,
     "by which a list of its records knows it: source_fingerprint, or a digest "
     "of its source where there is none"},
    {"selection", kText,
     "digest of its `select`, and of how its source is "
     "made of others"},
    {"row", kObject,
     "where that row is: its `step` of the epoch, `row_of_step`, `sample`, "
     "`place` of that record for people, and the `state` with which a job "
     "begins with this step",
     kSometimes},
    {"global_batch", kCount, "rows of a step"},
    {"steps_per_epoch", kCount, "0: unknown"},
    {"rows_per_epoch", kCount, "0: unknown"},
    {"epochs", kCount, "0: forever"},
    {"memory_bytes", kBytes, "that its job needs"},
    {"retained_bytes", kBytes, "of a stream: kept for batches held for long"},
    {"index_bytes", kBytes, "of the list of its records"},
    {"copied_files", kCount, "that are read from local copies"},
    {"copied_bytes", kBytes, "of these copies"},
    {"remote", kObject,
     "of a dataset in object stores: its `files` and `bytes` (of Parquet and "
     "Arrow those of the columns that an epoch reads); `index_kept`, "
     "`index_beside` and `index_scanned` of them (`index_scanned_bytes`), by "
     "where their indexes are from; the `rows` of an epoch, their mean "
     "`row_bytes` and that of the blocks they are in (`row_block_bytes`); of "
     "local copies `room_bytes`, what of it stays (`kept_bytes`), is looked "
     "ahead at most (`ahead_bytes`, `ahead_rows`), and is free on the disk "
     "(`free_bytes`)",
     kSometimes},
    {"cache", kText, "where rows are kept; absent: nowhere", kSometimes},
    {"cache_steps", kCount, "steps of `map` after which they are", kSometimes},
    {"cache_bytes", kBytes, "that the cache may take", kSometimes},
    {"cache_entry_bytes", kBytes,
     "of the features of each; 0: they differ in size", kSometimes},
    {"slots", kCount, "of its job"},
    {"slot_rows", kCount, "rows of a slot"},
    {"row_bytes", kBytes, "of a row"},
    {"prefetch", kCount, "finished batches per rank, in the beginning"},
    {"prefetch_most", kCount, "as many as ranks may need later"},
    {"hold", kCount, "batches that a rank may hold"},
    {"memory_left_bytes", kBytes, "that the user may still reserve"},
    {"memory_left_by", kText, "the limit that says so"},
};

// ---- ranks

constexpr RequestField kAttach[] = {
    {"job", Text(kNameBytesMax), "name of its job", kAlways},
    {"named", Flag(),
     "somebody chose that name: the job may wait for ranks that died"},
    {"rank", Number(0, kWorldSizeMax),
     "its number, less than world_size; absent in broadcast and independent: "
     "any that is free"},
    {"world_size", Number(1, kWorldSizeMax), "ranks of all hosts", kAlways},
    {"local_world_size", Number(1, kLocalRanksMax),
     "ranks of this host, or with replicas here", kAlways},
    {"replica", Number(0, kWorldSizeMax - 1),
     "its number among the processes that are this rank; absent: 0"},
    {"replicas", Number(1, kWorldSizeMax),
     "split and independent: processes of all hosts that are one rank, each of "
     "which gets its batches; absent: 1"},
    {"local_replicas", Number(1, kLocalRanksMax),
     "those of each of these ranks on this host; absent: all"},
    {"delivery", OneOf(kDeliveryModeNames), "absent: split"},
    {"on_rank_death", OneOf(kOnRankDeathNames),
     "absent: wait in split, else shrink"},
    {"lag", OneOf(kLagNames),
     "broadcast: what becomes of a consumer that is `window` batches behind; "
     "absent: block"},
    {"window", Number(1, kLeasesMax), "broadcast; absent: the spec's prefetch"},
    {"consumers", Number(1, kLocalRanksMax),
     "broadcast: how many there may be at once; absent: local_world_size, 8 at "
     "least"},
    {"full_epoch", Flag(), "broadcast: its epochs begin where it joins"},
    {"per_host", Flag(), "dynamic: each host has all of the data"},
    {"repeat_first", Flag(), "one batch is made, and the ranks repeat it"},
    {"wait_s",
     {kSeconds, 0, kWaitSecondsMax},
     "how long the job waits for missing ranks; absent: 600"},
    {"state", {kObject}, "where the job begins; absent: at its beginning"},
    {"state_of_same_dataset", Flag(),
     "the state is left aside if it is another dataset's"},
    {"cpus", Text(kCpuListCharsMax), "processors it may run on: `0-7,16`"},
    {"cpu", Number(0, kCpusMax - 1), "the one it runs on"},
    {"node", Number(0, kNodesMax - 1), "NUMA node that its user names"},
    {"gpu_node", Number(0, kNodesMax - 1), "NUMA node of its GPU"},
    {"gpu", Text(kGpuCharsMax), "PCI address of that GPU", "gpu_node"},
    {"incarnation", Number(1, UINT64_MAX),
     "it reconnects: the incarnation it belongs to"},
    {"token", Number(0, UINT64_MAX), "of that incarnation", "incarnation"},
    {"position", Number(0, Plan::kTotalRowsMax), "of its next batch",
     "incarnation"},
    {"phase", Number(0, kLocalRanksMax - 1), "how often it saw the job shrink",
     "incarnation"},
    {"owed",
     {kNumbers, 0, JobState::kOwedMax},
     "of `owed_steps`, and of the steps owed when a later phase began, those "
     "that it has not taken",
     "incarnation"},
    {"taken", Number(0, Plan::kTotalRowsMax),
     "batches it took, of all broker instances", "incarnation"},
    {"epochs_from", Number(0, Plan::kTotalRowsMax),
     "position where it joined; needed with incarnation and full_epoch"},
};
constexpr AnswerField kAttachAnswer[] = {
    {"dataset", kText, "its name"},
    {"job", kText, "name of the job"},
    {"rank", kCount, "the rank's number"},
    {"replica", kCount, "its number among the processes that are this rank"},
    {"seat", kCount, "number of its ring in the segment"},
    {"incarnation", kCount, "of the job; a reconnect names it"},
    {"token", kCount, "of the incarnation, which no other one has"},
    {"hold", kCount, "batches it may hold"},
    {"records", kCount, "of the dataset; 0: it is a stream"},
    {"steps_per_epoch", kCount, "0: unknown"},
    {"rows_per_epoch", kCount, "0: unknown"},
    {"epochs", kCount, "0: forever"},
    {"position", kCount, "from where on it gets all steps"},
    {"handed_over", kCount, "batches of its predecessor"},
    {"replaces", kFlag, "a rank of its number died"},
    {"state", kObject, "the state the job began at"},
    {"phase", kCount, "how often the job shrank"},
    {"plan_rank", kCount, "its number among the ranks of this phase"},
    {"plan_ranks", kCount, "how many these are"},
    {"owed", kList,
     "as in a state: what it gets of earlier rows, some of which a rank of its "
     "number had"},
    {"owed_steps", kList,
     "the step of each of these: its position + phase * 2^54"},
    {"warning", kText, "what works, but not as it should; may be empty"},
    {"spin_ns", kCount, "how long it may spin before it sleeps"},
    {"element_spec", kList, "`name`, `dtype` and `shape` of each feature"},
    {"element_spec_by_part", kList,
     "the same for each part of the source, if their shapes differ", false},
};

constexpr RequestField kFingerprint[] = {
    {"part", Text(kNameBytesMax),
     "its name, for what it consists of; `files FIRST COUNT` of these files"}};
constexpr AnswerField kFingerprintAnswer[] = {
    {"parts", kList,
     "without `part`: name and value of each, a long value as `#` and its "
     "digest",
     kSometimes},
    {"part", kObject,
     "`text`: its value, 16 KiB of it at most; of files, in the order of the "
     "dataset: `files`, how many there are in all, and their `names` with "
     "their bytes, or, of more than 64, `digests` of 64 equal shares of COUNT",
     kSometimes},
};

constexpr RequestField kWeights[] = {
    {"weights",
     {kList},
     "of its parts: numbers, 0 or more; absent: none change"},
    {"epoch", Number(0, Plan::kTotalRowsMax),
     "with `row`: from there on; absent: from the first step that nobody has "
     "begun to make"},
    {"row", Number(0, Plan::kTotalRowsMax), "of that epoch; absent: 0"},
};
constexpr AnswerField kWeightsAnswer[] = {
    {"parts", kCount, "of the mix"},
    {"changes", kList,
     "[epoch, row, weight, ...] of each, as in a state; of `independent` those "
     "of each consumer, one after the other"},
    {"free_epoch", kCount,
     "absent `weights`: the epoch of the first row that is not made before a "
     "rank takes another batch",
     kSometimes},
    {"free_row", kCount, "of that epoch", kSometimes},
    {"epoch", kCount, "where these weights begin", kSometimes},
    {"row", kCount, "of that epoch", kSometimes},
    {"step", kCount, "the first step of that epoch that has a row of them",
     kSometimes},
};
constexpr RequestField kEvict[] = {
    {"rank", Number(0, kWorldSizeMax), "number of the rank", kAlways},
    {"replica", Number(0, kWorldSizeMax - 1),
     "which of its processes; needed where a rank is several"}};
constexpr RequestField kStop[] = {
    {"now", Flag(), "batches that no rank has taken are taken back"}};
constexpr AnswerField kStopAnswer[] = {
    {"ended", kFlag, "it is over: `now`, or no rank is attached"}};
constexpr RequestField kTrace[] = {
    {"seconds", {kSeconds, 0, 60}, "how long it records", kAlways}};
constexpr AnswerField kTraceAnswer[] = {
    {"began_unix_ns", kCount, "when it began, in ns since 1970"},
    {"jobs", kList,
     "`job` and `dataset` of the events' jobs; empty: another "
     "user's"},
    {"events", kCount, "how many TraceEvents (`trace_event.h`) the memfd has"},
    {"dropped", kCount, "events that did not fit"},
};
constexpr RequestField kMeasure[] = {
    {"seconds", {kSeconds, 0, 3600}, "for how long from now on", kAlways}};
constexpr AnswerField kMeasureAnswer[] = {
    {"rows", kCount, "rows of this job that were measured since it began"},
    {"parts", kList,
     "of making these: `part` (read, unpack, copy, hand_over, other, assemble, "
     "publish, or step with its number `step` and its `name`) and `seconds` of "
     "workers"},
};
constexpr AnswerField kFailuresAnswer[] = {
    {"failures", kList,
     "[sample, message] of each, the oldest first; those of one request are "
     "in no later answer"},
    {"more", kFlag, "there are more: ask again"},
    {"forgotten", kCount, "before them, more than the broker keeps"},
};
constexpr RequestField kStateOf[] = {
    {"spec", Flag(), "the answer has the spec of its dataset too"}};
constexpr AnswerField kStateAnswer[] = {
    {"state", kObject, "the state"},
    {"spec", kText, "of its dataset, as JSON in full", kSometimes}};

// ---- producers

constexpr RequestField kProduce[] = {
    {"job", Text(kNameBytesMax), "name of the job", kAlways},
    {"dataset", Text(kNameBytesMax),
     "name of its dataset, where jobs of several have this name"},
    {"features", {kList}, "`name`, `dtype` and `shape` of each", kAlways},
    {"rows", Number(1, UINT32_MAX), "of its largest put", kAlways},
    {"token", Number(1, UINT64_MAX), "by which it is known when it comes back"},
    {"back", Flag(), "a former broker instance knew it"},
};
constexpr AnswerField kProduceAnswer[] = {
    {"dataset", kText, "name of the dataset", kSometimes},
    {"ring_rows", kCount, "rows of its memory", kSometimes},
    {"next", kCount, "number of the next row that any producer puts",
     kSometimes},
    {"end", kCount, "place after its last row", kSometimes},
    {"freed", kCount, "place up to which it may write again", kSometimes},
    {"finished", kFlag,
     "it had finished before the broker died; all others are absent",
     kSometimes},
};

constexpr RequestField kPut[] = {
    {"place", Number(0, UINT64_MAX / 2), "where the rows are in its memory",
     kAlways},
    {"rows", Number(1, UINT32_MAX), "how many", kAlways},
    {"quiet", Flag(), "answered only if it is refused"},
};
constexpr AnswerField kPutAnswer[] = {
    {"first", kCount, "number of the first row"},
    {"end", kCount, "place after the last one"},
};

constexpr RequestField kFinish[] = {
    {"error", Text(kReasonBytesMax), "it failed: the job fails for this"}};

// ---- rows that other hosts make

constexpr RequestField kAsk[] = {
    {"rows",
     {kNumbers, 0, 2 * AskedRows::kRowsMax},
     "of each row its record and the pass that keys its random numbers",
     kAlways},
};
constexpr RequestField kLink[] = {
    {"asks", Number(0, UINT32_MAX),
     "how many it answers at once, of each job that it will be lent", kAlways},
    {"lent", Number(1, UINT64_MAX), "of this job, which it has been lent"},
};
constexpr AnswerField kLinkAnswer[] = {{"version", kText, "of penstockd"}};
constexpr RequestField kMade[] = {
    {"lent", Number(1, UINT64_MAX), "number of the job that was lent", kAlways},
    {"ask", Number(1, UINT64_MAX), "which one is over", kAlways},
    {"maker", Text(kNameBytesMax), "who made the rows", kAlways},
    {"rows",
     {kNumbers, 0, uint64_t{2} * RemoteRows::kAskRowsMax},
     "place and checksum of each that was made: CRC-32C of its record, its "
     "pass "
     "and its bytes",
     kAlways},
};
constexpr RequestField kMakers[] = {
    {"makers",
     {kList},
     "`maker`, `state`, `error`, `rows`, `bytes` and `bytes_per_s` of each",
     kAlways},
};

// ----

constexpr DeclaredRequest kRequests[] = {
    {.op = "ping",
     .text = "check that the broker answers",
     .answer = kPingAnswer},
    {.op = "register",
     .text = "keep a spec under its name, for this user",
     .fields = kRegister,
     .shared = kDataset,
     .answer = kDatasetName},
    {.op = "unregister",
     .text = "forget a registered spec",
     .shared = kDataset,
     .answer = kDatasetName},
    {.op = "datasets",
     .text = "list the registered datasets",
     .answer = kDatasetsAnswer},
    {.op = "jobs", .text = "list the jobs, in short", .answer = kJobsAnswer},
    {.op = "status",
     .text = "show the broker and its jobs in full",
     .answer = kStatusAnswer},
    {.op = "parse",
     .text = "read a spec, not its data",
     .shared = kDataset,
     .answer = kParseAnswer},
    {.op = "index",
     .text =
         "open a dataset and describe its content and the memory its job needs",
     .fields = kIndex,
     .shared = kDataset,
     .answer = kIndexAnswer},
    {.op = "attach",
     .text = "take part in a job as a rank",
     .fields = kAttach,
     .shared = kDataset,
     .descriptors = "its cursor page; to reconnect, also the former one",
     .answer = kAttachAnswer,
     .answer_descriptors = "the segment; its end of the wake socket",
     .events = "`ranks` (`phase`, `rank`, `world_size`, `state`), before the "
               "first batch after the job has shrunk; `weights` (`change`, as "
               "in a state), before the first batch that is made with them"},
    {.op = "detach", .text = "leave, with everything unmapped; not answered"},
    {.op = "unmapped",
     .text = "report that no memory of former broker instances is mapped; not "
             "answered"},
    {.op = "produce",
     .text = "feed a job with rows",
     .fields = kProduce,
     .descriptors = "to come back: its memory",
     .answer = kProduceAnswer,
     .answer_descriptors = "its memory",
     .events = "`freed` (`place`, `end`): there is room; `over` (`code`, "
               "`error`): nobody takes rows"},
    {.op = "put",
     .text = "announce rows that are written",
     .fields = kPut,
     .answer = kPutAnswer},
    {.op = "finish", .text = "put no more rows", .fields = kFinish},
    {.op = "state",
     .text = "get the state of a job",
     .fields = kStateOf,
     .shared = kOfJob,
     .answer = kStateAnswer},
    {.op = "fingerprint",
     .text = "tell what all hosts of a job must have alike",
     .fields = kFingerprint,
     .shared = kOfJob,
     .answer = kFingerprintAnswer},
    {.op = "weights",
     .text = "show or change the weights of a job's mix",
     .fields = kWeights,
     .shared = kOfJob,
     .answer = kWeightsAnswer},
    {.op = "evict",
     .text = "treat a rank as dead: its batches go to other ranks or to its "
             "replacement",
     .fields = kEvict,
     .shared = kOfJob},
    {.op = "stop",
     .text = "end a job",
     .fields = kStop,
     .shared = kOfJob,
     .answer = kStopAnswer},
    {.op = "trace",
     .text = "record what workers and ranks do; answered at its end",
     .fields = kTrace,
     .shared = kOfJob,
     .answer = kTraceAnswer,
     .answer_descriptors = "the events"},
    {.op = "measure",
     .text = "measure what workers do for the rows of a job; answered at once",
     .fields = kMeasure,
     .shared = kOfJob,
     .answer = kMeasureAnswer},
    {.op = "failures",
     .text = "take the samples that were left out or replaced (`on_error`)",
     .shared = kOfJob,
     .answer = kFailuresAnswer},
    {.op = "ask",
     .text = "ask for rows of a job by number (`asked` in its spec): its next "
             "batches are made of them; answered only if it is refused",
     .fields = kAsk,
     .shared = kOfJob},
    {.op = "link",
     .text = "bring rows that other hosts make",
     .fields = kLink,
     .answer = kLinkAnswer,
     .events =
         "`lend` (`lent`, `job`, `spec`, `fingerprint`, `records`, "
         "`element_spec`, `offsets`, `row_bytes`, `rows`, `places`), with "
         "the memory that rows are written to; `make` (`lent`, `ask`, "
         "`rows`: record, pass and place of each); `unlend` (`lent`); "
         "`distrust` (`maker`)"},
    {.op = "made",
     .text = "report that an ask is over; answered only if it is refused",
     .fields = kMade},
    {.op = "makers",
     .text = "tell which hosts make rows, for `status`; not answered",
     .fields = kMakers},
    {.op = "workers",
     .text = "set the number of workers",
     .fields = kWorkers,
     .answer = kWorkersAnswer},
    {.op = "shutdown", .text = "end a private broker"},
};

constexpr RequestField kOp[] = {
    {"op", Text(kNameBytesMax), "which request it is", kAlways}};

// nullptr: none is declared.
const DeclaredRequest* Find(std::string_view op) {
  const auto found = std::find_if(
      std::begin(kRequests), std::end(kRequests),
      [op](const DeclaredRequest& request) { return request.op == op; });
  return found == std::end(kRequests) ? nullptr : found;
}

Status CheckField(const nlohmann::json& request, const RequestField& field,
                  bool needed) {
  constexpr size_t kCharsShown = 40;
  const auto found = request.find(field.key);
  if (found == request.end() ? !needed : field.value.Allows(*found)) {
    return OkStatus();
  }
  return InvalidArgumentError(
      "request: '{}' is {}; wanted {}", field.key,
      found == request.end() ? "missing" : found->dump().substr(0, kCharsShown),
      field.value.Wanted());
}

Status CheckFields(const nlohmann::json& request,
                   std::span<const RequestField> fields) {
  for (const RequestField& field : fields) {
    PENSTOCK_RETURN_IF_ERROR(CheckField(
        request, field,
        field.needed == kAlways ||
            (!field.needed.empty() && request.contains(field.needed))));
  }
  return OkStatus();
}

}  // namespace

bool FieldValue::Allows(const nlohmann::json& value) const {
  switch (type) {
    case FieldType::kText: {
      if (!value.is_string()) return false;
      const auto& text = value.get_ref<const std::string&>();
      return words.empty()
                 ? text.size() <= max
                 : std::find(words.begin(), words.end(), text) != words.end();
    }
    case FieldType::kCount:
      // A number below 0 is signed.
      return value.is_number_integer() &&
             (value.is_number_unsigned() || value.get<int64_t>() >= 0) &&
             value.get<uint64_t>() >= min && value.get<uint64_t>() <= max;
    case FieldType::kSeconds:
      return value.is_number() && value.get<double>() > 0 &&
             value.get<double>() <= static_cast<double>(max);
    case FieldType::kFlag:
      return value.is_boolean();
    case FieldType::kNumbers:
      return value.is_array() && value.size() <= max &&
             std::all_of(value.begin(), value.end(), [](const auto& each) {
               return each.is_number_unsigned();
             });
    case FieldType::kObject:
      return value.is_object();
    case FieldType::kList:
      return value.is_array();
    default:
      return false;
  }
}

std::string FieldValue::Wanted() const {
  switch (type) {
    case FieldType::kText:
      return words.empty() ? Format("a string of up to {} bytes", max)
                           : "one of: " + JoinText(words, ", ");
    case FieldType::kCount:
      return Format("a number from {} to {}", min, max);
    case FieldType::kSeconds:
      return Format("a time in seconds, more than 0 and up to {}", max);
    case FieldType::kFlag:
      return "true or false";
    case FieldType::kNumbers:
      return Format("a list of up to {} numbers", max);
    case FieldType::kList:
      return "a list";
    default:
      return "an object";
  }
}

std::span<const DeclaredRequest> DeclaredRequests() { return kRequests; }

Status CheckRequest(const nlohmann::json& request) {
  PENSTOCK_RETURN_IF_ERROR(CheckFields(request, kOp));
  const auto& op = request.at("op").get_ref<const std::string&>();
  const DeclaredRequest* const declared = Find(op);
  if (declared == nullptr) {
    return InvalidArgumentError("unknown operation '{}'", op);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckFields(request, declared->fields));
  return CheckFields(request, declared->shared);
}

Status RequireField(const nlohmann::json& request, std::string_view key) {
  const DeclaredRequest& declared =
      *Find(request.at("op").get_ref<const std::string&>());
  for (const auto& fields : {declared.fields, declared.shared}) {
    for (const RequestField& field : fields) {
      if (field.key == key) return CheckField(request, field, true);
    }
  }
  return InternalError("'{}' has no field '{}'", declared.op, key);
}

}  // namespace penstock
