// Decides who gets which batch, and what happens to batches when a rank leaves,
// dies or is evicted. Touches no bytes of batches.
//
// Threads: any broker thread that holds the job's mutex. Everything shared with
// a rank goes through Feed; the simulation in tests/ runs this very code on
// atomics of its own.
//
// A mode is a setting of its lanes (lane.h):
//   split      a lane per local rank, its rank batches: to all of its members,
//              as many as the rank has replicas here
//   dynamic    one lane of all ranks, whole steps: each batch to one, the next
//              rank that has none untaken
//   broadcast  one lane of all consumers, whole steps: each batch to all
// (independent is split with a world of one and a job for each consumer.)
//
// Invariants
//   D1  Every opened step stays in a slot until a rank released its batch or
//       it was given up with the consumer it was for; so none is lost.
//   D2  A slot of a lane not in step has one holder that may still deliver it;
//       further holders are evicted processes that may still read it.
//   D3  A batch that any process may have returned to its trainer is
//       redelivered only marked as such.
//   D4  A slot is filled only without holders: nobody can read it.
//
// No operation walks all ranks, lanes or slots for one batch, except
// broadcast, once per batch. Sets hold what must be checked:
//   D5  A rank's actions are seen when they matter. Every release brings a
//       wake: Attach asks for it before the rank has the ring (E5). A take, or
//       going to sleep, brings one where delivery waits for it: the feed was
//       asked, checked once more (E8) and found still busy. So a page is read
//       after its wake (Heard), when a batch is to go to its rank, and, where
//       no wake can come (Mute), on every Advance. (Job reads all pages with
//       each tick: a process gone wild sends no wake.)
//   D6  After Advance, and Open until it returns nullptr:
//       openable_   lacks a lane only if the lane has no free slot, nobody who
//                   is given batches, or no step to open;
//       touched_    lacks a consumer only if it has no batch that it could be
//                   given now and, where its data end, was told so;
//       claimable_  has every batch with rows to claim, and perhaps others;
//       due_        lacks a lane only if no batch can leave it or, in dynamic,
//                   its common account;
//       unsure      of a lane, in dynamic: has every rank that may be able to
//                   get a batch; any other has no free lease, or has an untaken
//                   batch and was asked for takes (D5). In broadcast, with
//                   `without`: every consumer that may be unable to get the
//                   next batch; one in `without` is unable and, if attached,
//                   was asked for takes (D5).
//       IndexError recomputes the part of this that is private to the broker.
#ifndef BROKER_DELIVERY_DELIVERY_H_
#define BROKER_DELIVERY_DELIVERY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "broker/delivery/consumers.h"
#include "broker/delivery/feed.h"
#include "broker/delivery/invariants.h"
#include "broker/delivery/lane.h"
#include "broker/delivery/phases.h"
#include "broker/delivery/slot.h"
#include "broker/plan/plan.h"
#include "common/delivery_options.h"
#include "common/layout.h"
#include "common/quantity.h"
#include "common/status.h"

