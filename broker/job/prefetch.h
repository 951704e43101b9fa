// How many batches a job makes ahead for each rank, beyond those that the rank
// holds: what the spec says, else as many as make it faster (Tuner).
//
// A job begins with few: they are still in the processor's caches when a rank
// takes them. The most is promised, and has its pages, from the beginning.
#ifndef BROKER_JOB_PREFETCH_H_
#define BROKER_JOB_PREFETCH_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "broker/base/tuner.h"

namespace penstock {

inline constexpr uint32_t kPrefetchFirst = 2;

// given: by the spec. of_all: bytes of one batch for each rank.
inline Tuner PrefetchOf(std::optional<uint32_t> given, uint64_t of_all) {
  if (given) return Tuner({}, *given);
  constexpr uint64_t kMost = 16;
  // What more batches than the first ones may take, of all ranks together.
  constexpr uint64_t kMoreBytes = uint64_t{64} << 20;
  const uint64_t more = kMoreBytes / std::max<uint64_t>(of_all, 1);
  const uint64_t most = std::bit_floor(std::min(kPrefetchFirst + more, kMost));
  return Tuner({kPrefetchFirst, static_cast<uint32_t>(most)});
}

}  // namespace penstock
#endif  // BROKER_JOB_PREFETCH_H_
