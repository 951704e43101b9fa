#include "broker/delivery/feed.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/ring.h"
#include "common/wake.h"

namespace penstock {

Feed::Feed(Ring* ring, std::shared_ptr<const CursorPage> cursor,
           uint32_t leases, int wake_socket, bool* any_corrupt)
    : ring_(*ring),
      cursor_(std::move(cursor)),
      leases_(leases),
      wake_socket_(wake_socket),
      any_corrupt_(any_corrupt) {
  ResetRing(ring_);
}

void Feed::BeCorrupt() {
  corrupt_ = true;
  if (any_corrupt_ != nullptr) *any_corrupt_ = true;
}

uint64_t Feed::ReadTakenChecked() {
  uint64_t taken;
  if (ReadTaken(*cursor_, published_, &taken)) return taken;
  BeCorrupt();
  // Its counters are worthless: treated as if it had taken everything.
  return published_;
}

uint32_t Feed::untaken() {
  return static_cast<uint32_t>(published_ - ReadTakenChecked());
}

bool Feed::waiting() {
  return untaken() == 0 &&
         cursor_->waiting.load(std::memory_order_seq_cst) != 0;  // E8
}

// Relaxed: shown by `penstock status`.
uint64_t Feed::waits() const {
  return cursor_->waits.load(std::memory_order_relaxed);
}
uint64_t Feed::wait_ns() const {
  return cursor_->wait_ns.load(std::memory_order_relaxed);
}

void Feed::Wake() {
  if (wake_socket_ >= 0) SendWake(wake_socket_);
}

void Feed::Publish(uint32_t slot, bool redelivered, Cell cell) {
  const auto lease = std::find_if(leases_.begin(), leases_.end(),
                                  [](const Lease& each) { return !each.out; });
  lease->out = true;
  lease->redelivered = redelivered;
  lease->slot = slot;
  lease->skipped = cell.skipped;
  lease->previous = std::exchange(lease->generation, published_ + 1);
  cell.lease = static_cast<uint16_t>(lease - leases_.begin());
  cell.generation = lease->generation;
  ++out_;
  if (penstock::Publish(ring_, *cursor_, published_++, cell)) Wake();
}

void Feed::Reclaim(std::vector<Batch>* released) {
  if (out_ == 0 || corrupt_) return;
  for (uint32_t i = 0; i < leases_.size(); ++i) {
    Lease& lease = leases_[i];
    if (!lease.out) continue;
    switch (LeaseStateOf(*cursor_, i, lease.generation, lease.previous)) {
      case LeaseState::kFree:
        // A released batch was taken. Reading `taken` after `released`
        // suffices: an honest rank stores them in this order.
        if (lease.generation > ReadTakenChecked() || corrupt_) {
          BeCorrupt();
          return;
        }
        lease.out = false;
        --out_;
        released->push_back(BatchOf(lease, true));
        break;
      case LeaseState::kHeld:
        break;
      case LeaseState::kPeerCorrupt:
        BeCorrupt();
        return;
    }
  }
}

void Feed::RequestWakes(bool takes) {
  const BrokerWaits until =
      takes ? BrokerWaits::kForTakes : BrokerWaits::kForReleases;
  if (std::exchange(requested_wakes_, until) != until)
    SetBrokerWaiting(ring_, until);
}

void Feed::Finish(uint32_t skipped) {
  if (!open()) return;
  finished_ = true;
  ring_.skipped = skipped;
  CloseRing(ring_, Closed::kFinished);
  Wake();
}

void Feed::Close(Closed why, const Status& status) {
  if (closed_) return;
  closed_ = true;
  // A rank that was told the end is told nothing else, unless untaken batches
  // must be recalled to go to another.
  if (finished_ && (why != Closed::kRecalled || untaken() == 0)) return;
  ring_.code = static_cast<int32_t>(status.code());
  std::snprintf(ring_.reason, sizeof(ring_.reason), "%s",
                status.message().c_str());
  CloseRing(ring_, why);
  Wake();
}

std::vector<Feed::Lease*> Feed::InOrder() {
  std::vector<Lease*> leases;
  for (Lease& lease : leases_) {
    if (lease.out) leases.push_back(&lease);
  }
  std::sort(leases.begin(), leases.end(), [](const Lease* a, const Lease* b) {
    return a->generation < b->generation;
  });
  return leases;
}

std::vector<Feed::Batch> Feed::Recall() {
  // After closed was stored (E6): batches not counted now are never returned.
  const uint64_t taken = ReadTakenChecked();
  std::vector<Batch> unreleased;
  for (Lease* lease : InOrder()) {
    const bool was_taken = lease->generation <= taken;
    unreleased.push_back(BatchOf(*lease, was_taken));
    if (!was_taken) {
      lease->out = false;
      --out_;
    }
  }
  return unreleased;
}

std::vector<Feed::Batch> Feed::TakeAllBack() {
  const uint64_t taken = ReadTakenChecked();
  std::vector<Batch> unreleased;
  for (Lease* lease : InOrder()) {
    unreleased.push_back(BatchOf(*lease, lease->generation <= taken));
    lease->out = false;
  }
  out_ = 0;
  return unreleased;
}

}  // namespace penstock
