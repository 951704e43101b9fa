// penstock explain: measures each stage of a dataset on this machine, through a
// private broker, or those of a running job, and says which is the bottleneck.
//
// The runs, one after the other: reads alone (`penstockd --measure-reads`); all
// of it with one worker, whose parts are timed; with all workers; and with all
// workers on the first batch's records again and again, which are in memory by
// then (repeat_first). A process takes the batches and only reads them.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "client/command/bench_rank.h"
#include "client/command/explain.h"
#include "client/command/first_batch.h"
#include "client/command/job_options.h"
#include "client/command/output_file.h"
#include "client/command/penstockd_output.h"
#include "client/command/remote_cost.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/penstock.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "client/private_broker/progress_bar.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "common/deadline.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kSecondsMin = 2;
constexpr double kSecondsMax = 600;
// Shares of the time of a spec.
constexpr double kReadsShare = 0.3;
constexpr double kOneShare = 0.25;
constexpr double kAllShare = 0.15;  // three times
// The part of a run that passes before it is measured.
constexpr double kWarmUpShare = 0.25;
// A broker measures for longer than anybody looks.
constexpr double kBeyond_s = 2;
constexpr auto kRound = std::chrono::milliseconds(100);
// Records that repeat_first takes, at least.
constexpr uint64_t kRepeatedMin = 64;
// A running job that waits for reads for less is not limited by them.
constexpr double kReadsLimit = 0.2;
constexpr double kWaitShareMax = 0.99;
constexpr int kColumns = 100;  // where there is no terminal

struct ExplainOptions {
  JobOptions job;  // its name may be the path of a spec
  double seconds = 15;
  std::string bandwidth;  // "": as measured
  int ranks = 1;          // of the job, and the hosts that have them
  int hosts = 1;
  bool json = false;
  PrivateBrokerOptions broker;
};

// ---- a run of a private broker's job ---------------------------------------

struct RunTask {
  std::string socket;
  std::string spec;
  std::string job;
  std::string label;  // of its progress bar
  double seconds = 1;
  bool parts = false;
};

// What a run tells, as JSON: "per_s" (rows made), "reading" (workers that
// waited for reads), "take_s" (of a sample), and for its parts "before" and
// "after" (answers to `measure`).
class MeasuredRun {
 public:
  explicit MeasuredRun(const RunTask& task) : task_(task) {}

  // In a process of its own.
  StatusOr<std::string> Measure() {
    PENSTOCK_ASSIGN_OR_RETURN(
        reader_, AttachAlone(task_.socket, {"", task_.spec, task_.job}));
    std::thread taker([this] { TakeAll(); });
    const StatusOr<OrderedJson> measured = Watch();
    // Ends its wait for a batch.
    const auto stopped = CallBroker(
        task_.socket, {{"op", "stop"}, {"job", task_.job}, {"now", true}});
    taker.join();
    penstock_detach(reader_);
    PENSTOCK_RETURN_IF_ERROR(measured.status());
    PENSTOCK_RETURN_IF_ERROR(stopped.status());
    return JsonLine(*measured);
  }

 private:
  // A batch may take long: rows are counted by the broker, not by batches.
  void TakeAll() {
    for (;;) {
      penstock_batch* batch = nullptr;
      const Clock::time_point asked = Clock::now();
      const int code = penstock_next(reader_, &batch);
      if (code == PENSTOCK_END_OF_EPOCH) continue;
      if (code != PENSTOCK_OK) {
        if (code < 0) error_ = penstock_error();
        ended_.store(true);
        return;
      }
      penstock_stats stats{};
      penstock_get_stats(reader_, &stats);
      TouchBatch(penstock_feature_count(reader_), batch);
      const uint64_t rows = penstock_batch_valid_rows(batch);
      penstock_release(batch);
      // Without its waits.
      take_s_ = take_s_ + SecondsSince(asked) - (stats.wait_s - waited_s_);
      waited_s_ = stats.wait_s;
      taken_rows_ += rows;
      if (rows > 0) first_.store(true);
    }
  }

  void Sleep(double seconds) {
    for (const Clock::time_point begin = Clock::now();
         SecondsSince(begin) < seconds && !ended_.load();) {
      std::this_thread::sleep_for(kRound);
      bar_.Update(static_cast<uint64_t>(100 * SecondsSince(began_)),
                  static_cast<uint64_t>(100 * task_.seconds));
    }
  }

