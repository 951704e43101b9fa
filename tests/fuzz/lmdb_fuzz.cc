// The input is an LMDB file. It is opened as source lmdb: without features, by
// pairs of keys, by every key, and a database with a name: what is refused is
// refused as documented, and what is read lies in the file and has the promised
// sizes.
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "common/fd.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

RecordFeature Feature(const char* name, const char* key,
                      RecordFeature::Kind kind, DType dtype,
                      std::vector<int64_t> shape) {
  RecordFeature feature;
  feature.feature = {name, dtype, std::move(shape)};
  feature.key = key;
  feature.kind = kind;
  feature.cuts = feature.has_length();
  return feature;
}

std::vector<RecordFeatures> Wanted() {
  using Kind = RecordFeature::Kind;
  return {{},
          {Feature("image", "image-*", Kind::kEncoded, DType::kUint8, {}),
           Feature("word", "label-*", Kind::kText, DType::kUint8, {4})},
          {Feature("value", "", Kind::kList, DType::kUint8, {3}),
           Feature("name", "__key__", Kind::kText, DType::kUint8, {2}),
           Feature("n", "*1", Kind::kValues, DType::kInt32, {})}};
}

void CheckRecords(const Source& source) {
  static const std::unique_ptr<StorageReader> reader =
      *MakeStorageReader(ReadBackend::kPread, 1);
  for (uint64_t i = 0; i < source.record_count(); ++i) {
    ReadRequest request;
    source.Locate(i, &request);
    reader->Start(0, request, {}, kNotPinned);
    StorageReader::Done done;
    Require(reader->Next(kWaitForever, &done) && done.status.ok(),
            "every value is in the file");
    std::vector<std::byte> scratch;
    RawRecord raw;
    const Status status = source.Unpack(i, done.read(), &scratch, &raw);
    Require(status.ok() || status.code() == StatusCode::kDataLoss,
            "an error concerns the sample");
    const RawSpec& features = source.raw_spec();
    for (size_t f = 0; status.ok() && f < features.size(); ++f) {
      Require(features[f].encoded
                  ? !raw[f].empty()
                  : raw[f].size() == features[f].feature.RowBytes(),
              "every feature has its size");
      volatile std::byte sum{};
      for (const std::byte byte : raw[f]) sum = sum ^ byte;
    }
    reader->Release(0);
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;
  setenv("PENSTOCK_CACHE_DIR", "/dev/null/no-folder", 1);
  static const Fd file(memfd_create("data.mdb", MFD_CLOEXEC));
  Require(ftruncate(file.get(), 0) == 0 &&
              pwrite(file.get(), data, size, 0) == static_cast<ssize_t>(size),
          "the input can be written");
  for (const RecordFeatures& features : Wanted()) {
    for (const auto& database :
         {std::optional<std::string>(), std::optional<std::string>("other")}) {
      LmdbSource spec;
      spec.files.patterns = {"/proc/self/fd/" + std::to_string(file.get())};
      spec.features = features;
      spec.database = database;
      const auto source = OpenSource(spec, nullptr);
      if (source.ok()) {
        CheckRecords(**source);
        continue;
      }
      Require(source.status().code() == StatusCode::kInvalidArgument ||
                  source.status().code() == StatusCode::kDataLoss,
              "a file that is refused is wrong");
    }
  }
  return 0;
}
