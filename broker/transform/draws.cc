#include "broker/transform/draws.h"

#include <algorithm>
#include <type_traits>
#include <variant>

namespace penstock {
namespace {

template <typename Op, typename... Ops>
constexpr bool kIsOneOf = (std::is_same_v<Op, Ops> || ...);

// They have no random numbers, whatever their keys.
template <typename Op>
constexpr bool kNeverDraws =
    kIsOneOf<Op, MelSpectrogramOp, ResizeOp, PadOp, NormalizeOp, CastOp,
             RescaleOp, ClipOp, BucketizeOp, OneHotOp, LabelSmoothingOp,
             LookupOp, HashOp, ParseJsonOp, TokenizeOp, VectorizeTextOp,
             EncodeBytesOp, PadSequenceOp, ConcatenateOp, ReshapeOp, SelectOp,
             DropOp, RenameOp, CopyOp, KeepEncodedOp, ConvertBoxesOp,
             SanitizeBoxesOp>;
// Only whether they happen is random.
template <typename Op>
constexpr bool kMayHappen =
    kIsOneOf<Op, GrayscaleOp, SharpnessOp, SolarizeOp, PosterizeOp, EqualizeOp,
             AutocontrastOp, InvertOp>;
template <typename Op>
constexpr bool kAlwaysDraws =
    kIsOneOf<Op, PythonOp, PluginOp, MixupOp, CutmixOp, ColorJitterOp,
             RandAugmentOp, TrivialAugmentOp, AugMixOp, TimmRandAugmentOp,
             RandomErasingOp, NoiseOp>;

bool IsRandom(double probability) {
  return probability != 0 && probability != 1;
}
bool IsRandom(const Range& range) { return range[0] != range[1]; }

bool DrawsCrop(const CropSpec& crop) {
  return std::holds_alternative<RandomResizedCrop>(crop) ||
         std::holds_alternative<RandomPixels>(crop);
}

bool DrawsAs(const DecodeImageOp& op) { return op.crop && DrawsCrop(*op.crop); }
bool DrawsAs(const DecodeAudioOp& op) {
  return op.crop == DecodeAudioOp::Crop::kRandom;
}
bool DrawsAs(const GainOp& op) { return op.decibels[0] != op.decibels[1]; }
bool DrawsAs(const MaskSpectrogramOp& op) {
  return op.time > 0 || op.frequency > 0;
}
bool DrawsAs(const CropOp& op) { return DrawsCrop(op.crop); }
bool DrawsAs(const FlipOp& op) {
  return IsRandom(op.horizontal) || IsRandom(op.vertical);
}
bool DrawsAs(const RotateOp& op) {
  return IsRandom(op.degrees) || IsRandom(op.probability);
}
bool DrawsAs(const AffineOp& op) {
  return IsRandom(op.degrees) || IsRandom(op.scale) ||
         IsRandom(op.translate[0]) || IsRandom(op.translate[1]) ||
         IsRandom(op.shear[0]) || IsRandom(op.shear[1]) ||
         IsRandom(op.probability);
}
bool DrawsAs(const PerspectiveOp& op) {
  return !op.corners || IsRandom(op.probability);
}
bool DrawsAs(const BlurOp& op) {
  return IsRandom(op.sigma) || IsRandom(op.probability);
}

}  // namespace

bool PutsChannelsFirst(const TransformSpec& step) {
  return std::visit(
      [](const auto& op) {
        if constexpr (requires { op.layout; }) {
          return op.layout == Layout::kChw;
        } else {
          return false;
        }
      },
      step);
}

bool Draws(const TransformSpec& step) {
  return std::visit(
      [](const auto& op) {
        using Op = std::remove_cvref_t<decltype(op)>;
        if constexpr (kNeverDraws<Op>) {
          return false;
        } else if constexpr (kMayHappen<Op>) {
          return IsRandom(op.probability);
        } else if constexpr (kAlwaysDraws<Op>) {
          return true;
        } else {
          return DrawsAs(op);
        }
      },
      step);
}

size_t StepsToKeep(std::span<const MapStep> steps) {
  const auto end =
      std::find_if(steps.begin(), steps.end(),
                   [](const MapStep& step) { return Draws(*step.op); });
  if (end == steps.end()) return steps.size();
  const auto last = std::find_if(steps.begin(), end, [](const MapStep& step) {
    return PutsChannelsFirst(*step.op);
  });
  return static_cast<size_t>(last - steps.begin());
}

}  // namespace penstock
