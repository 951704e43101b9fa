#include "broker/base/deferred_destruction.h"

#include <pthread.h>

#include <utility>

namespace penstock {

DeferredDestruction::DeferredDestruction() : thread_([this] { Run(); }) {}

DeferredDestruction::~DeferredDestruction() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void DeferredDestruction::Destroy(std::shared_ptr<void> thing) {
  MutexLock lock(&mutex_);
  things_.push_back(std::move(thing));
  ++handed_;
  changed_.NotifyAll();
}

void DeferredDestruction::Close(std::vector<Fd> fds) {
  if (fds.empty()) return;
  Destroy(std::make_shared<std::vector<Fd>>(std::move(fds)));
}

bool DeferredDestruction::Finish(std::chrono::seconds longest) {
  const auto end = std::chrono::steady_clock::now() + longest;
  MutexLock lock(&mutex_);
  const uint64_t handed = handed_;
  if (destroyed_ >= handed) return false;
  while (destroyed_ < handed) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    changed_.WaitFor(&mutex_, left);
  }
  return true;
}

void DeferredDestruction::Run() {
  pthread_setname_np(pthread_self(), "destroyer");
  for (;;) {
    std::vector<std::shared_ptr<void>> things;
    {
      MutexLock lock(&mutex_);
      while (things_.empty() && !stop_) changed_.Wait(&mutex_);
      if (things_.empty()) return;
      things.swap(things_);
    }
    const size_t count = things.size();
    things.clear();
    MutexLock lock(&mutex_);
    destroyed_ += count;
    changed_.NotifyAll();
  }
}

}  // namespace penstock
