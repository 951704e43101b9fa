#include "broker/index/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock {
namespace {

// Opening a file of a network file system is mostly waiting: more threads than
// cores pay.
constexpr unsigned kThreadsMin = 4;
constexpr unsigned kThreadsMax = 64;

}  // namespace

Status InParallel(size_t count, const std::function<Status(size_t i)>& work,
                  size_t threads_min) {
  // Relaxed, both: claims need only be unique, the join publishes what was
  // done.
  std::atomic<size_t> claimed{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  size_t first = count;  // with an error; guarded by mutex, as is status
  Status status;
  const auto run = [&] {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = claimed.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      Status done = work(i);
      if (done.ok()) continue;
      failed.store(true, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(mutex);
      if (i > first) continue;
      first = i;
      status = std::move(done);
    }
  };
  const size_t wanted = std::max<size_t>(
      threads_min, std::clamp(std::thread::hardware_concurrency(), kThreadsMin,
                              kThreadsMax));
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < std::min(wanted, count); ++i) {
      threads.emplace_back(run);
    }
  } catch (const std::system_error&) {
    // A limit on threads: this thread and those that started do all the work.
  }
  run();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace penstock
