// penstock state, evict, stop and job: commands on a job of a running broker.
#include <cstdio>
#include <optional>
#include <vector>

#include "client/command/job_options.h"
#include "client/command/output_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"

namespace penstock {
namespace {

constexpr int kRankMax = (1 << 20) - 1;

struct ControlOptions : JobOptions {
  std::string save;
  uint64_t rank = 0;
  std::optional<uint64_t> replica;
  bool now = false;
  std::vector<double> weights;  // none: they are shown
  std::optional<uint64_t> epoch;
  std::optional<uint64_t> row;
  bool json = false;
};

std::shared_ptr<ControlOptions> AddControlOptions(Command command) {
  const auto options = std::make_shared<ControlOptions>();
  command.AddOption("JOB", &options->job, "Name of the job (`penstock jobs`)")
      .Required();
  options->AddTo(command);
  return options;
}

StatusOr<int> SaveState(const ControlOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(
      const nlohmann::json answer,
      CallBroker(options.socket, options.Request("state")));
  const std::string text = FieldOf(answer, "state").dump() + "\n";
  if (options.save.empty()) {
    Print(stdout, "{}", text);
  } else {
    PENSTOCK_RETURN_IF_ERROR(WriteWhole(options.save, text));
  }
  return 0;
}

StatusOr<int> Evict(const ControlOptions& options) {
  nlohmann::json request = options.Request("evict");
  request["rank"] = options.rank;
  if (options.replica) request["replica"] = *options.replica;
  PENSTOCK_RETURN_IF_ERROR(CallBroker(options.socket, request).status());
  Print(stdout, "rank {}{} of job '{}' is evicted\n", options.rank,
        options.replica ? Format(" (replica {})", *options.replica) : "",
        Printable(options.job));
  return 0;
}

StatusOr<int> Stop(const ControlOptions& options) {
  nlohmann::json request = options.Request("stop");
  request["now"] = options.now;
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer,
                            CallBroker(options.socket, request));
  Print(stdout, "job '{}' {}\n", Printable(options.job),
        options.now ? "is ended"
        : FieldOf(answer, "ended") == true
            ? "is ended: no rank was attached"
            : "ends once its ranks have taken the last step");
  return 0;
}

std::string WeightsText(const nlohmann::json& change) {
  std::string text;
  for (size_t i = 2; i < change.size(); ++i) {
    text += (i == 2 ? "" : " : ") + change[i].dump();
  }
  return Format("{} from row {} of epoch {} on", text, change[1].dump(),
                change[0].dump());
}

StatusOr<int> Weights(const ControlOptions& options) {
  nlohmann::json request = options.Request("weights");
  if (!options.weights.empty()) request["weights"] = options.weights;
  if (options.epoch || options.row) {
    request["epoch"] = options.epoch.value_or(0);
    request["row"] = options.row.value_or(0);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer,
                            CallBroker(options.socket, request));
  const nlohmann::json& changes = ArrayField(answer, "changes");
  if (options.json) {
    PrintJson(answer);
  } else if (!options.weights.empty() && !changes.empty()) {
    Print(stdout, "job '{}': {}, its step {}\n", Printable(options.job),
          WeightsText(changes.back()), FieldOf(answer, "step").dump());
  } else if (CountField(answer, "parts").value_or(0) == 0) {
    Print(stdout, "job '{}': its source is no mix\n", Printable(options.job));
  } else if (changes.empty()) {
    Print(stdout, "job '{}': the weights of its spec\n",
          Printable(options.job));
  } else {
    for (const nlohmann::json& change : changes) {
      Print(stdout, "job '{}': {}\n", Printable(options.job),
            WeightsText(change));
    }
  }
  return 0;
}

}  // namespace

Subcommand AddJob(Command parent) {
  Command job = parent.AddCommand("job", "Change a job while it runs");
  const std::shared_ptr<ControlOptions> options = AddControlOptions(job);
  job.RequireCommand();
  Command weights = job.AddCommand(
      "weights", "Give its mix other weights, or show how they changed");
  weights.AddOption("WEIGHT", &options->weights,
                    "Of each part, in the order of the spec; none: they are "
                    "shown");
  weights
      .AddOption("--epoch", &options->epoch,
                 "They hold from this epoch on (default: from the first "
                 "step that nobody has begun to make)")
      .Type("E");
  weights.AddOption("--row", &options->row, "and this row of it").Type("R");
  weights.AddFlag("--json", &options->json, "Print the answer as JSON");
  weights.PassOptionsUp();  // to the options of `job`
  job.SetFooter(R"(
The weights of a mix change for all ranks at one row, and stay until
they are changed again; the `schedule` of the spec ends there. Epochs
keep their number of steps. The change is a part of the job's state
from then on: a job that resumes has the same rows.

Examples:
  penstock job train weights 1 4
  penstock job train weights 1 4 --epoch 3
  penstock job train weights)");
  return {job, [options] { return Weights(*options); }};
}

Subcommand AddState(Command parent) {
  Command state = parent.AddCommand(
      "state", "Print the state of a job, as JSON to resume from");
  const std::shared_ptr<ControlOptions> options = AddControlOptions(state);
  state.AddOption("--save", &options->save, "Write it to this file instead")
      .Type("FILE");
  state.SetFooter(R"(
A job that begins at this state gets every batch that some rank had
not released yet, and all that follow. A trainer's own checkpoint keeps
the state of penstock_state instead: that of its last step.

Examples:
  penstock state train --save state.json
  penstock run --state state.json --dataset train.yaml --ranks 2 -- ./trainer)");
  return {state, [options] { return SaveState(*options); }};
}

Subcommand AddEvict(Command parent) {
  Command evict = parent.AddCommand(
      "evict", "Detach a rank from its job although its process is alive");
  const std::shared_ptr<ControlOptions> options = AddControlOptions(evict);
  evict.AddOption("RANK", &options->rank, "Number of the rank")
      .Required()
      .InRange(0, kRankMax);
  evict
      .AddOption("--replica", &options->replica,
                 "Which of its processes; needed where a rank is several")
      .Type("N");
  evict.SetFooter(R"(
For a rank that hangs. Its next call returns an error. Its batches go to
its replacement (split) or to the other ranks. The memory it may still
read is kept until its process ends.

Example:
  penstock evict train 3)");
  return {evict, [options] { return Evict(*options); }};
}

Subcommand AddStop(Command parent) {
  Command stop = parent.AddCommand("stop", "End a job for all of its ranks");
  const std::shared_ptr<ControlOptions> options = AddControlOptions(stop);
  stop.AddFlag("--now", &options->now,
               "End the job at once with an error, not at the end of the step");
  stop.SetFooter(R"(
Without --now the ranks take the last step that any of them was given, and
then get the end of the data. A job without an attached rank ends at once: a
rank that comes later begins it anew.

Examples:
  penstock stop train
  penstock stop --now train)");
  return {stop, [options] { return Stop(*options); }};
}

}  // namespace penstock
