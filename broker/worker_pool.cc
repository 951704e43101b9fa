#include "broker/worker_pool.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>

#include "broker/worker.h"

namespace penstock {

StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Start(
    const Topology& topology, const WorkerOptions& options) {
  std::unique_ptr<WorkerPool> pool(new WorkerPool());
  pool->topology_ = &topology;
  pool->options_ = options;
  const uint32_t workers =
      options.workers != 0 ? options.workers : topology.cpu_quota();
  // One reader is made here to learn of a broken machine before any thread is
  // started; each worker makes its own on its own thread.
  auto probe = MakeReader(options.read_backend, options.read_depth);
  if (!probe.ok()) return probe.status();
  pool->read_backend_ = (*probe)->backend();
  for (uint32_t i = 0; i < workers; ++i) {
    pool->threads_.emplace_back([pool = pool.get(), i] { pool->Run(i); });
  }
  return pool;
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    work_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Run(uint32_t index) {
  pthread_setname_np(pthread_self(), fmt::format("worker {}", index).c_str());
  const std::vector<Topology::Cpu>& cpus = topology_->cpus();
  if (const Status status = topology_->PinThread(cpus[index % cpus.size()]);
      !status.ok()) {
    spdlog::warn("{}; it runs unpinned", status.message());
  }
  auto reader = MakeReader(options_.read_backend, options_.read_depth);
  if (!reader.ok()) {
    // Worked a moment ago: out of memory or descriptors. Plain reads need none.
    spdlog::warn("worker {}: {}; it reads with pread", index,
                 reader.status().message());
    reader = MakeReader(ReadBackend::kPread, options_.read_depth);
  }
  Worker worker(this, *std::move(reader));
  while (WaitForWork()) {
    while (worker.RunOnce()) {
    }
  }
}

void WorkerPool::Add(std::shared_ptr<Job> job) {
  job->SetOnWork([this] { NotifyWork(); });
  MutexLock lock(&mutex_);
  // A newcomer starts at the present: it owes nothing and is owed nothing.
  job->virtual_time_ns.store(virtual_now_ns_, std::memory_order_relaxed);
  jobs_.push_back(std::move(job));
}

void WorkerPool::Remove(const Job* job) {
  MutexLock lock(&mutex_);
  std::erase_if(jobs_, [job](const auto& item) { return item.get() == job; });
}

void WorkerPool::NotifyWork() {
  MutexLock lock(&mutex_);
  if (sleeping_ > 0) work_.NotifyAll();
}

bool WorkerPool::WaitForWork() {
  MutexLock lock(&mutex_);
  for (;;) {
    if (stop_) return false;
    if (std::any_of(jobs_.begin(), jobs_.end(),
                    [](const auto& job) { return job->MayHaveWork(); })) {
      return true;
    }
    ++sleeping_;
    work_.Wait(&mutex_);
    --sleeping_;
  }
}

Claim WorkerPool::ClaimFair(std::shared_ptr<Job>* job) {
  for (;;) {
    std::shared_ptr<Job> next;
    {
      MutexLock lock(&mutex_);
      if (stop_) return {};
      uint64_t least_ns = UINT64_MAX;
      for (const std::shared_ptr<Job>& candidate : jobs_) {
        if (!candidate->MayHaveWork()) continue;
        // Relaxed: a slightly old time is as fair.
        const uint64_t time_ns =
            candidate->virtual_time_ns.load(std::memory_order_relaxed);
        if (time_ns < least_ns) {
          least_ns = time_ns;
          next = candidate;
        }
      }
      if (next == nullptr) return {};
      // A job that slept does not get back the time it did not need.
      constexpr uint64_t kCreditNs = 100'000'000;
      if (least_ns + kCreditNs < virtual_now_ns_) {
        next->virtual_time_ns.store(virtual_now_ns_ - kCreditNs,
                                    std::memory_order_relaxed);
      }
      virtual_now_ns_ = std::max(virtual_now_ns_, least_ns);
    }
    const Claim claim = next->ClaimRows();
    if (claim.share != nullptr) {
      *job = std::move(next);
      return claim;
    }
  }
}

}  // namespace penstock
