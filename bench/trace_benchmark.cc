// What does `penstock trace` cost the job while it records? Less than 1 % of
// the rate is the promise.
//
// Method. A penstockd with as many workers as processors; ranks that only drain
// one job. A run is a window of one second of the same job, with or without a
// trace that is recorded for exactly that window. Its costs are the time and
// the CPU time of the whole penstockd process (its own clock, in ns) per row
// taken. Rows of 500 us are those of photographs; rows that cost nothing, in
// batches of 64, are the worst case: 50 times as many events.
//
// Isolation. Windows with and without a trace alternate in one broker, so that
// both have the same pages, slots and processors. The ranks are threads of this
// process; on a machine with few processors they take time from the workers.
//
// Limits: on 2 cores a window is good to 2 %: the mean of many is what counts.
// Handing the events over at the end is a part of the window.
//
//   trace_benchmark [--runs N] [--json]
#include <time.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "bench/job_ranks.h"
#include "bench/side_by_side.h"
#include "common/deadline.h"
#include "common/message.h"
#include "tests/support/broker_process.h"

namespace penstock {
namespace {

using Seconds = std::chrono::duration<double>;

void Record(const std::string& socket, double seconds) {
  const StatusOr<Fd> connection = ConnectControl(socket);
  if (connection.ok()) {
    const auto answer =
        Request(connection->get(),
                {{"op", "trace"}, {"job", "traced"}, {"seconds", seconds}}, {},
                DeadlineAfter(seconds + 30));
    if (answer.ok()) return;
    Print(stderr, "{}\n", answer.status().message());
  }
  std::exit(1);
}

// A job that is drained, from its first batch on.
class Drained {
 public:
  Drained(int ranks, int cost_us, int batch, double seconds)
      : seconds_(seconds),
        job_(broker_.socket(), "traced", SyntheticJob("traced", cost_us, batch),
             ranks, std::chrono::microseconds(0)) {
    while (job_.rows() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  // Nanoseconds a row: wall, or of penstockd's CPU.
  double Window(bool traced, bool cpu) {
    const uint64_t rows = job_.rows();
    const double cpu_s = CpuSeconds(broker_.pid());
    const auto begin = std::chrono::steady_clock::now();
    if (traced) {
      Record(broker_.socket(), seconds_);
    } else {
      std::this_thread::sleep_for(Seconds(seconds_));
    }
    const Seconds wall = std::chrono::steady_clock::now() - begin;
    const double spent = cpu ? CpuSeconds(broker_.pid()) - cpu_s : wall.count();
    return 1e9 * spent / static_cast<double>(job_.rows() - rows);
  }

 private:
  const double seconds_;
  const BrokerProcess broker_;
  JobRanks job_;
};

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::CommandLine line("trace_benchmark",
                             "What penstock trace costs while it records.");
  penstock::SideBySideOptions options;
  options.runs = 20;
  penstock::AddSideBySideOptions(line, &options);
  line.ParseOrExit(argc, argv);
  for (const auto& [name, ranks, cost_us, batch] :
       {std::tuple{"4 ranks, rows of 500 us", 4, 500, 8},
        std::tuple{"4 ranks, rows that cost nothing", 4, 0, 64},
        std::tuple{"64 ranks, rows that cost nothing", 64, 0, 64}}) {
    penstock::Drained job(ranks, cost_us, batch, options.tiny ? 0.1 : 1);
    for (const bool cpu : {false, true}) {
      penstock::SideBySide table(
          penstock::Format("{}, {}", name,
                           cpu ? "CPU time of penstockd" : "time"),
          "ns a row");
      for (const bool traced : {false, true}) {
        table.Add(traced ? "trace" : "no trace",
                  [&job, traced, cpu] { return job.Window(traced, cpu); });
      }
      penstock::RunSideBySide({&table}, options);
    }
  }
}
