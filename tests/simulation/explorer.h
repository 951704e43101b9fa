// Runs a protocol in every way it can go: interleavings, store buffers, deaths.
//
// A Scenario builds a fresh state, names the memory that its
// processes share, and adds the processes, lambdas that run the real code on
// SimulatedAtomic words. One thread runs all of it, so the same choices give
// the same run. A step is one access of a shared word together with the code
// after it up to the next one. Before each step the scheduler chooses:
//
//   * which process takes the next one;
//   * or whose oldest buffered store goes to memory (Memory::kTso);
//   * or which process dies here (Options::deaths_max): it runs no more;
//   * in a step under Memory::kCpp, which value a load reads.
//
// Explore tries all of them, depth first: it runs the scenario again and again
// with a prefix of choices, and cuts a run when it comes into a state that was
// seen before. That loses nothing: a process is a function of what it has read,
// so equal memory, equal buffers and equal histories of what each process has
// read (hashed, 64 bits) have equal futures. Nor are others interleaved before
// a step that no other process can notice, or that notices none: a store into
// the own buffer, a load of a word that only this process writes, a plain word
// under Memory::kCpp (where a race is found in either order). This rests on
//
//   X1  Code under test and lambdas are deterministic: no clock, no addresses,
//       no random numbers.
//   X2  What one process learns of another comes through shared words, a
//       WakePipe, or Run::Observe. Lambdas may note things for the checks in
//       memory of their own; reading another's is only for checks.
//   X3  Run::Always depends on nothing but shared words as memory has them.
//
// A failure message lists the choices as numbers (Replay reruns them) and all
// steps as text. For a random run it also has the seed (RunSeed).
#ifndef TESTS_SIMULATION_EXPLORER_H_
#define TESTS_SIMULATION_EXPLORER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/format.h"
#include "tests/simulation/memory_model.h"

namespace penstock::simulation {

struct Options {
  Memory memory = Memory::kTso;
  int deaths_max = 0;  // in one run
  int buffer_max = 8;  // stores of a process on their way to memory
  // How often in a run a process is preempted although it could continue; < 0:
  // without limit. Most faults need two or three; scenarios too big to explore
  // all set it.
  int preemptions_max = -1;
  uint64_t states_max = 20'000'000;
  int steps_max = 5'000;  // of one run: more is taken for a livelock
};

struct Result {
  bool failed = false;
  bool exhausted = false;  // Explore: nothing was left out
  std::string message;     // of a failure: what, choices, and the steps
  std::vector<uint16_t> choices;
  uint64_t seed = 0;  // of the failed random run
  uint64_t runs = 0;
  uint64_t states = 0;
  uint64_t steps = 0;
};

enum class Mortality { kNeverDies, kMayDie };

class Explorer;

// The interface of a scenario and of its processes to the explorer.
class Run {
 public:
  // ---- in the Scenario

  // Processes access no other words. Call it in the same order in every run;
  // base may differ. writer: the number of the one process that stores there (a
  // store of another fails the run), < 0: any may.
  void Share(const void* base, size_t bytes, int writer = -1);
  // Words that the code reads and no process writes. Reading them is not a
  // step.
  void ShareConstant(const void* base, size_t bytes) {
    Share(base, bytes, MemoryModel::kNobody);
  }
  // The name of a word in the list of steps.
  void Name(const void* word, const char* name);
  // Processes are numbered from 0 in the order they are added.
  int AddProcess(std::string name, std::function<void()> body,
                 Mortality mortality = Mortality::kNeverDies);
  // Called after each step; reads words as memory has them.
  void Always(std::function<void()> check);
  // Called when every process is done or dead and every store is in memory.
  void AtEnd(std::function<void()> check);
  // Hashes state that processes act on and that is neither a shared word nor a
  // WakePipe.
  void DigestWith(std::function<uint64_t()> digest);
  // Whether all live processes may sleep; by default they may not.
  void MaySleepForever(std::function<bool()> right);

  // ---- in a process

  // Sleeps until predicate, of things other than shared words, holds.
  void WaitUntil(const std::function<bool()>& predicate);
  // Sleeps until no other process can go on: a slow one.
  void WaitUntilOthersSleep();
  // The process has learnt value other than from a shared word.
  void Observe(uint64_t value);
  // A point without an access where the process may be interrupted or die.
  void Step(const char* what);

  // ---- anywhere

  // Ends the run with a failure message.
  template <typename... Args>
  void Check(bool right, fmt::format_string<Args...> message, Args&&... args) {
    if (!right) Fail(Format(message, std::forward<Args>(args)...));
  }
  [[noreturn]] void Fail(const std::string& message);
  bool dead(int process) const;
  // The process is dead or done, as a closed socket shows.
  bool gone(int process) const;

 private:
  friend class Explorer;
  friend class WakePipe;
  explicit Run(Explorer& explorer) : explorer_(explorer) {}

  Explorer& explorer_;
};

// One direction of common/wake.h's socket pair, from process to process. The
// kernel synchronizes: the receiver knows everything that the sender did
// before.
class WakePipe {
 public:
  WakePipe() = default;
  // In the Scenario, once both are known.
  void Connect(Run* run, int from, int to);

  void Send();  // SendWake
  // poll, then DrainWakes. False: the sender is gone.
  bool Wait();
  // Without sleeping: whether Wait would return at once.
  bool readable() const;

 private:
  friend class Explorer;
  Run* run_ = nullptr;
  int from_ = 0;
  int to_ = 0;
  bool pending_ = false;
  MemoryModel::View view_{};
};

using Scenario = std::function<void(Run&)>;

// Tries all choices, up to the first failure.
Result Explore(const Options& options, const Scenario& scenario);
// Tries `runs` random runs, with seeds from `seed` on, up to the first failure.
Result ExploreRandomly(const Options& options, const Scenario& scenario,
                       uint64_t seed, uint64_t runs);
Result RunSeed(const Options& options, const Scenario& scenario, uint64_t seed);
Result Replay(const Options& options, const Scenario& scenario,
              const std::vector<uint16_t>& choices);

}  // namespace penstock::simulation
#endif  // TESTS_SIMULATION_EXPLORER_H_
