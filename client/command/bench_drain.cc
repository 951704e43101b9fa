#include "client/command/bench_drain.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "client/command/bench_rank.h"
#include "client/command/subcommand.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/process.h"
#include "client/private_broker/progress_bar.h"
#include "common/deadline.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Sampling memory walks the page tables of every process, about 1 ms per GiB
// mapped with 4 KiB pages: not more often than this.
constexpr auto kMemoryEvery = std::chrono::milliseconds(500);
constexpr double kDetach_s = 10;

class RankWatch {
 public:
  explicit RankWatch(const DrainTask& task) : task_(task) {}

  StatusOr<DrainResult> Run() {
    PENSTOCK_RETURN_IF_ERROR(Start());
    while (done_ < task_.ranks) {
      PENSTOCK_RETURN_IF_ERROR(WaitAndRead());
      uint64_t samples = 0;
      for (size_t i = 0; i < result_.ranks.size(); i += task_.replicas) {
        samples += result_.ranks[i].samples;
      }
      bar_.Update(samples, task_.samples_estimate);
      if (attached_ == task_.ranks && Clock::now() >= next_memory_) {
        SampleMemory();
      }
    }
    bar_.Clear();
    SampleMemory();  // all ranks are still attached
    if (task_.record_rows) PENSTOCK_RETURN_IF_ERROR(AskForWeights());
    PENSTOCK_RETURN_IF_ERROR(LetGo());
    if (task_.record_rows) PENSTOCK_RETURN_IF_ERROR(CollectRows());
    return std::move(result_);
  }

 private:
  struct Rank {
    Process process;
    Fd records;
    bool done = false;
  };

  Status Start() {
    PENSTOCK_ASSIGN_OR_RETURN(PipeEnds report, MakePipe());
    PENSTOCK_ASSIGN_OR_RETURN(PipeEnds release, MakePipe());
    report_read_ = std::move(report.read);
    release_write_ = std::move(release.write);
    fcntl(report_read_.get(), F_SETFL, O_NONBLOCK);

    result_.ranks.resize(task_.ranks);
    begin_ = Clock::now();
    for (uint32_t number = 0; number < task_.ranks; ++number) {
      PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
      Rank rank;
      if (task_.record_rows) {
        rank.records = Fd(memfd_create("penstock bench rows", MFD_CLOEXEC));
        if (!rank.records) return ErrnoError(errno, "memfd_create");
      }
      const RankTask drain = {task_, number, rank.records.get(),
                              report.write.get(), release.read.get()};
      ProcessSpec spec;
      spec.body = [&drain, this] {
        release_write_.Reset();  // else no rank ever sees it closed
        if (task_.private_broker != nullptr) {
          task_.private_broker->ForgetInFork();
        }
        return DrainAsRank(drain);
      };
      PENSTOCK_ASSIGN_OR_RETURN(rank.process, Process::Start(spec));
      ranks_.push_back(std::move(rank));
    }
    return OkStatus();
  }

  // Waits until a rank reports or ends, 100 ms at most.
  Status Wait() {
    std::vector<pollfd> entries = {{InterruptFd(), POLLIN, 0},
                                   {report_read_.get(), POLLIN, 0}};
    if (task_.private_broker != nullptr) task_.private_broker->AddTo(&entries);
    for (const Rank& rank : ranks_) {
      if (rank.process.pid() > 0) {
        entries.push_back({rank.process.pidfd(), POLLIN, 0});
      }
    }
    constexpr int kRound_ms = 100;
    poll(entries.data(), entries.size(), kRound_ms);
    return CheckInterrupt();
  }

  Status TendBroker() {
    if (task_.private_broker == nullptr) return OkStatus();
    return task_.private_broker->Tend([this](const std::string& news) {
      bar_.Clear();
      PrintError(news);
    });
  }

