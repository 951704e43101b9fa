// source: range. Computed numbers; no memory, no reads.
#ifndef BROKER_SOURCE_RANGE_H_
#define BROKER_SOURCE_RANGE_H_

#include "broker/source/source.h"

namespace penstock {

struct RangeSource {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  bool operator==(const RangeSource&) const = default;

  static const Declaration<RangeSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress*) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_RANGE_H_
