#include "broker/transform/mixup.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/transform/half.h"
#include "broker/transform/row_builder.h"

namespace penstock {
namespace {

Status CheckNoList(const RowBuilder& row, const PathBuilder& path) {
  return row.IsList(path) ? InvalidArgumentError(
                                "'{0}' is a list of {0}{1} items, and lists of "
                                "different lengths cannot be mixed",
                                path.feature().name, kLengthSuffix)
                          : OkStatus();
}

constexpr uint32_t kPairing = 0xff00;  // op of its draws
constexpr double kAlphaMin = 0.001;
constexpr double kAlphaMax = 1000;
constexpr char kLabelText[] =
    "labels mixed by the same weights: floats, one for each class";
constexpr char kMixedText[] = "the feature that is mixed, or a list";
constexpr char kMixProbabilityText[] = "that of mixing a pair";

// 0: never.
ValueType<double> AlphaOrZero() { return Number(0, kAlphaMax); }

// ---- values

// What a value is computed as, and back.
template <typename T>
T ToMix(T value) {
  return value;
}
float ToMix(uint8_t value) { return value; }
float ToMix(Float16 value) { return ToFloat(value); }
float ToMix(BFloat16 value) { return ToFloat(value); }
template <typename T>
void FromMix(T value, T* to) {
  *to = value;
}
void FromMix(float value, uint8_t* to) {
  // To nearest, ties to even: a sum of 2^23 has no fraction.
  *to = static_cast<uint8_t>(static_cast<int>(value + 0x1.8p23f - 0x1.8p23f));
}
void FromMix(float value, Float16* to) { *to = ToFloat16(value); }
void FromMix(float value, BFloat16* to) { *to = ToBFloat16(value); }

// Both at once, each with `kept` of itself.
template <typename T>
void MixValues(std::byte* first, std::byte* second, uint64_t bytes,
               double kept) {
  T* const a = reinterpret_cast<T*>(first);
  T* const b = reinterpret_cast<T*>(second);
  const uint64_t count = bytes / sizeof(T);
  using Wide = decltype(ToMix(T{}));
  const Wide of_itself = static_cast<Wide>(kept);
  const Wide of_other = static_cast<Wide>(1 - kept);
  for (uint64_t i = 0; i < count; ++i) {
    const Wide x = ToMix(a[i]);
    const Wide y = ToMix(b[i]);
    FromMix(y * of_other + x * of_itself, &a[i]);
    FromMix(x * of_other + y * of_itself, &b[i]);
  }
}

using Mixing = void (*)(std::byte* a, std::byte* b, uint64_t bytes,
                        double kept);
// nullptr: values of this dtype cannot be mixed.
Mixing MixingOf(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
      return MixValues<uint8_t>;
    case DType::kFloat16:
      return MixValues<Float16>;
    case DType::kBFloat16:
      return MixValues<BFloat16>;
    case DType::kFloat32:
      return MixValues<float>;
    case DType::kFloat64:
      return MixValues<double>;
    default:
      return nullptr;
  }
}

// ---- boxes

// A picture as `planes` of [height, width] pixels of so many bytes.
struct Pixels {
  int64_t planes;
  ImageSize size;
  int64_t pixel_bytes;
};

Pixels PixelsOf(const PathBuilder& path) {
  const std::vector<int64_t>& shape = path.feature().shape;
  const int64_t bytes = DTypeBytes(path.feature().dtype);
  if (path.channels_first() && shape.size() == 3) {
    return {shape[0], {.height = shape[1], .width = shape[2]}, bytes};
  }
  return {1,
          {.height = shape[0], .width = shape[1]},
          bytes * (shape.size() == 3 ? shape[2] : 1)};
}

struct Box {
  int64_t left;
  int64_t top;
  int64_t right;
  int64_t bottom;
};

Box Choose(const ImageSize& size, double lambda,
           const AugmentationDraws& draws) {
  const int64_t x = draws.Choice(130, size.width);
  const int64_t y = draws.Choice(131, size.height);
  const double half = 0.5 * std::sqrt(1 - lambda);
  const auto half_width =
      static_cast<int64_t>(half * static_cast<double>(size.width));
  const auto half_height =
      static_cast<int64_t>(half * static_cast<double>(size.height));
  return {.left = std::max<int64_t>(x - half_width, 0),
          .top = std::max<int64_t>(y - half_height, 0),
          .right = std::min(x + half_width, size.width),
          .bottom = std::min(y + half_height, size.height)};
}

void SwapBox(const Pixels& pixels, const Box& box, std::byte* a, std::byte* b) {
  const int64_t bytes = (box.right - box.left) * pixels.pixel_bytes;
  for (int64_t plane = 0; plane < pixels.planes; ++plane) {
    for (int64_t y = box.top; y < box.bottom; ++y) {
      const int64_t begin =
          ((plane * pixels.size.height + y) * pixels.size.width + box.left) *
          pixels.pixel_bytes;
      std::swap_ranges(a + begin, a + begin + bytes, b + begin);
    }
  }
}

// ---- a pair

struct Mixed {
  uint64_t bytes;
  Mixing mixing;
};

struct Pair {
  MixupOp op;
  uint32_t number = 0;
  std::vector<Mixed> features;  // then the labels
  std::vector<Pixels> pixels;   // of features, if there are boxes