  Status WaitAndRead() {
    PENSTOCK_RETURN_IF_ERROR(Wait());
    // Ends are collected first and judged last, after the ranks' reports are
    // read.
    std::vector<std::optional<ProcessExit>> ends;
    for (const Rank& rank : ranks_) ends.push_back(rank.process.Ended());
    Status status = ReadReports();
    for (size_t i = 0; i < ends.size() && status.ok(); ++i) {
      if (!ends[i]) continue;
      status = InternalError("rank {} (pid {}) {}", i, ranks_[i].process.pid(),
                             ends[i]->ToString());
    }
    if (status.ok()) return TendBroker();
    // A rank may have failed because the broker died.
    if (task_.private_broker != nullptr) {
      if (const std::optional<Status> death =
              task_.private_broker->Death(0.3)) {
        return *death;
      }
    }
    return status;
  }

  Status ReadReports() {
    RankReport report;
    while (read(report_read_.get(), &report, sizeof(report)) ==
           sizeof(report)) {
      result_.ranks[report.rank] = report.totals;
      switch (report.kind) {
        case RankReport::kAttached:
          ++attached_;
          result_.attach_s = SecondsSince(begin_);
          break;
        case RankReport::kDone:
          ++done_;
          result_.wall_s = SecondsSince(begin_);
          break;
        case RankReport::kFailed:
          return InternalError("rank {}: {}", report.rank, report.message);
        default:
          break;
      }
    }
    return OkStatus();
  }

  void SampleMemory() {
    next_memory_ = Clock::now() + kMemoryEvery;
    const std::optional<pid_t> broker_pid =
        task_.private_broker != nullptr ? task_.private_broker->process().pid()
                                        : task_.broker_pid;
    if (!broker_pid) return;
    std::optional<uint64_t> part = PssBytes(*broker_pid);
    uint64_t sum = part.value_or(0);
    for (const Rank& rank : ranks_) {
      if (!part) return;
      part = PssBytes(rank.process.pid());
      sum += part.value_or(0);
    }
    if (part) result_.pss_bytes = std::max(result_.pss_bytes.value_or(0), sum);
  }

  // Lets the ranks detach and end.
  Status LetGo() {
    release_write_.Reset();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Process& process = ranks_[i].process;
      const auto until =
          Clock::now() + std::chrono::duration<double>(kDetach_s);
      std::optional<ProcessExit> ended;
      while (!(ended = process.Ended()) && Clock::now() < until) {
        PENSTOCK_RETURN_IF_ERROR(Wait());
        PENSTOCK_RETURN_IF_ERROR(TendBroker());
      }
      if (!ended || !ended->ok()) {
        return InternalError(
            "rank {} (pid {}) {} after it had drained everything", i,
            process.pid(), ended ? ended->ToString() : "does not end");
      }
      process.Reap();
      result_.ranks[i].cpu_s = process.cpu_s();
    }
    return OkStatus();
  }

  Status AskForWeights() {
    PENSTOCK_ASSIGN_OR_RETURN(
        const nlohmann::json answer,
        CallBroker(task_.socket, {{"op", "weights"}, {"job", task_.job}}));
    result_.weights = ArrayField(answer, "changes").dump();
    return OkStatus();
  }

  Status CollectRows() {
    result_.rows.resize(task_.replicas);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const int records = ranks_[i].records.get();
      std::vector<RowRecord>& rows = result_.rows[i % task_.replicas];
      struct stat info;
      if (fstat(records, &info) != 0) return ErrnoError(errno, "fstat");
      const size_t before = rows.size();
      const size_t bytes = static_cast<size_t>(info.st_size);
      rows.resize(before + bytes / sizeof(RowRecord));
      if (!ReadWholly(records, rows.data() + before, bytes)) {
        return ErrnoError(errno, "read a rank's list of rows");
      }
    }
    return OkStatus();
  }

  const DrainTask& task_;
  DrainResult result_;
  std::vector<Rank> ranks_;
  Fd report_read_;
  Fd release_write_;
  uint32_t attached_ = 0;
  uint32_t done_ = 0;
  ProgressBar bar_{"draining", "samples"};
  Clock::time_point begin_;
  Clock::time_point next_memory_ = Clock::now();
};

}  // namespace

StatusOr<DrainResult> DrainWithRanks(const DrainTask& task) {
  return RankWatch(task).Run();
}

}  // namespace penstock
