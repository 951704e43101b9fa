#include "broker/job/job.h"

#include <algorithm>
#include <numeric>
#include <variant>

#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/delivery/assemble.h"
#include "broker/io/stores.h"
#include "broker/plan/mix.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// A chunk is what a worker claims at once. By the time this job's rows took so
// far, it is long enough that the lock does not show with a hundred workers
// (bench/scale_model.py), small enough that the workers finish a step together,
// and short enough not to keep another job waiting.
constexpr uint64_t kChunkNs = 500'000;
// A worker's part of a step of cheap rows may take less than waking the worker.
constexpr uint64_t kChunkWorthNs = 50'000;
// Workers that ask another process for rows serve one job, and each chunk costs
// them a round trip, of tens of microseconds.
constexpr uint64_t kAskedChunkNs = 4'000'000;
constexpr uint64_t kChunkBytesMax = 4 << 20;
constexpr uint64_t kChunkRowsMax = 1024;
constexpr uint64_t kFirstChunkRows = 4;  // before any row was timed
// Share of the time: what more batches ahead could be made in.
constexpr double kSpareWorkers = 0.2;
// How long a stopped job waits for a row of its last step.
constexpr uint64_t kStopWaitNs = 5'000'000'000;

// A worker's part of a step.
uint64_t PartOfStep(const Job::Layout& layout, const Dataset& dataset,
                    uint32_t workers, uint64_t prefetch) {
  uint64_t by_step = layout.lanes * layout.segment.rows_max;
  if (dataset.wait_ns() > 0) {
    // All steps that are made ahead are shared by those who ask for rows.
    by_step *= std::max<uint64_t>(prefetch, 1);
    if (dataset.source->processes() > 0) workers = dataset.source->processes();
  }
  return by_step / (2 * workers);
}

Delivery::Shape ShapeOf(const JobOptions& options, const Job::Layout& layout,
                        const Source& source) {
  Delivery::Shape shape;
  shape.options = options.delivery;
  // Each consumer is a split of a world of one.
  if (shape.options.mode == DeliveryMode::kIndependent) {
    shape.options.mode = DeliveryMode::kSplit;
  }
  shape.world_size = layout.plan.world_size();
  shape.consumers_max = options.consumers_max;
  shape.replicas = options.replicas;
  shape.local_replicas = options.local_replicas;
  shape.start_with = options.local_world_size;
  shape.in_order = source.in_order();
  shape.lanes = layout.lanes;
  shape.slots_per_lane = layout.slots_per_lane;
  shape.leases = layout.leases;
  shape.rows_max = layout.segment.rows_max;
  shape.ranks_min = layout.ranks_min;
  shape.slots_offset = layout.segment.slots_offset;
  shape.slot_stride = layout.segment.slot_stride;
  shape.bank_slots = layout.segment.bank_slots;
  shape.copies = layout.copies;
  shape.bank_nodes = layout.bank_nodes;
  shape.worker_nodes = layout.worker_nodes;
  return shape;
}

// Nothing before this position is needed any more.
uint64_t FirstNeeded(const PlanStart& start) {
  uint64_t first = start.position;
  for (const RowRange& owed : start.owed) {
    first = std::min(first, owed.position);
  }
  return first;
}

std::unique_ptr<Stream> StreamOf(const JobOptions& options,
                                 const Job::Layout& layout,
                                 StreamRecord* record) {
  const auto* spec = std::get_if<StreamSource>(&options.spec.source);
  if (spec == nullptr) return nullptr;
  // A lane's slots are full while the next step is collected.
  const uint64_t rows_out =
      (uint64_t{layout.slots_per_lane} + 1) * layout.plan.global_batch();
  Stream::Shape shape;
  shape.begin = FirstNeeded(layout.plan.start());
  shape.to_finish = spec->producers;
  shape.rows_out = rows_out;
  shape.retained_rows = layout.retained_rows;
  return std::make_unique<Stream>(spec->features, shape, record);
}

std::vector<Ring*> RingsOf(const Segment& segment) {
  std::vector<Ring*> rings;
  for (uint32_t seat = 0; seat < segment.plan().seats; ++seat) {
    rings.push_back(&segment.ring(seat));
  }
  return rings;
}

}  // namespace