  void Mix(const AugmentationKey& key, std::span<std::byte* const> a,
           std::span<std::byte* const> b) const {
    const AugmentationDraws draws(key, number);
    if (draws.Uniform(128) >= op.probability) return;
    const bool boxes =
        op.cutmix_alpha > 0 &&
        (op.alpha == 0 || draws.Uniform(129) < op.switch_probability);
    const double alpha = boxes ? op.cutmix_alpha : op.alpha;
    const double first = GammaVariate(alpha, draws, 0);
    double lambda = first / (first + GammaVariate(alpha, draws, 1));
    size_t next = 0;
    if (boxes) {
      const ImageSize size = pixels[0].size;
      const Box box = Choose(size, lambda, draws);
      for (; next < pixels.size(); ++next) {
        SwapBox(pixels[next], box, a[next], b[next]);
      }
      lambda = 1 - static_cast<double>((box.right - box.left) *
                                       (box.bottom - box.top)) /
                       static_cast<double>(size.height * size.width);
    }
    for (; next < features.size(); ++next) {
      features[next].mixing(a[next], b[next], features[next].bytes, lambda);
    }
  }
};

Status AddMixup(const MixupOp& op, uint32_t number, RowBuilder* row) {
  Pair pair = {.op = op, .number = number};
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<PathBuilder*> found,
                            row->FindAll(op.feature));
  if (found.empty()) {
    return InvalidArgumentError("names no feature; `feature: NAME` chooses");
  }
  for (const PathBuilder* each : found) {
    PENSTOCK_RETURN_IF_ERROR(each->CheckDecoded());
    const Feature& feature = each->feature();
    PENSTOCK_RETURN_IF_ERROR(CheckNoList(*row, *each));
    const Mixing mixing = MixingOf(feature.dtype);
    if (mixing == nullptr && op.alpha > 0) {
      return InvalidArgumentError(
          "wants floating-point or uint8 values, found {}; put `cast` before "
          "it",
          feature.ToString());
    }
    pair.features.push_back({feature.RowBytes(), mixing});
    if (op.cutmix_alpha == 0) continue;
    if (!each->channels_first()) PENSTOCK_RETURN_IF_ERROR(each->CheckImage());
    pair.pixels.push_back(PixelsOf(*each));
    const ImageSize& size = pair.pixels.back().size;
    if (size.height == 0 || size.width == 0) {
      return InvalidArgumentError("wants pixels, found {}", feature.ToString());
    }
    if (!(size == pair.pixels[0].size)) {
      return InvalidArgumentError(
          "mixes pictures of one size by the same box, found {} and {}; use "
          "resize before it",
          found[0]->feature().ToString(), feature.ToString());
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<PathBuilder*> labels,
                            row->FindAll(op.label));
  for (PathBuilder* each : labels) {
    if (std::find(found.begin(), found.end(), each) != found.end()) {
      return InvalidArgumentError(
          "names feature '{}' twice, in `feature` and `label`", each->name());
    }
    PENSTOCK_RETURN_IF_ERROR(CheckNoList(*row, *each));
    PENSTOCK_RETURN_IF_ERROR(
        each->CheckFloats("put one_hot before it, or name other labels in "
                          "`label`"));
    pair.features.push_back(
        {each->feature().RowBytes(), MixingOf(each->feature().dtype)});
    found.push_back(each);
  }
  row->AddPairStep(
      std::move(found),
      [pair = std::move(pair)](
          const AugmentationKey& key, std::span<std::byte* const> a,
          std::span<std::byte* const> b) { pair.Mix(key, a, b); });
  return OkStatus();
}

}  // namespace

