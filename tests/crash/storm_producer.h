// The producer of a stream in a storm. It puts the remaining rows of each
// incarnation of its job until it is killed.
#ifndef TESTS_CRASH_STORM_PRODUCER_H_
#define TESTS_CRASH_STORM_PRODUCER_H_

#include "tests/crash/storm_rank.h"

namespace penstock {

// Returns the exit status of the process; returns only on a failure.
int RunStormProducer(const StormRankOptions& options);

}  // namespace penstock
#endif  // TESTS_CRASH_STORM_PRODUCER_H_
