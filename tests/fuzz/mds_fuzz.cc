// The input is an index.json up to a NUL byte, and behind it a shard, a.mds. It
// is opened as source mds, as it is and after the index's number of bytes is
// made that of the shard, with its own features and with others: what is
// refused is refused as documented, and what is read lies in the file and has
// the promised sizes.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "common/format.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

const std::string& Folder() {
  // Not destroyed: it is needed at the exit.
  static const std::string* const folder = [] {
    std::string pattern = "/dev/shm/penstock-mds-fuzz-XXXXXX";
    Require(mkdtemp(pattern.data()) != nullptr, "a folder in memory");
    std::atexit([] { std::filesystem::remove_all(Folder()); });
    return new std::string(pattern);
  }();
  return *folder;
}

void Write(const std::string& name, std::string_view content) {
  std::ofstream(Folder() + "/" + name, std::ios::binary) << content;
}

RecordFeatures OtherFeatures() {
  RecordFeatures features;
  const auto add = [&features](const char* name, const char* column,
                               RecordFeature::Kind kind, DType dtype,
                               std::vector<int64_t> shape) {
    RecordFeature& each = features.emplace_back();
    each.feature = {name, dtype, std::move(shape)};
    each.key = column;
    each.kind = kind;
  };
  add("text", "t", RecordFeature::Kind::kText, DType::kUint8, {4});
  features.back().cuts = true;
  add("list", "a", RecordFeature::Kind::kList, DType::kInt32, {3});
  features.back().cuts = true;
  add("values", "a", RecordFeature::Kind::kValues, DType::kFloat32, {2});
  add("picture", "p", RecordFeature::Kind::kEncoded, DType::kUint8, {});
  features.back().item = 1;
  return features;
}

void CheckOpened(const RecordFeatures& features) {
  static const std::unique_ptr<StorageReader> reader =
      *MakeStorageReader(ReadBackend::kPread, 1);
  MdsSource spec;
  spec.path = Folder();
  spec.features = features;
  const auto source = OpenSource(spec, nullptr);
  if (!source.ok()) {
    Require(source.status().code() == StatusCode::kInvalidArgument ||
                source.status().code() == StatusCode::kNotFound ||
                source.status().code() == StatusCode::kDataLoss,
            "a dataset that is refused is wrong");
    return;
  }
  for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
    ReadRequest request;
    (*source)->Locate(i, &request);
    reader->Start(0, request, {}, kNotPinned);
    StorageReader::Done done;
    Require(reader->Next(kWaitForever, &done) && done.status.ok(),
            "every sample is in the file");
    std::vector<std::byte> scratch;
    RawRecord raw;
    const Status status = (*source)->Unpack(i, done.read(), &scratch, &raw);
    Require(status.ok() || status.code() == StatusCode::kDataLoss,
            "an error concerns the sample");
    const RawSpec& raw_spec = (*source)->raw_spec();
    for (size_t f = 0; status.ok() && f < raw_spec.size(); ++f) {
      Require(raw_spec[f].encoded
                  ? !raw[f].empty()
                  : raw[f].size() == raw_spec[f].feature.RowBytes(),
              "every feature has its size");
      volatile std::byte sum{};
      for (const std::byte byte : raw[f]) sum = sum ^ byte;
    }
    reader->Release(0);
  }
}

// The number behind the first "bytes": becomes that of the shard.
std::string WithRightBytes(std::string index, size_t bytes) {
  constexpr std::string_view kKey = "\"bytes\":";
  const size_t key = index.find(kKey);
  if (key == index.npos) return index;
  const size_t begin = key + kKey.size();
  const size_t end = index.find_first_of(",}", begin);
  return index.substr(0, begin) + Format("{}", bytes) +
         (end == index.npos ? "" : index.substr(end));
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  setenv("PENSTOCK_CACHE_DIR", "/dev/null/no-folder", 1);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string index(input.substr(0, input.find('\0')));
  const std::string_view shard = input.substr(std::min(size, index.size() + 1));
  penstock::Write("a.mds", shard);
  for (const std::string& each :
       {index, penstock::WithRightBytes(index, shard.size())}) {
    penstock::Write("index.json", each);
    penstock::CheckOpened({});
    penstock::CheckOpened(penstock::OtherFeatures());
  }
  return 0;
}
