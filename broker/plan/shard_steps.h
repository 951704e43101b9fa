// The steps of `shard: file`: each rank's files are a shard, and a step has the
// next rows of every shard, one shard after the other.
//
//   shards of 6 and 3 rows, a global batch of 4:
//     step 0: a0 a1 | b0 b1      step 1: a2 a3 | b2      step 2: a4 a5 |
//
// So the rows of a shard lie together in a step, steps get shorter once shards
// run out, and all rows of a pass are numbered through without gaps. Pure
// arithmetic; any thread.
#ifndef BROKER_PLAN_SHARD_STEPS_H_
#define BROKER_PLAN_SHARD_STEPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "broker/plan/order.h"
#include "broker/plan/steps.h"
#include "broker/plan/windows.h"
#include "common/status.h"

namespace penstock {

class ShardSteps final : public Steps {
 public:
  struct Place {
    uint32_t shard = 0;
    uint64_t index = 0;  // in the shard
  };

  // rows: of each shard, 1 or more. global_batch: rows of a step while all
  // shards last; not less than there are shards. The first ones have one row
  // more where it does not divide.
  ShardSteps(std::vector<uint64_t> rows, uint64_t global_batch);

  uint32_t size() const { return static_cast<uint32_t>(rows_.size()); }
  uint64_t memory_bytes() const {
    return nodes_.capacity() * sizeof(Node) +
           segments_.capacity() * sizeof(Segment);
  }
  // Until the first shard has less than its rows of a step.
  uint64_t full_count() const override { return full_steps_; }
  uint64_t Begin(uint64_t step) const override;
  uint64_t StepAt(uint64_t row) const override;
  const char* fixed_by() const override { return "shard: file"; }
  bool divisible() const override { return false; }
  Status CheckEpoch(uint64_t steps, uint64_t of_pass) const override;
  // Whole shards, the first (shards mod ranks) ranks of one more; more ranks
  // than shards divide each step by rows.
  RankRows OfRank(uint64_t step, uint64_t rows, uint32_t rank,
                  uint32_t ranks) const override;
  uint64_t RankRowsMax(uint64_t rows, uint32_t rank,
                       uint32_t ranks) const override;

  // Where a row of a pass is, and back.
  Place Find(uint64_t row) const;
  uint64_t RowOf(Place place) const;
  // The i-th row after this one in its shard, which begins again after its
  // last.
  uint64_t Following(uint64_t row, uint64_t i, uint64_t) const override;

 private:
  // Steps of equally many rows of each shard, until the next segment. The last
  // has none.
  struct Segment {
    uint64_t step = 0;
    uint64_t row = 0;
    uint32_t root = 0;
  };
  // The rows of a step of some consecutive shards, and of both halves of them.
  // A segment shares its nodes with the one before it, but for those above a
  // shard that runs out: O(shards log(shards)) in all.
  struct Node {
    uint64_t rows = 0;
    uint32_t first = 0;
    uint32_t second = 0;
  };
  // Rows of the shard in a step while it lasts.
  uint64_t Block(uint32_t shard) const {
    return RowsOfRank(global_batch(), shard, size());
  }
  // Rows of a step while all shards last, of the shards before this one.
  uint64_t BlocksBefore(uint32_t shard) const {
    return RowsBeforeRank(global_batch(), shard, size());
  }
  // Rows of this step, of the shards before this one.
  uint64_t RowsBefore(uint64_t step, uint32_t shard) const;
  const Segment& SegmentOf(uint64_t step) const;
  // A node with the blocks of shards [begin, end).
  uint32_t AddBlocks(uint32_t begin, uint32_t end);
  // The node, of shards [begin, end), with other rows of one of them.
  uint32_t With(uint32_t node, uint32_t begin, uint32_t end, uint32_t shard,
                uint64_t rows);

  const std::vector<uint64_t> rows_;
  uint64_t full_steps_ = 0;
  std::vector<Node> nodes_;
  std::vector<Segment> segments_;
};

// A shard: rows of a pass, as runs of neighbours.
struct Shard {
  struct Run {
    uint64_t first = 0;   // of the pass
    uint64_t before = 0;  // rows of the shard before it
  };
  std::vector<Run> runs;
  uint64_t rows = 0;
  std::optional<Windows> windows = {};  // of its rows; nullopt: one of all

  // The row of the pass that one of the shard is.
  uint64_t RowOf(uint64_t place) const;
};
// The rows of these shards (none of which is empty), as ShardSteps says; each
// is shuffled alone, within its windows. global_batch: not less than there are
// shards.
std::unique_ptr<Order> InShards(std::unique_ptr<Order> of,
                                std::vector<Shard> shards,
                                uint64_t global_batch);

}  // namespace penstock
#endif  // BROKER_PLAN_SHARD_STEPS_H_
