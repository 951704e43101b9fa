// Stages 6 to 8 of the flow for one attached process: publishes in its ring and
// sees batches taken and released.
//
// Threads: any broker thread that holds the job's mutex; a Feed has no lock of
// its own. It reads the rank's cursor page through ring.h only, as untrusted
// input: impossible values make the feed corrupt() and nothing else.
//
// A lease is a batch the rank was given, from Publish until the rank releases
// it, the broker recalls it (untaken) or the process is gone.
#ifndef BROKER_DELIVERY_FEED_H_
#define BROKER_DELIVERY_FEED_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/layout.h"
#include "common/ring.h"
#include "common/status.h"

namespace penstock {

class Feed {
 public:
  // Resets the ring: its last holder must be gone. leases: batches the rank may
  // have outstanding, <= kLeasesMax. The caller keeps wake_socket, valid until
  // Mute. any_corrupt, which outlives this, is set when corrupt() becomes true.
  Feed(Ring* ring, std::shared_ptr<const CursorPage> cursor, uint32_t leases,
       int wake_socket, bool* any_corrupt = nullptr);

  // It may be given batches.
  bool open() const { return !finished_ && !closed_; }
  bool finished() const { return finished_; }
  bool corrupt() const { return corrupt_; }
  uint64_t published() const { return published_; }
  uint32_t untaken();                    // published, not taken
  uint32_t out() const { return out_; }  // published, not seen released
  bool HasFreeLease() const { return out_ < leases_.size(); }
  // The rank sleeps on an empty ring.
  bool waiting();
  uint64_t waits() const;
  uint64_t wait_ns() const;

  // Requires open() and HasFreeLease(). Sets lease and generation of the cell.
  void Publish(uint32_t slot, bool redelivered, Cell cell);

  struct Batch {
    uint32_t slot = 0;
    bool taken = false;        // the rank may read it, or may have read it
    bool redelivered = false;  // it was published as redelivered
    uint32_t skipped = 0;      // as in its cell; 0 if taken
  };
  // Appends the leases the rank has released.
  void Reclaim(std::vector<Batch>* released);

  // Asks the rank for a wake on releases (takes: also when it takes a batch or
  // goes to sleep). If that is more than was asked before, the caller must
  // check the feed once more afterwards (E5, E8).
  void RequestWakes(bool takes);
  // Whether takes bring a wake.
  bool wakes_on_takes() const {
    return requested_wakes_ == BrokerWaits::kForTakes;
  }

  // Ends the data; published batches can still be taken. skipped: missed
  // batches that no cell reports.
  void Finish(uint32_t skipped = 0);
  // Gives no more batches and voids the untaken ones; the rank learns why.
  void Close(Closed why, const Status& status);
  // Call before the socket is closed.
  void Mute() { wake_socket_ = -1; }

  // After Close, while the process lives: the unreleased batches in publishing
  // order. Leases of untaken ones end; those of taken ones stay.
  std::vector<Batch> Recall();
  // After Reclaim, when the process is dead or has unmapped everything: the
  // batches it did not release.
  std::vector<Batch> TakeAllBack();

 private:
  struct Lease {
    bool out = false;
    bool redelivered = false;
    uint32_t slot = 0;
    uint32_t skipped = 0;
    uint64_t generation = 0;  // of its last batch: the cell's number + 1
    uint64_t previous = 0;    // of the one before
  };
  static Batch BatchOf(const Lease& lease, bool taken) {
    return {lease.slot, taken, lease.redelivered, taken ? 0 : lease.skipped};
  }
  uint64_t ReadTakenChecked();
  void BeCorrupt();
  // Leases that are out, in publishing order.
  std::vector<Lease*> InOrder();
  void Wake();

  Ring& ring_;
  const std::shared_ptr<const CursorPage> cursor_;
  std::vector<Lease> leases_;
  int wake_socket_;
  bool* const any_corrupt_;
  BrokerWaits requested_wakes_ = BrokerWaits::kNo;
  uint32_t out_ = 0;
  uint64_t published_ = 0;
  bool finished_ = false;
  bool closed_ = false;
  bool corrupt_ = false;
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_FEED_H_
