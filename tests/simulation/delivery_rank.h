// The simulation of delivery: a rank, as Reader and a trainer do it.
#ifndef TESTS_SIMULATION_DELIVERY_RANK_H_
#define TESTS_SIMULATION_DELIVERY_RANK_H_

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "tests/simulation/delivery_world.h"

namespace penstock::delivery_simulation {

class Rank {
 public:
  Rank(World* of, int rank) : world_(*of), run_(of->run), rank_(rank) {}

  void Run(uint32_t number) {
    number_ = number;
    ReadAnswer();
    Loop();
  }

  void RunLate(uint32_t number) {
    number_ = number;
    if (Request(std::nullopt)) Loop();
  }

  // Replaces the first that dies.
  void RunAsReplacement() {
    const auto process_of = [this](uint32_t number) {
      return world_.holders.try_emplace(number, number).first->second;
    };
    const auto missing = [&]() -> std::optional<uint32_t> {
      for (uint32_t i = 0; i < world_.config.world; ++i) {
        const int holder = process_of(i);
        if (run_.dead(world_.rank_process[holder]) ||
            (holder == 0 && (world_.evicted || world_.config.impatient))) {
          return i;
        }
      }
      return std::nullopt;
    };
    const auto all_gone = [&] {
      for (uint32_t i = 0; i < world_.config.world; ++i) {
        if (!run_.gone(world_.rank_process[process_of(i)])) return false;
      }
      return true;
    };
    run_.WaitUntil([&] { return missing() || all_gone(); });
    const std::optional<uint32_t> number = missing();
    run_.Observe(number.value_or(99));
    if (!number) return;
    world_.holders[*number] = rank_;
    number_ = *number;
    if (Request(std::nullopt)) Loop();
  }

 private:
  struct Held {
    Cell cell;
    int instance;
    Returned* returned;
  };

  Session& session(int instance) { return world_.sessions[instance][rank_]; }
  Session& session() { return session(instance_); }
  Ring& ring(int instance) {
    return world_.segments[instance].rings[session(instance).seat];
  }

  void Loop() {
    for (;;) {
      while (held_.size() >= world_.config.hold) ReleaseOldest();
      Cell cell;
      switch (TryTake(ring(instance_), session().page, &cell)) {
        case TakeResult::kTaken:
          Taken(cell);
          if (BrokerWaitsForTakes(ring(instance_))) session().to_broker.Send();
          Work();
          continue;
        case TakeResult::kClosed:
          if (Over()) return;
          continue;
        case TakeResult::kCorrupt:
          run_.Fail("corrupt cell");
        case TakeResult::kEmpty:
          break;
      }
      const bool sleep = ArmWait(ring(instance_), session().page);
      if (sleep) {
        if (BrokerWaitsForTakes(ring(instance_))) session().to_broker.Send();
        if (!session().to_rank.Wait() && NothingLeft()) {
          DisarmWait(session().page);
          if (!Reconnect()) return;
          continue;
        }
      }
      DisarmWait(session().page);
    }
  }

  // The trainer's work between two calls.
  void Work() {
    if (world_.config.options.mode != DeliveryMode::kDynamic) return;
    if (held_.size() < world_.config.leases) {
      world_.works_on[rank_] = &ring(instance_);
    }
    run_.Step("works on a batch");
    world_.works_on[rank_] = nullptr;
  }

  // The ring is closed: true.
  bool Over() {
    const auto closed = static_cast<Closed>(
        ring(instance_).closed.load(std::memory_order_acquire));
    for (const Held& held : held_) CheckSlot(held);
    if (closed == Closed::kFinished) {
      world_.missed[number_] += ring(instance_).skipped;
      run_.Check(!HasState() || owed_.empty(),
                 "the data are over, and the state owes the step {:x}",
                 owed_.empty() ? 0 : owed_.begin()->first);
      while (!held_.empty()) ReleaseOldest();
      world_.left_orderly[rank_] = true;
      world_.finished.insert(number_);
      return true;
    }
    // The broker may have died before it noticed.
    if (closed == Closed::kRecalled) world_.evicted = true;
    // It may continue to read the batches it holds.
    if (!held_.empty()) ReleaseOldest();
    run_.Step("reads what it holds");
    for (const Held& held : held_) CheckSlot(held);
    return true;
  }

  void ReadAnswer() {
    position_ = session().begins_at;
    phase_ = session().answered_phase;
    owed_ = session().owed_left;
  }

  // Its own progress tells what it is yet to get. (In dynamic nobody's does; of
  // what it is to miss nobody knows yet.)
  bool HasState() const {
    return world_.config.options.mode != DeliveryMode::kDynamic &&
           world_.config.options.lag == Lag::kBlock;
  }

  bool NothingLeft() {
    return !AnyUntaken(ring(instance_), session().page) &&
           ring(instance_).closed.load(std::memory_order_acquire) ==
               static_cast<uint32_t>(Closed::kOpen);
  }

  bool Reconnect() {
    // As in RankReader: of the former instance only, not of one before that.
    while (!held_.empty() && held_.front().instance != instance_)
      ReleaseOldest();
    if (world_.config.slow && number_ + 1 == world_.config.world) {
      run_.WaitUntilOthersSleep();
    }
    CursorPage* const former = &session().page;
    ++instance_;
    return Request(former);
  }

