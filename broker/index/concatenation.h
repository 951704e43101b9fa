// The records of several parts, such as files, numbered through.
#ifndef BROKER_INDEX_CONCATENATION_H_
#define BROKER_INDEX_CONCATENATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/exact_max.h"
#include "common/status.h"

namespace penstock {

class Concatenation {
 public:
  Status Append(uint64_t records) {
    // More would not fit into a plan.
    if (records > kExactMax - count()) {
      return InvalidArgumentError("more than {} records", kExactMax);
    }
    ends_.push_back(count() + records);
    return OkStatus();
  }

  uint64_t count() const { return ends_.empty() ? 0 : ends_.back(); }

  uint64_t BeginOf(size_t part) const {
    return part == 0 ? 0 : ends_[part - 1];
  }
  uint64_t memory_bytes() const { return ends_.size() * sizeof(ends_[0]); }

  struct Place {
    size_t part;
    uint64_t record;  // of this part
  };
  // record: < count()
  Place Find(uint64_t record) const {
    const size_t part = static_cast<size_t>(
        std::upper_bound(ends_.begin(), ends_.end(), record) - ends_.begin());
    return {part, record - BeginOf(part)};
  }

 private:
  std::vector<uint64_t> ends_;  // one past each part's last record
};

}  // namespace penstock
#endif  // BROKER_INDEX_CONCATENATION_H_
