#include <cstring>
#include <limits>

#include "broker/declare/declaration.h"
#include "broker/source/kinds.h"

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

  Status Unpack(uint64_t record, const ReadBytes&,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const int64_t value = Value(record);
    scratch->resize(sizeof(value));
    std::memcpy(scratch->data(), &value, sizeof(value));
    raw->assign(1, *scratch);
    return OkStatus();
  }

  bool KnownNumber(uint64_t record, size_t, std::byte* number) const override {
    const int64_t value = Value(record);
    std::memcpy(number, &value, sizeof(value));
    return true;
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

// The number of the last record, start and stop being in order. Unsigned, so
// that neither the distance nor -INT64_MIN overflows.
uint64_t LastRecord(const RangeSource& spec) {
  const auto start = static_cast<uint64_t>(spec.start);
  const auto stop = static_cast<uint64_t>(spec.stop);
  const auto step = static_cast<uint64_t>(spec.step);
  return spec.step > 0 ? (stop - start - 1) / step
                       : (start - stop - 1) / (uint64_t{0} - step);
}

Status CheckRange(const YamlValue& value, RangeSource* range) {
  if (range->step == 0) {
    return value.Optional("step").Error("0 never reaches stop");
  }
  if (range->step > 0 ? range->start >= range->stop
                      : range->start <= range->stop) {
    return value.Error(Format("no value from {} to below {} in steps of {}",
                              range->start, range->stop, range->step));
  }
  if (LastRecord(*range) >= kRecordsMax) {
    return value.Error(Format("more than {} values", kRecordsMax));
  }
  return OkStatus();
}

}  // namespace

const Declaration<RangeSource>& RangeSource::Declared() {
  const auto any = WholeNumber(std::numeric_limits<int64_t>::min(),
                               std::numeric_limits<int64_t>::max());
  static const auto declared =
      Declaration<RangeSource>("range", "Numbers, computed and not read.")
          .Gives("value int64")
          .Example("{start: 10, stop: 0, step: -2}")
          .Brief("a number of records", &RangeSource::stop,
                 WholeNumber<int64_t>(1, kRecordsMax))
          .Optional("start", &RangeSource::start, any, "the first")
          .Required("stop", &RangeSource::stop, any,
                    "all are below it, or above it where step is negative")
          .Optional("step", &RangeSource::step, any,
                    "the difference between neighbours")
          .Check(CheckRange);
  return declared;
}

OpenedSource RangeSource::Open(OpenProgress*) const {
  return std::unique_ptr<Source>(new Range(*this, LastRecord(*this) + 1));
}

}  // namespace penstock
