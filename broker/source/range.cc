// source: range. Computed numbers; no memory, no reads.
#include <cstring>

#include "broker/source/open.h"

namespace penstock {
namespace {

class Range final : public Source {
 public:
  Range(const RangeSource& spec, uint64_t records)
      : spec_(spec),
        records_(records),
        raw_spec_({{{"value", DType::kInt64, {}}, false}}) {}

  uint64_t record_count() const override { return records_; }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override { return 0; }

  void Locate(uint64_t, ReadRequest* request) const override {
    request->kind = ReadRequest::Kind::kNone;
  }

  Status Unpack(uint64_t record, std::span<const std::byte>,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const int64_t value = Value(record);
    scratch->resize(sizeof(value));
    std::memcpy(scratch->data(), &value, sizeof(value));
    raw->assign(1, *scratch);
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    return Format("range value {}", Value(record));
  }

 private:
  // Unsigned: the product may exceed 2^63 although the value does not.
  int64_t Value(uint64_t record) const {
    return static_cast<int64_t>(static_cast<uint64_t>(spec_.start) +
                                record * static_cast<uint64_t>(spec_.step));
  }

  const RangeSource spec_;
  const uint64_t records_;
  const RawSpec raw_spec_;
};

}  // namespace

StatusOr<std::unique_ptr<Source>> OpenRange(const RangeSource& spec) {
  if (spec.step == 0) {
    return InvalidArgumentError("range: step is 0, wanted any other number");
  }
  const bool up = spec.step > 0;
  if (up ? spec.start >= spec.stop : spec.start <= spec.stop) {
    return InvalidArgumentError(
        "range: no value from {} to {} in steps of {}; wanted at least one",
        spec.start, spec.stop, spec.step);
  }
  // The distance of two int64 needs a uint64.
  const auto start = static_cast<uint64_t>(spec.start);
  const auto stop = static_cast<uint64_t>(spec.stop);
  const auto step = static_cast<uint64_t>(spec.step);
  const uint64_t distance = up ? stop - start : start - stop;
  const uint64_t records = (distance - 1) / (up ? step : uint64_t{0} - step);
  if (records == UINT64_MAX) {
    return InvalidArgumentError("range: more than 2^64 - 1 values");
  }
  return std::unique_ptr<Source>(new Range(spec, records + 1));
}

}  // namespace penstock
