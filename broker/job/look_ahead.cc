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
      passed_(position),
      thread_([this] { Run(); }) {}

LookAhead::~LookAhead() {
  stops_.store(true);
  signal_->Notify();
  thread_.join();
}

void LookAhead::Run() {
  pthread_setname_np(pthread_self(), "look-ahead");
  while (!stops_.load()) {
    const uint64_t claimed = claimed_.load(std::memory_order_relaxed);
    Forget(claimed);
    Follow(claimed);
    Settle();
    Note(claimed);
    const std::shared_ptr<const Plan> plan = plan_now_();
    const More more = Extend(*plan, claimed);
    if (!remote_ && (more == More::kNever || located_ >= kFirstRows)) {
      ended_.store(true, std::memory_order_relaxed);
      return;
    }
    if (more != More::kYes) signal_->Wait(kLookNs);
  }
  while (!rows_.empty()) Erase(rows_.begin());
}

void LookAhead::SetRanks(std::vector<uint32_t> ranks) {
  {
    const std::lock_guard lock(mutex_);
    ranks_now_ = std::move(ranks);
  }
  signal_->Notify();
}

void LookAhead::Made(uint64_t begin, uint64_t end) {
  // Relaxed: a late view keeps two numbers more.
  if (ended_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  made_.emplace_back(begin, end);
}

void LookAhead::Follow(uint64_t claimed) {
  std::optional<std::vector<uint32_t>> ranks;
  {
    const std::lock_guard lock(mutex_);
    ranks.swap(ranks_now_);
  }
  if (!ranks) return;
  const bool come = !std::includes(ranks_.begin(), ranks_.end(), ranks->begin(),
                                   ranks->end());
  ranks_ = *std::move(ranks);
  // Rows of the others, which it has, are passed over.
  if (come) next_ = claimed;
}

LookAhead::Rows::iterator LookAhead::Erase(Rows::iterator row) {
  for (const Part& part : row->second.parts) part.file->Release(part.range);
  if (row->first >= passed_) bytes_ -= row->second.bytes;
  if (row->second.wait != nullptr) coming_ -= row->second.bytes;
  return rows_.erase(row);
}

// Rows that are claimed are no longer ahead; those that are made, or never will
// be, are let go.
void LookAhead::Forget(uint64_t claimed) {
  for (auto row = rows_.lower_bound(passed_);
       row != rows_.end() && row->first < claimed; ++row) {
    bytes_ -= row->second.bytes;
  }
  passed_ = claimed;
  std::vector<std::pair<uint64_t, uint64_t>> made;
  {
    const std::lock_guard lock(mutex_);
    made.swap(made_);
  }
  for (const auto& [begin, end] : made) {
    auto row = rows_.lower_bound(begin);
    while (row != rows_.end() && row->first < end) row = Erase(row);
  }
  while (!rows_.empty() && rows_.begin()->first + behind_ < claimed) {
    Erase(rows_.begin());
  }
}

// Counts what has come, or cannot.
void LookAhead::Settle() {
  auto row = rows_.lower_bound(settled_);
  for (; row != rows_.end(); ++row) {
    if (row->second.wait == nullptr) continue;
    if (!row->second.wait->over()) break;
    coming_ -= row->second.bytes;
    row->second.wait = nullptr;
  }
  settled_ = row != rows_.end() ? std::min(row->first, next_) : next_;
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
  use_ = {needed_bytes_,
          asked_bytes_,
          needed_per_s_.mean(),
          asked_per_s_.mean(),
          settled_ - std::min(settled_, claimed),
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

Positions NextRowsOf(const std::vector<uint32_t>& ranks, const Plan& plan,
                     uint64_t next, uint64_t most) {
  const uint64_t step = plan.StepAt(next + 1) - 1;
  const auto rows_of = [&](uint32_t rank) {
    const Plan::RankBatch rows = plan.RankBatchOf(step, rank);
    const uint64_t begin = rows.epoch * plan.rows_per_epoch() + rows.first_row;
    return Positions{begin, begin + rows.rows};
  };
  auto rank = std::partition_point(
      ranks.begin(), ranks.end(),
      [&](uint32_t each) { return rows_of(each).end <= next; });
  if (rank == ranks.end()) {
    const uint64_t end = plan.PositionOf(step + 1);
    return {end, end};
  }
  Positions rows = rows_of(*rank);
  rows.begin = std::max(rows.begin, next);
  while (rows.end < rows.begin + most && ++rank != ranks.end()) {
    const Positions more = rows_of(*rank);
    if (more.begin != rows.end) break;
    rows.end = more.end;
  }
  rows.end = std::min(rows.end, rows.begin + most);
  return rows;
}

LookAhead::More LookAhead::Extend(const Plan& plan, uint64_t claimed) {
  // Workers that are ahead of it fetch for themselves.
  next_ = std::max(next_, claimed);
  const uint64_t of_epoch = plan.rows_per_epoch();
  const uint64_t epoch = next_ / of_epoch;
  if (plan.epochs() && epoch >= *plan.epochs()) return More::kNever;
  const uint64_t room = std::max(ahead_bytes_, RemoteFile::kBlockBytes);
  if (ranks_.empty() || coming_ >= kComingBytes || bytes_ >= room ||
      rows_.size() >= kRowsMax) {
    return More::kNotNow;
  }
  const Positions rows = NextRowsOf(ranks_, plan, next_, kRowsAtOnce);
  next_ = rows.begin;
  of_plan_.resize(rows.end - rows.begin);
  plan.Rows(epoch, rows.begin - epoch * of_epoch, of_plan_.size(), &shuffles_,
            of_plan_.data());
  for (const Plan::Row& each : of_plan_) {
    const auto [at, is_new] = rows_.try_emplace(next_++);
    if (!is_new) continue;
    Row& row = at->second;
    if (dataset_->packing != nullptr) {
      dataset_->packing->PiecesOf(each.record, each.pass, &pieces_);
      for (const Piece& piece : pieces_) Add(piece.record, &row);
    } else {
      Add(each.record, &row);
    }
    ++located_;
    remote_ = remote_ || !row.local();
    bytes_ += row.bytes;
    if (row.wait != nullptr) coming_ += row.bytes;
    if (coming_ >= kComingBytes || bytes_ >= room) break;
  }
  return More::kYes;
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
  if (row->parts.empty()) AddShared(record, row);
  if (row->wait != nullptr && row->wait->over()) row->wait = nullptr;
}

void LookAhead::AddShared(uint64_t record, Row* row) {
  auto needed = dataset_->source->SharedRangesOf(record);
  if (!needed) return;
  std::weak_ptr<Shared>& known = shared_[{needed->file, needed->group}];
  std::shared_ptr<Shared> shared = known.lock();
  if (shared == nullptr) {
    shared = std::make_shared<Shared>();
    shared->wait = std::make_shared<FetchWait>(signal_);
    ahead_bytes_ = needed->file->ahead_bytes();
    for (const RemoteFile::Range& each : needed->ranges) {
      row->bytes += each.bytes;
      needed_bytes_ += each.bytes;
    }
    shared->held = HeldRanges(needed->file, std::move(needed->ranges),
                              shared->wait, RemoteFile::Ask::kFetch);
    asked_bytes_ += shared->held.asked_bytes();
    known = shared;
  }
  row->wait = shared->wait;
  row->shared.push_back(std::move(shared));
}

}  // namespace penstock
