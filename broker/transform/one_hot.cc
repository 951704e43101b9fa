#include "broker/transform/one_hot.h"

#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/transform/path_builder.h"

namespace penstock {
namespace {

constexpr int64_t kClassesMax = int64_t{1} << 24;

class OneHotStage final : public Stage {
 public:
  OneHotStage(const OneHotOp& op, DType from)
      : op_(op),
        widen_(CastKernel(from, DType::kInt64)),
        from_bytes_(DTypeBytes(from)),
        to_bytes_(DTypeBytes(op.dtype)) {
    const int64_t one = 1;
    CastKernel(DType::kInt64, op.dtype)(
        nullptr, reinterpret_cast<const std::byte*>(&one), 1, one_, 1, 1);
  }

  Status Run(std::span<const std::byte> in, const AugmentationKey&,
             PathScratch&, std::byte* out) const override {
    std::fill_n(out, out_bytes, std::byte{0});
    for (size_t i = 0; i * from_bytes_ < in.size(); ++i) {
      int64_t label = 0;
      widen_(nullptr, &in[i * from_bytes_], 1,
             reinterpret_cast<std::byte*>(&label), 1, 1);
      if (label < 0 || label >= op_.classes) {
        if (op_.out_of_range == OneHotOp::OutOfRange::kZeros) continue;
        return DataLossError(
            "one_hot: {} is no class, from 0 to {} (`out_of_range: zeros` lets "
            "it be none)",
            label, op_.classes - 1);
      }
      const size_t at =
          i * static_cast<size_t>(op_.classes) + static_cast<size_t>(label);
      std::copy_n(one_, to_bytes_, out + at * to_bytes_);
    }
    return OkStatus();
  }

 private:
  const OneHotOp op_;
  const ValueKernel widen_;
  const size_t from_bytes_;
  const size_t to_bytes_;
  std::byte one_[sizeof(double)];
};

}  // namespace

const Declaration<OneHotOp>& OneHotOp::Declared() {
  static const auto declared =
      Declaration<OneHotOp>("one_hot",
                            "A label as zeros with a one at its place, as "
                            "tf.one_hot.")
          .Gives("integers [...] → dtype [..., classes]")
          .Example("{classes: 10}")
          .Optional("feature", &OneHotOp::feature, FeatureNamesType(),
                    kFeatureText)
          .Required("classes", &OneHotOp::classes,
                    WholeNumber<int64_t>(1, kClassesMax),
                    "how many there are: labels are from 0 to one less")
          .Optional("dtype", &OneHotOp::dtype, AnyDType(), "of the result")
          .Optional("out_of_range", &OneHotOp::out_of_range,
                    Words<OneHotOp::OutOfRange>(
                        {{"fail", OneHotOp::OutOfRange::kFail},
                         {"zeros", OneHotOp::OutOfRange::kZeros}}),
                    "another label is an error of its sample (on_error "
                    "applies), or all zeros");
  return declared;
}

Status OneHotOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(
      path->CheckIntegers("put `cast: {dtype: int64}` before it"));
  std::vector<int64_t> shape = path->feature().shape;
  shape.push_back(classes);
  const Feature wanted = {path->feature().name, dtype, shape};
  PENSTOCK_RETURN_IF_ERROR(CheckMade(wanted));
  path->AddStage(std::make_unique<OneHotStage>(*this, path->feature().dtype),
                 std::move(shape), dtype);
  return OkStatus();
}

}  // namespace penstock
