// Files that are compressed as a whole, opened as what they inflate to: each is
// inflated once into a local copy, which is read in its place from then on.
#ifndef BROKER_INDEX_INFLATED_FILES_H_
#define BROKER_INDEX_INFLATED_FILES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/index/data_file.h"
#include "broker/index/inflate.h"
#include "broker/index/local_copies.h"
#include "broker/index/open_progress.h"
#include "common/status.h"

namespace penstock {

// Compressed bytes of a file: all, or a member of an archive.
struct CompressedBytes {
  const DataFile* file = nullptr;
  std::string name;  // for messages
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Compression compression = Compression::kGzip;
  // What they inflate to, if it is known.
  std::optional<uint64_t> inflated;
  std::optional<uint32_t> crc;  // CRC-32
};

// By what a file is taken for a compressed one: kMark, its first bytes; kName,
// these and the end of its path, where any bytes may begin a plain file.
enum class InflateBy { kMark, kName, kNever };

// nullopt: it is plain.
StatusOr<std::optional<CompressedBytes>> FindCompressed(
    const DataFile& file, InflateBy by, const OpenProgress& progress);

// Their copies, in their order. Those that are not there are made, on several
// threads; what another broker makes meanwhile is waited for. Errors: those of
// Inflate; FailedPrecondition: there is no room, or no folder, with the way
// out.
StatusOr<std::vector<LocalCopy>> CopiesOf(
    std::span<const CompressedBytes> wanted, const OpenProgress& progress);

}  // namespace penstock
#endif  // BROKER_INDEX_INFLATED_FILES_H_
