// Progress and cancellation of a long opening: written by the thread that opens
// a source (and the threads it starts), read by any. And what it may read.
#ifndef BROKER_INDEX_OPEN_PROGRESS_H_
#define BROKER_INDEX_OPEN_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "broker/io/file_access.h"
#include "common/status.h"

namespace penstock {

class DataFile;
struct FileRecords;
struct RecordScanner;

struct OpenProgress {
  // Counts, which are shown only.
  mutable std::atomic<uint64_t> done{0};   // files, records or bytes so far
  mutable std::atomic<uint64_t> total{0};  // 0: not known
  std::atomic<bool> cancel{false};
  // Called before a source keeps this many bytes more in memory; an error ends
  // the opening. Any thread.
  std::function<Status(uint64_t bytes)> reserve = [](uint64_t) {
    return OkStatus();
  };
  std::shared_ptr<const FileAccess> access = FileAccess::OfBroker();
  // Called with the index of each file that has one (`penstock index`). One
  // thread at a time.
  std::function<Status(const DataFile& file, const RecordScanner& scanner,
                       const FileRecords& records)>
      on_index = {};
  // The local copies of files that it opens or makes (local_copies.h).
  struct Copies {
    std::optional<uint64_t>
        most;  // of bytes; nullopt: what the disk has room for
    std::atomic<uint64_t> files{0};
    std::atomic<uint64_t> bytes{0};  // of those that are made: promised
  };
  mutable Copies copies;
  // Files of object stores, and where their indexes are from.
  struct Remote {
    std::atomic<uint64_t> files{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> kept{0};    // files: in the cache folder
    std::atomic<uint64_t> beside{0};  // files: beside them
    std::atomic<uint64_t> scanned{0};
    std::atomic<uint64_t> scanned_bytes{0};  // promised, before any is read

    void Count(uint64_t more_files, uint64_t more_bytes) {
      files.fetch_add(more_files, std::memory_order_relaxed);
      bytes.fetch_add(more_bytes, std::memory_order_relaxed);
    }
  };
  mutable Remote remote;
  // Else remote files without an index are an error instead.
  bool scans_remote = true;

  // Relaxed, both: a later call sees a cancellation, and counts are shown.
  Status CheckCancelled(const std::string& what) const {
    return cancel.load(std::memory_order_relaxed)
               ? CancelledError("{}: opening was cancelled", what)
               : OkStatus();
  }
  void CountDone(uint64_t more) const {
    done.fetch_add(more, std::memory_order_relaxed);
  }
};

}  // namespace penstock
#endif  // BROKER_INDEX_OPEN_PROGRESS_H_
