#include "broker/base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace penstock {

StatusOr<std::unique_ptr<EventLoop>> EventLoop::Make() {
  std::unique_ptr<EventLoop> loop(new EventLoop());
  loop->epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_) return ErrnoError(errno, "epoll_create1");
  loop->posted_event_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->posted_event_) return ErrnoError(errno, "eventfd");
  PENSTOCK_RETURN_IF_ERROR(
      loop->Watch(loop->posted_event_.get(), [loop = loop.get()](uint32_t) {
        uint64_t count;
        (void)!read(loop->posted_event_.get(), &count, sizeof(count));
        loop->RunPosted();
      }));
  return loop;
}

Status EventLoop::Watch(int fd, std::function<void(uint32_t)> on_ready) {
  epoll_event event{};
  event.events = EPOLLIN;  // EPOLLHUP and EPOLLERR are implicit
  event.data.u64 = next_number_;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError(errno, "epoll_ctl");
  }
  number_of_[fd] = next_number_;
  watched_[next_number_++] =
      std::make_shared<std::function<void(uint32_t)>>(std::move(on_ready));
  return OkStatus();
}

void EventLoop::Unwatch(int fd) {
  const auto found = number_of_.find(fd);
  if (found == number_of_.end()) return;
  watched_.erase(found->second);
  number_of_.erase(found);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::Post(std::function<void()> task) {
  {
    MutexLock lock(&mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  (void)!write(posted_event_.get(), &one, sizeof(one));
}

void EventLoop::RunPosted() {
  std::vector<std::function<void()>> tasks;
  {
    MutexLock lock(&mutex_);
    tasks.swap(posted_);
  }
  for (const std::function<void()>& task : tasks) task();
}

void EventLoop::SetTick(std::chrono::milliseconds interval,
                        std::function<bool()> want,
                        std::function<void()> on_tick) {
  tick_interval_ = interval;
  tick_wanted_ = std::move(want);
  on_tick_ = std::move(on_tick);
}

void EventLoop::Run() {
  using Clock = std::chrono::steady_clock;
  std::array<epoll_event, 64> events;
  Clock::time_point next_tick = Clock::now() + tick_interval_;
  while (!stop_) {
    int timeout_ms = -1;
    if (tick_wanted_ && tick_wanted_()) {
      const Clock::time_point now = Clock::now();
      if (now >= next_tick) {
        on_tick_();
        next_tick = now + tick_interval_;
      }
      timeout_ms = static_cast<int>(
                       std::chrono::duration_cast<std::chrono::milliseconds>(
                           next_tick - now)
                           .count()) +
                   1;
    }
    const int count =
        epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
    for (int i = 0; i < count; ++i) {
      // An earlier callback of this round may have unwatched it. Copied,
      // because epoll_event is packed and its number unaligned.
      const uint64_t number = events[i].data.u64;
      const auto found = watched_.find(number);
      if (found == watched_.end()) continue;
      const auto callback = found->second;
      (*callback)(events[i].events);
    }
    for (const auto& task : std::exchange(after_events_, {})) task();
  }
}

void EventLoop::Stop() { stop_ = true; }

}  // namespace penstock