std::optional<uint64_t> PartnerOf(uint64_t row, uint64_t rows, uint64_t seed,
                                  uint64_t epoch) {
  const uint64_t group = row / kPairedRows;
  const uint64_t first = group * kPairedRows;
  const uint64_t place = row - first;
  if (rows - first < kPairedRows) {
    if ((row ^ 1) < rows) return row ^ 1;
    return row == 0 ? std::nullopt : std::optional(row - 1);
  }
  const uint64_t with_first =
      1 + static_cast<uint64_t>(
              AugmentationDraws({seed, epoch, group}, kPairing).Choice(0, 3));
  if (place == 0) return first + with_first;
  if (place == with_first) return first;
  return first + (1 + 2 + 3) - with_first - place;
}

const Declaration<MixupOp>& MixupOp::Declared() {
  static const auto declared =
      Declaration<MixupOp>(
          "mixup",
          "Mixes finished rows two by two, of whichever ranks, and their "
          "one-hot labels: mixup, or with cutmix_alpha by a part of the pairs "
          "cutmix, as timm's Mixup(mode='pair') and torchvision's MixUp and "
          "CutMix. Put it last.")
          .Gives(
              "floats or uint8 of any shape (boxes: pictures), labels: "
              "floats → the same")
          .Example("{alpha: 0.8, cutmix_alpha: 1}")
          .Optional("feature", &MixupOp::feature, FeatureNamesType(),
                    kMixedText)
          .Optional("label", &MixupOp::label, FeatureNamesType(), kLabelText)
          .Optional("alpha", &MixupOp::alpha, AlphaOrZero(),
                    "of the beta distribution of mixup's weight; 0: cutmix "
                    "alone")
          .Optional("cutmix_alpha", &MixupOp::cutmix_alpha, AlphaOrZero(),
                    "of cutmix's; 0: mixup alone")
          .Optional("switch_probability", &MixupOp::switch_probability,
                    Number(0, 1), "that of cutmix, if both are given")
          .Optional("probability", &MixupOp::probability, Number(0, 1),
                    kMixProbabilityText);
  return declared;
}

Status MixupOp::AddToPairs(RowBuilder* row, uint32_t number) const {
  if (alpha == 0 && cutmix_alpha == 0) {
    return InvalidArgumentError(
        "alpha and cutmix_alpha are both 0: give one of them");
  }
  for (const auto& [key, value] :
       {std::pair("alpha", alpha), std::pair("cutmix_alpha", cutmix_alpha)}) {
    if (value == 0 || value >= kAlphaMin) continue;
    return AtPath(key,
                  InvalidArgumentError("wanted at least {}, or 0, found {}",
                                       kAlphaMin, value));
  }
  return AddMixup(*this, number, row);
}

const Declaration<CutmixOp>& CutmixOp::Declared() {
  static const auto declared =
      Declaration<CutmixOp>(
          "cutmix",
          "Swaps a random box of finished rows, two by two, of whichever "
          "ranks, and mixes their one-hot labels by its area: torchvision's "
          "CutMix. Put it last. mixup has both.")
          .Gives("pictures of floats or uint8, labels: floats → the same")
          .Example("{alpha: 1}")
          .Optional("feature", &CutmixOp::feature, FeatureNamesType(),
                    kMixedText)
          .Optional("label", &CutmixOp::label, FeatureNamesType(), kLabelText)
          .Optional("alpha", &CutmixOp::alpha, Number(kAlphaMin, kAlphaMax),
                    "of the beta distribution of the part outside the box")
          .Optional("probability", &CutmixOp::probability, Number(0, 1),
                    kMixProbabilityText);
  return declared;
}

Status CutmixOp::AddToPairs(RowBuilder* row, uint32_t number) const {
  return AddMixup({.feature = feature,
                   .label = label,
                   .alpha = 0,
                   .cutmix_alpha = alpha,
                   .probability = probability},
                  number, row);
}

}  // namespace penstock
