#include "broker/transform/window.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace penstock {
namespace {

// For each of `to` pixels the one of `from` pixels whose place is nearest:
// floor((i + 0.5) * from / to), as Pillow's NEAREST and tf.image compute it.
// They never decrease.
void FindNearest(int64_t from, int64_t to, std::vector<int64_t>* pixels) {
  pixels->resize(static_cast<size_t>(to));
  const double step = static_cast<double>(from) / static_cast<double>(to);
  // Pillow adds the steps up, which rounds otherwise than a product.
  double place = step * 0.5;
  for (int64_t& pixel : *pixels) {
    pixel = std::min(static_cast<int64_t>(std::floor(place)), from - 1);
    place += step;
  }
}

// The pixel of n that stands for pixel i of a padded row; -1: the fill. As
// NumPy's pad, of any reach.
int64_t PaddedIndex(int64_t i, int64_t n, PadMode mode) {
  if (i >= 0 && i < n) return i;
  switch (mode) {
    case PadMode::kConstant:
      return -1;
    case PadMode::kEdge:
      return i < 0 ? 0 : n - 1;
    case PadMode::kReflect: {
      if (n == 1) return 0;
      const int64_t period = 2 * (n - 1);
      const int64_t at = (i % period + period) % period;
      return at < n ? at : period - at;
    }
    case PadMode::kSymmetric: {
      const int64_t period = 2 * n;
      const int64_t at = (i % period + period) % period;
      return at < n ? at : period - 1 - at;
    }
  }
  return -1;
}

// The part of a picture of this size that a window of it needs.
CropBox NeededPart(const CropView& view, const ImageSize& target,
                   PadMode mode) {
  if (mode != PadMode::kConstant) {
    return {.width = view.scaled.width, .height = view.scaled.height};
  }
  const int64_t left = std::max<int64_t>(view.left, 0);
  const int64_t top = std::max<int64_t>(view.top, 0);
  return {
      .left = left,
      .top = top,
      .width = std::min(view.left + target.width, view.scaled.width) - left,
      .height = std::min(view.top + target.height, view.scaled.height) - top};
}

}  // namespace

void FindNearestOfView(const CropView& view, const ImageSize& target,
                       PadMode mode, std::vector<int64_t>* scaled,
                       std::vector<int64_t>* rows,
                       std::vector<int64_t>* columns) {
  const auto find = [mode, scaled](int64_t box_start, int64_t box_length,
                                   int64_t scaled_length, int64_t start,
                                   int64_t wanted,
                                   std::vector<int64_t>* pixels) {
    FindNearest(box_length, scaled_length, scaled);
    pixels->resize(wanted);
    for (int64_t i = 0; i < wanted; ++i) {
      const int64_t at = PaddedIndex(start + i, scaled_length, mode);
      (*pixels)[i] = at < 0 ? -1 : box_start + (*scaled)[at];
    }
  };
  find(view.box.top, view.box.height, view.scaled.height, view.top,
       target.height, rows);
  find(view.box.left, view.box.width, view.scaled.width, view.left,
       target.width, columns);
}

void TakeWindow(const std::byte* in, const CropBox& held, const CropView& view,
                const ImageSize& target, PadMode mode,
                std::span<const std::byte> fill, std::vector<int64_t>* columns,
                std::byte* out) {
  const auto bytes = static_cast<int64_t>(fill.size());
  columns->resize(target.width);
  for (int64_t x = 0; x < target.width; ++x) {
    (*columns)[x] = PaddedIndex(view.left + x, view.scaled.width, mode);
  }
  // Most pixels are neighbours: they are copied at once.
  const int64_t first = std::clamp<int64_t>(-view.left, 0, target.width);
  const int64_t end =
      std::clamp(view.scaled.width - view.left, first, target.width);
  for (int64_t y = 0; y < target.height; ++y) {
    const int64_t row = PaddedIndex(view.top + y, view.scaled.height, mode);
    const auto from = [&](int64_t column) {
      return in + ((row - held.top) * held.width + column - held.left) * bytes;
    };
    const auto copy = [&](int64_t begin, int64_t stop) {
      for (int64_t x = begin; x < stop; ++x) {
        const int64_t column = (*columns)[x];
        std::memcpy(out + x * bytes,
                    row < 0 || column < 0 ? fill.data() : from(column), bytes);
      }
    };
    if (row < 0) {
      copy(0, target.width);
    } else {
      copy(0, first);
      if (end > first) {
        std::memcpy(out + first * bytes, from(view.left + first),
                    (end - first) * bytes);
      }
      copy(end, target.width);
    }
    out += target.width * bytes;
  }
}

Status ViewResizer::Begin(const CropView& view, const ImageSize& target,
                          Interpolation filter, PadMode mode,
                          std::span<const std::byte> fill, std::byte* out) {
  view_ = view;
  target_ = target;
  mode_ = mode;
  fill_ = fill;
  out_ = out;
  is_inside_ = view.IsInside(target);
  held_ = is_inside_ ? CropBox{.left = view.left,
                               .top = view.top,
                               .width = target.width,
                               .height = target.height}
                     : NeededPart(view, target, mode);
  is_empty_ = held_.width <= 0 || held_.height <= 0;
  if (is_empty_) return OkStatus();
  const auto channels = static_cast<int64_t>(fill.size());
  if (!is_inside_) {
    if (held_.width > Resampler::kRingBytesMax / channels / held_.height) {
      return DataLossError(
          "{} x {} pixels, resized to {} x {}, are too many to be mirrored "
          "beside themselves; say `mode: constant`",
          view.box.width, view.box.height, view.scaled.width,
          view.scaled.height);
    }
    const auto bytes =
        static_cast<size_t>(held_.width * held_.height * channels);
    if (part_.size() < bytes) part_.resize(bytes);
  }
  return resampler_.Begin(view.box, view.scaled, held_, filter,
                          static_cast<int>(channels),
                          is_inside_ ? out : part_.data());
}

void ViewResizer::Finish() {
  if (is_inside_) return;
  TakeWindow(part_.data(), held_, view_, target_, mode_, fill_, &columns_,
             out_);
}

}  // namespace penstock
