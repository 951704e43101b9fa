// Question: how full are packed sequences (batch.pack), what does packing cost
// a document, and what does a sequence cost once its window is known? Method:
// windows of 65,536 documents, of lengths as text of the web has them
// (log-normal, median 490 tokens), or of those in a file, one a line: the words
// of the entries of Debian's changelogs, for example. The whole is what a
// dataset does when it is opened, but on one thread. Target: 99 % full by best
// fit.
//
//   build/tests/bench/packing_benchmark
//   zcat -f /usr/share/doc/*/changelog* |
//     awk '/^ -- /{print n; n = 0; next} {n += NF}' > lengths
//   build/tests/bench/packing_benchmark lengths
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "broker/plan/packing.h"

namespace penstock {
namespace {

constexpr size_t kDocuments = 1 << 18;

std::vector<int64_t>& Lengths() {
  static std::vector<int64_t> lengths;
  return lengths;
}

void MakeLengths() {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> each(6.2, 1.2);
  while (Lengths().size() < kDocuments) {
    Lengths().push_back(
        std::clamp<int64_t>(std::llround(each(random)), 1, 200'000));
  }
}

StatusOr<std::shared_ptr<const Packing>> Pack(PackSpec::Method method,
                                              uint64_t length) {
  Packing::Options options;
  options.spec.length = length;
  options.spec.method = method;
  options.shuffle = ShuffleSpec{.seed = 1};
  options.lengths = {
      "length", [](uint64_t record) { return ColumnValue(Lengths()[record]); }};
  std::vector<std::unique_ptr<Order>> documents;
  documents.push_back(AllRecords(Lengths().size()));
  return Packing::Make(
      std::move(options), std::move(documents),
      [](size_t count, const std::function<Status(size_t)>& work) -> Status {
        for (size_t i = 0; i < count; ++i) {
          PENSTOCK_RETURN_IF_ERROR(work(i));
        }
        return OkStatus();
      },
      {}, [](uint64_t) {});
}

template <PackSpec::Method method>
void Whole(benchmark::State& state) {
  double fill = 0;
  uint64_t documents = 0;
  for (auto _ : state) {
    const auto packing = Pack(method, static_cast<uint64_t>(state.range(0)));
    if (!packing.ok()) {
      return state.SkipWithError(packing.status().message().c_str());
    }
    fill = 100 * (*packing)->fill();
    documents += Lengths().size();
  }
  state.counters["full_percent"] = fill;
  state.counters["per_document"] = benchmark::Counter(
      static_cast<double>(documents),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(Whole<PackSpec::Method::kBestFit>)->Arg(2048)->Arg(4096)->Arg(131072);
BENCHMARK(Whole<PackSpec::Method::kFirstFit>)
    ->Arg(2048)
    ->Arg(4096)
    ->Arg(131072);
BENCHMARK(Whole<PackSpec::Method::kSplit>)->Arg(4096);

void SequenceOfAKnownWindow(benchmark::State& state) {
  const auto packing = Pack(PackSpec::Method::kBestFit, 4096);
  if (!packing.ok()) {
    return state.SkipWithError(packing.status().message().c_str());
  }
  std::vector<Piece> pieces;
  const uint64_t most = (*packing)->totals().sequences;
  uint64_t sequence = 0;
  for (auto _ : state) {
    (*packing)->PiecesOf(sequence, 0, &pieces);
    benchmark::DoNotOptimize(pieces.data());
    sequence = (sequence + 1) % most;
  }
}
BENCHMARK(SequenceOfAKnownWindow);

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc > 1) {
    std::ifstream file(argv[1]);
    for (int64_t length; file >> length;) {
      penstock::Lengths().push_back(length);
    }
  } else {
    penstock::MakeLengths();
  }
  if (penstock::Lengths().empty()) {
    std::cerr << argv[1] << ": no numbers, one a line\n";
    return 2;
  }
  std::cout << penstock::Lengths().size() << " documents\n";
  benchmark::RunSpecifiedBenchmarks();
}
