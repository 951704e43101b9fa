#include "broker/feed.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "common/ring.h"
#include "common/wake.h"

namespace penstock {
namespace {

constexpr int64_t kPaddingId = -1;

// Moves the rows behind each left-out row up, so that the rows that are there
// lie together. Returns how many there are.
uint64_t CloseGaps(Segment* segment, const Share& share,
                   const ElementSpec& spec) {
  std::vector<uint64_t> gaps = share.left_out;
  std::sort(gaps.begin(), gaps.end());
  int64_t* ids = segment->ids(share.slot);
  uint64_t to = 0;
  size_t gap = 0;
  for (uint64_t from = 0; from < share.rows.rows; ++from) {
    if (gap < gaps.size() && gaps[gap] == from) {
      ++gap;
      continue;
    }
    if (to != from) {
      ids[to] = ids[from];
      for (size_t i = 0; i < spec.size(); ++i) {
        const uint64_t bytes = spec[i].RowBytes();
        std::byte* rows = segment->feature(share.slot, i);
        std::memcpy(rows + to * bytes, rows + from * bytes, bytes);
      }
    }
    ++to;
  }
  return to;
}

void Pad(Segment* segment, const Share& share, const ElementSpec& spec,
         uint64_t valid) {
  const uint64_t rows = share.rows.shape_rows;
  std::fill(segment->ids(share.slot) + valid, segment->ids(share.slot) + rows,
            kPaddingId);
  for (size_t i = 0; i < spec.size(); ++i) {
    const uint64_t bytes = spec[i].RowBytes();
    std::memset(segment->feature(share.slot, i) + valid * bytes, 0,
                (rows - valid) * bytes);
  }
}

}  // namespace

Feed::Feed(Segment* segment, uint32_t seat, uint32_t first_slot, uint32_t slots)
    : segment_(segment),
      seat_(seat),
      first_slot_(first_slot),
      ring_(segment->ring(seat)),
      slots_(slots) {
  for (uint32_t i = 0; i < slots; ++i) slots_[i].share.slot = first_slot + i;
}

void Feed::Attach(uint32_t rank, Mapping cursor, int wake_socket) {
  attached_ = true;
  rank_ = rank;
  cursor_ = std::move(cursor);
  wake_socket_ = wake_socket;
}

bool Feed::drained() const {
  return last_published_ && attached_ &&
         // Relaxed is enough for a question without consequence for memory.
         cursor().taken.load(std::memory_order_relaxed) >= published_;
}

uint32_t Feed::ready() const {
  if (!attached_) return 0;
  const uint64_t taken = cursor().taken.load(std::memory_order_relaxed);
  return taken > published_ ? 0 : static_cast<uint32_t>(published_ - taken);
}

uint32_t Feed::held() const {
  const auto out = static_cast<uint32_t>(std::count_if(
      slots_.begin(), slots_.end(),
      [](const Slot& slot) { return slot.state == State::kPublished; }));
  const uint32_t untaken = ready();
  return out > untaken ? out - untaken : 0;
}

uint64_t Feed::waits() const {
  return attached_ ? cursor().waits.load(std::memory_order_relaxed) : 0;
}

uint64_t Feed::wait_ns() const {
  return attached_ ? cursor().wait_ns.load(std::memory_order_relaxed) : 0;
}

Status Feed::Reclaim() {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.state != State::kPublished) continue;
    switch (LeaseStateOf(cursor(), i, slot.generation)) {
      case LeaseState::kFree:
        slot.state = State::kFree;
        break;
      case LeaseState::kHeld:
        break;
      case LeaseState::kPeerCorrupt:
        return InternalError("rank {} wrote an impossible release of lease {}",
                             rank_, i);
    }
  }
  return OkStatus();
}

