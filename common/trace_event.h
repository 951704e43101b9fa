// What a worker or a rank did for some time: the records of `penstock trace`,
// which the broker hands over in a sealed memfd.
#ifndef COMMON_TRACE_EVENT_H_
#define COMMON_TRACE_EVENT_H_

#include <cstdint>
#include <type_traits>

namespace penstock {

enum class TraceActivity : uint32_t {
  kMake,      // a worker made `rows` rows of the job
  kFunction,  // the same by a function worker, with its Python process
  kRead,      // a worker waited for reads and had nothing else to do; `rows` of
              // them were not there yet of an object store
  kWait,      // a rank slept on an empty ring
  kBatch,     // a rank had its batch number `rows`, until it took the next
  kFetch,     // `rows` bytes were fetched from an object store
};

struct TraceEvent {
  static constexpr uint32_t kNoJob = UINT32_MAX;

  TraceActivity activity;
  uint32_t who;   // thread of the broker; rank; of those that fetch at once
  uint32_t job;   // index of the answer's `jobs`; kNoJob: of none
  uint32_t more;  // of kFetch: MoreOfFetch
  uint64_t rows;
  uint64_t begin_ns;  // since the trace began
  uint64_t end_ns;
};
static_assert(sizeof(TraceEvent) == 40);

// What a fetch had waited for its turn, and requests of it that failed.
inline constexpr uint32_t kFetchWaitBits = 24;
constexpr uint32_t MoreOfFetch(uint64_t wait_ms, uint64_t retries) {
  constexpr uint64_t kWaitMax = (uint64_t{1} << kFetchWaitBits) - 1;
  constexpr uint64_t kRetriesMax = UINT32_MAX >> kFetchWaitBits;
  return static_cast<uint32_t>((retries < kRetriesMax ? retries : kRetriesMax)
                                   << kFetchWaitBits |
                               (wait_ms < kWaitMax ? wait_ms : kWaitMax));
}
static_assert(std::is_trivially_copyable_v<TraceEvent>);

}  // namespace penstock
#endif  // COMMON_TRACE_EVENT_H_