  StatusOr<OrderedJson> Watch() {
    const auto ask = [this] {
      return CallBroker(task_.socket, {{"op", "measure"},
                                       {"job", task_.job},
                                       {"seconds", task_.seconds + kBeyond_s}});
    };
    // The first batch has a decoder, a process or a page cache to warm.
    for (int rounds = 0; !first_.load() && !ended_.load(); ++rounds) {
      constexpr double kRound_s = 0.1;
      // A batch may take as long as that: its rows are counted all the same.
      if (rounds * kRound_s >= task_.seconds) break;
      Sleep(kRound_s);
    }
    began_ = Clock::now();
    Sleep(kWarmUpShare * task_.seconds);
    // Without the clock of the parts: of rows of nanoseconds it takes most.
    const double seconds =
        (1 - kWarmUpShare) * task_.seconds / (task_.parts ? 2 : 1);
    PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json first, Job());
    const Clock::time_point begin = Clock::now();
    Sleep(seconds);
    PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json last, Job());
    const double spent = SecondsSince(begin);
    const auto increase = [&](const char* key) {
      return (NumberField(last, key).value_or(0) -
              NumberField(first, key).value_or(0)) /
             spent;
    };
    OrderedJson run = {{"per_s", increase("rows")},
                       {"reading", increase("read_wait_s")}};
    if (task_.parts) {
      PENSTOCK_ASSIGN_OR_RETURN(run["before"], ask());
      Sleep(seconds);
      PENSTOCK_ASSIGN_OR_RETURN(run["after"], ask());
    }
    if (ended_.load()) return Ended();
    run["take_s"] =
        taken_rows_ > 0 ? take_s_ / static_cast<double>(taken_rows_) : 0;
    return run;
  }

  StatusOr<nlohmann::json> Job() {
    if (ended_.load()) return Ended();
    PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer,
                              CallBroker(task_.socket, {{"op", "jobs"}}));
    for (const nlohmann::json& job : ArrayField(answer, "jobs")) {
      if (TextField(job, "job") == task_.job) return job;
    }
    return InternalError("the job is gone");
  }

  Status Ended() const {
    return InternalError("{}", error_.empty() ? "the data ended" : error_);
  }

  const RunTask& task_;
  penstock_reader* reader_ = nullptr;
  std::atomic<bool> first_{false};
  std::atomic<bool> ended_{false};
  // Read once the job has stopped, or where a little less is no harm.
  std::string error_;
  std::atomic<double> take_s_{0};
  std::atomic<uint64_t> taken_rows_{0};
  double waited_s_ = 0;
  Clock::time_point began_ = Clock::now();
  ProgressBar bar_{task_.label, ""};
};

struct RunResult {
  PartTimes made;
  double per_s = 0;
  double reading = 0;
  double take_s = 0;
};

// Runs of a spec, one after the other.
class SpecRuns {
 public:
  SpecRuns(PrivateBroker* broker, OrderedJson spec)
      : broker_(broker), spec_(std::move(spec)) {
    spec_["epochs"] = "forever";
    spec_.erase("steps_per_epoch");
    // Each step is measured, and no snapshot is written.
    spec_.erase("cache");
    spec_.erase("snapshot");
  }

  const OrderedJson& spec() const { return spec_; }

  Status SetWorkers(uint64_t workers) {
    return broker_->Call({{"op", "workers"}, {"workers", workers}}).status();
  }

