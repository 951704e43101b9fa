// The input is a TFRecord file, and then a bare tf.train.Example, which no
// checksum guards. What is refused is refused as documented; the features of
// what is read have the promised sizes.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/example.h"
#include "broker/source/kinds.h"
#include "common/fd.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

// Takes the names of the corpus in every way.
RecordFeatures Features() {
  RecordFeatures features;
  const auto add = [&features](const char* name, const char* key,
                               RecordFeature::Kind kind, DType dtype,
                               std::vector<int64_t> shape) {
    RecordFeature& each = features.emplace_back();
    each.feature = {name, dtype, std::move(shape)};
    each.key = key;
    each.kind = kind;
    if (kind == RecordFeature::Kind::kValues) each.otherwise = int64_t{1};
  };
  add("image", "image/encoded", RecordFeature::Kind::kEncoded, DType::kUint8,
      {});
  add("label", "image/class/label", RecordFeature::Kind::kValues, DType::kInt32,
      {});
  add("box", "", RecordFeature::Kind::kValues, DType::kFloat32, {2, 2});
  features.back().otherwise = 0.5;
  add("tokens", "", RecordFeature::Kind::kValues, DType::kInt64, {4});
  add("raw", "", RecordFeature::Kind::kValues, DType::kInt16, {2, 2});
  add("text", "", RecordFeature::Kind::kText, DType::kUint8, {12});
  add("list", "tokens", RecordFeature::Kind::kList, DType::kInt32, {3});
  features.back().cuts = true;
  add("pairs", "box", RecordFeature::Kind::kList, DType::kFloat32, {4, 2});
  features.back().otherwise = int64_t{0};
  add("bytes", "raw", RecordFeature::Kind::kList, DType::kInt16, {5});
  return features;
}

void CheckRaw(const RawSpec& spec, const RawRecord& raw) {
  Require(raw.size() == spec.size(), "every feature is there");
  for (size_t i = 0; i < raw.size(); ++i) {
    Require(spec[i].encoded ? !raw[i].empty()
                            : raw[i].size() == spec[i].feature.RowBytes(),
            "every feature has its size");
    volatile std::byte sum{};
    for (const std::byte byte : raw[i]) sum = sum ^ byte;
  }
}

void CheckExample(std::span<const std::byte> example) {
  static const RecordFeatures features = Features();
  static const ExampleFeatures taken(features);
  std::vector<std::byte> scratch;
  RawRecord raw;
  const Status status = taken.Unpack(example, &scratch, &raw);
  if (status.ok()) CheckRaw(RawSpecOf(features), raw);
  FeatureProposal proposal;
  for (int i = 0; i < 2; ++i) (void)proposal.Add(example);
  (void)proposal.Features();
  (void)proposal.LeftOut();
}

void CheckFile(std::string_view bytes) {
  static const Fd file(memfd_create("records", MFD_CLOEXEC));
  Require(ftruncate(file.get(), 0) == 0 &&
              pwrite(file.get(), bytes.data(), bytes.size(), 0) ==
                  static_cast<ssize_t>(bytes.size()),
          "the input can be written");
  TfrecordSource spec;
  spec.files.patterns = {"/proc/self/fd/" + std::to_string(file.get())};
  spec.features = Features();
  const auto source = OpenSource(spec, nullptr);
  if (!source.ok()) return;
  for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
    ReadRequest request;
    (*source)->Locate(i, &request);
    Require(request.bytes <= bytes.size() &&
                request.offset <= bytes.size() - request.bytes,
            "a record is in its file");
    std::vector<std::byte> scratch;
    RawRecord raw;
    const auto read =
        std::as_bytes(std::span(bytes.data() + request.offset, request.bytes));
    if ((*source)->Unpack(i, {read}, &scratch, &raw).ok()) {
      CheckRaw((*source)->raw_spec(), raw);
    }
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  setenv("PENSTOCK_CACHE_DIR", "/dev/null/no-folder", 1);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  penstock::CheckFile(input);
  penstock::CheckExample(std::as_bytes(std::span(input)));
  return 0;
}
