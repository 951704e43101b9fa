// A stack for each process of an exploration. All runs reuse it: 100,000 runs a
// second cannot each map one.
//
// Who runs it: explorer.cc, all fibers on one thread. Exactly one runs at a
// time, and hands over with SwitchTo.
#ifndef TESTS_SIMULATION_FIBER_H_
#define TESTS_SIMULATION_FIBER_H_

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace penstock::simulation {

class Fiber {
 public:
  // The stack the caller runs on.
  Fiber() = default;
  // A new stack; the first switch to it calls entry(argument), which never
  // returns.
  Fiber(void (*entry)(void*), void* argument)
      : entry_(entry), argument_(argument), stack_(new char[kStackBytes]) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    const auto bits = reinterpret_cast<uintptr_t>(this);
    makecontext(&context_, reinterpret_cast<void (*)()>(&Enter), 2,
                static_cast<unsigned>(bits), static_cast<unsigned>(bits >> 32));
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // This one must be the one that runs. swapcontext saves the signal mask, a
  // system call; longjmp does not, but cannot enter a stack for the first time.
  void SwitchTo(Fiber& other) {
    if (_setjmp(registers_) != 0) return;
    if (other.entry_ == nullptr || other.entered_)
      _longjmp(other.registers_, 1);
    other.entered_ = true;
    setcontext(&other.context_);
  }

 private:
  static constexpr size_t kStackBytes = 512 << 10;

  static void Enter(unsigned low, unsigned high) {
    auto* fiber = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(low) |
                                           static_cast<uintptr_t>(high) << 32);
    fiber->entry_(fiber->argument_);
  }

  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::unique_ptr<char[]> stack_;
  ucontext_t context_{};
  jmp_buf registers_;
  bool entered_ = false;
};

}  // namespace penstock::simulation
#endif  // TESTS_SIMULATION_FIBER_H_
