#include "broker/plan/order.h"

#include <cassert>

#include "common/exact_max.h"

namespace penstock {
namespace {

class All final : public Order {
 public:
  All(uint64_t count, uint64_t first) : Order(count), first_(first) {}
  Row At(uint64_t index, uint64_t pass, Shuffling) const override {
    return {first_ + index, pass};
  }

 private:
  const uint64_t first_;
};

}  // namespace

Status TooManyRows() {
  return InvalidArgumentError(
      "more than {} rows in a pass: select or repeat fewer", kExactMax);
}

const Permutation& Shuffles::Of(uint32_t part, const ShuffleSpec& shuffle,
                                uint64_t records, uint64_t pass) {
  if (part > parts_.size()) parts_.resize(part);
  Last& last = part == 0 ? whole_ : parts_[part - 1];
  const uint64_t key = shuffle.each_epoch ? pass : 0;
  if (!last.permutation || last.pass != key) {
    last.permutation.emplace(records, shuffle.SeedOf(part), key);
    last.pass = key;
  }
  return *last.permutation;
}

std::unique_ptr<Shuffles::Kept>& Shuffles::KeptOf(uint32_t part) {
  assert(part > 0);
  if (part > parts_.size()) parts_.resize(part);
  return parts_[part - 1].kept;
}

std::unique_ptr<Order> AllRecords(uint64_t count, uint64_t first) {
  return std::make_unique<All>(count, first);
}

}  // namespace penstock
