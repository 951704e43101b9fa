#include "broker/transform/cast.h"

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {

const Declaration<CastOp>& CastOp::Declared() {
  static const auto declared =
      Declaration<CastOp>("cast",
                          "Converts values: rounds to nearest even and "
                          "saturates (float16 has infinity beyond 65504); to "
                          "bool, all but 0 is true, NaN too.")
          .Gives("any → dtype")
          .Example("{dtype: float16}")
          .Optional("feature", &CastOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Required("dtype", &CastOp::dtype, AnyDType(), "of the result")
          .Optional("layout", &CastOp::layout, LayoutType(), kLayoutText);
  return declared;
}

Status CastOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
  PENSTOCK_RETURN_IF_ERROR(path->CheckLayout(layout));
  path->PendingPass().Cast(dtype);
  path->FinishValues(dtype, layout);
  return OkStatus();
}

}  // namespace penstock
