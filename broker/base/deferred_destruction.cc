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
  changed_.NotifyAll();
}

void DeferredDestruction::Close(std::vector<Fd> fds) {
  if (fds.empty()) return;
  Destroy(std::make_shared<std::vector<Fd>>(std::move(fds)));
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
  }
}

}  // namespace penstock
