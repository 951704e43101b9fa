// The input is the cached index of a file, and then the places in a sound one:
// digest and identity are right. Whatever it holds, an index made from it
// has places within the file only.
#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "broker/index/index_cache.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint64_t kFileBytes = 1000;

// The file, and the folder of its cache.
struct Files {
  Files() {
    std::string pattern = "/tmp/penstock-index-cache-XXXXXX";
    Require(mkdtemp(pattern.data()) != nullptr, "a folder can be made");
    folder = pattern;
    setenv("PENSTOCK_CACHE_DIR", folder.c_str(), 1);
    path = folder + "/data";
    std::ofstream(path) << std::string(kFileBytes, 'x');
  }
  ~Files() { std::filesystem::remove_all(folder); }
  std::string folder;
  std::string path;
};

void Check(const DataFile& file, const RecordScanner& scanner) {
  OpenProgress progress;
  FileRecords records;
  const StatusOr<bool> read = ReadKeptIndex(file, scanner, progress, &records);
  Require(read.ok(), "no memory was refused");
  if (!*read) return;
  Require(records.offsets.size() == records.bytes.size() &&
              records.offsets.size() % scanner.places == 0,
          "records are whole");
  for (size_t i = 0; i < records.offsets.size(); ++i) {
    Require(records.offsets[i] == FileRecords::kAbsent
                ? records.bytes[i] == 0
                : records.offsets[i] <= kFileBytes &&
                      records.bytes[i] <= kFileBytes - records.offsets[i],
            "every place is in the file");
  }
}

void CheckInput(const std::string& input) {
  static const Files files;
  static const StatusOr<DataFile> file =
      DataFile::Open(files.path, *FileAccess::OfBroker());
  Require(file.ok(), "the file opens");
  const RecordScanner scanner = {.kind = "fuzz", .places = 2};
  // A sound cache says where it is.
  FileRecords sound;
  Require(WriteIndexCache(*file, scanner, sound, INT64_MAX).ok(),
          "a cache can be written");
  std::string cache;
  for (const auto& each : std::filesystem::directory_iterator(files.folder)) {
    if (each.path().extension() == ".index") cache = each.path().string();
  }
  std::ofstream(cache, std::ios::binary) << input;
  Check(*file, scanner);
  // The input as places: number of them and digest are made right.
  constexpr size_t kPlaceBytes = 12;
  FileRecords places;
  places.offsets.resize(input.size() / kPlaceBytes);
  places.bytes.resize(places.offsets.size());
  if (!places.offsets.empty()) {
    std::memcpy(places.offsets.data(), input.data(),
                places.offsets.size() * sizeof(uint64_t));
    std::memcpy(places.bytes.data(),
                input.data() + places.offsets.size() * sizeof(uint64_t),
                places.bytes.size() * sizeof(uint32_t));
  }
  (void)WriteIndexCache(*file, scanner, places, INT64_MAX);
  Check(*file, scanner);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::CheckInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
