// source: tensors. Values written in the spec, kept in memory; record r is row
// r modulo the number of rows.
#include "broker/source/open.h"

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

  void Locate(uint64_t, ReadRequest* request) const override {
    request->kind = ReadRequest::Kind::kNone;
  }

  Status Unpack(uint64_t record, std::span<const std::byte>,
                std::vector<std::byte>*, RawRecord* raw) const override {
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

}  // namespace

StatusOr<std::unique_ptr<Source>> OpenTensors(const TensorsSource& spec) {
  if (spec.tensors.empty() || spec.rows == 0 || spec.repeat == 0) {
    return InvalidArgumentError(
        "tensors: {} features, {} rows, repeated {} times; wanted at least one "
        "of each",
        spec.tensors.size(), spec.rows, spec.repeat);
  }
  if (spec.repeat > UINT64_MAX / spec.rows) {
    return InvalidArgumentError(
        "tensors: {} rows times repeat {} is more than 2^64 - 1 records",
        spec.rows, spec.repeat);
  }
  for (const TensorsSource::Tensor& tensor : spec.tensors) {
    const uint64_t bytes = tensor.data.size();
    if (bytes % spec.rows != 0 ||
        bytes / spec.rows != tensor.feature.RowBytes()) {
      return InvalidArgumentError(
          "tensors: feature {} has {} bytes of data; wanted {} rows of {}",
          tensor.feature.ToString(), bytes, spec.rows,
          tensor.feature.RowBytes());
    }
  }
  return std::unique_ptr<Source>(new Tensors(spec));
}

}  // namespace penstock
