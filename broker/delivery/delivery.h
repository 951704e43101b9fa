// Who gets which batch: the four delivery modes, and what happens to batches
// when a rank leaves, dies or is evicted. No bytes of batches are touched here.
//
// Who runs it: any thread of the broker that holds the job's mutex. Everything
// it shares with a rank goes through Feed; the simulation in tests/ runs this
// very code on atomics of its own.
//
// Steps of a plan are opened in the slots of a *lane*, in order, and leave it
// in that order:
//   split      a lane for each local rank: its shares
//   dynamic    one lane: each batch to the next rank that has none untaken
//   broadcast  one lane: each batch to every consumer
// (independent is split with a world of one, a job for each consumer.)
//
// A slot's life: kFree -> Open -> kFilling (workers make its rows) -> Filled ->
// kReady -> (its turn) kOut, held by leases of feeds and backlogs of consumers;
// without holders -> kFree.
//
// A *consumer* is a rank number; the process that attached as it has a Feed, in
// a seat (a ring of the segment). A consumer whose process is gone keeps its
// place in the lane and a backlog: what its process had not released.
//
// Invariants
//   D1  Every opened step is in a slot until its batch was released by a rank
//       or given up with the consumer it was for; so none is lost.
//   D2  In split and dynamic a slot has one holder that may still deliver it;
//       further holders are evicted processes that may still read it.
//   D3  A batch that any process may have returned to its trainer is delivered
//       again only marked redelivered.
//   D4  A slot is filled only without holders: nobody can read it.
//
// Nothing here walks all ranks, lanes or slots for one batch, but a broadcast
// for each of its batches. What has to be looked at is kept in sets instead:
//   D5  What a rank does is seen when it matters. Every release comes with a
//       wake: Attach asks for it before the rank has the ring (E5). A take, or
//       going to sleep, comes with one where delivery waits for it: the feed
//       was asked and then looked at once more (E8), and found still busy. So a
//       page is read after its wake (Heard), when a batch is to go to its rank,
//       and, where no wake can come (Mute), on every Advance. (Job reads all
//       pages with each tick: a process gone wild sends no wake.)
//   D6  After Advance, and Open until it returns nullptr:
//       openable_   has no lane; any other lane has no free slot, nobody who
//                   is given batches, or no step to open;
//       touched_    has no consumer; any other has no batch that it could be
//                   given now, and was told of the end if it is there;
//       claimable_  has every share with rows to claim, and perhaps others;
//       hungry_     (dynamic) has every rank that may have room for a batch:
//                   any other has no free lease, or an untaken batch and was
//                   asked for takes (D5);
//       unsure_, without_ (broadcast) have every consumer that may lack room
//                   for the next batch: one in without_ lacks it and, if it is
//                   attached, was asked for takes (D5).
//       IndexError recomputes what of this is private to the broker.
#ifndef BROKER_DELIVERY_DELIVERY_H_
#define BROKER_DELIVERY_DELIVERY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "broker/delivery/feed.h"
#include "broker/plan/plan.h"
#include "common/delivery_options.h"
#include "common/layout.h"
#include "common/status.h"

namespace penstock {

// What the page of a rank tells of the batches it took under its leases: the
// last of each. Untrusted.
struct FormerBatch {
  uint64_t step = 0;  // StepId
  bool released = false;
};
std::vector<FormerBatch> FormerBatches(const CursorPage& page);
// Where that rank goes on; global_batch: of the plan.
uint64_t FormerPosition(const CursorPage& page,
                        uint64_t global_batch = UINT64_MAX);

// One step's rows for one lane, being made in a slot.
struct OpenBatch {
  uint64_t step = 0;               // of the lane, from 0: its order
  Plan::RankBatch rows;            // which plan rows
  uint32_t slot = 0;               // in the segment
  uint64_t claimed = 0;            // rows handed to workers
  uint64_t finished = 0;           // rows done by them
  uint64_t valid_rows = 0;         // set when it is assembled
  uint64_t shape_rows = 0;         // and padding
  bool abandoned = false;          // nobody will take it
  std::vector<uint64_t> left_out;  // rows that on_error: skip leaves out

