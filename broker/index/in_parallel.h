// The work of an opening that is mostly waiting (folders, headers of files), on
// several threads.
#ifndef BROKER_INDEX_IN_PARALLEL_H_
#define BROKER_INDEX_IN_PARALLEL_H_

#include <cstddef>
#include <functional>

#include "common/status.h"

namespace penstock {

// Threads for work that mostly waits for answers of a network.
inline constexpr size_t kNetworkThreads = 64;

// Calls work(i) once for every i below count, also on other threads, and
// returns when all calls have. After an error no more calls begin; of several
// errors the one with the smallest i is returned. threads: at least; by default
// as many as processors.
Status InParallel(size_t count, const std::function<Status(size_t i)>& work,
                  size_t threads = 0);

}  // namespace penstock
#endif  // BROKER_INDEX_IN_PARALLEL_H_
