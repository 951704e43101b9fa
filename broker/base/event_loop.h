// The control thread's loop: waits for descriptors and runs their callbacks and
// tasks posted by other threads. The whole control plane runs on it, so its
// data need no lock.
#ifndef BROKER_BASE_EVENT_LOOP_H_
#define BROKER_BASE_EVENT_LOOP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "broker/base/mutex.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class EventLoop {
 public:
  static StatusOr<std::unique_ptr<EventLoop>> Make();

  // Calls on_ready(epoll events) while fd is readable or hung up. The caller
  // keeps the fd and must unwatch it before closing it.
  Status Watch(int fd, std::function<void(uint32_t events)> on_ready);
  void Unwatch(int fd);

  // Runs task on the loop's thread, soon. Any thread may call it.
  void Post(std::function<void()> task);

  // Runs task after this round's events are handled, so that many events can
  // share one action. Call from a callback on the loop's thread.
  void AfterEvents(std::function<void()> task) {
    after_events_.push_back(std::move(task));
  }

  // Calls on_tick about every interval while want() is true.
  void SetTick(std::chrono::milliseconds interval, std::function<bool()> want,
               std::function<void()> on_tick);

  void Run();   // until Stop
  void Stop();  // from the loop's thread

 private:
  EventLoop() = default;
  void RunPosted();

  Fd epoll_;
  Fd posted_event_;
  bool stop_ = false;
  // Keyed by a number that is never reused: an event queued for a closed
  // descriptor must not reach a new one with the same fd. shared_ptr: a
  // callback may unwatch itself while it runs.
  std::map<uint64_t, std::shared_ptr<std::function<void(uint32_t)>>> watched_;
  std::map<int, uint64_t> number_of_;
  uint64_t next_number_ = 1;
  std::chrono::milliseconds tick_interval_{0};
  std::function<bool()> tick_wanted_;
  std::function<void()> on_tick_;
  std::vector<std::function<void()>> after_events_;

  Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock
#endif  // BROKER_BASE_EVENT_LOOP_H_
