// penstock run: a private broker and the ranks of one command.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "client/command/guard.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/command/supervise.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "common/command_line.h"
#include "common/job_state.h"

namespace penstock {
namespace {

constexpr double kGraceMax_s = 86400;

struct RunOptions {
  std::vector<std::string> datasets;
  std::optional<std::string> state;
  int ranks = 0;
  int replicas = 1;
  bool tag_output = false;
  bool report = false;
  double grace_s = 10;
  PrivateBrokerOptions broker;
  std::vector<std::string> words;
};

// A TCP port that is free now, for MASTER_PORT.
StatusOr<int> FreePort() {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  sockaddr* const raw = reinterpret_cast<sockaddr*>(&address);
  if (!fd || bind(fd.get(), raw, bytes) != 0 ||
      getsockname(fd.get(), raw, &bytes) != 0) {
    return ErrnoError(errno, "cannot find a free port for MASTER_PORT");
  }
  return ntohs(address.sin_port);
}

using Environment = std::vector<std::pair<std::string, std::string>>;

// Adds the variables that torchrun sets, so that a torch trainer needs no other
// launcher.
void AddRankVariables(int rank, int ranks, int port, Environment* variables) {
  const std::string number = std::to_string(rank);
  const std::string count = std::to_string(ranks);
  for (const char* prefix : {"PENSTOCK_", ""}) {
    const std::string p = prefix;
    variables->emplace_back(p + "RANK", number);
    variables->emplace_back(p + "WORLD_SIZE", count);
    variables->emplace_back(p + "LOCAL_RANK", number);
    variables->emplace_back(p + "LOCAL_WORLD_SIZE", count);
  }
  variables->emplace_back("MASTER_ADDR", "127.0.0.1");
  variables->emplace_back("MASTER_PORT", std::to_string(port));
}

// Replaces *fd by the writing end of a pipe that `to` shows tagged.
StatusOr<Fd> AddTaggedOutput(SupervisedRank* rank, int to) {
  PENSTOCK_ASSIGN_OR_RETURN(PipeEnds pipe, MakePipe());
  rank->outputs.emplace_back(std::move(pipe.read), "[" + rank->name + "] ", to);
  return std::move(pipe.write);
}

StatusOr<std::vector<SupervisedRank>> StartRanks(const RunOptions& options,
                                                 const Environment& common,
                                                 pid_t shared_group) {
  int port = 0;
  if (options.ranks > 0) {
    PENSTOCK_ASSIGN_OR_RETURN(port, FreePort());
  }
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<SupervisedRank> ranks;
  for (int i = 0; i < std::max(options.ranks, 1); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
    SupervisedRank rank;
    ProcessSpec spec;
    spec.argv = options.words;
    spec.environment = common;
    spec.group = shared_group;
    // A signal that the process can handle, as Supervise sends it.
    spec.death_signal = SIGTERM;
    if (options.ranks == 0) {
      rank.name = "'" + options.words[0] + "'";
    } else {
      rank.name = Format("rank {}", i);
      AddRankVariables(i, options.ranks, port, &spec.environment);
    }
    if (options.replicas > 1) {
      spec.environment.emplace_back("PENSTOCK_REPLICAS",
                                    std::to_string(options.replicas));
    }
    // Several processes cannot share a terminal's input, nor a pipe's.
    if (shared_group == 0 && (i > 0 || isatty(STDIN_FILENO))) {
      spec.stdin_fd = null.get();
    }
    Fd out, err;
    if (options.tag_output) {
      PENSTOCK_ASSIGN_OR_RETURN(out, AddTaggedOutput(&rank, STDOUT_FILENO));
      PENSTOCK_ASSIGN_OR_RETURN(err, AddTaggedOutput(&rank, STDERR_FILENO));
      spec.stdout_fd = out.get();
      spec.stderr_fd = err.get();
    }
    PENSTOCK_ASSIGN_OR_RETURN(rank.process, Process::Start(spec));
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

// Reports the cost of loading, without the ranks' own time.
void Report(PrivateBroker& broker) {
  const StatusOr<nlohmann::json> answer = broker.Call({{"op", "status"}});
  if (!answer.ok()) return;  // it died, which was reported
  const nlohmann::json& state = FieldOf(*answer, "broker");
  const double cpu_s = NumberField(state, "cpu_s").value_or(0);
  const double rows = NumberField(state, "rows").value_or(0);
  Print(stderr,
        "penstock: the broker made {:.0f} rows in {:.2f} CPU-seconds, "
        "{:.4f} per 1,000 rows{}\n",
        rows, cpu_s, rows > 0 ? 1000 * cpu_s / rows : 0.0,
        broker.starts() > 1 ? Format(", since restart {}", broker.starts() - 1)
                            : "");
}

StatusOr<int> RunRanks(const RunOptions& options,
                       const std::vector<SpecFile>& files, pid_t group) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateBroker> broker,
                            PrivateBroker::Start(options.broker));
  broker->Announce();
  Environment variables = {{"PENSTOCK_SOCKET", broker->socket()}};
  std::vector<std::string> datasets;
  for (size_t i = 0; i < files.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer,
                              broker->Call(files[i].Request("register")));
    datasets.push_back(TextField(answer, "dataset"));
  }
  if (!files.empty()) variables.emplace_back("PENSTOCK_DATASET", datasets[0]);
  if (files.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json answer,
                              broker->Call({{"op", "ping"}}));
  }
  if (options.state) {
    // Jobs of other datasets begin at their beginning; here no job would use
    // it.
    PENSTOCK_ASSIGN_OR_RETURN(const JobState state,
                              ReadJobState(*options.state));
    if (!files.empty() && std::find(datasets.begin(), datasets.end(),
                                    state.dataset) == datasets.end()) {
      return InvalidArgumentError(
          "state '{}' is of dataset '{}'; --dataset names {}", *options.state,
          state.dataset, JoinText(datasets, ", "));
    }
    std::error_code error;
    variables.emplace_back(
        "PENSTOCK_STATE",
        std::filesystem::absolute(*options.state, error).string());
  }
  const char* job = std::getenv("PENSTOCK_JOB");
  if (job == nullptr || *job == '\0') {
    variables.emplace_back("PENSTOCK_JOB", UniqueJobName("run"));
  }

