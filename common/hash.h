// Hashes that orders, drawn numbers and fingerprints are made of. Their values
// are stored: none may change.
#ifndef COMMON_HASH_H_
#define COMMON_HASH_H_

#include <cstdint>
#include <string_view>

namespace penstock {

// 2^64 / phi: its multiples are spread evenly.
inline constexpr uint64_t kGolden64 = 0x9e37'79b9'7f4a'7c15;

// splitmix64's finaliser (Stafford's mix 13): a bijection.
constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9;
  x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11eb;
  return x ^ (x >> 31);
}

// FNV-1a: finds mistakes, not forgeries.
inline constexpr uint64_t kFnv1aBasis = 0xcbf2'9ce4'8422'2325;
constexpr uint64_t Fnv1aByte(uint64_t hash, uint8_t byte) {
  return (hash ^ byte) * 0x100'0000'01b3;
}
constexpr uint64_t Fnv1a(std::string_view text, uint64_t hash = kFnv1aBasis) {
  for (const char c : text) hash = Fnv1aByte(hash, static_cast<uint8_t>(c));
  return hash;
}

}  // namespace penstock
#endif  // COMMON_HASH_H_
