// The part of WorkerPool that chooses numbers by what it measures: reads in
// flight, threads whose reads block them, processes of Python functions.
#include <algorithm>
#include <set>

#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/memory/available_memory.h"
#include "broker/workers/worker_pool.h"

namespace penstock {
namespace {

// A process of Python functions may need so much: one that grows by more is
// replaced (source/python_dataset.cc).
constexpr uint64_t kProcessBytes = uint64_t{1} << 30;
// Processors that are idle for less of the time have no room for processes.
constexpr double kIdleProcessors = 0.25;
// Function workers that are on rows for less of the time hold nobody up.
constexpr double kBusyProcesses = 0.9;
constexpr double kLookAtProcessorsS = 1;
// Turns of a worker that has made a row.
constexpr uint64_t kTurnsOfReady = 2;
// What a process that starts may take before its number is judged all the same.
constexpr double kStartS = 60;

std::string RowsPerSecondText(double rows_per_s) {
  return Format("{:.4g} rows/s", rows_per_s);
}

std::set<uint32_t> NumbersOf(const std::vector<Topology::Cpu>& cpus) {
  std::set<uint32_t> numbers;
  for (const Topology::Cpu& cpu : cpus) numbers.insert(cpu.os_index);
  return numbers;
}

}  // namespace

std::string BytesPerSecondText(double bytes_per_s) {
  return Format("{}/s", BytesText(static_cast<uint64_t>(bytes_per_s)));
}

void WorkerPool::AdaptReads(uint64_t ns) {
  uint64_t bytes = 0;
  uint64_t reads = 0;
  uint64_t in_flight = 0;
  uint64_t waited_ns = 0;
  for (const Thread& each : threads_) {
    bytes += each.reads->bytes();
    waited_ns += each.reads->waited_ns();
    reads += each.reads->ended();
    in_flight += each.reads->in_flight();
  }
  const double seconds = static_cast<double>(ns) * 1e-9;
  const double waited_s =
      static_cast<double>(waited_ns - waited_seen_ns_) * 1e-9;
  const auto read = static_cast<double>(bytes - bytes_seen_);
  const double waiting = waited_s / (seconds * workers());
  reads_per_s_.Add(static_cast<double>(reads - reads_seen_) / seconds, seconds);
  reads_at_once_.Add(static_cast<double>(in_flight), seconds);
  bytes_seen_ = bytes;
  waited_seen_ns_ = waited_ns;
  reads_seen_ = reads;
  if (!ReadsBlock()) {
    if (depth_.Measured(seconds, read, waiting)) {
      read_depth_.store(depth_.depth(), std::memory_order_relaxed);
    }
    return;
  }
  const uint32_t most = kWorkersMax / topology_->cpu_quota();
  if (options_.workers == 0 &&
      threads_of_processor_.Measured(
          seconds, read, waiting, 2 * threads_of_processor_.number() <= most)) {
    const uint32_t wanted =
        topology_->cpu_quota() * threads_of_processor_.number();
    if (const Status status = UseWorkers(wanted); !status.ok()) {
      Log<"worker-not-started">(status.message());
    }
  }
}

std::string WorkerPool::ReadDepthReason() const {
  if (!depth_.automatic()) return "set by `read_depth`";
  if (ReadsBlock()) return "each worker reads one record after the other";
  // Little's law.
  const double per_s = reads_per_s_.mean();
  const std::string measured =
      per_s < 1 ? ""
                : Format("{:.2f} ms a read at {:.0f} reads/s; ",
                         1e3 * reads_at_once_.mean() / per_s, per_s);
  return measured + depth_.Reason(BytesPerSecondText);
}

// ---- processes of Python functions

Status WorkerPool::AddProcesses(const std::shared_ptr<Job>& job,
                                uint64_t number) {
  const uint32_t of_dataset = job->dataset().source->processes();
  const uint32_t chosen = of_dataset > 0 ? of_dataset : options_.workers;
  const uint32_t first = topology_->cpu_quota();
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint32_t started,
      StartFunctionWorkers(job->key(), number, 0, chosen > 0 ? chosen : first));
  std::erase_if(processes_,
                [](const auto& item) { return item.second.job.expired(); });
  processes_.emplace(
      number,
      Processes{job, Tuner({first, kProcessesOfWorker * first, true}, chosen),
                started});
  UseProcesses(number, started, started);
  return OkStatus();
}

