// Rows of several orders in proportion to weights.
#ifndef BROKER_PLAN_MIX_H_
#define BROKER_PLAN_MIX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "broker/plan/order.h"
#include "common/status.h"

namespace penstock {

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

// How far a part of a mix has come.
struct PartPlace {
  uint32_t shuffle = 0;  // the number of what it shuffles, or the first of it
  uint64_t pass = 0;     // its own, with which that of the mix began
  uint64_t rows = 0;     // of it since, further passes included
  bool operator==(const PartPlace&) const = default;
};

// A mix, and what becomes of it when its weights change. Those made of it share
// its parts and take them up where it leaves them.
class MixOrder : public Order {
 public:
  virtual size_t parts() const = 0;
  virtual uint64_t block() const = 0;
  // Rows of a pass over a part.
  virtual uint64_t RowsOf(size_t part) const = 0;
  // Rows of each part among the first `place` (<= size()) of a pass.
  virtual std::vector<uint64_t> RowsBefore(uint64_t place) const = 0;
  // The shares of the rows that the weights give the parts at this place.
  virtual std::vector<double> SharesAt(uint64_t place) const = 0;
  // How far each part has come before a place of a pass.
  virtual std::vector<PartPlace> PlacesAt(uint64_t pass,
                                          uint64_t place) const = 0;
  // Its first pass began where its parts were (BegunAt).
  virtual bool begun() const = 0;
  // With these weights alone; its pass 0 begins where its parts are, and may
  // have no row. InvalidArgument: a part is beyond its end or within a block,
  // or two have one shuffle.
  virtual StatusOr<std::shared_ptr<const MixOrder>> BegunAt(
      const std::vector<PartPlace>& places,
      const std::vector<uint32_t>& weights,
      const OrderBudget& budget) const = 0;
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
#endif  // BROKER_PLAN_MIX_H_
