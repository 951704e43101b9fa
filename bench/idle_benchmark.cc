// How much of a core does the broker use when its ranks are slow? It takes that
// from the trainers without need.
//
// Method. A penstockd with two workers; ranks that take a batch, sleep for a
// step and release it. A run's cost is the CPU time of the whole penstockd
// process (its own clock, in ns) over two seconds, from half a second after the
// start, as a share of one core. The rows cost next to nothing (64 bytes made
// up), so the rest is overhead: wakes, checks, ticks. The baseline is ranks
// that do not sleep.
//
// Isolation. Each run has a penstockd of its own; the ranks are threads of this
// process and are not counted.
//
// Limits: one wake and one batch of rows for each batch taken; without any,
// five ticks a second in a broker with a job.
//
//   idle_benchmark [--runs N] [--json]
#include <time.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "bench/job_ranks.h"
#include "bench/side_by_side.h"
#include "tests/support/broker_process.h"

namespace penstock {
namespace {

using Seconds = std::chrono::duration<double>;

// Percent of one core.
double BrokerUse(int ranks, std::chrono::microseconds step, bool tiny) {
  const Seconds settle(tiny ? 0.1 : 0.5);
  const Seconds measure(tiny ? 0.1 : 2);
  const BrokerProcess broker({"--workers", "2"});
  std::optional<JobRanks> job;
  if (ranks > 0) {
    job.emplace(broker.socket(), "idle", SyntheticJob("idle", 0, 32), ranks,
                step);
  } else {
    broker.RowsMade();  // answers when it is up
  }
  std::this_thread::sleep_for(settle);
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_s = CpuSeconds(broker.pid());
  std::this_thread::sleep_for(measure);
  const Seconds wall = std::chrono::steady_clock::now() - begin;
  return 100 * (CpuSeconds(broker.pid()) - cpu_s) / wall.count();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::CommandLine line(
      "idle_benchmark", "The CPU time of the broker when its ranks are slow.");
  penstock::SideBySideOptions options;
  penstock::AddSideBySideOptions(line, &options);
  line.ParseOrExit(argc, argv);
  using std::chrono::milliseconds;
  penstock::SideBySide use("CPU time of penstockd", "% of one core");
  const auto add = [&](const char* name, int ranks, milliseconds step) {
    use.Add(name, [=, &options] {
      return penstock::BrokerUse(ranks, step, options.tiny);
    });
  };
  add("4 ranks that only drain", 4, milliseconds(0));
  add("4 ranks, steps of 10 ms", 4, milliseconds(10));
  add("4 ranks, steps of 100 ms", 4, milliseconds(100));
  add("64 ranks, steps of 100 ms", 64, milliseconds(100));
  add("4 ranks, steps of 1 s", 4, milliseconds(1000));
  add("no rank", 0, milliseconds(0));
  penstock::RunSideBySide({&use}, options);
}
