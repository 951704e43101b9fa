// A trace: for some seconds workers record themselves, and ranks are looked at.
//
// Ranks write nothing for it: the control thread looks at their pages every
// millisecond, less often where that would take it more than a fiftieth of its
// time.
//
// Runs on the control thread.
#ifndef BROKER_CONTROL_TRACING_H_
#define BROKER_CONTROL_TRACING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "broker/base/event_loop.h"
#include "broker/job/job.h"
#include "broker/workers/trace.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class Tracing {
 public:
  Tracing(EventLoop* loop, Trace* trace) : loop_(loop), trace_(trace) {}

  // Whether the asking user may know of what this one owns.
  using MaySee = std::function<bool(uint32_t owner)>;
  // The answer, and the events as a memory file.
  using Done = std::function<void(const nlohmann::json& answer, Fd events)>;
  // Calls done when it is over. ResourceExhausted: another is being recorded.
  Status Start(const std::vector<std::shared_ptr<Job>>& jobs, double seconds,
               MaySee may_see, Done done);
  // As if its time were over.
  void Stop();

 private:
  // One that is being recorded, one at a time.
  struct Recording {
    std::vector<std::weak_ptr<Job>> jobs;  // which may end before
    MaySee may_see;
    Done done;
    Fd timer;
    double seconds = 0;
    uint64_t began_unix_ns = 0;
    uint64_t end_ns = 0;
    // A rank as it was when it last changed.
    struct Seen {
      bool waiting = false;
      uint64_t taken = 0;
      uint64_t since_ns = 0;  // 0: never seen
    };
    std::map<std::pair<JobKey, uint32_t>, Seen> seen;
  };

  void LookAtRanks();

  EventLoop* const loop_;
  Trace* const trace_;
  std::unique_ptr<Recording> recording_;
};

}  // namespace penstock
#endif  // BROKER_CONTROL_TRACING_H_