Share* Feed::Open(const Plan& plan) {
  if (!attached_ || closed_) return nullptr;
  const std::optional<uint64_t> total = plan.total_steps();
  if (total && next_step_ >= *total) return nullptr;
  const uint32_t usable =
      std::min(usable_slots_, static_cast<uint32_t>(slots_.size()));
  for (uint32_t i = 0; i < usable; ++i) {
    Slot& slot = slots_[i];
    if (slot.state != State::kFree) continue;
    slot.state = State::kFilling;
    slot.share.step = next_step_;
    slot.share.rows = plan.ShareOf(next_step_, rank_);
    slot.share.claimed = 0;
    slot.share.finished = 0;
    slot.share.left_out.clear();
    ++next_step_;
    return &slot.share;
  }
  return nullptr;
}

Share* Feed::Claimable() {
  if (closed_ || !attached_) return nullptr;
  Share* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.state == State::kFilling &&
        slot.share.claimed < slot.share.rows.rows &&
        (oldest == nullptr || slot.share.step < oldest->step)) {
      oldest = &slot.share;
    }
  }
  return oldest;
}

void Feed::Filled(Share* share, const ElementSpec& spec, bool keep_shape) {
  Slot& slot = slots_[share->slot - first_slot_];
  if (closed_ || !attached_) {
    slot.state = State::kFree;
    return;
  }
  uint64_t valid = share->rows.rows;
  if (!share->left_out.empty()) {
    valid = CloseGaps(segment_, *share, spec);
    if (!keep_shape) share->rows.shape_rows = valid;
  }
  if (share->rows.shape_rows > valid) Pad(segment_, *share, spec, valid);
  share->rows.rows = valid;
  slot.state = State::kFilled;
}

Status Feed::PublishReady() {
  if (closed_ || !attached_) return OkStatus();
  bool wake = false;
  for (bool found = true; found;) {
    found = false;
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (slot.state != State::kFilled || slot.share.step != publish_step_) {
        continue;
      }
      // There are fewer leases than cells: only a corrupt count has no room.
      if (RingRoom(cursor(), published_) != RoomResult::kRoom) {
        return InternalError(
            "rank {} wrote an impossible count of taken "
            "batches",
            rank_);
      }
      const Plan::Share& rows = slot.share.rows;
      Cell cell{};
      cell.slot_offset = segment_->slot_offset(slot.share.slot);
      cell.generation = ++slot.generation;
      cell.lease = i;
      cell.flags = (rows.last_of_epoch ? kLastOfEpoch : 0u) |
                   (rows.last_of_data ? kLastOfData : 0u);
      cell.rows = static_cast<uint32_t>(rows.shape_rows);
      cell.valid_rows = static_cast<uint32_t>(rows.rows);
      cell.epoch = rows.epoch;
      cell.step_in_epoch = rows.step_in_epoch;
      cell.global_rows = rows.global_rows;
      slot.state = State::kPublished;
      wake |= Publish(ring_, cursor(), published_, cell);
      ++published_;
      ++publish_step_;
      found = true;
      if (rows.last_of_data) {
        last_published_ = true;
        CloseRing(ring_, Closed::kFinished);
        wake = true;
      }
    }
  }
  if (wake) SendWake(wake_socket_);
  return OkStatus();
}

bool Feed::WaitForRelease() {
  SetBrokerWaiting(ring_, true);
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == State::kPublished &&
        LeaseStateOf(cursor(), i, slots_[i].generation) != LeaseState::kHeld) {
      SetBrokerWaiting(ring_, false);
      return false;
    }
  }
  return true;
}

void Feed::Close(Closed why, const std::string& reason) {
  if (closed_) return;
  closed_ = true;
  if (!attached_ || last_published_) return;
  std::snprintf(ring_.reason, sizeof(ring_.reason), "%s", reason.c_str());
  CloseRing(ring_, why);
  SendWake(wake_socket_);
}

void Feed::Detach() {
  finished_ = drained();
  closed_ = true;
  attached_ = false;
  wake_socket_ = -1;
  cursor_ = Mapping();
  for (Slot& slot : slots_) {
    if (slot.state != State::kFilling) slot.state = State::kFree;
  }
}

bool Feed::idle() const {
  // A share that was cut off by a detach never gets its other rows.
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == State::kFilling &&
           slot.share.finished < slot.share.claimed;
  });
}

}  // namespace penstock
