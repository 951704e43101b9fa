// Layout, native byte order: Header, the key, offsets, bytes. Each file of a
// dataset has one such file for each kind of scan, which a later scan replaces.
#include "broker/index/index_cache.h"

#include <array>

namespace penstock {
namespace {

constexpr uint64_t kMagic = 0x3243455254534e50;  // "PNSTREC2"

struct Header {
  uint64_t magic = kMagic;
  uint64_t key_bytes = 0;
  uint64_t file_bytes = 0;
  int64_t mtime_ns = 0;
  uint64_t inode = 0;
  uint64_t places = 0;
  uint64_t left_out = 0;
  uint64_t odd_end = 0;
  Fingerprint::Digest digest{};  // of FileRecords
};
static_assert(sizeof(Header) == 80);

// What the result of a scan depends on, but for the file's content.
std::string KeyOf(const DataFile& file, const RecordScanner& scanner) {
  return Format("{}\n{}\n{}\n{}\n{}", scanner.kind, scanner.version,
                scanner.places, file.path(), scanner.options);
}

// Every place lies in the file.
bool IsValid(const FileRecords& records, uint64_t file_bytes) {
  bool valid =
      records.odd_end == FileRecords::kAbsent || records.odd_end <= file_bytes;
  for (size_t i = 0; i < records.offsets.size(); ++i) {
    const uint64_t offset = records.offsets[i];
    const uint64_t bytes = records.bytes[i];
    const bool absent = offset == FileRecords::kAbsent && bytes == 0;
    valid &= absent || (offset <= file_bytes && bytes <= file_bytes - offset);
  }
  return valid;
}

}  // namespace

StatusOr<bool> ReadIndexCache(const DataFile& file,
                              const RecordScanner& scanner,
                              const OpenProgress& progress,
                              FileRecords* records) {
  const std::string key = KeyOf(file, scanner);
  auto cache = CacheReader::Open(CachePath(scanner.kind, key));
  Header header;
  if (!cache || !cache->Read(std::as_writable_bytes(std::span(&header, 1))) ||
      header.magic != kMagic || header.key_bytes != key.size() ||
      header.file_bytes != file.bytes() || header.mtime_ns != file.mtime_ns() ||
      header.inode != file.inode()) {
    return false;
  }
  std::string cached_key(key.size(), '\0');
  constexpr uint64_t kPlaceBytes = sizeof(uint64_t) + sizeof(uint32_t);
  // The sizes must add up to the cache's, which bounds the memory.
  if (!cache->Read(std::as_writable_bytes(std::span(cached_key))) ||
      cached_key != key || header.places != cache->left() / kPlaceBytes ||
      cache->left() % kPlaceBytes != 0 || header.places % scanner.places != 0) {
    return false;
  }
  PENSTOCK_RETURN_IF_ERROR(progress.reserve(header.places * kPlaceBytes));
  FileRecords found;
  found.offsets.resize(header.places);
  found.bytes.resize(header.places);
  found.left_out = header.left_out;
  found.odd_end = header.odd_end;
  if (!cache->Read(std::as_writable_bytes(std::span(found.offsets))) ||
      !cache->Read(std::as_writable_bytes(std::span(found.bytes))) ||
      header.digest != found.Digest() || !IsValid(found, file.bytes())) {
    return false;
  }
  *records = std::move(found);
  return true;
}

Status WriteIndexCache(const DataFile& file, const RecordScanner& scanner,
                       const FileRecords& records, int64_t scan_begin_ns) {
  const std::string key = KeyOf(file, scanner);
  const std::string path = CachePath(scanner.kind, key);
  if (path.empty()) return FailedPreconditionError("no folder for caches");
  if (file.mtime_ns() > scan_begin_ns - kSettledNs || file.Changed()) {
    return FailedPreconditionError("{} changed just now", file.path());
  }
  const Header header = {.key_bytes = key.size(),
                         .file_bytes = file.bytes(),
                         .mtime_ns = file.mtime_ns(),
                         .inode = file.inode(),
                         .places = records.offsets.size(),
                         .left_out = records.left_out,
                         .odd_end = records.odd_end,
                         .digest = records.Digest()};
  const std::array<std::span<const std::byte>, 4> regions = {
      std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(key)),
      std::as_bytes(std::span(records.offsets)),
      std::as_bytes(std::span(records.bytes))};
  return WriteCacheFile(path, regions);
}

}  // namespace penstock
