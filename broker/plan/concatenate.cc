#include <algorithm>
#include <utility>

#include "broker/plan/orders.h"
#include "broker/plan/part_orders.h"
#include "common/exact_max.h"

namespace penstock {
namespace {

class Concatenated final : public Order {
 public:
  Concatenated(std::vector<std::unique_ptr<Order>> parts,
               std::vector<uint64_t> ends)
      : Order(ends.back()), parts_(std::move(parts)), ends_(std::move(ends)) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    const size_t part = static_cast<size_t>(
        std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const uint64_t place = index - (part == 0 ? 0 : ends_[part - 1]);
    return !mixes_ ? parts_[part].At(place, pass, shuffling)
                   : parts_.At(part, place, pass, shuffling);
  }
  bool repeats() const override { return parts_.Any(&Order::repeats); }
  bool draws() const override { return parts_.Any(&Order::draws); }
  uint64_t memory_bytes() const override { return parts_.memory_bytes(); }
  // If one of its parts does, it has to shuffle the others as well.
  uint32_t shuffled_parts() const override {
    return mixes_ ? parts_.shuffled() : 0;
  }

 private:
  const PartOrders parts_;
  const std::vector<uint64_t> ends_;
  const bool mixes_ = parts_.AnyShuffles();
};

}  // namespace

StatusOr<std::unique_ptr<Order>> Concatenate(
    std::vector<std::unique_ptr<Order>> parts) {
  std::vector<uint64_t> ends;
  uint64_t rows = 0;
  for (const auto& part : parts) {
    if (part->size() > kExactMax - rows) return TooManyRows();
    ends.push_back(rows += part->size());
  }
  return std::unique_ptr<Order>(
      std::make_unique<Concatenated>(std::move(parts), std::move(ends)));
}

}  // namespace penstock
