#include "broker/io/cached_range.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>

#include "broker/io/remote_file.h"

namespace penstock {
namespace {

// Larger records gain nothing.
constexpr uint64_t kBytesMax = 1 << 20;

bool MayBeCached(const ReadPart& part) {
  return part.kind == ReadPart::Kind::kRange && part.nowait &&
         part.align == 0 && part.bytes <= kBytesMax &&
         (part.remote == nullptr ||
          part.remote->Keeps(part.offset, part.bytes));
}

// Calls with each part until one gives false.
template <typename Each>
bool AllParts(const ReadRequest& request, Each each) {
  return each(request) &&
         std::all_of(request.more.begin(), request.more.end(), each);
}

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

std::optional<uint64_t> CachedBytes(const ReadRequest& request) {
  uint64_t bytes = 0;
  const bool may = AllParts(request, [&bytes](const ReadPart& part) {
    bytes += part.bytes;
    return MayBeCached(part) && bytes <= kBytesMax;
  });
  return may ? std::optional(bytes) : std::nullopt;
}

void ExpectCached(const ReadRequest& request) {
  if (request.map.empty()) return;
  // The processor finds the rest by itself.
  constexpr uint64_t kLineBytes = 64;
  const uint64_t bytes = std::min(request.bytes, 8 * kLineBytes);
  for (uint64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(request.map.data() + request.offset + at);
  }
}

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

bool ReadCached(const ReadRequest& request, bool mapped, std::byte* to) {
  return AllParts(request, [mapped, &to](const ReadPart& part) {
    const iovec piece = {to, part.bytes};
    to += part.bytes;
    if (part.bytes == 0) return true;
    if (mapped && !part.map.empty()) {
      return GuardedCopy(static_cast<std::byte*>(piece.iov_base),
                         part.map.data() + part.offset, part.bytes);
    }
    return preadv2(part.fd, &piece, 1, static_cast<off_t>(part.offset),
                   RWF_NOWAIT) == static_cast<ssize_t>(part.bytes);
  });
}

bool IsWhole(const ReadPart& part) {
  struct stat st;
  return part.map.empty() ||
         (fstat(part.fd, &st) == 0 &&
          static_cast<uint64_t>(st.st_size) >= part.map.size());
}

}  // namespace penstock
