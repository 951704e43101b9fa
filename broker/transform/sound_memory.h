// The bytes of a sound file as libraries read a file.
#ifndef BROKER_TRANSFORM_SOUND_MEMORY_H_
#define BROKER_TRANSFORM_SOUND_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>

namespace penstock {

class SoundMemory {
 public:
  explicit SoundMemory(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  int64_t at() const { return at_; }

  // As lseek: beyond the end too, where nothing is read. -1: no such place.
  int64_t Seek(int64_t offset, int whence) {
    constexpr int64_t kPlaceMax = int64_t{1} << 62;
    const int64_t base = whence == SEEK_SET   ? 0
                         : whence == SEEK_CUR ? at_
                                              : size();
    // Compare before adding: hostile offsets overflow.
    if (offset < -base || offset > kPlaceMax - base) return -1;
    return at_ = base + offset;
  }
  int64_t Read(void* out, int64_t count) {
    count = std::min(count, size() - at_);
    if (count <= 0) return 0;
    std::memcpy(out, bytes_.data() + at_, static_cast<size_t>(count));
    at_ += count;
    return count;
  }

 private:
  std::span<const std::byte> bytes_;
  int64_t at_ = 0;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_SOUND_MEMORY_H_
