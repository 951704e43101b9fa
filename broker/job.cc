#include "broker/job.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "broker/assemble.h"

namespace penstock {
namespace {

// A chunk is what a worker claims at once: long enough, by the time this job's
// rows took so far, that the lock does not show with a hundred workers
// (bench/scale_model.py), small enough that the workers finish a step together,
// and so short that another job is not kept waiting.
constexpr uint64_t kChunkNs = 500'000;
constexpr uint64_t kChunkBytesMax = 4 << 20;
constexpr uint64_t kChunkRowsMax = 256;
constexpr uint64_t kFirstChunkRows = 4;  // before any row was timed
// How often Advance looks at one rank again that releases while it looks.
constexpr int kRoundsMax = 2;
// Often enough: a job is ahead of its share by ten times as much at most.
constexpr uint64_t kRankWaitsKeptNs = 5'000'000;

uint64_t ChunkRows(const Job::Layout& layout, uint32_t workers) {
  const uint64_t by_bytes =
      kChunkBytesMax / std::max<uint64_t>(layout.row_bytes, 1);
  const uint64_t by_step =
      layout.lanes * layout.segment.rows_max / (2 * workers);
  return std::clamp<uint64_t>(std::min(by_bytes, by_step), 1, kChunkRowsMax);
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

namespace {

// Where a state says to begin, in positions of this plan.
StatusOr<PlanStart> StartOf(const JobState& state, const JobState& here,
                            const Plan& plan) {
  if (const std::string differs = DifferingIdentity(state, here);
      !differs.empty()) {
    return FailedPreconditionError(
        "the state is of other data or of another order: {}", differs);
  }
  const uint64_t rows_per_epoch = plan.rows_per_epoch();
  const auto position = [&](uint64_t epoch, uint64_t row) {
    // An epoch may have become shorter (another batch with last: drop).
    if (row >= rows_per_epoch) return (epoch + 1) * rows_per_epoch;
    return epoch * rows_per_epoch + row;
  };
  const uint64_t epochs_max = Plan::kTotalRowsMax / rows_per_epoch;
  if (state.epoch >= epochs_max) {
    return InvalidArgumentError("state: epoch {}: wanted less than {}",
                                state.epoch, epochs_max);
  }
  PlanStart start;
  start.position = position(state.epoch, state.row);
  for (const JobState::Owed& owed : state.owed) {
    if (owed.epoch >= epochs_max || owed.row > rows_per_epoch ||
        owed.rows > rows_per_epoch - owed.row) {
      return InvalidArgumentError(
          "state: owed rows {} to {} of epoch {}: an epoch has {}", owed.row,
          owed.row + owed.rows, owed.epoch, rows_per_epoch);
    }
    for (uint64_t row = 0; row < owed.rows; row += plan.global_batch()) {
      start.owed.push_back({position(owed.epoch, owed.row + row),
                            std::min(plan.global_batch(), owed.rows - row),
                            owed.redelivered});
    }
  }
  return start;
}

JobState IdentityOf(const JobOptions& options, uint64_t records) {
  JobState state;
  state.dataset = options.spec.name;
  state.delivery = options.delivery.mode;
  state.records = records;
  state.seed = options.spec.seed;
  if (options.spec.shuffle) {
    state.shuffle = JobState::Shuffle{options.spec.shuffle->seed,
                                      options.spec.shuffle->each_epoch};
  }
  return state;
}

}  // namespace

StatusOr<Job::Layout> Job::PlanLayout(const JobOptions& options,
                                      const Dataset& dataset, uint32_t nodes,
                                      bool replicate) {
  DatasetSpec spec = options.spec;
  if (options.repeat_first) {
    spec.epochs = 1;
    spec.steps_per_epoch = 1;
  }
  // Its own order, the first consumer's is that of the spec; any odd factor
  // gives every consumer another seed.
  if (spec.shuffle) {
    spec.shuffle->seed += options.consumer * 0x9e3779b97f4a7c15;
  }
  const DeliveryOptions& delivery = options.delivery;
  const bool split = delivery.mode == DeliveryMode::kSplit;
  const uint32_t world_size = split ? options.world_size : 1;
  const uint64_t records = dataset.source->record_count();
  PENSTOCK_ASSIGN_OR_RETURN(Plan plan, Plan::Make(spec, records, world_size));
  if (options.start) {
    PENSTOCK_ASSIGN_OR_RETURN(
        PlanStart start,
        StartOf(*options.start, IdentityOf(options, records), plan));
    PENSTOCK_ASSIGN_OR_RETURN(plan, plan.From(std::move(start), world_size));
  }
  const ElementSpec& element = dataset.program->element_spec();
  uint64_t row_bytes = sizeof(int64_t);
  for (const Feature& feature : element) row_bytes += feature.RowBytes();
  if (plan.global_batch() > UINT32_MAX) {
    return ResourceExhaustedError("a step of {} rows, at most {} may be",
                                  plan.global_batch(), UINT32_MAX);
  }
  // How many batches are in use at once, at worst.
  const uint64_t consumers = options.consumers_max;
  uint32_t lanes = 1;
  uint64_t leases = 0;
  uint64_t slots = 0;
  switch (delivery.mode) {
    case DeliveryMode::kSplit:
    case DeliveryMode::kIndependent:
      lanes = options.consumers_max;
      leases = spec.prefetch + spec.hold;
      slots = leases;
      break;
    case DeliveryMode::kDynamic:
      leases = 1 + spec.hold;
      slots = spec.prefetch + consumers * leases;
      break;
    case DeliveryMode::kBroadcast:
      leases = delivery.window + spec.hold;
      // Consumers that may not be skipped are all within one window.
      slots = delivery.lag == Lag::kSkip
                  ? consumers * leases
                  : delivery.window + consumers * spec.hold;
      break;
  }
  if (leases > kLeasesMax) {
    return ResourceExhaustedError(
        "{} + hold {} is more than the {} batches a rank may have",
        delivery.mode == DeliveryMode::kBroadcast
            ? fmt::format("window {}", delivery.window)
            : fmt::format("prefetch {}", spec.prefetch),
        spec.hold, kLeasesMax);
  }
  uint64_t rows_max = 0;
  for (const uint32_t rank : {0u, world_size - 1}) {
    rows_max = std::max(rows_max, plan.max_share_rows(rank));
  }
  if (split && delivery.on_rank_death == OnRankDeath::kShrink) {
    PENSTOCK_ASSIGN_OR_RETURN(const Plan half,
                              plan.From(plan.start(), (world_size + 1) / 2));
    rows_max = half.max_share_rows(0);
  }
  // A lane of a rank is on one node; the one lane of all is on all nodes.
  const bool lanes_are_ranks =
      split || delivery.mode == DeliveryMode::kIndependent;
  const bool copied =
      replicate && nodes > 1 && delivery.mode == DeliveryMode::kBroadcast;
  const uint32_t copies = copied ? nodes : 1;
  uint64_t bank_slots = 0;
  if (nodes > 1) {
    bank_slots =
        lanes_are_ranks || copied ? slots : (slots + nodes - 1) / nodes;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      SegmentPlan segment,
      PlanSegment(
          element, rows_max, static_cast<uint32_t>(copies * lanes * slots),
          2 * options.consumers_max, static_cast<uint32_t>(bank_slots)));
  return Layout{std::move(plan),
                std::move(segment),
                lanes,
                static_cast<uint32_t>(slots),
                static_cast<uint32_t>(leases),
                row_bytes,
                copies};
}

namespace {

Delivery::Shape ShapeOf(const JobOptions& options, const Job::Layout& layout) {
  Delivery::Shape shape;
  shape.options = options.delivery;
  // The world of one that each consumer has is a split.
  if (shape.options.mode == DeliveryMode::kIndependent) {
    shape.options.mode = DeliveryMode::kSplit;
  }
  shape.world_size = layout.plan.world_size();
  shape.consumers_max = options.consumers_max;
  shape.start_with = options.local_world_size;
  shape.lanes = layout.lanes;
  shape.slots_per_lane = layout.slots_per_lane;
  shape.leases = layout.leases;
  shape.rows_max = layout.segment.rows_max;
  shape.slots_offset = layout.segment.slots_offset;
  shape.slot_stride = layout.segment.slot_stride;
  shape.bank_slots = layout.segment.bank_slots;
  shape.copies = layout.copies;
  shape.bank_nodes = layout.bank_nodes;
  shape.worker_nodes = layout.worker_nodes;
  return shape;
}

std::vector<Ring*> RingsOf(const Segment& segment) {
  std::vector<Ring*> rings;
  for (uint32_t seat = 0; seat < segment.plan().seats; ++seat) {
    rings.push_back(&segment.ring(seat));
  }
  return rings;
}

std::string Numbers(const std::vector<uint32_t>& ranks) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kNamed) {
    text += fmt::format(" and {} more", ranks.size() - kNamed);
  }
  return text;
}

}  // namespace

Job::Job(JobKey key, JobOptions options, std::shared_ptr<const Dataset> dataset,
         Layout layout, std::unique_ptr<Segment> segment,
         std::shared_ptr<void> memory, uint32_t workers,
         std::unique_ptr<DeliveryRecord> record)
    : key_(std::move(key)),
      options_(std::move(options)),
      dataset_(std::move(dataset)),
      layout_(std::move(layout)),
      keep_shape_(options_.spec.batch.last == LastBatch::kPad),
      memory_(std::move(memory)),
      segment_(std::move(segment)),
      chunk_rows_(ChunkRows(layout_, workers)),
      record_(std::move(record)),
      delivery_(ShapeOf(options_, layout_), layout_.plan, RingsOf(*segment_),
                record_.get()) {}

StatusOr<Delivery::Joined> Job::Attach(Delivery::Joining joining,
                                       const Record& record) {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  auto joined = delivery_.Attach(std::move(joining));
  if (!joined.ok()) {
    return Status(
        joined.status().code(),
        fmt::format("job '{}': {}", key_.name, joined.status().message()));
  }
  if (joined->moved_bank) banks_to_move_.push_back(*joined->moved_bank);
  if (const Status status = record(*joined); !status.ok()) {
    GoneLocked(delivery_.Died(joined->seat));
    return status;
  }
  NoteMissingLocked();
  if (joined->replaces) {
    spdlog::info("job '{}': rank {} is back, {} batches are handed over",
                 key_.name, joined->rank, joined->backlog);
  }
  return joined;
}

void Job::GoneLocked(const Status& status) {
  if (!status.ok()) {
    FailLocked(Status(status.code(), fmt::format("job '{}': {}", key_.name,
                                                 status.message())));
  }
  NoteMissingLocked();
  AdvanceLocked();
}

void Job::Leave(uint32_t seat) {
  MutexLock lock(&mutex_);
  GoneLocked(delivery_.Leave(seat));
}

void Job::Died(uint32_t seat) {
  MutexLock lock(&mutex_);
  if (const std::optional<uint32_t> rank = delivery_.RankAt(seat)) {
    spdlog::info("job '{}': rank {} died", key_.name,
                 key_.consumer.value_or(*rank));
  }
  GoneLocked(delivery_.Died(seat));
}

void Job::Mute(uint32_t seat) {
  MutexLock lock(&mutex_);
  delivery_.Mute(seat);
}

Status Job::Evict(uint32_t rank, const std::string& reason) {
  MutexLock lock(&mutex_);
  const Status status = delivery_.Evict(rank, reason);
  if (status.code() == StatusCode::kNotFound) return status;
  spdlog::info("job '{}': rank {} is taken off: {}", key_.name,
               key_.consumer.value_or(rank), reason);
  GoneLocked(status);
  return OkStatus();
}

void Job::EvictSeat(uint32_t seat, const std::string& reason) {
  MutexLock lock(&mutex_);
  if (const std::optional<uint32_t> rank = delivery_.RankAt(seat)) {
    GoneLocked(delivery_.Evict(*rank, reason));
  }
}

std::vector<Delivery::RanksChanged> Job::TakeRanksChanged() {
  MutexLock lock(&mutex_);
  return delivery_.TakeRanksChanged();
}

void Job::RanksTold(uint32_t seat, uint32_t phase) {
  MutexLock lock(&mutex_);
  delivery_.RanksTold(seat, phase);
  AdvanceLocked();
}

bool Job::GoesOnWithout(uint32_t rank) const {
  MutexLock lock(&mutex_);
  return delivery_.GoesOnWithout(rank);
}

size_t Job::phases() const {
  MutexLock lock(&mutex_);
  return delivery_.phases();
}

bool Job::AllCame() const {
  MutexLock lock(&mutex_);
  return delivery_.AllCame();
}

std::string Job::MissingText() const {
  MutexLock lock(&mutex_);
  const std::vector<uint32_t> missing = delivery_.Missing();
  return missing.empty() ? "a rank" : "rank " + Numbers(missing);
}

bool Job::OwesPredecessor(uint32_t rank) const {
  MutexLock lock(&mutex_);
  return delivery_.OwesPredecessor(rank);
}

Status Job::RestorePhases(const std::vector<FormerPhase>& phases) {
  MutexLock lock(&mutex_);
  for (const FormerPhase& phase : phases) {
    PENSTOCK_RETURN_IF_ERROR(delivery_.RestorePhase(phase));
  }
  return OkStatus();
}

void Job::RestoreRank(const Delivery::FormerConsumer& former) {
  MutexLock lock(&mutex_);
  delivery_.RestoreRank(former);
}

void Job::Gather() {
  MutexLock lock(&mutex_);
  delivery_.Gather();
}

bool Job::gathering() const {
  MutexLock lock(&mutex_);
  return delivery_.gathering();
}

void Job::Gathered(const Delivery::FormerSteps& former) {
  MutexLock lock(&mutex_);
  delivery_.Gathered(former);
  AdvanceLocked();
}

void Job::Withhold() {
  MutexLock lock(&mutex_);
  delivery_.Withhold();
}

bool Job::Unsettled() const {
  MutexLock lock(&mutex_);
  return delivery_.Unsettled();
}

void Job::Settle(bool shrink) {
  MutexLock lock(&mutex_);
  GoneLocked(delivery_.Settle(shrink));
}

void Job::Drain() {
  MutexLock lock(&mutex_);
  delivery_.Drain();
  AdvanceLocked();
}

void Job::Recall(const std::string& reason) {
  MutexLock lock(&mutex_);
  if (failure_.ok()) failure_ = AbortedError("{}", reason);
  delivery_.Close(Closed::kRecalled, reason);
  pointless_.store(true, std::memory_order_relaxed);
}

bool Job::OwesTheDead() const {
  MutexLock lock(&mutex_);
  return delivery_.OwesTheDead();
}

bool Job::HasAttached() const {
  MutexLock lock(&mutex_);
  return delivery_.AnyAttached();
}

bool Job::Finished(uint32_t rank) const {
  MutexLock lock(&mutex_);
  return delivery_.Finished(rank);
}

bool Job::AllFinished() const {
  MutexLock lock(&mutex_);
  return delivery_.AllFinished();
}

bool Job::WaitsFor(uint32_t rank) const {
  MutexLock lock(&mutex_);
  return delivery_.WaitsFor(rank);
}

bool Job::IsAt(uint32_t seat) {
  MutexLock lock(&mutex_);
  return delivery_.RankAt(seat).has_value();
}

bool Job::Knows(uint32_t rank) const {
  MutexLock lock(&mutex_);
  return delivery_.Knows(rank);
}

bool Job::Abandoned() const {
  MutexLock lock(&mutex_);
  return !delivery_.AnySeatTaken() && delivery_.Idle();
}

bool Job::failed() const {
  MutexLock lock(&mutex_);
  return !failure_.ok();
}

void Job::NoteMissingLocked() {
  const size_t missing = delivery_.Missing().size();
  if (missing != missing_) missing_since_ = std::chrono::steady_clock::now();
  missing_ = missing;
}

void Job::NoteRanksLocked() {
  const auto now = std::chrono::steady_clock::now();
  std::map<uint32_t, Seen> seen;
  std::vector<RecentUse::Rank> at_work;
  for (const Delivery::RankStatus& rank : delivery_.Ranks()) {
    if (!rank.seat) continue;
    const auto last = seen_.find(rank.rank);
    const bool same = last != seen_.end() && last->second.taken == rank.taken &&
                      last->second.held == rank.held;
    seen[rank.rank] = {rank.taken, rank.held, same ? last->second.since : now};
    if (!rank.open) continue;
    at_work.push_back({key_.consumer.value_or(rank.rank), rank.waits,
                       rank.wait_ns, rank.waiting, rank.progress});
  }
  seen_ = std::move(seen);
  // Relaxed, both: shown, nothing depends on them.
  recent_.Look(static_cast<uint64_t>(
                   std::chrono::nanoseconds(now.time_since_epoch()).count()),
               counters_.decode_ns.load(std::memory_order_relaxed),
               counters_.read_wait_ns.load(std::memory_order_relaxed), at_work);
}

void Job::Look() {
  MutexLock lock(&mutex_);
  NoteRanksLocked();
  NoteMissingLocked();
  if (missing_ == 0 || !failure_.ok() || options_.wait_s <= 0 ||
      std::chrono::steady_clock::now() - missing_since_ <
          std::chrono::duration<double>(options_.wait_s)) {
    return;
  }
  std::vector<uint32_t> gone;
  std::vector<uint32_t> absent;
  for (const uint32_t rank : delivery_.Missing()) {
    (delivery_.Knows(rank) ? gone : absent).push_back(rank);
  }
  FailLocked(DeadlineExceededError(
      "job '{}': {}{}{} within {:.0f} s (wait_s)", key_.name,
      gone.empty() ? ""
                   : fmt::format("rank {} of {} is gone, and nobody took its "
                                 "place",
                                 Numbers(gone), options_.world_size),
      gone.empty() || absent.empty() ? "" : "; ",
      absent.empty()
          ? ""
          : fmt::format("rank {} of {} did not attach (see why it did not "
                        "start)",
                        Numbers(absent), options_.world_size),
      options_.wait_s));
}

JobState Job::StateAt(const PlanStart& start) const {
  JobState state = IdentityOf(options_, layout_.plan.records());
  const uint64_t rows_per_epoch = layout_.plan.rows_per_epoch();
  state.epoch = start.position / rows_per_epoch;
  state.row = start.position % rows_per_epoch;
  for (const RowRange& range : start.owed) {
    state.owed.push_back({range.position / rows_per_epoch,
                          range.position % rows_per_epoch, range.rows,
                          range.redelivered});
  }
  return state;
}

JobState Job::State() const {
  MutexLock lock(&mutex_);
  return StateAt(delivery_.State());
}

void Job::Advance() {
  MutexLock lock(&mutex_);
  AdvanceLocked();
}

void Job::SetUsableSlots(uint32_t slots) {
  MutexLock lock(&mutex_);
  delivery_.SetUsableSlots(slots);
  AdvanceLocked();
}

// Opens what can be. True: there are rows to claim that were not there.
bool Job::OpenLocked() {
  bool opened = false;
  while (Share* share = delivery_.Open()) {
    if (share->rows.rows > 0) {
      opened = true;
      continue;
    }
    AssembleLocked(share);
    delivery_.Filled(share);
  }
  return opened;
}

void Job::AdvanceLocked() {
  if (!failure_.ok()) return;
  bool opened = false;
  bool again = true;
  for (int round = 0; again && round < kRoundsMax; ++round) {
    delivery_.Advance();
    opened |= OpenLocked();
    // What it frees is to be opened, too: nobody may be left who tells.
    const bool freed = delivery_.Advance();
    delivery_.AskForNews();
    again = delivery_.Advance() || freed;
    for (const uint32_t rank : delivery_.Corrupt()) {
      spdlog::warn("job '{}': rank {} wrote impossible values: evicted",
                   key_.name, rank);
      const Status status = delivery_.Evict(
          rank, fmt::format("rank {} wrote impossible values into its cursor "
                            "page: a bug of the client, or memory overwritten",
                            rank));
      if (!status.ok()) FailLocked(status);
      again = true;
    }
  }
  // A rank does things as fast as we look: others want their turn of this
  // thread.
  if (again) on_more_();
  if (opened) {
    claimable_.store(true, std::memory_order_relaxed);
    on_work_();
  }
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

bool Job::RankWaits(uint64_t now_ns) {
  // Relaxed, all: a hint; two that look at once find the same.
  if (now_ns - rank_waits_seen_ns_.load(std::memory_order_relaxed) >
      kRankWaitsKeptNs) {
    rank_waits_seen_ns_.store(now_ns, std::memory_order_relaxed);
    MutexLock lock(&mutex_);
    rank_waits_.store(delivery_.AnyWaiting(), std::memory_order_relaxed);
  }
  return rank_waits_.load(std::memory_order_relaxed);
}

Claim Job::ClaimRows(std::optional<uint32_t> node) {
  MutexLock lock(&mutex_);
  Share* share = failure_.ok() ? delivery_.Claimable(node) : nullptr;
  if (share == nullptr) {
    claimable_.store(false, std::memory_order_relaxed);
    return {};
  }
  Claim claim;
  claim.share = share;
  claim.slot = delivery_.SlotToFill(*share, node);
  claim.local = delivery_.IsLocal(*share, node);
  claim.begin = share->claimed;
  claim.end = std::min(share->claimed + ChunkRowsNow(), share->rows.rows);
  share->claimed = claim.end;
  // No worker is to be woken in vain.
  if (delivery_.Claimable() == nullptr) {
    claimable_.store(false, std::memory_order_relaxed);
  }
  return claim;
}

// Of a broadcast that has copies on other nodes, while they are in the caches.
void Job::CopyRows(const Claim& claim) {
  const auto slots =
      static_cast<uint32_t>(layout_.segment.slot_count / layout_.copies);
  for (uint32_t copy = 0; copy < layout_.copies; ++copy) {
    const uint32_t to = copy * slots + claim.slot % slots;
    if (to == claim.slot) continue;
    penstock::CopyRows(*segment_, dataset_->program->element_spec(), claim.slot,
                       to, claim.begin, claim.end);
  }
}

void Job::AssembleLocked(Share* share) {
  for (uint32_t copy = 0; copy < layout_.copies; ++copy) {
    Assemble(*segment_, dataset_->program->element_spec(), keep_shape_,
             delivery_.SegmentSlot(*share, copy), share);
  }
}

void Job::FinishRows(const Claim& claim) {
  if (layout_.copies > 1 && !Pointless()) CopyRows(claim);
  Share* const share = claim.share;
  const uint64_t rows = claim.end - claim.begin;
  // Relaxed: shown by `penstock status`, nothing depends on it.
  const uint64_t rows_done =
      counters_.rows.fetch_add(rows, std::memory_order_relaxed) + rows;
  FailIfNothingIsReadable(rows_done);
  MutexLock lock(&mutex_);
  share->finished += rows;
  if (!share->done()) return;
  if (!share->abandoned) AssembleLocked(share);
  delivery_.Filled(share);
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
  FailLocked(status);
}

void Job::FailLocked(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  spdlog::info("job '{}' ends: {}", key_.name, status.message());
  pointless_.store(true, std::memory_order_relaxed);
  last_error_ = status.message();
  delivery_.Close(
      Closed::kFailed,
      fmt::format("{} {}", static_cast<int>(status.code()), status.message()));
}

double Job::RecentDecoding() const {
  MutexLock lock(&mutex_);
  return recent_.decoding();
}

double Job::RecentStorage() const {
  MutexLock lock(&mutex_);
  return recent_.storage();
}

Bottleneck Job::FindBottleneck(const PoolUse& pool) const {
  MutexLock lock(&mutex_);
  return Bottleneck::Of(recent_, pool);
}

std::vector<uint32_t> Job::BankNodes() const {
  MutexLock lock(&mutex_);
  return delivery_.bank_nodes();
}

bool Job::StartMoving() {
  MutexLock lock(&mutex_);
  if (moving_ || banks_to_move_.empty()) return false;
  moving_ = true;
  return true;
}

std::optional<uint32_t> Job::NextBankToMove(std::vector<uint32_t>* nodes) {
  MutexLock lock(&mutex_);
  *nodes = delivery_.bank_nodes();
  if (banks_to_move_.empty()) return std::nullopt;
  const uint32_t bank = banks_to_move_.back();
  banks_to_move_.pop_back();
  return bank;
}

bool Job::EndMoving() {
  MutexLock lock(&mutex_);
  moving_ = !banks_to_move_.empty();
  return !moving_;
}

nlohmann::json Job::StatusJson(bool with_ranks) const {
  MutexLock lock(&mutex_);
  const auto seconds = [](const std::atomic<uint64_t>& ns) {
    return static_cast<double>(ns.load(std::memory_order_relaxed)) * 1e-9;
  };
  const uint64_t rows_per_epoch = layout_.plan.rows_per_epoch();
  const uint64_t position = delivery_.State().position;
  const std::vector<uint32_t> missing = delivery_.Missing();
  const Delivery::SlotCounts slots = delivery_.CountSlots();
  const DeliveryOptions& delivery = options_.delivery;
  // What was seen before is of no worth while they are moved.
  const bool moving = moving_ || !banks_to_move_.empty();
  const auto name = [](const auto& names, auto value) {
    return names[static_cast<size_t>(value)];
  };
  nlohmann::json json = {
      {"job", key_.name},
      {"dataset", key_.dataset},
      {"uid", key_.uid},
      {"state", !failure_.ok()          ? "failed"
                : delivery_.Unsettled() ? "waiting for its ranks to reconnect"
                : !missing.empty()      ? "waiting for rank " + Numbers(missing)
                                        : "running"},
      {"delivery", name(kDeliveryModeNames, delivery.mode)},
      {"on_rank_death", name(kOnRankDeathNames, delivery.on_rank_death)},
      {"missing", missing},
      {"slots",
       {{"free", slots.free},
        {"filling", slots.filling},
        {"ready", slots.ready},
        {"out", slots.out},
        {"quarantined", slots.quarantined}}},
      {"world_size", options_.world_size},
      {"local_world_size", options_.local_world_size},
      {"epoch", position / rows_per_epoch},
      {"step", position % rows_per_epoch / layout_.plan.global_batch()},
      {"steps_per_epoch", layout_.plan.steps_per_epoch()},
      {"epochs", layout_.plan.epochs().value_or(0)},
      {"records", layout_.plan.records()},
      {"rows", counters_.rows.load(std::memory_order_relaxed)},
      {"rows_skipped", counters_.rows_skipped.load(std::memory_order_relaxed)},
      {"rows_substituted",
       counters_.rows_substituted.load(std::memory_order_relaxed)},
      {"rows_local", counters_.rows_local.load(std::memory_order_relaxed)},
      {"rows_remote", counters_.rows_remote.load(std::memory_order_relaxed)},
      {"pages_seen",
       moving ? 0 : counters_.pages_seen.load(std::memory_order_relaxed)},
      {"pages_elsewhere",
       moving ? 0 : counters_.pages_elsewhere.load(std::memory_order_relaxed)},
      {"io", dataset_->source->io()},
      {"reads", counters_.reads.load(std::memory_order_relaxed)},
      {"reads_cached", counters_.reads_cached.load(std::memory_order_relaxed)},
      {"bytes_read", counters_.bytes_read.load(std::memory_order_relaxed)},
      {"read_wait_s", seconds(counters_.read_wait_ns)},
      {"decode_s", seconds(counters_.decode_ns)},
      {"memory_bytes", layout_.segment.segment_bytes},
      {"copies", layout_.copies},
      {"last_error", last_error_}};
  if (with_ranks) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const Delivery::RankStatus& rank : delivery_.Ranks()) {
      // It has something to do and does not: it takes no batch and gives none
      // back.
      double silent_s = 0;
      if (const auto seen = seen_.find(rank.rank);
          seen != seen_.end() && rank.ready + rank.held > 0) {
        silent_s = std::chrono::duration<double>(
                       std::chrono::steady_clock::now() - seen->second.since)
                       .count();
      }
      const auto node = [](const std::optional<uint32_t>& number) {
        return number ? nlohmann::json(*number) : nlohmann::json();
      };
      ranks.push_back(
          {{"silent_s", silent_s},
           {"node", node(rank.node)},
           {"node_from", rank.node_from},
           {"memory_node", node(rank.memory_node)},
           {"rank", key_.consumer.value_or(rank.rank)},
           {"seat", rank.seat ? static_cast<int64_t>(*rank.seat) : int64_t{-1}},
           {"state", rank.state},
           {"ready", rank.ready},
           {"held", rank.held},
           {"taken", rank.taken},
           {"skipped", rank.skipped},
           {"waits", rank.waits},
           {"wait_s", static_cast<double>(rank.wait_ns) * 1e-9}});
    }
    json["ranks"] = std::move(ranks);
  }
  return json;
}

}  // namespace penstock
