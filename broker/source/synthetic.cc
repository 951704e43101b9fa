// The formula. Mix is the output function of SplitMix64 (Steele, Lea, Flood:
// Fast Splittable Pseudorandom Number Generators, 2014). Feature f of record r
// is the stream of 64-bit words, little-endian,
//
//   word[k] = Mix(Mix(Mix(r) + f) + (k + 1) * 0x9e3779b97f4a7c15)
//
// for k = 0, 1, ..., cut to the feature's bytes. An integer dtype uses these
// bytes as they are, a bool the lowest bit of each. A float reads each value's
// bytes as an unsigned number u of b bits and becomes (u >> (b - p)) * 2^-p,
// where p is its number of significant bits (float64 53, float32 24, float16
// 11, bfloat16 8): exact, uniform in [0, 1), never NaN.
#include <time.h>

#include <bit>
#include <cstring>

#include "broker/declare/declaration.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "common/hash.h"

namespace penstock {
namespace {

constexpr uint64_t kCostUsMax = 1'000'000;  // a second for one record
// Features start at multiples of this in the scratch.
constexpr uint64_t kFeatureAlign = 16;

void FillWords(uint64_t state, std::span<std::byte> out) {
  static_assert(std::endian::native == std::endian::little);
  size_t at = 0;
  for (; out.size() - at >= sizeof(uint64_t); at += sizeof(uint64_t)) {
    const uint64_t word = Mix64(state += kGolden64);
    std::memcpy(out.data() + at, &word, sizeof(word));
  }
  const uint64_t word = Mix64(state + kGolden64);
  std::memcpy(out.data() + at, &word, out.size() - at);
}

// Converts random bits to values, in place. Convert: Bits -> the value's bits.
template <typename Bits, typename Convert>
void ConvertBits(std::span<std::byte> values, Convert convert) {
  for (size_t at = 0; at < values.size(); at += sizeof(Bits)) {
    const Bits bits = convert(ValueAt<Bits>(&values[at]));
    std::memcpy(values.data() + at, &bits, sizeof(bits));
  }
}

uint32_t FractionBits(uint32_t numerator, float unit) {
  return std::bit_cast<uint32_t>(static_cast<float>(numerator) * unit);
}

void ToValues(DType dtype, std::span<std::byte> values) {
  switch (dtype) {
    case DType::kFloat64:
      return ConvertBits<uint64_t>(values, [](uint64_t u) {
        return std::bit_cast<uint64_t>(static_cast<double>(u >> 11) * 0x1p-53);
      });
    case DType::kFloat32:
      return ConvertBits<uint32_t>(
          values, [](uint32_t u) { return FractionBits(u >> 8, 0x1p-24f); });
    case DType::kFloat16:
      // 0 or at least 2^-11, so always a normal number of binary16; its 11 bits
      // fit without rounding: change the exponent's bias (127 -> 15).
      return ConvertBits<uint16_t>(values, [](uint16_t u) {
        const uint32_t bits = FractionBits(u >> 5, 0x1p-11f);
        return static_cast<uint16_t>(
            bits == 0 ? 0 : (bits >> 13) - ((127 - 15) << 10));
      });
    case DType::kBFloat16:
      return ConvertBits<uint16_t>(values, [](uint16_t u) {
        return static_cast<uint16_t>(FractionBits(u >> 8, 0x1p-8f) >> 16);
      });
    case DType::kBool:
      return ConvertBits<uint8_t>(
          values, [](uint8_t u) { return static_cast<uint8_t>(u & 1); });
    case DType::kUint8:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return;
  }
}

uint64_t ThreadCpuNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(now.tv_nsec);
}

class Synthetic final : public Source {
 public:
  explicit Synthetic(const SyntheticSource& spec)
      : records_(spec.records),
        cost_ns_(spec.cost_us * 1000),
        raw_spec_(RawSpecOf(spec.features)) {
    for (const Feature& feature : spec.features) {
      offsets_.push_back(scratch_bytes_);
      scratch_bytes_ += (feature.RowBytes() + kFeatureAlign - 1) /
                        kFeatureAlign * kFeatureAlign;
    }
  }

  uint64_t record_count() const override { return records_; }
  const RawSpec& raw_spec() const override { return raw_spec_; }

  Status Unpack(uint64_t record, const ReadBytes&,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const uint64_t end_ns = cost_ns_ == 0 ? 0 : ThreadCpuNs() + cost_ns_;
    scratch->resize(scratch_bytes_);
    raw->resize(raw_spec_.size());
    for (size_t i = 0; i < raw_spec_.size(); ++i) {
      const Feature& feature = raw_spec_[i].feature;
      const auto out =
          std::span(*scratch).subspan(offsets_[i], feature.RowBytes());
      FillWords(Mix64(Mix64(record) + i), out);
      ToValues(feature.dtype, out);
      (*raw)[i] = out;
    }
    // CPU time of this thread, not wall time: preempted time does not count.
    // Reading the clock is the work.
    if (cost_ns_ != 0) {
      while (ThreadCpuNs() < end_ns) {
      }
    }
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    return Format("synthetic record {}", record);
  }

 private:
  const uint64_t records_;
  const uint64_t cost_ns_;  // of a whole Unpack, including making the bytes
  const RawSpec raw_spec_;
  std::vector<uint64_t> offsets_;  // of each feature in the scratch
  uint64_t scratch_bytes_ = 0;
};

}  // namespace

const Declaration<SyntheticSource>& SyntheticSource::Declared() {
  static const auto declared =
      Declaration<SyntheticSource>("synthetic",
                                   "Generated records, to measure everything "
                                   "but I/O.")
          .Gives("as given, a function of the record's number")
          .Example(
              "{records: 1000, features: {x: {dtype: float32, shape: [8]}}}")
          .Required("records", &SyntheticSource::records,
                    WholeNumber<uint64_t>(1, kRecordsMax), "their number")
          .Required("features", &SyntheticSource::features, Features(),
                    kFeaturesText)
          .Optional("cost_us", &SyntheticSource::cost_us,
                    WholeNumber<uint64_t>(0, kCostUsMax),
                    "microseconds of CPU time spent on each record");
  return declared;
}

OpenedSource SyntheticSource::Open(OpenProgress*) const {
  uint64_t bytes = 0;
  for (const Feature& feature : features) {
    const uint64_t row_bytes = feature.RowBytes();
    if (row_bytes > kRecordBytesMax - bytes) {
      return InvalidArgumentError(
          "synthetic: with feature {} a record has more than {} bytes",
          feature.ToString(), kRecordBytesMax);
    }
    bytes += row_bytes;
  }
  return std::unique_ptr<Source>(new Synthetic(*this));
}

}  // namespace penstock