Job::Job(JobKey key, JobOptions options, std::shared_ptr<const Dataset> dataset,
         Layout layout, std::unique_ptr<Segment> segment,
         MemoryReservation memory, uint32_t workers,
         std::unique_ptr<JobRecord> record)
    : key_(std::move(key)),
      options_(std::move(options)),
      dataset_(std::move(dataset)),
      layout_(std::move(layout)),
      keep_shape_(options_.spec.batch.last == LastBatch::kPad),
      memory_(std::move(memory)),
      windows_(dataset_->packing == nullptr ? nullptr
                                            : Packing::Use(dataset_->packing)),
      segment_(std::move(segment)),
      workers_(workers),
      part_of_step_(
          PartOfStep(layout_, *dataset_, workers, layout_.prefetch.number())),
      batch_bytes_(dataset_->of_batches() ? layout_.segment.slot_count : 0,
                   dataset_->element_spec()[0].room),
      record_(std::move(record)),
      stream_(StreamOf(options_, layout_, record_.get())),
      asked_(options_.spec.asked ? std::make_unique<AskedRows>(
                                       FirstNeeded(layout_.plan.start()),
                                       dataset_->source->record_count())
                                 : nullptr),
      remote_(IsForMakers(options_.spec)
                  ? std::make_unique<RemoteRows>(dataset_,
                                                 layout_.plan.start().position)
                  : nullptr),
      weights_(AllWeights(layout_.weights, options_.weights)),
      rows_plan_(std::make_shared<const Plan>(layout_.plan)),
      delivery_(ShapeOf(options_, layout_, *dataset_->source), layout_.plan,
                RingsOf(*segment_), record_.get()),
      prefetch_(layout_.prefetch),
      part_ns_(kFirstStep + StepNumbers(options_.spec)) {
  if (stream_ != nullptr) delivery_.SetAvailable(stream_->available());
  if (asked_ != nullptr) delivery_.SetAvailable(asked_->end());
  if (options_.at_end) delivery_.PlaceAtEnd();
  if (FileAccess::stores() != nullptr && stream_ == nullptr &&
      asked_ == nullptr) {
    look_ahead_ = std::make_unique<LookAhead>(
        dataset_, layout_.plan.start().position,
        uint64_t{2} * layout_.slots_per_lane * layout_.plan.global_batch(),
        [this] {
          MutexLock lock(&weights_mutex_);
          return rows_plan_;
        });
    if (!follows_ranks()) {
      std::vector<uint32_t> all(plan().world_size());
      std::iota(all.begin(), all.end(), 0);
      look_ahead_->SetRanks(std::move(all));
    }
  }
}

