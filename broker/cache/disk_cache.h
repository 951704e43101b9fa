// A cache in two files: `cache` of the cache folder, and `snapshot`, which is
// complete or not there.
//
// The entries, one after the other as they come (native byte order):
//   uint32 crc      CRC-32C of all that follows
//   uint32 stored   bytes that follow the header
//   uint32 bytes    of the features (entry_format.h); more than stored: those
//                   are compressed by zstd
//   uint32 0
//   uint64 record
//   then `stored` bytes, and zeros up to a whole granule.
// The index: a header, the key as text, and a place (row_cache.h) for each
// record. A place is written after its entry, so a broker that dies leaves what
// it has kept; what a machine that dies has torn, the checksums tell. An index
// whose header says `complete` is written no more: that is said when all
// entries are on the disk, and all places are covered by a checksum.
//
// One broker writes: it has the lock of the index (flock). Both files are
// untrusted input.
//
// Threads: as for a RowCache; the seal of a snapshot is a thread of its own.
#ifndef BROKER_CACHE_DISK_CACHE_H_
#define BROKER_CACHE_DISK_CACHE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "broker/cache/row_cache.h"
#include "broker/io/file_access.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class DiskCache final : public RowCache,
                        public std::enable_shared_from_this<DiskCache> {
 public:
  struct Files {
    std::string index;
    std::string entries;
  };
  struct Options {
    Files files;
    std::string
        key;  // of what is kept: JSON, of which errors name what differs
    uint64_t bytes = kBytesMax;  // the most that the entries take
    std::optional<int64_t> zstd;
    // It is sealed when it has all records, and refused if it is of others.
    // Else it begins anew.
    bool snapshot = false;
    // May write, and where. false: a complete snapshot is only read, with the
    // access of the user.
    bool writes = true;
    std::shared_ptr<const FileAccess> access = FileAccess::OfBroker();
    std::shared_ptr<void> held;  // released when the files are closed
  };
  // FailedPrecondition: a snapshot of other data or steps; another one is being
  // written there; the files are none of a cache. DataLoss: it is damaged.
  // Unavailable: another broker writes the same. Else as for an open.
  static StatusOr<std::shared_ptr<DiskCache>> Open(const Options& options,
                                                   uint64_t records,
                                                   const RawSpec& features);
  ~DiskCache() override;

  bool is_read() const override { return true; }
  bool Locate(uint64_t record, ReadRequest* request) const override;
  Status Unpack(uint64_t record, std::span<const std::byte> bytes,
                CacheScratch* scratch, RawRecord* made) const override;
  void Fail(uint64_t record) override;
  std::string where() const override { return "on disk, " + path_; }
  std::string state() const override;
  uint64_t capacity_bytes() const override { return bytes_max_; }
  // All records are kept, or have failed, and it is sealed.
  bool complete() const { return complete_.load(std::memory_order_acquire); }

 protected:
  std::optional<Place> Write(uint64_t record, const RawRecord& made,
                             CacheScratch* scratch) override;
  void Placed(uint64_t record, uint64_t word) override;
  // What a seal may cover does not change any more.
  uint64_t forgotten() const override { return snapshot_ ? kFailed : kNone; }

 private:
  struct Header;
  struct Opened;

  DiskCache(Opened opened, const Options& options, uint64_t records,
            const RawSpec& features);
  static StatusOr<Opened> OpenToRead(const Options& options, uint64_t records);
  static StatusOr<Opened> OpenToWrite(const Options& options, uint64_t records);
  static Status Compare(const Options& options, uint64_t records,
                        const Opened& opened);
  static Status Begin(const Options& options, uint64_t records, Opened* opened);
  Status LoadPlaces(uint64_t entries_bytes);
  void Stop();  // errno says why
  void StartSealing();
  void Seal();

  const std::shared_ptr<void> held_;  // first: goes when the files are closed
  const std::string path_;
  const uint64_t bytes_max_;
  const std::optional<int64_t> zstd_;
  const bool snapshot_;
  const Fd index_;
  const Fd entries_file_;
  const uint64_t places_at_;
  const bool writes_;
  const bool nowait_;
  // Relaxed, both: shown, and hints.
  std::atomic<bool> full_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> used_{0};  // granules
  std::atomic<uint64_t> left_;     // records that have no place yet
  std::atomic<bool> complete_;
  const std::unique_ptr<const Header> header_;
};

}  // namespace penstock
#endif  // BROKER_CACHE_DISK_CACHE_H_
