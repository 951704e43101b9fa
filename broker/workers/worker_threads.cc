#include "broker/workers/worker_threads.h"

#include <algorithm>
#include <system_error>

namespace penstock {

Status WorkerThreads::Start(uint32_t worker_index, uint64_t job, uint32_t uid,
                            uint32_t process) {
  auto index = static_cast<uint32_t>(threads_.size());
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    // Acquire: the thread has done everything before; joining does not wait.
    if (threads_[i].ended != nullptr &&
        threads_[i].ended->load(std::memory_order_acquire)) {
      if (threads_[i].thread.joinable()) threads_[i].thread.join();
      index = i;
      ended_.fetch_sub(1, std::memory_order_relaxed);
      break;
    }
  }
  if (index >= kSampleLines) {
    return ResourceExhaustedError("there are {} threads already", index);
  }
  if (index == threads_.size()) threads_.emplace_back();
  Thread& added = threads_[index];
  if (added.reads != nullptr) {
    reused_.bytes += added.reads->bytes();
    reused_.waited_ns += added.reads->waited_ns();
    reused_.ended += added.reads->ended();
  }
  added.uid = uid;
  added.reads = std::make_unique<ReadsInFlight>(entries_);
  added.turns = std::make_unique<WorkerTurns>();
  added.ended = job == 0 ? nullptr : std::make_unique<std::atomic<bool>>(false);
  added.seat = {index, worker_index, job, process, {}, added.turns.get()};
  try {
    added.thread =
        std::thread([this, seat = added.seat, reads = added.reads.get(),
                     ended = added.ended.get()] {
          run_(seat, reads);
          if (ended == nullptr) return;
          ended_.fetch_add(1, std::memory_order_relaxed);
          // Release: pairs with the acquire above.
          ended->store(true, std::memory_order_release);
        });
  } catch (const std::system_error& error) {
    // The next thread reuses its entry.
    added.ended = std::make_unique<std::atomic<bool>>(true);
    added.seat.worker_index = kNoWorkerIndex;
    ended_.fetch_add(1, std::memory_order_relaxed);
    return ResourceExhaustedError("cannot start worker {}: {}", index,
                                  error.what());
  }
  return OkStatus();
}

void WorkerThreads::Join() {
  for (Thread& each : threads_) {
    if (each.thread.joinable()) each.thread.join();
  }
}

size_t WorkerThreads::CountAt(uint32_t worker_index) const {
  return static_cast<size_t>(std::count_if(
      threads_.begin(), threads_.end(), [worker_index](const Thread& each) {
        return each.seat.worker_index == worker_index;
      }));
}

std::pair<uint32_t, uint32_t> WorkerThreads::CountFunctionWorkers(
    uint32_t uid) const {
  uint32_t of_all = 0;
  uint32_t of_user = 0;
  for (const Thread& each : threads_) {
    const bool function_worker = each.ended != nullptr &&
                                 // Relaxed: counted only.
                                 !each.ended->load(std::memory_order_relaxed);
    of_all += function_worker;
    of_user += function_worker && each.uid == uid;
  }
  return {of_all, of_user};
}

WorkerThreads::Reads WorkerThreads::CountReads() const {
  Reads sums = reused_;
  for (const Thread& each : threads_) {
    sums.bytes += each.reads->bytes();
    sums.waited_ns += each.reads->waited_ns();
    sums.ended += each.reads->ended();
    sums.in_flight += each.reads->in_flight();
  }
  return sums;
}

std::optional<uint32_t> WorkerThreads::StandsStill(
    const SampleQuarantine& samples) {
  std::optional<uint32_t> still;
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    Thread& each = threads_[i];
    const uint64_t turns = each.turns->turns();
    const bool excused = each.turns->asleep() || samples.Of(i) ||
                         each.reads->blocked_on()->load(
                             std::memory_order_relaxed) != ReadsInFlight::kNone;
    if (turns == each.turns_seen && !excused) still = i;
    each.turns_seen = turns;
  }
  return still;
}

}  // namespace penstock
