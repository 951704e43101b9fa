#include "broker/transform/rescale.h"

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr double kFactorMax = 1e30;

}  // namespace

const Declaration<RescaleOp>& RescaleOp::Declared() {
  static const auto declared =
      Declaration<RescaleOp>("rescale",
                             "Computes value × scale + offset, as Keras' "
                             "Rescaling.")
          .Gives("numbers → dtype")
          .Example("{scale: 0.00784313725490196, offset: -1}")
          .Optional("feature", &RescaleOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Required("scale", &RescaleOp::scale, Number(-kFactorMax, kFactorMax),
                    "the factor")
          .Optional("offset", &RescaleOp::offset,
                    Number(-kFactorMax, kFactorMax),
                    "what is added to the product")
          .Optional("dtype", &RescaleOp::dtype, FloatDType(), "of the result")
          .Optional("layout", &RescaleOp::layout, LayoutType(), kLayoutText);
  return declared;
}

Status RescaleOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckNumbers());
  PENSTOCK_RETURN_IF_ERROR(path->CheckLayout(layout));
  PathBuilder::Line line;
  if (scale != 0) line = {{-offset / scale / 255}, {1 / scale / 255}};
  path->Compute(EachValue(1, [scale = scale, offset = offset](
                                 double value,
                                 size_t) { return value * scale + offset; }),
                dtype, layout, line);
  return OkStatus();
}

}  // namespace penstock