void WorkerPool::UseProcesses(uint64_t number, uint32_t processes,
                              uint32_t threads) {
  MutexLock lock(&mutex_);
  ChangeJobs([&](Entries* jobs) {
    for (Entry& entry : *jobs) {
      if (entry.number != number) continue;
      entry.processes = processes;
      entry.threads = threads;
      entry.work->NotifyAll();
    }
  });
}

bool WorkerPool::ProcessesAreReady(uint64_t number, uint32_t processes) const {
  return std::all_of(threads_.begin(), threads_.end(), [&](const Thread& each) {
    return each.job != number || each.number >= processes ||
           each.turns->turns() >= kTurnsOfReady;
  });
}

void WorkerPool::AdaptProcesses(double seconds) {
  std::erase_if(processes_,
                [](const auto& item) { return item.second.job.expired(); });
  if (processes_.empty()) return;
  look_in_s_ -= seconds;
  if (look_in_s_ <= 0) {
    if (idle_processors_ == nullptr) {
      idle_processors_ =
          std::make_unique<IdleProcessors>(NumbersOf(topology_->cpus()));
    }
    idle_processors_share_ = idle_processors_->SinceLastCall().value_or(0);
    look_in_s_ = kLookAtProcessorsS;
  }
  for (auto& [number, each] : processes_) {
    const std::shared_ptr<Job> job = each.job.lock();
    if (job == nullptr) continue;
    const uint64_t rows =
        job->counters().rows.load(std::memory_order_relaxed);  // only compared
    const auto made = static_cast<double>(rows - each.rows_seen);
    each.rows_seen = rows;
    // An import is no measurement.
    each.starting_s += seconds;
    if (!ProcessesAreReady(number, each.tuner.number()) &&
        each.starting_s < kStartS) {
      continue;
    }
    const FunctionWorkersUse use = UseOfFunctionWorkers(*job);
    const bool limit = idle_processors_share_ >= kIdleProcessors &&
                       use.busy >= kBusyProcesses * each.tuner.number();
    const uint64_t more = uint64_t{each.tuner.number()} * kProcessBytes;
    if (!each.tuner.Measured(seconds, made, limit ? job->recent().ranks_wait : 0,
                             FindAvailableMemory({}).bytes >= more)) {
      continue;
    }
    const uint32_t wanted = each.tuner.number();
    if (wanted > each.threads) {
      const auto started =
          StartFunctionWorkers(job->key(), number, each.threads, wanted);
      if (started.ok()) each.threads = *started;
    }
    each.starting_s = 0;
    UseProcesses(number, wanted, each.threads);
  }
}

uint32_t WorkerPool::ProcessesOf(const Job& job, std::string* why) const {
  for (const auto& [number, each] : processes_) {
    if (each.job.lock().get() != &job) continue;
    const uint32_t count = std::min(each.tuner.number(), each.threads);
    const bool first = count <= topology_->cpu_quota();
    *why = !each.tuner.automatic()
               ? (job.dataset().source->processes() > 0
                      ? "set by its source"
                      : "as many as workers, set by " + set_by_)
           : first && idle_processors_share_ < kIdleProcessors
               ? Format(
                     "auto, one for each processor, which are idle for "
                     "{:.0f} % of the time",
                     100 * idle_processors_share_)
               : "auto; " + each.tuner.Reason(RowsPerSecondText);
    return count;
  }
  return 0;
}

}  // namespace penstock
