// What a broker has to know after its own death: an append-only file of
// checksummed records in its state directory. What a record says is its
// callers' affair; here it is a type and bytes.
//
// Who runs it: Open the starting thread; all else any thread that may wait for
// the disk, which the life journal's writer is and nobody who holds a job's
// mutex. No callback is called with the journal's mutex held.
//
// Invariants:
//   I1  The file is header, then frames. Open gives back the longest run of
//       whole frames from the start; the first that is not whole or not right
//       ends the journal and is cut off with all that follows it. Bytes that
//       follow a bad frame are never searched for records: they cannot be told
//       from what an overwritten or torn write left.
//   I2  A frame is valid only behind the very frames it was written behind: its
//       CRC continues theirs, and the first one's the file's random salt. So
//       what an older file or a longer, failed write left on the disk is no
//       record, nor is anything a payload contains.
//   I3  `journal` is always a whole journal: a new one is written as
//       `journal.new`, synced, then renamed over it. A journal.new found at
//       Open is what a death left; it is removed.
//   I4  A record whose Append returned ok survives the death of the process,
//       and the death of the machine once Sync or a Compact that began later
//       returned ok. A record whose Append failed is not in the file, unless
//       the process dies before the next Append that succeeds: then it may be.
//   I5  After Compact: the records its callback put, then what was appended
//       while it ran, in order. So callers append a record and change the state
//       it tells of under one mutex, which the callback takes to read that
//       state: else what was appended just before Compact began could be in
//       neither. And a record must be such that applying it to a state that
//       knows it already changes nothing.
//   I6  The death of the process leaves whole groups (the records of one
//       Append), and of the one whose Append had not returned a record without
//       its type (0) or nothing. The kernel ends a write of a process that is
//       killed where a page ends, so a group that goes over the end of one has
//       its first head written last.
//   I7  Memory: one group and one read buffer, whatever the file says.
//
// The format, integers little-endian:
//   header, 28 bytes
//      0   8  "penstkJ\n"
//      8   4  version, 1. Magic and version stay where they are in any version.
//     12   4  salt: random, another one in each file
//     16   8  settled: the bytes of this file that were on disk before it got
//             its name. Damage before them is not a death's doing. All ones:
//             a record could not be written (a full disk), since then.
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

#include "broker/base/mutex.h"
#include "common/status.h"

namespace penstock {

inline constexpr uint32_t kJournalVersion = 1;
inline constexpr size_t kJournalHeaderBytes = 28;
inline constexpr size_t kJournalFrameBytes = 9;
inline constexpr size_t kJournalRecordBytesMax = size_t{1} << 20;
inline constexpr char kJournalName[] = "journal";
inline constexpr char kJournalNewName[] = "journal.new";
inline constexpr char kJournalLockName[] = "journal.lock";

// The state directory as the journal needs it. Tests and the simulation put
// one in memory in its place, which fails and dies where they want.
//
// Results are negative errnos on failure. Calls come from several threads at
// once; those on one file that change it one after the other.
class JournalFiles {
 public:
  virtual ~JournalFiles() = default;

  // For messages.
  virtual const std::string& directory() const = 0;
  // Keeps every other JournalFiles of the directory out until this one is
  // gone. -EWOULDBLOCK: another has it.
  virtual int Lock() = 0;
  // A file's salt.
  virtual uint32_t Random() = 0;

  // A handle >= 0 for reading and writing. create: it must not be there
  // (-EEXIST); else it must (-ENOENT). -ELOOP: a symbolic link; -EINVAL,
  // -EISDIR: another thing that is not a regular file.
  virtual int Open(const char* name, bool create) = 0;
  virtual void Close(int file) = 0;
  virtual int64_t Size(int file) = 0;
  // As pread and pwrite: the bytes done, which may be fewer; 0 of Read is the
  // end.
  virtual int64_t Read(int file, uint64_t offset, char* data, size_t bytes) = 0;
  virtual int64_t Write(int file, uint64_t offset, std::string_view data) = 0;
  virtual int Truncate(int file, uint64_t bytes) = 0;
  virtual int Sync(int file) = 0;

