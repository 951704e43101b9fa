#include "client/command/supervise.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "client/command/subcommand.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/table.h"
#include "common/deadline.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Interval of reaping adopted orphans.
constexpr std::chrono::milliseconds kOrphanRound(5000);
// Most ranks named in one message.
constexpr size_t kNamesMax = 8;

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
      NoteReaders();
      if (Living() > 0) NoteBroker();
      if (report_early_at_ && Clock::now() >= *report_early_at_)
        ReportEarlyEnds();
      if (kill_at_ && Clock::now() >= *kill_at_) KillAll();
      if (Clock::now() >= orphans_at_) {
        orphans_at_ = Clock::now() + kOrphanRound;
        ReapOrphans(Ours());
      }
    }
    for (SupervisedRank& rank : ranks_) rank.process.Reap();
    // The processes that left their rank's group.
    KillOrphans({broker_.process().pid()});
    for (SupervisedRank& rank : ranks_) {
      for (TaggedOutput& output : rank.outputs) output.Finish();
    }
    NoteReaders();
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
    broker_.AddTo(&entries);
    for (const SupervisedRank& rank : ranks_) {
      if (!rank.ended) entries.push_back({rank.process.pidfd(), POLLIN, 0});
      for (const TaggedOutput& output : rank.outputs) {
        if (output.fd() >= 0) entries.push_back({output.fd(), POLLIN, 0});
      }
    }
    Clock::time_point until = orphans_at_;
    for (const auto& at : {kill_at_, report_early_at_, broker_.TendAt()}) {
      if (at) until = std::min(until, *at);
    }
    poll(entries.data(), entries.size(), MillisecondsUntil(until));
  }

  void HandleInterrupts() {
    while (const std::optional<Interrupt> interrupt = NextInterrupt()) {
      if (options_.shares_terminal && interrupt->from_terminal) continue;
      // Slurm and systemd signal every process of a job: the guard has got the
      // same signal, so only those it hands on are counted.
      if (interrupt->handed_on && ++handed_on_ == 2) {
        KillAll();  // the second one: do not wait any longer
        continue;
      }
      if (interrupted_) continue;
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
    if (ended->ok()) {
      early_.push_back(rank.name);
      report_early_at_ = Clock::now() + DurationOf(options_.early_end_s);
      return;
    }
    if (exit_status_ != 0) return;
    exit_status_ = ended->ShellStatus();
    // No message after Ctrl-C.
    if (options_.shares_terminal && ended->ShellStatus() == 128 + SIGINT)
      return;
    const size_t others = Living();
    PrintError(Format(
        "{} (pid {}) {}{}", rank.name, rank.process.pid(), ended->ToString(),
        others == 0   ? std::string()
        : others == 1 ? std::string("; stopping the other one")
                      : Format("; stopping the other {}", others)));
    Stop(SIGTERM);
  }

  // Reports the ranks that ended since the last report, in one line.
  void ReportEarlyEnds() {
    report_early_at_.reset();
    const size_t others = Living();
    const std::vector<std::string> names = std::exchange(early_, {});
    if (others == 0 || kill_at_) return;
    PrintError(Format("{} ended with status 0 while {} go{} on",
                      JoinFirst(names, kNamesMax),
                      others == 1 ? "1 other" : Format("{} others", others),
                      others == 1 ? "es" : ""));
  }

  // Ends quietly by SIGPIPE, as a program that writes to such a pipe itself.
  void NoteReaders() {
    const bool gone = std::any_of(
        ranks_.begin(), ranks_.end(), [](const SupervisedRank& rank) {
          return std::any_of(
              rank.outputs.begin(), rank.outputs.end(),
              [](const TaggedOutput& output) { return output.reader_gone(); });
        });
    if (!gone) return;
    if (exit_status_ == 0) exit_status_ = 128 + SIGPIPE;
    Stop(SIGTERM);
  }

  void NoteBroker() {
    if (broker_lost_) return;
    const Status status =
        broker_.Tend([](const std::string& news) { PrintError(news); });
    if (status.ok()) return;
    broker_lost_ = true;
    if (exit_status_ != 0) return;
    exit_status_ = kExitFailure;
    PrintError(status.message() + "; stopping");
    Stop(SIGTERM);
  }

  void Stop(int signal) {
    if (kill_at_) return;
    for (const SupervisedRank& rank : ranks_) rank.process.Signal(signal);
    kill_at_ = Clock::now() + DurationOf(options_.grace_s);
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
  int handed_on_ = 0;  // signals from the guard
  bool broker_lost_ = false;
  Clock::time_point orphans_at_ = Clock::now() + kOrphanRound;
  std::optional<Clock::time_point> kill_at_;  // set: stopping
  std::vector<std::string> early_;  // ended with success, not reported
  std::optional<Clock::time_point>
      report_early_at_;  // set: early_ is not empty
};

}  // namespace

int Supervise(std::vector<SupervisedRank>& ranks, PrivateBroker& broker,
              const SuperviseOptions& options) {
  return Supervisor(ranks, broker, options).Run();
}

}  // namespace penstock
