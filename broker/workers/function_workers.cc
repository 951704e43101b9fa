#include "broker/workers/function_workers.h"

#include <algorithm>
#include <set>

#include "broker/memory/available_memory.h"

namespace penstock {
namespace {

// Limits of function worker threads, of all users and of one user. They leave
// threads for other users and lines (sample_quarantine.h) for workers.
constexpr uint32_t kFunctionWorkersMax = kSampleLines / 2;
constexpr uint32_t kFunctionWorkersOfUserMax = kSampleLines / 8;
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

StatusOr<uint32_t> FunctionWorkers::Start(const JobKey& key, uint64_t number,
                                          uint32_t from, uint32_t to) {
  const auto [of_all, of_user] = threads_->CountFunctionWorkers(key.uid);
  Status status;
  uint32_t at = from;
  while (at < to && status.ok()) {
    const uint32_t started = at - from;
    if (of_all + started >= kFunctionWorkersMax ||
        of_user + started >= kFunctionWorkersOfUserMax) {
      status = ResourceExhaustedError(
          "{} processes of Python functions are at work, {} of this user, all "
          "there may be: {} and {}",
          of_all + started, of_user + started, kFunctionWorkersMax,
          kFunctionWorkersOfUserMax);
      break;
    }
    status =
        threads_->Start(WorkerThreads::kNoWorkerIndex, number, key.uid, at);
    at += status.ok();
  }
  // Fewer are slower; with none the job would never end.
  if (at == 0) return status;
  return at;
}

Status FunctionWorkers::Add(const std::shared_ptr<Job>& job, uint64_t number,
                            uint32_t workers) {
  const uint32_t of_dataset = job->dataset().source->processes();
  const uint32_t chosen = of_dataset > 0 ? of_dataset : workers;
  const uint32_t first = topology_->cpu_quota();
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint32_t started,
      Start(job->key(), number, 0, chosen > 0 ? chosen : first));
  DropEnded();
  processes_.emplace(
      number,
      Processes{job, Tuner({first, kProcessesOfWorker * first, true}, chosen),
                started});
  use_(number, started, started);
  return OkStatus();
}

void FunctionWorkers::DropEnded() {
  std::erase_if(processes_,
                [](const auto& item) { return item.second.job.expired(); });
}

bool FunctionWorkers::AreReady(uint64_t number, uint32_t processes) const {
  return std::all_of(threads_->all().begin(), threads_->all().end(),
                     [&](const WorkerThreads::Thread& each) {
                       return each.seat.job != number ||
                              each.seat.process >= processes ||
                              each.turns->turns() >= kTurnsOfReady;
                     });
}

void FunctionWorkers::Adapt(double seconds, const SampleQuarantine& samples,
                            uint64_t now_ns) {
  DropEnded();
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
    if (!AreReady(number, each.tuner.number()) && each.starting_s < kStartS) {
      continue;
    }
    const FunctionWorkersUse use = UseOf(number, *job, samples, now_ns);
    const bool limit = idle_processors_share_ >= kIdleProcessors &&
                       use.busy >= kBusyProcesses * each.tuner.number();
    const uint64_t more = uint64_t{each.tuner.number()} * kProcessBytes;
    if (!each.tuner.Measured(seconds, made,
                             limit ? job->recent().ranks_wait : 0,
                             FindAvailableMemory({}).bytes >= more)) {
      continue;
    }
    const uint32_t wanted = each.tuner.number();
    if (wanted > each.threads) {
      const auto started = Start(job->key(), number, each.threads, wanted);
      if (started.ok()) each.threads = *started;
    }
    each.starting_s = 0;
    use_(number, wanted, each.threads);
  }
}

uint32_t FunctionWorkers::CountOf(const Job& job, const std::string& set_by,
                                  std::string* why) const {
  for (const auto& [number, each] : processes_) {
    if (each.job.lock().get() != &job) continue;
    const uint32_t count = std::min(each.tuner.number(), each.threads);
    const bool first = count <= topology_->cpu_quota();
    *why = !each.tuner.automatic()
               ? (job.dataset().source->processes() > 0
                      ? "set by its source"
                      : "as many as workers, set by " + set_by)
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

FunctionWorkersUse FunctionWorkers::UseOf(const Job& job,
                                          const SampleQuarantine& samples,
                                          uint64_t now_ns) const {
  if (!job.has_function_workers()) return {};
  for (const auto& [number, each] : processes_) {
    if (each.job.lock().get() == &job) {
      return UseOf(number, job, samples, now_ns);
    }
  }
  return {};
}

FunctionWorkersUse FunctionWorkers::UseOf(uint64_t number, const Job& job,
                                          const SampleQuarantine& samples,
                                          uint64_t now_ns) const {
  FunctionWorkersUse use;
  for (const WorkerThreads::Thread& each : threads_->all()) {
    if (each.seat.job != number) continue;
    ++use.threads;
    const auto row = samples.Of(each.seat.thread_index);
    if (!row || row->job != number) continue;
    ++use.busy;
    // since is ahead by the program's allowed wait (row_maker.cc).
    const uint64_t ns = now_ns + job.dataset().wait_ns() - row->since_ns;
    if (ns < use.longest_ns) continue;
    use.longest_ns = ns;
    use.longest_record = row->sample.record;
  }
  return use;
}

}  // namespace penstock