namespace penstock {

// A rank's page lists, for each lease, the last batch taken under it.
// Untrusted.
struct FormerBatch {
  uint64_t step = 0;  // StepId
  bool released = false;
};
std::vector<FormerBatch> FormerBatches(const CursorPage& page);
// The position at which that rank continues.
uint64_t FormerPosition(const CursorPage& page, const Plan& plan);

// Records batches that the next broker instance must know of and that ranks'
// positions do not tell. Called with the job's mutex held.
class DeliveryRecord {
 public:
  virtual ~DeliveryRecord() = default;
  // dynamic: the step at position was released; next: where the following step
  // begins.
  virtual void Completed(uint64_t position, uint64_t next) = 0;
  // split, broadcast: rank released a batch that it got outside the order of
  // positions: its predecessor's, or an owed one. step: StepId.
  virtual void HandedOver(uint32_t rank, uint64_t step) = 0;
  // dynamic: no step from position on is opened before the next call.
  virtual void Opened(uint64_t position) = 0;
  // split: called before anything of the phase is opened.
  virtual void PhaseBegun(const FormerPhase& phase) = 0;
};

// Demand for a job's rows: no rank is attached; attached ranks still have
// batches; a rank that is given batches sleeps on an empty ring.
enum class Demand : uint8_t { kNobody, kAhead, kNow };

class Delivery {
 public:
  struct Shape {
    DeliveryOptions options;
    uint32_t world_size = 1;     // split: ranks of the whole job
    uint32_t consumers_max = 1;  // on this host
    // split: processes that are one rank, and those of them on this host. Each
    // gets every batch of the rank, and none begins before all of these came.
    uint32_t replicas = 1;
    uint32_t local_replicas = 1;
    // broadcast: the first batch waits for this many consumers, who miss
    // nothing.
    uint32_t start_with = 1;
    uint32_t lanes = 1;
    uint32_t slots_per_lane = 1;
    // Batches are begun in the order of the plan, over all lanes: one that
    // cannot be begun holds up those after it.
    bool in_order = false;
    uint32_t leases = 1;    // batches a rank may have outstanding
    uint64_t rows_max = 0;  // of a slot
    // Fewer ranks would get batches that no slot holds; 0: rows_max tells.
    uint32_t ranks_min = 0;
    uint64_t slots_offset = 0;  // in the segment
    uint64_t slot_stride = 0;
    uint32_t bank_slots = 0;  // see layout.h
    // broadcast: copies of every slot, each in its own bank. Copy c of slot s
    // is slot c * lanes * slots_per_lane + s of the segment.
    uint32_t copies = 1;
    // NUMA node of each bank (in split, each lane is a bank), and nodes that
    // have workers. Empty: the machine has one node.
    std::vector<uint32_t> bank_nodes;
    std::vector<uint32_t> worker_nodes;
  };
  // rings: one per seat; they and record outlive this.
  Delivery(const Shape& shape, Plan plan, std::vector<Ring*> rings,
           DeliveryRecord* record = nullptr);

  // ---- ranks

  // A step that a rank gets outside the order of positions, by its StepId, and
  // the rows of it that somebody is yet to get.
  struct OwedStep {
    uint64_t id = 0;
    RowRange rows;
  };
  // Joining::rank of a consumer that takes any free number (broadcast).
  static constexpr uint32_t kAnyRank = UINT32_MAX;
  struct Joining {
    uint32_t rank = 0;  // number of the consumer
    std::shared_ptr<const CursorPage> cursor;
    int wake_socket = -1;
    bool full_epoch = false;  // broadcast: its epochs begin where it joins
    // Where that was, if it reconnects.
    std::optional<uint64_t> epochs_from;
    // Set if it reconnects after a broker restart: it continues here, not at
    // the start.
    std::optional<uint64_t> position;
    // The phase it knows, and StepIds of the steps owed to it that it has not
    // taken.
    uint32_t phase = 0;
    std::vector<uint64_t> owed;
    uint64_t taken = 0;  // batches, from all broker instances
    // Its page from the former broker instance. Batches it still holds there
    // are ignored, but redone if it dies without releasing them.
    std::shared_ptr<const CursorPage> former;
    // NUMA node, if known, and the source of that knowledge.
    std::optional<uint32_t> node;
    std::string node_from;
  };
  struct Joined {
    uint32_t rank = 0;
    uint32_t seat = 0;
    // It gets every step from here on, and those that are owed.
    uint64_t position = 0;
    uint32_t backlog = 0;  // batches of its predecessor
    bool replaces = false;
    // At that position: the phase, its rank index, the number of ranks. And
    // what it gets of earlier steps: what is left of those owed when the phase
    // began, and those made again because of its predecessors.
    uint32_t phase = 0;
    uint32_t rank_index = 0;
    uint32_t ranks = 0;
    std::vector<OwedStep> owed;
    // The bank to move: it was placed on another node than the rank's.
    std::optional<uint32_t> moved_bank;
  };
  // AlreadyExists: the rank is attached. ResourceExhausted: no rank or seat is
  // free. FailedPrecondition: it finished, or the others go on without it.
  // Aborted (broadcast): it reconnects, and the others went on without it.
  StatusOr<Joined> Attach(Joining joining);

