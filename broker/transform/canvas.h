// A picture of bytes in a worker's memory, which the steps of a row change one
// after another. A step that maps each value by itself only changes a table of
// 256 values per channel: a run of them costs one look-up per value, when the
// next step needs pixels.
//
// What Pillow computes in bytes is computed bit for bit alike. Its formulas are
// those of ImageEnhance, ImageOps, Image.convert and Image.transform.
//
// Not thread-safe; made once per worker and reused: buffers only grow.
#ifndef BROKER_TRANSFORM_CANVAS_H_
#define BROKER_TRANSFORM_CANVAS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "broker/transform/picture.h"

namespace penstock {

using ByteTable = std::array<uint8_t, 256>;

class Canvas {
 public:
  static constexpr int64_t kChannelsMax = 4;

  // Takes `in`, rows of pixels, which stays unchanged and readable until
  // Finish. channels: values of a byte per pixel; 0: a mask, whose values no
  // step but those that move pixels changes.
  void Begin(const std::byte* in, const ImageSize& size, int64_t channels,
             int64_t pixel_bytes);
  const ImageSize& size() const { return size_; }
  int64_t channels() const { return channels_; }
  int64_t pixel_bytes() const { return pixel_bytes_; }
  bool is_mask() const { return channels_ == 0; }
  uint64_t bytes() const {
    return static_cast<uint64_t>(size_.height * size_.width * pixel_bytes_);
  }

  // ---- values, each by itself. factor: 1 changes nothing.

  void Invert();
  // Inverts values from threshold up.
  void Solarize(double threshold);
  // Adds to values below 128; at most 255.
  void SolarizeAdd(int64_t addition);
  // Keeps the upper bits.
  void Posterize(int64_t bits);
  void Equalize();
  void AutoContrast();
  // From black to white.
  void Brightness(double factor);
  // From a picture of its mean gray.
  void Contrast(double factor);

  // ---- pixels

  // From its gray picture; nothing if it has no colours.
  void Saturation(double factor);
  // Turns the hue by this part of the circle, -0.5 to 0.5; likewise.
  void Hue(double turns);
  void Grayscale();

  // ---- neighbours

  // From a picture smoothed 3 by 3; its border is unchanged.
  void Sharpness(double factor);
  // Convolves with weights, an odd number below twice each side, across and
  // down; the picture is mirrored at its border, which is not repeated.
  void Blur(std::span<const float> weights);

  // ---- for steps that change pixels themselves

  // The picture as it is now.
  const std::byte* Pixels();
  // Where the next picture may be written, bytes() of it; TakeNext makes it the
  // picture.
  std::byte* Next();
  void TakeNext();
  // Keeps a copy of the picture as it is now; Restore makes that the picture.
  void Keep();
  void Restore();
  // Buffers of such steps.
  std::vector<int64_t>& columns() { return columns_; }
  std::vector<float>& sums() { return sums_; }

  // Writes the picture to out.
  void Finish(std::byte* out);

 private:
  using Histogram = std::array<std::array<uint32_t, 256>, kChannelsMax>;

  // Applies a table to all channels, or to one.
  void Map(const ByteTable& table);
  void MapChannel(int64_t channel, const ByteTable& table);
  // Counts the values as they are now.
  void Count(Histogram* histogram) const;
  void ApplyTables(std::byte* out) const;
  template <typename Change>
  void ChangeColours(const Change& change);

  ImageSize size_;
  int64_t channels_ = 0;
  int64_t pixel_bytes_ = 0;
  const std::byte* current_ = nullptr;
  bool has_tables_ = false;
  std::array<ByteTable, kChannelsMax> tables_ = {};
  std::vector<std::byte> buffers_[2];
  std::vector<std::byte> kept_;
  std::vector<int64_t> columns_;
  std::vector<float> sums_;
  std::vector<float> row_;  // of Blur, between its two directions
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_CANVAS_H_
