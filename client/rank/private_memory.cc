#include "client/rank/private_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// A copy at a temporary address, to be moved into place.
struct Copy {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  Copy(std::byte* at, uint64_t size) : data(at), bytes(size) {}
  Copy(Copy&& other) noexcept
      : data(std::exchange(other.data, nullptr)), bytes(other.bytes) {}
  Copy& operator=(Copy&&) = delete;
  ~Copy() {
    if (data != nullptr) munmap(data, bytes);
  }
};

}  // namespace

StatusOr<std::unique_ptr<CopyOnWrite>> CopyOnWrite::Map(int fd,
                                                        uint64_t bytes) {
  // MAP_NORESERVE: only written pages take memory.
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) {
    return ErrnoError(errno, Format("map {} bytes of shared memory", bytes));
  }
  return std::unique_ptr<CopyOnWrite>(
      new CopyOnWrite(static_cast<std::byte*>(data), bytes));
}

CopyOnWrite::~CopyOnWrite() { munmap(data_, bytes_); }

void CopyOnWrite::Discard(uint64_t offset, uint64_t bytes) const {
  // Cannot fail on pages that are mapped.
  (void)madvise(data_ + offset, bytes, MADV_DONTNEED);
}

Status LetGo(std::span<std::byte> mapping, const std::vector<KeptSlot>& kept,
             bool writable) {
  std::vector<Copy> copies;
  for (const auto& [slot, used] : kept) {
    void* const memory =
        mmap(nullptr, slot.bytes, PROT_READ | PROT_WRITE, kAnonymous, -1, 0);
    if (memory == MAP_FAILED) {
      return ResourceExhaustedError("no memory to copy a batch of {} bytes",
                                    slot.bytes);
    }
    copies.emplace_back(static_cast<std::byte*>(memory), slot.bytes);
    for (const ByteRange& part : used) {
      std::memcpy(copies.back().data + (part.offset - slot.offset),
                  mapping.data() + part.offset, part.bytes);
    }
    if (!writable) mprotect(memory, slot.bytes, PROT_READ);
  }
  uint64_t end = 0;
  const auto leave = [&](uint64_t until) {
    if (until <= end) return;
    (void)mmap(mapping.data() + end, until - end, PROT_NONE,
               kAnonymous | MAP_FIXED, -1, 0);
  };
  for (size_t i = 0; i < kept.size(); ++i) {
    const ByteRange& slot = kept[i].slot;
    leave(slot.offset);
    end = slot.offset + slot.bytes;
    // Atomically: another thread may be reading the batch.
    if (mremap(copies[i].data, slot.bytes, slot.bytes,
               MREMAP_MAYMOVE | MREMAP_FIXED,
               mapping.data() + slot.offset) != MAP_FAILED) {
      copies[i].data = nullptr;
    }
  }
  leave(mapping.size());
  return OkStatus();
}

}  // namespace penstock
