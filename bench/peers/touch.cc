// Question: none of its own. The loop by which every consumer of
// bench/peers.py, in C++ (consumer.cc) or Python (common.py, by ctypes), reads
// its batches, so that reading costs all of them the same.
#include "bench/peers/touch.h"

extern "C" uint8_t peers_touch(const void* data, size_t bytes) {
  constexpr size_t kCacheLineBytes = 64;
  const uint8_t* const from = static_cast<const uint8_t*>(data);
  uint8_t sum = 0;
  for (size_t at = 0; at < bytes; at += kCacheLineBytes) sum ^= from[at];
  return sum;
}
