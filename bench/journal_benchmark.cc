// The cost of recording a batch of a dynamic job (recovery_journal.h): the time
// for which the job's mutex is held, and the CPU time of all threads.
//
// Method: as a job of --rate batches a second does it, each batch is opened and
// completed, one after the other, in bursts of 20 ms; then at full speed. CPU
// time is the whole process's (getrusage), less that of the same bursts without
// records. The journal is in --folder, on the disk to be measured.
//
//   journal_benchmark --folder DIR [--rate 880] [--seconds 5]
#include <sys/resource.h>
#include <time.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "broker/recovery/recovery_journal.h"
#include "common/command_line.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Cost {
  double caller_us = 0;  // a batch: the time its two calls take
  double cpu_us = 0;     // a burst's, over its batches
};

// rate 0: without a pause. journal nullptr: without records.
Cost Run(RecoveryJournal* journal, uint64_t job, uint64_t* step, uint64_t rate,
         double seconds) {
  constexpr std::chrono::milliseconds kBurst{20};
  const uint64_t burst = rate == 0 ? 1000 : (rate + 49) / 50;
  uint64_t batches = 0;
  std::chrono::duration<double> in_calls{0};
  const double cpu = CpuSeconds();
  const Clock::time_point begin = Clock::now();
  for (Clock::time_point next = begin;
       Clock::now() - begin < std::chrono::duration<double>(seconds);) {
    const Clock::time_point before = Clock::now();
    for (uint64_t i = 0; journal != nullptr && i < burst; ++i, ++*step) {
      journal->Opened(job, *step + 1);
      journal->Completed(job, *step, *step + 1);
    }
    in_calls += Clock::now() - before;
    batches += burst;
    next += kBurst;
    if (rate != 0) std::this_thread::sleep_until(next);
  }
  const auto count = static_cast<double>(batches);
  return {1e6 * in_calls.count() / count, 1e6 * (CpuSeconds() - cpu) / count};
}

int Main(int argc, char** argv) {
  std::string folder;
  uint64_t rate = 880;
  double seconds = 5;
  CommandLine line("journal_benchmark",
                   "The cost of recording a batch of a dynamic job.");
  line.AddOption("--folder", &folder, "where the journal is").Required();
  line.AddOption("--rate", &rate, "batches a second");
  line.AddOption("--seconds", &seconds, "of each part");
  line.ParseOrExit(argc, argv);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  auto journal = RecoveryJournal::Open(folder, {});
  if (!journal.ok()) {
    std::fprintf(stderr, "%s\n", journal.status().message().c_str());
    return 1;
  }
  JobOptions options;
  options.spec = *ParseDatasetSpec(
      "dataset: numbers\nsource: {range: 8}\nbatch: {size: 1}\n", "bench", "/");
  options.delivery.mode = DeliveryMode::kDynamic;
  const uint64_t job = *(*journal)->JobOpened({0, "bench", "numbers", {}},
                                              options, {}, true, {});
  (*journal)->Begun(job, 0, 4096);
  uint64_t step = 0;
  const Cost nothing = Run(nullptr, job, &step, rate, seconds);
  const Cost paced = Run(journal->get(), job, &step, rate, seconds);
  std::printf("%lu batches/s: %.2f us in its calls, %.2f us of CPU a batch\n",
              static_cast<unsigned long>(rate), paced.caller_us,
              paced.cpu_us - nothing.cpu_us);
  const Cost fast = Run(journal->get(), job, &step, 0, seconds);
  std::printf("at full speed: %.2f us in its calls, %.2f us of CPU\n",
              fast.caller_us, fast.cpu_us);
  journal->reset();
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
