#include "common/crc32c.h"

#include <array>
#include <cstring>

#if defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace penstock {
namespace {

template <typename T>
T ValueAt(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)
bool HasInstruction() { return __builtin_cpu_supports("sse4.2"); }

// 8 bytes in 3 cycles: faster than storage.
__attribute__((target("sse4.2"))) uint32_t ByInstruction(
    std::span<const std::byte> bytes, uint32_t before) {
  uint64_t crc = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    crc = _mm_crc32_u64(crc, ValueAt<uint64_t>(bytes.data()));
  }
  auto rest = static_cast<uint32_t>(crc);
  for (const std::byte byte : bytes) {
    rest = _mm_crc32_u8(rest, std::to_integer<uint8_t>(byte));
  }
  return ~rest;
}
#elif defined(__aarch64__)
bool HasInstruction() {
  constexpr unsigned long kHwcapCrc32 = 1UL << 7;
  return (getauxval(AT_HWCAP) & kHwcapCrc32) != 0;
}

__attribute__((target("+crc"))) uint32_t ByInstruction(
    std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    crc = __crc32cd(crc, ValueAt<uint64_t>(bytes.data()));
  }
  for (const std::byte byte : bytes) {
    crc = __crc32cb(crc, std::to_integer<uint8_t>(byte));
  }
  return ~crc;
}
#else
bool HasInstruction() { return false; }
uint32_t ByInstruction(std::span<const std::byte> bytes, uint32_t before) {
  return Crc32cByTable(bytes, before);
}
#endif

}  // namespace

uint32_t Crc32cByTable(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const std::byte byte : bytes) {
    crc = kTable[(crc ^ std::to_integer<uint32_t>(byte)) & 0xff] ^ (crc >> 8);
  }
  return ~crc;
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const bool has_instruction = HasInstruction();
  return has_instruction ? ByInstruction(bytes, before)
                         : Crc32cByTable(bytes, before);
}

}  // namespace penstock
