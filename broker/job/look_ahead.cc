#include "broker/job/look_ahead.h"

#include <pthread.h>

#include <algorithm>

namespace penstock {
namespace {

constexpr uint64_t kRowsAtOnce = 256;
// Rows that tell whether anything is remote.
constexpr uint64_t kFirstRows = 1024;
// Asked for and not there: what a fast link brings in a fraction of a second.
constexpr uint64_t kComingBytes = uint64_t{256} << 20;
// How often it looks where workers are.
constexpr uint64_t kLookNs = 20'000'000;

}  // namespace

LookAhead::LookAhead(std::shared_ptr<const Dataset> dataset, uint64_t position,
                     uint64_t behind, PlanNow plan_now)
    : dataset_(std::move(dataset)),
      behind_(behind),
      plan_now_(std::move(plan_now)),
      signal_(std::make_shared<FetchSignal>()),
      claimed_(position),
      next_(position),
      thread_([this] { Run(); }) {}

LookAhead::~LookAhead() {
  stops_.store(true);
  signal_->Notify();
  thread_.join();
}

void LookAhead::Run() {
  pthread_setname_np(pthread_self(), "look-ahead");
  const uint64_t begin = next_;
  while (!stops_.load()) {
    const uint64_t claimed = claimed_.load(std::memory_order_relaxed);
    Forget(claimed);
    Settle();
    const std::shared_ptr<const Plan> plan = plan_now_();
    bool more = Extend(*plan, claimed);
    if (!remote_ && (!more || next_ - begin >= kFirstRows)) return;
    if (!more) signal_->Wait(kLookNs);
  }
  for (const Row& row : rows_) {
    for (const Part& part : row.parts) part.file->Release(part.range);
  }
}

// Rows that workers have read.
void LookAhead::Forget(uint64_t claimed) {
  while (!rows_.empty() && rows_.front().position + behind_ < claimed) {
    const Row& row = rows_.front();
    for (const Part& part : row.parts) part.file->Release(part.range);
    bytes_ -= row.bytes;
    if (settled_ > 0) {
      --settled_;
    } else if (row.wait != nullptr) {
      coming_ -= row.bytes;
    }
    rows_.pop_front();
  }
}

// Counts what has come, or cannot.
void LookAhead::Settle() {
  while (settled_ < rows_.size()) {
    const Row& row = rows_[settled_];
    if (row.wait != nullptr) {
      if (!row.wait->over()) return;
      coming_ -= row.bytes;
    }
    ++settled_;
  }
}

// False: nothing more is to be fetched now.
bool LookAhead::Extend(const Plan& plan, uint64_t claimed) {
  next_ = std::max(next_, claimed);
  const uint64_t of_epoch = plan.rows_per_epoch();
  const uint64_t epoch = next_ / of_epoch;
  if (plan.epochs() && epoch >= *plan.epochs()) return false;
  const uint64_t row = next_ % of_epoch;
  const uint64_t count = std::min(kRowsAtOnce, of_epoch - row);
  const uint64_t room = rows_.empty() || rows_.front().parts.empty()
                            ? kComingBytes
                            : rows_.front().parts.front().file->ahead_bytes();
  if (coming_ >= kComingBytes || bytes_ >= room) return false;
  of_plan_.resize(count);
  plan.Rows(epoch, row, count, &shuffles_, of_plan_.data());
  for (const Plan::Row& each : of_plan_) {
    Row made;
    made.position = next_++;
    if (dataset_->packing != nullptr) {
      dataset_->packing->PiecesOf(each.record, each.pass, &pieces_);
      for (const Piece& piece : pieces_) Add(piece.record, &made);
    } else {
      Add(each.record, &made);
    }
    if (made.parts.empty()) continue;
    remote_ = true;
    bytes_ += made.bytes;
    if (made.wait != nullptr) coming_ += made.bytes;
    rows_.push_back(std::move(made));
    if (coming_ >= kComingBytes || bytes_ >= room) break;
  }
  return true;
}

void LookAhead::Add(uint64_t record, Row* row) {
  if (dataset_->cache != nullptr && dataset_->cache->Has(record)) return;
  request_.more.clear();
  dataset_->source->Locate(record, &request_);
  const auto hold = [&](const ReadPart& part) {
    if (part.kind != ReadPart::Kind::kRange || part.remote == nullptr) return;
    const RemoteFile::Range range = {part.offset, part.bytes};
    row->parts.push_back({part.remote, range});
    if (row->wait == nullptr) {
      row->wait = std::make_shared<FetchWait>(signal_);
    }
    part.remote->Hold(range, row->wait, RemoteFile::Ask::kFetch);
    row->bytes += part.bytes;
  };
  hold(request_);
  for (const ReadPart& part : request_.more) hold(part);
  if (row->wait != nullptr && row->wait->over()) row->wait = nullptr;
}

}  // namespace penstock
