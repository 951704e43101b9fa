#include "broker/workers/worker_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>

#include "broker/base/log.h"
#include "broker/workers/worker.h"
#include "common/deadline.h"

namespace penstock {
namespace {

// Limits of function worker threads, of all users and of one user. They leave
// threads for other users and lines (sample_quarantine.h) for workers.
constexpr uint32_t kFunctionWorkersMax = kSampleLines / 2;
constexpr uint32_t kFunctionWorkersOfUserMax = kSampleLines / 8;
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
  std::unique_ptr<WorkerPool> pool(new WorkerPool());
  pool->topology_ = &topology;
  pool->options_ = options;
  pool->depth_ = ReadDepth(options.read_depth);
  pool->reads_most_ = pool->depth_.most();
  pool->read_depth_.store(pool->depth_.depth(), std::memory_order_relaxed);
  const uint32_t workers =
      options.workers != 0 ? options.workers : topology.cpu_quota();
  if (workers > kWorkersMax) {
    return InvalidArgumentError("{} workers, at most {} may be", workers,
                                kWorkersMax);
  }
  static_assert(2 * kWorkersMax <= kSampleLines);
  pool->workers_.store(workers, std::memory_order_relaxed);
  if (options.samples == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(pool->own_samples_, SampleQuarantine::Open(""));
    pool->options_.samples = pool->own_samples_.get();
  }
  // Makes one reader to detect a broken machine before any thread starts. Each
  // worker makes its own on its thread.
  PENSTOCK_ASSIGN_OR_RETURN(pool->read_backend_, CheckReads(options));
  for (uint32_t i = 0; i < workers; ++i) {
    PENSTOCK_RETURN_IF_ERROR(pool->StartThread(i));
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
  for (Thread& each : threads_) {
    if (each.thread.joinable()) each.thread.join();
  }
}

size_t WorkerPool::ThreadsAt(uint32_t worker_index) const {
  return static_cast<size_t>(std::count_if(
      threads_.begin(), threads_.end(), [worker_index](const auto& each) {
        return each.worker_index == worker_index;
      }));
}

Status WorkerPool::SetWorkers(uint32_t asked, std::string by) {
  const uint32_t workers = asked != 0 ? asked : topology_->cpu_quota();
  if (workers > kWorkersMax) {
    return InvalidArgumentError("{} workers, at most {} may be", workers,
                                kWorkersMax);
  }
  const Status status = UseWorkers(workers);
  if (ThreadsAt(0) == 0) return status;
  options_.workers =
      asked == 0 && this->workers() == workers ? 0 : this->workers();
  set_by_ = std::move(by);
  threads_of_processor_ = Tuner({1, kThreadsOfProcessorMax, true});
  return status;
}

Status WorkerPool::UseWorkers(uint32_t workers) {
  uint32_t there = 0;
  Status status;
  while (there < workers && status.ok()) {
    if (ThreadsAt(there) == 0) status = StartThread(there);
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
  const uint32_t times = threads_of_processor_.number();
  const std::string why =
      options_.workers != 0 ? "set by " + set_by_
      : times > 1
          ? Format("auto, {} for each processor, as reads block them: {}",
                   times, threads_of_processor_.Reason(BytesPerSecondText))
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

Status WorkerPool::StartThread(uint32_t worker_index, uint64_t job,
                               uint32_t uid, uint32_t number) {
  auto index = static_cast<uint32_t>(threads_.size());
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    // Acquire: the thread has done everything before; joining does not wait.
    if (threads_[i].ended != nullptr &&
        threads_[i].ended->load(std::memory_order_acquire)) {
      if (threads_[i].thread.joinable()) threads_[i].thread.join();
      index = i;
      MutexLock lock(&mutex_);
      --idle_;
      break;
    }
  }
  if (index >= kSampleLines) {
    return ResourceExhaustedError("there are {} threads already", index);
  }
  if (index == threads_.size()) threads_.emplace_back();
  Thread& added = threads_[index];
  if (added.reads != nullptr) {
    bytes_seen_ -= added.reads->bytes();
    waited_seen_ns_ -= added.reads->waited_ns();
    reads_seen_ -= added.reads->ended();
  }
  added.worker_index = worker_index;
  added.uid = uid;
  added.job = job;
  added.number = number;
  added.reads =
      std::make_unique<ReadsInFlight>(WorkerReads::Entries(reads_most_));
  added.turns = std::make_unique<WorkerTurns>();
  added.ended = job == 0 ? nullptr : std::make_unique<std::atomic<bool>>(false);
  try {
    added.thread = std::thread(
        [this,
         seat =
             WorkerSeat{
                 index, worker_index, job, number, {}, added.turns.get()},
         reads = added.reads.get(), ended = added.ended.get()] {
          Run(seat, reads);
          if (ended == nullptr) return;
          MutexLock lock(&mutex_);
          ++idle_;
          // Release: pairs with the acquire in StartThread.
          ended->store(true, std::memory_order_release);
        });
  } catch (const std::system_error& error) {
    // The next thread reuses its entry.
    added.ended = std::make_unique<std::atomic<bool>>(true);
    added.worker_index = kNoWorkerIndex;
    MutexLock lock(&mutex_);
    ++idle_;
    return ResourceExhaustedError("cannot start worker {}: {}", index,
                                  error.what());
  }
  return OkStatus();
}

StatusOr<uint32_t> WorkerPool::StartFunctionWorkers(const JobKey& key,
                                                    uint64_t number,
                                                    uint32_t from,
                                                    uint32_t to) {
  uint32_t of_all = 0;
  uint32_t of_user = 0;
  for (const Thread& each : threads_) {
    const bool function_workers = each.ended != nullptr &&
                                  // Relaxed: counted only.
                                  !each.ended->load(std::memory_order_relaxed);
    of_all += function_workers;
    of_user += function_workers && each.uid == key.uid;
  }
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
    status = StartThread(kNoWorkerIndex, number, key.uid, at);
    at += status.ok();
  }
  // Fewer are slower; with none the job would never end.
  if (at == 0) return status;
  return at;
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
  LogCharges(options_.samples, *job);
  bool function_workers = false;
  uint64_t number = 0;
  {
    MutexLock lock(&mutex_);
    const size_t index = OpenAccount(job);
    if (index < ClaimableJobs::kJobsMax) {
      job->SetOnWork([this, index](bool claimable) {
        claimable_.Set(index, claimable);
        if (claimable) NotifyWork(index);
      });
      std::erase_if(named_, [](const auto& item) {
        return item.second.job.expired() && item.second.dataset.expired();
      });
      number = next_number_++;
      named_[number] = {job->key(), job, SharedDataset(job)};
      function_workers = job->has_function_workers();
      const Source& source = *job->dataset().source;
      ReadRequest first;
      if (source.record_count() > 0) source.Locate(0, &first);
      const bool reads =
          job->stream() == nullptr && first.kind != ReadRequest::Kind::kNone;
      JobAccount& account = accounts_[index];
      ChangeJobs([&](Entries* jobs) {
        jobs->resize(std::max(jobs->size(), index + 1));
        (*jobs)[index] = {
            job,
            &account,
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
    status = AddProcesses(job, number);
  }
  if (!status.ok()) job->Fail(status);
}

// Of a user who has a job, or had one lately: debts of time are kept.
UserAccount* WorkerPool::AccountOf(uint32_t uid) {
  UserAccount* found = nullptr;
  for (UserAccount& user : users_) {
    if (user.uid == uid) return &user;
    const bool free = std::none_of(
        accounts_.begin(), accounts_.end(), [&](const JobAccount& account) {
          return account.user == &user && !account.job.expired();
        });
    if (free && found == nullptr) found = &user;
  }
  // One for each job is enough.
  if (found == nullptr || users_.size() < ClaimableJobs::kJobsMax) {
    found = &users_.emplace_back();
    found->number = users_.size() - 1;
  }
  found->uid = uid;
  found->virtual_time.Set(present_.ns());
  return found;
}

size_t WorkerPool::OpenAccount(const std::shared_ptr<Job>& job) {
  const auto free = std::find_if(
      accounts_.begin(), accounts_.end(),
      [](const JobAccount& account) { return account.job.expired(); });
  const auto index = static_cast<size_t>(free - accounts_.begin());
  if (index == ClaimableJobs::kJobsMax) return index;
  if (free == accounts_.end()) accounts_.emplace_back();
  JobAccount& account = accounts_[index];
  account.user = AccountOf(job->key().uid);
  account.shares = !job->has_function_workers();
  // A new job starts at the present, without debt or credit.
  account.virtual_time.Set(account.user->present.ns());
  account.wanted_seen_ns.store(0, std::memory_order_relaxed);
  account.job = job;
  claimable_.Set(index, false);
  return index;
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
  any_blocks_ || entry.processes < entry.threads ? work.NotifyAll()
                                                 : work.NotifyOne();
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
         (seat.job == 0 || seat.number < entry.processes) &&
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
      account->user->virtual_time.LimitCredit(present_);
      account->virtual_time.LimitCredit(account->user->present);
      if (const Claim claim = entry.job->ClaimRows(seat.node);
          claim.batch != nullptr) {
        if (!order->empty() || claimable_.Has(index)) {
          MutexLock lock(&mutex_);
          WakeOne(entry);
        }
        return {claim, entry.job, account, index, entry.number};
      }
    }
    if (list || !order->empty()) return {};
  }
}

bool WorkerPool::WantsTick() {
  MutexLock lock(&mutex_);
  return idle_ < threads_.size() ||
         std::any_of(jobs_->begin(), jobs_->end(),
                     [](const Entry& entry) { return entry.job != nullptr; });
}

void WorkerPool::ReplaceBlocked(uint64_t now_ns) {
  std::vector<ReadsInFlight::Late> late;
  std::vector<uint32_t> blocked;
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    const size_t before = late.size();
    threads_[i].reads->List(now_ns, kLateNs, &late);
    // io_uring reads block no worker.
    late.erase(std::remove_if(late.begin() + static_cast<ptrdiff_t>(before),
                              late.end(),
                              [](const auto& read) { return !read.blocked; }),
               late.end());
    if (late.size() > before) blocked.push_back(i);
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
    const uint32_t worker_index = threads_[index].worker_index;
    if (worker_index >= workers() || ThreadsAt(worker_index) > 1) continue;
    Log<"worker-held">(index, threads_.size());
    if (const Status status = StartThread(worker_index); !status.ok()) {
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
    // With replaced threads there are more threads than workers.
    const double slept_share = static_cast<double>(slept_ns - slept_seen_ns_) /
                               (static_cast<double>(ns) * workers());
    idle_share_.Add(std::min(slept_share, 1.0), static_cast<double>(ns) * 1e-9);
    AdaptReads(ns);
    AdaptProcesses(static_cast<double>(ns) * 1e-9);
  }
  slept_seen_ns_ = slept_ns;
  ticked_ns_ = steady_ns;

  ReplaceBlocked(now_ns);
  std::vector<ReadsInFlight::Late> late;
  for (const Thread& each : threads_) {
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
      options_.samples->Oldest(static_cast<uint32_t>(threads_.size()));
  // since may be ahead of now: RowMaker::MakeRow.
  if (!oldest || now_ns < oldest->since_ns + options_.decode_timeout_ns) {
    return std::nullopt;
  }
  options_.samples->Blame(oldest->worker);
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

std::optional<uint32_t> WorkerPool::StandsStill() {
  std::optional<uint32_t> still;
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    Thread& each = threads_[i];
    if (each.turns == nullptr) continue;
    const uint64_t turns = each.turns->turns();
    const bool excused = each.turns->asleep() || options_.samples->Of(i) ||
                         each.reads->blocked_on()->load(
                             std::memory_order_relaxed) != ReadsInFlight::kNone;
    if (turns == each.turns_seen && !excused) still = i;
    each.turns_seen = turns;
  }
  return still;
}

FunctionWorkersUse WorkerPool::UseOfFunctionWorkers(const Job& job) {
  FunctionWorkersUse use;
  if (!job.has_function_workers()) return use;
  uint64_t number = 0;
  {
    MutexLock lock(&mutex_);
    for (const Entry& entry : *jobs_) {
      if (entry.job.get() == &job) number = entry.number;
    }
  }
  if (number == 0) return use;
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    if (threads_[i].job != number) continue;
    ++use.threads;
    const auto row = options_.samples->Of(i);
    if (!row || row->job != number) continue;
    ++use.busy;
    // since is ahead by the program's allowed wait: RowMaker::MakeRow.
    const uint64_t ns = now_ns() + job.dataset().wait_ns() - row->since_ns;
    if (ns < use.longest_ns) continue;
    use.longest_ns = ns;
    use.longest_record = row->sample.record;
  }
  return use;
}

std::vector<WorkerPool::LateRead> WorkerPool::LateReads() {
  std::vector<LateRead> reads;
  std::vector<ReadsInFlight::Late> late;
  for (uint32_t worker = 0; worker < threads_.size(); ++worker) {
    late.clear();
    threads_[worker].reads->List(now_ns(), kLateNs, &late);
    for (const ReadsInFlight::Late& read : late) {
      const Named named = NamedOf(read.job);
      const std::shared_ptr<const Dataset> dataset = named.dataset.lock();
      if (dataset == nullptr) continue;  // the read has just arrived
      reads.push_back({worker, named.key.uid, named.key.name, named.key.dataset,
                       dataset->source->Describe(read.record),
                       static_cast<double>(read.ns) * 1e-9});
    }
  }
  return reads;
}

}  // namespace penstock
