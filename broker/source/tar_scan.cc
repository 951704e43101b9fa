#include "broker/source/tar_scan.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "broker/index/values.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr uint64_t kBlock = 512;
// Bytes of a long name, or of pax records.
constexpr uint64_t kExtensionBytesMax = uint64_t{1} << 20;

using Bytes = std::span<const std::byte>;

// Fields of a header block: POSIX.1-1988 ustar, extended by GNU tar.
struct Place {
  size_t offset;
  size_t bytes;
};
constexpr Place kName = {0, 100};
constexpr Place kSize = {124, 12};
constexpr Place kChecksum = {148, 8};
constexpr size_t kType = 156;
constexpr Place kMagic = {257, 6};
constexpr Place kPrefix = {345, 155};

std::string_view TextAt(Bytes header, Place place) {
  const std::string_view text(
      reinterpret_cast<const char*>(header.data()) + place.offset, place.bytes);
  return text.substr(0, text.find('\0'));
}

// Octal digits between spaces, or (GNU) a binary number; nullopt: neither.
std::optional<uint64_t> NumberAt(Bytes header, Place place) {
  const Bytes field = header.subspan(place.offset, place.bytes);
  if ((field[0] & std::byte{0x80}) != std::byte{0}) {
    if (field[0] != std::byte{0x80}) return std::nullopt;  // over 2^88, or < 0
    uint64_t number = 0;
    for (const std::byte byte : field.subspan(1)) {
      if (number >> 56 != 0) return std::nullopt;
      number = number << 8 | std::to_integer<uint64_t>(byte);
    }
    return number;
  }
  std::string_view text = TextAt(header, place);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find(' '));
  uint64_t number = 0;
  if (!text.empty() && !ParseNumber(text, &number, 8)) return std::nullopt;
  return number;
}

bool ChecksumIsRight(Bytes header) {
  // The sum of bytes without a sign, or (old programs) with one.
  int64_t plain = 0;
  int64_t with_sign = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const bool in_field =
        i >= kChecksum.offset && i < kChecksum.offset + kChecksum.bytes;
    const auto byte =
        in_field ? uint8_t{' '} : std::to_integer<uint8_t>(header[i]);
    plain += byte;
    with_sign += static_cast<int8_t>(byte);
  }
  const std::optional<uint64_t> wanted = NumberAt(header, kChecksum);
  return wanted && (static_cast<int64_t>(*wanted) == plain ||
                    static_cast<int64_t>(*wanted) == with_sign);
}

Status WrongChecksumError(const std::string& path, uint64_t offset) {
  if (offset == 0) {
    return InvalidArgumentError(
        "{}: not a tar file, or damaged: the checksum of its first header is "
        "wrong",
        path);
  }
  return DataLossError(
      "{}, offset {}: the checksum of a member's header is wrong; the file is "
      "damaged from there on",
      path, offset);
}

// What pax records say of the next member.
struct PaxValues {
  std::optional<std::string> name;
  uint64_t name_at = 0;  // in the records
  std::optional<uint64_t> bytes;
  bool sparse = false;
};

