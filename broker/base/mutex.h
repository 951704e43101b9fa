// std::mutex with Abseil's thread-safety annotations.
//
// Not absl::Mutex: Debian compiles it without ThreadSanitizer, which then sees
// no ordering through it and reports every guarded access as a race.
#ifndef BROKER_BASE_MUTEX_H_
#define BROKER_BASE_MUTEX_H_

#include <absl/base/thread_annotations.h>
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace penstock {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  // For the static analysis only, in a lambda that runs while the mutex is
  // held.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* mutex_;
};

class CondVar {
 public:
  // May return without a notification: wait in a loop on the condition.
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // Not condition_.wait: GCC 12's needs a libstdc++ that RHEL 9 lacks.
    pthread_cond_wait(condition_.native_handle(),
                      mutex->mutex_.native_handle());
  }
  // Like Wait, but also returns after `limit`.
  void WaitFor(Mutex* mutex, std::chrono::nanoseconds limit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait_for(lock, limit);
    lock.release();
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace penstock
#endif  // BROKER_BASE_MUTEX_H_
