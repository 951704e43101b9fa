// What a forked child of a trainer finds of its parent's ranks: nothing that it
// could harm or be harmed by.
//
// The kernel leaves a guarded mapping out of children (MADV_DONTFORK): they
// would see batches change under them, and keep memory that the broker takes
// for free. A child that touched the hole would be killed, so it is filled with
// zero pages before fork returns there (pthread_atfork; posix_spawn and vfork
// run no handlers, nor the trainer's code).
//
// Any thread. What a guard is over must outlive it.
#ifndef CLIENT_FORK_H_
#define CLIENT_FORK_H_

#include <cstddef>
#include <cstdint>

namespace penstock {

// Another number in each forked child than in its parent.
uint64_t ForkGeneration();

class ForkGuard {
 public:
  ForkGuard() = default;
  ForkGuard(void* address, size_t bytes);  // whole pages
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard();

 private:
  friend void FillInChild();
  void* address_ = nullptr;
  size_t bytes_ = 0;
  ForkGuard* next_ = nullptr;
  ForkGuard* previous_ = nullptr;
};

}  // namespace penstock
#endif  // CLIENT_FORK_H_
