#include "broker/control/tracing.h"

#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "broker/io/file_access.h"
#include "broker/io/stores.h"
#include "common/deadline.h"
#include "common/message.h"

namespace penstock {
namespace {

constexpr uint64_t kLookNs = 1'000'000;
constexpr uint64_t kLookCostFactor = 100;

StatusOr<Fd> MemfdOf(const std::vector<TraceEvent>& events) {
  Fd fd(memfd_create("penstock trace", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoError(errno, "memfd_create");
  const char* data = reinterpret_cast<const char*>(events.data());
  size_t left = events.size() * sizeof(TraceEvent);
  while (left > 0) {
    const ssize_t count = write(fd.get(), data, left);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return ErrnoError(errno, "write the trace");
    data += count;
    left -= static_cast<size_t>(count);
  }
  return fd;
}

}  // namespace

Status Tracing::Start(const std::vector<std::shared_ptr<Job>>& jobs,
                      double seconds, MaySee may_see, Done done) {
  if (recording_) {
    return ResourceExhaustedError(
        "another trace is being recorded: try again in {} s",
        static_cast<uint64_t>(recording_->seconds) + 1);
  }
  Fd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return ErrnoError(errno, "timerfd_create");
  PENSTOCK_RETURN_IF_ERROR(
      loop_->Watch(timer.get(), [this](uint32_t) { LookAtRanks(); }));
  recording_ = std::make_unique<Recording>();
  recording_->jobs.assign(jobs.begin(), jobs.end());
  recording_->may_see = std::move(may_see);
  recording_->done = std::move(done);
  recording_->timer = std::move(timer);
  recording_->seconds = seconds;
  recording_->began_unix_ns = static_cast<uint64_t>(
      std::chrono::nanoseconds(
          std::chrono::system_clock::now().time_since_epoch())
          .count());
  const uint64_t now_ns = MonotonicNs();
  recording_->end_ns = now_ns + static_cast<uint64_t>(seconds * 1e9);
  trace_->Start(now_ns);
  if (Stores* const stores = FileAccess::stores()) {
    stores->Observe([trace = trace_](const FetchSpan& span) {
      constexpr uint64_t kNsOfMs = 1'000'000;
      const uint64_t wait_ns =
          span.begin_ns - std::min(span.begin_ns, span.asked_ns);
      trace->Add(TraceActivity::kFetch, span.lane, nullptr, span.bytes,
                 span.begin_ns, span.end_ns,
                 MoreOfFetch(wait_ns / kNsOfMs, span.retries));
    });
  }
  LookAtRanks();
  return OkStatus();
}

void Tracing::LookAtRanks() {
  uint64_t expirations = 0;
  [[maybe_unused]] const ssize_t count =
      read(recording_->timer.get(), &expirations, sizeof(expirations));
  const uint64_t now_ns = MonotonicNs();
  const bool over = now_ns >= recording_->end_ns;
  for (const std::weak_ptr<Job>& each : recording_->jobs) {
    const std::shared_ptr<Job> job = each.lock();
    if (job == nullptr) continue;
    for (const Delivery::RankStatus& rank : job->Locked(&Delivery::Ranks)) {
      if (!rank.seat) continue;
      auto& seen = recording_->seen[{job->key(), rank.rank}];
      const bool changed =
          seen.waiting != rank.waiting || seen.taken != rank.taken;
      if (seen.since_ns != 0 && (changed || over)) {
        // Before its first batch it has none.
        const bool has_batch = !seen.waiting && seen.taken > 0;
        if (seen.waiting || has_batch) {
          trace_->Add(
              seen.waiting ? TraceActivity::kWait : TraceActivity::kBatch,
              job->NumberOf(rank.rank), &job->key(), seen.taken, seen.since_ns,
              now_ns);
        }
      }
      if (seen.since_ns == 0 || changed) {
        seen = {rank.waiting, rank.taken, now_ns};
      }
    }
  }
  if (over) return Stop();
  const uint64_t cost_ns = MonotonicNs() - now_ns;
  const uint64_t next_ns =
      std::min(std::max(kLookNs, kLookCostFactor * cost_ns),
               recording_->end_ns - now_ns);
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(next_ns / 1'000'000'000);
  when.it_value.tv_nsec = static_cast<long>(next_ns % 1'000'000'000) | 1;
  timerfd_settime(recording_->timer.get(), 0, &when, nullptr);
}

void Tracing::Stop() {
  if (Stores* const stores = FileAccess::stores()) {
    stores->Observe(nullptr);
  }
  const Trace::Recorded recorded = trace_->Stop();
  loop_->Unwatch(recording_->timer.get());
  const std::unique_ptr<Recording> recording = std::move(recording_);
  // What others do is nobody else's business.
  std::vector<TraceEvent> own_events;
  for (const TraceEvent& event : recorded.events) {
    if (event.job >= recorded.jobs.size() ||
        recording->may_see(recorded.jobs[event.job].uid)) {
      own_events.push_back(event);
    }
  }
  StatusOr<Fd> events = MemfdOf(own_events);
  if (!events.ok()) return recording->done(ErrorReply(events.status()), Fd());
  nlohmann::json jobs = nlohmann::json::array();
  for (const JobKey& key : recorded.jobs) {
    const bool own = recording->may_see(key.uid);
    jobs.push_back(
        {{"job", own ? key.name : ""}, {"dataset", own ? key.dataset : ""}});
  }
  nlohmann::json answer = OkReply();
  answer["began_unix_ns"] = recording->began_unix_ns;
  answer["jobs"] = std::move(jobs);
  answer["events"] = own_events.size();
  answer["dropped"] = recorded.dropped;
  recording->done(answer, *std::move(events));
}

}  // namespace penstock
