#include "client/attach/fork.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <mutex>

namespace penstock {
namespace {

std::atomic<uint64_t> generation{0};
// Held over a fork, so that a child finds the list intact. Neither is ever
// destroyed, because a program may fork while it exits.
std::mutex& HooksMutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}
ForkHook* hooks = nullptr;  // head of the list; guarded by HooksMutex()

}  // namespace

void CallHooksInChild() {
  for (const ForkHook* each = hooks; each != nullptr; each = each->next_) {
    each->in_child_(each->of_);
  }
  // Relaxed: the child has one thread.
  generation.fetch_add(1, std::memory_order_relaxed);
}

namespace {

void FollowForks() {
  static const int registered =
      pthread_atfork([] { HooksMutex().lock(); }, [] { HooksMutex().unlock(); },
                     [] {
                       CallHooksInChild();
                       HooksMutex().unlock();
                     });
  (void)registered;
}

}  // namespace

uint64_t ForkGeneration() {
  FollowForks();
  // Relaxed: only the handler above changes it.
  return generation.load(std::memory_order_relaxed);
}

ForkHook::ForkHook(InChild in_child, void* of) : in_child_(in_child), of_(of) {
  FollowForks();
  const std::lock_guard lock(HooksMutex());
  next_ = hooks;
  if (next_ != nullptr) next_->previous_ = this;
  hooks = this;
}

ForkHook::~ForkHook() {
  const std::lock_guard lock(HooksMutex());
  (previous_ != nullptr ? previous_->next_ : hooks) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

ForkGuard::ForkGuard(void* address, size_t bytes)
    : address_(address), bytes_(bytes) {
  // Every kernel that has memfds supports it (2.6.16).
  (void)madvise(address, bytes, MADV_DONTFORK);
  hook_.emplace(&FillHole, this);
}

void ForkGuard::FillHole(void* guard) {
  const ForkGuard& of = *static_cast<const ForkGuard*>(guard);
  // If this fails the hole remains.
  (void)mmap(of.address_, of.bytes_, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace penstock
