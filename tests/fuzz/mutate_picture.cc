#include "tests/fuzz/mutate_picture.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "broker/transform/byte_order.h"
#include "tests/fuzz/mutate_jpeg.h"

namespace penstock {
namespace {

using Bytes = std::vector<std::byte>;

// Small numbers and limits of all widths are where sizes and counts go wrong.
void MutateBytes(Bytes* file, std::span<const std::byte> other,
                 std::mt19937_64& random) {
  // Not std::uniform_int_distribution: its numbers differ between libraries.
  const auto below = [&random](uint64_t end) { return random() % end; };
  const auto at = [&](size_t offset) {
    return file->begin() + static_cast<ptrdiff_t>(offset);
  };
  if (file->empty()) return;
  const size_t place = below(file->size());
  const size_t left = file->size() - place;
  switch (below(8)) {
    case 0:
      file->resize(place);
      return;
    case 1:
      file->erase(at(place), at(place + below(std::min<size_t>(left, 64)) + 1));
      return;
    case 2: {
      if (other.empty()) return;
      const size_t from = below(other.size());
      const auto piece = other.subspan(
          from, below(std::min<size_t>(other.size() - from, 64)) + 1);
      file->insert(at(place), piece.begin(), piece.end());
      return;
    }
    case 3: {
      constexpr uint32_t kValues[] = {0,      1,       0xff,       0x7fff,
                                      0xffff, 0x10000, 0x7fffffff, 0xffffffff};
      const uint32_t value = kValues[below(std::size(kValues))];
      std::memcpy(&(*file)[place], &value, std::min<size_t>(left, 4));
      return;
    }
    default:
      (*file)[place] = below(2) == 0 ? (*file)[place] ^ std::byte{1} << below(8)
                                     : static_cast<std::byte>(below(256));
  }
}

}  // namespace

void MutatePicture(std::vector<std::byte>* file,
                   std::span<const std::byte> other, std::mt19937_64& random) {
  if (file->size() > 1 && (*file)[0] == std::byte{0xff} &&
      (*file)[1] == std::byte{0xd8}) {
    return MutateJpeg(file, other, random);
  }
  for (bool more = true; more; more = random() % 2 == 0) {
    MutateBytes(file, other, random);
  }
  if (random() % 4 != 0) CorrectChecksums(*file);
}

void CorrectChecksums(std::span<std::byte> file) {
  if (file.size() < 8 || std::memcmp(file.data(), "\x89PNG", 4) != 0) return;
  for (size_t at = 8; file.size() - at >= 12;) {
    const uint64_t bytes = ReadNumber(file, at, 4, std::endian::big);
    if (bytes > file.size() - at - 12) return;
    const auto sum = static_cast<uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(&file[at + 4]), 4 + bytes));
    at += 8 + bytes;
    for (int shift = 24; shift >= 0; shift -= 8) {
      file[at++] = static_cast<std::byte>(sum >> shift & 255);
    }
  }
}

}  // namespace penstock
