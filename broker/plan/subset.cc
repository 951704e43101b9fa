#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "broker/plan/orders.h"
#include "common/quantity.h"

namespace penstock {
namespace {

class Sliced final : public Derived {
 public:
  Sliced(std::unique_ptr<Order> of, uint64_t first, uint64_t count,
         uint64_t stride)
      : Derived(std::move(of), count), first_(first), stride_(stride) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_->At(first_ + index * stride_, pass, shuffling);
  }

 private:
  const uint64_t first_;
  const uint64_t stride_;
};

// A set of positions that finds its i-th member: a bit for each, and the number
// of members before every block of 512.
class Bitmap {
 public:
  static uint64_t BytesFor(uint64_t size) {
    return (size / kBits + 1) * (kWords + 1) * sizeof(uint64_t);
  }
  explicit Bitmap(uint64_t size)
      : words_((size + kBits - 1) / kBits * kWords) {}
  void Add(uint64_t index) {
    words_[index / 64] |= uint64_t{1} << (index % 64);
  }
  // Call after the last Add.
  uint64_t Count() {
    uint64_t count = 0;
    before_.reserve(words_.size() / kWords);
    for (size_t i = 0; i < words_.size(); ++i) {
      if (i % kWords == 0) before_.push_back(count);
      count += static_cast<uint64_t>(std::popcount(words_[i]));
    }
    return count;
  }
  uint64_t At(uint64_t member) const {
    const size_t block = static_cast<size_t>(
        std::upper_bound(before_.begin(), before_.end(), member) -
        before_.begin() - 1);
    uint64_t left = member - before_[block];
    for (size_t i = block * kWords;; ++i) {
      uint64_t word = words_[i];
      const auto here = static_cast<uint64_t>(std::popcount(word));
      if (left >= here) {
        left -= here;
        continue;
      }
      for (; left > 0; --left) word &= word - 1;
      return i * 64 + static_cast<uint64_t>(std::countr_zero(word));
    }
  }
  uint64_t memory_bytes() const {
    return (words_.capacity() + before_.capacity()) * sizeof(uint64_t);
  }

 private:
  static constexpr size_t kWords = 8;  // of a block: a cache line
  static constexpr uint64_t kBits = 64 * kWords;
  std::vector<uint64_t> words_;
  std::vector<uint64_t> before_;
};

class Picked final : public Derived {
 public:
  Picked(std::unique_ptr<Order> of, Bitmap kept, uint64_t count)
      : Derived(std::move(of), count), kept_(std::move(kept)) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_->At(kept_.At(index), pass, shuffling);
  }
  uint64_t memory_bytes() const override {
    return of_->memory_bytes() + kept_.memory_bytes();
  }

 private:
  const Bitmap kept_;
};

class Listed final : public Order {
 public:
  Listed(std::shared_ptr<const Order> of, RowList rows, size_t first,
         size_t count)
      : Order(count),
        of_(std::move(of)),
        rows_(std::move(rows)),
        first_(first) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_->At((*rows_)[first_ + index], pass, shuffling);
  }
  uint32_t shuffled_parts() const override { return of_->shuffled_parts(); }
  bool repeats() const override { return of_->repeats(); }
  bool draws() const override { return of_->draws(); }
  // The first of those that share it counts the list.
  uint64_t memory_bytes() const override {
    return first_ == 0
               ? of_->memory_bytes() + rows_->capacity() * sizeof(uint64_t)
               : 0;
  }

 private:
  const std::shared_ptr<const Order> of_;
  const RowList rows_;
  const size_t first_;
};

}  // namespace

std::unique_ptr<Order> Slice(std::unique_ptr<Order> of, uint64_t first,
                             uint64_t count, uint64_t stride) {
  assert(count == 0 || first + (count - 1) * stride < of->size());
  return std::make_unique<Sliced>(std::move(of), first, count, stride);
}

StatusOr<std::unique_ptr<Order>> Pick(std::unique_ptr<Order> of,
                                      const std::function<bool(uint64_t)>& keep,
                                      const OrderBudget& budget) {
  const uint64_t size = of->size();
  PENSTOCK_RETURN_IF_ERROR(budget.reserve(Bitmap::BytesFor(size)));
  Bitmap kept(size);
  PENSTOCK_RETURN_IF_ERROR(ForEachRow(size, budget, [&](uint64_t i) {
    if (keep(i)) kept.Add(i);
    return OkStatus();
  }));
  const uint64_t count = kept.Count();
  if (count == 0) {
    return InvalidArgumentError("none of {} is left; leave fewer out",
                                Counted(size, "record", "records"));
  }
  return std::unique_ptr<Order>(
      std::make_unique<Picked>(std::move(of), std::move(kept), count));
}

std::unique_ptr<Order> ListRows(std::shared_ptr<const Order> of, RowList rows,
                                size_t first, size_t count) {
  return std::make_unique<Listed>(std::move(of), std::move(rows), first, count);
}

}  // namespace penstock
