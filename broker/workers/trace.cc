#include "broker/workers/trace.h"

#include <algorithm>
#include <utility>

namespace penstock {

void Trace::Add(TraceActivity activity, uint32_t who, const JobKey* job,
                uint64_t rows, uint64_t begin_ns, uint64_t end_ns,
                uint32_t more) {
  MutexLock lock(&mutex_);
  if (!on() || end_ns <= began_ns_) return;
  if (recorded_.events.size() == kEventsMax) {
    ++recorded_.dropped;
    return;
  }
  uint32_t index = TraceEvent::kNoJob;
  if (job != nullptr) {
    // Mostly that of the event before: finding it costs half of the event.
    if (last_job_ >= recorded_.jobs.size() ||
        recorded_.jobs[last_job_] != *job) {
      const auto [found, added] = job_index_.try_emplace(
          *job, static_cast<uint32_t>(recorded_.jobs.size()));
      if (added) recorded_.jobs.push_back(*job);
      last_job_ = found->second;
    }
    index = last_job_;
  }
  // What began before the trace is cut.
  recorded_.events.push_back({activity, who, index, more, rows,
                              std::max(begin_ns, began_ns_) - began_ns_,
                              end_ns - began_ns_});
}

void Trace::Start(uint64_t now_ns) {
  MutexLock lock(&mutex_);
  began_ns_ = now_ns;
  recorded_ = {};
  job_index_.clear();
  on_.store(true, std::memory_order_relaxed);
}

Trace::Recorded Trace::Stop() {
  MutexLock lock(&mutex_);
  on_.store(false, std::memory_order_relaxed);
  return std::exchange(recorded_, {});
}

}  // namespace penstock
