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
  explicit PartOrders(std::vector<std::unique_ptr<Order>> parts) {
    for (auto& part : parts) {
      first_.push_back(shuffled_);
      shuffled_ += std::max(part->shuffled_parts(), 1u);
      parts_.push_back(std::move(part));
    }
  }
  // The same parts, whose shuffles have these numbers.
  PartOrders(const PartOrders& parts, std::vector<uint32_t> first)
      : parts_(parts.parts_), first_(std::move(first)) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      shuffled_ = std::max(
          shuffled_, first_[i] + std::max(parts_[i]->shuffled_parts(), 1u));
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
  // No two parts shuffle by one number: they would share what is kept of it.
  bool NumbersDiffer() const {
    std::vector<std::pair<uint32_t, uint32_t>> numbers;
    for (size_t i = 0; i < size(); ++i) {
      numbers.push_back({first_[i], std::max(parts_[i]->shuffled_parts(), 1u)});
    }
    std::sort(numbers.begin(), numbers.end());
    for (size_t i = 1; i < numbers.size(); ++i) {
      if (numbers[i].first - numbers[i - 1].first < numbers[i - 1].second) {
        return false;
      }
    }
    return true;
  }
  // The number of the first that a part shuffles.
  uint32_t FirstOf(size_t number) const { return first_[number]; }
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
  std::vector<std::shared_ptr<const Order>> parts_;
  std::vector<uint32_t> first_;  // numbers of what each shuffles
  uint32_t shuffled_ = 0;
};

}  // namespace penstock
#endif  // BROKER_PLAN_PART_ORDERS_H_
