// Question: what does it cost to find the record at a position: of the shuffled
// order, from a thousand to a trillion records; of windows of 16 files; of a
// mix of 8 parts; of a weighted sample; of `shard: file`, once files have run
// out; and to find one by itself, as a resume does? And how well do windows of
// the files of each rank mix a step? Method: consecutive positions of one epoch
// in chunks of 64, as workers request them; the files and labels of each step
// of an epoch of sorted data. Target: 50 ns a sample.
//
//   build/tests/bench/plan_benchmark
#include <benchmark/benchmark.h>

#include <array>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "broker/plan/mix.h"
#include "broker/plan/orders.h"
#include "broker/plan/plan.h"
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

// Windows of 16 of the 1,000 files of each of so many ranks.
void WindowsOfShards(benchmark::State& state) {
  const auto count = static_cast<uint64_t>(state.range(0));
  std::vector<uint64_t> ends;
  for (uint64_t file = 1; file <= 1000; ++file) ends.push_back(file * 1000);
  std::vector<Shard> shards;
  for (uint64_t i = 0; i < count; ++i) {
    shards.push_back(
        {{{i * kMillion, 0}}, kMillion, *penstock::Windows::Make(ends, 16)});
  }
  Run(state,
      InShards(AllRecords(count * kMillion), std::move(shards), 4 * count));
}
BENCHMARK(WindowsOfShards)->Arg(8)->Arg(1024);

// Steps of 1,024 rows on 16 ranks, of 1,024 files of 1,000 records whose 64
// labels lie sorted. files: different ones in a step. chi2: of the labels of a
// step, per degree of freedom; 1 is that of rows drawn at random.
void Mixing(benchmark::State& state) {
  constexpr uint64_t kRanks = 16;
  constexpr uint64_t kFiles = 1024;
  constexpr uint64_t kOfFile = 1000;
  constexpr uint64_t kLabels = 64;
  constexpr uint64_t kBatch = 1024;
  const auto window = static_cast<uint64_t>(state.range(0));
  std::unique_ptr<Order> order = AllRecords(kFiles * kOfFile);
  if (window > 0) {
    std::vector<Shard> shards(kRanks);
    std::vector<std::vector<uint64_t>> ends(kRanks);
    for (uint64_t file = 0; file < kFiles; ++file) {
      Shard& shard = shards[file % kRanks];
      shard.runs.push_back({file * kOfFile, shard.rows});
      shard.rows += kOfFile;
      ends[file % kRanks].push_back(shard.rows);
    }
    for (uint64_t i = 0; i < kRanks; ++i) {
      shards[i].windows = *penstock::Windows::Make(ends[i], window);
    }
    order = InShards(std::move(order), std::move(shards), kBatch);
  }
  PlanSpec spec;
  spec.shuffle = ShuffleSpec{.seed = 42};
  spec.batch.size = kBatch;
  const Plan plan = *Plan::Make(spec, std::move(order), kRanks);
  std::vector<Plan::Row> rows(kBatch);
  Shuffles last;
  double files = 0;
  double chi2 = 0;
  uint64_t position = 0;
  for (auto _ : state) {
    for (uint64_t step = 0; step < plan.steps_per_epoch(); ++step) {
      rows.resize(plan.PositionOf(step + 1) - plan.PositionOf(step));
      plan.Rows(0, position, rows.size(), &last, rows.data());
      position += rows.size();
      std::set<uint64_t> of_step;
      std::array<double, kLabels> labels = {};
      for (const Plan::Row& row : rows) {
        const uint64_t file = row.record / kOfFile;
        of_step.insert(file);
        ++labels[file / (kFiles / kLabels)];
      }
      const double expected = static_cast<double>(rows.size()) / kLabels;
      for (const double count : labels) {
        chi2 += (count - expected) * (count - expected) / expected;
      }
      files += static_cast<double>(of_step.size());
    }
  }
  const auto steps = static_cast<double>(plan.steps_per_epoch());
  state.counters["files"] = files / steps;
  state.counters["chi2"] = chi2 / (steps * (kLabels - 1));
}
BENCHMARK(Mixing)->Arg(0)->RangeMultiplier(2)->Range(1, 64)->Iterations(1);

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
