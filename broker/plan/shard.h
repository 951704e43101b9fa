// `shard`: every n-th record, or value of a column.
#ifndef BROKER_PLAN_SHARD_H_
#define BROKER_PLAN_SHARD_H_

#include "broker/plan/select_context.h"

namespace penstock {

// As tf.data.Dataset.shard. by: of the values of this column, numbered as they
// come; "": of records.
struct ShardStep {
  uint32_t index = 0;
  uint32_t of = 1;
  std::string by;
  bool operator==(const ShardStep&) const = default;

  static const Declaration<ShardStep>& Declared();
  StatusOr<std::unique_ptr<Order>> Apply(std::unique_ptr<Order> of,
                                         const SelectContext& context) const;
};

}  // namespace penstock
#endif  // BROKER_PLAN_SHARD_H_