  // The process leaves in an orderly way: batches it took count as released.
  Status Leave(uint32_t seat) { return Gone(seat, true); }
  // The process is dead. An error is the job's: on_rank_death says fail, or
  // nobody is left to shrink to.
  Status Died(uint32_t seat) { return Gone(seat, false); }
  // Closes its feed and gives its batches to others or to its replacement;
  // slots it may read are quarantined until Died or Leave. NotFound.
  Status Evict(uint32_t rank, const std::string& reason);
  // Call before the socket of a seat is closed.
  void Mute(uint32_t seat);

  // ---- after a restart of the broker, before anybody attaches

  Status RestorePhase(const FormerPhase& phase);
  // A rank whose processes are dead, as described by their pages.
  struct FormerConsumer {
    uint32_t rank = 0;
    uint64_t position = 0;       // where any replacement continues
    uint32_t phase = 0;          // the last that it had a batch of
    std::vector<uint64_t> redo;  // steps it got and did not release
    std::set<uint64_t> done;     // released outside the order of positions
    bool left = false;           // orderly: nobody is waited for
    bool reconnects = false;     // its last process lives, and is about to
  };
  // split.
  void RestoreRank(const FormerConsumer& former);
  // It is not known yet which batches all ranks had. dynamic, broadcast: opens
  // nothing until TakeOverSteps. split: until FinishRecovery it tells nobody
  // the end and does not apply on_rank_death to the dead.
  void BeginRecovery() {
    recovery_ = shared_ ? Recovery::kSteps : Recovery::kPositions;
  }
  bool gathering() const { return recovery_ == Recovery::kSteps; }
  // Batches of a predecessor or of a former broker instance are not all
  // released.
  bool OwesPredecessor(uint32_t rank) const;
  struct FormerSteps {
    uint64_t position = 0;
    // dynamic: steps before position, by their positions.
    std::vector<uint64_t> completed;
    std::vector<RowRange> redo;
    // broadcast: consumers who are waited for or who had batches of a
    // predecessor; and whether anybody had been given the first batch.
    std::vector<FormerConsumer> consumers;
    bool started = true;
  };
  void TakeOverSteps(const FormerSteps& former);
  // All data were delivered before: ranks that attach are told the end.
  void PlaceAtEnd();
  // All positions are known; unless shrink, the batches of dead ranks wait for
  // replacements. An error is the job's, as for Died.
  Status FinishRecovery(bool shrink);

  // ---- making

  // Allows this many slots of each lane; the rest are being populated.
  void SetUsableSlots(uint32_t slots);
  // For a stream: the rows available by now; EndAt: no more will come.
  void SetAvailable(uint64_t rows);
  uint64_t available() const { return available_; }
  void EndAt(uint64_t rows);
  // Starts the next batch in a free slot; nullptr: nothing to make, or no slot.
  OpenBatch* Open();
  // The batch with rows to claim: the oldest of the worker's NUMA node, else
  // the oldest of all; nullptr: none.
  OpenBatch* Claimable(std::optional<uint32_t> node = std::nullopt);
  // The current node of each bank.
  const std::vector<uint32_t>& bank_nodes() const { return bank_nodes_; }
  // Whether a worker on this node writes the batch to memory on its own node.
  bool IsLocal(const OpenBatch& batch, std::optional<uint32_t> node) const;
  // The segment slot such a worker fills: the copy on its node, else the first.
  uint32_t SlotToFill(const OpenBatch& batch,
                      std::optional<uint32_t> node) const;
  uint32_t SegmentSlot(const OpenBatch& batch, uint32_t copy) const {
    return copy * static_cast<uint32_t>(slots_.size()) + batch.slot;
  }
  // No worker has these rows any more, which it did not make.
  void GiveBack(OpenBatch* batch, const BatchRows& rows);
  // Called when all its rows are done (OpenBatch::done).
  void Filled(OpenBatch* batch);

