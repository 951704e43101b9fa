#include "common/record_list.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

Status NoHeader(std::string_view why) {
  return InvalidArgumentError("its first line is a damaged header: {}", why);
}

}  // namespace

std::string RecordListHeaderLine(const RecordListHeader& header) {
  const nlohmann::ordered_json json = {
      {RecordListHeader::kVersionKey, RecordListHeader::kVersion},
      {"records", header.records},
      {"data", header.data}};
  return "# " +
         json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

std::string RecordListLine(uint64_t record, std::string_view what) {
  // Messages of Python functions have several lines.
  std::string line = Format("{}\t", record);
  for (bool first = true; !what.empty() || first; first = false) {
    const size_t end = std::min(what.find('\n'), what.size());
    line += (first ? "" : " | ") + Printable(what.substr(0, end));
    what.remove_prefix(std::min(end + 1, what.size()));
  }
  return line + "\n";
}

StatusOr<std::optional<RecordListHeader>> ParseRecordListHeader(
    std::string_view text) {
  if (!text.starts_with(RecordListHeader::kBegin)) {
    return std::optional<RecordListHeader>();
  }
  text.remove_prefix(2);
  // Bounds the depth: foreign text cannot exhaust the stack.
  const nlohmann::json json = nlohmann::json::parse(
      text.substr(0, text.find('\n')),
      [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        return depth <= 1;
      },
      /*allow_exceptions=*/false);
  // find() of what is no object finds nothing.
  const auto version = json.find(RecordListHeader::kVersionKey);
  if (version == json.end() || !version->is_number_unsigned()) {
    return NoHeader("it is no JSON with a version");
  }
  if (*version != RecordListHeader::kVersion) {
    return FailedPreconditionError(
        "is of version {}, and this Penstock reads version {}",
        version->get<uint64_t>(), RecordListHeader::kVersion);
  }
  RecordListHeader header;
  const auto records = json.find("records");
  if (records == json.end() || !records->is_number_unsigned() ||
      *records > RecordListHeader::kRecordsMax) {
    return NoHeader("it has no number 'records'");
  }
  header.records = records->get<uint64_t>();
  const auto data = json.find("data");
  if (data == json.end() || !data->is_string()) {
    return NoHeader("it has no text 'data'");
  }
  header.data = data->get<std::string>();
  return std::optional(std::move(header));
}

Status ForEachListed(std::string_view text, uint64_t records,
                     const std::function<void(uint64_t record)>& add) {
  constexpr std::string_view kBlanks = " \t\r";
  constexpr size_t kShown = 40;
  for (uint64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty() || line[0] == '#') continue;
    uint64_t record = 0;
    const auto [rest, error] =
        std::from_chars(line.data(), line.data() + line.size(), record);
    const bool whole = rest == line.data() + line.size() ||
                       kBlanks.find(*rest) != kBlanks.npos;
    if (error == std::errc::invalid_argument || !whole) {
      return InvalidArgumentError(
          "line {}: wanted the number of a record, and a blank before anything "
          "else, found '{}'",
          number,
          Printable(line.substr(0, kShown)) +
              (line.size() > kShown ? "..." : ""));
    }
    if (error != std::errc() || record >= records) {
      return InvalidArgumentError(
          "line {}: record {}: the source has {}, numbered from 0", number,
          Printable(line.substr(0, static_cast<size_t>(rest - line.data()))),
          Counted(records, "record"));
    }
    add(record);
  }
  return OkStatus();
}

}  // namespace penstock