  bool done() const { return finished == (abandoned ? claimed : rows.rows); }
};

// on_rank_death: shrink: from a step on the ranks are others.
struct FormerPhase {
  std::vector<uint32_t> ranks;
  uint64_t boundary = 0;  // the step of the phase before at which it begins
  PlanStart start;
};

// Told of batches that must not be forgotten when the broker dies: those that
// positions of ranks do not tell. Called with the job's mutex held.
class DeliveryRecord {
 public:
  virtual ~DeliveryRecord() = default;
  // dynamic: the step at position was released; next: where the one behind it
  // begins.
  virtual void Completed(uint64_t position, uint64_t next) = 0;
  // split, broadcast: rank released what it got outside the order of positions:
  // a batch of its predecessor, or one that was owed. step: StepId.
  virtual void HandedOver(uint32_t rank, uint64_t step) = 0;
  // dynamic: no step from position on is opened before the next call.
  virtual void Opened(uint64_t position) = 0;
  // split: before anything of it is opened.
  virtual void PhaseBegun(const FormerPhase& phase) = 0;
};

// Of a job's rows: no rank is attached, its ranks have batches, one that is
// given batches stands beside an empty ring.
enum class Demand : uint8_t { kNobody, kAhead, kNow };

class Delivery {
 public:
  struct Shape {
    DeliveryOptions options;
    uint32_t world_size = 1;     // split: ranks of the whole job
    uint32_t consumers_max = 1;  // local ranks
    // broadcast: the first batch waits for so many, who miss nothing.
    uint32_t start_with = 1;
    uint32_t lanes = 1;
    uint32_t slots_per_lane = 1;
    uint32_t leases = 1;        // batches a rank may have outstanding
    uint64_t rows_max = 0;      // of a slot
    uint64_t slots_offset = 0;  // in the segment
    uint64_t slot_stride = 0;
    uint32_t bank_slots = 0;  // see layout.h
    // broadcast: of every slot, a bank each. Copy c of slot s is slot
    // c * lanes * slots_per_lane + s of the segment.
    uint32_t copies = 1;
    // NUMA nodes: of each bank, in split each lane is one; that have workers.
    // Empty: the machine has one node.
    std::vector<uint32_t> bank_nodes;
    std::vector<uint32_t> worker_nodes;
  };
  // rings: seats; they and record outlive this.
  Delivery(const Shape& shape, Plan plan, std::vector<Ring*> rings,
           DeliveryRecord* record = nullptr);

  // ---- ranks
  // ------------------------------------------------------------------

  // Joining::rank of a consumer that takes any free number (broadcast).
  static constexpr uint32_t kAnyRank = UINT32_MAX;
  struct Joining {
    uint32_t rank = 0;
    std::shared_ptr<const CursorPage> cursor;
    int wake_socket = -1;
    bool full_epoch = false;  // broadcast: its epochs begin where it joins
    // Of one that reconnects: where that was.
    std::optional<uint64_t> epochs_from;
    // It reconnects, after another life of the broker: it goes on here and not
    // at the start.
    std::optional<uint64_t> position;
    // The phase it knows of, and by position what of the steps that were owed
    // when that began it has not taken.
    uint32_t phase = 0;
    std::vector<uint64_t> owed;
    uint64_t taken = 0;  // batches, in all lives
    // Its page of that life: batches it holds still are nothing to us, but when
    // it dies without releasing them they are made again.
    std::shared_ptr<const CursorPage> former;
    // NUMA, if it is known, and what tells it.
    std::optional<uint32_t> node;
    std::string node_from;
  };
  struct Joined {
    uint32_t rank = 0;
    uint32_t seat = 0;
    uint64_t position = 0;  // of the first batch that is not an extra
    uint32_t backlog = 0;   // batches of its predecessor
    bool replaces = false;
    // Of its first batch: which of how many ranks it is then, and what is left
    // to it of the steps that were owed when the phase began.
    uint32_t phase = 0;
    uint32_t place = 0;
    uint32_t ranks = 0;
    std::vector<RowRange> owed;
    // Its memory was thought to belong on another node than the rank's.
    std::optional<uint32_t> moved_bank;
  };
  // AlreadyExists: the rank is attached. ResourceExhausted: no place for one
  // more. FailedPrecondition: it finished. Aborted: broadcast: it reconnects,
  // and the others went on without it.
  StatusOr<Joined> Attach(Joining joining);

