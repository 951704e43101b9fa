// The central directory of a zip archive, ZIP64 included (PKWARE's
// APPNOTE.TXT, sections 4.3 and 4.5.3). Untrusted input.
#ifndef BROKER_SOURCE_ZIP_DIRECTORY_H_
#define BROKER_SOURCE_ZIP_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "broker/index/data_file.h"
#include "common/status.h"

namespace penstock {

struct ZipMember {
  static constexpr uint16_t kStored = 0;
  static constexpr uint16_t kDeflated = 8;

  std::string name;  // any bytes
  uint16_t method = kStored;
  bool is_encrypted = false;
  uint64_t bytes = 0;      // in the archive
  uint64_t inflated = 0;   // what they inflate to
  uint32_t crc = 0;        // CRC-32 of that
  uint64_t header_at = 0;  // offset of the header before its data
};

// The members in the directory's order, which have names of their own.
// DataLoss: not an archive, damaged or cut. InvalidArgument: of several disks,
// or a directory of more than 16 MiB.
StatusOr<std::vector<ZipMember>> ReadZipDirectory(const DataFile& file,
                                                  OpenProgress* progress);

// The offset of a member's data. DataLoss: it has another header than the
// directory says, or ends behind the file.
StatusOr<uint64_t> FindZipData(const DataFile& file, const ZipMember& member,
                               OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_SOURCE_ZIP_DIRECTORY_H_
