#include "broker/delivery/phases.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace penstock {

Phases::Phases(Plan plan) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < plan.world_size(); ++rank) {
    ranks.push_back(rank);
  }
  phases_.push_back({std::move(plan), std::move(ranks), {}});
}

uint32_t Phases::RankIndexOf(uint32_t number, uint32_t rank) const {
  const std::vector<uint32_t>& ranks = phases_[number].ranks;
  if (ranks.size() == 1) return 0;
  // Ranks are sorted: the first phase has all, each later one fewer.
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  assert(found != ranks.end() && *found == rank);
  return static_cast<uint32_t>(found - ranks.begin());
}

bool Phases::GoesOnWithout(uint32_t rank) const {
  const std::vector<uint32_t>& ranks = last().ranks;
  return size() > 1 && !std::binary_search(ranks.begin(), ranks.end(), rank);
}

std::optional<PhaseStep> Phases::StepOf(uint64_t id) const {
  const uint32_t number = PhaseOfStep(id);
  if (number >= size()) return std::nullopt;
  const auto step = phases_[number].plan.StepFrom(PositionOfStep(id));
  if (!step || *step >= phases_[number].end_step.value_or(UINT64_MAX)) {
    return std::nullopt;
  }
  return PhaseStep{number, *step};
}

std::optional<uint64_t> Phases::EndOf(uint32_t number) const {
  const Phase& phase = phases_[number];
  return phase.end_step ? phase.end_step : phase.plan.total_steps();
}

bool Phases::Settle(PhaseStep* at) const {
  for (;; *at = {at->phase + 1, 0}) {
    const std::optional<uint64_t> end = EndOf(at->phase);
    if (!end || at->step < *end) return true;
    if (IsLast(at->phase)) return false;
  }
}

uint64_t Phases::PositionOf(PhaseStep at) const {
  const Plan& plan = phases_[at.phase].plan;
  return plan.PositionOf(std::max<uint64_t>(at.step, plan.start().owed.size()));
}

PhaseStep Phases::Place(uint64_t position, uint32_t phase) const {
  // A rank exactly where a phase begins may still be in the previous one, or
  // may have taken some of the owed steps; it says which. Settle goes on to the
  // next phase.
  const auto begin = [this](uint32_t number) {
    return phases_[number].plan.start().position;
  };
  position = Bounded(position);
  PhaseStep at{std::min(phase, size() - 1), 0};
  while (at.phase > 0 && position < begin(at.phase)) --at.phase;
  while (!IsLast(at.phase) && position > begin(at.phase + 1)) ++at.phase;
  const Plan& plan = phases_[at.phase].plan;
  at.step = plan.StepAt(position);
  // Never past the end: the position is not trusted.
  if (plan.total_steps()) at.step = std::min(at.step, *plan.total_steps());
  return at;
}

Status Phases::Begin(const FormerPhase& next) {
  PENSTOCK_ASSIGN_OR_RETURN(
      Plan plan,
      last().plan.From(next.start, static_cast<uint32_t>(next.ranks.size())));
  Begin(next.boundary, std::move(plan), next.ranks);
  return OkStatus();
}

void Phases::Begin(uint64_t boundary, Plan plan, std::vector<uint32_t> ranks) {
  phases_.back().end_step = boundary;
  phases_.push_back({std::move(plan), std::move(ranks), {}});
}

void Phases::EndLastAt(uint64_t step) {
  if (const auto total = last().plan.total_steps()) {
    step = std::min(step, *total);
  }
  phases_.back().end_step = step;
}

void Phases::EndAt(uint64_t rows) {
  for (Phase& phase : phases_) {
    if (auto plan = phase.plan.Ending(rows)) {
      phase.plan = *std::move(plan);
    } else if (&phase == &phases_.back()) {
      const uint64_t owed = phase.plan.start().owed.size();
      phase.end_step = std::min(phase.end_step.value_or(owed), owed);
    }
  }
}

}  // namespace penstock
