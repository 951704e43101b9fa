// A dataset's fingerprint: 128 bits that are the same on every host that has
// the same files, whatever their folder and times (XXH3, xxhash.com).
#ifndef BROKER_INDEX_FINGERPRINT_H_
#define BROKER_INDEX_FINGERPRINT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace penstock {

class DataFiles;

class Fingerprint {
 public:
  using Digest = std::array<uint64_t, 2>;

  // kind: of the source.
  explicit Fingerprint(std::string_view kind);
  ~Fingerprint();
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;

  void Add(std::string_view text);
  void Add(uint64_t number);
  void Add(std::span<const std::byte> bytes);
  // The files' sizes, and their names from the folder that has all of them.
  void Add(const DataFiles& files);

  Digest digest() const;
  // 32 hexadecimal digits.
  std::string Hex() const;

 private:
  XXH3_state_s* const state_;
};

}  // namespace penstock
#endif  // BROKER_INDEX_FINGERPRINT_H_
