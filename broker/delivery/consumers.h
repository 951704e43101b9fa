// The consumers of a job: who they are, where they are attached, and the
// account of each: what it has, lacks and owes.
//
// Threads: any broker thread that holds the job's mutex.
//
// A *consumer* is a rank number or, where several processes are one rank of the
// plan (replicas), rank * replicas + replica; the process attached as it has a
// Feed in a seat (a ring of the segment). A consumer whose process is gone
// keeps its lane and its account.
#ifndef BROKER_DELIVERY_CONSUMERS_H_
#define BROKER_DELIVERY_CONSUMERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/delivery/feed.h"
#include "broker/delivery/phases.h"
#include "broker/delivery/slot.h"
#include "common/layout.h"

namespace penstock {

// Batches of one consumer or, where each batch is for one of several, of all of
// them together.
struct Account {
  struct Entry {
    uint32_t slot = 0;
    bool redelivered = false;
    uint32_t skipped = 0;  // batches skipped just before it, not reported yet
  };

  // Those that left the lane, and no process has them: not published yet, or
  // not released by a process that is gone.
  std::deque<Entry> backlog;
  // The step before which it has everything but `lacks`.
  PhaseStep from;
  // StepIds of those it is to get outside the order; and whether marked
  // redelivered.
  std::map<uint64_t, bool> lacks;

  bool empty() const { return backlog.empty() && lacks.empty(); }
  // nullptr: the batch in this slot is not in its backlog.
  const Entry* Find(uint32_t slot) const;
  // nullopt: it is not to get the batch; else whether marked redelivered.
  std::optional<bool> Wants(const Slot& slot) const;
};

enum class ConsumerState { kAttached, kGone, kFinished };

struct Consumer {
  uint32_t rank = 0;       // its number
  uint32_t plan_rank = 0;  // whose rows it gets
  uint32_t lane = 0;
  std::shared_ptr<Account> account;
  ConsumerState state = ConsumerState::kAttached;
  uint32_t seat = 0;         // when kAttached
  bool died = false;         // when kGone
  bool reconnects = false;   // when kGone: its process is about to attach
  uint32_t known_phase = 0;  // it knows the ranks of phases up to this
  uint32_t given_phase = 0;  // it was given batches of phases up to this
  uint32_t skipped = 0;      // since the end of the backlog, not reported yet
  uint64_t skipped_all = 0;
  uint64_t taken_before = 0;  // from former broker instances
  uint64_t position = 0;      // end of the batches it was given
  // Its page from the former broker instance, with batches not released.
  std::shared_ptr<const CursorPage> former;
  // full_epoch: the position at which it joined.
  std::optional<uint64_t> epochs_from;
  // Its NUMA node, if known, and the source of that knowledge.
  std::optional<uint32_t> node;
  std::string node_from;

  bool attached() const { return state == ConsumerState::kAttached; }
  bool gone() const { return state == ConsumerState::kGone; }
};

class Consumers {
 public:
  Consumers(size_t seats, uint32_t replicas)
      : replicas_(replicas), feeds_(seats), at_seat_(seats) {}

  // In the order of ranks.
  auto begin() { return by_rank_.begin(); }
  auto end() { return by_rank_.end(); }
  auto begin() const { return by_rank_.begin(); }
  auto end() const { return by_rank_.end(); }
  size_t size() const { return by_rank_.size(); }
  bool Knows(uint32_t rank) const { return by_rank_.count(rank) > 0; }
  // nullptr: there is none.
  Consumer* Find(uint32_t rank);
  const Consumer* Find(uint32_t rank) const;
  // A new one, gone so far.
  Consumer* Add(uint32_t rank);
  void Remove(Consumer* consumer);

  // ---- seats

  size_t seats() const { return feeds_.size(); }
  std::optional<uint32_t> FreeSeat() const;
  void Attach(Consumer* consumer, uint32_t seat, std::unique_ptr<Feed> feed);
  // nullptr: nobody attached is there, or it was evicted.
  Consumer* AtSeat(uint32_t seat);
  // nullptr: the seat is free. The process may be an evicted one's.
  Feed* FeedAt(uint32_t seat) const { return feeds_[seat].get(); }
  std::unique_ptr<Feed> TakeFeed(uint32_t seat);
  // The consumer is attached.
  Feed& FeedOf(const Consumer& consumer) const {
    return *feeds_[consumer.seat];
  }
  // It is attached and may be given batches.
  bool IsOpen(const Consumer& consumer) const {
    return consumer.attached() && FeedOf(consumer).open();
  }

 private:
  const uint32_t replicas_;
  std::map<uint32_t, Consumer> by_rank_;
  std::vector<std::unique_ptr<Feed>> feeds_;  // by seat
  std::vector<Consumer*> at_seat_;            // the last to take it
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_CONSUMERS_H_
