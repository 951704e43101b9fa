// A list of records by number: `penstock check --all` writes that of the broken
// ones, anybody may write one by hand, and `select: [exclude: FILE]` reads it.
//
//   # {"penstock_records": 1,            version of this format
//      "records": 60000,                 of the source
//      "data": "..."}                    which data they are of
//   17\tsample 17 in a.tar, ...          behind the number, for people
//   40
//
// The header is one line, and hand-written lists need none. Lines that begin
// with # are comments, empty ones count nothing.
#ifndef COMMON_RECORD_LIST_H_
#define COMMON_RECORD_LIST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/exact_max.h"
#include "common/status.h"

namespace penstock {

struct RecordListHeader {
  static constexpr int kVersion = 1;
  static constexpr char kVersionKey[] = "penstock_records";  // comes first
  static constexpr char kBegin[] = "# {\"penstock_records\"";
  static constexpr uint64_t kRecordsMax = kExactMax;

  uint64_t records = 0;
  std::string data;
  bool operator==(const RecordListHeader&) const = default;
};

// Bound of the whole text.
inline constexpr size_t kRecordListBytesMax = size_t{256} << 20;

// The first line, with its end.
std::string RecordListHeaderLine(const RecordListHeader& header);
// A line of a record. what: for people, of any bytes.
std::string RecordListLine(uint64_t record, std::string_view what);

// The header of such a text; nullopt: it has none. InvalidArgument: it is
// damaged; FailedPrecondition: of a newer version.
StatusOr<std::optional<RecordListHeader>> ParseRecordListHeader(
    std::string_view text);
// Calls add with the number of each record, as often as it is there, all below
// `records`. Foreign bytes. InvalidArgument names the line.
Status ForEachListed(std::string_view text, uint64_t records,
                     const std::function<void(uint64_t record)>& add);

}  // namespace penstock
#endif  // COMMON_RECORD_LIST_H_
