// Invariants: every edge E1..E8 and invariant I4 of common/ring.h, without luck
// of timing. Method: the real ring.h as a broker and ranks of an exploration
// (explorer.h) with small bounds: every interleaving under x86's memory model
// (TSO) and under C++20's, deaths at every step. The slots are plain words; a
// write that races with a reader fails the run.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/format.h"
#include "common/ring.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/explorer.h"

namespace penstock {
namespace {

using simulation::Explore;
using simulation::Memory;
using simulation::Mortality;
using simulation::Options;
using simulation::Result;
using simulation::Run;
using simulation::Scenario;
using simulation::WakePipe;

constexpr uint32_t kSlotsMax = 3;
constexpr uint32_t kBatchRows = 10;
// First batch of the rank; a predecessor had those before.
constexpr uint64_t kFirstPosition = 30;
// Position of an extra batch: before the rank's own, or behind them, as when an
// epoch began without it.
constexpr uint64_t kExtraBefore = 3;
constexpr uint64_t kExtraBehind = 1000;
constexpr uint64_t kHalfFilled = ~uint64_t{0};
constexpr uint64_t kReason = 77;

// The memory that the broker and one rank share, and each side's notes for the
// checks.
struct Seat {
  Ring ring{};
  CursorPage cursor{};
  std::array<SimulatedPlain<uint64_t>, kSlotsMax> slots;
  SimulatedPlain<uint64_t> reason;  // stands for Ring::code, skipped, reason
  WakePipe to_rank;
  WakePipe to_broker;
  int broker = 0;
  int rank = 0;

  // The broker's notes.
  std::vector<Cell> published;
  std::optional<uint64_t> taken_at_recall;
  // The rank's notes: numbers of batches (Cell::step_in_epoch).
  std::vector<uint64_t> returned;
  std::set<uint64_t> release_begun;
  std::set<uint64_t> released;
  bool closed = false;

  Seat() { cursor.position.store(kFirstPosition); }

  bool Returned(uint64_t batch) const {
    return std::find(returned.begin(), returned.end(), batch) != returned.end();
  }

  void Connect(Run* run, int broker_process, int rank_process) {
    broker = broker_process;
    rank = rank_process;
    to_rank.Connect(run, broker, rank);
    to_broker.Connect(run, rank, broker);
    run->Share(&ring, sizeof(ring), broker);  // I2
    run->Share(&cursor, sizeof(cursor), rank);
    run->Share(&slots, sizeof(slots), broker);
    run->Share(&reason, sizeof(reason), broker);
    run->Name(&ring.cells[0].generation, "cell 0 generation");
    run->Name(&ring.cells[1].generation, "cell 1 generation");
    run->Name(&ring.closed, "closed");
    run->Name(&ring.broker_waiting, "broker_waiting");
    run->Name(&cursor.taken, "taken");
    run->Name(&cursor.position, "position");
    run->Name(&cursor.waiting, "waiting");
    run->Name(&reason, "reason");
    static constexpr const char* kNames[][4] = {
        {"slot 0", "lease 0 released", "lease 0 generation",
         "lease 0 position"},
        {"slot 1", "lease 1 released", "lease 1 generation",
         "lease 1 position"},
        {"slot 2", "lease 2 released", "lease 2 generation",
         "lease 2 position"}};
    for (uint32_t i = 0; i < kSlotsMax; ++i) {
      run->Name(&slots[i], kNames[i][0]);
      run->Name(&cursor.released[i], kNames[i][1]);
      run->Name(&cursor.leases[i].generation, kNames[i][2]);
      run->Name(&cursor.leases[i].step, kNames[i][3]);
    }
  }
};

// Replaced by a wrong pair to prove that this test detects it, with the same
// broker and rank.
struct Handshake {
  bool (*publish)(Ring&, const CursorPage&, uint64_t, const Cell&) = Publish;
  bool (*arm_wait)(const Ring&, CursorPage&) = ArmWait;
};

// ---- the broker's side, as its Feed does it

class BrokerSide {
 public:
  BrokerSide(Run* run, Seat* seat, uint32_t slots, Handshake handshake = {})
      : run_(*run), seat_(*seat), slots_(slots), handshake_(handshake) {}

