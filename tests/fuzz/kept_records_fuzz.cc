// The input is a file of the records that a predicate kept
// (common/kept_records.h). What is read is written and read again as the same.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/kept_records.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

void Check(std::string_view text) {
  size_t bits_at = 0;
  const StatusOr<KeptRecordsHeader> header =
      ParseKeptRecordsHeader(text, &bits_at);
  if (!header.ok()) {
    Require(header.status().code() == StatusCode::kInvalidArgument ||
                header.status().code() == StatusCode::kFailedPrecondition,
            "a refusal is one of the two that are documented");
    return;
  }
  Require(bits_at > 0 && bits_at <= text.size() &&
              bits_at <= KeptRecordsHeader::kLineBytesMax,
          "the bits begin behind the header");
  const std::string_view bits = text.substr(bits_at);
  if (bits.size() != header->BitBytes() ||
      !CheckKeptRecords(*header, std::as_bytes(std::span(bits))).ok()) {
    return;
  }
  KeptRecordsHeader again = *header;
  const std::string written = KeptRecordsText(&again, bits);
  Require(again == *header, "kept and checksum are those of the bits");
  const auto read = ParseKeptRecordsHeader(written, &bits_at);
  Require(read.ok() && *read == *header, "what was written is read");
  Require(written.substr(bits_at) == bits, "with the same bits");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
