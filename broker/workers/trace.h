// Records what workers and ranks do, while somebody asks for it.
//
// Any thread adds. Without a trace that costs one relaxed load a chunk of rows
// (500 us of work, or one row if it takes longer); with one, a mutex for
// tens of nanoseconds as often. Bounded: what comes after kEventsMax is counted
// only.
#ifndef BROKER_WORKERS_TRACE_H_
#define BROKER_WORKERS_TRACE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/job/job_options.h"
#include "common/trace_event.h"

namespace penstock {

class Trace {
 public:
  static constexpr size_t kEventsMax = 500'000;  // 20 MB

  bool on() const {
    // Relaxed: a late view records a chunk more or less.
    return on_.load(std::memory_order_relaxed);
  }
  // Times are of the clock that gave begin_ns and end_ns. job: nullptr: none.
  void Add(TraceActivity activity, uint32_t who, const JobKey* job,
           uint64_t rows, uint64_t begin_ns, uint64_t end_ns,
           uint32_t more = 0);

  // Requires !on().
  void Start(uint64_t now_ns);
  struct Recorded {
    std::vector<TraceEvent> events;
    std::vector<JobKey> jobs;  // by the events' index
    uint64_t dropped = 0;
  };
  Recorded Stop();

 private:
  std::atomic<bool> on_{false};
  Mutex mutex_;
  uint64_t began_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  Recorded recorded_ ABSL_GUARDED_BY(mutex_);
  std::map<JobKey, uint32_t> job_index_ ABSL_GUARDED_BY(mutex_);
  uint32_t last_job_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_TRACE_H_