  // The process leaves orderly: what it took counts as released.
  Status Leave(uint32_t seat) { return Gone(seat, true); }
  // It is dead. An error is the job's: on_rank_death says fail, or nobody is
  // left to shrink to.
  Status Died(uint32_t seat) { return Gone(seat, false); }
  // Its feed is closed and its batches go to others, or to its replacement; the
  // slots it may read are quarantined until Died or Leave. NotFound.
  Status Evict(uint32_t rank, const std::string& reason);
  // The socket of a seat is closed by its owner.
  void Mute(uint32_t seat);

  // ---- after a former life, before anybody attaches
  // --------------------------

  Status RestorePhase(const FormerPhase& phase);
  // A rank whose processes are dead, as their pages tell it.
  struct FormerConsumer {
    uint32_t rank = 0;
    uint64_t position = 0;        // where it goes on, whoever will be it
    uint32_t phase = 0;           // the last that it had anything of
    std::vector<uint64_t> again;  // steps that it had and did not release
    std::set<uint64_t> done;      // outside the order of positions
    bool left = false;            // orderly: nobody is waited for
  };
  // split.
  void RestoreRank(const FormerConsumer& former);
  // dynamic, broadcast: nothing is opened until it is known what all ranks had.
  void BeginRecovery() { recovering_ = true; }
  bool gathering() const { return recovering_; }
  // Batches of a predecessor, or of one that anybody had, are not all released.
  bool OwesPredecessor(uint32_t rank) const;
  struct FormerSteps {
    uint64_t position = 0;
    // dynamic: of those before, by position.
    std::vector<uint64_t> completed;
    std::vector<RowRange> again;
    // broadcast: whose place is kept, or who had something of a predecessor;
    // and whether the first batch had been given to anybody.
    std::vector<FormerConsumer> consumers;
    bool started = true;
  };
  void TakeOverSteps(const FormerSteps& former);
  // All of the data were delivered before: who attaches is told the end.
  void PlaceAtEnd();
  // split: nobody is told of the end, and what on_rank_death says of the dead
  // is not done, until it is known of all ranks where they are.
  void DeferEnd() { end_deferred_ = split(); }
  bool withheld() const { return end_deferred_; }
  // It is. not shrink: the places of the dead are kept instead. An error is the
  // job's, as of Died.
  Status FinishRecovery(bool shrink);

  // ---- making
  // -----------------------------------------------------------------

  // As many slots of each lane may be used; the rest is being populated.
  void SetUsableSlots(uint32_t slots);
  // Of a stream: so many rows there are by now; and that no more will come.
  void SetAvailable(uint64_t rows);
  uint64_t available() const { return available_; }
  void EndAt(uint64_t rows);
  // Starts the next share in a free slot; nullptr: nothing to make, or nowhere.
  OpenBatch* Open();
  // The share with rows to claim: of the worker's NUMA node the oldest, else
  // the oldest of all; nullptr: none.
  OpenBatch* Claimable(std::optional<uint32_t> node = std::nullopt);
  // Of each bank, by now.
  const std::vector<uint32_t>& bank_nodes() const { return bank_nodes_; }
  // Whether a worker of this node makes it in memory of its own.
  bool IsLocal(const OpenBatch& batch, std::optional<uint32_t> node) const;
  // The slot of the segment in which it does: the copy that is on its node.
  uint32_t SlotToFill(const OpenBatch& batch,
                      std::optional<uint32_t> node) const;
  uint32_t SegmentSlot(const OpenBatch& batch, uint32_t copy) const {
    return copy * static_cast<uint32_t>(slots_.size()) + batch.slot;
  }
  // All its rows are done (OpenBatch::done).
  void Filled(OpenBatch* batch);

