#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "broker/base/mutex.h"
#include "broker/plan/orders.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// PyTorch draws 64 bits from here on.
constexpr uint64_t kLargePermutation = UINT32_MAX / 20;

class CyclicOrder final : public Derived {
 public:
  CyclicOrder(std::unique_ptr<Order> of, uint64_t steps, uint64_t permuted,
              uint64_t micro_batch, uint32_t ranks, bool sharded)
      : Derived(std::move(of), steps * micro_batch * ranks),
        permuted_(permuted),
        micro_batch_(micro_batch),
        ranks_(ranks),
        sharded_(sharded) {}

  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    Kept alone;
    Kept* last = &alone;
    if (shuffling.last != nullptr) {
      auto& kept = shuffling.last->KeptOf(shuffling.first_part);
      if (kept == nullptr) kept = std::make_unique<Kept>();
      last = static_cast<Kept*>(kept.get());
    }
    if (last->permutation == nullptr || last->pass != pass) {
      last->permutation = PermutationOf(pass);
      last->pass = pass;
    }
    const std::vector<uint32_t>& permutation = *last->permutation;
    const uint64_t step = index / (micro_batch_ * ranks_);
    const uint64_t of_step = index - step * micro_batch_ * ranks_;
    const uint64_t rank = of_step / micro_batch_;
    const uint64_t row = of_step - rank * micro_batch_;
    // A rank has a share of the samples; or every ranks-th of all.
    const uint64_t sample =
        sharded_ ? rank * permuted_ + permutation[step * micro_batch_ + row]
                 : permutation[(step * micro_batch_ + row) * ranks_ + rank];
    return of_->At(sample, pass, shuffling);
  }
  uint32_t shuffled_parts() const override { return 1; }
  bool draws() const override { return !sharded_; }
  uint64_t memory_bytes() const override {
    return Derived::memory_bytes() + CyclicBytes(permuted_);
  }

 private:
  // A thread keeps that of its last row, so that it takes the lock once a pass.
  struct Kept : Shuffles::Kept {
    uint64_t pass = 0;
    std::shared_ptr<const std::vector<uint32_t>> permutation;
  };

  // Whoever needs a pass first makes its permutation, for all threads.
  std::shared_ptr<const std::vector<uint32_t>> PermutationOf(
      uint64_t pass) const {
    MutexLock lock(&mutex_);
    if (kept_[0].permutation == nullptr || kept_[0].pass != pass) {
      std::swap(kept_[0], kept_[1]);
    }
    if (kept_[0].permutation == nullptr || kept_[0].pass != pass) {
      kept_[0].permutation = nullptr;  // before there are three
      kept_[0].pass = pass;
      kept_[0].permutation = std::make_shared<const std::vector<uint32_t>>(
          PermutationAsTorch(permuted_, static_cast<uint32_t>(pass)));
    }
    return kept_[0].permutation;
  }

  const uint64_t permuted_;
  const uint64_t micro_batch_;
  const uint64_t ranks_;
  const bool sharded_;
  // The last two passes: rows of both are made where one ends.
  mutable Mutex mutex_;
  mutable Kept kept_[2] ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<uint32_t> PermutationAsTorch(uint64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> numbers(size);
  if (size < kLargePermutation) {
    std::iota(numbers.begin(), numbers.end(), uint32_t{0});
    for (uint64_t i = 0; i + 1 < size; ++i) {
      std::swap(numbers[i], numbers[i + random() % (size - i)]);
    }
    return numbers;
  }
  for (uint64_t i = 0; i < size; ++i) {
    const uint64_t high = random();
    const uint64_t at = (high << 32 | random()) % (i + 1);
    numbers[i] = numbers[at];
    numbers[at] = static_cast<uint32_t>(i);
  }
  return numbers;
}

StatusOr<std::unique_ptr<Order>> Cyclic(std::unique_ptr<Order> of,
                                        uint64_t micro_batch, uint32_t ranks,
                                        bool sharded,
                                        const OrderBudget& budget) {
  const uint64_t batch = micro_batch * ranks;
  const uint64_t steps = of->size() / batch;
  if (steps == 0) {
    return InvalidArgumentError(
        "{}, less than a batch of {} for each of {}: Megatron's sampler "
        "`cyclic` has none then",
        Counted(of->size(), "sample", "samples"), micro_batch,
        Counted(ranks, "rank", "ranks"));
  }
  const uint64_t permuted =
      sharded ? steps * micro_batch : of->size() / micro_batch * micro_batch;
  if (permuted > UINT32_MAX) {
    return InvalidArgumentError("{} samples; `cyclic` has up to {}", of->size(),
                                UINT32_MAX);
  }
  PENSTOCK_RETURN_IF_ERROR(budget.reserve(CyclicBytes(permuted)));
  return std::unique_ptr<Order>(std::make_unique<CyclicOrder>(
      std::move(of), steps, permuted, micro_batch, ranks, sharded));
}

}  // namespace penstock
