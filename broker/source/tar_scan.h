// The members of a tar file, in order: POSIX ustar and pax, GNU and old tar.
// Untrusted input. Nothing is ever extracted: a name is only a name.
#ifndef BROKER_SOURCE_TAR_SCAN_H_
#define BROKER_SOURCE_TAR_SCAN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "broker/index/index.h"
#include "common/status.h"

namespace penstock {

struct TarMember {
  std::string_view name;  // until the next member
  // Where the file has the name; kAbsent: in two pieces.
  uint64_t name_at = FileRecords::kAbsent;
  uint64_t header = 0;  // offset of its header block
  uint64_t offset = 0;  // of its bytes
  uint64_t bytes = 0;
};

// Calls visit for every regular file, until the archive or the file ends.
// Folders, links and devices are passed over. Returns where the archive ends
// otherwise than it should: at the file's end without a block of zeros (perhaps
// cut off), or before another archive, which is not read. Errors:
// InvalidArgument (not a tar file, a sparse member),
// DataLoss (damaged or cut off), with file and offset; visit's.
StatusOr<std::optional<uint64_t>> ForEachTarMember(
    ScannedFile* file,
    const std::function<Status(const TarMember& member)>& visit);

}  // namespace penstock
#endif  // BROKER_SOURCE_TAR_SCAN_H_
