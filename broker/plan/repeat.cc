#include <utility>

#include "broker/declare/declaration.h"
#include "broker/plan/kinds.h"
#include "broker/plan/orders.h"
#include "broker/plan/select_fields.h"
#include "common/exact_max.h"

namespace penstock {
namespace {

class Repeated final : public Derived {
 public:
  Repeated(std::unique_ptr<Order> of, uint64_t size, uint64_t times)
      : Derived(std::move(of), size), times_(times) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    const uint64_t time = index / of_->size();
    return of_->At(index - time * of_->size(), pass * times_ + time, shuffling);
  }

  bool repeats() const override { return times_ > 1 || of_->repeats(); }

 private:
  const uint64_t times_;
};

}  // namespace

StatusOr<std::unique_ptr<Order>> Repeat(std::unique_ptr<Order> of,
                                        uint64_t times) {
  if (of->size() > 0 && times > kExactMax / of->size()) return TooManyRows();
  const uint64_t size = of->size() * times;
  return std::unique_ptr<Order>(
      std::make_unique<Repeated>(std::move(of), size, times));
}

const Declaration<RepeatStep>& RepeatStep::Declared() {
  const auto count = WholeNumber<uint32_t>(1, kPartsMax);
  static const auto declared =
      Declaration<RepeatStep>(
          "repeat",
          "All records several times, with random numbers of "
          "augmentation of their own each time.")
          .Example("3")
          .Brief("a number of times", &RepeatStep::times, count)
          .Required("times", &RepeatStep::times, count, "how often");
  return declared;
}

StatusOr<std::unique_ptr<Order>> RepeatStep::Apply(std::unique_ptr<Order> of,
                                                   const SelectContext&) const {
  return Repeat(std::move(of), times);
}

}  // namespace penstock
