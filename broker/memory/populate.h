// Populates memory before it is used. A job that does not fit is refused with
// the numbers before it starts (available_memory.h). A child process populates
// the pages; if the limits were wrong, its death becomes the error message.
#ifndef BROKER_MEMORY_POPULATE_H_
#define BROKER_MEMORY_POPULATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "broker/memory/available_memory.h"
#include "common/status.h"

namespace penstock {

// A range of shared memory to populate. Ranges are populated in order;
// on_done(n) is called after the n-th.
struct PopulateRange {
  std::byte* begin = nullptr;
  uint64_t bytes = 0;
};

// Populates the ranges in a short-lived child, which the kernel kills first
// when memory runs out. Blocks until all is done; on_done runs on this thread.
// ResourceExhausted: the child was killed. Cancelled: cancelled(), which is
// called a few times a second, returned true.
Status Populate(
    std::span<const PopulateRange> ranges,
    const std::function<void(size_t done)>& on_done,
    const std::function<bool()>& cancelled = [] { return false; });

}  // namespace penstock
#endif  // BROKER_MEMORY_POPULATE_H_
