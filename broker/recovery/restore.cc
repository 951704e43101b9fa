#include "broker/recovery/restore.h"

#include <algorithm>

namespace penstock {
namespace {

struct FormerPage {
  uint64_t position;
  std::vector<FormerBatch> batches;
};

// A batch that its process takes meanwhile, which was evicted and lives, is in
// both or in neither.
FormerPage Read(const CursorPage& page, const Plan& plan) {
  constexpr int kTries = 100;  // it may do so for ever
  FormerPage read = {FormerPosition(page, plan), {}};
  for (int i = 0; i < kTries; ++i) {
    read.batches = FormerBatches(page);
    const uint64_t after = FormerPosition(page, plan);
    if (std::exchange(read.position, after) == after) break;
  }
  return read;
}

}  // namespace

std::vector<Delivery::FormerConsumer> RestoreRanks(
    const std::vector<FormerProcess>& processes,
    const HandedOverSteps& handed_over, const Plan& plan) {
  std::map<uint32_t, std::vector<const FormerProcess*>> by_rank;
  for (const FormerProcess& process : processes) {
    by_rank[process.rank].push_back(&process);
  }
  std::vector<Delivery::FormerConsumer> ranks;
  for (const auto& [rank, of_rank] : by_rank) {
    const FormerProcess& last = *of_rank.back();
    if (last.reconnects ? of_rank.front()->reconnects : last.may_live) continue;
    Delivery::FormerConsumer restored;
    restored.rank = rank;
    restored.left = last.left;
    restored.reconnects = last.reconnects;
    bool known = true;
    std::set<uint64_t> redo;
    for (const FormerProcess* process : of_rank) {
      if (process->page == nullptr) {
        known = process->reconnects;
        continue;
      }
      const FormerPage page = Read(*process->page, plan);
      restored.position =
          std::max({restored.position, process->from, page.position});
      // What an evicted one took after its place was free, this one had in
      // turn.
      std::erase_if(redo, [&](uint64_t step) {
        const uint64_t begin = PositionOfStep(step);
        return process->from <= begin && begin < page.position;
      });
      for (const FormerBatch& batch : page.batches) {
        restored.phase = std::max(restored.phase, PhaseOfStep(batch.step));
        if (batch.released || process->reconnects || process->left) {
          redo.erase(batch.step);
          restored.done.insert(batch.step);
        } else {
          redo.insert(batch.step);
        }
      }
    }
    if (!known) continue;
    for (const auto& [of, step] : handed_over) {
      if (of != rank) continue;
      restored.phase = std::max(restored.phase, PhaseOfStep(step));
      restored.done.insert(step);
    }
    for (const uint64_t step : redo) {
      if (restored.done.count(step) == 0) restored.redo.push_back(step);
    }
    ranks.push_back(std::move(restored));
  }
  return ranks;
}

bool Supersedes(const CursorPage& later, const CursorPage& earlier,
                const Plan& plan) {
  return FormerPosition(later, plan) >= FormerPosition(earlier, plan);
}

namespace {

// Limit of believed steps behind the recorded opened ones.
constexpr uint64_t kSeenAheadMax = 65'536;

// False if the former broker instance released rows of the step: they cannot be
// made again.
bool IsHere(const std::vector<RowRange>& here, const Plan& plan, uint64_t id) {
  const auto step = plan.StepFrom(PositionOfStep(id));
  if (here.empty() || !step) return true;
  const Plan::RankBatch rows = plan.RankBatchOf(*step, 0);
  return std::any_of(here.begin(), here.end(), [&](const RowRange& range) {
    return range.position <= rows.position &&
           rows.position + rows.global_rows <= range.position + range.rows;
  });
}

// The first step from which on the former broker instance kept all rows.
uint64_t FirstWhole(const std::vector<RowRange>& here, const Plan& plan) {
  const uint64_t begin = plan.start().position;
  if (here.empty()) return begin;
  return std::max(begin, plan.PositionOf(plan.StepAt(here.back().position)));
}

// The lane continues at the rearmost rank. With a lag other than block it
// continues at most a window behind the foremost rank, and not where rows of a
// stream are gone. Ranks further back were skipped or dropped; the others would
// wait for them.
Delivery::FormerSteps GatherBroadcast(
    const FormerProgress& former, const Plan& plan,
    const std::vector<FormerProcess>& processes,
    const std::map<uint32_t, ReconnectedRank>& reconnected) {
  Delivery::FormerSteps gathered;
  gathered.position = UINT64_MAX;
  gathered.started = false;
  // A rank without a kept page counts as having had batches if it may have, so
  // that no rank waits in vain.
  const auto had_any = [&](const CursorPage* page) {
    if (page == nullptr) return former.all_came;
    return page->taken.load(std::memory_order_relaxed) > 0 ||
           page->position.load(std::memory_order_relaxed) >
               plan.start().position;
  };
  for (const auto& [rank, each] : reconnected) {
    gathered.started |= had_any(each.page);
  }
  for (const FormerProcess& process : processes) {
    gathered.started |= had_any(process.page);
  }
  uint64_t foremost = 0;
  for (const auto& [rank, each] : reconnected) {
    foremost = std::max(foremost, plan.StepAt(each.position));
  }
  if (former.options.on_rank_death == OnRankDeath::kWait) {
    for (Delivery::FormerConsumer& each :
         RestoreRanks(processes, former.handed_over, plan)) {
      if (each.left) continue;
      foremost = std::max(foremost, plan.StepAt(each.position));
      gathered.consumers.push_back(std::move(each));
    }
  }
  uint64_t begin = FirstWhole(former.here, plan);
  const bool may_pass = former.options.lag != Lag::kBlock;
  if (may_pass) {
    const uint64_t window = former.options.window;
    begin =
        std::max(begin, plan.PositionOf(foremost - std::min(foremost, window)));
    std::erase_if(gathered.consumers, [&](Delivery::FormerConsumer& each) {
      const size_t gone = std::erase_if(each.redo, [&](uint64_t id) {
        return !IsHere(former.here, plan, id);
      });
      return former.options.lag == Lag::kFail &&
             (gone > 0 || each.position < begin);
    });
  }
  for (const auto& [rank, each] : reconnected) {
    gathered.position = std::min(gathered.position, each.position);
  }
  for (const Delivery::FormerConsumer& each : gathered.consumers) {
    if (reconnected.count(each.rank) > 0) continue;
    gathered.position = std::min(gathered.position, each.position);
  }
  if (gathered.position != UINT64_MAX) {
    if (may_pass) gathered.position = std::max(gathered.position, begin);
    return gathered;
  }
  // No rank continues: the next one joins where the foremost was.
  gathered.position = begin;
  for (const Delivery::FormerConsumer& each :
       RestoreRanks(processes, former.handed_over, plan)) {
    gathered.position = std::max(gathered.position, each.position);
  }
  return gathered;
}

}  // namespace

std::optional<uint32_t> UnknownConsumer(
    const FormerProgress& former, const std::vector<FormerProcess>& processes,
    const std::map<uint32_t, ReconnectedRank>& reconnected) {
  // Before all ranks attached, none had anything. Unless on_rank_death is wait,
  // reconnected ranks go on without ranks of unknown progress.
  if (former.options.mode != DeliveryMode::kBroadcast || !former.all_came ||
      (former.options.on_rank_death != OnRankDeath::kWait &&
       !reconnected.empty())) {
    return std::nullopt;
  }
  std::map<uint32_t, const FormerProcess*> last;
  for (const FormerProcess& process : processes) last[process.rank] = &process;
  for (const auto& [rank, process] : last) {
    if (process->page == nullptr && !process->left &&
        reconnected.count(rank) == 0) {
      return rank;
    }
  }
  return std::nullopt;
}

Delivery::FormerSteps GatherSteps(
    const FormerProgress& former, const Plan& plan,
    const std::vector<FormerProcess>& processes,
    const std::map<uint32_t, ReconnectedRank>& reconnected) {
  if (former.options.mode == DeliveryMode::kBroadcast) {
    return GatherBroadcast(former, plan, processes, reconnected);
  }
  bool all_known = !former.incomplete;
  uint64_t seen = 0;  // behind the last batch any rank has had
  // Pages are untrusted.
  const uint64_t believed =
      plan.StepAt(std::max(former.opened, former.low)) + kSeenAheadMax;
  std::set<uint64_t> known = former.completed;
  std::set<uint64_t> released;
  std::set<uint64_t> taken_by_dead;
  const auto read = [&](const CursorPage& page, bool dead, bool left = false) {
    for (const FormerBatch& batch : FormerBatches(page)) {
      const uint64_t position = PositionOfStep(batch.step);
      const auto step = plan.StepFrom(position);
      if (step && *step < believed) {
        seen = std::max(seen, plan.PositionOf(*step + 1));
      }
      if (batch.released || left) released.insert(position);
      (dead && !batch.released ? taken_by_dead : known).insert(position);
    }
  };
  for (const FormerProcess& process : processes) {
    // Delivery handles what a reconnected rank held, dead or alive.
    if (const auto found = reconnected.find(process.rank);
        found != reconnected.end()) {
      if (found->second.page != nullptr) read(*found->second.page, false);
      // The page of a predecessor or an evicted process, or its own of an
      // earlier broker instance: unreleased batches there may be another
      // rank's by now.
      if (process.page != nullptr) read(*process.page, true);
    } else if (process.may_live || process.page == nullptr) {
      all_known = false;
    } else {
      read(*process.page, !process.left, process.left);
    }
  }
  Delivery::FormerSteps gathered;
  const auto add = [&](uint64_t position, bool redelivered) {
    const bool taken = taken_by_dead.count(position) > 0;
    if (known.count(position) > 0) return;
    gathered.redo.push_back({position, 0, redelivered || taken || !all_known});
  };
  for (const RowRange& owed : plan.start().owed) {
    add(owed.position, owed.redelivered);
  }
  const uint64_t low = std::max(former.low, plan.start().position);
  gathered.completed.assign(released.begin(), released.end());
  // Opened is recorded first; otherwise records are missing.
  if (plan.StepAt(seen) > plan.StepAt(former.opened)) all_known = false;
  gathered.position = std::max({former.opened, low, seen});
  const uint64_t end = plan.StepAt(gathered.position);
  for (uint64_t step = plan.StepAt(low); step < end; ++step) {
    add(plan.PositionOf(step), false);
  }
  return gathered;
}

}  // namespace penstock
