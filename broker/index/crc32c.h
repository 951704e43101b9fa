// CRC-32C (Castagnoli, RFC 3720 B.4), with the processor's instruction where it
// has one. Debian 12 has no library of it: its Abseil is older than absl/crc.
#ifndef BROKER_INDEX_CRC32C_H_
#define BROKER_INDEX_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

uint32_t Crc32c(std::span<const std::byte> bytes);

// The same, computed from a table; for tests.
uint32_t Crc32cByTable(std::span<const std::byte> bytes);

}  // namespace penstock
#endif  // BROKER_INDEX_CRC32C_H_
