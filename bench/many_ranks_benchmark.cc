// Does a batch cost the broker the same with 1,024 ranks as with 8, and with
// 256 jobs as with one? What do 1,024 attaches cost, and ranks that do nothing?
//
// Method. A penstockd with two workers and rows that cost nothing (a range), 64
// to a batch, so that the rest is overhead of the broker. Ranks are threads of
// this process; each attaches, then takes and releases its part of the batches.
// A cost is the CPU time of the whole penstockd process (its own clock): until
// the last rank is attached, and from then until the last batch, divided by the
// batches (of a broadcast: by the batches that all ranks took together).
//
// Isolation. Each run has a penstockd of its own; the ranks are not counted.
// Limits: threads that run at the same time evict its caches, and ranks that
// find batches ready wake the broker less often.
//
// 256 jobs need four users (the limit is 64 each), and so root.
//
//   many_ranks_benchmark [--runs N] [--only TEXT] [--json]
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/side_by_side.h"
#include "client/penstock.hpp"
#include "tests/support/broker_process.h"

namespace penstock {
namespace {

constexpr int kBatches = 20'000;  // of all ranks, at least
constexpr int kJobsOfUser = 64;
constexpr uint32_t kFirstUser = 60'000;

struct Costs {
  double attach_s = 0;
  double batch_us = 0;
  double idle_percent = 0;  // of one core
};

// The system call, because glibc's setresuid changes the user of all threads.
void BecomeUser(uint32_t user) {
  if (syscall(SYS_setresuid, -1, user, -1) != 0) {
    std::perror("setresuid");
    std::exit(1);
  }
}

Costs Measure(const std::string& delivery, int jobs, int ranks, bool tiny) {
  const bool many_users = jobs > kJobsOfUser;
  const BrokerProcess broker({"--workers", "2"}, !many_users);
  broker.RowsMade();  // answers when it is up
  if (many_users) {
    std::filesystem::permissions(broker.folder(), std::filesystem::perms(0755));
    std::filesystem::permissions(broker.socket(), std::filesystem::perms(0666));
  }
  const int consumers = jobs * ranks;
  const int steps =
      tiny ? 3 : std::max(8, (kBatches + consumers - 1) / consumers);
  const bool split = delivery == "split";
  const std::string spec =
      "dataset: numbers\nsource: {range: 100000000}\nbatch: {size: " +
      std::to_string(split ? 64 * ranks : 64) + "}\nepochs: forever\n";
  Costs costs;
  double cpu_s = CpuSeconds(broker.pid());
  const auto spent = [&] {
    const double now = CpuSeconds(broker.pid());
    return now - std::exchange(cpu_s, now);
  };
  // The last of the threads makes its last step while the others wait.
  int phase = 0;
  std::barrier sync(consumers, [&]() noexcept {
    switch (phase++) {
      case 0:
        costs.attach_s = spent();
        break;
      case 1: {  // batches that were made ahead are ready by now
        const double seconds = tiny ? 0.1 : 2;
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        cpu_s = CpuSeconds(broker.pid());
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        costs.idle_percent = 100 * spent() / seconds;
        break;
      }
      default:
        costs.batch_us = 1e6 * spent() / (double{1} * consumers * steps);
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < consumers; ++i) {
    threads.emplace_back([&, i] {
      Options options;
      options.spec = spec;
      options.job = "job" + std::to_string(i / ranks);
      options.socket = broker.socket();
      options.delivery = delivery;
      options.rank = i % ranks;
      options.world_size = ranks;
      options.consumers = delivery == "broadcast" ? ranks : 0;
      options.timeout_s = 600;
      try {
        if (many_users) {
          BecomeUser(kFirstUser +
                     static_cast<uint32_t>(i / ranks / kJobsOfUser));
        }
        Reader reader(options);
        sync.arrive_and_wait();
        sync.arrive_and_wait();
        Batch batch;
        for (int step = 0; step < steps;) {
          if (reader.next(&batch) != Reader::Result::kBatch) continue;
          batch.release();
          ++step;
        }
        sync.arrive_and_wait();
      } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        std::exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return costs;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::CommandLine line(
      "many_ranks_benchmark",
      "The cost of a batch to the broker with many ranks and many jobs.");
  penstock::SideBySideOptions options;
  penstock::AddSideBySideOptions(line, &options);
  line.ParseOrExit(argc, argv);
  using penstock::Costs;
  using penstock::SideBySide;
  std::deque<SideBySide> tables;  // they stay where they are
  const auto rank_counts =
      options.tiny ? std::vector<int>{2, 8} : std::vector{8, 128, 512, 1024};
  for (const std::string delivery : {"split", "dynamic", "broadcast"}) {
    SideBySide& table = tables.emplace_back(
        "CPU time of penstockd, " + delivery,
        delivery == "broadcast" ? "us / batch and rank" : "us / batch");
    for (const int ranks : rank_counts) {
      table.Add(
          delivery + ", " + std::to_string(ranks) + " ranks", [=, &options] {
            return penstock::Measure(delivery, 1, ranks, options.tiny).batch_us;
          });
    }
  }
  SideBySide& jobs =
      tables.emplace_back("CPU time of penstockd, split", "us / batch");
  for (const int count :
       options.tiny ? std::vector<int>{1, 2} : std::vector{1, 60, 256}) {
    const std::string name = std::to_string(count) + " jobs of one rank";
    if (count > penstock::kJobsOfUser && geteuid() != 0) {
      jobs.Absent(name, "needs root: one user may have 64 jobs");
      continue;
    }
    jobs.Add(name, [=, &options] {
      return penstock::Measure("split", count, 1, options.tiny).batch_us;
    });
  }
  SideBySide& attach =
      tables.emplace_back("CPU time of penstockd, attaching all", "s");
  SideBySide& idle = tables.emplace_back(
      "CPU time of penstockd, ranks that do nothing", "% of one core");
  for (const int ranks : rank_counts) {
    const std::string name = std::to_string(ranks) + " ranks";
    attach.Add("attach, " + name, [=, &options] {
      return penstock::Measure("split", 1, ranks, options.tiny).attach_s;
    });
    idle.Add("idle, " + name, [=, &options] {
      return penstock::Measure("split", 1, ranks, options.tiny).idle_percent;
    });
  }
  std::vector<SideBySide*> all;
  for (SideBySide& table : tables) all.push_back(&table);
  penstock::RunSideBySide(all, options);
}
