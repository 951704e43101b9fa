// What a rank makes its own of a segment, in which it may write nothing and
// which is the broker's again once a batch is released.
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

// A mapping of a segment that may be written: the pages written are copied and
// are this process's own (MAP_PRIVATE), the others are the segment's.
class CopyOnWrite {
 public:
  static StatusOr<std::unique_ptr<CopyOnWrite>> Map(int fd, uint64_t bytes);
  ~CopyOnWrite();
  CopyOnWrite(const CopyOnWrite&) = delete;
  CopyOnWrite& operator=(const CopyOnWrite&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  // What was written in these pages is gone; they are the segment's again.
  void Discard(uint64_t offset, uint64_t bytes) const;

 private:
  CopyOnWrite(std::byte* data, uint64_t bytes)
      : data_(data), bytes_(bytes), guard_(data, bytes) {}
  std::byte* data_;
  uint64_t bytes_;
  ForkGuard guard_;
};

// Bytes of a mapping, from its beginning.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
struct KeptSlot {
  ByteRange slot;               // whole pages
  std::vector<ByteRange> used;  // in it
};

// Lets go of a mapped segment; its addresses stay taken. Slots that are kept
// (in the order of their offsets) become copies of their own at the same
// addresses, with zeros where they were not used; what is left may not be
// touched any more. ResourceExhausted: no memory for the copies, nothing has
// changed.
Status LetGo(std::span<std::byte> mapping, const std::vector<KeptSlot>& kept,
             bool writable);

}  // namespace penstock
#endif  // CLIENT_RANK_PRIVATE_MEMORY_H_
