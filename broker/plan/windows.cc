#include "broker/plan/windows.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "broker/plan/file_runs.h"
#include "broker/plan/orders.h"

namespace penstock {
namespace {

// Odd, so that windows have seeds of their own; not those of parts
// (plan_spec.h) and consumers (job_layout.cc).
constexpr uint64_t kWindowStride = 0xa076'1d64'78bd'642f;

class Windowed final : public Derived {
 public:
  Windowed(std::unique_ptr<Order> of, Windows windows)
      : Derived(std::move(of), of->size()), windows_(std::move(windows)) {}
  uint32_t shuffled_parts() const override { return 1; }
  uint64_t memory_bytes() const override {
    return of_->memory_bytes() + windows_.memory_bytes();
  }

  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    if (shuffling.spec != nullptr) {
      index = windows_.Of(index, pass, *shuffling.spec, shuffling.first_part,
                          shuffling.last);
    }
    return of_->At(index, pass, shuffling);
  }

 private:
  const Windows windows_;
};

}  // namespace

// What a thread keeps of the pass and the window that it was last in.
struct Windows::Last final : Shuffles::Kept {
  explicit Last(Permutation runs) : runs(std::move(runs)) {}

  Permutation runs;  // the files, as they come in the pass
  uint64_t pass = 0;
  std::vector<uint64_t> ends;  // of windows, in rows of the pass

  uint64_t begin = 0;  // of the window
  uint64_t end = 0;    // 0: none yet
  struct Run {
    uint64_t end = 0;    // in the window
    uint64_t begin = 0;  // in the order
  };
  std::vector<Run> files;
  std::optional<Permutation> rows;
};

StatusOr<Windows> Windows::Make(std::vector<uint64_t> run_ends,
                                uint64_t files) {
  const uint64_t windows = (run_ends.size() + files - 1) / files;
  if (windows > kWindowsMax) {
    return InvalidArgumentError(
        "{} files in windows of {}: more than {} windows; take a larger window",
        run_ends.size(), files, kWindowsMax);
  }
  return Windows(std::move(run_ends), files);
}

StatusOr<Windows> Windows::In(const Order& order, uint64_t files,
                              const SelectContext& context) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<uint64_t> runs,
                            ReadRunsOf(order, context));
  if (files > runs.size()) {
    return InvalidArgumentError(
        "windows of {} files, and there are {}: give fewer, or leave "
        "window_files out, which shuffles all records together",
        files, runs.size());
  }
  return Make(std::move(runs), files);
}

uint64_t Windows::Of(uint64_t index, uint64_t pass, const ShuffleSpec& shuffle,
                     uint32_t part, Shuffles* shuffles) const {
  const uint64_t seed = shuffle.SeedOf(part);
  std::unique_ptr<Shuffles::Kept>& kept = shuffles->KeptOf(part);
  auto* last = static_cast<Last*>(kept.get());
  const uint64_t key = shuffle.each_epoch ? pass : 0;
  if (last == nullptr || last->pass != key) {
    auto begun = BeginPass(seed, key);
    last = begun.get();
    kept = std::move(begun);
  }
  if (index < last->begin || index >= last->end) Enter(index, seed, last);
  const uint64_t row = (*last->rows)(index - last->begin);
  const auto run = std::upper_bound(
      last->files.begin(), last->files.end(), row,
      [](uint64_t row, const Last::Run& run) { return row < run.end; });
  const uint64_t before = run == last->files.begin() ? 0 : std::prev(run)->end;
  return run->begin + row - before;
}

std::unique_ptr<Windows::Last> Windows::BeginPass(uint64_t seed,
                                                  uint64_t key) const {
  const uint64_t runs = ends_.size();
  auto last = std::make_unique<Last>(Permutation(runs, seed, key));
  last->pass = key;
  last->ends.reserve((runs + files_ - 1) / files_);
  uint64_t rows = 0;
  for (uint64_t i = 0; i < runs; ++i) {
    rows += SizeOf(last->runs(i));
    if ((i + 1) % files_ == 0 || i + 1 == runs) last->ends.push_back(rows);
  }
  return last;
}

void Windows::Enter(uint64_t index, uint64_t seed, Last* last) const {
  const auto window = static_cast<uint64_t>(
      std::upper_bound(last->ends.begin(), last->ends.end(), index) -
      last->ends.begin());
  last->begin = window == 0 ? 0 : last->ends[window - 1];
  last->end = last->ends[window];
  last->files.clear();
  uint64_t rows = 0;
  const uint64_t first = window * files_;
  for (uint64_t i = first; i < std::min(first + files_, ends_.size()); ++i) {
    const uint64_t run = last->runs(i);
    rows += SizeOf(run);
    last->files.push_back({rows, BeginOf(run)});
  }
  last->rows.emplace(rows, seed + (window + 1) * kWindowStride, last->pass);
}

StatusOr<std::unique_ptr<Order>> ShuffleWindows(std::unique_ptr<Order> of,
                                                std::vector<uint64_t> run_ends,
                                                uint64_t files) {
  PENSTOCK_ASSIGN_OR_RETURN(Windows windows,
                            Windows::Make(std::move(run_ends), files));
  return std::unique_ptr<Order>(
      std::make_unique<Windowed>(std::move(of), std::move(windows)));
}

StatusOr<std::unique_ptr<Order>> InWindows(const ShuffleSpec& shuffle,
                                           std::unique_ptr<Order> of,
                                           const SelectContext& context) {
  if (!shuffle.window_files) return of;
  auto windows = Windows::In(*of, *shuffle.window_files, context);
  if (!windows.ok()) return windows.status().Prepend("shuffle.window_files");
  return std::unique_ptr<Order>(
      std::make_unique<Windowed>(std::move(of), *std::move(windows)));
}

}  // namespace penstock
