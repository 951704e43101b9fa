// The producer of a stream in a storm: puts the rows that are still to be put,
// and again those of each course of its job, until it is killed.
#ifndef TESTS_CRASH_STORM_PRODUCER_H_
#define TESTS_CRASH_STORM_PRODUCER_H_

#include "tests/crash/storm_rank.h"

namespace penstock {

// The process's exit status: only a failure ends it.
int RunStormProducer(const StormRankOptions& options);

}  // namespace penstock
#endif  // TESTS_CRASH_STORM_PRODUCER_H_
