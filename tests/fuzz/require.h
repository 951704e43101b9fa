// What the fuzz targets share: a property that must hold, and the reading of an
// input piece by piece.
#ifndef TESTS_FUZZ_REQUIRE_H_
#define TESTS_FUZZ_REQUIRE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace penstock {

// Aborts: what a fuzzer and a test both see.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// An input that is read from its beginning; behind its end are zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size)
      : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }
  uint8_t Byte() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  // Little endian, of so many bytes.
  uint64_t Number(size_t bytes) {
    uint64_t number = 0;
    for (size_t i = 0; i < bytes; ++i) number |= uint64_t{Byte()} << 8 * i;
    return number;
  }
  std::string_view Text(size_t bytes_max) {
    const std::string_view text =
        left_.substr(0, std::min(bytes_max, left_.size()));
    left_.remove_prefix(text.size());
    return text;
  }
  std::string_view Rest() { return Text(left_.size()); }

 private:
  std::string_view left_;
};

}  // namespace penstock
#endif  // TESTS_FUZZ_REQUIRE_H_
