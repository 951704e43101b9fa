// Keeps a forked child of a trainer from using or harming its parent's ranks
// and broker.
//
// Any thread. The object of a hook and the mapping of a guard must outlive it.
#ifndef CLIENT_ATTACH_FORK_H_
#define CLIENT_ATTACH_FORK_H_

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock {

// A number that differs between a process and its forked children.
uint64_t ForkGeneration();

// Calls in_child(of) in each forked child before fork returns there.
// in_child may call only async-signal-safe functions (pthread_atfork).
// posix_spawn and vfork run no hooks, nor the trainer's code.
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

// Keeps a mapping out of forked children (MADV_DONTFORK): they would see
// batches change, and keep memory that the broker considers free. Zero pages
// fill the hole, so that a child that touches it is not killed.
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
