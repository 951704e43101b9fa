// source: stream. Describes the rows; the rows themselves belong to one job,
// not to the dataset (broker/stream/stream.h).
#include "broker/source/open.h"

namespace penstock {
namespace {

class Stream final : public Source {
 public:
  explicit Stream(const StreamSource& spec) {
    for (const Feature& feature : spec.features) {
      raw_spec_.push_back({feature, false});
    }
  }

  // As many as a plan may have: the number is unknown.
  uint64_t record_count() const override { return uint64_t{1} << 53; }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override { return 0; }

  void Locate(uint64_t, ReadRequest* request) const override {
    request->kind = ReadRequest::Kind::kNone;
  }
  Status Unpack(uint64_t record, std::span<const std::byte>,
                std::vector<std::byte>*, RawRecord*) const override {
    return InternalError("{} is its job's", Describe(record));
  }
  std::string Describe(uint64_t record) const override {
    return Format("row {} of a stream", record);
  }

 private:
  RawSpec raw_spec_;
};

}  // namespace

StatusOr<std::unique_ptr<Source>> OpenStream(const StreamSource& spec) {
  return std::unique_ptr<Source>(new Stream(spec));
}

}  // namespace penstock
