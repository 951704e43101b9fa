// The input is what a hostile rank does with its cursor page while the broker
// and an honest rank work on the same job: what the page says at the beginning,
// then words written into it between the steps of all others, takes and
// releases as an honest rank does them, deaths, evictions and new processes
// that bring a position and a page of a former broker instance.
//
// The job is run as Job::AdvanceLocked runs it. Nothing the hostile rank does
// may show at the honest one: it gets its batches in order, in slots that stay
// as they are until it releases them, and then the end of the data.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "broker/delivery/delivery.h"
#include "broker/plan/plan.h"
#include "broker/recovery/restore.h"
#include "common/layout.h"
#include "common/ring.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint32_t kHonest = 0;
constexpr uint32_t kHostile = 1;
constexpr uint32_t kSeats = 4;
constexpr size_t kHold = 2;
constexpr uint64_t kSlotsOffset = 1 << 20;
constexpr uint64_t kSlotStride = 4096;
constexpr size_t kOpsMax = 128;

constexpr DeliveryMode kModes[] = {DeliveryMode::kSplit, DeliveryMode::kDynamic,
                                   DeliveryMode::kBroadcast};

void RequireOk(const Status& status, const char* what) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  Require(status.ok(), what);
}

// A rank's process.
struct Process {
  std::shared_ptr<CursorPage> page;
  uint32_t rank = 0;
  uint32_t seat = 0;
  bool attached = false;  // and not gone
  std::deque<Cell> held;
};

class Course : public DeliveryRecord {
 public:
  explicit Course(Input input) : input_(input) {}
  void Run();

  void Completed(uint64_t position, uint64_t) override {
    completed_.insert(position);
  }
  void HandedOver(uint32_t, uint64_t) override {}
  void Opened(uint64_t) override {}
  void PhaseBegun(const FormerPhase&) override {}

 private:
  bool MakeDelivery();
  void BeginAsFormer();
  void AttachHonest();
  void AttachHostile();
  void Op();
  void Advance();
  bool Claim();
  void Finish(size_t claim);
  void FillAll();
  bool TakeHonest();
  void ReleaseHonest();
  void CheckCell(const Cell& cell);
  void CheckSlots();
  void Write(Process* process);
  uint64_t Value(const Process& process);
  uint64_t SlotOf(const Cell& cell) const;

  Input input_;
  Delivery::Shape shape_;
  std::optional<Plan> plan_;
  std::unique_ptr<Ring[]> rings_ = std::make_unique<Ring[]>(kSeats);
  std::optional<Delivery> delivery_;
  bool broken_ = false;  // the job is over: lag says fail

  struct SlotContent {
    uint64_t position = 0;
    uint64_t version = 0;  // changes when anything of it is made
  };
  std::vector<SlotContent> slots_;
  struct Making {
    OpenBatch* batch;
    uint64_t rows;
  };
  std::vector<Making> makings_;  // claimed by a worker

  Process honest_;
  std::deque<uint64_t> versions_;  // of the slots it holds
  bool ended_ = false;             // it was told so
  uint64_t next_step_ = 0;         // of what it gets in order
  std::set<uint64_t> got_;         // dynamic: not marked redelivered
  std::vector<Process> hostile_;
  std::set<uint64_t> completed_;
  // The position everything begins at is the hostile rank's word.
  bool misled_ = false;
  bool begun_ = false;  // both are attached
  bool drained_ = false;
};

