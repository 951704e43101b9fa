#include "broker/io/guarded_copy.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>

namespace penstock {
namespace {

// The copy that this thread is in.
struct Guarded {
  sigjmp_buf back;
  const std::byte* begin = nullptr;  // nullptr: in none
  const std::byte* end = nullptr;
};
thread_local Guarded guarded;

struct sigaction before;

void OnBusError(int, siginfo_t* info, void* context) {
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  // The kernel names the page, or the byte in it.
  const uintptr_t page = reinterpret_cast<uintptr_t>(at) | 4095;
  if (guarded.begin != nullptr &&
      page >= reinterpret_cast<uintptr_t>(guarded.begin) && at < guarded.end) {
    // Here and not by sigsetjmp, where it is a system call for every copy.
    pthread_sigmask(SIG_SETMASK,
                    &static_cast<const ucontext_t*>(context)->uc_sigmask,
                    nullptr);
    siglongjmp(guarded.back, 1);
  }
  // The access is repeated, and meets who handled it before.
  sigaction(SIGBUS, &before, nullptr);
}

bool TakeOver() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  // ONSTACK: whoever handled it before may need it.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, &before) == 0;
}

}  // namespace

bool GuardedCopy(std::byte* to, const std::byte* mapped, size_t bytes) {
  static const bool taken_over = TakeOver();
  if (!taken_over) return false;
  if (sigsetjmp(guarded.back, 0) != 0) {
    guarded.begin = nullptr;
    return false;
  }
  guarded.end = mapped + bytes;
  guarded.begin = mapped;
  // A fault within the copy sees these two.
  __asm__ volatile("" ::: "memory");
  std::memcpy(to, mapped, bytes);
  __asm__ volatile("" ::: "memory");
  guarded.begin = nullptr;
  return true;
}

}  // namespace penstock