  // False: the rank is gone.
  bool Deliver(std::optional<uint64_t> extra_position = std::nullopt) {
    std::optional<uint32_t> lease = FreeLease();
    while (!lease) {
      if (WaitForRelease() && !seat_.to_broker.Wait()) return false;
      lease = FreeLease();
    }
    Fill(*lease, extra_position);
    return true;
  }

  std::optional<uint32_t> FreeLease() {
    for (uint32_t i = 0; i < slots_; ++i) {
      const LeaseState state =
          LeaseStateOf(seat_.cursor, i, generations_[i], previous_[i]);
      run_.Check(state != LeaseState::kPeerCorrupt, "impossible release");
      if (state == LeaseState::kFree) return i;
    }
    return std::nullopt;
  }

  // False: a batch was released meanwhile.
  bool WaitForRelease() {
    SetBrokerWaiting(seat_.ring, BrokerWaits::kForReleases);
    if (!FreeLease()) return true;
    SetBrokerWaiting(seat_.ring, BrokerWaits::kNo);
    return false;
  }

  void Fill(uint32_t lease,
            std::optional<uint64_t> extra_position = std::nullopt) {
    const uint64_t batch = seat_.published.size();
    seat_.slots[lease].store(kHalfFilled);
    seat_.slots[lease].store(batch);
    Cell cell{};
    cell.lease = lease;
    cell.generation = batch + 1;
    previous_[lease] = std::exchange(generations_[lease], cell.generation);
    cell.flags = extra_position ? kExtra : 0u;
    cell.step_in_epoch = batch;
    cell.position = extra_position.value_or(next_position_);
    cell.global_rows = kBatchRows;
    if (!extra_position) next_position_ += kBatchRows;
    seat_.published.push_back(cell);
    if (handshake_.publish(seat_.ring, seat_.cursor, batch, cell)) {
      seat_.to_rank.Send();
    }
  }

  void Close(Closed why) {
    seat_.reason.store(kReason);
    CloseRing(seat_.ring, why);
    seat_.to_rank.Send();
  }

  // E8. False: the rank is gone.
  bool WaitUntilAllIsTaken(bool and_rank_waits) {
    for (;;) {
      SetBrokerWaiting(seat_.ring, BrokerWaits::kForTakes);
      uint64_t taken;
      run_.Check(ReadTaken(seat_.cursor, seat_.published.size(), &taken),
                 "impossible count of taken batches");
      if (taken == seat_.published.size() &&
          (!and_rank_waits ||
           seat_.cursor.waiting.load(std::memory_order_seq_cst) != 0)) {
        SetBrokerWaiting(seat_.ring, BrokerWaits::kNo);
        return true;
      }
      if (!seat_.to_broker.Wait()) return false;
    }
  }

  void WaitUntilRankIsGone() {
    while (seat_.to_broker.Wait()) {
    }
  }

  // Checks I4, and that each batch is of one of the three kinds.
  void ClassifyAfterDeath() {
    uint64_t taken;
    run_.Check(ReadTaken(seat_.cursor, seat_.published.size(), &taken),
               "impossible count of taken batches");
    const uint64_t position =
        seat_.cursor.position.load(std::memory_order_relaxed);
    CheckPosition(position, taken);
    for (uint64_t batch = 0; batch < seat_.published.size(); ++batch) {
      const Cell& cell = seat_.published[batch];
      const bool returned = seat_.Returned(batch);
      if (batch >= taken) {
        run_.Check(!returned, "batch {} was returned, and is untaken", batch);
        continue;
      }
      if (returned && (cell.flags & kExtra) == 0) {
        run_.Check(position >= cell.position + kBatchRows,
                   "position is before the end of batch {}, which "
                   "was returned",
                   batch);
      }
      const bool reused = generations_[cell.lease] != cell.generation;
      if (reused || LeaseStateOf(seat_.cursor, cell.lease, cell.generation,
                                 previous_[cell.lease]) == LeaseState::kFree) {
        run_.Check(seat_.release_begun.contains(batch),
                   "batch {} is held, and found released", batch);
        continue;
      }
      run_.Check(!seat_.released.contains(batch),
                 "batch {} was released, and is found held", batch);
      const LeaseRecord& record = seat_.cursor.leases[cell.lease];
      run_.Check(
          record.generation.load(std::memory_order_relaxed) ==
                  cell.generation &&
              record.step.load(std::memory_order_relaxed) == cell.position,
          "batch {} is held, and its record says otherwise", batch);
    }
  }