StatusOr<WeightsChange> Job::ChangeWeights(
    const std::vector<double>& weights, std::optional<Place> from,
    const std::function<void(const WeightsChange&)>& tell) {
  // Two periods of each change are kept.
  constexpr uint64_t kPeriodMax = 10'000;
  if (!std::holds_alternative<MixSource>(options_.spec.source) ||
      plan().mix() == nullptr) {
    return InvalidArgumentError(
        "job '{}': only a mix has weights: its source has to be `mix`, "
        "`select` in its parts, and `pack` without `across_parts`",
        key_.name);
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> whole, WholeWeights(weights));
  uint32_t divisor = 0;
  for (const uint32_t weight : whole) divisor = std::gcd(divisor, weight);
  if (divisor == 0) {
    return InvalidArgumentError(
        "all weights are 0: of one part at least it has to be more");
  }
  uint64_t period = 0;
  for (uint32_t& weight : whole) period += weight /= divisor;
  if (period > kPeriodMax) {
    return InvalidArgumentError(
        "the weights, as whole numbers, add up to {}, more than {}: round them",
        period, kPeriodMax);
  }
  if (!from && options_.several_hosts()) {
    return FailedPreconditionError(
        "job '{}' has ranks on other hosts, whose brokers may be elsewhere: "
        "let "
        "all ranks call `set_weights` of Python, which agrees on a row, or "
        "name "
        "an epoch and a row that lie ahead, the same on each host",
        key_.name);
  }
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  if (delivery_.Unsettled()) {
    return UnavailableError(
        "job '{}' waits for its ranks to reconnect after a restart of the "
        "broker: its position is not known yet; try again later",
        key_.name);
  }
  const uint64_t rows = plan().rows_per_epoch();
  const uint64_t next = delivery_.FirstNotOpened();
  if (delivery_.Closing() ||
      (plan().epochs() && next / rows >= *plan().epochs())) {
    return FailedPreconditionError(
        "job '{}': all of its steps are made, or it is stopped: no row is left",
        key_.name);
  }
  if (!from) from = Place{next / rows, next % rows};
  if (from->row >= rows ||
      (plan().epochs() && from->epoch >= *plan().epochs())) {
    return InvalidArgumentError(
        "row {} of epoch {}: job '{}' has {} rows in an epoch{}", from->row,
        from->epoch, key_.name, rows,
        plan().epochs()
            ? Format(", and {}", Counted(*plan().epochs(), "epoch", "epochs"))
            : "");
  }
  // Divided, as the product may wrap.
  if (std::pair(from->epoch, from->row) < std::pair(next / rows, next % rows)) {
    return FailedPreconditionError(
        "row {} of epoch {}: its batch is made already; the first that is free "
        "is row {} of epoch {}",
        from->row, from->epoch, next % rows, next / rows);
  }
  // A row that was made may have had a row after it for a partner.
  if (dataset_->mixes_pairs()) {
    from->row += (kPairedRows - from->row % kPairedRows) % kPairedRows;
    if (from->row >= rows) from = Place{from->epoch + 1, 0};
  }
  MutexLock weights_lock(&weights_mutex_);
  WeightsChange change = {from->epoch, from->row, std::move(whole)};
  if (!weights_.empty()) {
    const WeightsChange& last = weights_.back();
    if (std::pair(change.epoch, change.row) < std::pair(last.epoch, last.row)) {
      return FailedPreconditionError(
          "the weights change at row {} of epoch {} already: give that row or "
          "a later one",
          last.row, last.epoch);
    }
  }
  std::vector<WeightsChange> all = weights_;
  StatusOr<Plan> changed = *rows_plan_;
  if (!all.empty() && all.back().epoch == change.epoch &&
      all.back().row == change.row) {
    // As if it had not been: a state has only one of them.
    all.pop_back();
    changed = rows_plan_->WithoutChanges();
    for (const WeightsChange& each : all) {
      changed = changed->WithWeights(each, {});
      if (!changed.ok()) return changed.status();
    }
  }
  if (all.size() == JobState::kChangesMax) {
    return ResourceExhaustedError(
        "job '{}' has {} changes of weights: no more are kept; put them into "
        "the mix's `schedule` and begin another job",
        key_.name, all.size());
  }
  changed = changed->WithWeights(change, {});
  if (!changed.ok()) return changed.status();
  PENSTOCK_RETURN_IF_ERROR(record_->WeightsChanged(change));
  tell(change);
  all.push_back(change);
  weights_ = std::move(all);
  rows_plan_ = std::make_shared<const Plan>(*std::move(changed));
  Log<"weights-changed">(key_, change.row, change.epoch);
  return change;
}

StatusOr<Job::Place> Job::FirstFreeRow() const {
  MutexLock lock(&mutex_);
  if (delivery_.Unsettled()) {
    return UnavailableError(
        "job '{}' waits for its ranks to reconnect after a restart of the "
        "broker: its position is not known yet; try again later",
        key_.name);
  }
  // Each slot can be filled once before a rank takes a batch.
  const uint64_t free = delivery_.FirstNotOpened() +
                        layout_.slots_per_lane * plan().global_batch();
  const uint64_t rows = std::max<uint64_t>(plan().rows_per_epoch(), 1);
  return Place{free / rows, free % rows};
}

const Agreement& Job::agreement() const {
  std::call_once(agreement_once_, [this] {
    agreement_.emplace(options_, *dataset_, layout_.weights);
  });
  return *agreement_;
}

std::vector<WeightsChange> Job::weights() const {
  MutexLock lock(&weights_mutex_);
  return weights_;
}

StatusOr<Delivery::Joined> Job::Attach(Delivery::Joining joining,
                                       const Record& record) {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  auto joined = delivery_.Attach(std::move(joining));
  if (!joined.ok()) {
    return Status(joined.status().code(),
                  Format("job '{}': {}", key_.name, joined.status().message()));
  }
  if (joined->moved_bank) banks_to_move_.push_back(*joined->moved_bank);
  NoteSettledLocked();
  if (const Status status = record(*joined); !status.ok()) {
    GoneLocked(delivery_.Died(joined->seat));
    return status;
  }
  NotePresentLocked();
  if (joined->replaces) {
    Log<"rank-back">(key_, NameOf(joined->rank), joined->backlog);
  }
  return joined;
}

void Job::GoneLocked(const Status& status) {
  if (!status.ok()) {
    FailLocked(Status(status.code(),
                      Format("job '{}': {}", key_.name, status.message())));
  }
  NotePresentLocked();
  AdvanceLocked();
}

void Job::Leave(uint32_t seat) {
  MutexLock lock(&mutex_);
  GoneLocked(delivery_.Leave(seat));
}

void Job::Died(uint32_t seat) {
  MutexLock lock(&mutex_);
  if (const std::optional<uint32_t> rank = delivery_.RankAt(seat)) {
    Log<"rank-died">(key_, NameOf(*rank));
  }
  GoneLocked(delivery_.Died(seat));
}

