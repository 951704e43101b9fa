// Private copies of parts of a segment, which is read only and belongs to the
// broker again once a batch is released.
#ifndef CLIENT_RANK_PRIVATE_MEMORY_H_
#define CLIENT_RANK_PRIVATE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/attach/fork.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

// A writable mapping of a segment (MAP_PRIVATE): written pages are private
// copies, the others are the segment's.
class CopyOnWrite {
 public:
  static StatusOr<std::unique_ptr<CopyOnWrite>> Map(int fd, uint64_t bytes);
  ~CopyOnWrite();
  CopyOnWrite(const CopyOnWrite&) = delete;
  CopyOnWrite& operator=(const CopyOnWrite&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  // Discards the private copies of these pages.
  void Discard(uint64_t offset, uint64_t bytes) const;

 private:
  CopyOnWrite(std::byte* data, uint64_t bytes)
      : data_(data), bytes_(bytes), guard_(data, bytes) {}
  std::byte* data_;
  uint64_t bytes_;
  ForkGuard guard_;
};

// A range of a mapping.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
struct KeptSlot {
  ByteRange slot;               // whole pages
  std::vector<ByteRange> used;  // in it
};

// Unmaps a segment but keeps its addresses reserved. The kept slots, in the
// order of their offsets, become private copies at the same addresses, zero
// where they were not used; the rest must not be touched any more.
// ResourceExhausted: no memory for the copies, nothing has changed.
Status LetGo(std::span<std::byte> mapping, const std::vector<KeptSlot>& kept,
             bool writable);

}  // namespace penstock
#endif  // CLIENT_RANK_PRIVATE_MEMORY_H_
