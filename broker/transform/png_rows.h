// The rows of samples of a plain PNG, faster than libspng: inflated at once by
// libdeflate, filters undone in four rows at a time.
//
// Plain is what nearly all files are: up to 8 bits a sample, not interlaced,
// whole, and without a fault. Whatever is not is left to libspng, which decides
// what is wrong with it.
//
// Formats: Portable Network Graphics, third edition (W3C), 5 (chunks), 9
// (filters); RFC 1950 (zlib).
#ifndef BROKER_TRANSFORM_PNG_ROWS_H_
#define BROKER_TRANSFORM_PNG_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace penstock {

inline constexpr size_t kPngSignatureBytes = 8;
inline constexpr size_t kPngChunkFrameBytes = 12;  // length, type, checksum

class PngRows {
 public:
  struct Layout {
    uint32_t height = 0;
    size_t row_bytes = 0;    // of samples
    size_t pixel_bytes = 1;  // 1 where a pixel has less
    bool has_palette = false;
  };

  // The picture is in memory as a whole, which the caller has bounded. nullptr:
  // not plain.
  static std::unique_ptr<PngRows> Open(std::span<const std::byte> file,
                                       const Layout& layout);

  // The samples of the next row, valid until the next call. At most height
  // rows.
  const std::byte* Next();

 private:
  explicit PngRows(const Layout& layout) : layout_(layout) {}
  size_t stride() const { return 1 + layout_.row_bytes; }

  const Layout layout_;
  // The rows, each behind the number of its filter.
  std::unique_ptr<std::byte[]> memory_;
  std::byte* next_ = nullptr;
  size_t ready_ = 0;  // rows from next_ on whose filters are undone
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PNG_ROWS_H_