Status Job::Evict(uint32_t rank, const std::string& reason) {
  MutexLock lock(&mutex_);
  const Status status = delivery_.Evict(rank, reason);
  if (status.code() == StatusCode::kNotFound) return status;
  Log<"rank-evicted">(key_, NameOf(rank), reason);
  GoneLocked(status);
  return OkStatus();
}

void Job::EvictSeat(uint32_t seat, const std::string& reason) {
  MutexLock lock(&mutex_);
  if (const std::optional<uint32_t> rank = delivery_.RankAt(seat)) {
    GoneLocked(delivery_.Evict(*rank, reason));
  }
}

std::string Job::MissingText() const {
  MutexLock lock(&mutex_);
  const std::vector<uint32_t> missing = MissingLocked();
  return missing.empty() ? "a rank" : RanksText(missing, options_.replicas);
}

void Job::RestoreStream(FormerStream former) {
  stream_->Restore(std::move(former));
  StreamChanged();
}

void Job::FinishRecovery(bool shrink) {
  MutexLock lock(&mutex_);
  GoneLocked(delivery_.FinishRecovery(shrink));
}

void Job::Drain() {
  MutexLock lock(&mutex_);
  delivery_.Drain();
  if (!drained_) drained_ = std::chrono::steady_clock::now();
  AdvanceLocked();
}

// A rank batch of the last step cannot be given up if another rank has its own
// of that step; then its rows have kStopWaitNs.
void Job::EndIfStopHangsLocked(const FunctionWorkersUse& function_workers) {
  if (!drained_ || !delivery_.Filling() ||
      function_workers.longest_ns < kStopWaitNs ||
      std::chrono::steady_clock::now() - *drained_ <
          std::chrono::nanoseconds(kStopWaitNs)) {
    return;
  }
  FailLocked(AbortedError(
      "job '{}' was stopped, and its last step waits for sample {}, which a "
      "Python function has been processing for {:.0f} s",
      key_.name, function_workers.longest_record,
      static_cast<double>(function_workers.longest_ns) * 1e-9));
}

void Job::Recall(const std::string& reason) {
  MutexLock lock(&mutex_);
  const Status status = AbortedError("{}", reason);
  if (failure_.ok()) failure_ = status;
  delivery_.Close(Closed::kRecalled, status);
  pointless_.store(true, std::memory_order_relaxed);
  on_freed_();
}

bool Job::Abandoned() const {
  MutexLock lock(&mutex_);
  return !delivery_.AnySeatTaken() && delivery_.Idle();
}

Status Job::failure() const {
  MutexLock lock(&mutex_);
  return failure_;
}

void Job::NotePresentLocked() {
  const size_t missing = delivery_.Missing().size();
  if (missing != missing_) missing_since_ = std::chrono::steady_clock::now();
  missing_ = missing;
  if (look_ahead_ != nullptr && follows_ranks()) {
    look_ahead_->SetRanks(delivery_.RanksHere());
  }
}

void Job::CheckTimeouts(const FunctionWorkersUse& function_workers) {
  MutexLock lock(&mutex_);
  // A process that writes impossible values may send no wake.
  delivery_.HeardAll();
  AdvanceLocked();
  NoteRanksLocked(function_workers);
  NotePresentLocked();
  if (measured() && std::chrono::steady_clock::now() >= measured_until_) {
    measured_.store(false, std::memory_order_relaxed);
  }
  EndIfStopHangsLocked(function_workers);
  if (stream_ != nullptr) CheckProducersLocked();
  if (missing_ == 0 || !failure_.ok() || options_.wait_s <= 0 ||
      std::chrono::steady_clock::now() - missing_since_ <
          std::chrono::duration<double>(options_.wait_s)) {
    return;
  }
  std::vector<uint32_t> gone;
  std::vector<uint32_t> absent;
  for (const uint32_t rank : delivery_.Missing()) {
    (delivery_.Knows(rank) ? gone : absent).push_back(NumberOf(rank));
  }
  FailLocked(DeadlineExceededError(
      "job '{}': {}{}{} within {:.0f} s (wait_s)", key_.name,
      gone.empty()
          ? ""
          : Format("{} of {} left or died, and nobody replaced {}",
                   RanksText(gone, options_.replicas), options_.world_size,
                   gone.size() == 1 ? "it" : "them"),
      gone.empty() || absent.empty() ? "" : "; ",
      absent.empty()
          ? ""
          : Format("{} of {} did not attach (see why {} did not start)",
                   RanksText(absent, options_.replicas), options_.world_size,
                   absent.size() == 1 ? "it" : "they"),
      options_.wait_s));
}

