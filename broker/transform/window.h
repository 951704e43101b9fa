// Takes a part of a picture that may reach beyond its sides. Pure functions.
#ifndef BROKER_TRANSFORM_WINDOW_H_
#define BROKER_TRANSFORM_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "broker/transform/crop.h"
#include "broker/transform/picture.h"
#include "broker/transform/resampler.h"
#include "common/status.h"

namespace penstock {

// The pixels of the picture that the nearest-neighbour resize of a view takes;
// -1: the fill. scaled: a buffer.
void FindNearestOfView(const CropView& view, const ImageSize& target,
                       PadMode mode, std::vector<int64_t>* scaled,
                       std::vector<int64_t>* rows,
                       std::vector<int64_t>* columns);

// Writes the window of target's size whose corner is view.left, view.top in the
// picture of size view.scaled. in: its part `held`. columns: a buffer.
void TakeWindow(const std::byte* in, const CropBox& held, const CropView& view,
                const ImageSize& target, PadMode mode,
                std::span<const std::byte> fill, std::vector<int64_t>* columns,
                std::byte* out);

// Resizes a picture, row by row, to a window of the result.
class ViewResizer {
 public:
  // part, columns: buffers.
  ViewResizer(Resampler* resampler, std::vector<std::byte>* part,
              std::vector<int64_t>* columns)
      : resampler_(*resampler), part_(*part), columns_(*columns) {}

  // out gets target's pixels of fill.size() bytes. DataLoss: as Resampler's;
  // the picture is too large to be mirrored beside itself.
  [[nodiscard]] Status Begin(const CropView& view, const ImageSize& target,
                             Interpolation filter, PadMode mode,
                             std::span<const std::byte> fill, std::byte* out);
  // The rows of the picture that are used, possibly none.
  int64_t first_row() const { return is_empty_ ? 0 : resampler_.first_row(); }
  int64_t end_row() const { return is_empty_ ? 0 : resampler_.end_row(); }
  void AddRow(int64_t y, const std::byte* row) { resampler_.AddRow(y, row); }
  // After all rows.
  void Finish();

 private:
  Resampler& resampler_;
  std::vector<std::byte>& part_;
  std::vector<int64_t>& columns_;
  CropView view_;
  CropBox held_;
  ImageSize target_;
  PadMode mode_ = PadMode::kConstant;
  std::span<const std::byte> fill_;
  bool is_inside_ = false;
  bool is_empty_ = false;
  std::byte* out_ = nullptr;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_WINDOW_H_
