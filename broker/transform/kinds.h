// All operations of `map`, in the order in which people are told of them. Those
// of single features have a member feature, and AddTo, or Step if they change
// pictures of bytes; those that take or make several have AddToRow; those that
// mix rows AddToPairs; functions of whole rows have Open and Name. All have
// Declared.
#ifndef BROKER_TRANSFORM_KINDS_H_
#define BROKER_TRANSFORM_KINDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "broker/transform/affine.h"
#include "broker/transform/boxes.h"
#include "broker/transform/color.h"
#include "broker/transform/concatenate.h"
#include "broker/transform/decode_audio.h"
#include "broker/transform/decode_image.h"
#include "broker/transform/erase.h"
#include "broker/transform/feature_names.h"
#include "broker/transform/mixup.h"
#include "broker/transform/noise.h"
#include "broker/transform/normalize.h"
#include "broker/transform/numbers.h"
#include "broker/transform/policies.h"
#include "broker/transform/resize.h"
#include "broker/transform/row_function.h"
#include "broker/transform/spectrogram.h"
#include "broker/transform/text_tokens.h"
#include "broker/transform/texts.h"
#include "broker/transform/timm_augment.h"
#include "broker/transform/tokenize.h"
#include "common/format.h"

namespace penstock {

using TransformSpec = std::variant<  //
    DecodeImageOp,                   //
    DecodeAudioOp,                   //
    GainOp,                          //
    NoiseOp,                         //
    MelSpectrogramOp,                //
    MaskSpectrogramOp,               //
    CropOp,                          //
    ResizeOp,                        //
    PadOp,                           //
    FlipOp,                          //
    RotateOp,                        //
    AffineOp,                        //
    PerspectiveOp,                   //
    ConvertBoxesOp,                  //
    SanitizeBoxesOp,                 //
    ColorJitterOp,                   //
    GrayscaleOp,                     //
    BlurOp,                          //
    SharpnessOp,                     //
    SolarizeOp,                      //
    PosterizeOp,                     //
    EqualizeOp,                      //
    AutocontrastOp,                  //
    InvertOp,                        //
    RandAugmentOp,                   //
    TrivialAugmentOp,                //
    AugMixOp,                        //
    TimmRandAugmentOp,               //
    NormalizeOp,                     //
    RandomErasingOp,                 //
    CastOp,                          //
    RescaleOp,                       //
    ClipOp,                          //
    BucketizeOp,                     //
    OneHotOp,                        //
    LabelSmoothingOp,                //
    LookupOp,                        //
    HashOp,                          //
    ParseJsonOp,                     //
    TokenizeOp,                      //
    VectorizeTextOp,                 //
    EncodeBytesOp,                   //
    PadSequenceOp,                   //
    ConcatenateOp,                   //
    ReshapeOp,                       //
    SelectOp,                        //
    DropOp,                          //
    RenameOp,                        //
    CopyOp,                          //
    KeepEncodedOp,                   //
    MixupOp,                         //
    CutmixOp,                        //
    PythonOp,                        //
    PluginOp>;

// A step of the map of a row.
struct MapStep {
  const TransformSpec* op;
  uint32_t number;   // keys its random numbers; unique in the spec
  std::string path;  // in the spec, "map[2]"
};
// The steps of a list with this path, numbered from `first` on. They point into
// it.
inline std::vector<MapStep> StepsOf(const std::vector<TransformSpec>& list,
                                    std::string_view path = "map",
                                    size_t first = 0) {
  std::vector<MapStep> steps;
  for (size_t i = 0; i < list.size(); ++i) {
    steps.push_back({&list[i], static_cast<uint32_t>(first + i),
                     Format("{}[{}]", path, i)});
  }
  return steps;
}

template <typename Op>
concept IsFunction = requires(const Op& op) {
  op.Name();
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_KINDS_H_
