#include "broker/transform/orientation.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "broker/transform/byte_order.h"

namespace penstock {
namespace {

using std::string_view_literals::operator""sv;
using Bytes = std::span<const std::byte>;

constexpr uint64_t kOrientationTag = 274;
constexpr Orientation kOrientations[] = {
    // of the values 1 to 8: mirrors_x, mirrors_y, transposes
    {false, false, false}, {true, false, false}, {true, true, false},
    {false, true, false},  {false, false, true}, {false, true, true},
    {true, true, true},    {true, false, true}};

bool StartsWith(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

// What is behind `at`, or nothing.
Bytes From(Bytes bytes, uint64_t at) {
  return bytes.subspan(std::min<uint64_t>(at, bytes.size()));
}

// What the first directory of a TIFF says, which is EXIF's form, too. 0: none.
uint64_t DirectoryValue(Bytes tiff) {
  if (tiff.size() < 16) return 0;
  const std::endian order =
      StartsWith(tiff, "MM"sv) ? std::endian::big : std::endian::little;
  if (!StartsWith(tiff, "MM"sv) && !StartsWith(tiff, "II"sv)) return 0;
  const uint64_t version = ReadNumber(tiff, 2, 2, order);
  if (version != 42 && version != 43) return 0;
  const bool is_big = version == 43;
  const size_t count_bytes = is_big ? 8 : 2;
  const size_t field_bytes = is_big ? 8 : 4;  // of a count, of a value
  const size_t entry_bytes = 4 + 2 * field_bytes;
  Bytes directory = From(tiff, is_big ? ReadNumber(tiff, 8, 8, order)
                                      : ReadNumber(tiff, 4, 4, order));
  if (directory.size() < count_bytes) return 0;
  uint64_t entries = ReadNumber(directory, 0, count_bytes, order);
  directory = From(directory, count_bytes);
  entries = std::min<uint64_t>(entries, directory.size() / entry_bytes);
  uint64_t value = 0;
  for (; entries > 0; --entries, directory = From(directory, entry_bytes)) {
    if (ReadNumber(directory, 0, 2, order) != kOrientationTag) continue;
    constexpr uint64_t kShort = 3;
    constexpr uint64_t kLong = 4;
    const uint64_t type = ReadNumber(directory, 2, 2, order);
    const uint64_t count = ReadNumber(directory, 4, field_bytes, order);
    if (count != 1 || (type != kShort && type != kLong)) continue;
    value =
        ReadNumber(directory, 4 + field_bytes, type == kShort ? 2 : 4, order);
  }
  return value;
}

uint64_t ExifValue(Bytes exif) {
  constexpr auto kPrefix = "Exif\0\0"sv;
  while (StartsWith(exif, kPrefix)) exif = exif.subspan(kPrefix.size());
  return DirectoryValue(exif);
}

uint64_t JpegValue(Bytes file) {
  constexpr uint64_t kApp1 = 0xffe1;
  constexpr uint64_t kStartOfScan = 0xffda;
  for (Bytes rest = From(file, 2); rest.size() >= 4;) {
    const uint64_t marker = ReadNumber(rest, 0, 2, std::endian::big);
    if (marker < 0xff00 || marker == kStartOfScan) break;
    if (marker == 0xffff) {  // fill
      rest = From(rest, 1);
      continue;
    }
    const uint64_t bytes = ReadNumber(rest, 2, 2, std::endian::big);
    const Bytes segment =
        rest.first(std::min<uint64_t>(rest.size(), 2 + bytes));
    const Bytes content = From(segment, 4);
    if (marker == kApp1 && StartsWith(content, "Exif\0\0"sv)) {
      return ExifValue(content);
    }
    rest = From(rest, 2 + std::max<uint64_t>(bytes, 2));
  }
  return 0;
}

// Chunks of a PNG: size, type, content, checksum; of a RIFF: type, size,
// content, and a byte where the size is odd.
uint64_t ChunkValue(Bytes rest, bool is_png) {
  while (rest.size() >= 8) {
    const uint64_t bytes = is_png ? ReadNumber(rest, 0, 4, std::endian::big)
                                  : ReadNumber(rest, 4, 4, std::endian::little);
    const Bytes content = From(rest, 8);
    if (StartsWith(From(rest, is_png ? 4 : 0), is_png ? "eXIf"sv : "EXIF"sv)) {
      return ExifValue(
          content.first(std::min<uint64_t>(bytes, content.size())));
    }
    rest = From(content, bytes + (is_png ? 4 : bytes % 2));
  }
  return 0;
}

uint64_t Value(Bytes file) {
  if (StartsWith(file, "\xff\xd8"sv)) return JpegValue(file);
  if (StartsWith(file, "\x89PNG"sv)) return ChunkValue(From(file, 8), true);
  if (StartsWith(file, "RIFF"sv)) return ChunkValue(From(file, 12), false);
  return DirectoryValue(file);
}

}  // namespace

ImageSize Orientation::Turn(const ImageSize& stored) const {
  if (!transposes) return stored;
  return {.height = stored.width, .width = stored.height};
}

CropBox Orientation::TurnBack(const CropBox& upright,
                              const ImageSize& stored) const {
  CropBox box = upright;
  if (transposes) {
    std::swap(box.left, box.top);
    std::swap(box.width, box.height);
  }
  if (mirrors_x) box.left = stored.width - box.left - box.width;
  if (mirrors_y) box.top = stored.height - box.top - box.height;
  return box;
}

Orientation ReadOrientation(std::span<const std::byte> file) {
  const uint64_t value = Value(file);
  return value >= 1 && value <= std::size(kOrientations)
             ? kOrientations[value - 1]
             : Orientation();
}

void TurnRow(const Orientation& orientation, const ImageSize& stored_box,
             int64_t y, int channels, const std::byte* row,
             std::byte* upright) {
  const int64_t width = stored_box.width;
  if (orientation.mirrors_y) y = stored_box.height - 1 - y;
  // From one pixel of the row to the next.
  int64_t step = orientation.transposes ? stored_box.height : 1;
  int64_t at = orientation.transposes ? y : y * width;
  if (orientation.mirrors_x) {
    at += (width - 1) * step;
    step = -step;
  }
  for (int64_t x = 0; x < width; ++x, at += step, row += channels) {
    std::memcpy(upright + at * channels, row, static_cast<size_t>(channels));
  }
}

}  // namespace penstock
