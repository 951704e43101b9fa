#include "client/fork.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <mutex>

namespace penstock {
namespace {

std::atomic<uint64_t> generation{0};
// Held over a fork, so that a child finds the list whole. Neither is ever
// destroyed: a program may fork while it ends.
std::mutex& GuardsMutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}
ForkGuard* guards = nullptr;  // the first; guarded by GuardsMutex()

}  // namespace

// Between fork and its return in the child: calls the kernel, nothing else.
void FillInChild() {
  for (const ForkGuard* each = guards; each != nullptr; each = each->next_) {
    // Where this fails the hole stays one.
    (void)mmap(each->address_, each->bytes_, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
  // Relaxed: the child has one thread.
  generation.fetch_add(1, std::memory_order_relaxed);
}

namespace {

void FollowForks() {
  static const int registered = pthread_atfork([] { GuardsMutex().lock(); },
                                               [] { GuardsMutex().unlock(); },
                                               [] {
                                                 FillInChild();
                                                 GuardsMutex().unlock();
                                               });
  (void)registered;
}

}  // namespace

uint64_t ForkGeneration() {
  FollowForks();
  // Relaxed: changed by nobody but the handler above.
  return generation.load(std::memory_order_relaxed);
}

ForkGuard::ForkGuard(void* address, size_t bytes)
    : address_(address), bytes_(bytes) {
  FollowForks();
  // Refused by no kernel that maps memfds (2.6.16).
  (void)madvise(address, bytes, MADV_DONTFORK);
  const std::lock_guard lock(GuardsMutex());
  next_ = guards;
  if (next_ != nullptr) next_->previous_ = this;
  guards = this;
}

ForkGuard::~ForkGuard() {
  if (address_ == nullptr) return;
  const std::lock_guard lock(GuardsMutex());
  (previous_ != nullptr ? previous_->next_ : guards) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

}  // namespace penstock
