// The input is a picture file, from any user of the host. It is decoded alone,
// with objects that are new, and after other files, sound and damaged ones,
// with objects that have decoded everything before: what comes of it must be
// the same, byte for byte.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/fuzz/decode_twice.h"
#include "tests/fuzz/mutate_picture.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

void Check(std::span<const std::byte> file) {
  static DecodeTwice twice;
  // A function of the file alone: a finding fails again by itself.
  uint64_t turn = 0xcbf29ce484222325;
  for (const std::byte byte : file) {
    turn = (turn ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3;
  }
  const std::string difference = twice.Check(file, turn);
  if (!difference.empty()) std::fprintf(stderr, "%s\n", difference.c_str());
  Require(difference.empty(), "a file decodes the same whatever came before");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(std::as_bytes(std::span(data, size)));
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);

// Half of the time damage of ours, which keeps to a JPEG's format; else
// libFuzzer's, which knows what has been reached.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t size_max, unsigned seed) {
  if (seed % 2 == 0) {
    size = LLVMFuzzerMutate(data, size, size_max);
    if (seed % 8 != 0) {
      penstock::CorrectChecksums(std::as_writable_bytes(std::span(data, size)));
    }
    return size;
  }
  std::mt19937_64 random(seed);
  const auto bytes = std::as_bytes(std::span(data, size));
  std::vector<std::byte> file(bytes.begin(), bytes.end());
  penstock::MutatePicture(&file, bytes, random);
  file.resize(std::min(file.size(), size_max));
  std::memcpy(data, file.data(), file.size());
  return file.size();
}