  StatusOr<RunResult> Take(const OrderedJson& spec, const std::string& label,
                           double seconds, bool parts = false) {
    const RunTask task = {
        broker_->socket(), JsonLine(spec), UniqueJobName("explain"), label,
        seconds,           parts};
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                              InTakingProcess(broker_, [&task] {
                                return MeasuredRun(task).Measure();
                              }));
    const nlohmann::json told = nlohmann::json::parse(text, nullptr, false);
    return RunResult{
        PartsBetween(FieldOf(told, "before"), FieldOf(told, "after")),
        NumberField(told, "per_s").value_or(0),
        NumberField(told, "reading").value_or(0),
        NumberField(told, "take_s").value_or(0)};
  }

  // The records of the first batch again and again.
  OrderedJson Repeated(uint64_t batch) const {
    OrderedJson spec = spec_;
    const OrderedJson by_part =
        spec["batch"].value("by_part", OrderedJson::array());
    if (!by_part.empty() || spec["batch"].contains("pack")) {
      // A selection of all parts together would cut batches, or sequences.
      spec["steps_per_epoch"] =
          std::max<uint64_t>(kRepeatedMin / std::max<uint64_t>(batch, 1),
                             std::max<uint64_t>(by_part.size(), 1));
      if (spec["shuffle"].is_object()) spec["shuffle"]["each_epoch"] = false;
      return spec;
    }
    if (!spec["select"].is_array()) spec["select"] = OrderedJson::array();
    spec["select"].push_back(
        {{"take", {{"records", std::max(batch, kRepeatedMin)}}}});
    return spec;
  }

 private:
  PrivateBroker* const broker_;
  OrderedJson spec_;
};

// The same with pictures of half the size, if a step has one that can be.
std::optional<OrderedJson> WithSmaller(OrderedJson spec, uint64_t step,
                                       std::string* size) {
  if (!spec["map"].is_array() || step >= spec["map"].size()) return {};
  OrderedJson& op = spec["map"][step].begin().value();
  if (!op.is_object() || !op.contains("size")) return {};
  OrderedJson& of = op["size"];
  if (!of.is_array() || of.size() != 2 || !of[0].is_number_unsigned() ||
      !of[1].is_number_unsigned()) {
    return {};
  }
  const uint64_t height = of[0].get<uint64_t>() / 2;
  const uint64_t width = of[1].get<uint64_t>() / 2;
  if (height == 0 || width == 0) return {};
  of = {height, width};
  *size = Format("{} x {}", height, width);
  return spec;
}

// Errors of one step's record are those of `penstock check`, not of this.
// *bytes_per_s: fetched from object stores.
Status MeasureStorage(PrivateBroker& broker, const ExplainOptions& options,
                      const OrderedJson& spec, Measurements* measured,
                      double* bytes_per_s) {
  const std::string path = broker.folder() + "/explain.yaml";
  PENSTOCK_RETURN_IF_ERROR(WriteWhole(path, JsonLine(spec)));
  const double seconds = kReadsShare * options.seconds;
  std::vector<std::string> arguments = {"--measure-reads", path, "--seconds",
                                        Format("{:.3f}", seconds)};
  if (options.broker.workers > 0) {
    arguments.insert(arguments.end(),
                     {"--workers", std::to_string(options.broker.workers)});
  }
  ProgressBar bar("storage", "");
  const Clock::time_point begin = Clock::now();
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::vector<char> output, PenstockdOutput(arguments, [&](size_t) {
        bar.Update(static_cast<uint64_t>(100 * SecondsSince(begin)),
                   static_cast<uint64_t>(100 * seconds));
      }));
  const nlohmann::json read =
      nlohmann::json::parse(output.begin(), output.end(), nullptr, false);
  measured->cold = ReadRateOf(FieldOf(read, "cold"));
  measured->cached = ReadRateOf(FieldOf(read, "cached"));
  measured->cold_why = TextField(read, "cold_why");
  *bytes_per_s = NumberField(read, "fetched_bytes_per_s").value_or(0);
  if (FieldOf(read, "reads") == false) {
    measured->cold_why = "its records need no reads";
  }
  return OkStatus();
}

bool HasProcesses(const OrderedJson& spec) {
  if (spec.contains("source") && spec["source"].contains("python")) return true;
  const auto has = [](const OrderedJson& steps) {
    return std::any_of(steps.begin(), steps.end(), [](const OrderedJson& op) {
      return op.contains("python") || op.contains("tokenize");
    });
  };
  const OrderedJson by_part = spec.value("map_by_part", OrderedJson::array());
  return has(spec.value("map", OrderedJson::array())) ||
         std::any_of(by_part.begin(), by_part.end(), has);
}

// The clock counts too: a worker that is busy all the time makes so many rows.
std::vector<PartTime> WithoutClock(std::vector<PartTime> parts, double per_s) {
  const double sum = SumOf(parts);
  if (per_s <= 0 || sum * per_s <= 1) return parts;
  for (PartTime& each : parts) each.sample_s /= sum * per_s;
  return parts;
}

