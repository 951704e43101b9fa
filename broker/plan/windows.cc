#include "broker/plan/windows.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace penstock {
namespace {

// Odd, so that windows have seeds of their own; not those of parts
// (plan_spec.h) and consumers (job_layout.cc).
constexpr uint64_t kWindowStride = 0xa076'1d64'78bd'642f;

class InRuns : public Order {
 public:
  bool repeats() const override { return of_->repeats(); }
  uint64_t memory_bytes() const override {
    return of_->memory_bytes() + ends_.capacity() * sizeof(uint64_t);
  }

 protected:
  InRuns(std::unique_ptr<Order> of, std::vector<uint64_t> ends, uint64_t files)
      : Order(of->size()),
        of_(std::move(of)),
        ends_(std::move(ends)),
        files_(files) {}

  uint64_t BeginOf(uint64_t run) const { return run == 0 ? 0 : ends_[run - 1]; }
  uint64_t SizeOf(uint64_t run) const { return ends_[run] - BeginOf(run); }
  uint64_t runs() const { return ends_.size(); }
  uint64_t windows() const { return (runs() + files_ - 1) / files_; }

  const std::unique_ptr<Order> of_;
  const std::vector<uint64_t> ends_;
  const uint64_t files_;  // of a window
};

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

class Interleaved final : public InRuns {
 public:
  Interleaved(std::unique_ptr<Order> of, std::vector<uint64_t> ends,
              uint64_t files, uint64_t block)
      : InRuns(std::move(of), std::move(ends), files), block_(block) {}

  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    // A window has the rows that its runs have in their order.
    const auto at = static_cast<uint64_t>(
        std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const uint64_t first = at / files_ * files_;
    const uint64_t last = std::min(first + files_, runs());
    uint64_t left = index - BeginOf(first);
    // The last round that begins at or before the row.
    const auto before = [&](uint64_t round) {
      uint64_t rows = 0;
      for (uint64_t run = first; run < last; ++run) {
        rows += std::min(SizeOf(run), round * block_);
      }
      return rows;
    };
    uint64_t round = 0;
    uint64_t beyond = left / block_ + 1;  // a round has a block at least
    while (beyond - round > 1) {
      const uint64_t middle = round + (beyond - round) / 2;
      (before(middle) <= left ? round : beyond) = middle;
    }
    left -= before(round);
    uint64_t run = first;
    for (;; ++run) {
      const uint64_t size = SizeOf(run);
      const uint64_t taken = std::min(size, round * block_);
      const uint64_t here = std::min(block_, size - taken);
      if (left < here)
        return of_->At(BeginOf(run) + taken + left, pass, shuffling);
      left -= here;
    }
  }

 private:
  const uint64_t block_;
};

}  // namespace

StatusOr<std::vector<uint64_t>> FileRuns(
    const Order& order,
    const std::function<bool(uint64_t, uint64_t)>& same_file,
    const OrderBudget& budget) {
  constexpr uint64_t kRunsAtOnce = 1 << 16;
  if (order.repeats() || order.shuffled_parts() > 0) {
    return InvalidArgumentError(
        "the records of a file come in several places of a pass: it goes with "
        "no repeat, sample, balance or mix");
  }
  const auto record = [&](uint64_t i) { return order.At(i, 0, {}).record; };
  std::vector<uint64_t> ends;
  for (uint64_t begin = 0; begin < order.size();) {
    if (ends.size() % kRunsAtOnce == 0) {
      if (budget.cancelled()) return CancelledError("nobody waits any more");
      // The old and the new array, while it grows.
      if (!ends.empty()) {
        PENSTOCK_RETURN_IF_ERROR(
            budget.reserve(3 * kRunsAtOnce * sizeof(uint64_t)));
      }
    }
    // From a row of the run on in steps that double, then between the last that
    // is of it and the first that is not.
    const uint64_t of = record(begin);
    uint64_t inside = begin;
    uint64_t step = 1;
    while (inside + step < order.size() &&
           same_file(of, record(inside + step))) {
      inside += step;
      step *= 2;
    }
    uint64_t outside = std::min(inside + step, order.size());
    while (outside - inside > 1) {
      const uint64_t middle = inside + (outside - inside) / 2;
      (same_file(of, record(middle)) ? inside : outside) = middle;
    }
    ends.push_back(begin = outside);
  }
  ends.shrink_to_fit();
  return ends;
}

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

std::unique_ptr<Order> Interleave(std::unique_ptr<Order> of,
                                  std::vector<uint64_t> run_ends,
                                  uint64_t files, uint64_t block) {
  return std::make_unique<Interleaved>(std::move(of), std::move(run_ends),
                                       files, block);
}

}  // namespace penstock
