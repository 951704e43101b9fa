#include "client/command/supervise.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "client/command/interrupt.h"
#include "client/command/subcommand.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Adopted orphans that have ended are reaped this often.
constexpr std::chrono::milliseconds kOrphanRound(5000);

class Supervisor {
 public:
  Supervisor(std::vector<SupervisedRank>& ranks, PrivateBroker& broker,
             const SuperviseOptions& options)
      : ranks_(ranks), broker_(broker), options_(options) {}

  int Run() {
    while (Living() > 0) {
      Wait();
      HandleInterrupts();
      for (SupervisedRank& rank : ranks_) {
        for (TaggedOutput& output : rank.outputs) output.Forward();
        if (!rank.ended) NoteEnd(rank);
      }
      NoteBroker();
      if (kill_at_ && Clock::now() >= *kill_at_) KillAll();
      if (Clock::now() >= orphans_at_) {
        orphans_at_ = Clock::now() + kOrphanRound;
        ReapOrphans(Ours());
      }
    }
    for (SupervisedRank& rank : ranks_) rank.process.Reap();
    // Those that left their rank's group.
    KillOrphans({broker_.process().pid()});
    for (SupervisedRank& rank : ranks_) {
      for (TaggedOutput& output : rank.outputs) output.Finish();
    }
    return exit_status_;
  }

 private:
  size_t Living() const {
    return std::count_if(
        ranks_.begin(), ranks_.end(),
        [](const SupervisedRank& rank) { return !rank.ended; });
  }

  std::vector<pid_t> Ours() const {
    std::vector<pid_t> pids = {broker_.process().pid()};
    for (const SupervisedRank& rank : ranks_) {
      pids.push_back(rank.process.pid());
    }
    return pids;
  }

  void Wait() {
    std::vector<pollfd> entries = {{InterruptFd(), POLLIN, 0}};
    if (!broker_died_)
      entries.push_back({broker_.process().pidfd(), POLLIN, 0});
    for (const SupervisedRank& rank : ranks_) {
      if (!rank.ended) entries.push_back({rank.process.pidfd(), POLLIN, 0});
      for (const TaggedOutput& output : rank.outputs) {
        if (output.fd() >= 0) entries.push_back({output.fd(), POLLIN, 0});
      }
    }
    int timeout_ms = kOrphanRound.count();
    if (kill_at_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(
          *kill_at_ - Clock::now());
      timeout_ms = static_cast<int>(
          std::clamp<int64_t>(left.count(), 0, kOrphanRound.count()));
    }
    poll(entries.data(), entries.size(), timeout_ms);
  }

  void HandleInterrupts() {
    while (const std::optional<Interrupt> interrupt = NextInterrupt()) {
      if (options_.shares_terminal && interrupt->from_terminal) continue;
      if (interrupted_) {  // once more: the user has waited enough
        KillAll();
        continue;
      }
      interrupted_ = true;
      const bool stopping = kill_at_.has_value();
      if (exit_status_ == 0) exit_status_ = 128 + interrupt->signal;
      if (!stopping) Stop(interrupt->signal);
    }
  }

  void NoteEnd(SupervisedRank& rank) {
    const std::optional<ProcessExit> ended = rank.process.Ended();
    if (!ended) return;
    rank.ended = true;
    if (ended->ok() || exit_status_ != 0) return;
    exit_status_ = ended->ShellStatus();
    // The user knows who pressed Ctrl-C.
    if (options_.shares_terminal && ended->ShellStatus() == 128 + SIGINT)
      return;
    const size_t others = Living();
    PrintError(fmt::format(
        "{} (pid {}) {}{}", rank.name, rank.process.pid(), ended->ToString(),
        others == 0   ? std::string()
        : others == 1 ? std::string("; stopping the other one")
                      : fmt::format("; stopping the other {}", others)));
    Stop(SIGTERM);
  }

  void NoteBroker() {
    if (broker_died_) return;
    const std::optional<Status> death = broker_.Death();
    if (!death) return;
    broker_died_ = true;
    if (exit_status_ != 0 || Living() == 0) return;
    exit_status_ = kExitFailure;
    PrintError(death->message() + "; stopping");
    Stop(SIGTERM);
  }

  void Stop(int signal) {
    if (kill_at_) return;
    for (const SupervisedRank& rank : ranks_) rank.process.Signal(signal);
    kill_at_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(options_.grace_s));
  }

  void KillAll() {
    for (const SupervisedRank& rank : ranks_) rank.process.Signal(SIGKILL);
    kill_at_ = Clock::now() + std::chrono::hours(1);
  }

  std::vector<SupervisedRank>& ranks_;
  PrivateBroker& broker_;
  const SuperviseOptions options_;
  int exit_status_ = 0;
  bool interrupted_ = false;
  bool broker_died_ = false;
  Clock::time_point orphans_at_ = Clock::now() + kOrphanRound;
  std::optional<Clock::time_point> kill_at_;  // set: stopping
};

}  // namespace

int Supervise(std::vector<SupervisedRank>& ranks, PrivateBroker& broker,
              const SuperviseOptions& options) {
  return Supervisor(ranks, broker, options).Run();
}

}  // namespace penstock
