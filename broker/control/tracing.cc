// The request for a trace: workers and ranks are recorded for some seconds, and
// the answer comes afterwards.
//
// Ranks write nothing for it: the control thread looks at their pages every
// millisecond, less often where that would take it more than a fiftieth of its
// time.
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "broker/control/control_server.h"
#include "broker/workers/trace.h"
#include "common/message.h"

namespace penstock {
namespace {

constexpr uint64_t kLookNs = 1'000'000;
constexpr uint64_t kLookCostFactor = 100;

uint64_t Nanoseconds(auto duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}
uint64_t NowNs() {
  return Nanoseconds(std::chrono::steady_clock::now().time_since_epoch());
}

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

ControlServer::Answer ControlServer::StartTrace(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<Job>> jobs,
                            JobsOf(call));
  if (tracing_) {
    return ResourceExhaustedError(
        "another trace is being recorded: try again in {} s",
        static_cast<uint64_t>(tracing_->seconds) + 1);
  }
  Fd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return ErrnoError(errno, "timerfd_create");
  PENSTOCK_RETURN_IF_ERROR(
      loop_->Watch(timer.get(), [this](uint32_t) { LookAtRanks(); }));
  tracing_ = std::make_unique<Tracing>();
  tracing_->connection = call.connection->id;
  tracing_->uid = call.connection->uid;
  tracing_->jobs.assign(jobs.begin(), jobs.end());
  tracing_->timer = std::move(timer);
  tracing_->seconds = call.request.at("seconds").get<double>();
  tracing_->began_unix_ns =
      Nanoseconds(std::chrono::system_clock::now().time_since_epoch());
  const uint64_t now_ns = NowNs();
  tracing_->end_ns = now_ns + static_cast<uint64_t>(tracing_->seconds * 1e9);
  workers_->trace().Start(now_ns);
  call.connection->waiting = true;
  LookAtRanks();
  return nlohmann::json();
}

void ControlServer::LookAtRanks() {
  uint64_t expirations = 0;
  [[maybe_unused]] const ssize_t count =
      read(tracing_->timer.get(), &expirations, sizeof(expirations));
  const uint64_t now_ns = NowNs();
  const bool over = now_ns >= tracing_->end_ns;
  for (const std::weak_ptr<Job>& each : tracing_->jobs) {
    const std::shared_ptr<Job> job = each.lock();
    if (job == nullptr) continue;
    for (const Delivery::RankStatus& rank : job->Ranks()) {
      if (!rank.seat) continue;
      auto& seen = tracing_->seen[{job->key(), rank.rank}];
      const bool changed =
          seen.waiting != rank.waiting || seen.taken != rank.taken;
      if (seen.since_ns != 0 && (changed || over)) {
        // Before its first batch it has none.
        const bool has_batch = !seen.waiting && seen.taken > 0;
        if (seen.waiting || has_batch) {
          workers_->trace().Add(
              seen.waiting ? TraceActivity::kWait : TraceActivity::kBatch,
              job->key().consumer.value_or(rank.rank), &job->key(), seen.taken,
              seen.since_ns, now_ns);
        }
      }
      if (seen.since_ns == 0 || changed) {
        seen = {rank.waiting, rank.taken, now_ns};
      }
    }
  }
  if (over) return EndTrace();
  const uint64_t cost_ns = NowNs() - now_ns;
  const uint64_t next_ns = std::min(
      std::max(kLookNs, kLookCostFactor * cost_ns), tracing_->end_ns - now_ns);
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(next_ns / 1'000'000'000);
  when.it_value.tv_nsec = static_cast<long>(next_ns % 1'000'000'000) | 1;
  timerfd_settime(tracing_->timer.get(), 0, &when, nullptr);
}

void ControlServer::EndTrace() {
  const Trace::Recorded recorded = workers_->trace().Stop();
  loop_->Unwatch(tracing_->timer.get());
  const std::unique_ptr<const Tracing> tracing = std::move(tracing_);
  Connection* const connection = Find(tracing->connection);
  if (connection == nullptr) return;
  connection->waiting = false;
  // What others do is nobody else's business.
  std::vector<TraceEvent> own_events;
  for (const TraceEvent& event : recorded.events) {
    if (event.job >= recorded.jobs.size() ||
        MaySee(tracing->uid, recorded.jobs[event.job].uid)) {
      own_events.push_back(event);
    }
  }
  const StatusOr<Fd> events = MemfdOf(own_events);
  if (!events.ok()) return Reply(connection, ErrorReply(events.status()));
  nlohmann::json jobs = nlohmann::json::array();
  for (const JobKey& key : recorded.jobs) {
    const bool own = MaySee(tracing->uid, key.uid);
    jobs.push_back(
        {{"job", own ? key.name : ""}, {"dataset", own ? key.dataset : ""}});
  }
  nlohmann::json answer = OkReply();
  answer["began_unix_ns"] = tracing->began_unix_ns;
  answer["jobs"] = std::move(jobs);
  answer["events"] = own_events.size();
  answer["dropped"] = recorded.dropped;
  Reply(connection, answer, {events->get()});
}

}  // namespace penstock