// Ranks must not wait forever for rows that nobody puts.
void Job::CheckProducersLocked() {
  // The rows that ranks need from the former broker instance are known now.
  if (!delivery_.Unsettled()) {
    if (const Status status = stream_->GiveUpAway(options_.wait_s);
        !status.ok()) {
      FailLocked(status.Prepend("job '" + key_.name + "'"));
    }
    StreamChangedLocked();
  }
  const auto idle_since = stream_->idle_since();
  if (!idle_since || stream_->over() || options_.wait_s <= 0 ||
      std::chrono::steady_clock::now() - *idle_since <
          std::chrono::duration<double>(options_.wait_s)) {
    return;
  }
  FailLocked(DeadlineExceededError(
      "job '{}': no producer has been at work for {:.0f} s (wait_s): {}",
      key_.name, options_.wait_s,
      stream_->end() == FirstNeeded(layout_.plan.start())
          ? "none has put a row (penstock_produce, in Python "
            "penstock.producer, with this job's name)"
          : "its producers died, or fewer have finished than the spec says "
            "(`producers:`)"));
}

void Job::StreamChanged() {
  MutexLock lock(&mutex_);
  StreamChangedLocked();
}

void Job::StreamChangedLocked() {
  if (stream_->over()) {
    delivery_.EndAt(stream_->end());
  } else {
    delivery_.SetAvailable(stream_->available());
  }
  AdvanceLocked();
}

Status Job::Ask(std::span<const uint64_t> numbers) {
  if (asked_ == nullptr) {
    return FailedPreconditionError(
        "job '{}': its spec has no `asked: true`, so no rows are asked for",
        key_.name);
  }
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  asked_->Release(FirstNeeded(delivery_.RowsNeeded()));
  PENSTOCK_RETURN_IF_ERROR(asked_->Add(numbers));
  delivery_.SetAvailable(asked_->end());
  AdvanceLocked();
  return OkStatus();
}

// Rows before the position where the job would resume are not needed.
void Job::ReleaseStreamLocked() {
  const PlanStart needed = delivery_.RowsNeeded();
  stream_->Release(FirstNeeded(needed));
  // No batch can be made although slots are free: producers keep the rows of
  // batches that ranks hold and have no memory for others. Not so if rows were
  // just put (StreamChanged) or more slots are about to get memory.
  if (delivery_.WaitsForRows() &&
      delivery_.available() == stream_->available() && stream_->ShortOfRoom()) {
    stream_->MakeRoom(needed.position, needed.owed);
  }
  if (stream_->AnyFreed()) on_freed_();
}

void Job::Advance(const std::vector<uint32_t>& seats) {
  MutexLock lock(&mutex_);
  for (const uint32_t seat : seats) delivery_.Heard(seat);
  AdvanceLocked();
}

void Job::SetUsableSlots(uint32_t slots) {
  MutexLock lock(&mutex_);
  populated_ = slots;
  UseSlotsLocked();
}

void Job::TunePrefetch(const PoolUse& pool) {
  MutexLock lock(&mutex_);
  if (!prefetch_.automatic() || !failure_.ok()) return;
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> passed = now - std::exchange(tuned_, now);
  // Relaxed: shown, and a hint.
  const uint64_t rows = counters_.rows.load(std::memory_order_relaxed);
  const uint64_t made = rows - std::exchange(tuned_rows_, rows);
  double waits = RecentLocked().ranks_wait;
  if (waits > Tuner::kWaits) {
    // Busy workers, producers and ranks that stand are no reason to make more
    // ahead.
    const Bottleneck found = Bottleneck::Of(recent_, pool);
    if (found.idle < kSpareWorkers ||
        found.what == Bottleneck::What::kProducers ||
        found.what == Bottleneck::What::kRank ||
        found.what == Bottleneck::What::kRanks) {
      waits = 0;
    }
  }
  if (prefetch_.Measured(passed.count(), static_cast<double>(made), waits)) {
    UseSlotsLocked();
  }
}

void Job::UseSlotsLocked() {
  const uint32_t not_needed = prefetch_.most() - prefetch_.number();
  delivery_.SetUsableSlots(
      std::min(populated_, layout_.slots_per_lane - not_needed));
  AdvanceLocked();
}

