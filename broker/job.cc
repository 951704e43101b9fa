#include "broker/job.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

// A chunk is what a worker claims at once: large enough that the lock does not
// show (256 KiB of rows take at least 25 us), small enough that the workers
// finish a share together, and short enough, by the time this job's rows took
// so far, that another job is not kept waiting.
constexpr uint64_t kChunkBytes = 256 * 1024;
constexpr uint64_t kChunkRowsMax = 256;
constexpr uint64_t kChunkNs = 10'000'000;
constexpr uint64_t kFirstChunkRows = 4;  // before any row was timed
// How often Advance looks at one rank again that releases while it looks.
constexpr int kRoundsMax = 2;

uint64_t ChunkRows(const Job::Layout& layout, uint32_t workers) {
  const uint64_t by_bytes =
      kChunkBytes / std::max<uint64_t>(layout.row_bytes, 1);
  const uint64_t by_share = layout.segment.rows_max / (2 * workers);
  return std::clamp<uint64_t>(std::min(by_bytes, by_share), 1, kChunkRowsMax);
}

// The first ten bad samples are named in the log, then ever fewer: a million of
// them must not fill the disk.
bool WorthALine(uint64_t count) {
  return count <= 10 || (count & (count - 1)) == 0;
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", bytes)
                   : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

StatusOr<Job::Layout> Job::PlanLayout(const JobOptions& options,
                                      const Dataset& dataset) {
  DatasetSpec spec = options.spec;
  if (options.repeat_first) {
    spec.epochs = 1;
    spec.steps_per_epoch = 1;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      Plan plan,
      Plan::Make(spec, dataset.source->record_count(), options.world_size));
  const ElementSpec& element = dataset.program->element_spec();
  uint64_t row_bytes = sizeof(int64_t);
  for (const Feature& feature : element) row_bytes += feature.RowBytes();
  const uint32_t slots = spec.prefetch + spec.hold;
  if (slots > kLeasesMax) {
    return ResourceExhaustedError(
        "prefetch {} + hold {} is more than the {} batches a rank may have",
        spec.prefetch, spec.hold, kLeasesMax);
  }
  if (plan.global_batch() > UINT32_MAX) {
    return ResourceExhaustedError("a step of {} rows, at most {} may be",
                                  plan.global_batch(), UINT32_MAX);
  }
  uint64_t rows_max = 0;
  for (const uint32_t rank : {0u, options.world_size - 1}) {
    rows_max = std::max(rows_max, plan.max_share_rows(rank));
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      SegmentPlan segment,
      PlanSegment(element, rows_max, slots * options.local_world_size,
                  options.local_world_size));
  return Layout{std::move(plan), std::move(segment), slots, row_bytes};
}

Job::Job(JobKey key, JobOptions options, std::shared_ptr<const Dataset> dataset,
         Layout layout, std::unique_ptr<Segment> segment,
         std::shared_ptr<void> memory, uint32_t workers)
    : key_(std::move(key)),
      options_(std::move(options)),
      dataset_(std::move(dataset)),
      layout_(std::move(layout)),
      keep_shape_(options_.spec.batch.last == LastBatch::kPad),
      memory_(std::move(memory)),
      segment_(std::move(segment)),
      chunk_rows_(ChunkRows(layout_, workers)) {
  feeds_.reserve(options_.local_world_size);
  for (uint32_t seat = 0; seat < options_.local_world_size; ++seat) {
    feeds_.emplace_back(segment_.get(), seat, seat * layout_.slots_per_seat,
                        layout_.slots_per_seat);
  }
}

Status Job::Attach(uint32_t rank, Mapping cursor, int wake_socket,
                   uint32_t* seat) {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  for (uint32_t i = 0; i < seats_taken_; ++i) {
    if (feeds_[i].rank() != rank) continue;
    if (feeds_[i].attached()) {
      return AlreadyExistsError(
          "rank {} of job '{}' is attached already: give each process its own "
          "rank, or another job name",
          rank, key_.name);
    }
    return AlreadyExistsError(
        "rank {} of job '{}' left before its end and the other ranks go on: "
        "end them and start all again, or use another job name",
        rank, key_.name);
  }
  if (seats_taken_ == feeds_.size()) {
    return ResourceExhaustedError(
        "job '{}' has {} local ranks, all are attached; rank {} is one too "
        "many (local_world_size)",
        key_.name, feeds_.size(), rank);
  }
  *seat = seats_taken_++;
  feeds_[*seat].Attach(rank, std::move(cursor), wake_socket);
  return OkStatus();
}

bool Job::HasAttached() const {
  MutexLock lock(&mutex_);
  return AnyAttached();
}

bool Job::AnyAttached() const {
  return std::any_of(feeds_.begin(), feeds_.begin() + seats_taken_,
                     [](const Feed& feed) { return feed.attached(); });
}

bool Job::Finished(uint32_t rank) const {
  MutexLock lock(&mutex_);
  return std::any_of(
      feeds_.begin(), feeds_.begin() + seats_taken_, [rank](const Feed& feed) {
        return feed.rank() == rank && !feed.attached() && feed.finished();
      });
}

void Job::Detach(uint32_t seat) {
  MutexLock lock(&mutex_);
  feeds_[seat].Detach();
  // A seat that is still to be taken will want rows.
  if (!AnyAttached()) pointless_.store(true, std::memory_order_relaxed);
}

bool Job::Abandoned() const {
  MutexLock lock(&mutex_);
  return seats_taken_ > 0 &&
         std::all_of(
             feeds_.begin(), feeds_.begin() + seats_taken_,
             [](const Feed& feed) { return !feed.attached() && feed.idle(); });
}

void Job::Advance() {
  MutexLock lock(&mutex_);
  AdvanceLocked();
}

void Job::SetUsableSlots(uint32_t slots) {
  MutexLock lock(&mutex_);
  for (Feed& feed : feeds_) feed.SetUsableSlots(slots);
  AdvanceLocked();
}

void Job::AdvanceLocked() {
  if (!failure_.ok()) return;
  const ElementSpec& element = dataset_->program->element_spec();
  bool opened = false;
  for (Feed& feed : feeds_) {
    if (!feed.attached() || feed.closed()) continue;
    bool again = true;
    for (int round = 0; again && round < kRoundsMax; ++round) {
      again = false;
      if (const Status status = feed.Reclaim(); !status.ok()) {
        feed.Close(Closed::kRecalled, status.message());
        break;
      }
      while (Share* share = feed.Open(layout_.plan)) {
        if (share->rows.rows == 0) {
          feed.Filled(share, element, keep_shape_);
          PublishLocked(feed);
        } else {
          opened = true;
        }
      }
      // Everything is filled, published or held: the next release is news.
      again = !feed.WaitForRelease();
    }
    // It releases as fast as we look: others want their turn of this thread.
    if (again) on_more_();
  }
  if (opened) {
    claimable_.store(true, std::memory_order_relaxed);
    on_work_();
  }
}

void Job::PublishLocked(Feed& feed) {
  if (const Status status = feed.PublishReady(); !status.ok()) {
    feed.Close(Closed::kRecalled, status.message());
  }
}

Feed& Job::FeedOf(const Share& share) {
  return feeds_[share.slot / layout_.slots_per_seat];
}

Share* Job::OldestClaimable() {
  Share* oldest = nullptr;
  for (Feed& feed : feeds_) {
    Share* share = feed.Claimable();
    if (share != nullptr && (oldest == nullptr || share->step < oldest->step)) {
      oldest = share;
    }
  }
  return oldest;
}

uint64_t Job::ChunkRowsNow() const {
  // Relaxed: an estimate.
  const uint64_t decoded = counters_.decoded.load(std::memory_order_relaxed);
  if (decoded == 0) return std::min(chunk_rows_, kFirstChunkRows);
  const uint64_t row_ns =
      counters_.decode_ns.load(std::memory_order_relaxed) / decoded;
  return std::clamp<uint64_t>(kChunkNs / std::max<uint64_t>(row_ns, 1), 1,
                              chunk_rows_);
}

Claim Job::ClaimRows() {
  MutexLock lock(&mutex_);
  Share* share = failure_.ok() ? OldestClaimable() : nullptr;
  if (share == nullptr) {
    claimable_.store(false, std::memory_order_relaxed);
    return {};
  }
  Claim claim;
  claim.share = share;
  claim.begin = share->claimed;
  claim.end = std::min(share->claimed + ChunkRowsNow(), share->rows.rows);
  share->claimed = claim.end;
  return claim;
}

void Job::FinishRows(Share* share, uint64_t rows) {
  // Relaxed: shown by `penstock status`, nothing depends on it.
  const uint64_t rows_done =
      counters_.rows.fetch_add(rows, std::memory_order_relaxed) + rows;
  FailIfNothingIsReadable(rows_done);
  MutexLock lock(&mutex_);
  share->finished += rows;
  Feed& feed = FeedOf(*share);
  const bool abandoned = feed.closed() || !failure_.ok();
  if (share->finished < (abandoned ? share->claimed : share->rows.rows)) {
    return;
  }
  feed.Filled(share, dataset_->program->element_spec(), keep_shape_);
  if (abandoned) return;
  PublishLocked(feed);
  AdvanceLocked();
}

// A trainer must not run through its epochs on nothing.
void Job::FailIfNothingIsReadable(uint64_t rows_done) {
  if (rows_done < layout_.plan.rows_per_epoch() ||
      counters_.rows_skipped.load(std::memory_order_relaxed) < rows_done) {
    return;
  }
  std::string last;
  {
    MutexLock lock(&mutex_);
    last = last_error_;
  }
  Fail(
      DataLossError("job '{}': all of the first {} samples were skipped; the "
                    "last: {}",
                    key_.name, rows_done, last));
}

void Job::LeaveOut(Share* share, uint64_t row, const std::string& text) {
  const uint64_t count =
      counters_.rows_skipped.fetch_add(1, std::memory_order_relaxed) + 1;
  if (WorthALine(count)) {
    spdlog::warn("job '{}' skips: {} ({} so far)", key_.name, text, count);
  }
  MutexLock lock(&mutex_);
  share->left_out.push_back(row);
  last_error_ = text;
}

void Job::CountSubstitute(const std::string& text) {
  const uint64_t count =
      counters_.rows_substituted.fetch_add(1, std::memory_order_relaxed) + 1;
  if (WorthALine(count)) {
    spdlog::warn("job '{}' substitutes: {} ({} so far)", key_.name, text,
                 count);
  }
  MutexLock lock(&mutex_);
  last_error_ = text;
}

void Job::Fail(const Status& status) {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return;
  failure_ = status;
  pointless_.store(true, std::memory_order_relaxed);
  last_error_ = status.message();
  for (Feed& feed : feeds_) {
    feed.Close(Closed::kFailed,
               fmt::format("{} {}", static_cast<int>(status.code()),
                           status.message()));
  }
}

void Job::Shutdown() {
  MutexLock lock(&mutex_);
  for (Feed& feed : feeds_) feed.Close(Closed::kShutdown, "");
  if (failure_.ok()) failure_ = CancelledError("the broker was stopped");
  pointless_.store(true, std::memory_order_relaxed);
}

nlohmann::json Job::StatusJson(bool with_ranks) const {
  MutexLock lock(&mutex_);
  const auto seconds = [](const std::atomic<uint64_t>& ns) {
    return static_cast<double>(ns.load(std::memory_order_relaxed)) * 1e-9;
  };
  uint64_t step = UINT64_MAX;
  bool attached = false;
  for (uint32_t i = 0; i < seats_taken_; ++i) {
    if (!feeds_[i].attached()) continue;
    attached = true;
    step = std::min(step, feeds_[i].published() - feeds_[i].ready());
  }
  if (!attached) step = 0;
  const uint64_t per_epoch = layout_.plan.steps_per_epoch();
  nlohmann::json json = {
      {"job", key_.name},
      {"dataset", key_.dataset},
      {"uid", key_.uid},
      {"state", !failure_.ok()                 ? "failed"
                : seats_taken_ < feeds_.size() ? "waiting for ranks"
                                               : "running"},
      {"world_size", options_.world_size},
      {"local_world_size", options_.local_world_size},
      {"epoch", step / per_epoch},
      {"step", step % per_epoch},
      {"steps_per_epoch", per_epoch},
      {"epochs", layout_.plan.epochs().value_or(0)},
      {"records", layout_.plan.records()},
      {"rows", counters_.rows.load(std::memory_order_relaxed)},
      {"rows_skipped", counters_.rows_skipped.load(std::memory_order_relaxed)},
      {"rows_substituted",
       counters_.rows_substituted.load(std::memory_order_relaxed)},
      {"bytes_read", counters_.bytes_read.load(std::memory_order_relaxed)},
      {"read_wait_s", seconds(counters_.read_wait_ns)},
      {"decode_s", seconds(counters_.decode_ns)},
      {"memory_bytes", layout_.segment.segment_bytes},
      {"last_error", last_error_}};
  if (with_ranks) {
    nlohmann::json ranks = nlohmann::json::array();
    for (uint32_t i = 0; i < seats_taken_; ++i) {
      const Feed& feed = feeds_[i];
      ranks.push_back({{"rank", feed.rank()},
                       {"seat", i},
                       {"state", !feed.attached() ? "left"
                                 : feed.drained() ? "finished"
                                 : feed.closed()  ? "closed"
                                                  : "attached"},
                       {"ready", feed.ready()},
                       {"held", feed.held()},
                       {"taken", feed.published() - feed.ready()},
                       {"waits", feed.waits()},
                       {"wait_s", static_cast<double>(feed.wait_ns()) * 1e-9}});
    }
    json["ranks"] = std::move(ranks);
  }
  return json;
}

}  // namespace penstock
