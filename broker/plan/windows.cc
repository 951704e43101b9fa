#include <algorithm>
#include <optional>
#include <utility>

#include "broker/plan/file_runs.h"
#include "broker/plan/orders.h"

namespace penstock {
namespace {

// Odd, so that windows have seeds of their own; not those of parts
// (plan_spec.h) and consumers (job_layout.cc).
constexpr uint64_t kWindowStride = 0xa076'1d64'78bd'642f;

// What a thread keeps of the pass and the window that it was last in.
struct LastWindow final : Shuffles::Kept {
  explicit LastWindow(Permutation runs) : runs(std::move(runs)) {}

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

class Windowed final : public InRuns {
 public:
  Windowed(std::unique_ptr<Order> of, std::vector<uint64_t> ends,
           uint64_t files)
      : InRuns(std::move(of), std::move(ends), files) {}
  uint32_t shuffled_parts() const override { return 1; }

  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    if (shuffling.spec == nullptr) return of_->At(index, pass, shuffling);
    const uint64_t seed = shuffling.spec->SeedOf(shuffling.first_part);
    std::unique_ptr<Shuffles::Kept>& kept =
        shuffling.last->KeptOf(shuffling.first_part);
    auto* last = static_cast<LastWindow*>(kept.get());
    const uint64_t key = shuffling.spec->each_epoch ? pass : 0;
    if (last == nullptr || last->pass != key) {
      auto begun = BeginPass(seed, key);
      last = begun.get();
      kept = std::move(begun);
    }
    if (index < last->begin || index >= last->end) {
      EnterWindow(index, seed, last);
    }
    const uint64_t row = (*last->rows)(index - last->begin);
    const auto run = std::upper_bound(
        last->files.begin(), last->files.end(), row,
        [](uint64_t row, const LastWindow::Run& run) { return row < run.end; });
    const uint64_t before =
        run == last->files.begin() ? 0 : std::prev(run)->end;
    return of_->At(run->begin + row - before, pass, shuffling);
  }

 private:
  std::unique_ptr<LastWindow> BeginPass(uint64_t seed, uint64_t key) const {
    auto last = std::make_unique<LastWindow>(Permutation(runs(), seed, key));
    last->pass = key;
    last->ends.reserve(windows());
    uint64_t rows = 0;
    for (uint64_t i = 0; i < runs(); ++i) {
      rows += SizeOf(last->runs(i));
      if ((i + 1) % files_ == 0 || i + 1 == runs()) last->ends.push_back(rows);
    }
    return last;
  }

  void EnterWindow(uint64_t index, uint64_t seed, LastWindow* last) const {
    const auto window = static_cast<uint64_t>(
        std::upper_bound(last->ends.begin(), last->ends.end(), index) -
        last->ends.begin());
    last->begin = window == 0 ? 0 : last->ends[window - 1];
    last->end = last->ends[window];
    last->files.clear();
    uint64_t rows = 0;
    const uint64_t first = window * files_;
    for (uint64_t i = first; i < std::min(first + files_, runs()); ++i) {
      const uint64_t run = last->runs(i);
      rows += SizeOf(run);
      last->files.push_back({rows, BeginOf(run)});
    }
    last->rows.emplace(rows, seed + (window + 1) * kWindowStride, last->pass);
  }
};

}  // namespace

StatusOr<std::unique_ptr<Order>> ShuffleWindows(std::unique_ptr<Order> of,
                                                std::vector<uint64_t> run_ends,
                                                uint64_t files) {
  const uint64_t windows = (run_ends.size() + files - 1) / files;
  if (windows > kWindowsMax) {
    return InvalidArgumentError(
        "{} files in windows of {}: more than {} windows; take a larger window",
        run_ends.size(), files, kWindowsMax);
  }
  return std::unique_ptr<Order>(
      std::make_unique<Windowed>(std::move(of), std::move(run_ends), files));
}

StatusOr<std::unique_ptr<Order>> InWindows(const ShuffleSpec& shuffle,
                                           std::unique_ptr<Order> of,
                                           const SelectContext& context) {
  if (!shuffle.window_files) return of;
  auto runs = ReadRunsOf(*of, context);
  if (!runs.ok()) return runs.status().Prepend("shuffle.window_files");
  if (*shuffle.window_files > runs->size()) {
    return InvalidArgumentError(
        "shuffle.window_files: windows of {} files, and there are {}: give "
        "fewer, or leave window_files out, which shuffles all records together",
        *shuffle.window_files, runs->size());
  }
  auto windows =
      ShuffleWindows(std::move(of), *std::move(runs), *shuffle.window_files);
  if (!windows.ok()) return windows.status().Prepend("shuffle.window_files");
  return windows;
}

}  // namespace penstock
