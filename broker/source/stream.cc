// Describes the rows; the rows themselves belong to one job, not to the dataset
// (broker/stream/stream.h).
#include "broker/declare/declaration.h"
#include "broker/source/kinds.h"

namespace penstock {
namespace {

constexpr uint64_t kProducersMax = 1 << 20;  // over the whole job, not at once

class Stream final : public Source {
 public:
  explicit Stream(const StreamSource& spec)
      : raw_spec_(RawSpecOf(spec.features)) {}

  // As many as a plan may have: the number is unknown.
  uint64_t record_count() const override { return kRecordsMax; }
  const RawSpec& raw_spec() const override { return raw_spec_; }

  Status Unpack(uint64_t record, const ReadBytes&, std::vector<std::byte>*,
                RawRecord*) const override {
    return InternalError("{} is its job's", Describe(record));
  }
  std::string Describe(uint64_t record) const override {
    return Format("row {} of a stream", record);
  }

 private:
  const RawSpec raw_spec_;
};

}  // namespace

const Declaration<StreamSource>& StreamSource::Declared() {
  static const auto declared =
      Declaration<StreamSource>("stream",
                                "Rows that producers put while the job runs "
                                "(penstock_produce, penstock.producer); no "
                                "shuffle, one epoch.")
          .Gives("as given")
          .Example("{features: {x: {dtype: float32, shape: [8]}}}")
          .Required("features", &StreamSource::features, Features(),
                    kFeaturesText)
          .Optional("producers", &StreamSource::producers,
                    WholeNumber<uint64_t>(1, kProducersMax),
                    "the number that must finish before the stream ends; more, "
                    "if more were active at once");
  return declared;
}

OpenedSource StreamSource::Open(OpenProgress*) const {
  return std::unique_ptr<Source>(new Stream(*this));
}

}  // namespace penstock
