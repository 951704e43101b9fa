// penstock bench: N consumer processes that only drain measure the speed limit
// of a dataset's pipeline on this host.
//
// wall_s runs from the first rank's attach to the last rank's last batch, so
// that batches made ahead are never free; it excludes indexing and the broker's
// start. CPU time is that of the broker and the ranks until they end; with
// --verify it includes the ranks' checksums.
#include <algorithm>
#include <cstring>

#include "client/command/bench_drain.h"
#include "client/command/penstockd_output.h"
#include "client/command/row_check.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "client/private_broker/progress_bar.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "common/quantity.h"

namespace penstock {
namespace {

struct BenchOptions {
  std::string dataset;
  int ranks = 1;        // processes
  int replicas = 1;     // of them that are one rank
  uint64_t epochs = 0;  // 0: the spec's
  uint64_t steps = 0;   // 0: all
  bool touch = true;
  bool verify = false;
  bool order_digest = false;
  bool json = false;
  std::string socket;
  PrivateBrokerOptions broker;
};

struct BenchResult {
  DrainResult drain;
  RankTotals sum;
  double broker_cpu_s = 0;
  std::optional<uint64_t> workers;
  std::optional<RowCheck> check;
  std::vector<std::string> digests;

  double SamplesPerSecond() const {
    return drain.wall_s > 0 ? sum.samples / drain.wall_s : 0;
  }
  double CpuPerThousand() const {
    return sum.samples > 0 ? (broker_cpu_s + sum.cpu_s) * 1000 / sum.samples
                           : 0;
  }
};

// Epochs to drain; 0: --steps is the limit. A mistake is a usage error.
StatusOr<uint64_t> EpochsToDrain(const BenchOptions& options,
                                 const SpecFile& file,
                                 const std::optional<uint64_t>& in_spec) {
  if (options.steps > 0) return uint64_t{0};
  if (options.epochs == 0 && !in_spec) {
    return InvalidArgumentError(
        "{} has `epochs: forever`; set its end with --epochs or --steps",
        file.name);
  }
  if (in_spec && options.epochs > *in_spec) {
    return InvalidArgumentError(
        "--epochs {} is more than the {} that {} has; raise `epochs` there",
        options.epochs, *in_spec, file.name);
  }
  return options.epochs > 0 ? options.epochs : *in_spec;
}

// The `broker` field of a status answer.
StatusOr<nlohmann::json> BrokerState(const BrokerCall& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer,
                            call({{"op", "status"}}));
  return FieldOf(answer, "broker");
}

// Rows and batches of a rank count once, also where it is several processes.
void SumRanks(uint32_t replicas, BenchResult* result) {
  RankTotals& sum = result->sum;
  sum.epochs = UINT64_MAX;
  for (size_t i = 0; i < result->drain.ranks.size(); ++i) {
    const RankTotals& rank = result->drain.ranks[i];
    if (i % replicas == 0) {
      sum.steps += rank.steps;
      sum.samples += rank.samples;
    }
    sum.epochs = std::min(sum.epochs, rank.epochs);
    sum.redelivered += rank.redelivered;
    sum.wait_s += rank.wait_s;
    sum.cpu_s += rank.cpu_s;
  }
}

void PrintJson(const BenchOptions& options, const DatasetIndex& index,
               const BenchResult& result) {
  nlohmann::ordered_json json;
  json["dataset"] = index.dataset;
  json["records"] = index.records;
  json["global_batch"] = index.global_batch;
  json["steps_per_epoch"] = index.steps_per_epoch;
  json["ranks"] = result.drain.ranks.size();
  json["replicas"] = options.replicas;
  json["workers"] = nullptr;
  if (result.workers) json["workers"] = *result.workers;
  json["epochs"] = result.sum.epochs;
  json["samples"] = result.sum.samples;
  json["batches"] = result.sum.steps;
  json["redelivered"] = result.sum.redelivered;
  json["wall_s"] = result.drain.wall_s;
  json["attach_s"] = result.drain.attach_s;
  json["samples_per_s"] = result.SamplesPerSecond();
  json["cpu_s_per_1k_samples"] = result.CpuPerThousand();
  json["broker_cpu_s"] = result.broker_cpu_s;
  json["rank_cpu_s"] = nlohmann::json::array();
  json["steps_per_rank"] = nlohmann::json::array();
  json["rank_wait_s"] = nlohmann::json::array();
  for (const RankTotals& rank : result.drain.ranks) {
    json["rank_cpu_s"].push_back(rank.cpu_s);
    json["steps_per_rank"].push_back(rank.steps);
    json["rank_wait_s"].push_back(rank.wait_s);
  }
  json["pss_bytes"] = nullptr;
  if (result.drain.pss_bytes) json["pss_bytes"] = *result.drain.pss_bytes;
  if (const std::optional<RowCheck>& check = result.check) {
    json["verified"] = check->verified;
    json["missing"] = check->missing;
    json["duplicated"] = check->duplicated;
    json["misplaced"] = check->misplaced;
    json["corrupt"] = check->corrupt;
    json["repeated"] = check->repeated;
  }
  if (!result.digests.empty()) {
    json["order_digest_per_epoch"] = result.digests;
  }
  PrintJsonInOrder(json);
}

std::string VerifiedText(const RowCheck& check) {
  const std::string samples = Counted(FormatCount(check.verified), "sample");
  if (!check.ok()) {
    return Format("{}; missing {}, duplicated {}, misplaced {}, corrupt {}",
                  samples, check.missing, check.duplicated, check.misplaced,
                  check.corrupt);
  }
  if (check.repeated == 0) {
    return Format("all {}: each once, in its place, with the right bytes",
                  samples);
  }
  return Format(
      "all {}: each in its place, with the right bytes; {} of them come again "
      "in their epoch, as the spec says",
      samples, FormatCount(check.repeated));
}

void PrintTable(const BenchOptions& options, const DatasetIndex& index,
                const BenchResult& result) {
  const auto line = [](const char* what, const std::string& value) {
    Print(stdout, "{:<21} {}\n", what, value);
  };
  line("dataset", Format("{}, {}, global batch {}", Printable(index.dataset),
                         Counted(FormatCount(index.records), "record"),
                         FormatCount(index.global_batch)));
  line("samples", Format("{} in {} ({})", FormatCount(result.sum.samples),
                         FormatSeconds(result.drain.wall_s),
                         Counted(result.sum.epochs, "whole epoch")));
  line("samples/s", Format("{:.1f}", result.SamplesPerSecond()));
  line("CPU s / 1,000 samples",
       Format("{:.3f} (broker {}, ranks {})", result.CpuPerThousand(),
              FormatSeconds(result.broker_cpu_s),
              FormatSeconds(result.sum.cpu_s)));
  line("memory", result.drain.pss_bytes
                     ? FormatBytes(*result.drain.pss_bytes) +
                           " at most, shared pages counted once"
                     : "not known: the broker is another user's");
  if (result.workers) line("workers", FormatCount(*result.workers));
  if (result.sum.redelivered > 0) {
    line("redelivered",
         Counted(FormatCount(result.sum.redelivered), "batch", "batches"));
  }
  if (const std::optional<RowCheck>& check = result.check) {
    line("verified", VerifiedText(*check));
  }
  // With --verify alone the first epochs are enough to compare runs.
  const size_t shown = options.order_digest
                           ? result.digests.size()
                           : std::min<size_t>(result.digests.size(), 3);
  for (size_t i = 0; i < shown; ++i) {
    line(i == 0 ? "order per epoch" : "", result.digests[i]);
  }
  if (const size_t more = result.digests.size() - shown; more > 0) {
    line("", Format("and of {}, which --order-digest lists",
                    Counted(more, "more epoch", "more epochs")));
  }
  Table table({">rank", ">steps", ">samples", ">waited", ">CPU"});
  for (size_t i = 0; i < result.drain.ranks.size(); ++i) {
    const RankTotals& rank = result.drain.ranks[i];
    table.AddRow({RankName(static_cast<uint32_t>(i), options.replicas),
                  FormatCount(rank.steps), FormatCount(rank.samples),
                  FormatSeconds(rank.wait_s), FormatSeconds(rank.cpu_s)});
  }
  Print(stdout, "\n{}", table.ToString());
}

// The rows that a job must deliver, from `penstockd --replay`, which makes them
// serially, on one thread, with plain reads, without rings, slots or workers.
StatusOr<std::vector<RowRecord>> ReplayRows(const DrainTask& task,
                                            const DrainResult& drained) {
  uint64_t rows = 0;
  for (const auto& of_replicas : drained.rows) rows += of_replicas.size();
  rows /= task.replicas;
  ProgressBar bar("verifying", "samples");
  std::vector<std::string> arguments = {
      "--replay",
      task.dataset,
      "--world-size",
      std::to_string(task.ranks / task.replicas),
      task.epochs > 0 ? "--epochs" : "--steps",
      std::to_string(task.epochs > 0 ? task.epochs : task.steps)};
  if (!drained.weights.empty()) {
    arguments.insert(arguments.end(), {"--weights", drained.weights});
  }
  auto output = PenstockdOutput(arguments, [&](size_t bytes) {
    bar.Update(bytes / sizeof(RowRecord), rows);
  });
  bar.Clear();
  if (output.status().code() == StatusCode::kInternal) {
    return Status(StatusCode::kInternal,
                  output.status().message() + "; cannot verify");
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<char> bytes, std::move(output));
  if (bytes.size() % sizeof(RowRecord) != 0) {
    return InternalError(
        "`penstockd --replay {}` wrote {} bytes, not whole records of {}",
        task.dataset, bytes.size(), sizeof(RowRecord));
  }
  std::vector<RowRecord> made(bytes.size() / sizeof(RowRecord));
  std::memcpy(made.data(), bytes.data(), bytes.size());
  return made;
}

Status Verify(const BenchOptions& options, const DrainTask& drain,
              BenchResult* result) {
  if (options.verify) {
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<RowRecord> expected,
                              ReplayRows(drain, result->drain));
    // The first replicas, or the first of the others that had other rows.
    for (std::vector<RowRecord>& rows : result->drain.rows) {
      if (result->check && !result->check->ok()) break;
      const RowCheck check = CheckRows(expected, rows);
      if (!result->check || !check.ok()) result->check = check;
    }
  }
  if (options.verify || options.order_digest) {
    result->digests = OrderDigests(result->drain.rows[0]);
  }
  return OkStatus();
}