bool Course::MakeDelivery() {
  const uint8_t mode = input_.Byte();
  const uint8_t flags = input_.Byte();
  const uint8_t size = input_.Byte();
  PlanSpec spec;
  spec.batch.size = 1 + (size >> 6);
  spec.batch.last = static_cast<LastBatch>((flags >> 4) % 3);
  spec.epochs = 1 + (flags >> 6) % 2;
  DeliveryOptions& options = shape_.options;
  options.mode = kModes[mode % 3];
  options.lag = static_cast<Lag>((flags >> 2) % 3);
  options.window = 2;
  const bool split = options.mode == DeliveryMode::kSplit;
  const bool broadcast = options.mode == DeliveryMode::kBroadcast;
  // A broadcast that waits for a dead consumer does not go on.
  options.on_rank_death =
      broadcast || (flags & 1) != 0 ? OnRankDeath::kShrink : OnRankDeath::kWait;
  shape_.world_size = split ? 2 : 1;
  shape_.consumers_max = 2;
  shape_.start_with = 1 + (flags >> 1) % 2;
  shape_.lanes = split ? 2 : 1;
  switch (options.mode) {
    case DeliveryMode::kDynamic:
      shape_.leases = 1 + kHold;
      shape_.slots_per_lane = 2 + 2 * shape_.leases;
      break;
    case DeliveryMode::kBroadcast:
      shape_.leases = options.window + kHold;
      shape_.slots_per_lane = options.lag == Lag::kSkip
                                  ? 2 * shape_.leases
                                  : options.window + 2 * kHold;
      break;
    default:
      shape_.leases = shape_.slots_per_lane = 2 + kHold;
  }
  shape_.rows_max = 4;
  shape_.slots_offset = kSlotsOffset;
  shape_.slot_stride = kSlotStride;
  auto plan = Plan::Make(spec, 1 + size % 64, shape_.world_size);
  if (!plan.ok()) return false;
  const bool owes = (mode / 3) % 2 != 0 &&
                    plan->rows_per_epoch() > 2 * spec.batch.size &&
                    !(broadcast && options.lag == Lag::kSkip);
  if (owes) {
    plan = plan->From({2 * spec.batch.size, {{0, spec.batch.size, true}}},
                      shape_.world_size);
    Require(plan.ok(), "the plan begins with a range that is owed");
  }
  plan_ = *plan;
  next_step_ = plan_->start().owed.size();
  std::vector<Ring*> rings;
  for (uint32_t seat = 0; seat < kSeats; ++seat) rings.push_back(&rings_[seat]);
  delivery_.emplace(shape_, *std::move(plan), std::move(rings), this);
  delivery_->SetUsableSlots(shape_.slots_per_lane);
  slots_.resize(shape_.lanes * shape_.slots_per_lane);
  return true;
}

uint64_t Course::Value(const Process& process) {
  const uint8_t form = input_.Byte();
  if (form < 192) return form;
  if (form < 224) {
    // Near what an honest rank would write.
    uint64_t published = 0;
    if (process.attached) {
      for (const RingCell& cell : rings_[process.seat].cells) {
        published = std::max(published, cell.generation.load());
      }
    }
    return published + form - 208;
  }
  if (form < 240) return input_.Number(8);
  if (form < 248) return UINT64_MAX - (form - 240);
  return plan_->PositionOf(form - 248);
}

void Course::Write(Process* process) {
  CursorPage& page = *process->page;
  const uint8_t field = input_.Byte();
  if (field == 3) {
    const size_t at = input_.Number(2) % sizeof(CursorPage);
    reinterpret_cast<uint8_t*>(&page)[at] = input_.Byte();
    return;
  }
  const uint64_t value = Value(*process);
  if (field == 0) return page.taken.store(value);
  if (field == 1) return page.position.store(value);
  if (field == 2) return page.waiting.store(static_cast<uint32_t>(value));
  const int number = (field - 4) / 3;
  LeaseRecord& lease = page.leases[number];
  Atomic<uint64_t>* const fields[] = {&page.released[number], &lease.generation,
                                      &lease.step};
  fields[(field - 4) % 3]->store(value);
}

// What a page of a former broker instance says is all that is known of it.
void Course::BeginAsFormer() {
  Process former;
  former.page = std::make_shared<CursorPage>();
  const uint8_t how = input_.Byte();
  for (uint8_t writes = input_.Byte() % 32; writes > 0; --writes) {
    Write(&former);
  }
  (void)FormerPosition(*former.page, *plan_);
  (void)Supersedes(*former.page, *former.page, *plan_);
  const std::vector<FormerProcess> processes = {{kHostile, 0, former.page.get(),
                                                 (how & 1) != 0, (how & 4) != 0,
                                                 (how & 2) != 0}};
  if (shape_.options.mode == DeliveryMode::kSplit) {
    for (const Delivery::FormerConsumer& rank :
         RestoreRanks(processes, {}, *plan_)) {
      Require(rank.rank == kHostile, "a page speaks for its own rank");
      delivery_->RestoreRank(rank);
    }
    return;
  }
  misled_ = true;
  FormerProgress progress;
  progress.options = shape_.options;
  progress.low = plan_->PositionOf(how >> 6);
  progress.opened = plan_->PositionOf(how >> 2 & 15);
  std::map<uint32_t, ReconnectedRank> reconnected;
  if ((how & 2) != 0) reconnected[kHostile] = {former.page.get(), how};
  delivery_->BeginRecovery();
  Require(delivery_->Open() == nullptr, "nothing is opened before");
  delivery_->TakeOverSteps(
      GatherSteps(progress, *plan_, processes, reconnected));
}