  // Replaces `to`. Open handles stay with their files.
  virtual int Rename(const char* from, const char* to) = 0;
  virtual int Remove(const char* name) = 0;
  virtual int SyncDirectory() = 0;
};

// The directory at path, which must be there. Files are made with mode 0600
// and never through a symbolic link.
StatusOr<std::unique_ptr<JournalFiles>> OpenJournalDirectory(
    const std::string& path);

struct JournalLimits {
  // Append and Compact fail rather than make the file larger.
  uint64_t file_bytes_max = uint64_t{1} << 30;
  // No compaction is wanted below.
  uint64_t compact_bytes_min = uint64_t{1} << 20;
};

// What Open found.
struct JournalReplay {
  uint64_t records = 0;
  uint64_t bytes_cut = 0;
  std::string warning;  // for the log: where was cut, what and why; else empty
  // Records are missing: cut off, or not written because of an error.
  bool incomplete = false;
  // Of these: cut off.
  bool damaged = false;
  // The last one was not finished (I6): unless the machine died since, nobody
  // was told of it.
  bool unfinished = false;
};

// A record, given to or taken from the journal. payload is valid during the
// call.
using JournalRecord =
    std::function<Status(uint8_t type, std::string_view payload)>;

struct JournalEntry {
  uint8_t type = 0;
  std::string_view payload;
};

class Journal {
 public:
  // Opens the directory's journal or makes an empty one, and gives each record
  // in order to replay; its error ends Open with the file as it was.
  //
  // AlreadyExists: another process has it open. FailedPrecondition: the file is
  // not a journal, or of a newer version; DataLoss: its header is damaged, or
  // it cannot be read. In all these cases the file is left untouched.
  static StatusOr<std::unique_ptr<Journal>> Open(
      std::unique_ptr<JournalFiles> files, const JournalLimits& limits,
      const JournalRecord& replay, JournalReplay* replayed);

  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Writes one record: type >= 1, at most kJournalRecordBytesMax bytes
  // (InvalidArgument). Any other error leaves the journal without this record
  // and as usable as the disk lets it be: the next Append tries again.
  Status Append(uint8_t type, std::string_view payload);
  // The same of several: all of them or none (I4, I6).
  Status Append(std::span<const JournalEntry> group);

  // Puts on disk what was appended before the call.
  Status Sync();

  // Replaces all records by those that live puts (I5). On an error the journal
  // goes on as it was, or, if only the directory's fsync failed, compacted; the
  // next Sync tries that again. FailedPrecondition: one is running already.
  Status Compact(const std::function<Status(const JournalRecord& put)>& live);

  // The file is larger than compact_bytes_min and four times what the last
  // compaction left; or writing works again after it had failed; or Open found
  // damage in what had been settled. After a compaction that failed: once
  // another kRetryBytes were to be appended.
  bool WantsCompaction() const;
  // Something is missing: an Append or Sync failed, and no Compact that began
  // later has succeeded.
  bool degraded() const;
  uint64_t size_bytes() const;

  static constexpr uint64_t kRetryBytes = 64 * 1024;

 private:
  // An open handle; the last one that uses it closes it.
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
  static StatusOr<End> MakeEmpty(JournalFiles* files,
                                 const JournalLimits& limits);
  static StatusOr<End> Replay(JournalFiles* files, const JournalLimits& limits,
                              End start, uint64_t file_bytes, uint64_t settled,
                              const JournalRecord& replay,
                              JournalReplay* replayed);
  Status WriteCompacted(
      const std::function<Status(const JournalRecord& put)>& live,
      uint64_t copy_from, uint32_t copy_chain) ABSL_LOCKS_EXCLUDED(mutex_);
  Status PutInPlace(Rewrite* rewrite, uint64_t copy_from, uint32_t copy_chain)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Says so in the header, which needs no more space.
  void NoteIncomplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Refuse(const Status& why, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<JournalFiles> files_;
  const JournalLimits limits_;

  mutable Mutex mutex_;
  // Its file is shared: Sync uses it unlocked while Compact puts another in its
  // place.
  End end_ ABSL_GUARDED_BY(mutex_);
  std::string frames_ ABSL_GUARDED_BY(mutex_);  // of Append, reused
  bool degraded_ ABSL_GUARDED_BY(mutex_) = false;
  bool failing_ ABSL_GUARDED_BY(mutex_) = false;  // the last Append failed
  // Bytes that Append could not write since the last Compact: they count as
  // growth, or a full disk would never be compacted again.
  uint64_t refused_bytes_ ABSL_GUARDED_BY(mutex_) = 0;

  bool compacting_ ABSL_GUARDED_BY(mutex_) = false;
  // Since the running Compact began.
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool sync_asked_ ABSL_GUARDED_BY(mutex_) = false;
  // Renames done, and those known to be on disk.
  uint64_t renames_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t renames_synced_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
#endif  // BROKER_RECOVERY_JOURNAL_H_
