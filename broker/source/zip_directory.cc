#include "broker/source/zip_directory.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <unordered_set>

#include "broker/index/values.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kDirectoryEnd = 0x06054b50;
constexpr uint32_t kZip64End = 0x06064b50;
constexpr uint32_t kZip64Locator = 0x07064b50;

// Fixed parts of these records.
constexpr size_t kLocalHeaderBytes = 30;
constexpr size_t kEntryBytes = 46;
constexpr size_t kEndBytes = 22;
constexpr size_t kZip64EndBytes = 56;
constexpr size_t kZip64LocatorBytes = 20;
constexpr size_t kCommentBytesMax = UINT16_MAX;
constexpr uint64_t kDirectoryBytesMax = uint64_t{16} << 20;

constexpr uint16_t kZip64Extra = 1;
// The value of a field whose real one is in the ZIP64 record.
constexpr uint16_t kIn64Of16 = UINT16_MAX;
constexpr uint32_t kIn64Of32 = UINT32_MAX;

using Bytes = std::span<const std::byte>;

Status Damaged(const DataFile& file, uint64_t offset, std::string_view what) {
  return DataLossError(
      "{}: the zip archive is damaged at offset {}: {}; copy or write it again",
      file.path(), offset, what);
}

// Exactly these bytes, which are within the file.
StatusOr<std::vector<std::byte>> ReadAt(const DataFile& file, uint64_t offset,
                                        uint64_t bytes,
                                        OpenProgress* progress) {
  std::vector<std::byte> read(bytes);
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t found,
                            file.Read(offset, read, progress));
  if (found < bytes) {
    return DataLossError("{} became shorter while it was opened", file.path());
  }
  return read;
}

struct Directory {
  uint64_t entries = 0;
  uint64_t at = 0;
  uint64_t bytes = 0;
  uint64_t end_at = 0;  // of the record that follows it
};

StatusOr<Directory> FindDirectory(const DataFile& file,
                                  OpenProgress* progress) {
  const uint64_t tail_bytes = std::min<uint64_t>(
      file.bytes(), kZip64LocatorBytes + kEndBytes + kCommentBytesMax);
  const uint64_t tail_at = file.bytes() - tail_bytes;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::byte> tail,
                            ReadAt(file, tail_at, tail_bytes, progress));
  // The last record whose comment ends with the file.
  std::optional<size_t> found;
  for (size_t at = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1;
       at-- > 0 && !found;) {
    if (ValueAt<uint32_t>(&tail[at]) == kDirectoryEnd &&
        ValueAt<uint16_t>(&tail[at + 20]) == tail.size() - at - kEndBytes) {
      found = at;
    }
  }
  if (!found) {
    return DataLossError(
        "{}: not a zip archive, or its end is missing; copy or write it again",
        file.path());
  }
  const Bytes end = Bytes(tail).subspan(*found);
  Directory directory{ValueAt<uint16_t>(&end[10]), ValueAt<uint32_t>(&end[16]),
                      ValueAt<uint32_t>(&end[12]), tail_at + *found};
  uint64_t disk = ValueAt<uint16_t>(&end[4]);
  const bool in_64 = directory.entries == kIn64Of16 ||
                     directory.at == kIn64Of32 || directory.bytes == kIn64Of32;
  if (in_64 && *found >= kZip64LocatorBytes &&
      ValueAt<uint32_t>(&tail[*found - kZip64LocatorBytes]) == kZip64Locator) {
    const uint64_t at =
        ValueAt<uint64_t>(&tail[*found - kZip64LocatorBytes + 8]);
    const uint64_t locator_at = directory.end_at - kZip64LocatorBytes;
    if (at > locator_at || locator_at - at < kZip64EndBytes) {
      return Damaged(file, locator_at, "its ZIP64 record is not before it");
    }
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::byte> zip64,
                              ReadAt(file, at, kZip64EndBytes, progress));
    if (ValueAt<uint32_t>(&zip64[0]) != kZip64End) {
      return Damaged(file, at, "wanted a ZIP64 record");
    }
    directory = {ValueAt<uint64_t>(&zip64[32]), ValueAt<uint64_t>(&zip64[48]),
                 ValueAt<uint64_t>(&zip64[40]), at};
    disk = ValueAt<uint32_t>(&zip64[16]);
  }
  if (disk != 0) {
    return InvalidArgumentError(
        "{}: a zip archive of several disks; write it as one file",
        file.path());
  }
  if (directory.at > directory.end_at ||
      directory.bytes > directory.end_at - directory.at) {
    return Damaged(file, directory.end_at, "its directory is not before it");
  }
  if (directory.bytes > kDirectoryBytesMax) {
    return InvalidArgumentError(
        "{}: a zip archive with a directory of {} bytes; at most {} are read",
        file.path(), directory.bytes, kDirectoryBytesMax);
  }
  return directory;
}