StatusOr<int> Bench(const BenchOptions& options) {
  if (options.ranks % options.replicas != 0) {
    PrintError(Format("--ranks {} is no multiple of --replicas {}",
                      options.ranks, options.replicas));
    return kExitUsage;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.dataset));
  std::unique_ptr<PrivateBroker> broker;
  DrainTask drain;
  BrokerCall call;
  if (options.socket.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(broker, PrivateBroker::Start(options.broker));
    broker->Announce();
    drain.socket = broker->socket();
    call = broker->AsCall();
  } else {
    drain.socket = options.socket;
    call = [&](const nlohmann::json& request) {
      return CallBroker(options.socket, request);
    };
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const DatasetIndex index,
      IndexDataset(call, file, options.ranks / options.replicas));
  if (broker != nullptr) PENSTOCK_RETURN_IF_ERROR(index.CheckHasRows(file));
  const StatusOr<uint64_t> epochs = EpochsToDrain(options, file, index.epochs);
  if (!epochs.ok()) {
    PrintError(epochs.status().message());
    return kExitUsage;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json before, BrokerState(call));

  drain.ranks = static_cast<uint32_t>(options.ranks);
  drain.replicas = static_cast<uint32_t>(options.replicas);
  drain.dataset = file.path;
  drain.job = UniqueJobName("bench");
  drain.epochs = *epochs;
  drain.steps = options.steps;
  drain.touch = options.touch;
  drain.record_rows = options.verify || options.order_digest;
  drain.checksums = options.verify;
  drain.samples_estimate = options.steps > 0
                               ? options.steps * index.global_batch
                               : *epochs * index.rows_per_epoch;
  drain.private_broker = broker.get();
  if (const auto pid = CountField(before, "pid")) {
    drain.broker_pid = static_cast<pid_t>(*pid);
  }
  BenchResult result;
  result.workers = CountField(before, "workers");
  PENSTOCK_ASSIGN_OR_RETURN(result.drain, DrainWithRanks(drain));
  SumRanks(drain.replicas, &result);
  if (broker != nullptr) {
    broker->Stop();
    result.broker_cpu_s = broker->cpu_s();
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json after, BrokerState(call));
    result.broker_cpu_s = NumberField(after, "cpu_s").value_or(0) -
                          NumberField(before, "cpu_s").value_or(0);
  }
  PENSTOCK_RETURN_IF_ERROR(Verify(options, drain, &result));
  options.json ? PrintJson(options, index, result)
               : PrintTable(options, index, result);
  if (result.check && !result.check->ok()) {
    PrintError(Format(
        "verification failed: {} missing, {} duplicated, {} misplaced, {} "
        "corrupt",
        Counted(result.check->missing, "sample"), result.check->duplicated,
        result.check->misplaced, result.check->corrupt));
    return kExitFailure;
  }
  return 0;
}

}  // namespace

