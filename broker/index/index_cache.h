// The index of one file, kept: its records' places as they are in memory, with
// a digest. In the cache folder, for this machine and user; or beside the file,
// where whoever has the data put it, so that nobody has to scan the file.
// Untrusted, both.
#ifndef BROKER_INDEX_INDEX_CACHE_H_
#define BROKER_INDEX_INDEX_CACHE_H_

#include <string>
#include <string_view>

#include "broker/index/cache_file.h"
#include "broker/index/index.h"

namespace penstock {

// True: *records are those that this scanner found in this very file: from the
// cache folder (path, inode, size, modification time), else from the file
// beside it (size, first block; of an object its ETag). An error: their memory
// was refused.
StatusOr<bool> ReadKeptIndex(const DataFile& file, const RecordScanner& scanner,
                             const OpenProgress& progress,
                             FileRecords* records);

// In the cache folder, unless the file changed shortly before scan_begin_ns
// (CLOCK_REALTIME), or since.
Status WriteIndexCache(const DataFile& file, const RecordScanner& scanner,
                       const FileRecords& records, int64_t scan_begin_ns);

// What the path of a file goes on with for its index beside it; other scans
// have other ones.
std::string IndexSuffix(const RecordScanner& scanner);
// The file beside which a file of such a name is the index; empty: none.
std::string_view FileOfIndex(std::string_view path);
// The file that is to lie beside.
Status WriteIndexFile(const std::string& path, const DataFile& file,
                      const RecordScanner& scanner, const FileRecords& records);

}  // namespace penstock
#endif  // BROKER_INDEX_INDEX_CACHE_H_
