// Numbers of files in either byte order.
#ifndef BROKER_TRANSFORM_BYTE_ORDER_H_
#define BROKER_TRANSFORM_BYTE_ORDER_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// The unsigned number of `bytes` bytes at `at`, which are in the file.
inline uint64_t ReadNumber(std::span<const std::byte> file, size_t at,
                           size_t bytes, std::endian order) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes; ++i) {
    const size_t next = order == std::endian::big ? i : bytes - 1 - i;
    number = number << 8 | std::to_integer<uint64_t>(file[at + next]);
  }
  return number;
}

}  // namespace penstock
#endif  // BROKER_TRANSFORM_BYTE_ORDER_H_
