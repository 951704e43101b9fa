// penstock trace: what workers and ranks do for some seconds, as a file for
// Perfetto and chrome://tracing.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/command/job_options.h"
#include "client/command/output_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/interrupt.h"
#include "client/private_broker/json_field.h"
#include "common/command_line.h"
#include "common/message.h"
#include "common/printable.h"
#include "common/quantity.h"
#include "common/trace_event.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr double kTraceSecondsMin = 0.1;
constexpr double kTraceSecondsMax = 60;
constexpr double kAnswerSeconds = 30;  // after the trace's end
constexpr uint64_t kEventsMax = 10'000'000;
// Numbers of processes that Linux never gives, for groups of tracks.
constexpr uint64_t kFirstGroup = 4'194'305;
// torch.profiler has its base within the first part of its file.
constexpr size_t kHeadBytes = 1 << 20;

struct TraceOptions {
  JobOptions job;
  std::string out = "trace.json";
  std::string beside;
  double seconds = 5;
};

// The events of the memfd; its size is not trusted.
StatusOr<std::vector<TraceEvent>> ReadEvents(const Message& answer) {
  const uint64_t count = CountField(answer.json, "events").value_or(0);
  struct stat found {};
  if (answer.fds.size() != 1 || fstat(answer.fds[0].get(), &found) != 0 ||
      count > kEventsMax ||
      found.st_size != static_cast<off_t>(count * sizeof(TraceEvent))) {
    return InternalError("the broker's answer does not follow the protocol");
  }
  std::vector<TraceEvent> events(count);
  if (!ReadWholly(answer.fds[0].get(), events.data(),
                  count * sizeof(TraceEvent))) {
    return ErrnoError(errno, "read the trace");
  }
  return events;
}