StatusOr<int> ExplainSpec(const ExplainOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.job.job));
  double given_per_s = 0;
  if (!options.bandwidth.empty()) {
    const StatusOr<uint64_t> parsed = ParseBytes(options.bandwidth);
    if (!parsed.ok()) return parsed.status().Prepend("--bandwidth");
    given_per_s = static_cast<double>(*parsed);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateBroker> broker,
                            PrivateBroker::Start(options.broker));
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetIndex index,
                            IndexDataset(broker->AsCall(), file, 1));
  PENSTOCK_RETURN_IF_ERROR(index.CheckHasRows(file));
  const OrderedJson spec =
      OrderedJson::parse(index.text, nullptr, /*exceptions=*/false);
  if (!spec.is_object()) {
    return InternalError("the broker's answer to 'index' has no 'spec'");
  }
  SpecRuns runs(broker.get(), spec);
  Measurements measured;
  measured.processes = HasProcesses(spec);
  measured.memory_bytes =
      CountField(index.answer, "memory_left_bytes").value_or(0);
  for (const Feature& each : index.element_spec) {
    measured.row_bytes += static_cast<double>(each.RowBytes());
  }
  const std::optional<RemoteData> remote =
      RemoteDataOf(index, static_cast<uint64_t>(options.hosts),
                   static_cast<uint64_t>(options.ranks));
  measured.remote = remote.has_value();
  double bytes_per_s = 0;
  PENSTOCK_RETURN_IF_ERROR(
      MeasureStorage(*broker, options, runs.spec(), &measured, &bytes_per_s));
  if (given_per_s > 0) bytes_per_s = given_per_s;
  if (const auto& read = measured.cold ? measured.cold : measured.cached) {
    measured.data_bytes = static_cast<uint64_t>(
        read->sample_bytes * static_cast<double>(index.records));
  }

  const auto chosen = static_cast<uint64_t>(options.broker.workers);
  PENSTOCK_RETURN_IF_ERROR(runs.SetWorkers(1));
  PENSTOCK_ASSIGN_OR_RETURN(
      const RunResult one,
      runs.Take(runs.spec(), "one worker", kOneShare * options.seconds, true));
  measured.parts = WithoutClock(one.made.parts, one.per_s);
  measured.one_per_s = one.per_s;
  measured.take_s = one.take_s;
  PENSTOCK_RETURN_IF_ERROR(runs.SetWorkers(chosen));
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json status,
                            broker->Call({{"op", "status"}}));
  measured.workers = static_cast<uint32_t>(
      CountField(FieldOf(status, "broker"), "workers").value_or(1));
  const double seconds = kAllShare * options.seconds;
  PENSTOCK_ASSIGN_OR_RETURN(const RunResult whole,
                            runs.Take(runs.spec(), "all workers", seconds));
  measured.whole_per_s = whole.per_s;
  const OrderedJson repeated = runs.Repeated(index.global_batch);
  PENSTOCK_ASSIGN_OR_RETURN(const RunResult ideal,
                            runs.Take(repeated, "repeat_first", seconds));
  // One record may cost more than another; none costs less without storage.
  measured.made_per_s = std::max(ideal.per_s, whole.per_s);
  const double sample_s = SumOf(measured.parts);
  if (ideal.reading > kReadsLimit * measured.workers) {
    // Its file system keeps nothing in the page cache. 0: no row was made.
    measured.made_per_s = sample_s > 0 ? std::max(measured.made_per_s,
                                                  measured.workers / sample_s)
                                       : 0;
  }
  if (const PartTime* const largest = LargestOf(measured.parts);
      largest != nullptr && largest->step) {
    Measurements::Smaller smaller = {*largest->step, "", 0};
    if (const auto halved =
            WithSmaller(repeated, smaller.step, &smaller.size)) {
      // Other steps may need the size that it has.
      const auto run = runs.Take(*halved, "a smaller size", seconds);
      PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
      if (run.ok()) {
        smaller.made_per_s = run->per_s;
        measured.smaller = smaller;
      }
    }
  }
  if (options.json) {
    OrderedJson json = ExplainJson(measured);
    json["dataset"] = index.dataset;
    json["records"] = index.records;
    if (remote) json["remote"] = RemoteJson(*remote, bytes_per_s);
    PrintJson(json);
    return 0;
  }
  Print(stdout, "{}: {}, {} a row\n\n", Printable(index.dataset),
        Counted(FormatCount(index.records), "record"),
        FormatBytes(static_cast<uint64_t>(measured.row_bytes)));
  Print(stdout, "{}\n{}\n",
        ExplainTable(measured, TerminalColumns(STDOUT_FILENO, kColumns)),
        WrapText(AdviceOf(measured).text, TerminalColumns(STDOUT_FILENO, 0)));
  if (!measured.cold && !measured.cold_why.empty()) {
    Print(stdout, "Storage was not measured cold: {}.\n", measured.cold_why);
  }
  if (remote) {
    Print(stdout, "{}\n",
          RemoteText(*remote, bytes_per_s, measured.made_per_s));
  }
  return 0;
}

