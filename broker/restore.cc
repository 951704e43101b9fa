#include "broker/restore.h"

#include <algorithm>

#include "broker/delivery.h"

namespace penstock {

std::vector<RestoredRank> RestoreRanks(
    const std::vector<FormerProcess>& processes,
    const std::set<std::pair<uint32_t, uint64_t>>& handed_over,
    uint64_t global_batch, std::optional<uint32_t> reconnecting) {
  std::map<uint32_t, std::vector<const FormerProcess*>> by_rank;
  for (const FormerProcess& process : processes) {
    by_rank[process.rank].push_back(&process);
  }
  std::vector<RestoredRank> ranks;
  for (const auto& [rank, of_rank] : by_rank) {
    // The last may be alive and speaks for itself; what those before it had is
    // known from their pages alone.
    // One that reconnects does so also when it has died meanwhile.
    const bool reconnects = rank == reconnecting;
    const bool last_lives = reconnects || of_rank.back()->may_live;
    if (last_lives && (!reconnects || of_rank.size() == 1)) continue;
    RestoredRank restored{rank};
    bool known = true;
    std::set<uint64_t> again;
    for (const FormerProcess* process : of_rank) {
      const bool live = process == of_rank.back() && last_lives;
      if (process->page == nullptr) {
        known = live;
        continue;
      }
      restored.position = std::max(
          restored.position, FormerPosition(*process->page, global_batch));
      for (const FormerBatch& batch : FormerBatches(*process->page)) {
        if (batch.released || live) {
          again.erase(batch.position);
        } else {
          again.insert(batch.position);
        }
      }
    }
    if (!known) continue;
    for (const uint64_t position : again) {
      if (handed_over.count({rank, position}) == 0) {
        restored.again.push_back(position);
      }
    }
    ranks.push_back(std::move(restored));
  }
  return ranks;
}

bool Supersedes(const CursorPage& later, const CursorPage& earlier,
                uint64_t global_batch) {
  return FormerPosition(later, global_batch) >=
         FormerPosition(earlier, global_batch);
}

GatheredSteps GatherSteps(
    const FormerProgress& former, const Plan& plan,
    const std::vector<FormerProcess>& processes,
    const std::map<uint32_t, ReconnectedRank>& reconnected) {
  bool all_known = true;
  std::set<uint64_t> known = former.completed;
  std::set<uint64_t> taken_by_dead;
  uint64_t lowest = UINT64_MAX;
  const auto read = [&](const CursorPage& page, bool dead) {
    for (const FormerBatch& batch : FormerBatches(page)) {
      if (dead && !batch.released) {
        taken_by_dead.insert(batch.position);
      } else {
        known.insert(batch.position);
      }
    }
  };
  for (const FormerProcess& process : processes) {
    // What one that reconnected held is Delivery's affair, dead or alive.
    if (const auto found = reconnected.find(process.rank);
        found != reconnected.end()) {
      if (found->second.page != nullptr) read(*found->second.page, false);
      // Of its predecessor, of one that was evicted, or its own of a life
      // before that one: what is not released there may be another's by now.
      if (process.page != nullptr) read(*process.page, true);
    } else if (process.may_live || process.page == nullptr) {
      all_known = false;
    } else {
      read(*process.page, true);
      if (former.options.on_rank_death == OnRankDeath::kWait) {
        lowest = std::min(lowest,
                          FormerPosition(*process.page, plan.global_batch()));
      }
    }
  }
  for (const auto& [rank, each] : reconnected) {
    lowest = std::min(lowest, each.position);
  }
  GatheredSteps gathered;
  if (former.options.mode != DeliveryMode::kDynamic) {
    gathered.position = lowest == UINT64_MAX ? plan.start().position : lowest;
    return gathered;
  }
  const auto add = [&](uint64_t position) {
    const bool taken = taken_by_dead.count(position) > 0;
    if (known.count(position) > 0) return;
    gathered.again.push_back({position, 0, taken || !all_known});
  };
  for (const RowRange& owed : plan.start().owed) add(owed.position);
  const uint64_t low = std::max(former.low, plan.start().position);
  gathered.position = std::max(former.opened, low);
  const uint64_t end = plan.StepAt(gathered.position);
  for (uint64_t step = plan.StepAt(low); step < end; ++step) {
    add(plan.PositionOf(step));
  }
  return gathered;
}

}  // namespace penstock