  AdoptOrphans();
  SuperviseOptions supervise;
  supervise.grace_s = options.grace_s;
  supervise.shares_terminal = options.ranks <= 1 && isatty(STDIN_FILENO);
  PENSTOCK_ASSIGN_OR_RETURN(
      std::vector<SupervisedRank> ranks,
      StartRanks(options, variables, supervise.shares_terminal ? group : 0));
  const int status = Supervise(ranks, *broker, supervise);
  if (options.report) Report(*broker);
  return status;
}

StatusOr<int> Run(const RunOptions& options) {
  if (options.words.empty()) {
    PrintError(
        "no command to run: write it after `--`, as in `penstock run --dataset "
        "train.yaml --ranks 4 -- ./trainer`");
    return kExitUsage;
  }
  if (options.ranks % options.replicas != 0) {
    PrintError(Format("--ranks {} is no multiple of --replicas {}",
                      options.ranks, options.replicas));
    return kExitUsage;
  }
  // Report a missing file before anything is started.
  std::vector<SpecFile> files;
  for (const std::string& name : options.datasets) {
    PENSTOCK_ASSIGN_OR_RETURN(SpecFile file, ReadSpecFile(name));
    files.push_back(std::move(file));
  }
  if (options.state) {
    PENSTOCK_RETURN_IF_ERROR(ReadJobState(*options.state).status());
  }
  // The terminal's foreground process group.
  const pid_t group = getpgrp();
  return RunGuarded([&] { return RunRanks(options, files, group); });
}

}  // namespace

Subcommand AddRun(Command parent, const std::vector<std::string>& words) {
  Command run = parent.AddCommand(
      "run", "Start a private broker and N ranks of the command after --");
  const auto options = std::make_shared<RunOptions>();
  options->words = words;
  run.AddOption("--dataset", &options->datasets,
                "Spec of a dataset to register; may be repeated, the first "
                "becomes PENSTOCK_DATASET")
      .Type("SPEC.yaml")
      .OneValueEachTime();
  run.AddOption("--state", &options->state,
                "Begin at the state in this file (of `penstock state "
                "--save`, or a trainer's own): sets PENSTOCK_STATE")
      .Type("FILE");
  run.AddOption("--ranks", &options->ranks,
                "Copies of the command to start, each with its rank "
                "variables; 0: start it once, it starts the ranks itself")
      .Type("N")
      .Required()
      .InRange(0, kRanksMax);
  run.AddOption("--replicas", &options->replicas,
                "That many copies in turn are one rank and get the same "
                "batches: sets PENSTOCK_REPLICAS")
      .Type("N")
      .InRange(1, kRanksMax);
  run.AddFlag("--prefix", &options->tag_output,
              "Write [rank N] in front of each line of output");
  run.AddFlag(
      "--report", &options->report,
      "Print at the end how many rows the broker made and at what cost");
  run.AddOption("--grace", &options->grace_s,
                "Seconds from SIGTERM to SIGKILL when the ranks are stopped")
      .Type("SECONDS")
      .ShowDefault()
      .InRange(0.0, kGraceMax_s);
  options->broker.AddTo(run);
  run.SetFooter(R"(
The command gets PENSTOCK_SOCKET, PENSTOCK_JOB (unless you set it),
PENSTOCK_DATASET, and with --ranks 1 or more the rank variables of
PENSTOCK_ and of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, ...,
MASTER_PORT). When one rank fails, the others are stopped, and `penstock run`
ends with its exit status. Processes that the ranks leave behind are killed.

Examples:
  penstock run --dataset train.yaml --ranks 4 -- ./trainer --lr 0.1
  penstock run --dataset train.yaml --ranks 0 -- mpirun -n 4 ./trainer
  penstock run --dataset train.yaml --ranks 0 -- torchrun --nproc-per-node 4 train.py)");
  return {run, [options] { return Run(*options); }};
}

}  // namespace penstock
