// Question: what does it cost to find the record at a position of the shuffled
// order, from a thousand to a trillion records? Method: consecutive positions
// of one epoch in chunks of 64, as workers request them. Target: 50 ns a
// sample.
//
//   build/tests/bench/plan_benchmark
#include <benchmark/benchmark.h>

#include <array>

#include "broker/plan/plan.h"

namespace penstock {
namespace {

void PositionToRecord(benchmark::State& state) {
  const auto records = static_cast<uint64_t>(state.range(0));
  PlanSpec spec;
  spec.shuffle = ShuffleSpec{42, true};
  spec.batch.size = 256;
  const StatusOr<Plan> plan = Plan::Make(spec, records, 1);
  if (!plan.ok()) {
    state.SkipWithError(plan.status().message().c_str());
    return;
  }
  std::array<Plan::Row, 64> rows;
  Plan::OrderCache order;
  uint64_t position = 0;
  for (auto _ : state) {
    plan->Rows(0, position, rows.size(), &order, rows.data());
    benchmark::DoNotOptimize(rows.data());
    position = (position + rows.size()) % (records - rows.size());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(rows.size()));
  state.counters["per_sample"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * rows.size(),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(PositionToRecord)->RangeMultiplier(1000)->Range(1000, 1000000000000);

}  // namespace
}  // namespace penstock

BENCHMARK_MAIN();
