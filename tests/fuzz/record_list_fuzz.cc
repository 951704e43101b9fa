// The input is a list of records (common/record_list.h). What is read is
// written and read again as the same.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/record_list.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint64_t kRecords = 1000;

void Check(std::string_view text) {
  const auto header = ParseRecordListHeader(text);
  if (!header.ok()) {
    Require(header.status().code() == StatusCode::kInvalidArgument ||
                header.status().code() == StatusCode::kFailedPrecondition,
            "a refusal is one of the two that are documented");
    return;
  }
  const std::string line =
      *header ? RecordListHeaderLine(**header) : std::string();
  if (*header) {
    const auto again = ParseRecordListHeader(line);
    Require(again.ok() && **again == **header, "the header is read again");
  }
  std::vector<uint64_t> records;
  const Status listed = ForEachListed(text, kRecords, [&](uint64_t record) {
    Require(record < kRecords, "only records that there are");
    records.push_back(record);
  });
  if (!listed.ok()) {
    Require(listed.code() == StatusCode::kInvalidArgument &&
                listed.message().starts_with("line "),
            "a refusal names the line");
    return;
  }
  std::string written = line;
  // Any text may stand behind a number.
  for (const uint64_t record : records) {
    written += RecordListLine(record, text.substr(0, 50));
  }
  std::vector<uint64_t> again;
  Require(ForEachListed(
              written, kRecords,
              [&](uint64_t record) {
                again.push_back(record);
              }).ok() &&
              again == records,
          "what was written is read");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
