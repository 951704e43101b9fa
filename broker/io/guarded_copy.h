// Copies out of a mapped file that another process may truncate.
#ifndef BROKER_IO_GUARDED_COPY_H_
#define BROKER_IO_GUARDED_COPY_H_

#include <cstddef>

namespace penstock {

// Copies from a mapping. False: the file no longer has all of these bytes, or
// the storage failed; some may have been copied. Takes SIGBUS over at its first
// call; of other accesses it goes where it went before. Any thread.
bool GuardedCopy(std::byte* to, const std::byte* mapped, size_t bytes);

}  // namespace penstock
#endif  // BROKER_IO_GUARDED_COPY_H_
