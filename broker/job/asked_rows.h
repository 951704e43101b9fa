// The rows of a job that its rank asks for by number (`asked` in its spec): the
// plan counts them as they are asked for, and here is which records they are.
//
// Thread-safe: the control thread adds, workers find.
//
// Bound: kRowsMax rows that are asked for and not released.
#ifndef BROKER_JOB_ASKED_ROWS_H_
#define BROKER_JOB_ASKED_ROWS_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/plan/plan.h"
#include "common/status.h"

namespace penstock {

class AskedRows {
 public:
  static constexpr uint64_t kRowsMax = 1 << 16;

  // begin: the position of the first row. records: those of the source.
  AskedRows(uint64_t begin, uint64_t records)
      : records_(records), begin_(begin) {}

  // numbers: a record and the pass that keys its random numbers, for each row.
  // InvalidArgument: no such record; ResourceExhausted: too many rows.
  Status Add(std::span<const uint64_t> numbers);
  // One past the position of the last row.
  uint64_t end() const;
  // Rows before this position are not needed any more.
  void Release(uint64_t position);
  // The rows from this position on. NotFound: they are not here.
  Status Find(uint64_t position, std::span<Plan::Row> rows) const;

 private:
  const uint64_t records_;
  mutable Mutex mutex_;
  uint64_t begin_ ABSL_GUARDED_BY(mutex_);
  std::deque<Plan::Row> rows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock
#endif  // BROKER_JOB_ASKED_ROWS_H_
