// The rows of a plan, for tests.
#ifndef TESTS_UNIT_PLAN_ROWS_H_
#define TESTS_UNIT_PLAN_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "broker/plan/plan.h"

namespace penstock {

// The rows of all ranks of a step.
inline std::vector<Plan::Row> RowsOf(const Plan& plan, uint64_t step,
                                     Shuffles* shuffles) {
  std::vector<Plan::Row> rows;
  for (uint32_t rank = 0; rank < plan.world_size(); ++rank) {
    const Plan::RankBatch batch = plan.RankBatchOf(step, rank);
    const size_t before = rows.size();
    rows.resize(before + batch.rows);
    plan.Rows(batch.epoch, batch.first_row, batch.rows, shuffles,
              rows.data() + before);
  }
  return rows;
}

}  // namespace penstock
#endif  // TESTS_UNIT_PLAN_ROWS_H_