// Opens all batches it can. True: there are new rows to claim.
bool Job::OpenLocked() {
  bool opened = false;
  while (OpenBatch* batch = delivery_.Open()) {
    if (batch->rows.rows > 0) {
      opened = true;
      continue;
    }
    Assemble(batch);
    delivery_.Filled(batch);
  }
  return opened;
}

void Job::AdvanceLocked() {
  if (!failure_.ok()) return;
  bool opened = false;
  do {
    delivery_.Advance();
    opened |= OpenLocked();
    for (const uint32_t rank : delivery_.TakeCorrupt()) {
      Log<"rank-corrupt">(key_, NameOf(rank));
      const Status status = delivery_.Evict(
          rank,
          Format("rank {} wrote impossible values into its cursor page: the "
                 "client has a bug, or something overwrote its memory",
                 NameOf(rank)));
      if (!status.ok()) FailLocked(status);
    }
  } while (delivery_.MustAdvance());
  if (!broken_.empty()) FailIfBrokenIsNextLocked();
  if (delivery_.violated() != nullptr) {
    FailLocked(InternalError(
        "job '{}': a fault of the broker, which ends this job alone: '{}' does "
        "not hold; report it",
        key_.name, delivery_.violated()));
  }
  if (stream_ != nullptr) ReleaseStreamLocked();
  if (opened) on_work_(true);
  if (opened && remote_ != nullptr && remote_->hungry()) on_hungry_();
}

uint64_t Job::ChunkRowsNow() const {
  if (dataset_->of_batches()) return layout_.segment.rows_max;
  const uint64_t most = std::clamp<uint64_t>(
      kChunkBytesMax / std::max<uint64_t>(layout_.row_bytes, 1), 1,
      kChunkRowsMax);
  // Relaxed: an estimate.
  const uint64_t decoded = counters_.decoded.load(std::memory_order_relaxed);
  if (decoded == 0) {
    return std::clamp<uint64_t>(part_of_step_, 1,
                                std::min(most, kFirstChunkRows));
  }
  const uint64_t row_ns = std::max<uint64_t>(
      counters_.decode_ns.load(std::memory_order_relaxed) / decoded, 1);
  const uint64_t chunk_ns = has_function_workers() ? kAskedChunkNs : kChunkNs;
  return std::clamp<uint64_t>(
      std::min(chunk_ns / row_ns,
               std::max(part_of_step_, kChunkWorthNs / row_ns)),
      1, most);
}

std::optional<RemoteRows::Ask> Job::NextAsk() {
  constexpr double kRanksWait = 0.02;  // of the time
  RemoteRows::Wanted wanted;
  std::shared_ptr<const Plan> plan;
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok() || delivery_.Closing() || delivery_.Unsettled()) {
      return std::nullopt;
    }
    wanted.ranks_wait = RecentLocked().ranks_wait > kRanksWait;
    if (follows_ranks()) {
      wanted.ranks = delivery_.RanksHere();
    } else {
      wanted.ranks.resize(this->plan().world_size());
      std::iota(wanted.ranks.begin(), wanted.ranks.end(), 0);
    }
    MutexLock weights_lock(&weights_mutex_);
    plan = rows_plan_;
  }
  return remote_->Next(*plan, wanted);
}

void Job::TickRemote() {
  // Relaxed, both: an estimate.
  remote_->Tick(
      uint64_t{2} * layout_.slots_per_lane * layout_.plan.global_batch(),
      {counters_.decoded.load(std::memory_order_relaxed),
       counters_.decode_ns.load(std::memory_order_relaxed), workers_});
}

Claim Job::ClaimRows(std::optional<uint32_t> node) {
  MutexLock lock(&mutex_);
  OpenBatch* batch = failure_.ok() ? delivery_.Claimable(node) : nullptr;
  if (batch == nullptr) {
    on_work_(false);
    return {};
  }
  Claim claim;
  claim.batch = batch;
  claim.slot = delivery_.SlotToFill(*batch, node);
  claim.local = delivery_.IsLocal(*batch, node);
  const BatchRows unclaimed = batch->Unclaimed();
  claim.begin = unclaimed.begin;
  uint64_t end = unclaimed.begin + ChunkRowsNow();
  if (dataset_->mixes_pairs()) {
    // One worker makes both rows of a pair.
    const uint64_t row = batch->rows.first_row + end;
    end += (kPairedRows - row % kPairedRows) % kPairedRows;
  }
  claim.end = std::min(end, unclaimed.end);
  {
    MutexLock weights_lock(&weights_mutex_);
    claim.plan = rows_plan_;
  }
  batch->Claim(claim.end);
  const uint64_t claimed = FirstPosition(claim) + claim.end - claim.begin;
  if (look_ahead_ != nullptr) look_ahead_->Claimed(claimed);
  if (remote_ != nullptr) remote_->Claimed(claimed);
  // No worker is to be woken in vain.
  if (delivery_.Claimable() == nullptr) on_work_(false);
  return claim;
}

