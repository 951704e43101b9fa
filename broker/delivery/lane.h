// A queue of batches for its members: each batch for all of them, or for one.
//
// Threads: any broker thread that holds the job's mutex.
//
// Steps of a plan are opened in the slots of a lane, in order, after those to
// be made again, and leave it in that order.
#ifndef BROKER_DELIVERY_LANE_H_
#define BROKER_DELIVERY_LANE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "broker/delivery/consumers.h"
#include "broker/delivery/phases.h"
#include "broker/delivery/slot.h"

namespace penstock {

class Lane {
 public:
  // to_one: each batch is for any one of the members, which have one account.
  // places: it has that many members, for good; nullopt: as many as come.
  Lane(std::span<Slot> slots, std::optional<uint32_t> places, bool to_one);

  // ---- members

  // It has as many members as come.
  bool shared() const { return shared_; }
  bool to_one() const { return common_ != nullptr; }
  // Each batch is for several, who wait for each other.
  bool in_step() const { return in_step_; }
  // It may have another member, for the rows of this rank.
  bool HasPlaceFor(uint32_t rank) const {
    return shared() || !taken_ || (IsOf(rank) && members_.size() < *places_);
  }
  // All places have their members.
  bool complete() const { return shared() || members_.size() >= *places_; }
  // Some member came, and may have left since.
  bool taken() const { return taken_; }
  void Add(Consumer* member);
  void Remove(const Consumer& member) { members_.erase(member.rank); }
  // By rank.
  const std::map<uint32_t, Consumer*>& members() const { return members_; }
  // The rank that the plan has its rows for.
  uint32_t rank() const {
    return members_.empty() ? 0 : members_.begin()->second->plan_rank;
  }
  bool IsOf(uint32_t rank) const {
    return !members_.empty() && this->rank() == rank;
  }
  std::vector<Account*> Accounts() const;
  // to_one: what any member may get; else nullptr.
  Account* common() const { return common_.get(); }

  // ---- steps

  // The next one to open in order.
  PhaseStep next() const { return next_; }
  uint64_t opened() const { return opened_; }
  void Place(PhaseStep next) { next_ = next; }
  bool WillOpen(PhaseStep step) const { return step >= next_; }
  // StepIds of steps that some account lacks and that are in no slot.
  const std::set<uint64_t>& again() const { return again_; }
  // One of its accounts lacks the step with this StepId, which is not trusted:
  // impossible ones are ignored.
  void Lack(const Phases& phases, Account* account, uint64_t id,
            bool redelivered);
  // Has it made again, unless it is in a slot or will be opened anyway.
  void MakeAgain(const Phases& phases, uint64_t id);
  // Forgets what its accounts lack of steps that there are not.
  void ForgetPastEnd(const Phases& phases);
  // All steps were opened and have left it.
  bool Exhausted(const Phases& phases) const {
    return in_turn_.empty() && again_.empty() && phases.AtEnd(next_);
  }
  // Where the oldest batch that has not left it begins, else the next step.
  uint64_t Position(const Phases& phases) const;
  // All members are gone: what none of them had, from this step on, is for
  // those who come next.
  void GoBackTo(uint64_t step);

  // ---- slots

  std::span<Slot> slots() const { return slots_; }
  // One of the first `usable` slots.
  bool HasFree(uint32_t usable) const {
    return !free_.empty() && free_.top() < usable;
  }
  const Slot& NextFree() const { return slots_[free_.top()]; }
  // Starts the next step in NextFree(); requires one, and a member. nullptr:
  // no step, or its rows end after `available`.
  Slot* Open(const Phases& phases, uint64_t available);
  void Free(Slot* slot);
  // Batches that have not left it, the oldest first.
  const std::deque<Slot*>& in_turn() const { return in_turn_; }
  // nullptr: the oldest batch is not ready.
  Slot* NextReady() const;
  // The oldest batch leaves.
  void Pop(uint32_t holders);
  // Steps of the last phase that were opened last and have not left it.
  uint64_t StepsNotGiven(const Phases& phases) const;
  // Takes back the newest of them.
  Slot* PopLast();
  // Free slots as the queue has them: for IndexError.
  std::set<uint32_t> FreeSlots() const;

  // ---- what its policy knows of the members, some of which may be gone (D6)

  bool due = false;           // it is to be delivered
  std::set<uint32_t> unsure;  // members heard of since their last check
  // to_one:
  uint32_t last_given = 0;  // who got the last batch
  uint32_t at_work = 0;     // at the end: whom all wait for
  // in_step, shared:
  bool started = false;  // the first batch may be given out
  std::set<uint32_t> without;
  std::set<uint32_t> asleep;  // at their last check
  uint64_t foremost = 0;      // the first step that none of those gone has had

 private:
  const std::span<Slot> slots_;
  const std::optional<uint32_t> places_;
  const std::shared_ptr<Account> common_;
  // As these say, asked for each batch.
  const bool shared_;
  const bool in_step_;
  std::map<uint32_t, Consumer*> members_;
  bool taken_ = false;
  PhaseStep next_;
  uint64_t opened_ = 0;
  std::set<uint64_t> again_;
  std::deque<Slot*> in_turn_;
  // kFree slots by index, lowest first: those get memory first.
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> free_;
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_LANE_H_