// ---- a running job ---------------------------------------------------------

struct JobSample {
  nlohmann::json parts;
  nlohmann::json broker;
  nlohmann::json job;
  Clock::time_point at;
};

StatusOr<JobSample> SampleOf(const ExplainOptions& options) {
  const std::string& socket = options.job.socket;
  nlohmann::json request = options.job.Request("measure");
  request["seconds"] = options.seconds + kBeyond_s;
  JobSample sample;
  PENSTOCK_ASSIGN_OR_RETURN(sample.parts, CallBroker(socket, request));
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json status,
                            CallBroker(socket, {{"op", "status"}}));
  sample.at = Clock::now();
  sample.broker = FieldOf(status, "broker");
  // Root may ask about any user's job; the broker refused a name of several.
  const bool of_any = !options.job.uid && geteuid() == 0;
  const uint64_t uid = options.job.uid.value_or(geteuid());
  for (const nlohmann::json& each : ArrayField(status, "jobs")) {
    if (TextField(each, "job") == options.job.job &&
        (of_any || CountField(each, "uid") == uid) &&
        (options.job.dataset.empty() ||
         TextField(each, "dataset") == options.job.dataset)) {
      sample.job = each;
    }
  }
  if (sample.job.is_null()) {
    return NotFoundError("job '{}' has just ended", options.job.job);
  }
  return sample;
}

// The part of the time in which the rank that waits least waits: the others
// wait for that rank.
double LeastWaiting(const nlohmann::json& before, const nlohmann::json& after,
                    double seconds) {
  std::optional<double> least;
  for (const nlohmann::json& rank : ArrayField(after, "ranks")) {
    for (const nlohmann::json& former : ArrayField(before, "ranks")) {
      if (FieldOf(rank, "rank") != FieldOf(former, "rank") ||
          FieldOf(rank, "replica") != FieldOf(former, "replica")) {
        continue;
      }
      const double waited = (NumberField(rank, "wait_s").value_or(0) -
                             NumberField(former, "wait_s").value_or(0)) /
                            seconds;
      least = std::min(least.value_or(1), std::clamp(waited, 0.0, 1.0));
    }
  }
  return std::min(least.value_or(0), kWaitShareMax);
}

Measurements OfJob(const JobSample& before, const JobSample& after) {
  Measurements measured;
  const double seconds =
      std::chrono::duration<double>(after.at - before.at).count();
  const auto increase = [&](const char* key) {
    return std::max(0.0, NumberField(after.job, key).value_or(0) -
                             NumberField(before.job, key).value_or(0));
  };
  measured.parts = PartsBetween(before.parts, after.parts).parts;
  measured.whole_per_s = increase("rows") / seconds;
  const auto processes = CountField(after.job, "processes").value_or(0);
  measured.processes = processes > 0;
  measured.workers = static_cast<uint32_t>(
      processes > 0 ? processes
                    : CountField(after.broker, "workers").value_or(1));
  const double sample_s = SumOf(measured.parts);
  if (sample_s > 0) measured.made_per_s = measured.workers / sample_s;
  const double waits = LeastWaiting(before.job, after.job, seconds);
  if (measured.whole_per_s > 0) {
    measured.ranks_per_s = measured.whole_per_s / (1 - waits);
  }
  const double reading = increase("read_wait_s") / (seconds * measured.workers);
  const double reads = increase("reads");
  if (reading > kReadsLimit && reads > 0 && measured.whole_per_s > 0) {
    // While workers wait for reads, these come as fast as they can.
    measured.remote =
        TextField(FieldOf(after.job, "bottleneck"), "what") == "network";
    measured.cold = ReadRate{measured.whole_per_s,
                             increase("bytes_read") / increase("rows"),
                             seconds * measured.workers * reading / reads};
  }
  return measured;
}

