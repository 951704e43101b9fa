// The cached index of one file: its records' places as they are in memory, with
// a digest. Untrusted (cache_file.h).
#ifndef BROKER_INDEX_INDEX_CACHE_H_
#define BROKER_INDEX_INDEX_CACHE_H_

#include "broker/index/cache_file.h"
#include "broker/index/index.h"

namespace penstock {

// True: *records are those that this scanner found in this very file (path,
// inode, size, modification time). An error: their memory was refused.
StatusOr<bool> ReadIndexCache(const DataFile& file,
                              const RecordScanner& scanner,
                              const OpenProgress& progress,
                              FileRecords* records);

// Unless the file changed shortly before scan_begin_ns (CLOCK_REALTIME), or
// since.
Status WriteIndexCache(const DataFile& file, const RecordScanner& scanner,
                       const FileRecords& records, int64_t scan_begin_ns);

}  // namespace penstock
#endif  // BROKER_INDEX_INDEX_CACHE_H_
