// Plans of a job, one for each set of ranks that it had in turn
// (on_rank_death: shrink begins another), and places in them.
//
// Threads: any broker thread that holds the job's mutex.
#ifndef BROKER_DELIVERY_PHASES_H_
#define BROKER_DELIVERY_PHASES_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "broker/plan/plan.h"
#include "common/layout.h"
#include "common/status.h"

namespace penstock {

// A change of the set of ranks at some step (on_rank_death: shrink).
struct FormerPhase {
  std::vector<uint32_t> ranks;
  uint64_t boundary = 0;  // the step of the previous phase at which it begins
  PlanStart start;
};

// A step of a phase: the next one of somebody.
struct PhaseStep {
  uint32_t phase = 0;
  uint64_t step = 0;
  auto operator<=>(const PhaseStep&) const = default;
};

class Phases {
 public:
  struct Phase {
    Plan plan;
    // Those that divide each step, in order. One rank: all who get the step get
    // the same.
    std::vector<uint32_t> ranks;
    std::optional<uint64_t> end_step;  // nullopt: as the plan says
  };

  // The first phase, of ranks 0 to plan.world_size() - 1.
  explicit Phases(Plan plan);

  const Phase& operator[](uint32_t number) const { return phases_[number]; }
  uint32_t size() const { return static_cast<uint32_t>(phases_.size()); }
  const Phase& last() const { return phases_.back(); }
  bool IsLast(uint32_t number) const { return number + 1 == phases_.size(); }

  // Ranks divide steps; a rank of a job that does not is always the first.
  uint32_t RankIndexOf(uint32_t number, uint32_t rank) const;
  // It was of the first phase, and is not of the last.
  bool GoesOnWithout(uint32_t rank) const;
  Plan::RankBatch RankBatchOf(PhaseStep at, uint32_t rank) const {
    return phases_[at.phase].plan.RankBatchOf(at.step,
                                              RankIndexOf(at.phase, rank));
  }

  // The step with this StepId, which is not trusted. nullopt: there is none.
  std::optional<PhaseStep> StepOf(uint64_t id) const;
  // nullopt: forever.
  std::optional<uint64_t> EndOf(uint32_t number) const;
  // Moves on to the next phase where one is over. False: the data are over.
  bool Settle(PhaseStep* at) const;
  bool AtEnd(PhaseStep at) const { return !Settle(&at); }
  // Where it continues in order, after the owed steps.
  uint64_t PositionOf(PhaseStep at) const;
  // Where a rank that is at this position, and knows of phase, continues: after
  // all owed steps, some of which may be left to it where position <= the start
  // of that phase.
  PhaseStep Place(uint64_t position, uint32_t phase) const;
  // Positions that processes and their pages report are not trusted: none lies
  // past this.
  static uint64_t Bounded(uint64_t position) {
    return std::min(position, Plan::kTotalRowsMax);
  }

  // The last phase ends at this step, and the next one begins.
  Status Begin(const FormerPhase& next);
  void Begin(uint64_t boundary, Plan plan, std::vector<uint32_t> ranks);
  // The last phase ends at this step, if its plan does not end before.
  void EndLastAt(uint64_t step);
  // A stream ends after so many rows.
  void EndAt(uint64_t rows);

 private:
  std::vector<Phase> phases_;
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_PHASES_H_
