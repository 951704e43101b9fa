// The input is a zip archive. Its directory is refused as documented, or each
// member is within the file, or refused.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "broker/source/npy_header.h"
#include "broker/source/zip_directory.h"
#include "tests/fuzz/file_of.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

void RequireDocumented(const Status& status) {
  Require(status.code() == StatusCode::kInvalidArgument ||
              status.code() == StatusCode::kDataLoss,
          "an archive is refused as documented");
}

void Check(std::string_view bytes) {
  OpenProgress progress;
  const StatusOr<DataFile> file =
      DataFile::Open(FileOf(bytes), *FileAccess::OfBroker());
  Require(file.ok(), "the input is a file");
  const auto members = ReadZipDirectory(*file, &progress);
  if (!members.ok()) return RequireDocumented(members.status());
  std::set<std::string> names;
  for (const ZipMember& member : *members) {
    Require(names.insert(member.name).second, "each has its own name");
    const StatusOr<uint64_t> at = FindZipData(*file, member, &progress);
    if (!at.ok()) {
      RequireDocumented(at.status());
      continue;
    }
    Require(*at <= bytes.size() && member.bytes <= bytes.size() - *at,
            "a member is within the file");
    const auto header = ReadNpyHeader("a", *file, *at, member.bytes, &progress);
    if (!header.ok()) RequireDocumented(header.status());
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