// The time that the other trace counts from; 0: it has the time of day.
StatusOr<uint64_t> BaseOf(const std::string& path) {
  if (path.empty()) return 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFoundError("cannot read '{}'", path);
  std::string head(kHeadBytes, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  constexpr std::string_view kKey = "\"baseTimeNanoseconds\":";
  const size_t at = head.find(kKey);
  if (at == std::string::npos) return 0;
  const size_t number = head.find_first_not_of(' ', at + kKey.size());
  uint64_t base = 0;
  if (number != std::string::npos) {
    std::from_chars(head.data() + number, head.data() + head.size(), base);
  }
  return base;
}

struct Activity {
  const char* name;
  const char* argument;
};
constexpr std::array<Activity, 6> kActivities = {{
    {"make rows", "rows"},
    {"call function", "rows"},
    {"wait for reads", "of object stores"},
    {"wait for a batch", "taken"},
    {"batch", "batch"},
    {"fetch", "bytes"},
}};

// Where an event is shown: a group of tracks, named, and one of its tracks.
struct Track {
  uint64_t group;
  std::string group_name;
  std::string name;
};

std::string JobName(const Json& jobs, uint32_t index) {
  if (!jobs.is_array() || index >= jobs.size()) return "";
  const std::string name = TextField(jobs[index], "job");
  return name.empty() ? "another user's job" : name;
}

// Microseconds, with nanoseconds as their fraction.
std::string Microseconds(int64_t ns) {
  const uint64_t size = static_cast<uint64_t>(ns < 0 ? -ns : ns);
  return Format("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

Track TrackOf(const TraceEvent& event, const std::string& job) {
  switch (event.activity) {
    case TraceActivity::kMake:
    case TraceActivity::kRead:
      return {kFirstGroup, "penstockd: workers",
              Format("worker {}", event.who)};
    case TraceActivity::kFunction:
      return {kFirstGroup + 1, "penstockd: function processes",
              Format("process of thread {}", event.who)};
    case TraceActivity::kFetch:
      return {kFirstGroup + 2, "penstockd: fetches of object stores",
              Format("fetch {}", event.who)};
    default:
      return {kFirstGroup + 3 + event.job, Format("job {}", job),
              Format("rank {}", event.who)};
  }
}

// base_ns: what the times count from.
std::string ChromeTrace(const Json& answer,
                        const std::vector<TraceEvent>& events,
                        uint64_t base_ns) {
  const Json& jobs = FieldOf(answer, "jobs");
  const int64_t began_ns = static_cast<int64_t>(
      CountField(answer, "began_unix_ns").value_or(0) - base_ns);
  // Chrome's format leaves the clock open: it is said here.
  std::string text = Format(
      "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"clock\":"
      "\"CLOCK_REALTIME\",\"base_unix_ns\":{}}},\"traceEvents\":[\n",
      base_ns);
  std::set<std::pair<uint64_t, uint32_t>> named;
  std::set<uint64_t> groups;
  const auto name = [&](const char* what, uint64_t group, uint32_t track,
                        const std::string& as) {
    text += JsonLine({{"ph", "M"},
                      {"name", what},
                      {"pid", group},
                      {"tid", track},
                      {"args", {{"name", as}}}}) +
            ",\n";
  };
  for (const TraceEvent& event : events) {
    const size_t which = static_cast<size_t>(event.activity);
    if (which >= kActivities.size() || event.end_ns < event.begin_ns) continue;
    const Activity& activity = kActivities[which];
    const std::string job = JobName(jobs, event.job);
    const Track track = TrackOf(event, job);
    if (groups.insert(track.group).second) {
      name("process_name", track.group, 0, track.group_name);
    }
    if (named.insert({track.group, event.who}).second) {
      name("thread_name", track.group, event.who, track.name);
    }
    Json args = Json::object();
    if (!job.empty()) args["job"] = job;
    args[activity.argument] = event.rows;
    if (event.activity == TraceActivity::kFetch) {
      args["retries"] = event.more >> kFetchWaitBits;
      args["waited for its turn, ms"] =
          event.more & ((1u << kFetchWaitBits) - 1);
    }
    text += Format(
        "{{\"ph\":\"X\",\"cat\":\"penstock\",\"name\":\"{}\",\"pid\":{},"
        "\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{}}},\n",
        activity.name, track.group, event.who,
        Microseconds(began_ns + static_cast<int64_t>(event.begin_ns)),
        Microseconds(static_cast<int64_t>(event.end_ns - event.begin_ns)),
        JsonLine(args));
  }
  // No comma behind the last.
  name("process_sort_index", kFirstGroup, 0, "");
  text.resize(text.size() - 2);
  return text + "\n]}\n";
}

StatusOr<int> Record(const TraceOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t base_ns, BaseOf(options.beside));
  // Before seconds are spent.
  PENSTOCK_RETURN_IF_ERROR(OutputFile(options.out).status());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string path,
                            RunningBroker(options.job.socket));
  PENSTOCK_ASSIGN_OR_RETURN(const Fd socket, ConnectControl(path));
  const InterruptEndsSocket ends(socket.get());
  Json request = options.job.Request("trace");
  request["seconds"] = options.seconds;
  const StatusOr<Message> answer =
      Request(socket.get(), request, {},
              DeadlineAfter(options.seconds + kAnswerSeconds));
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  if (!answer.ok()) return answer.status();
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TraceEvent> events,
                            ReadEvents(*answer));
  PENSTOCK_RETURN_IF_ERROR(
      WriteWhole(options.out, ChromeTrace(answer->json, events, base_ns)));
  const uint64_t dropped = CountField(answer->json, "dropped").value_or(0);
  Print(stdout, "{}: {} of {} s{}\n", Printable(options.out),
        Counted(events.size(), "event"), options.seconds,
        dropped == 0 ? "" : Format("; {} more did not fit", dropped));
  return 0;
}

}  // namespace

Subcommand AddTrace(Command parent) {
  Command trace = parent.AddCommand(
      "trace", "Record what workers and ranks do, for Perfetto");
  const auto options = std::make_shared<TraceOptions>();
  trace.AddOption("JOB", &options->job.job, "Name of the job (`penstock jobs`)")
      .Required();
  trace.AddOption("--seconds", &options->seconds, "For how long (default: 5)")
      .InRange(kTraceSecondsMin, kTraceSecondsMax)
      .Type("N");
  trace.AddOption("--out", &options->out, "The file (default: trace.json)")
      .Type("FILE");
  trace
      .AddOption("--beside", &options->beside,
                 "A trace of torch.profiler: times count from its base, so "
                 "that both fit in one view")
      .Type("FILE");
  options->job.AddTo(trace);
  trace.SetFooter(R"(
Open the file at ui.perfetto.dev or chrome://tracing. Workers are shown with
the rows of all jobs, ranks with their batches and waits, seen to a millisecond,
and what is fetched from object stores with its retries.

Examples:
  penstock trace train --seconds 5 --out trace.json
  penstock trace train --beside torch.json)");
  return {trace, [options] { return Record(*options); }};
}

}  // namespace penstock