  // ---- handing out
  // ------------------------------------------------------------

  // A wake of this seat came, and was drained before: Advance reads its page.
  void Heard(uint32_t seat) { heard_.insert(seat); }
  // As if all had sent one.
  void HeardAll();
  // Sees what was released, publishes what can be; then there may be more to
  // open.
  void Advance();
  // What was opened needs no worker, or a rank was evicted: Advance is to be
  // called again.
  bool MustAdvance() const {
    return !closed_ && (!heard_.empty() || !touched_.empty());
  }
  // Ranks whose pages were found to say what cannot be, each once. They are to
  // be evicted.
  std::vector<uint32_t> TakeCorrupt();
  // No more shares are opened, and those that no rank needs for this are given
  // up: the ranks take the steps that the furthest of them was given, all the
  // same number, and then the data are over for them.
  void Drain();
  // No more batches, to anybody.
  void Close(Closed why, const std::string& reason);
  // What a rank must be told before its batch that is marked kRanksChanged.
  struct RanksChanged {
    uint32_t seat = 0;
    uint32_t phase = 0;  // as the batch says: Cell::flags
    uint32_t rank = 0;
    uint32_t world_size = 0;
    PlanStart start;
  };
  std::vector<RanksChanged> TakeRanksChanged() {
    return std::exchange(ranks_changed_, {});
  }
  // It was told: also a process that outlives the broker has heard of it. Its
  // batches of that phase are kept until then.
  void RanksTold(uint32_t seat, uint32_t phase);
  // What D6 promises and a walk over everything finds otherwise; "": nothing.
  // For tests. Reads no rank's page.
  std::string IndexError() const;
  // Feeds, lanes and slots that Advance, Open and Claimable looked at. For
  // tests: what a batch costs.
  uint64_t looks() const { return looks_; }

  // ---- questions
  // --------------------------------------------------------------

  // Of the plan it is at now (shrink begins another).
  const Plan& plan() const { return phases_.back().plan; }
  // Where a job that resumes has to begin so that nothing is lost: everything
  // before was released, but for what is owed.
  PlanStart State() const;
  // Of a stream: all rows from position on, and those of owed: of what is not
  // released the very rows that may have to be made once more.
  PlanStart RowsNeeded() const;
  // Whether State() cannot be told yet, after a former life.
  bool Unsettled() const { return recovering_ || end_deferred_; }
  bool AnyAttached() const;
  // A process may still write its page or read a slot.
  bool AnySeatTaken() const;
  // Somebody may come in the place of one that died, and there is more for it.
  bool OwesTheDead() const;
  // As this rank somebody may come.
  bool WaitsFor(uint32_t rank) const;
  bool Finished(uint32_t rank) const;
  // Its process is still attached, and has no more to take.
  bool ToldTheEnd(uint32_t rank) const;
  // split: it died, and the others go on without it.
  bool GoesOnWithout(uint32_t rank) const;
  // split: how often its ranks have become others, and 1.
  size_t phases() const { return phases_.size(); }
  // split: every rank of this host is or was here.
  bool AllCame() const;
  // Nobody gets anything any more, whoever comes: all of it was released, or
  // the job was stopped.
  bool AllDelivered() const;
  // It is or was a rank of this job.
  std::optional<uint32_t> RankAt(uint32_t seat);
  bool Knows(uint32_t rank) const { return consumers_.count(rank) > 0; }
  // No worker writes into a slot.
  bool Idle() const;
  bool Closing() const { return closed_; }
  // Ranks of this host that never attached or are gone and waited for.
  std::vector<uint32_t> Missing() const;

