#include "broker/workers/worker_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "broker/base/log.h"
#include "broker/workers/worker.h"
#include "common/deadline.h"

namespace penstock {
namespace {

constexpr uint64_t kLateNs = 1'000'000'000;
// Log lines after one death.
constexpr size_t kChargesLoggedMax = 20;
// How often a worker without rows checks what it owes.
constexpr std::chrono::seconds kOweInterval{1};

// An alternate stack for this thread's crash handler. When a decoder or plugin
// overflows the normal stack, the handler cannot run there, and the kernel
// would end the broker without recording the sample.
class CrashStack {
 public:
  CrashStack() {
    stack_t before = {};
    sigaltstack(nullptr, &before);
    if ((before.ss_flags & SS_DISABLE) == 0) return;  // a sanitizer's
    memory_ = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    stack_t stack = {};
    stack.ss_sp = memory_.get();
    stack.ss_size = kBytes;
    sigaltstack(&stack, nullptr);
  }
  ~CrashStack() {
    if (memory_ == nullptr) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  CrashStack(const CrashStack&) = delete;
  CrashStack& operator=(const CrashStack&) = delete;

 private:
  // AVX-512 registers alone take 3 KiB. Unused pages cost nothing.
  static constexpr size_t kBytes = size_t{64} << 10;
  std::unique_ptr<std::byte[]> memory_;
};

// Logs charges by name: the quarantine file has only numbers.
void LogCharges(SampleQuarantine* samples, const Job& job) {
  const std::vector<SampleQuarantine::Charge> charges = samples->TakeCharges(
      SampleQuarantine::DatasetHash(DatasetKey(job.options().spec)));
  for (size_t i = 0; i < charges.size(); ++i) {
    if (i == kChargesLoggedMax) {
      Log<"samples-charged-more">(job.key(), job.key().dataset,
                                  charges.size() - i);
      break;
    }
    const SampleQuarantine::Charge& charge = charges[i];
    const uint64_t record = charge.sample.record;
    Log<"sample-charged">(
        job.key(), job.key().dataset, record,
        record < job.dataset().source->record_count()
            ? job.dataset().source->Describe(record)
            : "?",
        charge.is_certain ? "whose decoding crashed or hung"
                          : "which was in work when the broker was killed",
        charge.is_condemned ? "it is not decoded any more (on_error)"
                            : "it is decoded alone");
  }
}

}  // namespace

StatusOr<std::string> WorkerPool::CheckReads(const WorkerOptions& options) {
  const auto reader = MakeStorageReader(
      options.read_backend,
      WorkerReads::Tickets(ReadDepth(options.read_depth).most()));
  if (reader.ok()) return (*reader)->backend();
  return reader.status().Prepend(
      Format("read_backend: {}",
             kReadBackendNames[static_cast<size_t>(options.read_backend)]));
}

StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Start(
    const Topology& topology, const WorkerOptions& options) {
  std::unique_ptr<WorkerPool> pool(new WorkerPool(topology));
  pool->options_ = options;
  pool->read_tuning_ = ReadTuning(options.read_depth);
  const ReadDepth& depth = pool->read_tuning_.depth();
  pool->reads_most_ = depth.most();
  pool->read_depth_.store(depth.depth(), std::memory_order_relaxed);
  const uint32_t workers =
      options.workers != 0 ? options.workers : topology.cpu_quota();
  if (workers > kWorkersMax) {
    return InvalidArgumentError("{} workers, at most {} may be", workers,
                                kWorkersMax);
  }
  static_assert(2 * kWorkersMax <= kSampleLines);
  pool->workers_.store(workers, std::memory_order_relaxed);
  pool->samples_ = options.samples;
  if (options.samples == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(pool->own_samples_, SampleQuarantine::Open(""));
    pool->samples_ = pool->own_samples_.get();
  }
  // Makes one reader to detect a broken machine before any thread starts. Each
  // worker makes its own on its thread.
  PENSTOCK_ASSIGN_OR_RETURN(pool->read_backend_, CheckReads(options));
  pool->threads_.Prepare(
      [pool = pool.get()](const WorkerSeat& seat, ReadsInFlight* reads) {
        pool->Run(seat, reads);
      },
      WorkerReads::Entries(pool->reads_most_));
  for (uint32_t i = 0; i < workers; ++i) {
    PENSTOCK_RETURN_IF_ERROR(pool->threads_.Start(i));
  }
  return pool;
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    stopping_.store(true, std::memory_order_relaxed);
    WakeAll();
    more_workers_.NotifyAll();
  }
  threads_.Join();
}

Status WorkerPool::SetWorkers(uint32_t asked, std::string by) {
  const uint32_t workers = asked != 0 ? asked : topology_->cpu_quota();
  if (workers > kWorkersMax) {
    return InvalidArgumentError("{} workers, at most {} may be", workers,
                                kWorkersMax);
  }
  const Status status = UseWorkers(workers);
  if (threads_.CountAt(0) == 0) return status;
  options_.workers =
      asked == 0 && this->workers() == workers ? 0 : this->workers();
  set_by_ = std::move(by);
  read_tuning_.BeginThreads();
  return status;
}

Status WorkerPool::UseWorkers(uint32_t workers) {
  uint32_t there = 0;
  Status status;
  while (there < workers && status.ok()) {
    if (threads_.CountAt(there) == 0) status = threads_.Start(there);
    if (status.ok()) ++there;
  }
  if (there == 0) return status;
  MutexLock lock(&mutex_);
  workers_.store(there, std::memory_order_relaxed);
  // Relaxed: as in NotifyWork. Every worker checks its index again.
  news_.fetch_add(1, std::memory_order_relaxed);
  work_.NotifyAll();
  more_workers_.NotifyAll();
  return status;
}

std::string WorkerPool::Description() const {
  const size_t cpus = topology_->cpus().size();
  const uint32_t times = read_tuning_.threads_of_processor().number();
  const std::string why =
      options_.workers != 0 ? "set by " + set_by_
      : times > 1
          ? Format("auto, {} for each processor, as reads block them: {}",
                   times, read_tuning_.ThreadsReason())
      : workers() < cpus
          ? Format("auto, cpu.max allows {} of {} processors", workers(), cpus)
          : "auto, one for each processor";
  return Format("on {}; {}", topology_->description(), why);
}

std::map<uint32_t, uint32_t> WorkerPool::workers_of_nodes() const {
  const std::vector<Topology::Cpu>& cpus = topology_->cpus();
  std::map<uint32_t, uint32_t> of_nodes;
  for (uint32_t i = 0; i < workers(); ++i) {
    if (const auto node = cpus[i % cpus.size()].node) ++of_nodes[*node];
  }
  return of_nodes;
}

void WorkerPool::Run(WorkerSeat seat, ReadsInFlight* reads) {
  const CrashStack crash_stack;
  // 15 characters at most.
  pthread_setname_np(
      pthread_self(),
      Format("{} {}", seat.job == 0 ? "worker" : "function", seat.thread_index)
          .c_str());
  if (seat.job == 0) {
    const std::vector<Topology::Cpu>& cpus = topology_->cpus();
    const Topology::Cpu& own = cpus[seat.worker_index % cpus.size()];
    if (const Status status = topology_->PinThread(own); status.ok()) {
      seat.node = own.node;
    } else {
      Log<"worker-unpinned">(status.message());
    }
  } else if (const Status status = topology_->KeepThreadToCpus();
             !status.ok()) {
    Log<"worker-cpus">(status.message());
  }
  Worker worker(this, seat, reads_most_, reads);
  seat.turns->SetAsleep(true);
  while (WaitForWork(worker)) {
    seat.turns->SetAsleep(false);
    while (worker.RunOnce()) {
    }
    seat.turns->SetAsleep(true);
  }
}

std::unique_ptr<StorageReader> WorkerPool::MakeWorkerReader(
    uint32_t worker) const {
  const uint32_t tickets = WorkerReads::Tickets(reads_most_);
  if (options_.read_backend != ReadBackend::kPread) {
    auto reader = MakeStorageReader(options_.read_backend, tickets);
    if (reader.ok() && !(*reader)->blocking()) return *std::move(reader);
    // It worked at Start, so memory or descriptors ran out. Plain reads need
    // none.
    if (!reader.ok()) {
      Log<"worker-reads-plainly">(worker, reader.status().message());
    }
  }
  // One ticket: more reads would only wait behind one that hangs.
  return *MakeStorageReader(ReadBackend::kPread, 1);
}

void WorkerPool::Add(std::shared_ptr<Job> job) {
  LogCharges(samples_, *job);
  bool function_workers = false;
  uint64_t number = 0;
  {
    MutexLock lock(&mutex_);
    if (JobAccount* const account = accounts_.Open(job)) {
      const size_t index = account->index;
      claimable_.Set(index, false);
      job->SetOnWork([this, index](bool claimable) {
        claimable_.Set(index, claimable);
        if (claimable) NotifyWork(index);
      });
      std::erase_if(named_, [](const auto& item) {
        return item.second.job.expired() && item.second.dataset.expired();
      });
      number = next_number_++;
      named_[number] = {job->key(), job, job->shared_dataset()};
      function_workers = job->has_function_workers();
      const Source& source = *job->dataset().source;
      ReadRequest first;
      if (source.record_count() > 0) source.Locate(0, &first);
      const bool reads =
          job->stream() == nullptr && first.kind != ReadRequest::Kind::kNone;
      ChangeJobs([&](Entries* jobs) {
        jobs->resize(std::max(jobs->size(), index + 1));
        (*jobs)[index] = {
            job,
            account,
            number,
            function_workers,
            0,
            0,
            function_workers ? std::make_shared<CondVar>() : nullptr,
            reads};
      });
    }
  }
  Status status;
  if (number == 0) {
    status = ResourceExhaustedError(
        "{} jobs are at work, the most there may be", ClaimableJobs::kJobsMax);
  } else if (function_workers) {
    status = function_workers_.Add(job, number, options_.workers);
  }
  if (!status.ok()) job->Fail(status);
}

void WorkerPool::Remove(const Job* job) {
  MutexLock lock(&mutex_);
  // Workers release what they keep of the job's memory; its function workers
  // end.
  WakeAll();
  ChangeJobs([job](Entries* jobs) {
    for (Entry& entry : *jobs) {
      if (entry.job.get() == job) entry = {};
    }
  });
}

void WorkerPool::ChangeJobs(const std::function<void(Entries*)>& change) {
  auto jobs = std::make_shared<Entries>(*jobs_);
  change(jobs.get());
  jobs_ = std::move(jobs);
}

void WorkerPool::NotifyWork(size_t index) {
  MutexLock lock(&mutex_);
  // Relaxed: see news(); the mutex orders it for later claims.
  news_.fetch_add(1, std::memory_order_relaxed);
  WakeOne((*jobs_)[index]);
}

void WorkerPool::WakeOne(const Entry& entry) {
  if (!entry.function_workers && sleeping_ == 0) return;
  CondVar& work = entry.function_workers ? *entry.work : work_;
  // A worker that may not claim a blocking job would sleep on and lose the
  // wake, as would a function worker too many.
  if (any_blocks_ || entry.processes < entry.threads) {
    work.NotifyAll();
  } else {
    work.NotifyOne();
  }
}

void WorkerPool::WakeAll() {
  work_.NotifyAll();
  for (const Entry& entry : *jobs_) {
    if (entry.function_workers) entry.work->NotifyAll();
  }
}

// Called before sleeping_ changes or slept_ns_ is read.
void WorkerPool::CountSleep() {
  const uint64_t now_ns = MonotonicNs();
  slept_ns_ += sleeping_ * (now_ns - slept_until_ns_);
  slept_until_ns_ = now_ns;
}

bool WorkerPool::Serves(const WorkerSeat& seat, bool blocking,
                        const Entry& entry) {
  return entry.job != nullptr &&
         seat.job == (entry.function_workers ? entry.number : 0) &&
         (seat.job == 0 || seat.process < entry.processes) &&
         !(entry.blocks && blocking);
}

bool WorkerPool::AnyClaimable(const WorkerSeat& seat, bool blocking) const {
  bool any = false;
  const Entries& jobs = *jobs_;
  claimable_.ForEach(jobs.size(), [&](size_t index) {
    any |= Serves(seat, blocking, jobs[index]);
  });
  return any;
}

bool WorkerPool::WaitForWork(const Worker& worker) {
  const bool owes = worker.owes();
  const WorkerSeat& seat = worker.seat();
  const bool function_workers = seat.job != 0;
  MutexLock lock(&mutex_);
  for (;;) {
    if (stop_) return false;
    std::shared_ptr<CondVar> own_work;
    if (function_workers) {
      const auto own = std::find_if(
          jobs_->begin(), jobs_->end(),
          [&](const Entry& entry) { return entry.number == seat.job; });
      if (own == jobs_->end()) return false;
      own_work = own->work;
    }
    if (!function_workers && seat.worker_index >= workers()) {
      if (owes) {
        more_workers_.WaitFor(&mutex_, kOweInterval);
        return !stop_;
      }
      ++idle_;
      more_workers_.Wait(&mutex_);
      --idle_;
      continue;
    }
    if (AnyClaimable(seat, worker.blocking())) return true;
    CondVar& news = function_workers ? *own_work : work_;
    // Counts shared workers only.
    CountSleep();
    sleeping_ += !function_workers;
    if (owes) {
      news.WaitFor(&mutex_, kOweInterval);
    } else {
      ++idle_;
      news.Wait(&mutex_);
      --idle_;
    }
    CountSleep();
    sleeping_ -= !function_workers;
    if (owes) return !stop_;
  }
}

void WorkerPool::List(const Entries& jobs, const WorkerSeat& seat,
                      bool blocking, uint64_t now_ns,
                      ServingOrder* order) const {
  order->Begin(now_ns);
  claimable_.ForEach(jobs.size(), [&](size_t index) {
    const Entry& entry = jobs[index];
    if (!Serves(seat, blocking, entry)) return;
    order->Add(entry.reads,
               {order->TurnIn(CandidateOf(*entry.account, *entry.job, now_ns)),
                index});
  });
}

WorkerPool::Claimed WorkerPool::ClaimFair(ServingOrder* order,
                                          const std::vector<const Job*>& but,
                                          const Turn& before,
                                          const WorkerSeat& seat,
                                          bool blocking) {
  std::shared_ptr<const Entries> jobs;
  {
    MutexLock lock(&mutex_);
    if (stop_ || (seat.job == 0 && seat.worker_index >= workers())) {
      return {};
    }
    jobs = jobs_;
  }
  // Without the pool's lock: Wanted takes the job's, which comes first.
  const uint64_t now_ns = MonotonicNs();
  for (bool list = order->expired(now_ns);; list = true) {
    if (list) List(*jobs, seat, blocking, now_ns, order);
    while (const auto next = order->TakeNext(before)) {
      const size_t index = next->index;
      if (index >= jobs->size() || !claimable_.Has(index) ||
          !Serves(seat, blocking, (*jobs)[index])) {
        continue;
      }
      const Entry& entry = (*jobs)[index];
      if (std::binary_search(but.begin(), but.end(), entry.job.get())) continue;
      JobAccount* const account = entry.account;
      // Other workers have served it meanwhile: it may be another's turn.
      const Turn turn =
          order->TurnIn(CandidateOf(*account, *entry.job, now_ns));
      if (turn > next->turn) {
        order->Add(entry.reads, {turn, index});
        continue;
      }
      // A job served meanwhile loses at most one row.
      accounts_.LimitCredit(account);
      if (const Claim claim = entry.job->ClaimRows(seat.node);
          claim.batch != nullptr) {
        if (!order->empty() || claimable_.Has(index)) {
          MutexLock lock(&mutex_);
          WakeOne(entry);
        }
        return {claim, entry.job, account, entry.number};
      }
    }
    if (list || !order->empty()) return {};
  }
}

bool WorkerPool::WantsTick() {
  MutexLock lock(&mutex_);
  return idle_ < threads_.running() ||
         std::any_of(jobs_->begin(), jobs_->end(),
                     [](const Entry& entry) { return entry.job != nullptr; });
}

void WorkerPool::AdaptReads(double seconds) {
  read_tuning_.Saw(seconds, threads_.CountReads(), workers());
  if (!ReadsBlock()) {
    if (read_tuning_.ChangesDepth()) {
      read_depth_.store(read_tuning_.depth().depth(),
                        std::memory_order_relaxed);
    }
    return;
  }
  const uint32_t quota = topology_->cpu_quota();
  if (options_.workers == 0 &&
      read_tuning_.ChangesThreads(kWorkersMax / quota)) {
    const Status status =
        UseWorkers(quota * read_tuning_.threads_of_processor().number());
    if (!status.ok()) Log<"worker-not-started">(status.message());
  }
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

void WorkerPool::ReplaceBlocked(uint64_t now_ns) {
  std::vector<ReadsInFlight::Late> late;
  std::vector<uint32_t> blocked;
  for (const WorkerThreads::Thread& each : threads_.all()) {
    const size_t before = late.size();
    each.reads->List(now_ns, kLateNs, &late);
    // io_uring reads block no worker.
    late.erase(std::remove_if(late.begin() + static_cast<ptrdiff_t>(before),
                              late.end(),
                              [](const auto& read) { return !read.blocked; }),
               late.end());
    if (late.size() > before) blocked.push_back(each.seat.thread_index);
  }
  if (!late.empty() || any_blocks_) {
    MutexLock lock(&mutex_);
    ChangeJobs([&](Entries* jobs) {
      for (Entry& entry : *jobs) {
        entry.blocks = std::any_of(
            late.begin(), late.end(),
            [&](const auto& read) { return read.job == entry.number; });
      }
    });
    any_blocks_ = !late.empty();
    // More jobs may be claimable. Relaxed: as in NotifyWork.
    news_.fetch_add(1, std::memory_order_relaxed);
    WakeAll();
  }
  for (const uint32_t index : blocked) {
    const uint32_t worker_index = threads_.all()[index].seat.worker_index;
    if (worker_index >= workers() || threads_.CountAt(worker_index) > 1) {
      continue;
    }
    Log<"worker-held">(index, threads_.all().size());
    if (const Status status = threads_.Start(worker_index); !status.ok()) {
      Log<"worker-not-started">(status.message());
    }
  }
}

WorkerPool::Named WorkerPool::NamedOf(uint64_t number) {
  MutexLock lock(&mutex_);
  const auto found = named_.find(number);
  return found == named_.end() ? Named() : found->second;
}

std::optional<std::string> WorkerPool::Tick() {
  constexpr uint64_t kMostNs =
      2 * std::chrono::nanoseconds(kTickInterval).count();
  const uint64_t steady_ns = MonotonicNs();
  // Relaxed, both: only this thread writes it.
  const uint64_t now_ns = now_ns_.load(std::memory_order_relaxed) +
                          std::min(steady_ns - ticked_ns_, kMostNs);
  now_ns_.store(now_ns, std::memory_order_relaxed);
  uint64_t slept_ns = 0;
  {
    MutexLock lock(&mutex_);
    CountSleep();
    slept_ns = slept_ns_;
  }
  if (const uint64_t ns = steady_ns - ticked_ns_; ticked_ns_ != 0 && ns > 0) {
    const double seconds = static_cast<double>(ns) * 1e-9;
    // With replaced threads there are more threads than workers.
    const double slept_share = static_cast<double>(slept_ns - slept_seen_ns_) /
                               (static_cast<double>(ns) * workers());
    idle_share_.Add(std::min(slept_share, 1.0), seconds);
    AdaptReads(seconds);
    function_workers_.Adapt(seconds, *samples_, now_ns);
  }
  slept_seen_ns_ = slept_ns;
  ticked_ns_ = steady_ns;

  ReplaceBlocked(now_ns);
  std::vector<ReadsInFlight::Late> late;
  for (const WorkerThreads::Thread& each : threads_.all()) {
    each.reads->List(now_ns, options_.read_timeout_ns, &late);
  }
  for (const ReadsInFlight::Late& read : late) {
    // Without the pool's lock: Fail takes the job's, which comes first.
    const std::shared_ptr<Job> job = NamedOf(read.job).job.lock();
    if (job == nullptr || job->Cancelled()) continue;
    const Status status = DeadlineExceededError(
        "dataset '{}': sample {} in {}: not read in {:.1f} s (read_timeout): "
        "its storage hangs or is too slow",
        job->key().dataset, read.record,
        job->dataset().source->Describe(read.record),
        static_cast<double>(read.ns) * 1e-9);
    job->Fail(status);
  }

  const auto oldest =
      samples_->Oldest(static_cast<uint32_t>(threads_.all().size()));
  // since may be ahead of now: RowMaker::MakeRow.
  if (!oldest || now_ns < oldest->since_ns + options_.decode_timeout_ns) {
    return std::nullopt;
  }
  samples_->Blame(oldest->worker);
  const Named named = NamedOf(oldest->job);
  const std::shared_ptr<const Dataset> dataset = named.dataset.lock();
  return Format(
      "worker {} hangs: dataset '{}': sample {} in {}: not decoded in {:.1f} s "
      "(decode_timeout)",
      oldest->worker, named.key.dataset, oldest->sample.record,
      dataset == nullptr ? "?"
                         : dataset->source->Describe(oldest->sample.record),
      static_cast<double>(now_ns - oldest->since_ns) * 1e-9);
}

std::vector<WorkerPool::LateRead> WorkerPool::LateReads() {
  std::vector<LateRead> reads;
  std::vector<ReadsInFlight::Late> late;
  for (const WorkerThreads::Thread& each : threads_.all()) {
    late.clear();
    each.reads->List(now_ns(), kLateNs, &late);
    for (const ReadsInFlight::Late& read : late) {
      const Named named = NamedOf(read.job);
      const std::shared_ptr<const Dataset> dataset = named.dataset.lock();
      if (dataset == nullptr) continue;  // the read has just arrived
      reads.push_back({each.seat.thread_index, named.key.uid, named.key.name,
                       named.key.dataset,
                       dataset->source->Describe(read.record),
                       static_cast<double>(read.ns) * 1e-9});
    }
  }
  return reads;
}

}  // namespace penstock
