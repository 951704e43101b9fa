// A reader's batches on a GPU. Those ahead are looked at in the ring, not taken
// (ring.h, Peek): only the batch that is returned counts as had, whatever
// happens to this process.
#include <algorithm>

#include "client/gpu/device_copies.h"
#include "client/rank/rank_reader.h"
#include "client/rank/rank_session.h"
#include "common/ring.h"

namespace penstock {

// More are hardly ever published at once.
constexpr uint32_t kAheadMax = 32;

Status RankReader::PrefetchToDevice(int device, uint32_t batches) {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  if (device < 0 || batches > kAheadMax) {
    return InvalidArgumentError(
        "prefetch_to_device: GPU {}, {} batches: wanted a GPU from 0, and 0 to "
        "{} batches",
        device, batches, kAheadMax);
  }
  const std::lock_guard lock(sessions_mutex_);
  if (device_ != nullptr) {
    return FailedPreconditionError(
        "this reader copies to GPU {} already: attach another one for GPU {}",
        device_->device(), device);
  }
  PENSTOCK_ASSIGN_OR_RETURN(device_, DeviceCopies::Open(device, batches));
  session_->pinned =
      std::make_unique<PinnedMemory>(device_, session_->view->memory().data());
  CopyAhead();
  return OkStatus();
}

StatusOr<std::unique_ptr<DeviceBatch>> RankReader::ToDevice(Batch* batch) {
  RankReader* const reader = batch->reader;
  PENSTOCK_RETURN_IF_ERROR(reader->CheckProcess());
  const std::lock_guard lock(reader->sessions_mutex_);
  if (batch->on_device != nullptr) return std::move(batch->on_device);
  if (reader->device_ == nullptr) {
    return FailedPreconditionError(
        "the reader has no GPU: prefetch_to_device comes before");
  }
  if (reader->left_behind_ > 0) {
    return FailedPreconditionError(
        "the reader is closed: copy the batch to the GPU before");
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      auto copy, reader->StartCopy(batch->session, batch->cell, false));
  batch->copy = std::max(batch->copy, copy->copy());
  return copy;
}

std::optional<DeviceCopies::Stats> RankReader::device_stats() const {
  if (!CheckProcess().ok()) return std::nullopt;
  const std::lock_guard lock(sessions_mutex_);
  if (device_ == nullptr) return std::nullopt;
  return device_->stats();
}

StatusOr<std::unique_ptr<DeviceBatch>> RankReader::StartCopy(Session* session,
                                                             const Cell& cell,
                                                             bool ahead) {
  const ElementSpec& element = element_spec(cell);
  std::vector<DeviceCopies::Piece> pieces;
  for (size_t i = 0; i < element.size(); ++i) {
    const std::byte* const data = session->view->feature(cell, i);
    pieces.push_back({data, element[i].BytesUsed(cell.rows, data)});
  }
  if (session->pinned == nullptr) {
    session->pinned =
        std::make_unique<PinnedMemory>(device_, session->view->memory().data());
  }
  // Slot by slot, each at its first batch: a rank's own lane alone, and memory
  // that has pages already.
  std::byte* const slot = session->view->memory().data() + cell.slot_offset;
  uint64_t bytes = session->view->slot_bytes();
  if (element.back().room > 0) {
    bytes = static_cast<uint64_t>(pieces.back().from - slot) +
            std::max(element.back().room, pieces.back().bytes);
  }
  return device_->Start(pieces, session->pinned->Pin(slot, bytes), ahead);
}

void RankReader::CopyTaken(Batch* batch) {
  const std::lock_guard lock(sessions_mutex_);
  if (!ahead_.empty() && ahead_.front().generation == batch->cell.generation) {
    batch->on_device = std::move(ahead_.front().copy);
    ahead_.pop_front();
  } else {
    // An error comes again, and is told, when the trainer asks for it.
    auto copy = StartCopy(batch->session, batch->cell, false);
    if (copy.ok()) batch->on_device = *std::move(copy);
  }
  if (batch->on_device != nullptr) batch->copy = batch->on_device->copy();
  CopyAhead();
}

void RankReader::CopyAhead() {
  while (!repeat_first_ && ahead_.size() < device_->ahead()) {
    Cell cell;
    if (!Peek(*session_->ring, session_->cursor.page(),
              static_cast<uint32_t>(ahead_.size()), &cell) ||
        !session_->view->Valid(cell) || !Fits(*session_, cell)) {
      return;
    }
    auto copy = StartCopy(session_, cell, true);
    if (!copy.ok() || *copy == nullptr) return;
    ahead_.push_back({cell.generation, *std::move(copy)});
  }
}

void RankReader::GiveBackCopied(uint64_t wait_for) {
  if (wait_for > 0) device_->Await(wait_for);
  std::erase_if(leaving_, [this](Batch* batch) {
    if (!device_->Passed(batch->copy)) return false;
    GiveBack(batch);
    return true;
  });
}

Status RankReader::AwaitLeaving(bool for_room, bool may_wait) {
  const std::lock_guard lock(sessions_mutex_);
  GiveBackCopied(0);
  if (leaving_.empty() || (for_room && held() < hold_)) return OkStatus();
  if (!may_wait) {
    return DeadlineExceededError(
        "rank {} waits until released batches have been copied to the GPU",
        name());
  }
  uint64_t last = 0;
  for (const Batch* batch : leaving_) last = std::max(last, batch->copy);
  GiveBackCopied(last);
  return OkStatus();
}

void RankReader::LeaveDevice() {
  if (device_ == nullptr) return;
  ahead_.clear();
  GiveBackCopied(DeviceCopies::kAll);
  for (const auto& session : sessions_) session->pinned.reset();
}

}  // namespace penstock
