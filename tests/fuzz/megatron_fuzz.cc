// The input is a byte of options, and behind it an index of Megatron's,
// data.idx, or with the highest bit of options a shuffle index, sample index
// and document index of its cache, each behind its length in a byte. It is
// opened as source megatron: what is refused is refused as documented, and what
// is read lies in the file and has the promised sizes.
#include <stdlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint64_t kTokens = 64;  // of data.bin, of two bytes
constexpr uint64_t kLength = 7;

const std::string& Folder() {
  // Not destroyed: it is needed at the exit.
  static const std::string* const folder = [] {
    std::string pattern = "/dev/shm/penstock-megatron-fuzz-XXXXXX";
    Require(mkdtemp(pattern.data()) != nullptr, "a folder in memory");
    std::atexit([] { std::filesystem::remove_all(Folder()); });
    std::ofstream(pattern + "/data.bin", std::ios::binary)
        << std::string(2 * kTokens, 1);
    std::ofstream(pattern + "/a-GPTDataset-train-description.txt")
        << R"({"class": "GPTDataset", "dataset_path": ")" + pattern +
               R"(/data", "num_samples": null, "index_split": "train",)" +
               R"("random_seed": 1234, "sequence_length": 7,)" +
               R"("split": null, "split_matrix": null})";
    return new std::string(pattern);
  }();
  return *folder;
}

void Write(const std::string& name, std::string_view content) {
  std::ofstream(Folder() + "/" + name, std::ios::binary) << content;
}

template <typename T>
std::string Bytes(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()),
          values.size() * sizeof(T)};
}

// Its documents have 8 tokens each.
std::string SoundIdx() {
  std::string idx("MMIDIDX\0\0", 9);
  idx += Bytes<uint64_t>({1}) + '\10' + Bytes<uint64_t>({8, 9});
  for (int i = 0; i < 8; ++i) idx += Bytes<int32_t>({8});
  for (int i = 0; i < 8; ++i) idx += Bytes<int64_t>({16 * i});
  for (int i = 0; i < 9; ++i) idx += Bytes<int64_t>({i});
  return idx;
}

std::string Npy(std::string_view dtype, std::string_view shape,
                std::string_view values) {
  std::string header = "{'descr': '" + std::string(dtype) +
                       "', 'fortran_order': False, 'shape': (" +
                       std::string(shape) + "), }\n";
  std::string npy = "\x93NUMPY\1";
  npy += '\0';
  npy += static_cast<char>(header.size());
  npy += '\0';
  return npy + header + std::string(values);
}

void CheckOpened(const MegatronSource& spec) {
  static const std::unique_ptr<StorageReader> reader =
      *MakeStorageReader(ReadBackend::kPread, 1);
  const auto source = OpenSource(spec, nullptr);
  if (!source.ok()) {
    Require(source.status().code() == StatusCode::kInvalidArgument ||
                source.status().code() == StatusCode::kDataLoss,
            "a dataset that is refused is wrong");
    return;
  }
  constexpr uint64_t kReadMax = 1000;  // places may overlap: there may be many
  const uint64_t count = (*source)->record_count();
  for (uint64_t i = 0; i < std::min(count, kReadMax); ++i) {
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
      Require(raw[f].size() == raw_spec[f].feature.RowBytes(),
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
  if (size == 0) return 0;
  const uint8_t options = data[0];
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  MegatronSource spec;
  spec.prefix = Folder() + "/data";
  spec.sequence_length = kLength;
  if ((options & 0x80) != 0) {
    // 63 tokens behind the first: 9 samples, of 8 documents.
    std::array<std::string_view, 3> arrays;
    for (std::string_view& each : arrays) {
      const size_t bytes =
          rest.empty() ? 0 : static_cast<uint8_t>(rest.front());
      rest.remove_prefix(std::min<size_t>(rest.size(), 1));
      each = rest.substr(0, bytes);
      rest.remove_prefix(each.size());
    }
    const std::string base = "a-GPTDataset-train-";
    const bool wide = (options & 1) != 0;
    Write("data.idx", SoundIdx());
    Write(base + "shuffle_index.npy",
          Npy(wide ? "<i8" : "<u4", "9,", arrays[0]));
    Write(base + "sample_index.npy",
          Npy(wide ? "<i8" : "<i4", "10, 2", arrays[1]));
    Write(base + "document_index.npy", Npy("<i4", "8,", arrays[2]));
    if ((options & 2) != 0) Write(base + "shuffle_index.npy", arrays[0]);
    spec.cache = Folder();
    CheckOpened(spec);
    return 0;
  }
  Write("data.idx", rest);
  spec.features = {MegatronSource::Feature::kTokens,
                   MegatronSource::Feature::kLossMask,
                   MegatronSource::Feature::kPositionIds};
  spec.extra_token = (options & 1) != 0;
  if ((options & 2) != 0) spec.split = "8,1,1";
  if ((options & 4) != 0) spec.samples = 40;
  if ((options & 8) != 0) {
    spec.use = MegatronSource::Use::kValid;
    spec.last_partial = MegatronSource::LastPartial::kPad;
  }
  if ((options & 16) != 0) spec.vocab_size = 257;
  CheckOpened(spec);
  spec.order = MegatronSource::Order::kPenstock;
  spec.samples.reset();
  CheckOpened(spec);
  spec.sequence_length = 0;  // documents
  CheckOpened(spec);
  return 0;
}