  // False: refused, or there is no broker any more.
  bool Request(std::optional<CursorPage*> former) {
    for (; instance_ < world_.config.instances; ++instance_) {
      Session& to = session();
      to.number = number_;
      if (former) {
        to.position = position_;
        to.phase = phase_;
        for (const auto& [step, rows] : owed_) to.owed.push_back(step);
        to.former = *former;
      }
      to.requested = true;
      to.to_broker.Send();
      while (!to.answered && to.to_rank.Wait()) {
      }
      run_.Observe(to.answered);
      if (!to.answered) {
        // Its program ends with an error and is restarted.
        for (auto& [attach, kept] : world_.kept.attaches) {
          if (!former && kept.page == &to.page) kept.given_up = true;
        }
        continue;
      }
      run_.Observe(to.refused);
      if (to.refused) return false;
      run_.Observe(to.seat);
      run_.Observe(to.begins_at);
      run_.Observe(to.answered_phase);
      for (const auto& [step, rows] : to.owed_left) run_.Observe(step);
      ReadAnswer();
      to.page.position.store(position_, std::memory_order_relaxed);
      return true;
    }
    return false;
  }

  void Taken(const Cell& cell) {
    const uint64_t word =
        world_.segments[instance_].slots[cell.slot_offset].load();
    const Content content = Content::Of(word);
    run_.Check(word != kHalfFilled && content.position == cell.position &&
                   content.rows == cell.rows,
               "the slot of the batch at {} holds {:x}", cell.position, word);
    const bool marked = (cell.flags & kRedelivered) != 0;
    bool came_before = false;
    for (uint64_t row = content.row; row < content.row + content.rows; ++row) {
      run_.Check(world_.done.count(row) == 0,
                 "row {} comes again, which all replicas released", row);
    }
    // Checks D3, and that done batches stay done.
    for (const Returned& before : world_.returned) {
      const bool same_rank =
          world_.RankOf(before.number) == world_.RankOf(number_);
      const bool same =
          world_.broadcast()
              ? before.number == number_ &&
                    before.content.position == content.position
              : (before.number == number_ || !same_rank) &&
                    before.content.row < content.row + content.rows &&
                    content.row < before.content.row + before.content.rows;
      if (!same) continue;
      came_before = true;
      run_.Check(marked, "rows from {} on come again, unmarked", content.row);
      // Other replicas of that rank may not have released it.
      if (!same_rank && world_.config.replicas > 1) continue;
      run_.Check(!before.released ||
                     (world_.evicted_processes.contains(before.process) &&
                      !before.settled),
                 "rows from {} on were released and come again", content.row);
    }
    if (marked && !came_before) world_.marked_first.insert(cell.position);
    world_.returned.push_back(
        {rank_, number_, marked, false, false, false, content});
    held_.push_back({cell, instance_, &world_.returned.back()});
    world_.steps[number_].insert(cell.position);
    world_.missed[number_] += cell.skipped;
    // As in the client.
    if ((cell.flags & kRanksChanged) != 0) {
      phase_ = cell.flags >> kPhaseShift;
      run_.Check(session().known_phase >= phase_,
                 "a batch of phase {} comes before its ranks are known",
                 phase_);
      for (const RowRange& range : session().owed_in[phase_]) {
        std::erase_if(owed_,
                      [&](const auto& item) { return item.second == range; });
        owed_[StepId(range.position, phase_)] = range;
      }
    }
    const bool is_owed =
        owed_.erase(StepId(cell.position, cell.flags >> kPhaseShift)) > 0;
    // A job begun at its state would have missed and repeated nothing.
    run_.Check(!HasState() || is_owed || cell.position == position_ ||
                   (cell.rows == 0 && marked),
               "the state says position {}, and the batch at {} comes",
               position_, cell.position);
    if (!is_owed) {
      position_ = std::max(position_, cell.position + cell.global_rows);
    }
  }

  void CheckSlot(const Held& held) {
    const uint64_t word =
        world_.segments[held.instance].slots[held.cell.slot_offset].load();
    run_.Check(word == held.returned->content.Word(),
               "the slot of the batch at {}, which we hold, has {:x}",
               held.cell.position, word);
  }

  void ReleaseOldest() {
    const Held held = held_.front();
    held_.pop_front();
    CheckSlot(held);  // the last read
    held.returned->release_begun = true;
    const bool wake = Release(ring(held.instance), session(held.instance).page,
                              held.cell.lease, held.cell.generation);
    held.returned->released = true;
    if (wake && held.instance == instance_)
      session(held.instance).to_broker.Send();
  }

  World& world_;
  simulation::Run& run_;
  const int rank_;
  uint32_t number_ = 0;
  int instance_ = 0;
  uint64_t position_ = 0;
  uint32_t phase_ = 0;
  std::map<uint64_t, RowRange> owed_;  // by StepId
  std::deque<Held> held_;
};

}  // namespace penstock::delivery_simulation
#endif  // TESTS_SIMULATION_DELIVERY_RANK_H_
