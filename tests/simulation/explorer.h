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
// A failure tells the choices as numbers (Replay runs them again), and all the
// steps as text; of a random run also its seed (RunSeed).
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
  // How often in a run a process is put off though it could go on; < 0: ever.
  // Most faults need two or three; scenarios too big for all of them set it.
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

// What a scenario says to the explorer, and its processes to the scheduler.
class Run {
 public:
  // ---- in the Scenario

  // Words outside of what is shared are not accessed by a process. In the same
  // order in every run; base may differ. writer: the number of the one process
  // that stores there (a store of another fails the run), < 0: any may.
  void Share(const void* base, size_t bytes, int writer = -1);
  // Words that the code reads and no process ever writes: reading them is no
  // step.
  void ShareConstant(const void* base, size_t bytes) {
    Share(base, bytes, MemoryModel::kNobody);
  }
  // What the steps call a word of it.
  void Name(const void* word, const char* name);
  // Numbered from 0 in the order of adding.
  int AddProcess(std::string name, std::function<void()> body,
                 Mortality mortality = Mortality::kNeverDies);
  // After each step. Reads words as memory has them.
  void Always(std::function<void()> check);
  // When every process is done or dead and every store is in memory.
  void AtEnd(std::function<void()> check);
  // Of state the processes act on that is neither shared words nor a WakePipe.
  void DigestWith(std::function<uint64_t()> digest);
  // Whether it is right that all who live sleep; without it, it never is.
  void MaySleepForever(std::function<bool()> right);

  // ---- in a process

  // Sleeps until predicate, of things other than shared words, holds.
  void WaitUntil(const std::function<bool()>& predicate);
  // The process has learnt value by another way than by a shared word.
  void Observe(uint64_t value);
  // A point to be interrupted or to die at without an access.
  void Step(const char* what);

  // ---- anywhere

  // The run fails with a message, and is over.
  template <typename... Args>
  void Check(bool right, fmt::format_string<Args...> message, Args&&... args) {
    if (!right) Fail(Format(message, std::forward<Args>(args)...));
  }
  [[noreturn]] void Fail(const std::string& message);
  bool dead(int process) const;
  // Dead, or done with its lambda: what a closed socket tells.
  bool gone(int process) const;

 private:
  friend class Explorer;
  friend class WakePipe;
  explicit Run(Explorer& explorer) : explorer_(explorer) {}

  Explorer& explorer_;
};

// One direction of common/wake.h's socket pair, from process to process. The
// kernel synchronizes: who receives knows all that the sender did before.
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

// All of them, up to the first that fails.
Result Explore(const Options& options, const Scenario& scenario);
// `runs` random ones, of the seeds from `seed` on, up to the first that fails.
Result ExploreRandomly(const Options& options, const Scenario& scenario,
                       uint64_t seed, uint64_t runs);
Result RunSeed(const Options& options, const Scenario& scenario, uint64_t seed);
Result Replay(const Options& options, const Scenario& scenario,
              const std::vector<uint16_t>& choices);

}  // namespace penstock::simulation
#endif  // TESTS_SIMULATION_EXPLORER_H_
