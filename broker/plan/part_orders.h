// Orders of which another is made, which shuffles each of them alone.
#ifndef BROKER_PLAN_PART_ORDERS_H_
#define BROKER_PLAN_PART_ORDERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "broker/plan/order.h"

namespace penstock {

class PartOrders {
 public:
  explicit PartOrders(std::vector<std::unique_ptr<Order>> parts)
      : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      first_.push_back(shuffled_);
      shuffled_ += std::max(part->shuffled_parts(), 1u);
    }
  }
  size_t size() const { return parts_.size(); }
  const Order& operator[](size_t i) const { return *parts_[i]; }
  bool Any(bool (Order::*is)() const) const {
    return std::any_of(parts_.begin(), parts_.end(),
                       [is](const auto& part) { return (*part.*is)(); });
  }
  bool AnyShuffles() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) {
      return part->shuffled_parts() > 0;
    });
  }
  uint64_t memory_bytes() const {
    uint64_t bytes = 0;
    for (const auto& part : parts_) bytes += part->memory_bytes();
    return bytes;
  }
  uint32_t shuffled() const { return shuffled_; }
  Order::Row At(size_t number, uint64_t place, uint64_t pass,
                Order::Shuffling shuffling) const {
    const Order& part = *parts_[number];
    shuffling.first_part += first_[number];
    if (shuffling.spec != nullptr && part.shuffled_parts() == 0) {
      place = shuffling.last->Of(shuffling.first_part, *shuffling.spec,
                                 part.size(), pass)(place);
    }
    return part.At(place, pass, shuffling);
  }

 private:
  const std::vector<std::unique_ptr<Order>> parts_;
  std::vector<uint32_t> first_;  // numbers of what each shuffles
  uint32_t shuffled_ = 0;
};

}  // namespace penstock
#endif  // BROKER_PLAN_PART_ORDERS_H_
