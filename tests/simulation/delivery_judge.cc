#include "tests/simulation/delivery_judge.h"

#include <algorithm>
#include <map>
#include <set>

namespace penstock::delivery_simulation {

void CheckEnd(World& world) {
  Run& run = world.run;
  for (const uint64_t position : world.marked_first) {
    const auto& owed = world.config.start.owed;
    const bool owed_marked =
        std::any_of(owed.begin(), owed.end(), [&](const RowRange& range) {
          return range.redelivered && range.position == position;
        });
    run.Check(owed_marked || world.CountsAsTaken(position),
              "the batch at {} was marked, but no process had it", position);
  }
  const Config& config = world.config;
  const Plan plan = world.MakePlan();
  const bool shrink = config.options.on_rank_death == OnRankDeath::kShrink;
  std::set<uint32_t> numbers;
  for (uint32_t i = 0; i < config.world; ++i) numbers.insert(i);
  for (uint32_t i = config.world - config.late; i < config.world; ++i) {
    run.Check(world.finished.contains(i), "rank {} did not get the end", i);
  }
  if (world.broadcast()) {
    std::set<uint64_t> all;
    for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
      all.insert(plan.PositionOf(step));
    }
    if (shrink) {
      // Positions are given up: a replacement joins where the others are.
      std::map<int, uint64_t> next;  // process -> position
      for (const Returned& each : world.returned) {
        const uint64_t position = each.content.position;
        const auto expected = next.emplace(each.process, position).first;
        run.Check(position == expected->second,
                  "a consumer got the batch at {}, not {}", position,
                  expected->second);
        expected->second += config.batch;
      }
      if (config.world > 1) return;
      for (const uint64_t position : all) {
        const bool had = std::any_of(
            world.steps.begin(), world.steps.end(),
            [&](const auto& of) { return of.second.contains(position); });
        run.Check(had || world.CountsAsTaken(position),
                  "no consumer was given the batch at {}", position);
      }
      return;
    }
    for (const uint32_t number : numbers) {
      const size_t count = world.steps[number].size();
      // A rank that dies after taking all need not be told the end.
      if (!world.finished.contains(number) && count < all.size()) {
        run.Check(config.options.lag == Lag::kFail,
                  "consumer {} did not get the end", number);
        continue;
      }
      run.Check(count + world.missed[number] == all.size(),
                "consumer {} got {} batches and missed {} of {}", number, count,
                world.missed[number], all.size());
      run.Check(config.options.lag == Lag::kSkip || world.missed[number] == 0,
                "consumer {} missed {}", number, world.missed[number]);
    }
    run.Check(!world.finished.empty(), "nobody finished");
    return;
  }
  for (uint64_t row = 0; row < config.records; ++row) {
    const auto has = [&](const RowRange& range) {
      return row - range.position < range.rows;
    };
    if (row < config.start.position &&
        std::none_of(config.start.owed.begin(), config.start.owed.end(), has)) {
      continue;
    }
    run.Check(world.Done(row), "row {} is lost", row);
  }
  if (config.options.mode == DeliveryMode::kSplit && !shrink) {
    for (const uint32_t number : numbers) {
      run.Check(world.steps[number].size() == *plan.total_steps(),
                "rank {} took {} steps of {}", number,
                world.steps[number].size(), *plan.total_steps());
    }
  }
}

}  // namespace penstock::delivery_simulation
