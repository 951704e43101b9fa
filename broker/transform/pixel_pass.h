// Flip, normalize and cast: whatever changes values or their places one by one,
// in one pass from the source to the destination.
//
// Immutable once made; Run is called by all workers at once.
#ifndef BROKER_TRANSFORM_PIXEL_PASS_H_
#define BROKER_TRANSFORM_PIXEL_PASS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "broker/transform/augmentation.h"
#include "broker/transform/rgbx_values.h"
#include "common/dataset_spec.h"
#include "common/element_spec.h"

namespace penstock {

// What happens to n values, in_step and out_step values apart. table: see
// PixelPass.
using ValueKernel = void (*)(const std::byte* table, const std::byte* in,
                             ptrdiff_t in_step, std::byte* out,
                             ptrdiff_t out_step, int64_t n);

// Moves values of this many bytes (1, 2, 4 or 8) as they are.
ValueKernel CopyKernel(uint32_t value_bytes);
// Value by value: to an integer rounds to the nearest, ties to even, and
// saturates, NaN becomes 0; to a floating point type rounds once.
ValueKernel CastKernel(DType from, DType to);

class PixelPass {
 public:
  struct Flip {
    double probability = 0.5;  // of draw 0 being below it
    uint32_t op = 0;           // the number of the op in the map list
  };

  // Values of dtype in an image of these sizes, channels last. Until one of the
  // calls below, values stay what they are.
  PixelPass(DType dtype, int64_t height, int64_t width, int64_t channels);

  // Mirrors left to right; two that both happen cancel.
  void AddFlip(Flip flip) { flips_.push_back(flip); }
  // dtype must be uint8; mean and std hold one number or one per channel. Each
  // result is the formula's in double precision, rounded once.
  void Normalize(const std::vector<double>& mean,
                 const std::vector<double>& std, DType to);
  void Cast(DType to);
  // Writes channels first.
  void SetChannelsFirst() { channels_first_ = true; }

  DType dtype() const { return dtype_out_; }

  // Whether this row is mirrored.
  bool Mirrors(const AugmentationKey& key) const;

  // out must not overlap in; neither needs to be aligned.
  void Run(const std::byte* in, const AugmentationKey& key,
           std::byte* out) const;

  // Row y of a uint8 image of three channels, mirrored already if it is to be,
  // into its place in the whole image out. As Run does, but for the flips.
  void WriteRgbx(const std::byte* rgbx, int64_t y, std::byte* out) const;

 private:
  void RunMirroredOrMoved(const std::byte* in, bool mirror,
                          std::byte* out) const;

  DType dtype_in_;
  DType dtype_out_;
  int64_t height_;
  int64_t width_;
  int64_t channels_;
  bool channels_first_ = false;
  std::vector<Flip> flips_;
  ValueKernel kernel_;
  // The result for each of the 256 values of an 8-bit input, for each channel
  // or for all (then table_stride_ is 0). Empty when kernel_ uses none.
  std::vector<std::byte> table_;
  int64_t table_stride_ = 0;
  // What the table says of RGB, where arithmetic says the same.
  std::optional<RgbxLine> line_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PIXEL_PASS_H_
