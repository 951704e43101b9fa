// The file of the records that a predicate kept: `penstock filter` writes it,
// and `select: [filter: {records: FILE}]` reads it.
//
//   {"penstock_kept_records": 1,      version of this format
//    "records": 60000, "kept": 812,   of the source
//    "data": "...",                   fingerprint of the source; may be ""
//    "selection": "...",              digest of the steps of `select` before,
//                                     and of how the source is made of others
//    "function": "quality:keep",      for people
//    "predicate": "...",              digest of its code and of the steps of
//                                     `map` before it
//    "checksum": "0123456789abcdef"}  of the bits, XXH3 of 64 bits
//
// in one line, and after its end a bit for each record, kept or not, from the
// lowest bit of the first byte on.
#ifndef COMMON_KEPT_RECORDS_H_
#define COMMON_KEPT_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/exact_max.h"
#include "common/status.h"

namespace penstock {

struct KeptRecordsHeader {
  static constexpr int kVersion = 1;
  static constexpr char kVersionKey[] = "penstock_kept_records";  // comes first
  static constexpr size_t kLineBytesMax = 8192;  // with its end
  static constexpr uint64_t kRecordsMax = kExactMax;

  uint64_t records = 0;
  uint64_t kept = 0;
  std::string data;
  std::string selection;
  std::string function;
  std::string predicate;
  uint64_t checksum = 0;
  bool operator==(const KeptRecordsHeader&) const = default;

  uint64_t BitBytes() const { return records / 8 + (records % 8 != 0); }
};

// The whole file. Sets kept and checksum.
std::string KeptRecordsText(KeptRecordsHeader* header, std::string_view bits);
// As in the header: 32 hexadecimal digits.
std::string PredicateDigest(std::string_view code);
// The header of a file that begins with `text`, of kLineBytesMax bytes or all
// there are; *bits_at is where the bits begin. Foreign bytes: every value is
// checked. InvalidArgument: it is none; FailedPrecondition: of a newer version.
StatusOr<KeptRecordsHeader> ParseKeptRecordsHeader(std::string_view text,
                                                   size_t* bits_at);
// DataLoss: these are not the bits that were written.
Status CheckKeptRecords(const KeptRecordsHeader& header,
                        std::span<const std::byte> bits);

}  // namespace penstock
#endif  // COMMON_KEPT_RECORDS_H_