 private:
  // The end of the batches taken, including one whose taking the death
  // interrupted.
  void CheckPosition(uint64_t position, uint64_t taken) {
    uint64_t end = kFirstPosition;
    bool found = false;
    for (uint64_t batch = 0; batch <= taken && batch < seat_.published.size();
         ++batch) {
      const Cell& cell = seat_.published[batch];
      if (batch == taken) found |= position == end;
      if ((cell.flags & kExtra) == 0) end = cell.position + kBatchRows;
    }
    found |= position == end;
    run_.Check(found, "position {} is the end of no batch, or of another",
               position);
  }

  Run& run_;
  Seat& seat_;
  const uint32_t slots_;
  const Handshake handshake_;
  std::array<uint64_t, kSlotsMax> generations_{};
  std::array<uint64_t, kSlotsMax> previous_{};
  uint64_t next_position_ = kFirstPosition;
};

// ---- the rank's side, as Reader does it

class RankSide {
 public:
  RankSide(Run* run, Seat* seat, size_t hold, Handshake handshake = {})
      : run_(*run), seat_(*seat), hold_(hold), handshake_(handshake) {}

  // Runs until the ring is closed or the broker is gone.
  void TakeAll() {
    for (;;) {
      Cell cell;
      switch (TryTake(seat_.ring, seat_.cursor, &cell)) {
        case TakeResult::kTaken:
          Taken(cell);
          if (BrokerWaitsForTakes(seat_.ring)) seat_.to_broker.Send();
          if (held_.size() == hold_) ReleaseOldest();
          continue;
        case TakeResult::kClosed:
          seat_.closed = true;
          run_.Check(seat_.reason.load() == kReason, "closed, no reason");
          return;
        case TakeResult::kCorrupt:
          run_.Fail("corrupt cell");
        case TakeResult::kEmpty:
          break;
      }
      KeepTakenLine(seat_.cursor);
      const bool sleep = handshake_.arm_wait(seat_.ring, seat_.cursor);
      if (sleep) {
        if (BrokerWaitsForTakes(seat_.ring)) seat_.to_broker.Send();
        if (!seat_.to_rank.Wait() && NothingLeft()) return;
      }
      DisarmWait(seat_.cursor);
    }
  }

 private:
  void Taken(const Cell& cell) {
    const uint64_t batch = cell.step_in_epoch;
    run_.Check(batch == seat_.returned.size(), "batch {} comes after {} others",
               batch, seat_.returned.size());
    seat_.returned.push_back(batch);
    held_.push_back(cell);
    CheckSlot(cell);
  }
  void ReleaseOldest() {
    const Cell cell = held_.front();
    held_.erase(held_.begin());
    CheckSlot(cell);  // the last read
    seat_.release_begun.insert(cell.step_in_epoch);
    const bool wake =
        Release(seat_.ring, seat_.cursor, cell.lease, cell.generation);
    seat_.released.insert(cell.step_in_epoch);
    if (wake) seat_.to_broker.Send();
  }
  void CheckSlot(const Cell& cell) {
    const uint64_t found = seat_.slots[cell.lease].load();
    run_.Check(found == cell.step_in_epoch,
               "slot {} holds {}, not batch {}, whose lease we have",
               cell.lease, found, cell.step_in_epoch);
  }
  bool NothingLeft() {
    return !AnyUntaken(seat_.ring, seat_.cursor) &&
           seat_.ring.closed.load(std::memory_order_acquire) ==
               static_cast<uint32_t>(Closed::kOpen);
  }