StatusOr<int> ExplainJob(const ExplainOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const JobSample before, SampleOf(options));
  {
    ProgressBar bar("measuring", "");
    for (double spent; (spent = SecondsSince(before.at)) < options.seconds;) {
      pollfd entry{InterruptFd(), POLLIN, 0};
      poll(&entry, 1, static_cast<int>(kRound.count()));
      PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
      bar.Update(static_cast<uint64_t>(100 * spent),
                 static_cast<uint64_t>(100 * options.seconds));
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(const JobSample after, SampleOf(options));
  const Measurements measured = OfJob(before, after);
  const std::string limits =
      TextField(FieldOf(after.job, "bottleneck"), "text");
  if (measured.whole_per_s <= 0) {
    return FailedPreconditionError("job '{}' made no rows in {} s: {}",
                                   options.job.job, options.seconds,
                                   limits.empty() ? "is it waiting?" : limits);
  }
  if (options.json) {
    OrderedJson json = ExplainJson(measured);
    json["job"] = options.job.job;
    json["dataset"] = TextField(after.job, "dataset");
    json["bottleneck"] = limits;
    PrintJson(json);
    return 0;
  }
  Print(stdout, "{}\n{}\n",
        ExplainTable(measured, TerminalColumns(STDOUT_FILENO, kColumns)),
        WrapText(AdviceOf(measured).text, TerminalColumns(STDOUT_FILENO, 0)));
  if (!limits.empty()) Print(stdout, "{}\n", Printable(limits));
  return 0;
}

bool IsFile(const std::string& name) {
  std::error_code error;
  const std::string ends = std::filesystem::path(name).extension();
  return std::filesystem::is_regular_file(name, error) || ends == ".yaml" ||
         ends == ".yml" || ends == ".json" ||
         name.find('/') != std::string::npos;
}

}  // namespace

Subcommand AddExplain(Command parent) {
  Command explain = parent.AddCommand(
      "explain", "Measure each stage of a dataset, and find what limits");
  const auto options = std::make_shared<ExplainOptions>();
  explain
      .AddOption("SPEC.yaml|JOB", &options->job.job,
                 "Spec of a dataset, or name of a running job")
      .Required();
  explain
      .AddOption("--seconds", &options->seconds,
                 "For how long it measures (default: 15)")
      .Type("N")
      .InRange(kSecondsMin, kSecondsMax);
  explain
      .AddOption("--bandwidth", &options->bandwidth,
                 "Of the network, in bytes a second: for what a dataset in "
                 "object stores downloads (default: as measured)")
      .Type("SIZE");
  explain
      .AddOption("--hosts", &options->hosts,
                 "Hosts of the job: says what one of them downloads")
      .Type("N")
      .InRange(1, kRanksMax);
  explain
      .AddOption("--ranks", &options->ranks,
                 "Ranks of all of them, which read files of their own with "
                 "`shard: file`")
      .Type("N")
      .InRange(1, kRanksMax);
  explain.AddFlag("--json", &options->json, "Print one JSON object");
  options->job.AddTo(explain);
  options->broker.AddTo(explain);
  explain.SetFooter(R"(
Of a spec, a private broker and one process that only reads its batches
show what this machine can do: reads of storage and of the page cache, each
step of `map`, the whole, and the whole without storage (repeat_first). The
first records are dropped from the page cache for it. Of a running job, its
ranks are a stage too. Of a dataset in object stores it says what epochs
download, for how long, and which window of files makes that less.

Examples:
  penstock explain train.yaml
  penstock explain train.yaml --seconds 60 --json
  penstock explain train --seconds 5)");
  return {explain, [options] {
            return IsFile(options->job.job) ? ExplainSpec(*options)
                                            : ExplainJob(*options);
          }};
}

}  // namespace penstock
