// `interleave`: records of several files in turn.
#ifndef BROKER_PLAN_INTERLEAVE_H_
#define BROKER_PLAN_INTERLEAVE_H_

#include "broker/plan/select_context.h"

namespace penstock {

// `block` rows of each of `files` runs in turn, until all of them are out; then
// the next `files`. A row costs O(files * log(rows of a run)).
std::unique_ptr<Order> Interleave(std::unique_ptr<Order> of,
                                  std::vector<uint64_t> run_ends,
                                  uint64_t files, uint64_t block);

// As tf.data.Dataset.interleave over files.
struct InterleaveStep {
  uint32_t files = 16;
  uint32_t block = 1;
  bool operator==(const InterleaveStep&) const = default;

  static const Declaration<InterleaveStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

}  // namespace penstock
#endif  // BROKER_PLAN_INTERLEAVE_H_