  // ---- handing out

  // A wake of this seat came and was drained: Advance reads its page.
  void Heard(uint32_t seat) { heard_.insert(seat); }
  // As if every seat had sent a wake.
  void HeardAll();
  // Sees releases and publishes batches; then there may be more to open.
  void Advance();
  // Whether all batches of its lane before the one in this slot are published,
  // and whether a row of it ends the job.
  bool IsNextOfLane(uint32_t slot) const;
  bool IsBroken(uint32_t slot) const { return slots_[slot].batch.broken; }
  // Advance must be called again: a batch that needs no worker was opened, or a
  // rank was evicted.
  bool MustAdvance() const {
    return !closed_ && (!heard_.empty() || !touched_.empty() || !due_.empty());
  }
  // Ranks whose pages hold impossible values, each once. The caller evicts
  // them.
  std::vector<uint32_t> TakeCorrupt();
  // Ends the data early: all ranks take the same number of steps, those that
  // the furthest of them was given. Batches of later steps are given up.
  void Drain();
  // Ends delivery to everybody.
  void Close(Closed why, const Status& status);
  // Sent to a rank before its batch that is marked kRanksChanged.
  struct RanksChanged {
    uint32_t seat = 0;
    uint32_t phase = 0;  // as in the batch's Cell::flags
    uint32_t rank = 0;
    uint32_t world_size = 0;
    PlanStart start;
  };
  std::vector<RanksChanged> TakeRanksChanged() {
    return std::exchange(ranks_changed_, {});
  }
  // The rank was told, so a process that outlives the broker knows too. Its
  // batches of that phase wait for this call.
  void RanksAnnounced(uint32_t seat, uint32_t phase);
  // As violated, or D6 by walking over everything; "": all hold. For tests.
  // Reads no rank's page.
  std::string IndexError() const;
  // The first invariant that did not hold; nullptr: all did.
  const char* violated() const { return invariants_.violated(); }
  // Feeds, lanes and slots that Advance, Open and Claimable checked. For tests:
  // the cost of a batch.
  uint64_t checks() const { return checks_; }

  // ---- questions

  // The current plan (shrink begins another).
  const Plan& plan() const { return phases_.last().plan; }
  // Where a job that resumes must begin so that nothing is lost: everything
  // before was released, except owed ranges.
  PlanStart State() const;
  // The first position of which no step is open or was, in any lane, of this
  // broker instance or, as far as ranks and their pages tell, of former ones.
  uint64_t FirstNotOpened() const;
  // For a stream: the rows that may still have to be made: all from position
  // on, and the owed ranges, which give unreleased batches by their exact rows.
  PlanStart RowsNeeded() const;
  // Whether State() is not known yet after a restart of the broker.
  bool Unsettled() const { return recovery_ != Recovery::kNone; }
  bool AnyAttached() const;
  // Ranks of the plan of which a process is attached, in order.
  std::vector<uint32_t> RanksHere() const;
  // A process may still write its page or read a slot.
  bool AnySeatTaken() const;
  // A replacement may come for a rank that died, and data are left for it.
  bool OwesTheDead() const;
  // A replacement may come as this rank.
  bool WaitsFor(uint32_t rank) const;
  bool Finished(uint32_t rank) const;
  // Its process is still attached and has no more to take.
  bool ToldTheEnd(uint32_t rank) const;
  // split: it died, or another process of its rank did, and the others go on
  // without the rank.
  bool GoesOnWithout(uint32_t rank) const {
    return phases_.GoesOnWithout(rank / shape_.replicas);
  }
  // split: 1 plus the number of times its set of ranks changed.
  size_t phases() const { return phases_.size(); }
  // split: every rank of this host is or was attached.
  bool AllCame() const;
  // Nobody who comes gets anything: everything was released, or the job was
  // stopped.
  bool AllDelivered() const;
  // The rank attached at this seat; nullopt: none, or it was evicted.
  std::optional<uint32_t> RankAt(uint32_t seat);
  bool Knows(uint32_t rank) const { return consumers_.Knows(rank); }
  // No worker writes into a slot.
  bool Idle() const;
  bool Closing() const { return closed_; }
  // Ranks of this host that never attached, or that are gone and waited for.
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
    // NUMA: where it runs, the source of that knowledge, and where its batches
    // are (split, and a broadcast with a copy on each node).
    std::optional<uint32_t> node;
    std::string node_from;
    std::optional<uint32_t> memory_node;
    bool open = false;     // it is given batches
    bool waiting = false;  // and sleeps on an empty ring
    // Half steps it has finished with, one for a take and one for a release;
    // set where all ranks get the same steps.
    std::optional<int64_t> progress;
  };
  std::vector<RankStatus> Ranks();
  Demand Wanted();