  struct RankStatus {
    uint32_t rank = 0;
    std::optional<uint32_t> seat;
    const char* state = "";
    uint32_t ready = 0;  // published, not taken
    uint32_t held = 0;   // taken, not released
    uint64_t taken = 0;
    uint64_t skipped = 0;
    uint64_t waits = 0;
    uint64_t wait_ns = 0;
    uint64_t position = 0;
    // NUMA: where it runs, what tells that, where its batches are (split, and a
    // broadcast with a copy on each node).
    std::optional<uint32_t> node;
    std::string node_from;
    std::optional<uint32_t> memory_node;
    bool open = false;     // it is given batches
    bool waiting = false;  // and stands beside an empty ring
    // Half steps it is through with: a batch taken is one, and released
    // another; where all ranks get the same steps.
    std::optional<int64_t> progress;
  };
  std::vector<RankStatus> Ranks();
  Demand Wanted();

  struct SlotCounts {
    uint32_t free = 0, filling = 0, ready = 0, out = 0, quarantined = 0;
  };
  SlotCounts CountSlots() const;
  // A share that somebody will get is being made.
  bool Filling() const;
  // A slot could be opened if there were rows for it, and none is being filled.
  bool WaitsForRows() const;

 private:
  enum class SlotState { kFree, kFilling, kReady, kOut };
  struct Slot {
    SlotState state = SlotState::kFree;
    uint32_t lane = 0;
    uint32_t holders = 0;     // that may deliver it or were given it
    uint32_t quarantine = 0;  // evicted processes that may read it
    bool ranks_changed = false;
    uint32_t phase = 0;
    bool handed_over = false;  // outside the order of positions
    bool again = false;        // a step that was made before
    uint32_t for_rank = 0;     // split
    OpenBatch batch;
  };
  struct Entry {
    uint32_t slot = 0;
    bool redelivered = false;
    uint32_t skipped = 0;  // just before it, not told yet
  };
  // The plan of as many steps as the ranks are the same.
  struct Phase {
    Plan plan;
    std::vector<uint32_t> ranks;  // who has which place; empty: rank = place
    std::optional<uint64_t> end_step;
  };
  struct Again {
    uint64_t step = 0;  // StepId
    bool redelivered = false;
  };
  struct Lane {
    uint32_t first_slot = 0;
    uint32_t phase = 0;
    uint64_t next_step = 0;  // of the phase, to open
    uint64_t opened = 0;
    std::deque<uint32_t> in_turn;  // slots of shares that have not left it
    // Slots that are kFree, the lowest first: those have memory first.
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> free;
    std::optional<uint32_t> rank;  // split: of its consumer
    bool phase_begins = false;
    bool taken = false;  // split: it is or was somebody's
    // Steps to make once more before any other.
    std::deque<Again> again;
  };
  enum class Place { kAttached, kGone, kFinished };
  struct Consumer {
    uint32_t rank = 0;
    uint32_t lane = 0;
    Place place = Place::kAttached;
    uint32_t seat = 0;  // when kAttached
    bool died = false;  // when kGone
    std::deque<Entry> backlog;
    uint32_t told_phase = 0;  // it knows the ranks of this and those before
    uint32_t skipped = 0;     // since the last of the backlog, not told yet
    uint64_t skipped_all = 0;
    uint64_t taken_before = 0;  // in former lives of the broker
    uint64_t position = 0;      // end of what it was given
    std::shared_ptr<const CursorPage> former;
    // broadcast: it has what is before this position, but for these steps; and
    // whether they are marked.
    uint64_t from = 0;
    std::map<uint64_t, bool> again;
    // broadcast, full_epoch: the position it joined at.
    std::optional<uint64_t> epochs_from;
    std::optional<uint32_t> node;  // see Joining
    std::string node_from;
  };