void Course::AttachHonest() {
  honest_.page = std::make_shared<CursorPage>();
  Delivery::Joining joining;
  joining.rank = kHonest;
  joining.cursor = honest_.page;
  const auto joined = delivery_->Attach(std::move(joining));
  Require(joined.ok(), "the honest rank attaches");
  const uint64_t begin = plan_->PositionOf(next_step_);
  // In dynamic it gets what is owed from before, too.
  const bool before =
      shape_.options.mode == DeliveryMode::kDynamic && joined->position < begin;
  Require(misled_ || before || joined->position == begin,
          "and begins at the beginning");
  honest_.seat = joined->seat;
  honest_.attached = true;
}

void Course::AttachHostile() {
  const uint8_t how = input_.Byte();
  Process process;
  process.page = std::make_shared<CursorPage>();
  for (uint8_t writes = input_.Byte() % 16; writes > 0; --writes) {
    Write(&process);
  }
  Delivery::Joining joining;
  joining.rank = kHostile;
  if (begun_ && (how & 1) != 0) joining.rank = input_.Byte() % 4;
  if (begun_ && (how & 16) != 0 &&
      shape_.options.mode == DeliveryMode::kBroadcast) {
    joining.rank = Delivery::kAnyRank;
  }
  joining.cursor = process.page;
  joining.full_epoch = (how & 2) != 0;
  if ((how & 4) != 0) {
    joining.position = std::min<uint64_t>(Value(process), Plan::kTotalRowsMax);
    joining.phase = input_.Byte();
    joining.owed = {input_.Byte()};
    if ((how & 8) != 0) {
      joining.former = hostile_.empty() ? process.page : hostile_.back().page;
    }
  }
  const auto joined = delivery_->Attach(std::move(joining));
  if (!joined.ok()) return;
  if (joined->rank == kHonest) {
    Require(shape_.options.mode == DeliveryMode::kBroadcast &&
                shape_.options.lag == Lag::kFail,
            "a rank is one process");
    broken_ = true;  // it fell behind and was put out
  }
  Require(joined->seat < kSeats, "a seat is one of the rings");
  process.rank = joined->rank;
  process.seat = joined->seat;
  process.attached = true;
  hostile_.push_back(std::move(process));
}

uint64_t Course::SlotOf(const Cell& cell) const {
  Require(cell.slot_offset >= kSlotsOffset &&
              (cell.slot_offset - kSlotsOffset) % kSlotStride == 0,
          "a cell names a slot");
  const uint64_t slot = (cell.slot_offset - kSlotsOffset) / kSlotStride;
  Require(slot < slots_.size(), "one that is there");
  return slot;
}

void Course::CheckSlots() {
  const Delivery::SlotCounts counts = delivery_->CountSlots();
  Require(counts.free + counts.filling + counts.ready + counts.out +
                  counts.quarantined ==
              slots_.size(),
          "every slot is counted once");
  for (const Delivery::RankStatus& rank : delivery_->Ranks()) {
    // Its number is another's once it was put out.
    if (broken_ || rank.rank != kHonest || !rank.seat) continue;
    Require(rank.held == honest_.held.size(), "what it holds is known");
  }
  if (misled_) return;
  Require(plan_->From(delivery_->State(), shape_.world_size).ok(),
          "a job can begin at the state");
}

void Course::Advance() {
  if (broken_) return;
  // Whoever writes the pages here sends no wakes.
  delivery_->HeardAll();
  do {
    delivery_->Advance();
    while (OpenBatch* share = delivery_->Open()) {
      if (share->rows.rows > 0) continue;
      slots_[share->slot] = {share->rows.position,
                             slots_[share->slot].version + 1};
      delivery_->Filled(share);
    }
    for (const uint32_t rank : delivery_->TakeCorrupt()) {
      Require(rank != kHonest, "the honest rank is not corrupt");
      RequireOk(delivery_->Evict(rank, "impossible values"),
                "a corrupt rank is evicted");
    }
    Require(delivery_->TakeCorrupt().empty(), "a corrupt rank is evicted");
  } while (delivery_->MustAdvance());
  const std::string error = delivery_->IndexError();
  Require(error.empty(), error.c_str());
  for (const Delivery::RanksChanged& change : delivery_->TakeRanksChanged()) {
    delivery_->RanksAnnounced(change.seat, change.phase);
  }
}

