#include "common/crc32c.h"

#include <array>
#include <cstring>

#if defined(__aarch64__)
#include <arm_acle.h>
#include <arm_neon.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
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

// The instructions: CRC-32C of 8 bytes, of one; the product of polynomials.
#if defined(__x86_64__)
#define PENSTOCK_CRC_TARGET __attribute__((target("sse4.2,pclmul")))
bool HasInstructions() {
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}
PENSTOCK_CRC_TARGET inline uint32_t Add(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
PENSTOCK_CRC_TARGET inline uint32_t AddByte(uint32_t crc, std::byte byte) {
  return _mm_crc32_u8(crc, std::to_integer<uint8_t>(byte));
}
PENSTOCK_CRC_TARGET inline uint64_t Product(uint32_t a, uint32_t b) {
  return static_cast<uint64_t>(_mm_cvtsi128_si64(
      _mm_clmulepi64_si128(_mm_cvtsi64_si128(a), _mm_cvtsi64_si128(b), 0)));
}
#elif defined(__aarch64__)
#define PENSTOCK_CRC_TARGET __attribute__((target("+crc+crypto")))
bool HasInstructions() {
  constexpr unsigned long kPmullAndCrc32 = 1UL << 4 | 1UL << 7;  // HWCAP_
  return (getauxval(AT_HWCAP) & kPmullAndCrc32) == kPmullAndCrc32;
}
PENSTOCK_CRC_TARGET inline uint32_t Add(uint32_t crc, uint64_t word) {
  return __crc32cd(crc, word);
}
PENSTOCK_CRC_TARGET inline uint32_t AddByte(uint32_t crc, std::byte byte) {
  return __crc32cb(crc, std::to_integer<uint8_t>(byte));
}
PENSTOCK_CRC_TARGET inline uint64_t Product(uint32_t a, uint32_t b) {
  return static_cast<uint64_t>(vmull_p64(a, b));
}
#endif

#ifdef PENSTOCK_CRC_TARGET
// x^n modulo the polynomial: the remainder of a 1 with n zero bits behind it.
constexpr uint32_t PowerOfX(uint64_t n) {
  uint32_t power = uint32_t{1} << 31;
  for (; n > 0; --n) {
    power = (power >> 1) ^ ((power & 1) != 0 ? kPolynomial : 0);
  }
  return power;
}

// An instruction takes 3 cycles and one begins in each, so three parts of a
// block are done at once: 22 GB/s instead of 7. What the first two parts add to
// the remainder of the whole is their own times x^(bits behind them); Add of a
// product multiplies it by x^33.
PENSTOCK_CRC_TARGET uint32_t ByInstructions(std::span<const std::byte> bytes,
                                            uint32_t before) {
  constexpr size_t kPart = 512;
  constexpr uint32_t kOnePart = PowerOfX(8 * kPart - 33);
  constexpr uint32_t kTwoParts = PowerOfX(16 * kPart - 33);
  uint32_t crc = ~before;
  for (; bytes.size() >= 3 * kPart; bytes = bytes.subspan(3 * kPart)) {
    const std::byte* const data = bytes.data();
    uint32_t second = 0;
    uint32_t third = 0;
    for (size_t at = 0; at < kPart; at += 8) {
      crc = Add(crc, ValueAt<uint64_t>(data + at));
      second = Add(second, ValueAt<uint64_t>(data + kPart + at));
      third = Add(third, ValueAt<uint64_t>(data + 2 * kPart + at));
    }
    crc = third ^ Add(0, Product(crc, kTwoParts) ^ Product(second, kOnePart));
  }
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    crc = Add(crc, ValueAt<uint64_t>(bytes.data()));
  }
  for (const std::byte byte : bytes) crc = AddByte(crc, byte);
  return ~crc;
}
#else
bool HasInstructions() { return false; }
uint32_t ByInstructions(std::span<const std::byte> bytes, uint32_t before) {
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
  static const bool has_instructions = HasInstructions();
  return has_instructions ? ByInstructions(bytes, before)
                          : Crc32cByTable(bytes, before);
}

}  // namespace penstock