// "LENGTH KEY=VALUE\n", one after the other (POSIX.1-2001 pax). False:
// malformed.
bool ReadPax(std::string_view records, PaxValues* extension) {
  const char* const begin = records.data();
  while (!records.empty()) {
    uint64_t length = 0;
    const auto [end, error] = std::from_chars(
        records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<size_t>(end - records.data());
    if (error != std::errc() || length <= digits + 1 ||
        length > records.size() || records[digits] != ' ' ||
        records[length - 1] != '\n') {
      return false;
    }
    const std::string_view record =
        records.substr(digits + 1, length - digits - 2);
    records.remove_prefix(length);
    const size_t equals = record.find('=');
    if (equals == record.npos) return false;
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    if (key == "path" || key == "GNU.sparse.name") {
      extension->name = std::string(value);
      extension->name_at = static_cast<uint64_t>(value.data() - begin);
    } else if (key == "size") {
      uint64_t bytes = 0;
      if (!ParseNumber(value, &bytes)) return false;
      extension->bytes = bytes;
    }
    extension->sparse |= key.starts_with("GNU.sparse.");
  }
  return true;
}

bool IsZero(Bytes block) {
  return std::all_of(block.begin(), block.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

// The first member of another archive behind the blocks of zeros at `at`.
StatusOr<std::optional<uint64_t>> FindAnother(ScannedFile* file, uint64_t at) {
  constexpr uint64_t kZerosMax = uint64_t{64} << 10;  // usually up to 10 KiB
  const uint64_t end =
      file->bytes() - at < kZerosMax ? file->bytes() : at + kZerosMax;
  for (; end - at >= kBlock; at += kBlock) {
    PENSTOCK_ASSIGN_OR_RETURN(const Bytes block, file->At(at, kBlock));
    if (!IsZero(block)) {
      return ChecksumIsRight(block) ? std::optional(at) : std::nullopt;
    }
  }
  return std::optional<uint64_t>();
}

}  // namespace

StatusOr<std::optional<uint64_t>> ForEachTarMember(
    ScannedFile* file,
    const std::function<Status(const TarMember& member)>& visit) {
  PaxValues extension;
  std::string name;
  const uint64_t end = file->bytes();
  for (uint64_t at = 0; at < end;) {
    const auto cut_off = [&](const char* what, uint64_t wanted) {
      return DataLossError(
          "{}, offset {}: the file ends within a member's {}: {} bytes where "
          "{} "
          "are wanted; write or copy it again",
          file->path(), at, what, end - at, wanted);
    };
    if (end - at < kBlock) {
      return cut_off("header", kBlock);
    }
    PENSTOCK_ASSIGN_OR_RETURN(Bytes header, file->At(at, kBlock));
    if (header[0] == std::byte{0} && IsZero(header)) {
      return FindAnother(file, at);
    }
    const std::optional<uint64_t> size = NumberAt(header, kSize);
    if (!ChecksumIsRight(header)) {
      return WrongChecksumError(file->path(), at);
    }
    if (!size) {
      return DataLossError("{}, offset {}: a member's size is malformed",
                           file->path(), at);
    }
    const char type = static_cast<char>(header[kType]);
    const bool extends =
        type == 'L' || type == 'K' || type == 'x' || type == 'g';
    TarMember member;
    member.header = at;
    member.offset = at + kBlock;
    member.bytes = extends ? *size : extension.bytes.value_or(*size);
    if (!extends) {
      if (extension.name) {
        name = *extension.name;
        member.name_at = extension.name_at;
      } else {
        name = TextAt(header, kName);
        member.name_at = at + kName.offset;
        // Old GNU headers have times there, and another magic.
        const std::string_view prefix = TextAt(header, kPrefix);
        if (TextAt(header, kMagic) == "ustar" && !prefix.empty()) {
          name = Format("{}/{}", prefix, name);
          member.name_at = FileRecords::kAbsent;
        }
      }
      member.name = name;
    }
    // Links, devices, folders and FIFOs have no data, whatever their size says.
    const bool has_data = type < '1' || type > '6';
    const bool regular =
        (type == '0' || type == '\0' || type == '7') && !name.ends_with('/');
    if (type == 'S' || (!extends && extension.sparse)) {
      return InvalidArgumentError(
          "{}, offset {}: member '{}' is sparse; pack it without holes (tar "
          "without --sparse)",
          file->path(), at, Printable(std::string(name)));
    }
    if (has_data && member.bytes > end - member.offset) {
      return cut_off("data", member.bytes + kBlock < kBlock
                                 ? member.bytes
                                 : member.bytes + kBlock);
    }
    if (extends) {
      if (member.bytes > kExtensionBytesMax) {
        return DataLossError(
            "{}, offset {}: a name or pax header of {} bytes; at most {}",
            file->path(), at, member.bytes, kExtensionBytesMax);
      }
      PENSTOCK_ASSIGN_OR_RETURN(const Bytes data,
                                file->At(member.offset, member.bytes));
      const std::string_view text(reinterpret_cast<const char*>(data.data()),
                                  data.size());
      if (type == 'L') {
        extension.name = std::string(text.substr(0, text.find('\0')));
        extension.name_at = member.offset;
      } else if (type == 'x') {
        if (!ReadPax(text, &extension)) {
          return DataLossError("{}, offset {}: a malformed pax header",
                               file->path(), at);
        }
        extension.name_at += member.offset;
      }
    } else {
      if (regular) PENSTOCK_RETURN_IF_ERROR(visit(member));
      extension = {};
    }
    if (!has_data) {
      at += kBlock;
      continue;
    }
    const uint64_t blocks = (member.bytes + kBlock - 1) / kBlock;
    if (blocks > (end - member.offset) / kBlock) break;  // no room for another
    at = member.offset + blocks * kBlock;
  }
  return std::optional(end);
}

}  // namespace penstock
