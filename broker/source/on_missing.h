// What becomes of a sample that lacks a part: a member, a mask, a file.
#ifndef BROKER_SOURCE_ON_MISSING_H_
#define BROKER_SOURCE_ON_MISSING_H_

#include "broker/declare/value_type.h"

namespace penstock {

enum class OnMissing {
  kError,
  kSkip,  // it is left out of the dataset
};

inline ValueType<OnMissing> OnMissingType() {
  return Words<OnMissing>(
      {{"error", OnMissing::kError}, {"skip", OnMissing::kSkip}});
}

}  // namespace penstock
#endif  // BROKER_SOURCE_ON_MISSING_H_
