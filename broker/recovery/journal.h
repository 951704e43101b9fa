// An append-only file of checksummed records in the state directory, from which
// a restarted broker recovers. To the journal a record is a type and bytes; its
// callers define the contents.
//
// Threads: one at a time. It may wait for the disk: the starting thread calls
// Open, the recovery journal's writer (journal_writer.h) the rest.
//
// Invariants:
//   I1  The file is a header, then frames. Open returns the longest run of
//       valid frames from the start. It cuts off the first incomplete or
//       invalid frame and everything behind it. Bytes behind a bad frame are
//       never searched for records: they may be left over from an overwritten
//       or torn write.
//   I2  A frame is valid only behind the frames it was written behind: its CRC
//       continues theirs, and the first frame's continues the file's random
//       salt. So leftovers of an older file or of a longer, failed write are
//       not records, nor is anything inside a payload.
//   I3  `journal` is always a complete journal: a new one is written as
//       `journal.new`, synced, then renamed over it. Open removes a journal.new
//       that a crash left.
//   I4  A record whose Append returned ok survives the death of the process.
//       After the death of the machine the file is as an earlier moment left
//       it. A record whose Append failed is not in the file, but may be if the
//       process dies before the next successful Append.
//   I5  After Compact the file holds the records its callback put.
//   I6  The death of the process leaves complete groups (the records of one
//       Append). An unfinished Append leaves a record with type 0 or nothing.
//       The kernel ends a killed process's write at a page boundary, so a group
//       that crosses one has its first frame header written last.
//   I7  Memory: one group and one read buffer, whatever the file says.
//
// The format, integers little-endian:
//   header, 28 bytes
//      0   8  "penstkJ\n"
//      8   4  version, 1. Magic and version stay where they are in any version.
//     12   4  salt: random, different in each file
//     16   8  settled: the bytes of this file that were on disk before it got
//             its name. No crash damages those.
//     24   4  CRC-32 (zlib's) of bytes 0 to 23
//   frame, 9 bytes and the payload
//      0   4  n, the payload's bytes, 0 to kJournalRecordBytesMax
//      4   4  CRC-32 of bytes 0 to 3, 8 and the payload, continued from the
//             CRC of the frame before (crc32(that, ...)), the first from salt
//      8   1  type, 1 to 255: a run of zeros is no frame
//      9   n  payload
#ifndef BROKER_RECOVERY_JOURNAL_H_
#define BROKER_RECOVERY_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace penstock {

inline constexpr uint32_t kJournalVersion = 1;
inline constexpr size_t kJournalHeaderBytes = 28;
inline constexpr size_t kJournalFrameBytes = 9;
inline constexpr size_t kJournalRecordBytesMax = size_t{1} << 20;
inline constexpr char kJournalName[] = "journal";
inline constexpr char kJournalNewName[] = "journal.new";
inline constexpr char kJournalLockName[] = "journal.lock";

// The state directory as the journal needs it. Tests and the simulation replace
// it with one in memory that fails and dies where they want.
//
// Functions return a negative errno on failure.
class JournalFiles {
 public:
  virtual ~JournalFiles() = default;

  // For messages.
  virtual const std::string& directory() const = 0;
  // Locks the directory against other JournalFiles until destruction.
  // -EWOULDBLOCK: another one holds the lock.
  virtual int Lock() = 0;
  // A salt for a new file.
  virtual uint32_t Random() = 0;

  // A handle >= 0 for reading and writing. With create the file must not exist
  // (-EEXIST), without it must (-ENOENT). -ELOOP: a symbolic link; -EINVAL,
  // -EISDIR: not a regular file.
  virtual int Open(const char* name, bool create) = 0;
  virtual void Close(int file) = 0;
  virtual int64_t Size(int file) = 0;
  // Like pread and pwrite: return the bytes done, maybe fewer than asked. 0
  // from Read means the end.
  virtual int64_t Read(int file, uint64_t offset, char* data, size_t bytes) = 0;
  virtual int64_t Write(int file, uint64_t offset, std::string_view data) = 0;
  virtual int Truncate(int file, uint64_t bytes) = 0;
  virtual int Sync(int file) = 0;

