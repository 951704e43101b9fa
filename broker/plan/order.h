// Which records a pass over a dataset has, and in which order: arithmetic on
// positions. `select` and the sources made of parts build one from smaller
// ones.
//
// Constant once made; any number of threads may call it at once. Any position
// of any pass is reached directly, so resuming costs nothing.
#ifndef BROKER_PLAN_ORDER_H_
#define BROKER_PLAN_ORDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "broker/plan/permutation.h"
#include "broker/plan/plan_spec.h"
#include "common/status.h"

namespace penstock {

// The permutations last used by one thread for one plan, by the part that they
// shuffle, so that they are not rebuilt for every row. No heap memory for a
// plan of one part.
class Shuffles {
 public:
  // part: 0 is the whole order.
  const Permutation& Of(uint32_t part, const ShuffleSpec& shuffle,
                        uint64_t records, uint64_t pass);

  // What else an order keeps of the row before, by the part (> 0) that it
  // shuffles; it makes and reads it itself.
  struct Kept {
    virtual ~Kept() = default;
  };
  std::unique_ptr<Kept>& KeptOf(uint32_t part);

 private:
  struct Last {
    uint64_t pass = 0;
    std::optional<Permutation> permutation;
    std::unique_ptr<Kept> kept;
  };
  Last whole_;
  std::vector<Last> parts_;
};

// What building an order may take, of memory and of time.
struct OrderBudget {
  // Called before much more is kept; an error ends the building.
  std::function<Status(uint64_t bytes)> reserve = [](uint64_t) {
    return OkStatus();
  };
  std::function<bool()> cancelled = [] { return false; };

  // Cancelled: nobody waits for the order any more.
  Status CheckWanted() const {
    return cancelled() ? CancelledError("nobody waits any more") : OkStatus();
  }
};

// Calls each(row), which gives a Status, for the rows [0, rows) up to the first
// error. Cancelled: as CheckWanted.
template <typename F>
Status ForEachRow(uint64_t rows, const OrderBudget& budget, const F& each) {
  constexpr uint64_t kRowsAtOnce = 1 << 16;
  for (uint64_t row = 0; row < rows; ++row) {
    if (row % kRowsAtOnce == 0) PENSTOCK_RETURN_IF_ERROR(budget.CheckWanted());
    PENSTOCK_RETURN_IF_ERROR(each(row));
  }
  return OkStatus();
}

class MixOrder;
class Steps;

class Order {
 public:
  struct Row {
    uint64_t record = 0;
    uint64_t pass = 0;  // keys its random numbers
    bool operator==(const Row&) const = default;
  };
  // How the plan that asks shuffles.
  struct Shuffling {
    const ShuffleSpec* spec = nullptr;  // nullptr: parts come in their order
    Shuffles* last = nullptr;
    uint32_t first_part = 1;  // the number of the first part
  };

  virtual ~Order() = default;
  uint64_t size() const { return size_; }
  // The row at this position (< size()) of a pass.
  virtual Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const = 0;
  // How many parts it shuffles itself; 0: it is shuffled as a whole. A mix that
  // were shuffled as a whole would lose its proportions.
  virtual uint32_t shuffled_parts() const { return 0; }
  // Its steps, of a pass each, if it lies in steps of its own (InShards,
  // InBatches); nullptr: any will do.
  virtual const Steps* steps() const { return nullptr; }
  // A record may come several times in a pass.
  virtual bool repeats() const { return false; }
  // This, if it is a mix: its weights may change while a job runs.
  virtual const MixOrder* mix() const { return nullptr; }
  // Which records it has differs from pass to pass.
  virtual bool draws() const { return false; }
  // Bytes that it keeps.
  virtual uint64_t memory_bytes() const { return 0; }
  // What works, but not as it should, for people.
  virtual std::string warning() const { return warning_; }
  // Before anybody shares it.
  void Warn(std::string text) { warning_ = std::move(text); }

 protected:
  explicit Order(uint64_t size) : size_(size) {}

 private:
  const uint64_t size_;
  std::string warning_;
};

// The error of an order with more rows than a plan takes.
Status TooManyRows();

// Records [first, first + count), as they come.
std::unique_ptr<Order> AllRecords(uint64_t count, uint64_t first = 0);

// An order made of another.
class Derived : public Order {
 public:
  uint32_t shuffled_parts() const override { return of_->shuffled_parts(); }
  bool repeats() const override { return of_->repeats(); }
  bool draws() const override { return of_->draws(); }
  uint64_t memory_bytes() const override { return of_->memory_bytes(); }
  std::string warning() const override { return of_->warning(); }

 protected:
  Derived(std::unique_ptr<Order> of, uint64_t size)
      : Order(size), of_(std::move(of)) {}
  const std::unique_ptr<Order> of_;
};

}  // namespace penstock
#endif  // BROKER_PLAN_ORDER_H_