  struct SlotCounts {
    uint32_t free = 0, filling = 0, ready = 0, out = 0, quarantined = 0;
  };
  SlotCounts CountSlots() const;
  // Batches given that were marked as redelivered.
  uint64_t redelivered() const { return redelivered_; }
  // A batch that somebody will get is being made.
  bool Filling() const;
  // dynamic: nothing is left but batches that ranks have.
  bool OnlyRanksHaveBatches() const;
  // Seats of evicted processes that may still read slots, where a rank waits
  // for a batch and they leave it no slot; else none.
  std::vector<uint32_t> EvictedInTheWay();
  // A slot could be opened if there were rows for it, and none is being filled.
  bool WaitsForRows() const;

 private:
  using Entry = Account::Entry;

  // Steps are divided over lanes, each of one rank.
  bool divided() const { return !shared_; }
  // All ranks of the job are on this host.
  bool all_here() const {
    return shape_.world_size * shape_.replicas == shape_.consumers_max;
  }
  std::string NameOf(uint32_t consumer) const {
    return RankName(consumer, shape_.replicas);
  }
  // Some process of this rank of the plan attached here.
  bool KnowsAny(uint32_t plan_rank) const;
  Feed& FeedOf(const Consumer& consumer) const {
    return consumers_.FeedOf(consumer);
  }
  Lane& LaneOf(const Consumer& consumer) { return lanes_[consumer.lane]; }
  const Lane& LaneOf(const Consumer& consumer) const {
    return lanes_[consumer.lane];
  }
  // Some member is given batches, and it is known where all of them begin.
  bool Active(const Lane& lane) const;
  // Which copy of a slot is on this node; `otherwise` if unknown or none.
  uint32_t CopyOn(std::optional<uint32_t> node, uint32_t otherwise) const;
  uint32_t CopyFor(const Consumer& consumer) const {
    return CopyOn(consumer.node, consumer.seat % shape_.copies);
  }
  // A lane with a place, preferably on this node, then the rank's own.
  std::optional<uint32_t> FreeLane(uint32_t rank,
                                   std::optional<uint32_t> node) const;
  // Requires that there is one.
  Consumer* AddToLane(uint32_t rank, std::optional<uint32_t> node);
  // The lane of the next batch of the plan.
  uint32_t LaneInTurn() const;
  // The rank of a lane that nobody has come to. If the world spans several
  // hosts, it may be any: 0.
  uint32_t FirstAbsentRank() const;
  uint32_t NodeOf(uint32_t slot) const;  // key of its batches in claimable_
  bool Exhausted(const Consumer& consumer) const {
    return LaneOf(consumer).Exhausted(phases_);
  }
  void BeDue(uint32_t lane);
  void Free(Slot* slot);
  void Abandon(Slot* slot);
  // For changes that concern more than one lane or consumer.
  void OpenAll();
  void TouchAll();
  // split: it is at this position, of this phase. Once that is known of all
  // members, the lane begins where the rearmost is.
  void PlaceConsumer(Consumer* consumer, uint64_t position, uint32_t phase);
  void PlaceLane(Lane* lane);
  // No member is past this step of the last phase, nor is a batch of it made.
  uint64_t FirstOfNobody() const;
  // Whether Attach can succeed.
  Status CheckJoining(const Joining& joining) const;
  // Parts of Attach, by whether the rank is known.
  void AddConsumer(const Joining& joining, Joined* joined);
  void ReplaceConsumer(const Joining& joining, Joined* joined);
  void TellWhereItBegins(Consumer* joining, Joined* joined);
  void RecordOpened(const Lane& lane, const Plan::RankBatch& rows);
  // It is to get this step, of an untrusted StepId.
  void Lack(const Consumer& consumer, uint64_t id, bool redelivered);
  // It is to get the steps owed at the beginning of its phase.
  void LackOwed(const Consumer& consumer, const std::set<uint64_t>& done);
  void ForgetPastEnd();
  // Sets a reconnected consumer to the position it reports.
  void PlaceReconnected(Consumer* consumer, const Joining& joining);
  // Batches the other members have had and it has not.
  uint64_t MissedSince(const Lane& lane, PhaseStep from) const;
  // Renumbers epochs and steps for a consumer that counts its own.
  void CountEpochs(uint64_t from, Cell* cell) const;
  // Steps that it is to get, but for those that its lane opens in order, by
  // StepId; and whether marked redelivered.
  std::map<uint64_t, bool> StepsAhead(const Consumer& consumer) const;
  // What is left for it of the steps owed when the phase began. ahead: its
  // StepsAhead.
  std::vector<RowRange> OwedLeft(const Consumer& consumer, uint32_t phase,
                                 const std::map<uint64_t, bool>& ahead) const;
  // The rows of a rank batch, as a plan has them.
  RowRange RangeOf(const Plan::RankBatch& rows, bool redelivered) const {
    return {rows.epoch * plan().rows_per_epoch() + rows.first_row, rows.rows,
            redelivered || rows.redelivered};
  }
  void RestoreConsumer(const FormerConsumer& former);
  bool NothingLeftFor(const Consumer& consumer) const;
  // Lanes whose members, of now or later, have more to do. If a rank is gone
  // for good, whenever it left, its remaining batches are owed to the others.
  std::vector<const Lane*> LanesNeeded() const;
  // exact: the rows that somebody is yet to release. Otherwise all from the
  // first step on that somebody is yet to release: where steps are divided, the
  // number of ranks may change, so the rows that other ranks released cannot be
  // kept apart.
  PlanStart Unreleased(bool exact) const;
  // One holder less.
  void LetGo(uint32_t slot);
  // The consumer has finished with its batch.
  void Release(const Consumer& consumer, const Feed::Batch& batch);
  void RecordCompleted(uint64_t position);
  void Unquarantine(uint32_t slot);
  void FreeIfUnheld(Slot* slot);
  void Give(Consumer* consumer, const Entry& entry);
  // Publishes its account's backlog while there are free leases.
  void Flush(Consumer* consumer);
  // Sees releases of the process at this seat. True: there were some.
  bool Reclaim(uint32_t seat);
  bool ReclaimFrom(Feed* feed, const Consumer* consumer);
  void ReclaimFormer(Consumer* consumer);
  void TakeFormerBack(Consumer* consumer, bool orderly);
  void TakePageBack(const Consumer& consumer, const CursorPage& page,
                    bool orderly);
  // ---- delivery_policy.cc: hands out what is ready in a lane
  void DeliverToOne(Lane* lane);
  void DeliverToAll(Lane* lane);
  // to one: can get a batch; otherwise a wake is asked for.
  bool IsHungry(const Consumer& consumer);
  Consumer* NextHungry(Lane* lane);
  // to all: whether it is less than a window behind.
  bool HasRoom(const Consumer& consumer);
  void NoteRoom(Lane* lane, Consumer* consumer);
  bool IsAsleep(const Consumer& consumer) const;
  bool OneSleeps(Lane* lane);
  bool IsHeldUp(Lane* lane, const Slot& slot);
  std::optional<bool> Wants(const Consumer& consumer, const Slot& slot) const;
  // Gives the slot out; false: it must wait.
  bool GiveToAll(Lane* lane, Slot* slot);
  void LeaveBehind(Consumer* consumer, const Slot& slot);
  // Stops wakes for takes from a rank that no batch waits for.
  void ForgoTakes(const Consumer& consumer);
  // Tells a rank the end of the data.
  void FinishIfOver(Consumer* consumer);
  void FinishToOne(Lane* lane);
  bool IsAtWork(const Consumer& consumer);
  // ---- delivery_membership.cc
  Status Gone(uint32_t seat, bool orderly);
  // The consumer's process is gone, and what it had is in its backlog.
  Status Vacate(Consumer* consumer, bool orderly);
  Status Shrink(Consumer* consumer);
  // Parts of Shrink. A rank but `gone` has been told the end of the data.
  bool AnyOtherFinished(const Consumer& gone) const;
  // What the others have to take instead of this lane's members before they
  // divide the step at boundary among themselves.
  std::vector<RowRange> OwedBy(const Lane& gone, uint64_t boundary) const;
  void RemoveMembers(Lane* gone);
  // Closes its feed: what it had is in its backlog.
  void Expel(Consumer* consumer, Closed why, const Status& status,
             bool keep_batches);
  Status EvictSeat(Consumer* consumer, Closed why, const Status& status,
                   bool keep_batches);
  void Drop(Consumer* consumer);
  uint64_t NextStepOf(const Consumer& consumer) const;
  Cell CellOf(const Consumer& consumer, const Entry& entry);

