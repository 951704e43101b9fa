#include <nlohmann/json.hpp>

#include "broker/declare/declaration.h"
#include "broker/source/kinds.h"
#include "broker/source/tensor_values.h"
#include "common/quantity.h"

namespace penstock {
namespace {

class Tensors final : public Source {
 public:
  explicit Tensors(const TensorsSource& spec)
      : tensors_(spec.tensors),
        rows_(spec.rows),
        records_(spec.rows * spec.repeat) {
    for (const TensorsSource::Tensor& tensor : tensors_) {
      raw_spec_.push_back({tensor.feature, false});
      memory_bytes_ += tensor.data.size();
    }
  }

  uint64_t record_count() const override { return records_; }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override { return memory_bytes_; }

  Status Unpack(uint64_t record, const ReadBytes&, std::vector<std::byte>*,
                RawRecord* raw) const override {
    raw->resize(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const uint64_t bytes = tensors_[i].data.size() / rows_;
      (*raw)[i] =
          std::span(tensors_[i].data).subspan((record % rows_) * bytes, bytes);
    }
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    return Format("tensors row {}", record % rows_);
  }

 private:
  const std::vector<TensorsSource::Tensor> tensors_;
  const uint64_t rows_;
  const uint64_t records_;
  RawSpec raw_spec_;
  uint64_t memory_bytes_ = 0;
};

Status ReadTensors(const YamlValue& features, TensorsSource* out) {
  static const ValueType<DType> dtypes = AnyDType();
  PENSTOCK_RETURN_IF_ERROR(CheckFeatureNames(features));
  for (size_t i = 0; i < features.size(); ++i) {
    TensorsSource::Tensor& tensor = out->tensors.emplace_back();
    tensor.feature.name = features.Key(i);
    YamlValue values = features.Required(tensor.feature.name);
    std::optional<DType> dtype;
    if (values.IsMapping()) {
      const YamlValue feature = values;
      PENSTOCK_RETURN_IF_ERROR(feature.CheckMapping(
          {"dtype", "values"}, "a mapping of dtype, values"));
      PENSTOCK_RETURN_IF_ERROR(
          dtypes.Read(feature.Required("dtype"), &dtype.emplace()));
      values = feature.Required("values");
    }
    uint64_t rows = 0;
    PENSTOCK_RETURN_IF_ERROR(
        ReadTensor(values, dtype, kShapeDimensionsMax, &tensor, &rows));
    if (i > 0 && rows != out->rows) {
      return values.Error(Format("{}, but '{}' has {}", Counted(rows, "row"),
                                 features.Key(0), out->rows));
    }
    out->rows = rows;
  }
  return OkStatus();
}

void WriteTensors(const TensorsSource& source, nlohmann::ordered_json* out) {
  *out = nlohmann::ordered_json::object();
  for (const TensorsSource::Tensor& tensor : source.tensors) {
    auto& written = (*out)[tensor.feature.name];
    written["dtype"] = DTypeName(tensor.feature.dtype);
    WriteTensor(tensor, source.rows, &written["values"]);
  }
}

}  // namespace

const Declaration<TensorsSource>& TensorsSource::Declared() {
  static const auto declared =
      Declaration<TensorsSource>("tensors", "Values written in the spec.")
          .Gives("as given")
          .Example("{features: {x: [[1, 2], [3, 4]], y: [0.5, 1.5]}}")
          .Add({"features",
                "{NAME: values} or {NAME: {dtype, values}}, nested lists, the "
                "outermost of rows; without a dtype int64 when all values are "
                "integers, bool when all are true or false, else float32",
                Features().wanted,
                true,
                false,
                {[](const YamlValue& value, void* object) {
                   return ReadTensors(value,
                                      static_cast<TensorsSource*>(object));
                 },
                 [](const void* object, nlohmann::ordered_json* out) {
                   WriteTensors(*static_cast<const TensorsSource*>(object),
                                out);
                 }}})
          .Add({"repeat",
                "number of passes over the rows",
                WholeNumber<uint64_t>(1, kRecordsMax).wanted,
                false,
                false,
                {[](const YamlValue& value, void* object) {
                   auto& source = *static_cast<TensorsSource*>(object);
                   return WholeNumber<uint64_t>(1, kRecordsMax / source.rows)
                       .Read(value, &source.repeat);
                 },
                 [](const void* object, nlohmann::ordered_json* out) {
                   *out = static_cast<const TensorsSource*>(object)->repeat;
                 }}});
  return declared;
}

OpenedSource TensorsSource::Open(OpenProgress*) const {
  return std::unique_ptr<Source>(new Tensors(*this));
}

}  // namespace penstock