bool Course::Claim() {
  OpenBatch* share = delivery_->Claimable();
  if (share == nullptr) return false;
  Require(share->slot < slots_.size(), "a share is made in a slot");
  ++slots_[share->slot].version;
  slots_[share->slot].position = UINT64_MAX;
  const uint64_t rows = (share->rows.rows - share->claimed + 1) / 2;
  share->claimed += rows;
  makings_.push_back({share, rows});
  return true;
}

void Course::Finish(size_t claim) {
  const Making making = makings_[claim];
  makings_.erase(makings_.begin() + static_cast<ptrdiff_t>(claim));
  OpenBatch* const share = making.batch;
  ++slots_[share->slot].version;
  share->finished += making.rows;
  if (!share->done()) return;
  if (!share->abandoned) {
    slots_[share->slot].position = share->rows.position;
    share->valid_rows = share->rows.rows;
    share->shape_rows = share->rows.shape_rows;
  }
  delivery_->Filled(share);
  Advance();
}

void Course::FillAll() {
  while (!makings_.empty()) Finish(0);
  while (Claim()) {
    while (!makings_.empty()) Finish(0);
  }
}

// Rows that are left out and kRedelivered apart: the next one in order.
void Course::CheckCell(const Cell& cell) {
  Require(cell.valid_rows <= cell.rows, "no more rows than there is room for");
  const bool extra = (cell.flags & kExtra) != 0;
  if (misled_) return;
  if (shape_.options.mode == DeliveryMode::kDynamic) {
    Require(
        (cell.flags & kRedelivered) != 0 || got_.insert(cell.position).second,
        "a batch comes again only marked as redelivered");
    return;
  }
  if (extra) return;
  next_step_ += cell.skipped;
  Require(cell.skipped == 0 || shape_.options.lag == Lag::kSkip,
          "nothing is skipped that may not be");
  Require(!plan_->total_steps() || next_step_ < *plan_->total_steps(),
          "no more steps than there are");
  Require(cell.position == plan_->PositionOf(next_step_), "in order");
  ++next_step_;
}

bool Course::TakeHonest() {
  if (ended_ || honest_.held.size() == kHold) return false;
  Ring& ring = rings_[honest_.seat];
  Cell cell;
  switch (TryTake(ring, *honest_.page, &cell)) {
    case TakeResult::kTaken: {
      const SlotContent& slot = slots_[SlotOf(cell)];
      Require(slot.position == cell.position, "the slot has the batch");
      CheckCell(cell);
      honest_.held.push_back(cell);
      versions_.push_back(slot.version);
      return true;
    }
    case TakeResult::kEmpty:
      return false;
    case TakeResult::kClosed:
      ended_ = true;
      broken_ |= ring.closed.load() != static_cast<uint32_t>(Closed::kFinished);
      Require(!broken_ || (shape_.options.mode == DeliveryMode::kBroadcast &&
                           shape_.options.lag == Lag::kFail),
              "it gets only the end");
      return true;
    case TakeResult::kCorrupt:
      Require(false, "its ring is sound");
  }
  return false;
}

void Course::ReleaseHonest() {
  if (honest_.held.empty()) return;
  const Cell cell = honest_.held.front();
  Require(slots_[SlotOf(cell)].version == versions_.front(),
          "no worker writes into a held slot");
  (void)Release(rings_[honest_.seat], *honest_.page, cell.lease,
                cell.generation);
  honest_.held.pop_front();
  versions_.pop_front();
}

