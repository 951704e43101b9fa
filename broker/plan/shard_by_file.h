// `shard: file`: which files are whose.
#ifndef BROKER_PLAN_SHARD_BY_FILE_H_
#define BROKER_PLAN_SHARD_BY_FILE_H_

#include "broker/plan/select_context.h"

namespace penstock {

// `shard: file`: the files, in the order in which they come, are dealt to so
// many shards, as tf.data deals them. InvalidArgument: no files, fewer files
// than shards, an order that repeats or mixes, fewer rows in a batch than
// shards.
StatusOr<std::unique_ptr<Order>> ShardByFile(std::unique_ptr<Order> of,
                                             uint32_t shards,
                                             uint64_t global_batch,
                                             const SelectContext& context);

}  // namespace penstock
#endif  // BROKER_PLAN_SHARD_BY_FILE_H_
