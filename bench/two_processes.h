// Two processes, each pinned to a core of its own, that hand batches to each
// other through some mechanism; for handoff_benchmark.cc.
//
// A Mechanism is made before the fork and has
//   void Begin(int side);  // in process 0 or 1, pinned; what it opens there
//   void Hand();           // gives one batch to the other process
//   void Take();           // waits for one of the other, as the mechanism does
//   void Tidy();           // what may be done later: gives back what it took
#ifndef BENCH_TWO_PROCESSES_H_
#define BENCH_TWO_PROCESSES_H_

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

using BenchClock = std::chrono::steady_clock;  // the same in all processes

// Zeroed memory that a fork shares.
template <typename T>
class Shared {
 public:
  Shared()
      : memory_(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::runtime_error("mmap");
  }
  ~Shared() { munmap(memory_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return static_cast<T*>(memory_); }

 private:
  void* memory_;
};

struct Cores {
  int first = 0;
  int second = 0;
};

inline void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    throw std::runtime_error("cannot run on CPU " + std::to_string(cpu));
  }
}

// glibc 2.36 declares pidfd_open for C only.
inline int OpenPidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

// Runs body(0) and body(1) in a process each. Throws when one of them failed,
// which has printed the reason on stderr.
inline void RunPair(Cores cores, const std::function<void(int)>& body) {
  pid_t pids[2];
  for (int side = 0; side < 2; ++side) {
    std::fflush(nullptr);
    pids[side] = fork();
    if (pids[side] < 0) throw std::runtime_error("fork");
    if (pids[side] > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = 0;
    try {
      PinTo(side == 0 ? cores.first : cores.second);
      body(side);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "side %d: %s\n", side, error.what());
      code = 1;
    }
    // Not _exit: libraries detach from their daemon at exit.
    std::exit(code);
  }
  // If one fails, the other is killed, because it would wait forever.
  pollfd ended[2] = {{OpenPidfd(pids[0]), POLLIN, 0},
                     {OpenPidfd(pids[1]), POLLIN, 0}};
  bool failed = false;
  for (int left = 2; left > 0;) {
    poll(ended, 2, -1);
    for (int side = 0; side < 2; ++side) {
      if (ended[side].revents == 0) continue;
      int status = 0;
      waitpid(pids[side], &status, 0);
      close(std::exchange(ended[side].fd, -1));  // poll passes over it now
      ended[side].revents = 0;
      --left;
      if (status != 0 && !std::exchange(failed, true) && left > 0) {
        kill(pids[1 - side], SIGKILL);
      }
    }
  }
  if (failed) throw std::runtime_error("one of the two processes failed");
}

inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

inline double NanosecondsSince(BenchClock::time_point begin) {
  return std::chrono::duration<double, std::nano>(BenchClock::now() - begin)
      .count();
}

// What reading the clock adds to a time between two readings.
inline double ClockNs() {
  double least = 1e9;
  for (int i = 0; i < 1000; ++i) {
    const BenchClock::time_point begin = BenchClock::now();
    least = std::min(least, NanosecondsSince(begin));
  }
  return least;
}

// p50 of half a round trip: the other side hands over as soon as it has taken.
// Between two round trips, when neither waits for a batch, both tidy up.
template <typename Mechanism>
double HalfRoundTripNs(Cores cores, Mechanism& mechanism,
                       std::chrono::milliseconds budget) {
  struct Page {
    double result;
    alignas(128) std::atomic<int64_t> tidy;  // round trips done; -1: all
    alignas(128) std::atomic<int64_t> tidied;
  };
  const Shared<Page> page;
  RunPair(cores, [&](int side) {
    mechanism.Begin(side);
    if (side == 1) {
      for (int64_t done = 0; done >= 0;) {
        mechanism.Take();
        mechanism.Hand();
        const int64_t before = done;
        while ((done = page->tidy.load(std::memory_order_acquire)) == before) {
        }
        mechanism.Tidy();
        page->tidied.store(done, std::memory_order_release);
      }
      return;
    }
    const double clock_ns = ClockNs();
    std::vector<double> samples;
    constexpr size_t kWarmUp = 5;
    const BenchClock::time_point end = BenchClock::now() + budget;
    for (int64_t done = 0; done >= 0;) {
      const BenchClock::time_point begin = BenchClock::now();
      mechanism.Hand();
      mechanism.Take();
      samples.push_back((NanosecondsSince(begin) - clock_ns) / 2);
      const bool last = samples.size() > 2 * kWarmUp && begin > end;
      done = last ? -1 : done + 1;
      page->tidy.store(done, std::memory_order_release);
      mechanism.Tidy();
      while (page->tidied.load(std::memory_order_acquire) != done) {
      }
    }
    samples.erase(samples.begin(), samples.begin() + kWarmUp);
    page->result = Median(std::move(samples));
  });
  return page->result;
}

// Whether the process's first thread sleeps in the kernel.
class SleepWatch {
 public:
  explicit SleepWatch(pid_t pid)
      : stat_(open(("/proc/" + std::to_string(pid) + "/stat").c_str(),
                   O_RDONLY | O_CLOEXEC)) {
    if (stat_ < 0) throw std::runtime_error("no /proc of the peer");
  }
  ~SleepWatch() { close(stat_); }
  SleepWatch(const SleepWatch&) = delete;
  SleepWatch& operator=(const SleepWatch&) = delete;

  bool Sleeps() const {
    char text[512];
    const ssize_t bytes = pread(stat_, text, sizeof(text), 0);
    if (bytes <= 0) throw std::runtime_error("the peer is gone");
    // "pid (name) S ...", where the name may contain any character.
    const std::string_view stat(text, static_cast<size_t>(bytes));
    return stat.substr(stat.rfind(')') + 2, 1) == "S";
  }

 private:
  int stat_;
};

// The time between the peer's falling asleep and the hand-over, in which its
// core settles into its idle state.
constexpr std::chrono::microseconds kAsleep{50};

// p50 of the time from before Hand until Take returns in the other process,
// which sleeps before.
template <typename Mechanism>
double WakeNs(Cores cores, Mechanism& mechanism, int count) {
  struct Page {
    double result;
    std::atomic<pid_t> sleeper;
    alignas(128) std::atomic<int> taken;
    BenchClock::time_point taken_at;
  };
  const Shared<Page> page;
  RunPair(cores, [&](int side) {
    mechanism.Begin(side);
    if (side == 1) {
      page->sleeper.store(getpid(), std::memory_order_release);
      for (int i = 1; i <= count; ++i) {
        mechanism.Take();
        page->taken_at = BenchClock::now();
        mechanism.Tidy();
        page->taken.store(i, std::memory_order_release);
      }
      return;
    }
    while (page->sleeper.load(std::memory_order_acquire) == 0) sched_yield();
    const SleepWatch peer(page->sleeper);
    std::vector<double> samples;
    for (int i = 1; i <= count; ++i) {
      while (!peer.Sleeps()) {
      }
      const BenchClock::time_point ready = BenchClock::now() + kAsleep;
      while (BenchClock::now() < ready) {
      }
      const BenchClock::time_point begin = BenchClock::now();
      mechanism.Hand();
      while (page->taken.load(std::memory_order_acquire) != i) {
      }
      mechanism.Tidy();
      samples.push_back(
          std::chrono::duration<double, std::nano>(page->taken_at - begin)
              .count());
    }
    page->result = Median(samples);
  });
  return page->result;
}

}  // namespace penstock
#endif  // BENCH_TWO_PROCESSES_H_
