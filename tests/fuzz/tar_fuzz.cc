// The input is a tar file, as it is and then with the checksums of its headers
// made right. It is opened as source webdataset: what is refused is refused as
// documented, and what is read lies in the file and has the promised sizes.
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "common/fd.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kChecksum = 148;

RecordFeatures Features() {
  RecordFeatures features;
  const auto add = [&features](const char* name, const char* member,
                               RecordFeature::Kind kind, DType dtype,
                               std::vector<int64_t> shape) {
    RecordFeature& each = features.emplace_back();
    each.feature = {name, dtype, std::move(shape)};
    each.key = member;
    each.kind = kind;
  };
  add("image", "png;jpg", RecordFeature::Kind::kEncoded, DType::kUint8, {});
  add("cls", "", RecordFeature::Kind::kValues, DType::kInt16, {});
  add("npy", "", RecordFeature::Kind::kValues, DType::kFloat32, {2, 3});
  add("txt", "", RecordFeature::Kind::kText, DType::kUint8, {12});
  add("list", "npy", RecordFeature::Kind::kList, DType::kFloat32, {3, 3});
  add("key", "__key__", RecordFeature::Kind::kText, DType::kUint8, {20});
  add("cut", "txt", RecordFeature::Kind::kText, DType::kUint8, {2});
  features.back().cuts = true;
  features[1].otherwise = features[2].otherwise = int64_t{1};
  features[2].otherwise = 1.0;
  return features;
}

void CheckFile(const std::string& bytes) {
  static const Fd file(memfd_create("shard", MFD_CLOEXEC));
  Require(ftruncate(file.get(), 0) == 0 &&
              pwrite(file.get(), bytes.data(), bytes.size(), 0) ==
                  static_cast<ssize_t>(bytes.size()),
          "the input can be written");
  static const std::unique_ptr<StorageReader> reader =
      *MakeStorageReader(ReadBackend::kPread, 1);
  for (const auto on_missing : {OnMissing::kError, OnMissing::kSkip}) {
    WebdatasetSource spec;
    spec.files.patterns = {"/proc/self/fd/" + std::to_string(file.get())};
    spec.features = Features();
    spec.on_missing = on_missing;
    const auto source = OpenSource(spec, nullptr);
    if (!source.ok()) {
      Require(source.status().code() == StatusCode::kInvalidArgument ||
                  source.status().code() == StatusCode::kDataLoss,
              "a file that is refused is wrong");
      continue;
    }
    for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
      ReadRequest request;
      (*source)->Locate(i, &request);
      reader->Start(0, request, {}, kNotPinned);
      StorageReader::Done done;
      Require(reader->Next(kWaitForever, &done) && done.status.ok(),
              "every member is in the file");
      std::vector<std::byte> scratch;
      RawRecord raw;
      const Status status = (*source)->Unpack(i, done.read(), &scratch, &raw);
      Require(status.ok() || status.code() == StatusCode::kDataLoss,
              "an error concerns the sample");
      const RawSpec& features = (*source)->raw_spec();
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
}

// Mends every block that could be a header.
std::string WithRightChecksums(std::string bytes) {
  for (size_t at = 0; at + kBlock <= bytes.size(); at += kBlock) {
    char* const block = bytes.data() + at;
    if (std::string_view(block + 257, 5) != "ustar") continue;
    std::fill_n(block + kChecksum, 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      sum += static_cast<unsigned char>(block[i]);
    }
    std::snprintf(block + kChecksum, 8, "%06o", sum & 0777777);
  }
  return bytes;
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  setenv("PENSTOCK_CACHE_DIR", "/dev/null/no-folder", 1);
  const std::string input(reinterpret_cast<const char*>(data), size);
  penstock::CheckFile(input);
  penstock::CheckFile(penstock::WithRightChecksums(input));
  return 0;
}
