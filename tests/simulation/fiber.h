// A stack for each process of an exploration. All runs reuse it: 100,000 runs a
// second cannot each map one.
//
// Who runs it: explorer.cc, all fibers on one thread. Exactly one runs at a
// time, and hands over with SwitchTo. Each switch is reported to the
// sanitizers.
#ifndef TESTS_SIMULATION_FIBER_H_
#define TESTS_SIMULATION_FIBER_H_

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#define PENSTOCK_FIBER_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define PENSTOCK_FIBER_TSAN 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PENSTOCK_FIBER_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define PENSTOCK_FIBER_TSAN 1
#endif
#endif

#ifdef PENSTOCK_FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef PENSTOCK_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace penstock::simulation {

class Fiber {
 public:
  // The stack the caller runs on.
  Fiber() {
#ifdef PENSTOCK_FIBER_TSAN
    tsan_ = __tsan_get_current_fiber();
#endif
  }
  // A new stack; the first switch to it calls entry(argument), which never
  // returns.
  Fiber(void (*entry)(void*), void* argument)
      : entry_(entry), argument_(argument), stack_(new char[kStackBytes]) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    bottom_ = stack_.get();
    bytes_ = kStackBytes;
    const auto bits = reinterpret_cast<uintptr_t>(this);
    makecontext(&context_, reinterpret_cast<void (*)()>(&Enter), 2,
                static_cast<unsigned>(bits), static_cast<unsigned>(bits >> 32));
#ifdef PENSTOCK_FIBER_TSAN
    tsan_ = __tsan_create_fiber(0);
#endif
  }
  ~Fiber() {
#ifdef PENSTOCK_FIBER_TSAN
    if (stack_) __tsan_destroy_fiber(tsan_);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // This one must be the one that runs.
  void SwitchTo(Fiber& other) {
    other.from_ = this;
#ifdef PENSTOCK_FIBER_ASAN
    __sanitizer_start_switch_fiber(&asan_, other.bottom_, other.bytes_);
#endif
#ifdef PENSTOCK_FIBER_TSAN
    __tsan_switch_to_fiber(other.tsan_, 0);
#endif
    Jump(other);
    Arrived(asan_);
  }

 private:
  // A broker's code under AddressSanitizer needs several times its own.
  static constexpr size_t kStackBytes = 512 << 10;

#if defined(PENSTOCK_FIBER_ASAN) || defined(PENSTOCK_FIBER_TSAN)
  // The sanitizers follow no longjmp to another stack.
  void Jump(Fiber& other) { swapcontext(&context_, &other.context_); }
#else
  // swapcontext saves the signal mask, a system call; longjmp does not, but
  // cannot enter a stack for the first time.
  void Jump(Fiber& other) {
    if (_setjmp(registers_) != 0) return;
    if (other.entry_ == nullptr || other.entered_)
      _longjmp(other.registers_, 1);
    other.entered_ = true;
    setcontext(&other.context_);
  }
  jmp_buf registers_;
  bool entered_ = false;
#endif

  void Arrived([[maybe_unused]] void* asan) {
#ifdef PENSTOCK_FIBER_ASAN
    __sanitizer_finish_switch_fiber(asan, &from_->bottom_, &from_->bytes_);
#endif
  }

  static void Enter(unsigned low, unsigned high) {
    auto* fiber = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(low) |
                                           static_cast<uintptr_t>(high) << 32);
    fiber->Arrived(nullptr);
    fiber->entry_(fiber->argument_);
  }

  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::unique_ptr<char[]> stack_;
  ucontext_t context_{};
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  Fiber* from_ = nullptr;  // that switched to this one last
  [[maybe_unused]] void* asan_ = nullptr;
  [[maybe_unused]] void* tsan_ = nullptr;
};

}  // namespace penstock::simulation
#endif  // TESTS_SIMULATION_FIBER_H_
