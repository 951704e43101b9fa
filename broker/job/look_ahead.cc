#include "broker/job/look_ahead.h"

#include <pthread.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/deadline.h"

namespace penstock {
namespace {

constexpr uint64_t kRowsAtOnce = 256;
// Rows that tell whether anything is remote.
constexpr uint64_t kFirstRows = 1024;
// Asked for and not there: what a fast link brings in a fraction of a second.
constexpr uint64_t kComingBytes = uint64_t{256} << 20;
// How often it looks where workers are.
constexpr uint64_t kLookNs = 20'000'000;
// How often its rates are taken.
constexpr uint64_t kNoteNs = 100'000'000;

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
    Note(claimed);
    const std::shared_ptr<const Plan> plan = plan_now_();
    bool more = Extend(*plan, claimed);
    if (!remote_ && (!more || next_ - begin >= kFirstRows)) {
      ended_.store(true, std::memory_order_relaxed);
      return;
    }
    if (!more) signal_->Wait(kLookNs);
  }
  for (Row& row : rows_) Release(&row);
}

void LookAhead::Made(uint64_t begin, uint64_t end) {
  // Relaxed: a late view keeps two numbers more.
  if (ended_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  made_.emplace_back(begin, end);
}

void LookAhead::Release(Row* row) {
  for (const Part& part : row->parts) part.file->Release(part.range);
  row->parts.clear();
}

// Rows that are claimed are no longer ahead; those that are made, or never will
// be, are let go.
void LookAhead::Forget(uint64_t claimed) {
  for (; passed_ < rows_.size() && rows_[passed_].position < claimed;
       ++passed_) {
    bytes_ -= rows_[passed_].bytes;
  }
  std::vector<std::pair<uint64_t, uint64_t>> made;
  {
    const std::lock_guard lock(mutex_);
    made.swap(made_);
  }
  for (const auto& [begin, end] : made) {
    if (rows_.empty()) break;
    const uint64_t first = rows_.front().position;
    for (uint64_t at = std::max(begin, first);
         at < std::min(end, first + rows_.size()); ++at) {
      Release(&rows_[at - first]);
    }
  }
  while (passed_ > 0 && (rows_.front().parts.empty() ||
                         rows_.front().position + behind_ < claimed)) {
    Row& row = rows_.front();
    Release(&row);
    --passed_;
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

void LookAhead::Note(uint64_t claimed) {
  const uint64_t now_ns = MonotonicNs();
  if (now_ns - noted_ns_ < kNoteNs || !remote_) return;
  const std::lock_guard lock(mutex_);
  if (noted_ns_ > 0) {
    const double seconds = static_cast<double>(now_ns - noted_ns_) * 1e-9;
    const auto add = [&](RecentMean* mean, uint64_t more) {
      mean->Add(static_cast<double>(more) / seconds, seconds);
    };
    add(&rows_per_s_, claimed - noted_claimed_);
    add(&needed_per_s_, needed_bytes_ - use_.bytes);
    add(&asked_per_s_, asked_bytes_ - use_.fetched_bytes);
  }
  noted_ns_ = now_ns;
  noted_claimed_ = claimed;
  const uint64_t there =
      settled_ < rows_.size() ? rows_[settled_].position : next_;
  use_ = {needed_bytes_,
          asked_bytes_,
          needed_per_s_.mean(),
          asked_per_s_.mean(),
          there - std::min(there, claimed),
          rows_per_s_.mean()};
}

std::optional<LookAhead::Use> LookAhead::use() const {
  const std::lock_guard lock(mutex_);
  if (use_.bytes == 0) return std::nullopt;
  return use_;
}

nlohmann::json LookAhead::Use::ToJson() const {
  nlohmann::json json = {{"bytes", bytes},
                         {"fetched_bytes", fetched_bytes},
                         {"rows_ahead", rows_ahead}};
  // What is fetched with a record may be more than the record.
  const auto hits = [](double fetched, double needed) {
    return std::clamp(1 - fetched / needed, 0.0, 1.0);
  };
  json["hit_rate_all"] =
      hits(static_cast<double>(fetched_bytes), static_cast<double>(bytes));
  // Less is the rest of a mean that fades.
  constexpr double kLeast = 1;
  if (bytes_per_s >= kLeast) {
    json["hit_rate"] = hits(fetched_bytes_per_s, bytes_per_s);
  }
  if (rows_per_s >= kLeast / RecentMean::kSeconds) {
    json["ahead_s"] = static_cast<double>(rows_ahead) / rows_per_s;
  }
  return json;
}

// False: nothing more is to be fetched now.
bool LookAhead::Extend(const Plan& plan, uint64_t claimed) {
  if (claimed > next_ + kRowsMax) {  // a job that begins in the middle
    for (Row& row : rows_) Release(&row);
    rows_.clear();
    passed_ = settled_ = bytes_ = coming_ = 0;
    next_ = claimed;
  }
  // Workers that are ahead of it fetch for themselves.
  for (; next_ < claimed; ++next_) {
    rows_.emplace_back().position = next_;
    ++passed_;
  }
  const uint64_t of_epoch = plan.rows_per_epoch();
  const uint64_t epoch = next_ / of_epoch;
  if (plan.epochs() && epoch >= *plan.epochs()) return false;
  const uint64_t row = next_ % of_epoch;
  const uint64_t count = std::min(kRowsAtOnce, of_epoch - row);
  const uint64_t room = std::max(ahead_bytes_, RemoteFile::kBlockBytes);
  if (coming_ >= kComingBytes || bytes_ >= room || rows_.size() >= kRowsMax) {
    return false;
  }
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
    remote_ = remote_ || !made.parts.empty();
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
    ahead_bytes_ = part.remote->ahead_bytes();
    if (row->wait == nullptr) {
      row->wait = std::make_shared<FetchWait>(signal_);
    }
    asked_bytes_ +=
        part.remote->Hold(range, row->wait, RemoteFile::Ask::kFetch);
    needed_bytes_ += part.bytes;
    row->bytes += part.bytes;
  };
  hold(request_);
  for (const ReadPart& part : request_.more) hold(part);
  if (row->wait != nullptr && row->wait->over()) row->wait = nullptr;
}

}  // namespace penstock