  Run& run_;
  Seat& seat_;
  const size_t hold_;
  const Handshake handshake_;
  std::vector<Cell> held_;
};

// ---- scenarios

struct Bounds {
  int batches;
  uint32_t slots;
  size_t hold;  // the rank releases the oldest when it holds this many
};

void EverythingWasTaken(Run* run, const Seat& seat, int batches) {
  run->Check(seat.returned.size() == static_cast<size_t>(batches),
             "{} of {} batches were taken", seat.returned.size(), batches);
  run->Check(seat.closed, "the rank did not see the end");
}

// The broker delivers and finishes; the rank takes and releases.
Scenario Delivery(Bounds bounds, Handshake handshake = {}) {
  return [=](Run& run) {
    auto seat = std::make_shared<Seat>();
    const int broker = run.AddProcess("broker", [=, &run] {
      BrokerSide side(&run, seat.get(), bounds.slots, handshake);
      for (int i = 0; i < bounds.batches; ++i) side.Deliver();
      side.Close(Closed::kFinished);
    });
    const int rank = run.AddProcess("rank", [=, &run] {
      RankSide(&run, seat.get(), bounds.hold, handshake).TakeAll();
    });
    seat->Connect(&run, broker, rank);
    // I1, in memory and so at every step.
    run.Always([=, &run] {
      const uint64_t taken = seat->cursor.taken.load();
      run.Check(
          taken == 0 || seat->ring.cells[taken - 1].generation.load() == taken,
          "more taken than published");
    });
    run.AtEnd([=, &run] { EverythingWasTaken(&run, *seat, bounds.batches); });
  };
}

// The broker continues only when the rank has taken all and, if and_rank_waits,
// sleeps. Nothing is released, so that no release wakes the broker.
Scenario WaitForTakes(int batches, bool and_rank_waits) {
  return [=](Run& run) {
    auto seat = std::make_shared<Seat>();
    const int broker = run.AddProcess("broker", [=, &run] {
      BrokerSide side(&run, seat.get(), kSlotsMax);
      for (int i = 0; i < batches; ++i) side.Deliver();
      run.Check(side.WaitUntilAllIsTaken(and_rank_waits), "the rank is gone");
      side.Close(Closed::kFinished);
    });
    const int rank = run.AddProcess(
        "rank", [=, &run] { RankSide(&run, seat.get(), kSlotsMax).TakeAll(); });
    seat->Connect(&run, broker, rank);
    run.AtEnd([=, &run] { EverythingWasTaken(&run, *seat, batches); });
  };
}

// One broker delivers to two ranks and waits for either, as Delivery does.
Scenario DeliveryToTwo(int batches) {
  return [=](Run& run) {
    auto seats = std::make_shared<std::array<Seat, 2>>();
    const int broker = run.AddProcess("broker", [=, &run] {
      std::array<BrokerSide, 2> sides{BrokerSide(&run, &(*seats)[0], 1),
                                      BrokerSide(&run, &(*seats)[1], 1)};
      std::array<int, 2> left{batches, batches};
      while (left[0] + left[1] > 0) {
        bool sleep = true;
        for (int i = 0; i < 2; ++i) {
          if (left[i] == 0) continue;
          if (const auto lease = sides[i].FreeLease()) {
            sides[i].Fill(*lease);
            if (--left[i] == 0) sides[i].Close(Closed::kFinished);
            sleep = false;
          } else {
            sleep = sides[i].WaitForRelease() && sleep;
          }
        }
        if (!sleep) continue;
        // A rank that has all batches may be gone; then its pipe is readable.
        const auto news = [=](int i) {
          return left[i] > 0 && (*seats)[i].to_broker.readable();
        };
        run.WaitUntil([=] { return news(0) || news(1); });
        for (int i = 0; i < 2; ++i) {
          if (news(i)) (void)(*seats)[i].to_broker.Wait();
        }
      }
    });
    for (int i = 0; i < 2; ++i) {
      const int rank = run.AddProcess(Format("rank {}", i), [=, &run] {
        RankSide(&run, &(*seats)[i], 1).TakeAll();
      });
      (*seats)[i].Connect(&run, broker, rank);
    }
    run.AtEnd([=, &run] {
      for (const Seat& seat : *seats) EverythingWasTaken(&run, seat, batches);
    });
  };
}

// The broker takes back the batches that the rank has not taken.
Scenario Recall(Bounds bounds) {
  return [=](Run& run) {
    auto seat = std::make_shared<Seat>();
    const int broker = run.AddProcess("broker", [=, &run] {
      BrokerSide side(&run, seat.get(), bounds.slots);
      for (int i = 0; i < bounds.batches; ++i) side.Deliver();
      side.Close(Closed::kRecalled);
      uint64_t taken;
      run.Check(ReadTaken(seat->cursor, seat->published.size(), &taken),
                "impossible count of taken batches");
      seat->taken_at_recall = taken;
    });
    const int rank = run.AddProcess("rank", [=, &run] {
      RankSide(&run, seat.get(), bounds.hold).TakeAll();
    });
    seat->Connect(&run, broker, rank);
    run.AtEnd([=, &run] {
      run.Check(seat->closed, "the rank did not see the recall");
      for (const Cell& cell : seat->published) {
        const uint64_t batch = cell.step_in_epoch;
        const bool returned = seat->Returned(batch);
        if (batch >= *seat->taken_at_recall) {
          run.Check(!returned, "batch {} was returned, and taken back", batch);
        } else if (!returned) {
          // Taken while the ring was closed, so the trainer never got it. It
          // counts as held and is not lost.
          const LeaseRecord& record = seat->cursor.leases[cell.lease];
          run.Check(
              record.generation.load() == cell.generation &&
                  seat->cursor.released[cell.lease].load() != cell.generation,
              "batch {} is neither returned, nor held, nor "
              "taken back",
              batch);
        }
      }
    });
  };
}

// The rank may die anywhere; the broker then finds the batches it had. The
// second batch is an extra one.
Scenario DeathOfTheRank(Bounds bounds, uint64_t extra_position) {
  return [=](Run& run) {
    auto seat = std::make_shared<Seat>();
    const int broker = run.AddProcess("broker", [=, &run] {
      BrokerSide side(&run, seat.get(), bounds.slots);
      bool alive = true;
      for (int i = 0; alive && i < bounds.batches; ++i) {
        alive = i == 1 ? side.Deliver(extra_position) : side.Deliver();
      }
      if (alive) {
        side.Close(Closed::kFinished);
        side.WaitUntilRankIsGone();
      }
      side.ClassifyAfterDeath();
    });
    const int rank = run.AddProcess(
        "rank",
        [=, &run] { RankSide(&run, seat.get(), bounds.hold).TakeAll(); },
        Mortality::kMayDie);
    seat->Connect(&run, broker, rank);
  };
}

// What a page tells when broker and rank are dead: FormerBatches and
// FormerPosition of broker/delivery/delivery.cc, for the leases here.
struct PageTells {
  std::set<uint64_t> had;   // generations
  std::set<uint64_t> held;  // those not released
  uint64_t position;

