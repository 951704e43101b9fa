// What a forked child of a trainer finds of its parent's ranks and broker:
// nothing that it could harm or be harmed by.
//
// Any thread. What a hook or a guard is over must outlive it.
#ifndef CLIENT_ATTACH_FORK_H_
#define CLIENT_ATTACH_FORK_H_

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock {

// Another number in each forked child than in its parent.
uint64_t ForkGeneration();

// Calls in_child(of) in each forked child before fork returns there: what may
// be called is what a signal handler may call (pthread_atfork; posix_spawn and
// vfork run no hooks, nor the trainer's code).
class ForkHook {
 public:
  using InChild = void (*)(void* of);

  ForkHook(InChild in_child, void* of);
  ForkHook(const ForkHook&) = delete;
  ForkHook& operator=(const ForkHook&) = delete;
  ~ForkHook();

 private:
  friend void CallHooksInChild();
  const InChild in_child_;
  void* const of_;
  ForkHook* next_ = nullptr;
  ForkHook* previous_ = nullptr;
};

// The kernel leaves a guarded mapping out of children (MADV_DONTFORK): they
// would see batches change under them, and keep memory that the broker takes
// for free. A child that touched the hole would be killed, so it is filled with
// zero pages.
class ForkGuard {
 public:
  ForkGuard() = default;
  ForkGuard(void* address, size_t bytes);  // whole pages

 private:
  static void FillHole(void* guard);
  void* address_ = nullptr;
  size_t bytes_ = 0;
  std::optional<ForkHook> hook_;
};

}  // namespace penstock
#endif  // CLIENT_ATTACH_FORK_H_