Subcommand AddBench(Command parent) {
  Command bench = parent.AddCommand(
      "bench", "Drain a dataset with N ranks; measure speed and cost");
  const auto options = std::make_shared<BenchOptions>();
  bench.AddOption("--dataset", &options->dataset, "Spec of the dataset")
      .Type("SPEC.yaml")
      .Required();
  bench.AddOption("--ranks", &options->ranks, "Consumer processes")
      .Type("N")
      .Required()
      .InRange(1, kRanksMax);
  bench
      .AddOption("--replicas", &options->replicas,
                 "So many of these in turn are one rank and get the same "
                 "batches")
      .Type("N")
      .InRange(1, kRanksMax);
  const CommandOption epochs =
      bench
          .AddOption("--epochs", &options->epochs,
                     "Stop after E epochs (default: the spec's)")
          .Type("E")
          .InRange(int64_t{1});
  bench
      .AddOption("--steps", &options->steps,
                 "Stop after S steps of each rank, or at the end of the data")
      .Type("S")
      .InRange(int64_t{1})
      .Excludes(epochs);
  bench.AddFlag("--touch,!--no-touch", &options->touch,
                "Read one byte of every cache line (default: on)");
  bench.AddFlag("--verify", &options->verify,
                "Verify that every sample comes as often as the spec has it "
                "(once, unless it repeats some), in its place, with the "
                "right bytes; takes 40 bytes of memory per sample");
  bench.AddFlag("--order-digest", &options->order_digest,
                "Print a hash of the order of the samples, one per epoch");
  bench.AddFlag("--json", &options->json, "Print one JSON object");
  const CommandOption socket =
      bench
          .AddOption(
              "--socket", &options->socket,
              "Use the broker that listens there instead of a private one")
          .Type("PATH");
  options->broker.AddTo(bench);
  for (const char* name : {"--workers", "--memory-limit"}) {
    bench.option(name).Excludes(socket);
  }
  bench.SetFooter(R"(
Examples:
  penstock bench --dataset train.yaml --ranks 4
  penstock bench --dataset train.yaml --ranks 4 --epochs 2 --verify --json
  penstock bench --dataset train.yaml --ranks 1 --steps 100 --workers 2)");
  return {bench, [options] { return Bench(*options); }};
}

}  // namespace penstock
