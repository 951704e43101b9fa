// Layout, little-endian: Header, the key, offsets, bytes. In the cache folder,
// each file of a dataset has one such file for each kind of scan, which a later
// scan replaces.
#include "broker/index/index_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>

namespace penstock {
namespace {

constexpr uint64_t kMagic = 0x3343455254534e50;  // "PNSTREC3"
constexpr uint64_t kHeadBytes = 4096;

struct Header {
  uint64_t magic = kMagic;
  uint64_t key_bytes = 0;
  uint64_t file_bytes = 0;
  int64_t mtime_ns = 0;
  uint64_t inode = 0;
  uint64_t head = 0;  // XXH3 of the file's first kHeadBytes; of a cache 0
  uint64_t places = 0;
  uint64_t left_out = 0;
  uint64_t odd_end = 0;
  Fingerprint::Digest digest{};  // of FileRecords
};
static_assert(sizeof(Header) == 88);

// What the result of a scan depends on, but for the file.
std::string KeyOf(const RecordScanner& scanner) {
  return Format("{}\n{}\n{}\n{}", scanner.kind, scanner.version, scanner.places,
                scanner.options);
}

std::string PathOfCache(const DataFile& file, const RecordScanner& scanner) {
  return CachePath(scanner.kind, Format("{}\n{}", file.path(), KeyOf(scanner)));
}

// 0: it cannot be read.
uint64_t HeadOf(const DataFile& file) {
  std::array<std::byte, kHeadBytes> head;
  OpenProgress unwatched;
  const auto bytes = file.Read(
      0, std::span(head).first(std::min(kHeadBytes, file.bytes())), &unwatched);
  return bytes.ok() ? XXH3_64bits(head.data(), *bytes) : 0;
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

// is_of: whether a header is of the file.
template <typename IsOf>
StatusOr<bool> ReadRecords(std::optional<CacheReader> kept, const IsOf& is_of,
                           const DataFile& file, const RecordScanner& scanner,
                           const OpenProgress& progress, FileRecords* records) {
  const std::string key = KeyOf(scanner);
  Header header;
  if (!kept || !kept->Read(std::as_writable_bytes(std::span(&header, 1))) ||
      header.magic != kMagic || header.key_bytes != key.size() ||
      header.file_bytes != file.bytes() || !is_of(header)) {
    return false;
  }
  std::string kept_key(key.size(), '\0');
  constexpr uint64_t kPlaceBytes = sizeof(uint64_t) + sizeof(uint32_t);
  // The sizes must add up to the file's, which bounds the memory.
  if (!kept->Read(std::as_writable_bytes(std::span(kept_key))) ||
      kept_key != key || header.places != kept->left() / kPlaceBytes ||
      kept->left() % kPlaceBytes != 0 || header.places % scanner.places != 0) {
    return false;
  }
  PENSTOCK_RETURN_IF_ERROR(progress.reserve(header.places * kPlaceBytes));
  FileRecords found;
  found.offsets.resize(header.places);
  found.bytes.resize(header.places);
  found.left_out = header.left_out;
  found.odd_end = header.odd_end;
  if (!kept->Read(std::as_writable_bytes(std::span(found.offsets))) ||
      !kept->Read(std::as_writable_bytes(std::span(found.bytes))) ||
      header.digest != found.Digest() || !IsValid(found, file.bytes())) {
    return false;
  }
  *records = std::move(found);
  return true;
}

Status Write(const std::string& path, const DataFile& file, uint64_t head,
             const RecordScanner& scanner, const FileRecords& records) {
  const std::string key = KeyOf(scanner);
  const Header header = {.key_bytes = key.size(),
                         .file_bytes = file.bytes(),
                         .mtime_ns = file.mtime_ns(),
                         .inode = file.inode(),
                         .head = head,
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

}  // namespace

StatusOr<bool> ReadKeptIndex(const DataFile& file, const RecordScanner& scanner,
                             const OpenProgress& progress,
                             FileRecords* records) {
  const auto of_this_file = [&file](const Header& header) {
    return header.mtime_ns == file.mtime_ns() && header.inode == file.inode();
  };
  PENSTOCK_ASSIGN_OR_RETURN(
      const bool cached, ReadRecords(
                             CacheReader::Open(PathOfCache(file, scanner)),
                             [&](const Header& header) {
                               return header.head == 0 && of_this_file(header);
                             },
                             file, scanner, progress, records));
  if (cached) {
    if (file.remote() != nullptr) ++progress.remote.kept;
    return true;
  }
  const auto beside =
      DataFile::Open(file.path() + IndexSuffix(scanner), progress);
  if (!beside.ok() || !beside->FetchAll(progress).ok()) return false;
  const auto of_such_a_file = [&](const Header& header) {
    // An object's inode is a digest of its ETag.
    const bool made_there = file.remote() != nullptr && header.mtime_ns == 0;
    return made_there ? of_this_file(header) : header.head == HeadOf(file);
  };
  PENSTOCK_ASSIGN_OR_RETURN(
      const bool read,
      ReadRecords(CacheReader::Of(beside->fd(), beside->bytes()),
                  of_such_a_file, file, scanner, progress, records));
  if (read && file.remote() != nullptr) ++progress.remote.beside;
  return read;
}

Status WriteIndexCache(const DataFile& file, const RecordScanner& scanner,
                       const FileRecords& records, int64_t scan_begin_ns) {
  const std::string path = PathOfCache(file, scanner);
  if (path.empty()) return FailedPreconditionError("no folder for caches");
  if (file.mtime_ns() > scan_begin_ns - kSettledNs || file.Changed()) {
    return FailedPreconditionError("{} changed just now", file.path());
  }
  return Write(path, file, /*head=*/0, scanner, records);
}

std::string IndexSuffix(const RecordScanner& scanner) {
  const std::string key = KeyOf(scanner);
  return Format(".{}-{:08x}.index", scanner.kind,
                static_cast<uint32_t>(XXH3_64bits(key.data(), key.size())));
}

std::string_view FileOfIndex(std::string_view path) {
  constexpr std::string_view kEnd = ".index";
  constexpr size_t kDigits = 8;
  if (!path.ends_with(kEnd)) return {};
  path.remove_suffix(kEnd.size());
  const size_t dash = path.rfind('-');
  if (dash == path.npos || path.size() - dash - 1 != kDigits ||
      path.find_first_not_of("0123456789abcdef", dash + 1) != path.npos) {
    return {};
  }
  const size_t dot = path.rfind('.', dash);
  return dot == path.npos ? std::string_view() : path.substr(0, dot);
}

Status WriteIndexFile(const std::string& path, const DataFile& file,
                      const RecordScanner& scanner,
                      const FileRecords& records) {
  return Write(path, file, HeadOf(file), scanner, records);
}

}  // namespace penstock