void Course::Op() {
  const uint8_t op = input_.Byte();
  const uint8_t which = op >> 4;
  Process* const process =
      hostile_.empty() ? nullptr : &hostile_[which % hostile_.size()];
  const bool attached = process != nullptr && process->attached;
  switch (op & 15) {
    case 0:
    case 1:
      if (process != nullptr) Write(process);
      break;
    case 2: {
      Cell cell;
      if (attached && TryTake(rings_[process->seat], *process->page, &cell) ==
                          TakeResult::kTaken) {
        process->held.push_back(cell);
      }
      break;
    }
    case 3:
      if (attached && !process->held.empty()) {
        const Cell cell = process->held.front();
        process->held.pop_front();
        (void)Release(rings_[process->seat], *process->page, cell.lease,
                      cell.generation);
      }
      break;
    case 4:
      (void)TakeHonest();
      break;
    case 5:
      ReleaseHonest();
      break;
    case 6:
    case 7:
      Advance();
      CheckSlots();
      break;
    case 8:
      (void)Claim();
      break;
    case 9:
      if (!makings_.empty()) Finish(which % makings_.size());
      break;
    case 10:
      FillAll();
      break;
    case 11:
      if (attached) {
        process->attached = false;
        const Status status = which >= 8 ? delivery_->Leave(process->seat)
                                         : delivery_->Died(process->seat);
        RequireOk(status, "a death is no failure of the job");
        Advance();
      }
      break;
    case 12:
      if (attached) {
        const Status status = delivery_->Evict(process->rank, "fuzz");
        if (status.code() != StatusCode::kNotFound) {
          RequireOk(status, "an eviction is no failure of the job");
        }
      }
      break;
    case 13:
      if (hostile_.size() < 8) AttachHostile();
      break;
    case 14:
      if (which == 0) {
        delivery_->Drain();
        drained_ = true;
      } else {
        (void)delivery_->Missing();
        (void)delivery_->OwesPredecessor(which % 3);
      }
      break;
    case 15:
      if (process != nullptr) {
        (void)FormerBatches(*process->page);
        (void)FormerPosition(*process->page, *plan_);
      }
      break;
  }
}

void Course::Run() {
  if (!MakeDelivery()) return;
  if (input_.Byte() % 4 == 0) BeginAsFormer();
  const bool honest_first = input_.Byte() % 2 == 0;
  if (honest_first) AttachHonest();
  AttachHostile();
  if (!honest_first) AttachHonest();
  // One that reconnects behind the lane is refused, and may be waited for.
  if (hostile_.empty()) return;
  Advance();
  begun_ = true;
  for (size_t ops = 0; !input_.empty() && ops < kOpsMax; ++ops) Op();

  // The hostile rank dies, and the honest one goes on to the end.
  for (Process& process : hostile_) {
    if (!process.attached) continue;
    if (process.seat % 2 == 0) (void)delivery_->Evict(process.rank, "fuzz");
    RequireOk(delivery_->Died(process.seat),
              "a death is no failure of the job");
  }
  Advance();
  for (int still = 0; !ended_; ++still) {
    Require(still < 4, "the honest rank continues");
    FillAll();
    Advance();
    ReleaseHonest();
    while (TakeHonest()) {
      still = 0;
      if (honest_.held.size() == kHold) ReleaseHonest();
    }
  }
  while (!honest_.held.empty()) ReleaseHonest();
  Advance();
  CheckSlots();
  FillAll();
  if (broken_) return;
  Require(delivery_->Leave(honest_.seat).ok(), "it leaves");
  Require(!delivery_->AnySeatTaken(), "no rank is left");
  const Delivery::SlotCounts counts = delivery_->CountSlots();
  Require(counts.quarantined == 0, "no rank can read a slot");
  // What a gone rank had waits for a replacement, but for a broadcast's.
  Require(shape_.options.mode != DeliveryMode::kBroadcast || counts.out == 0,
          "no rank holds a slot");
  if (misled_ || drained_) return;
  if (shape_.options.mode == DeliveryMode::kDynamic) {
    uint64_t completed = 0;
    for (uint64_t step = 0; step < *plan_->total_steps(); ++step) {
      completed += completed_.count(plan_->PositionOf(step));
    }
    // What a rank held when all were told of the end waits for a replacement.
    Require(completed + counts.ready + counts.out >= *plan_->total_steps(),
            "every batch was completed by somebody");
  } else if (shape_.options.lag != Lag::kSkip || shape_.lanes == 2) {
    Require(next_step_ == *plan_->total_steps(), "it got all of its batches");
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Course(penstock::Input(data, size)).Run();
  return 0;
}