  const Shape shape_;
  // Lanes have as many members as come, and whole steps.
  const bool shared_;
  const std::vector<Ring*> rings_;
  DeliveryRecord* const record_;
  std::vector<uint32_t> bank_nodes_;
  Phases phases_;
  std::vector<Slot> slots_;
  std::vector<Lane> lanes_;
  Consumers consumers_;
  uint64_t redelivered_ = 0;
  // D5 and D6. Seats:
  std::set<uint32_t> heard_;
  std::set<uint32_t> deaf_;
  // Ranks, some of which may be gone by now:
  std::set<uint32_t> touched_;
  std::set<uint32_t> formers_;  // with an unreleased Consumer::former
  // Lanes.
  std::set<uint32_t> openable_;
  std::vector<uint32_t> due_;  // each once (Lane::due)
  std::vector<uint32_t> now_;  // those of the Advance that runs
  // GiveToAll: who gets the batch, and whether marked redelivered.
  std::vector<std::pair<Consumer*, bool>> takers_;
  // By step and slot, oldest first; per NUMA node (0 if there is one node).
  using Oldest = std::pair<uint64_t, uint32_t>;
  std::map<uint32_t,
           std::priority_queue<Oldest, std::vector<Oldest>, std::greater<>>>
      claimable_;
  bool any_corrupt_ = false;  // TakeCorrupt has some to return
  uint64_t checks_ = 0;
  Invariants invariants_;
  uint32_t usable_slots_ = 0;
  uint64_t available_ = UINT64_MAX;  // rows; finite for a stream
  bool draining_ = false;
  // What of all ranks' former progress is not known yet.
  enum class Recovery : uint8_t { kNone, kSteps, kPositions };
  Recovery recovery_ = Recovery::kNone;
  // Pages of ranks that reconnected and died during recovery.
  std::vector<std::pair<uint32_t, std::shared_ptr<const CursorPage>>> orphans_;
  uint64_t opened_recorded_ = 0;
  uint64_t opened_in_order_ = 0;  // batches
  // End of what consumers had of former broker instances. Untrusted.
  uint64_t had_before_ = 0;
  bool closed_ = false;
  std::vector<RanksChanged> ranks_changed_;
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_DELIVERY_H_
