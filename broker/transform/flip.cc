#include "broker/transform/flip.h"

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {

const Declaration<FlipOp>& FlipOp::Declared() {
  static const auto declared =
      Declaration<FlipOp>("flip",
                          "Mirrors a picture left to right, or top to bottom.")
          .Gives("a picture of any dtype → the same")
          .Example("{horizontal: 0.5}")
          .Optional("feature", &FlipOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Optional("mask", &FlipOp::mask, MaskNamesType(), kMaskText)
          .Optional("horizontal", &FlipOp::horizontal, Number(0, 1),
                    "the probability of left to right")
          .Optional("vertical", &FlipOp::vertical, LeftOutAt(0.0, Number(0, 1)),
                    "that of top to bottom, by default 0");
  return declared;
}

Status FlipOp::AddTo(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckImage());
  path->PendingPass().AddFlip({horizontal, vertical, number});
  return OkStatus();
}

Status FlipOp::AddToMask(PathBuilder* path, uint32_t number) const {
  return AddTo(path, number);
}

}  // namespace penstock
