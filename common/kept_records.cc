#include "common/kept_records.h"

#include <bit>
#include <nlohmann/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock {
namespace {

uint64_t CountOf(std::span<const std::byte> bits) {
  uint64_t count = 0;
  for (const std::byte byte : bits) {
    count +=
        static_cast<uint64_t>(std::popcount(std::to_integer<uint8_t>(byte)));
  }
  return count;
}

uint64_t ChecksumOf(std::span<const std::byte> bits) {
  return XXH3_64bits(bits.data(), bits.size());
}

Status NoKeptRecords(std::string_view why) {
  return InvalidArgumentError("is no file of kept records: {}", why);
}

}  // namespace

std::string KeptRecordsText(KeptRecordsHeader* header, std::string_view bits) {
  const auto bytes = std::as_bytes(std::span(bits));
  header->kept = CountOf(bytes);
  header->checksum = ChecksumOf(bytes);
  const nlohmann::ordered_json json = {
      {KeptRecordsHeader::kVersionKey, KeptRecordsHeader::kVersion},
      {"records", header->records},
      {"kept", header->kept},
      {"data", header->data},
      {"selection", header->selection},
      {"function", header->function},
      {"predicate", header->predicate},
      {"checksum", Format("{:016x}", header->checksum)}};
  std::string text =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text += '\n';
  text += bits;
  return text;
}

std::string PredicateDigest(std::string_view code) {
  const XXH128_hash_t hash = XXH3_128bits(code.data(), code.size());
  return Format("{:016x}{:016x}", hash.high64, hash.low64);
}

StatusOr<KeptRecordsHeader> ParseKeptRecordsHeader(std::string_view text,
                                                   size_t* bits_at) {
  const size_t end =
      text.substr(0, KeptRecordsHeader::kLineBytesMax).find('\n');
  if (end == text.npos) return NoKeptRecords("its first line has no end");
  *bits_at = end + 1;
  // Bounds the depth: foreign text cannot exhaust the stack.
  const nlohmann::json json = nlohmann::json::parse(
      text.substr(0, end),
      [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        return depth <= 1;
      },
      /*allow_exceptions=*/false);
  // find() of what is no object finds nothing.
  const auto version = json.find(KeptRecordsHeader::kVersionKey);
  if (version == json.end() || !version->is_number_unsigned()) {
    return NoKeptRecords("its first line has no header");
  }
  if (*version != KeptRecordsHeader::kVersion) {
    return FailedPreconditionError(
        "is of version {}, and this Penstock reads version {}",
        version->get<uint64_t>(), KeptRecordsHeader::kVersion);
  }
  KeptRecordsHeader header;
  for (auto [key, number] : {std::pair("records", &header.records),
                             std::pair("kept", &header.kept)}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned() ||
        *found > KeptRecordsHeader::kRecordsMax) {
      return NoKeptRecords(Format("its header has no number '{}'", key));
    }
    *number = found->get<uint64_t>();
  }
  std::string checksum;
  for (auto [key, value] : {std::pair("data", &header.data),
                            std::pair("selection", &header.selection),
                            std::pair("function", &header.function),
                            std::pair("predicate", &header.predicate),
                            std::pair("checksum", &checksum)}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) {
      return NoKeptRecords(Format("its header has no text '{}'", key));
    }
    *value = found->get<std::string>();
  }
  if (checksum.size() != 16 ||
      checksum.find_first_not_of("0123456789abcdef") != checksum.npos) {
    return NoKeptRecords("the checksum of its header is none");
  }
  header.checksum = std::stoull(checksum, nullptr, 16);
  return header;
}

Status CheckKeptRecords(const KeptRecordsHeader& header,
                        std::span<const std::byte> bits) {
  const uint64_t spare = 8 * header.BitBytes() - header.records;
  const bool tail_is_zero =
      spare == 0 || (std::to_integer<uint8_t>(bits.back()) >> (8 - spare)) == 0;
  if (bits.size() != header.BitBytes() || !tail_is_zero ||
      ChecksumOf(bits) != header.checksum || CountOf(bits) != header.kept) {
    return DataLossError("is damaged: its bits are not those of its checksum");
  }
  return OkStatus();
}

}  // namespace penstock
