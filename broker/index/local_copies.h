// Local copies of files whose own bytes cannot be read in place: inflated ones
// of files that are compressed. They lie in the folder `files` of the cache
// folder, shared by all brokers of this user on this host.
//
//   NAME.data   the bytes
//   NAME.copy   what they are a copy of, their size and checksum; written last
//   NAME.part   bytes that somebody makes now: its size is the room that they
//               were promised
//   lock        held for as long as a name is looked up, made or removed
//
// NAME is a digest of the key. Whoever has a copy open holds a shared flock of
// NAME.data, and whoever makes one an exclusive one of NAME.part, so both end
// with their process, however that ends. A copy that nobody holds may be
// removed, a part that nobody holds is rubbish.
//
// Untrusted: copies that belong to somebody else, or that others may write, are
// none. One whose inode or times are not those that it was made with is read
// whole and compared with its checksum. So is no other: between fdatasync and
// now nothing has written to it.
#ifndef BROKER_INDEX_LOCAL_COPIES_H_
#define BROKER_INDEX_LOCAL_COPIES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/index/open_progress.h"
#include "common/fd.h"
#include "common/status.h"

struct XXH3_state_s;

namespace penstock {

// In use for as long as fd, or another descriptor that HoldCopy was called of,
// is open.
struct LocalCopy {
  Fd fd;
  uint64_t bytes = 0;
};
// For a descriptor that was opened by way of a copy's.
void HoldCopy(int fd);

class LocalCopies {
 public:
  // One that is being made. Removed if it is not finished. One thread at a
  // time; not longer than these copies and the progress of its opening.
  class New {
   public:
    New(New&&) noexcept;
    ~New();

    // FailedPrecondition: there is no room for so many more bytes.
    Status Append(std::span<const std::byte> bytes);
    uint64_t bytes() const { return bytes_; }

   private:
    friend class LocalCopies;
    struct FreeState {
      void operator()(XXH3_state_s* state) const;
    };

    New(const LocalCopies* copies, OpenProgress::Copies* room, std::string key,
        std::string path, Fd fd);
    Status Promise(uint64_t bytes);

    const LocalCopies* copies_;
    OpenProgress::Copies* room_;
    std::string key_;
    std::string path_;  // without ".part"
    Fd fd_;
    std::unique_ptr<XXH3_state_s, FreeState> hash_;
    uint64_t bytes_ = 0;
    uint64_t promised_ = 0;
  };

  // Makes the folder. kept_max: what all copies may take, unless an opening
  // allows its own more; by default half of what the file system would have
  // free without them. FailedPrecondition: it cannot be made, or is another
  // user's.
  static StatusOr<LocalCopies> Open(
      std::optional<uint64_t> kept_max = std::nullopt);

  const std::string& folder() const { return folder_; }

  // The copy of what key names, or the task to make it; neither: somebody else
  // makes it now. A key has all that the copy depends on, above all the
  // origin's path, inode, size and modification time. It is shown to nobody.
  struct Claimed {
    std::optional<LocalCopy> copy;
    std::optional<New> task;
  };
  StatusOr<Claimed> Claim(const std::string& key,
                          const OpenProgress& progress) const;

  // Promises room for this many bytes of each, all or none; what they turn out
  // to need more is promised as they grow. Copies that nobody has open are
  // removed for them, the least recently used first, if that is enough. Returns
  // what copies may take. FailedPrecondition says what room there is.
  StatusOr<uint64_t> Promise(
      std::span<const std::pair<New*, uint64_t>> wanted) const;

  // Its bytes are on the disk.
  StatusOr<LocalCopy> Finish(New task) const;

 private:
  struct Entry;
  struct Listing;

  LocalCopies(std::string folder, std::optional<uint64_t> kept_max)
      : folder_(std::move(folder)), kept_max_(kept_max) {}
  StatusOr<Fd> Lock() const;
  StatusOr<Listing> List() const;

  std::string folder_;
  std::optional<uint64_t> kept_max_;
};

}  // namespace penstock
#endif  // BROKER_INDEX_LOCAL_COPIES_H_
