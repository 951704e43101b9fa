// Question: what does it cost to find the record at a position: of the shuffled
// order, from a thousand to a trillion records; of windows of 16 files; of a
// mix of 8 parts; of a weighted sample; of `shard: file`, once files have run
// out; and to find one by itself, as a resume does? Method: consecutive
// positions of one epoch in chunks of 64, as workers request them. Target: 50
// ns a sample.
//
//   build/tests/bench/plan_benchmark
#include <benchmark/benchmark.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "broker/plan/mix.h"
#include "broker/plan/plan.h"
#include "broker/plan/orders.h"
#include "broker/plan/shard_steps.h"

namespace penstock {
namespace {

constexpr uint64_t kMillion = 1'000'000;

void Run(benchmark::State& state, std::shared_ptr<const Order> order) {
  PlanSpec spec;
  spec.shuffle = ShuffleSpec{.seed = 42};
  spec.batch.size = 256;
  const StatusOr<Plan> plan = Plan::Make(spec, std::move(order), 1);
  if (!plan.ok()) {
    state.SkipWithError(plan.status().message().c_str());
    return;
  }
  std::array<Plan::Row, 64> rows;
  Shuffles last;
  uint64_t position = 0;
  for (auto _ : state) {
    plan->Rows(0, position, rows.size(), &last, rows.data());
    benchmark::DoNotOptimize(rows.data());
    position = (position + rows.size()) % (plan->records() - rows.size());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(rows.size()));
  state.counters["per_sample"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * rows.size(),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void PositionToRecord(benchmark::State& state) {
  Run(state, AllRecords(static_cast<uint64_t>(state.range(0))));
}
BENCHMARK(PositionToRecord)->RangeMultiplier(1000)->Range(1000, 1000000000000);

// A million records in so many files.
std::unique_ptr<Order> InWindows(uint64_t files) {
  std::vector<uint64_t> ends;
  for (uint64_t file = 1; file <= files; ++file) {
    ends.push_back(file * kMillion / files);
  }
  return *ShuffleWindows(AllRecords(kMillion), std::move(ends), 16);
}

void Windows(benchmark::State& state) {
  Run(state, InWindows(static_cast<uint64_t>(state.range(0))));
}
BENCHMARK(Windows)->Arg(1000)->Arg(100000);

void MixOf8(benchmark::State& state) {
  std::vector<std::unique_ptr<Order>> parts;
  for (uint64_t i = 0; i < 8; ++i) {
    parts.push_back(AllRecords(kMillion, i * kMillion));
  }
  Run(state, *Mix(std::move(parts), {{0, {8, 7, 6, 5, 4, 3, 2, 1}}},
                  WhenOut::kRepeat, {}));
}
BENCHMARK(MixOf8);

void Sample(benchmark::State& state) {
  std::vector<double> weights;
  for (uint64_t i = 0; i < kMillion; ++i) {
    weights.push_back(static_cast<double>(i % 7));
  }
  Run(state, Draw(AllRecords(kMillion), kMillion, 1, std::move(weights)));
}
BENCHMARK(Sample);

// So many ranks have a file each; one of each two has run out.
void Shards(benchmark::State& state) {
  const auto count = static_cast<uint64_t>(state.range(0));
  std::vector<Shard> shards;
  uint64_t rows = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t of_file = i % 2 == 0 ? kMillion : 100 + i;
    shards.push_back({{{rows, 0}}, of_file});
    rows += of_file;
  }
  Run(state, InShards(AllRecords(rows), std::move(shards), 4 * count));
}
BENCHMARK(Shards)->Arg(8)->Arg(1024);

// One row of a pass that a thread was not in.
void ResumeInWindows(benchmark::State& state) {
  const auto order = InWindows(static_cast<uint64_t>(state.range(0)));
  const ShuffleSpec shuffle = {.seed = 42};
  uint64_t row = 0;
  for (auto _ : state) {
    Shuffles none;
    benchmark::DoNotOptimize(order->At(row, 0, {&shuffle, &none}));
    row = (row + 7919) % kMillion;
  }
}
BENCHMARK(ResumeInWindows)->Arg(1000)->Arg(100000);

}  // namespace
}  // namespace penstock

BENCHMARK_MAIN();
