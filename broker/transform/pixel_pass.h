// Flip, normalize and cast: ops that change or move individual values, in one
// pass from the source to the destination.
//
// Immutable once set up; all workers call Run concurrently.
#ifndef BROKER_TRANSFORM_PIXEL_PASS_H_
#define BROKER_TRANSFORM_PIXEL_PASS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "broker/transform/augmentation.h"
#include "broker/transform/rgbx_values.h"
#include "broker/transform/values.h"
#include "common/element_spec.h"

namespace penstock {

// Converts n values that are in_step and out_step values apart. table: see
// PixelPass.
using ValueKernel = void (*)(const std::byte* table, const std::byte* in,
                             ptrdiff_t in_step, std::byte* out,
                             ptrdiff_t out_step, int64_t n);

// Copies values of this many bytes (1, 2, 4 or 8).
ValueKernel CopyKernel(uint32_t value_bytes);
// Converts each value. To an integer: rounds to nearest, ties to even, and
// saturates; NaN becomes 0. To a floating-point type: rounds once.
ValueKernel CastKernel(DType from, DType to);

class PixelPass {
 public:
  struct Mirroring {
    bool horizontal = false;
    bool vertical = false;
  };
  struct Flip {
    double horizontal = 0.5;  // draw 0 below it mirrors left to right
    double vertical = 0;      // draw 1 below it, top to bottom
    uint32_t op = 0;          // the op's number in the map list

    Mirroring Mirrors(const AugmentationKey& key) const {
      const AugmentationDraws draws(key, op);
      return {draws.Uniform(0) < horizontal, draws.Uniform(1) < vertical};
    }
  };

  // Values of dtype in an image of this size, channels last. Until one of the
  // calls below, values are copied unchanged.
  PixelPass(DType dtype, int64_t height, int64_t width, int64_t channels);

  // Two flips that both happen cancel.
  void AddFlip(Flip flip) { flips_.push_back(flip); }
  // dtype must be of one byte; the function has one channel, or those of the
  // image. Each result is computed in double precision and rounded once.
  void Compute(const ValueFunction& function, DType to);
  // Says that a Compute is near (value / 255 - mean) / std, with one number or
  // one per channel: it may be done by arithmetic where the results are the
  // same.
  void TakeLine(const std::vector<double>& mean,
                const std::vector<double>& std);
  void Cast(DType to);
  // Outputs channels first.
  void SetChannelsFirst() { channels_first_ = true; }

  DType dtype() const { return dtype_out_; }
  // The RowPart whose time it takes: of the last op in it.
  uint32_t part() const { return part_; }
  void SetPart(uint32_t part) { part_ = part; }

  // How the row with this key is mirrored.
  Mirroring Mirrors(const AugmentationKey& key) const;

  // out must not overlap in; neither needs alignment.
  void Run(const std::byte* in, const AugmentationKey& key,
           std::byte* out) const;

  // Writes row y of a uint8 image of three channels to its position in the
  // whole image out. Like Run, but without flips: the row is already mirrored
  // as needed.
  void WriteRgbx(const std::byte* rgbx, int64_t y, std::byte* out) const;

 private:
  void RunRgb(const std::byte* in, const Mirroring& mirroring,
              std::byte* out) const;
  void RunMirroredOrMoved(const std::byte* in, const Mirroring& mirroring,
                          std::byte* out) const;

  DType dtype_in_;
  DType dtype_out_;
  int64_t height_;
  int64_t width_;
  int64_t channels_;
  bool channels_first_ = false;
  uint32_t part_ = 0;
  std::vector<Flip> flips_;
  ValueKernel kernel_;
  // The result for each of the 256 values of an 8-bit input, per channel or for
  // all channels (then table_stride_ is 0). Empty if kernel_ uses none.
  std::vector<std::byte> table_;
  int64_t table_stride_ = 0;
  // The table for RGB as a line, if arithmetic gives identical results.
  std::optional<RgbxLine> line_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_PIXEL_PASS_H_
