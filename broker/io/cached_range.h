// Ranges that are in the page cache, read at once or not at all.
#ifndef BROKER_IO_CACHED_RANGE_H_
#define BROKER_IO_CACHED_RANGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "broker/io/read_request.h"

namespace penstock {

// Belongs to one thread.
class CachedRange {
 public:
  // The request will be read soon.
  void Expect(const ReadRequest& request);
  // Reads all parts of a request, if `warm` from the maps of their files where
  // there are such: a missing page is then read, by this thread. False: not all
  // of it is in the page cache, it is too large for this, or it is not made of
  // ranges that may be read through it; nothing is said of errors. A non-empty
  // `into` receives the bytes of a request of one part; else they are valid
  // until the next call.
  bool Read(const ReadRequest& request, bool warm, std::span<std::byte> into,
            ReadBytes* read);

 private:
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> ends_;
};

}  // namespace penstock
#endif  // BROKER_IO_CACHED_RANGE_H_
