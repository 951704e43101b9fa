// The input is an entry as it was read; the payload of one whose checksum is
// right, plain and compressed; the index of a snapshot; and the places in a
// sound one. Whatever it holds, features lie in the entry or its buffer, and
// places in the file of entries.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "broker/cache/disk_cache.h"
#include "common/crc32c.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint64_t kRecords = 16;
constexpr uint64_t kEntriesBytes = 4096;
constexpr uint64_t kPlacesAt = 8192;

RawSpec Features() {
  return {{{"image", DType::kUint8, {}}, true},
          {{"label", DType::kInt64, {}}, false}};
}

// The folder of a cache, and one that is open in another.
struct Files {
  Files() {
    std::string pattern = "/tmp/penstock-disk-cache-XXXXXX";
    Require(mkdtemp(pattern.data()) != nullptr, "a folder can be made");
    folder = pattern;
    options.key = "{}";
    options.files = {folder + "/a/index", folder + "/a/entries"};
    auto opened = DiskCache::Open(options, kRecords, Features());
    Require(opened.ok(), "a cache can be made");
    cache = *std::move(opened);
    options.files = {folder + "/b/index", folder + "/b/entries"};
  }
  ~Files() {
    cache.reset();
    std::filesystem::remove_all(folder);
  }
  std::string folder;
  DiskCache::Options options;
  std::shared_ptr<DiskCache> cache;
};

void CheckEntry(const DiskCache& cache, const std::vector<std::byte>& entry) {
  CacheScratch scratch;
  RawRecord made;
  if (!cache.Unpack(0, entry, &scratch, &made).ok()) return;
  Require(made.size() == 2, "all features are there");
  for (const std::span<const std::byte> each : made) {
    const auto within = [each](const std::vector<std::byte>& bytes) {
      return each.data() >= bytes.data() &&
             each.data() + each.size() <= bytes.data() + bytes.size();
    };
    Require(each.empty() || within(entry) || within(scratch.entry),
            "a feature lies in the entry");
  }
  Require(made[1].size() == sizeof(int64_t), "a label has its size");
}

// An entry with a payload, and a checksum that is right.
std::vector<std::byte> EntryOf(const std::string& payload, uint32_t bytes) {
  std::vector<std::byte> entry(24 + payload.size());
  const auto stored = static_cast<uint32_t>(payload.size());
  std::memcpy(&entry[4], &stored, sizeof(stored));
  std::memcpy(&entry[8], &bytes, sizeof(bytes));
  std::memcpy(entry.data() + 24, payload.data(), payload.size());
  const uint32_t crc = Crc32c(std::span(entry).subspan(4));
  std::memcpy(entry.data(), &crc, sizeof(crc));
  return entry;
}

void CheckIndex(const Files& files, const std::string& index) {
  std::filesystem::create_directories(files.folder + "/b");
  std::ofstream(files.options.files.index, std::ios::binary) << index;
  std::ofstream(files.options.files.entries, std::ios::binary)
      << std::string(kEntriesBytes, 'x');
  for (const bool snapshot : {true, false}) {
    DiskCache::Options options = files.options;
    options.snapshot = snapshot;
    options.writes = !snapshot;
    const auto cache = DiskCache::Open(options, kRecords, Features());
    if (!cache.ok()) continue;
    for (uint64_t record = 0; record < kRecords; ++record) {
      ReadRequest request;
      if (!(*cache)->Locate(record, &request)) continue;
      Require(request.bytes > 0 && request.offset < kEntriesBytes &&
                  request.bytes <= kEntriesBytes - request.offset,
              "a place lies in the file");
    }
  }
}

void CheckInput(const std::string& input) {
  static const Files files;
  const auto* const bytes = reinterpret_cast<const std::byte*>(input.data());
  CheckEntry(*files.cache, {bytes, bytes + input.size()});
  if (input.size() >= 4) {
    uint32_t unpacked = 0;
    std::memcpy(&unpacked, input.data(), sizeof(unpacked));
    const std::string payload = input.substr(4);
    // Not what a fuzzer may take.
    if (unpacked <= (uint32_t{1} << 24)) {
      CheckEntry(*files.cache, EntryOf(payload, unpacked));
    }
    CheckEntry(*files.cache,
               EntryOf(payload, static_cast<uint32_t>(payload.size())));
  }
  CheckIndex(files, input);
  // As places.
  static const std::string sound = [] {
    std::ifstream file(files.folder + "/a/index", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  std::string places = sound;
  const size_t count = std::min<size_t>(input.size(), 8 * kRecords);
  Require(places.size() == kPlacesAt + 8 * kRecords, "the index has its form");
  places.replace(kPlacesAt, count, input, 0, count);
  CheckIndex(files, places);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::CheckInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