// Counts what a batch takes beyond the room that its slot had.
void Job::CountRoom(const Claim& claim) {
  const Feature& feature = dataset_->element_spec()[0];
  uint64_t& had = batch_bytes_[claim.slot];
  const uint64_t used = feature.BytesUsed(0, segment_->feature(claim.slot, 0));
  if (used <= had) return;
  const Status status = memory_.Grow(used - std::exchange(had, used));
  if (!status.ok()) Fail(status.Prepend("a batch larger than the others"));
}

// Copies rows to the other nodes of a broadcast while they are in the caches.
void Job::CopyRows(const Claim& claim) {
  const ElementSpec& element = dataset_->element_spec(claim.batch->rows.part);
  const SlotRows rows = segment_->rows(claim.slot, element);
  for (uint32_t copy = 0; copy < layout_.copies; ++copy) {
    const uint32_t to = SlotOfCopy(*claim.batch, copy);
    if (to == claim.slot) continue;
    rows.Copy(claim.begin, claim.end, segment_->rows(to, element));
  }
}

void Job::Assemble(OpenBatch* batch) const {
  const ElementSpec& element = dataset_->element_spec(batch->rows.part);
  for (uint32_t copy = 0; copy < layout_.copies; ++copy) {
    penstock::Assemble(segment_->rows(SlotOfCopy(*batch, copy), element),
                       keep_shape_, batch);
  }
}

// In the plan.
uint64_t Job::FirstPosition(const Claim& claim) const {
  const Plan::RankBatch& rows = claim.batch->rows;
  return rows.epoch * plan().rows_per_epoch() + rows.first_row + claim.begin;
}

void Job::FinishRows(const Claim& claim) {
  if (look_ahead_ != nullptr) {
    const uint64_t first = FirstPosition(claim);
    look_ahead_->Made(first, first + claim.end - claim.begin);
  }
  const bool measured = this->measured();
  std::chrono::steady_clock::time_point then;
  const auto note = [&](uint32_t part) {
    if (!measured) return;
    const auto now = std::chrono::steady_clock::now();
    CountPart(part, static_cast<uint64_t>(
                        std::chrono::nanoseconds(now - then).count()));
    then = now;
  };
  if (measured) then = std::chrono::steady_clock::now();
  if (dataset_->of_batches()) CountRoom(claim);
  if (layout_.copies > 1 && !Cancelled()) CopyRows(claim);
  note(kAssembling);
  OpenBatch* const batch = claim.batch;
  const uint64_t rows = claim.end - claim.begin;
  // Relaxed: shown by `penstock status`, nothing depends on it.
  const uint64_t rows_done =
      counters_.rows.fetch_add(rows, std::memory_order_relaxed) + rows;
  FailIfNothingIsReadable(rows_done);
  MutexLock lock(&mutex_);
  note(kPublishing);
  if (!batch->abandoned && !batch->broken &&
      batch->finished + rows == batch->rows.rows) {
    if (AssemblingCopies(*batch)) {
      // Without the lock, as it may be the whole slot. Until its last rows
      // count as finished, the slot is given to nobody else, whatever happens.
      mutex_.Unlock();
      Assemble(batch);
      mutex_.Lock();
    } else {
      Assemble(batch);
    }
    note(kAssembling);
  }
  batch->finished += rows;
  if (batch->done() && (!batch->broken || batch->abandoned)) {
    delivery_.Filled(batch);
    AdvanceLocked();
  }
  note(kPublishing);
}

void Job::GiveBack(const Claim& rows) {
  OpenBatch* const batch = rows.batch;
  MutexLock lock(&mutex_);
  delivery_.GiveBack(batch, {rows.begin, rows.end});
  if (batch->done()) {  // nobody will get it, and no worker has rows of it
    delivery_.Filled(batch);
    AdvanceLocked();
  } else if (failure_.ok() && !batch->abandoned) {
    on_work_(true);
  }
}

void Job::CountParts(const std::vector<uint64_t>& ns, uint64_t rows) {
  for (size_t i = 0; i < ns.size() && i < part_ns_.size(); ++i) {
    if (ns[i] > 0) CountPart(static_cast<uint32_t>(i), ns[i]);
  }
  measured_rows_.fetch_add(rows, std::memory_order_relaxed);  // shown
}

