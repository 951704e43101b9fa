#include "broker/transform/erase.h"

#include <Random123/philox.h>

#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "broker/source/number.h"
#include "broker/transform/op_declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr size_t kErasedChannelsMax = 16;
constexpr double kValueMax = 1e6;
constexpr double kErasedAreaMin = 1e-6;
constexpr double kErasedRatioMax = 100;

// Where values are, counted in values: value (c, y, x) is at
// c * channel + y * row + x * column.
struct Strides {
  int64_t channels;
  ImageSize size;
  int64_t channel;
  int64_t row;
  int64_t column;
};

Strides StridesOf(const PathBuilder& path) {
  const std::vector<int64_t>& shape = path.feature().shape;
  if (path.channels_first()) {
    return {.channels = shape[0],
            .size = {.height = shape[1], .width = shape[2]},
            .channel = shape[1] * shape[2],
            .row = shape[2],
            .column = 1};
  }
  const int64_t channels = path.channels();
  return {.channels = channels,
          .size = {.height = shape[0], .width = shape[1]},
          .channel = 1,
          .row = shape[1] * channels,
          .column = channels};
}

struct Rectangle {
  int64_t top;
  int64_t left;
  ImageSize size;
};

// Nothing if no attempt fits.
std::optional<Rectangle> Choose(const RandomErasingOp& op,
                                const ImageSize& picture,
                                const AugmentationDraws& draws) {
  constexpr uint32_t kAttempts = 10;
  const double area =
      static_cast<double>(picture.height) * static_cast<double>(picture.width);
  const Range logs = {std::log(op.ratio[0]), std::log(op.ratio[1])};
  for (uint32_t t = 0; t < kAttempts; ++t) {
    const double erased = area * draws.Within(1 + 4 * t, op.scale);
    const double ratio = std::exp(draws.Within(2 + 4 * t, logs));
    const auto height =
        static_cast<int64_t>(std::nearbyint(std::sqrt(erased * ratio)));
    const auto width =
        static_cast<int64_t>(std::nearbyint(std::sqrt(erased / ratio)));
    if (height >= picture.height || width >= picture.width) continue;
    return Rectangle{
        .top = draws.Choice(3 + 4 * t, picture.height - height + 1),
        .left = draws.Choice(4 + 4 * t, picture.width - width + 1),
        .size = {.height = height, .width = width}};
  }
  return std::nullopt;
}

// Four normal numbers of a block.
std::array<double, 4> Normals(const r123::Philox4x32::key_type& key,
                              uint32_t block) {
  const r123::Philox4x32::ctr_type words =
      r123::Philox4x32()({{block, 0, 0, 0}}, key);
  std::array<double, 4> numbers;
  for (size_t i = 0; i < 4; i += 2) {
    // In (0, 1].
    const double u = (static_cast<double>(words[i]) + 1) * 0x1p-32;
    const double turn = static_cast<double>(words[i + 1]) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(u));
    numbers[i] = radius * std::cos(2 * std::numbers::pi * turn);
    numbers[i + 1] = radius * std::sin(2 * std::numbers::pi * turn);
  }
  return numbers;
}

}  // namespace

const Declaration<RandomErasingOp>& RandomErasingOp::Declared() {
  static const auto declared = WithProbability(
      FeatureOp<RandomErasingOp>(
          "random_erasing",
          "Overwrites a random rectangle of a picture: torchvision's "
          "RandomErasing. Put it after normalize, where 0 is the mean.")
          .Gives("a picture of any dtype and layout → the same")
          .Example("{probability: 0.1}")
          .Optional("scale", &RandomErasingOp::scale,
                    Interval(kErasedAreaMin, 1),
                    "the range of its area, as a part of the picture's")
          .Optional("ratio", &RandomErasingOp::ratio,
                    Interval(1 / kErasedRatioMax, kErasedRatioMax),
                    "the range of its aspect ratio, height / width")
          .Optional("value", &RandomErasingOp::value,
                    WordOr("random", OneOrList(Number(-kValueMax, kValueMax),
                                               "a number", kErasedChannelsMax)),
                    "for all channels, or for each; random: normal, each "
                    "value its own"));
  return declared;
}

Status RandomErasingOp::AddTo(PathBuilder* path, uint32_t number) const {
  if (!path->channels_first()) PENSTOCK_RETURN_IF_ERROR(path->CheckImage());
  const Feature& feature = path->feature();
  const Strides strides = StridesOf(*path);
  const uint32_t bytes = DTypeBytes(feature.dtype);
  const ValueKernel convert = CastKernel(DType::kFloat64, feature.dtype);
  const auto to_value = [convert](double number, std::byte* out) {
    convert(nullptr, reinterpret_cast<const std::byte*>(&number), 1, out, 1, 1);
  };
  std::vector<std::byte> fills;
  if (!value) {
    if (!IsFloat(feature.dtype)) {
      return InvalidArgumentError(
          "value: random wants floating-point values, found {}; put it after "
          "normalize",
          feature.ToString());
    }
  } else {
    const size_t count = value->size();
    if (count != 1 && static_cast<int64_t>(count) != strides.channels) {
      return InvalidArgumentError("value: has {} numbers, {} wants 1 or {}",
                                  count, feature.ToString(), strides.channels);
    }
    fills.resize(static_cast<size_t>(strides.channels) * bytes);
    for (int64_t c = 0; c < strides.channels; ++c) {
      const double wanted = (*value)[count == 1 ? 0 : c];
      std::byte* const fill = fills.data() + c * bytes;
      to_value(wanted, fill);
      double back = 0;
      CastKernel(feature.dtype, DType::kFloat64)(
          nullptr, fill, 1, reinterpret_cast<std::byte*>(&back), 1, 1);
      if (std::abs(back - wanted) >= 1) {
        return InvalidArgumentError(
            "value: {} is none of {}; put it after normalize", wanted,
            feature.ToString());
      }
    }
  }
  path->AddChange(
      [op = *this, number, strides, bytes, to_value, fills = std::move(fills)](
          const AugmentationKey& key, std::byte* row) {
        const AugmentationDraws draws(key, number);
        if (draws.Uniform(0) >= op.probability) return;
        const std::optional<Rectangle> box = Choose(op, strides.size, draws);
        if (!box) return;
        const uint64_t bits = draws.Bits(63);
        const r123::Philox4x32::key_type noise = {
            {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)}};
        std::array<double, 4> normals = {};
        uint64_t i = 0;
        for (int64_t c = 0; c < strides.channels; ++c) {
          for (int64_t y = 0; y < box->size.height; ++y) {
            std::byte* out =
                row + (c * strides.channel + (box->top + y) * strides.row +
                       box->left * strides.column) *
                          bytes;
            for (int64_t x = 0; x < box->size.width; ++x, ++i) {
              if (op.value) {
                std::memcpy(out, fills.data() + c * bytes, bytes);
              } else {
                if (i % 4 == 0) {
                  normals = Normals(noise, static_cast<uint32_t>(i / 4));
                }
                to_value(normals[i % 4], out);
              }
              out += strides.column * bytes;
            }
          }
        }
      });
  return OkStatus();
}

}  // namespace penstock