// Takes those of the three values that are in the ZIP64 extra field, in this
// order. False: one is not there.
bool Take64(Bytes extra, uint64_t* size, bool has_size, uint64_t* packed,
            bool has_packed, uint64_t* header_at, bool has_header_at) {
  if (!has_size && !has_packed && !has_header_at) return true;
  while (extra.size() >= 4) {
    const size_t bytes = ValueAt<uint16_t>(&extra[2]);
    if (bytes > extra.size() - 4) return false;
    if (ValueAt<uint16_t>(&extra[0]) != kZip64Extra) {
      extra = extra.subspan(4 + bytes);
      continue;
    }
    Bytes values = extra.subspan(4, bytes);
    for (const auto& [has, value] :
         {std::pair{has_size, size}, std::pair{has_packed, packed},
          std::pair{has_header_at, header_at}}) {
      if (!has) continue;
      if (values.size() < sizeof(uint64_t)) return false;
      *value = ValueAt<uint64_t>(&values[0]);
      values = values.subspan(sizeof(uint64_t));
    }
    return true;
  }
  return false;
}

}  // namespace

StatusOr<std::vector<ZipMember>> ReadZipDirectory(const DataFile& file,
                                                  OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(const Directory directory,
                            FindDirectory(file, progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::vector<std::byte> bytes,
      ReadAt(file, directory.at, directory.bytes, progress));
  std::vector<ZipMember> members;
  std::unordered_set<std::string> names;
  size_t at = 0;
  while (at < bytes.size()) {
    const Bytes entry = Bytes(bytes).subspan(at);
    const uint64_t offset = directory.at + at;
    if (entry.size() < kEntryBytes ||
        ValueAt<uint32_t>(&entry[0]) != kDirectoryEntry) {
      return Damaged(file, offset, "wanted an entry of its directory");
    }
    const size_t name_bytes = ValueAt<uint16_t>(&entry[28]);
    const size_t extra_bytes = ValueAt<uint16_t>(&entry[30]);
    const size_t comment_bytes = ValueAt<uint16_t>(&entry[32]);
    if (name_bytes + extra_bytes + comment_bytes > entry.size() - kEntryBytes) {
      return Damaged(file, offset, "an entry ends behind its directory");
    }
    ZipMember& member = members.emplace_back();
    member.name.assign(
        reinterpret_cast<const char*>(entry.data()) + kEntryBytes, name_bytes);
    member.is_encrypted = (ValueAt<uint16_t>(&entry[8]) & 1) != 0;
    member.method = ValueAt<uint16_t>(&entry[10]);
    member.crc = ValueAt<uint32_t>(&entry[16]);
    member.bytes = ValueAt<uint32_t>(&entry[20]);
    member.inflated = ValueAt<uint32_t>(&entry[24]);
    member.header_at = ValueAt<uint32_t>(&entry[42]);
    if (!Take64(entry.subspan(kEntryBytes + name_bytes, extra_bytes),
                &member.inflated, member.inflated == kIn64Of32, &member.bytes,
                member.bytes == kIn64Of32, &member.header_at,
                member.header_at == kIn64Of32)) {
      return Damaged(file, offset, "an entry lacks its ZIP64 sizes");
    }
    if (!names.insert(member.name).second) {
      return Damaged(file, offset, "two members have the same name");
    }
    at += kEntryBytes + name_bytes + extra_bytes + comment_bytes;
  }
  if (members.size() != directory.entries) {
    return Damaged(file, directory.end_at,
                   Format("it says {} members, found {}", directory.entries,
                          members.size()));
  }
  return members;
}

StatusOr<uint64_t> FindZipData(const DataFile& file, const ZipMember& member,
                               OpenProgress* progress) {
  if (member.header_at > file.bytes() ||
      file.bytes() - member.header_at < kLocalHeaderBytes) {
    return Damaged(file, member.header_at, "a member begins behind the end");
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::vector<std::byte> header,
      ReadAt(file, member.header_at, kLocalHeaderBytes, progress));
  if (ValueAt<uint32_t>(&header[0]) != kLocalHeader ||
      ValueAt<uint16_t>(&header[8]) != member.method ||
      ValueAt<uint16_t>(&header[26]) != member.name.size()) {
    return Damaged(file, member.header_at, "wanted the header of a member");
  }
  const uint64_t data_at = member.header_at + kLocalHeaderBytes +
                           member.name.size() + ValueAt<uint16_t>(&header[28]);
  if (data_at > file.bytes() || member.bytes > file.bytes() - data_at) {
    return Damaged(file, data_at, "a member ends behind the file");
  }
  return data_at;
}

}  // namespace penstock