  bool split() const { return mode_ == DeliveryMode::kSplit; }
  bool broadcast() const { return mode_ == DeliveryMode::kBroadcast; }
  Feed& FeedOf(const Consumer& consumer) { return *feeds_[consumer.seat]; }
  Consumer* Find(uint32_t rank);
  Consumer* AtSeat(uint32_t seat);
  const Consumer* OfLane(uint32_t lane) const;
  bool Active(uint32_t lane) const;
  // Of a slot: the one on this node; not known, or none is: this one.
  uint32_t CopyOn(std::optional<uint32_t> node, uint32_t otherwise) const;
  uint32_t CopyFor(const Consumer& consumer) const {
    return CopyOn(consumer.node, consumer.seat % shape_.copies);
  }
  // split: of those that nobody has had: one on this node, rather rank's own.
  std::optional<uint32_t> FreeLane(uint32_t rank,
                                   std::optional<uint32_t> node) const;
  // Takes it.
  uint32_t TakeLane(uint32_t rank, std::optional<uint32_t> node);
  // The step a lane opens next, after going on to the next phase.
  struct Next {
    Plan::RankBatch rows;
    uint32_t phase = 0;
    bool again = false;
  };
  std::optional<Next> NextStep(uint32_t lane);
  uint32_t NodeOf(uint32_t slot) const;  // by which claimable_ has its shares
  bool Available(const Plan::RankBatch& rows) const {
    return rows.position + rows.global_rows <= available_;
  }
  bool Exhausted(const Lane& lane) const;
  uint32_t PlaceOf(const Phase& phase, uint32_t rank) const;
  Slot* NextReady(uint32_t lane);
  void Free(Slot* slot);
  void Abandon(Slot* slot);
  // Something changed that is not one lane's or one consumer's.
  void OpenAll();
  void TouchAll();
  // Of the last phase: those that were opened last and did not leave the lane.
  uint64_t StepsNotGiven(const Lane& lane) const;
  void Release(uint32_t slot);
  // Where one is that has heard of phase. Behind what is owed; true: some of
  // that may be left.
  bool PlaceLane(Lane* lane, uint64_t position, uint32_t phase);
  // One that attaches knows the ranks of the phase it begins in: the first
  // batch of each later one, and no other, says that they are others.
  void MarkPhases(const Consumer& consumer);
  void RecordOpened(const Plan::RankBatch& rows);
  void MakeAgain(Lane* lane, uint64_t step, bool redelivered);
  // Where one that reconnects says it is.
  void PlaceReconnected(Consumer* consumer, const Joining& joining);
  // broadcast: batches the others have had that it has not.
  uint64_t MissedSince(uint64_t position) const;
  // The epochs that a consumer counts by itself.
  void CountEpochs(uint64_t from, Cell* cell) const;
  std::vector<RowRange> OwedLeft(const Consumer& consumer,
                                 uint32_t phase) const;
  void RestoreConsumer(const FormerConsumer& former);
  uint64_t IdOf(const Slot& slot) const;
  // broadcast: nullopt: it is not to have it; else whether it is marked.
  std::optional<bool> Wants(const Consumer& consumer, const Slot& slot) const;
  bool NothingLeftFor(const Consumer& consumer) const;
  std::vector<uint32_t> LanesNeeded() const;        // split
  bool AllPassedOwed(uint32_t phase) const;         // split
  std::vector<uint64_t> HeldOfFormerLives() const;  // StepIds, untrusted
  void ReleaseLease(const Consumer* consumer, const Feed::Batch& lease);
  void RecordCompleted(uint64_t position);
  void Unquarantine(uint32_t slot);
  void FreeIfUnheld(Slot* slot);
  void Give(Consumer* consumer, const Entry& entry);
  void Flush(Consumer* consumer);
  // Sees what the process at this seat released. True: something.
  bool Reclaim(uint32_t seat);
  void ReclaimFormer(Consumer* consumer);
  void TakeFormerBack(Consumer* consumer, bool orderly);
  void TakePageBack(Consumer* consumer, const CursorPage& page, bool orderly);
  void DeliverSplit(Consumer* consumer);
  void DeliverDynamic();
  void DeliverBroadcast();
  // dynamic: asks it for a wake if it is not.
  bool IsHungry(const Consumer& consumer);
  Consumer* NextHungry();
  // broadcast: whether it is less than a window behind.
  bool HasRoom(const Consumer& consumer);
  void NoteRoom(Consumer* consumer);
  bool IsAsleep(const Consumer& consumer);
  bool OneSleeps();
  bool IsHeldUp(const Slot& slot);
  // Gives the slot out; false: it has to wait.
  bool GiveToAll(Slot* slot);
  void ForgoTakes(const std::set<uint32_t>& ranks,
                  const std::set<uint32_t>& unknown);
  // Tells a rank that the data are over.
  void FinishIfOver(Consumer* consumer);
  void FinishDynamic();
  bool IsAtWork(const Consumer& consumer);
  Status Gone(uint32_t seat, bool orderly);
  // The consumer's process is not there any more; entries are what it had.
  Status Vacate(Consumer* consumer, std::vector<Entry> entries, bool orderly);
  Status Shrink(Consumer* consumer);
  Status EvictSeat(Consumer* consumer, Closed why, const std::string& reason,
                   bool keep_batches);
  void Drop(Consumer* consumer);
  uint64_t NextStepOf(const Consumer& consumer) const;
  void GoBackTo(uint64_t step);
  Cell CellOf(const Consumer& consumer, const Entry& entry);
  uint64_t NextPosition(const Consumer& consumer) const;
  uint64_t LanePosition(const Lane& lane) const;

