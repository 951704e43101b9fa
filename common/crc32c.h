// CRC-32C (Castagnoli, RFC 3720 B.4), with the processor's instructions where it
// has one. Debian 12 has no library of it: its Abseil is older than absl/crc.
#ifndef COMMON_CRC32C_H_
#define COMMON_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// before: that of the bytes before these.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The same, computed from a table; for tests.
uint32_t Crc32cByTable(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace penstock
#endif  // COMMON_CRC32C_H_
