// Shows whether a worker's loop goes on, for the watchdog. The worker writes,
// any thread reads.
#ifndef BROKER_WORKERS_WORKER_TURNS_H_
#define BROKER_WORKERS_WORKER_TURNS_H_

#include <atomic>
#include <cstdint>

namespace penstock {

// Relaxed throughout: only compared with former values.
class WorkerTurns {
 public:
  // The worker, the only writer: once per turn of its loop; before and after it
  // sleeps because there is no work.
  void Turn() {
    turns_.store(turns_.load(std::memory_order_relaxed) + 1,
                 std::memory_order_relaxed);
  }
  void SetAsleep(bool asleep) {
    asleep_.store(asleep, std::memory_order_relaxed);
  }

  bool asleep() const { return asleep_.load(std::memory_order_relaxed); }
  uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> turns_{0};
  std::atomic<bool> asleep_{false};
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_TURNS_H_