  const Shape shape_;
  const DeliveryMode mode_;
  const std::vector<Ring*> rings_;
  DeliveryRecord* const record_;
  std::vector<uint32_t> bank_nodes_;
  std::vector<Phase> phases_;
  std::vector<Slot> slots_;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<Feed>> feeds_;  // by seat
  std::map<uint32_t, Consumer> consumers_;    // by rank
  std::vector<uint32_t> rank_at_;             // by seat: who took it last
  std::deque<Entry> pool_;                    // dynamic: ready for anybody
  uint32_t last_given_ = 0;                   // dynamic: to this rank
  // D5 and D6. Seats:
  std::set<uint32_t> heard_;
  std::set<uint32_t> deaf_;
  // Ranks, some of which may have gone meanwhile:
  std::set<uint32_t> touched_;
  std::set<uint32_t> hungry_;
  std::set<uint32_t> unsure_;
  std::set<uint32_t> without_;
  std::set<uint32_t> asleep_;   // broadcast, when they were looked at last
  std::set<uint32_t> formers_;  // Consumer::former is not released
  uint32_t at_work_ = 0;        // dynamic, the data over: for it all wait
  // Lanes.
  std::set<uint32_t> openable_;
  // By step and slot, the oldest first; of each NUMA node, 0 where there is
  // one.
  using Oldest = std::pair<uint64_t, uint32_t>;
  std::map<uint32_t,
           std::priority_queue<Oldest, std::vector<Oldest>, std::greater<>>>
      claimable_;
  bool any_corrupt_ = false;  // a feed is that TakeCorrupt has not told of
  uint64_t looks_ = 0;
  uint32_t usable_slots_ = 0;
  uint64_t available_ = UINT64_MAX;  // rows; of a stream fewer
  bool draining_ = false;
  bool recovering_ = false;
  bool end_deferred_ = false;
  // Of ranks that reconnected and died while it gathered.
  std::vector<std::pair<uint32_t, std::shared_ptr<const CursorPage>>> orphans_;
  bool started_ = false;  // broadcast
  // broadcast: the first step that none of those who are gone has had.
  uint64_t foremost_ = 0;
  uint64_t opened_recorded_ = 0;
  bool closed_ = false;
  std::vector<RanksChanged> ranks_changed_;
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_DELIVERY_H_