  // Replaces `to`. Open handles keep their files.
  virtual int Rename(const char* from, const char* to) = 0;
  virtual int Remove(const char* name) = 0;
};

// Opens the existing directory at path. Files are created with mode 0600, never
// through a symbolic link.
StatusOr<std::unique_ptr<JournalFiles>> OpenJournalDirectory(
    const std::string& path);

// Locks the directory. AlreadyExists, and the way out: another broker has it.
Status LockJournal(JournalFiles* files);

struct JournalLimits {
  // Append and Compact fail rather than make the file larger.
  uint64_t file_bytes_max = uint64_t{1} << 30;
  // Smaller files are not compacted.
  uint64_t compact_bytes_min = uint64_t{1} << 20;
};

// Result of Open.
struct JournalReplay {
  uint64_t records = 0;
  uint64_t bytes_cut = 0;
  std::string warning;  // for the log: where, what and why Open cut; or empty
  // Records are missing: they were cut off.
  bool damaged = false;
  // The last record is unfinished (I6). Unless the machine died since, its
  // Append had not returned.
  bool unfinished = false;
};

// Passes a record to or from the journal. payload is valid during the call.
using JournalRecord =
    std::function<Status(uint8_t type, std::string_view payload)>;

struct JournalEntry {
  uint8_t type = 0;
  std::string_view payload;
};

class Journal {
 public:
  // Opens the directory's journal or creates an empty one, and passes each
  // record in order to replay. If replay fails, Open fails and does not change
  // the file.
  //
  // AlreadyExists: another process has it open. FailedPrecondition: the file is
  // not a journal, or of a newer version. DataLoss: its header is damaged, or
  // it cannot be read. None of these errors changes the file.
  static StatusOr<std::unique_ptr<Journal>> Open(
      std::unique_ptr<JournalFiles> files, const JournalLimits& limits,
      const JournalRecord& replay, JournalReplay* replayed);

  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Writes one record: type >= 1, at most kJournalRecordBytesMax bytes
  // (InvalidArgument). After any other error the record is not in the journal;
  // the next Append tries the disk again.
  Status Append(uint8_t type, std::string_view payload);
  // Writes several records, all or none (I4, I6).
  Status Append(std::span<const JournalEntry> group);

  // Replaces all records by those that live puts. After an error the journal is
  // unchanged.
  Status Compact(const std::function<Status(const JournalRecord& put)>& live);

  // True if the file is larger than compact_bytes_min and four times what the
  // last compaction left, or Open found damage in the settled bytes. Bytes that
  // Append could not write count too: a full disk needs the compaction. After a
  // failed compaction, true once another kRetryBytes were to be appended.
  bool WantsCompaction() const;
  uint64_t size_bytes() const { return end_.size; }

  static constexpr uint64_t kRetryBytes = 64 * 1024;

 private:
  // An open handle; its last user closes it.
  class File;
  class FrameReader;
  class Rewrite;
  // Where the next record goes.
  struct End {
    std::shared_ptr<const File> file;
    uint64_t size = 0;   // behind the last good frame
    uint32_t chain = 0;  // CRC of that frame
    uint64_t compact_above = 0;
  };

  Journal(std::unique_ptr<JournalFiles> files, const JournalLimits& limits,
          End end);
  static StatusOr<End> OpenFile(JournalFiles* files,
                                const JournalLimits& limits,
                                const JournalRecord& replay,
                                JournalReplay* replayed);
  // A new journal with the records that live puts, in place of the old one.
  static StatusOr<End> WriteNew(
      JournalFiles* files, const JournalLimits& limits,
      const std::function<Status(const JournalRecord& put)>& live);
  static StatusOr<End> Replay(JournalFiles* files, const JournalLimits& limits,
                              End start, uint64_t file_bytes, uint64_t settled,
                              const JournalRecord& replay,
                              JournalReplay* replayed);

  const std::unique_ptr<JournalFiles> files_;
  const JournalLimits limits_;
  End end_;
  std::string frames_;  // Append's buffer, reused
  // Bytes that Append could not write since the last Compact.
  uint64_t refused_bytes_ = 0;
};

}  // namespace penstock
#endif  // BROKER_RECOVERY_JOURNAL_H_