  explicit PageTells(const CursorPage& page) : position(page.position.load()) {
    const uint64_t taken = page.taken.load();
    for (uint32_t i = 0; i < kSlotsMax; ++i) {
      const LeaseRecord& record = page.leases[i];
      const uint64_t generation = record.generation.load();
      const uint64_t begin = PositionOfStep(record.step.load());
      if (generation == taken + 1 && begin < position &&
          position - begin <= kBatchRows) {
        position = begin;
      }
      if (generation == 0 || generation > taken) continue;
      had.insert(generation);
      if (page.released[i].load() != generation) held.insert(generation);
    }
  }
};

// Both may die anywhere. The next broker instance has only the cursor page: the
// held batches, and the position. The second batch is an extra one.
Scenario DeathOfBoth(Bounds bounds, uint64_t extra_position) {
  return [=](Run& run) {
    auto seat = std::make_shared<Seat>();
    const int broker = run.AddProcess(
        "broker",
        [=, &run] {
          BrokerSide side(&run, seat.get(), bounds.slots);
          for (int i = 0; i < bounds.batches; ++i) {
            if (!(i == 1 ? side.Deliver(extra_position) : side.Deliver())) {
              return;
            }
          }
          side.Close(Closed::kFinished);
        },
        Mortality::kMayDie);
    const int rank = run.AddProcess(
        "rank",
        [=, &run] { RankSide(&run, seat.get(), bounds.hold).TakeAll(); },
        Mortality::kMayDie);
    seat->Connect(&run, broker, rank);
    run.AtEnd([=, &run] {
      const PageTells page(seat->cursor);
      for (const Cell& cell : seat->published) {
        const uint64_t batch = cell.step_in_epoch;
        const bool regular = (cell.flags & kExtra) == 0;
        const bool returned = seat->Returned(batch);
        const bool held = page.held.contains(cell.generation);
        if (returned && !seat->release_begun.contains(batch)) {
          run.Check(held, "the page does not tell that batch {} is held",
                    batch);
        }
        if (seat->released.contains(batch)) {
          run.Check(!held, "batch {} was released, and is found held", batch);
        }
        if (!regular) continue;
        // From its position on all batches are made anew; held batches are
        // redelivered.
        const bool comes = cell.position >= page.position;
        run.Check(!returned || !comes, "batch {} was returned and comes as new",
                  batch);
        run.Check(!held || !comes, "batch {} is held and comes as new", batch);
        run.Check(returned || held || comes, "batch {} is lost", batch);
      }
    });
  };
}

// A third process reads the page at any step: if it sees one store of a take,
// it sees those before it, whatever compiler and processor do.
Scenario PageIsRead(int batches) {
  return [=](Run& run) {
    auto seat = std::make_shared<Seat>();
    const int broker = run.AddProcess("broker", [=, &run] {
      BrokerSide side(&run, seat.get(), 1);
      for (int i = 0; i < batches; ++i) side.Deliver();
      side.Close(Closed::kFinished);
    });
    const int rank = run.AddProcess(
        "rank", [=, &run] { RankSide(&run, seat.get(), 1).TakeAll(); });
    run.AddProcess("reader", [=, &run] {
      const LeaseRecord& record = seat->cursor.leases[0];
      const uint64_t taken = seat->cursor.taken.load(std::memory_order_acquire);
      const uint64_t position =
          seat->cursor.position.load(std::memory_order_acquire);
      const uint64_t noted = record.step.load(std::memory_order_acquire);
      const uint64_t generation =
          record.generation.load(std::memory_order_acquire);
      const uint64_t begin = record.step.load(std::memory_order_relaxed);
      run.Check(
          generation == 0 || kFirstPosition + generation * kBatchRows > noted,
          "the position is {}, of the batch after {}", noted, generation);
      if (generation == 0) return;  // it is being changed
      run.Check(kFirstPosition + taken * kBatchRows <= position,
                "{} are taken, and the position is {}", taken, position);
      run.Check(kFirstPosition + generation * kBatchRows >= position,
                "the position is {}, and batch {} was noted last", position,
                generation);
      run.Check(generation == 0 ||
                    kFirstPosition + (generation - 1) * kBatchRows <= begin,
                "batch {} was noted, and its position is {}", generation,
                begin);
    });
    seat->Connect(&run, broker, rank);
  };
}

// ---- the tests

class RingSimulationTest : public testing::Test {
 protected:
  // Explores everything, and prints the number of runs.
  Result All(const char* name, Options options, const Scenario& scenario) {
    const Result result = Explore(options, scenario);
    Print(stdout, "{:<28} {:>9} states {:>9} runs {:>10} steps\n", name,
          result.states, result.runs, result.steps);
    RecordProperty(std::string(name) + " states", Format("{}", result.states));
    return result;
  }
  // Under both memory models.
  void NeverFails(const char* name, const Scenario& scenario,
                  Options options = {}) {
    for (const Memory memory : {Memory::kTso, Memory::kCpp}) {
      options.memory = memory;
      const char* which = memory == Memory::kTso ? "TSO" : "C++";
      const Result result =
          All(Format("{} ({})", name, which).c_str(), options, scenario);
      EXPECT_FALSE(result.failed) << which << ": " << result.message;
      EXPECT_TRUE(result.exhausted);
    }
  }
};

TEST_F(RingSimulationTest, SleepingRankMissesNoBatch) {
  NeverFails("sleeping rank", Delivery({2, 2, 1}));
}

TEST_F(RingSimulationTest, SleepingBrokerMissesNoRelease) {
  NeverFails("sleeping broker", Delivery({2, 1, 1}));
}

TEST_F(RingSimulationTest, SlotsGoRoundWhileTheRankHoldsTheOther) {
  NeverFails("held batches", Delivery({3, 2, 2}), {.preemptions_max = 3});
}

TEST_F(RingSimulationTest, TwoRanksShareOneBroker) {
  NeverFails("two ranks", DeliveryToTwo(1), {.preemptions_max = 2});
}

TEST_F(RingSimulationTest, TwoRanksShareOneBrokerForLong) {
  const Result result =
      simulation::ExploreRandomly({}, DeliveryToTwo(4), 1, 5'000);
  EXPECT_FALSE(result.failed) << result.message;
}

TEST_F(RingSimulationTest, BrokerThatWaitsForTakesMissesNone) {
  NeverFails("wait for takes", WaitForTakes(2, false), {.preemptions_max = 3});
  NeverFails("wait for the rank to sleep", WaitForTakes(1, true));
}

TEST_F(RingSimulationTest, RecalledBatchIsReturnedOrTakenBackNeverBoth) {
  NeverFails("recall", Recall({2, 2, 2}));
}

TEST_F(RingSimulationTest, FinishedRingGivesAllThatWasPublished) {
  NeverFails("finish", Delivery({1, 1, 1}));
}

TEST_F(RingSimulationTest, DeadRanksPageTellsItsBrokerWhatItHad) {
  NeverFails("rank dies, two leases", DeathOfTheRank({2, 2, 2}, kExtraBefore),
             {.deaths_max = 1});
  NeverFails("rank dies, one lease", DeathOfTheRank({2, 1, 1}, kExtraBehind),
             {.deaths_max = 1, .preemptions_max = 2});
}

TEST_F(RingSimulationTest, ATakeIsWrittenInOrder) {
  NeverFails("page is read", PageIsRead(2), {.preemptions_max = 2});
}

TEST_F(RingSimulationTest, PageTellsWhatWasHeldWhenBrokerAndRankAreDead) {
  NeverFails("both die, two leases", DeathOfBoth({2, 2, 2}, kExtraBefore),
             {.deaths_max = 2, .preemptions_max = 3});
  NeverFails("both die, one lease", DeathOfBoth({2, 1, 1}, kExtraBefore),
             {.deaths_max = 2, .preemptions_max = 2});
}

TEST_F(RingSimulationTest, ExtraBatchBehindTheRanksPositionIsNotTakenForNew) {
  NeverFails("both die, extra behind", DeathOfBoth({2, 2, 2}, kExtraBehind),
             {.deaths_max = 2, .preemptions_max = 2});
}

// ---- that the exploration finds what it is for

bool PublishByReleaseOnly(Ring& ring, const CursorPage& cursor,
                          uint64_t published, const Cell& cell) {
  ring.cells[published].batch = cell;
  ring.cells[published].generation.store(published + 1,
                                         std::memory_order_release);
  return cursor.waiting.load(std::memory_order_acquire) != 0;
}

bool ArmWaitByReleaseOnly(const Ring& ring, CursorPage& cursor) {
  cursor.waiting.store(1, std::memory_order_release);
  const uint64_t taken = cursor.taken.load(std::memory_order_relaxed);
  return ring.cells[taken].generation.load(std::memory_order_acquire) !=
             taken + 1 &&
         ring.closed.load(std::memory_order_acquire) ==
             static_cast<uint32_t>(Closed::kOpen);
}

// The broker waits for a release and so never closes the ring over the loss.
class WrongHandshakeTest : public RingSimulationTest {
 protected:
  const Scenario scenario_ =
      Delivery({2, 1, 1}, {PublishByReleaseOnly, ArmWaitByReleaseOnly});
};

TEST_F(WrongHandshakeTest, LosesAWakeUpOnX86) {
  const Result result = All("wrong (TSO)", {.memory = Memory::kTso}, scenario_);
  ASSERT_TRUE(result.failed);
  EXPECT_THAT(result.message, testing::HasSubstr("sleep for ever"));
}

TEST_F(WrongHandshakeTest, LosesAWakeUpInCpp) {
  EXPECT_TRUE(All("wrong (C++)", {.memory = Memory::kCpp}, scenario_).failed);
}

// So interleaving alone would not detect it.
TEST_F(WrongHandshakeTest, IsRightWhereStoresAreSeenAtOnce) {
  const Result result =
      All("wrong (sequential)", {.memory = Memory::kSequential}, scenario_);
  EXPECT_FALSE(result.failed) << result.message;
  EXPECT_TRUE(result.exhausted);
}

TEST_F(WrongHandshakeTest, ItsFailureCanBeRunAgain) {
  const Result found = Explore({}, scenario_);
  const Result again = simulation::Replay({}, scenario_, found.choices);
  EXPECT_TRUE(again.failed);
  EXPECT_EQ(again.message, found.message);
}

TEST_F(WrongHandshakeTest, ItsRandomFailureIsGivenBySeed) {
  const Result found = simulation::ExploreRandomly({}, scenario_, 1, 100'000);
  ASSERT_TRUE(found.failed);
  const Result again = simulation::RunSeed({}, scenario_, found.seed);
  EXPECT_EQ(again.message, found.message);
}

}  // namespace
}  // namespace penstock
