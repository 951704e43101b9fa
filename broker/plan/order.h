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
#include "broker/plan/steps.h"
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
};

class MixOrder;

class Order {
 public:
  struct Row {
    uint64_t record = 0;
    uint64_t pass = 0;  // keys its random numbers
    bool operator==(const Row&) const = default;
  };
  // Of the plan that asks.
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

// Records [first, first + count), as they come.
std::unique_ptr<Order> AllRecords(uint64_t count, uint64_t first = 0);

// Every stride-th row from first on, count of them: take, skip and shard.
std::unique_ptr<Order> Slice(std::unique_ptr<Order> of, uint64_t first,
                             uint64_t count, uint64_t stride = 1);

// The rows of a pass whose positions satisfy keep. InvalidArgument: there is
// none. Other errors: those of the budget, Cancelled.
StatusOr<std::unique_ptr<Order>> Pick(
    std::unique_ptr<Order> of, const std::function<bool(uint64_t index)>& keep,
    const OrderBudget& budget);

// These rows of a pass, in this order. Several share one list.
using RowList = std::shared_ptr<const std::vector<uint64_t>>;
std::unique_ptr<Order> ListRows(std::shared_ptr<const Order> of, RowList rows,
                                size_t first, size_t count);

// A shard: rows of a pass, as runs of neighbours.
struct Shard {
  struct Run {
    uint64_t first = 0;   // of the pass
    uint64_t before = 0;  // rows of the shard before it
  };
  std::vector<Run> runs;
  uint64_t rows = 0;
};
// The rows of these shards (none of which is empty), as ShardSteps says; each
// is shuffled alone. global_batch: not less than there are shards.
std::unique_ptr<Order> InShards(std::unique_ptr<Order> of,
                                std::vector<Shard> shards,
                                uint64_t global_batch);

// times passes in one. InvalidArgument: too many rows.
StatusOr<std::unique_ptr<Order>> Repeat(std::unique_ptr<Order> of,
                                        uint64_t times);

// rows of a pass, each drawn from all of them in proportion to its weight, with
// replacement, by the seed and anew in each pass. weights: of each row, 0 or
// more, of fewer than 2^32, their sum above 0 and finite; empty: all have the
// same. kDrawBytes a row meanwhile, 8 afterwards.
inline constexpr uint64_t kDrawBytes = 20;
std::unique_ptr<Order> Draw(std::unique_ptr<Order> of, uint64_t rows,
                            uint64_t seed, std::vector<double> weights);

// A pass, shuffled by the seed and anew each time, whatever else shuffles it.
std::unique_ptr<Order> ShuffledEachPass(std::unique_ptr<Order> of,
                                        uint64_t seed);

// One after the other.
StatusOr<std::unique_ptr<Order>> Concatenate(
    std::vector<std::unique_ptr<Order>> parts);

// What becomes of a mix when a part has no more records.
enum class WhenOut {
  kStop,    // the pass ends before the row that would need one
  kDrop,    // the others go on in their proportions: all records once
  kRepeat,  // it begins anew, until each part was complete once
};

// weights of parts from a row of the pass on; 0: nothing of the part.
struct MixWeights {
  uint64_t from = 0;
  std::vector<uint32_t> weights;
  bool operator==(const MixWeights&) const = default;
};

// Rows of parts in proportion: from the beginning of each weights on, each part
// has its share of any number of rows, less than one row more or less.
// schedule: in order, the first from 0. InvalidArgument: a part that no weight
// reaches, more than kMixPeriodMax as the sum of weights, too many rows.
// block: so many rows at a time are of one part; then shares and schedule count
// blocks, and a pass over a part leaves out its last rows that fill no block
// (if they are shuffled, others in each pass).
inline constexpr uint64_t kMixPeriodMax = uint64_t{1} << 20;
StatusOr<std::unique_ptr<Order>> Mix(std::vector<std::unique_ptr<Order>> parts,
                                     std::vector<MixWeights> schedule,
                                     WhenOut when_out,
                                     const OrderBudget& budget,
                                     uint64_t block = 1);

// A mix, and what becomes of it when its weights change. Those made of it share
// its parts and take them up where it leaves them.
class MixOrder : public Order {
 public:
  virtual size_t parts() const = 0;
  virtual uint64_t block() const = 0;
  // For this pass alone: its rows before `place` (a multiple of the block,
  // below its size) are as here, from there on these weights hold. Errors: as
  // of Mix.
  virtual StatusOr<std::shared_ptr<const MixOrder>> ChangedAt(
      uint64_t pass, uint64_t place, const std::vector<uint32_t>& weights,
      const OrderBudget& budget) const = 0;
  // For this pass and those after it: only these weights.
  virtual StatusOr<std::shared_ptr<const MixOrder>> ChangedFrom(
      uint64_t pass, const std::vector<uint32_t>& weights,
      const OrderBudget& budget) const = 0;
  // The mix in steps of its own, each of one part, with as many rows as `sizes`
  // says of it: shares count steps, and a schedule takes effect with the first
  // step that begins at its row or after it. Its weights do not change
  // otherwise. A pass over a part leaves out its last rows that fill no step.
  virtual StatusOr<std::unique_ptr<Order>> InBatches(
      const std::vector<uint64_t>& sizes, const OrderBudget& budget) const = 0;

 protected:
  using Order::Order;
};

// Whole numbers in the same proportions, of weights with at most six digits
// after the point.
StatusOr<std::vector<uint32_t>> WholeWeights(
    const std::vector<double>& weights);

}  // namespace penstock
#endif  // BROKER_PLAN_ORDER_H_