void Job::Measure(double seconds) {
  MutexLock lock(&mutex_);
  measured_until_ = std::max(
      measured_until_, std::chrono::steady_clock::now() +
                           std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::duration<double>(seconds)));
  measured_.store(true, std::memory_order_relaxed);
}

// A trainer must not run through its epochs without a single row.
void Job::FailIfNothingIsReadable(uint64_t rows_done) {
  if (rows_done < layout_.plan.rows_per_epoch()) return;
  const uint64_t samples =
      dataset_->packing == nullptr
          ? rows_done
          : counters_.documents.load(std::memory_order_relaxed);
  if (counters_.rows_skipped.load(std::memory_order_relaxed) < samples) return;
  std::string last;
  {
    MutexLock lock(&mutex_);
    last = last_error_;
  }
  Fail(
      DataLossError("job '{}': all of the first {} samples were skipped; the "
                    "last: {}",
                    key_.name, samples, last));
}

bool Job::GivenUp(const OpenBatch* batch) const {
  MutexLock lock(&mutex_);
  return batch->abandoned;
}

void Job::CountFailedRow(StatusCode code) {
  std::atomic<uint64_t>& count =
      code == StatusCode::kDataLoss   ? counters_.rows_damaged
      : code == StatusCode::kNotFound ? counters_.rows_missing
                                      : counters_.rows_of_other_errors;
  count.fetch_add(1, std::memory_order_relaxed);  // shown, nothing more
}

void Job::LeaveOut(OpenBatch* batch, uint64_t row, uint64_t record,
                   const Status& error) {
  CountLeftOut(record, error);
  MutexLock lock(&mutex_);
  batch->left_out.push_back(row);
}

void Job::CountLeftOut(uint64_t record, const Status& error) {
  CountFailedRow(error.code());
  const uint64_t count =
      counters_.rows_skipped.fetch_add(1, std::memory_order_relaxed) + 1;
  Log<"sample-skipped">(key_, error.message(), count);
  MutexLock lock(&mutex_);
  NoteFailureLocked(record, error.message());
}

void Job::NoteFailureLocked(uint64_t record, const std::string& message) {
  constexpr size_t kFirst = 5;
  last_error_ = message;
  if (failures_.size() == kFailuresKept) {
    failures_.pop_front();
    ++failures_forgotten_;
  }
  failures_.push_back({record, ShortError(message)});
  if (first_errors_.size() < kFirst) {
    first_errors_.push_back(failures_.back().message);
  }
}

nlohmann::json Job::TakeFailuresJson() {
  MutexLock lock(&mutex_);
  nlohmann::json taken = {{"failures", nlohmann::json::array()},
                          {"forgotten", std::exchange(failures_forgotten_, 0)}};
  while (!failures_.empty() && taken["failures"].size() < kFailuresAtOnce) {
    Failure& oldest = failures_.front();
    taken["failures"].push_back({oldest.record, std::move(oldest.message)});
    failures_.pop_front();
  }
  taken["more"] = !failures_.empty();
  return taken;
}

void Job::CountSubstitute(uint64_t record, const Status& error) {
  CountFailedRow(error.code());
  const uint64_t count =
      counters_.rows_substituted.fetch_add(1, std::memory_order_relaxed) + 1;
  Log<"sample-substituted">(key_, error.message(), count);
  MutexLock lock(&mutex_);
  NoteFailureLocked(record, error.message());
}

void Job::Fail(const Status& status) {
  MutexLock lock(&mutex_);
  FailLocked(status);
}

void Job::FailBatch(OpenBatch* batch, const Status& status) {
  MutexLock lock(&mutex_);
  if (!failure_.ok() || batch->abandoned) return;
  if (!std::exchange(batch->broken, true)) {
    broken_.insert_or_assign(batch->slot, status);
  }
  AdvanceLocked();
}

void Job::FailIfBrokenIsNextLocked() {
  for (const auto& [slot, status] : broken_) {
    if (!delivery_.IsNextOfLane(slot) || !delivery_.IsBroken(slot)) continue;
    FailLocked(status);
    return;
  }
}

void Job::FailLocked(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  Log<"job-failed">(key_, status.message());
  pointless_.store(true, std::memory_order_relaxed);
  last_error_ = status.message();
  delivery_.Close(Closed::kFailed, status);
  on_freed_();
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
  NoteSettledLocked();
  return !moving_;
}

// A bank is moved for the first rank that attaches to it.
void Job::NoteSettledLocked() {
  settled_.store(!moving_ && banks_to_move_.empty() && delivery_.AllCame(),
                 std::memory_order_relaxed);
}

}  // namespace penstock
