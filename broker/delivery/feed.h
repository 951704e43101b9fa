// Stages 6 to 8 of the flow for one attached process: publish in its ring, see
// batches taken and released.
//
// Who runs it: any thread of the broker that holds the job's mutex; a Feed has
// no lock of its own. The rank's cursor page is read through ring.h only, as
// untrusted input: what cannot be makes the feed corrupt(), no more.
//
// A lease is a batch the rank was given, from Publish until it is released (by
// the rank), recalled (untaken, by us) or the process is gone.
#ifndef BROKER_DELIVERY_FEED_H_
#define BROKER_DELIVERY_FEED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/layout.h"
#include "common/ring.h"

namespace penstock {

class Feed {
 public:
  // The ring is reset: its last holder must be gone. leases: batches it may
  // have outstanding, <= kLeasesMax. wake_socket stays the caller's, valid
  // until Mute. any_corrupt, which outlives this, is set when corrupt() becomes
  // true.
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
  // It sleeps beside an empty ring.
  bool waiting();
  uint64_t waits() const;
  uint64_t wait_ns() const;

  // Needs open() and HasFreeLease(). Fills in lease and generation of the cell.
  void Publish(uint32_t slot, bool redelivered, Cell cell);

  struct Batch {
    uint32_t slot = 0;
    bool taken = false;        // the rank may read it, or may have
    bool redelivered = false;  // it was published so
    uint32_t skipped = 0;      // of its cell, when it is not taken
  };
  // Appends the leases that came back.
  void Reclaim(std::vector<Batch>* released);

  // Asks the rank for a wake when it releases (takes: when it takes or goes to
  // sleep, too). Where that is more than it was asked for before, the feed must
  // be looked at once more afterwards (E5, E8).
  void AskForNews(bool takes);
  // Whether takes bring a wake.
  bool asked_for_takes() const { return asked_ == BrokerWaits::kForTakes; }

  // The data are over. What was published can still be taken. skipped: batches
  // missed that no cell told of; Ring::reason does.
  void Finish(uint32_t skipped = 0);
  // No more batches, what is untaken is void; the rank learns why.
  void Close(Closed why, const std::string& reason);
  // The socket is closed by its owner.
  void Mute() { wake_socket_ = -1; }

  // After Close, while the process lives: what was untaken, no lease of it any
  // more, then what is taken, its leases kept. In the order of publishing.
  std::vector<Batch> Recall();
  // After Reclaim; the process is dead or has unmapped everything: what it did
  // not release.
  std::vector<Batch> TakeAllBack();

 private:
  struct Lease {
    bool out = false;
    bool redelivered = false;
    uint32_t slot = 0;
    uint32_t skipped = 0;
    uint64_t generation = 0;  // given out last: the cell's number + 1
    uint64_t previous = 0;    // before that
  };
  static Batch BatchOf(const Lease& lease, bool taken) {
    return {lease.slot, taken, lease.redelivered, taken ? 0 : lease.skipped};
  }
  uint64_t ReadTakenChecked();
  void BeCorrupt();
  // Leases that are out, in the order of publishing.
  std::vector<Lease*> InOrder();
  void Wake();

  Ring& ring_;
  const std::shared_ptr<const CursorPage> cursor_;
  std::vector<Lease> leases_;
  int wake_socket_;
  bool* const any_corrupt_;
  BrokerWaits asked_ = BrokerWaits::kNo;
  uint32_t out_ = 0;
  uint64_t published_ = 0;
  bool finished_ = false;
  bool closed_ = false;
  bool corrupt_ = false;
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_FEED_H_
