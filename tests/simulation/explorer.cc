#include "tests/simulation/explorer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "common/format.h"
#include "tests/simulation/fiber.h"

namespace penstock::simulation {
namespace {

// What a process awaits in WaitUntilOthersSleep.
const std::function<bool()> kOthersSleep = [] { return false; };

// Thrown in a process to leave its lambda: the run is over.
struct RunOver {};

// Holds 64-bit hashes other than 0. Grows, never shrinks.
class HashSet {
 public:
  // False: it was there.
  bool Insert(uint64_t hash) {
    if (hash == 0) hash = 1;
    if (2 * size_ >= slots_.size()) Grow();
    if (!InsertWithoutGrowing(hash)) return false;
    ++size_;
    return true;
  }
  uint64_t size() const { return size_; }

 private:
  bool InsertWithoutGrowing(uint64_t hash) {
    size_t at = hash & (slots_.size() - 1);
    for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == hash) return false;
    }
    slots_[at] = hash;
    return true;
  }
  void Grow() {
    std::vector<uint64_t> old(std::max<size_t>(1024, 2 * slots_.size()));
    old.swap(slots_);
    for (const uint64_t hash : old) {
      if (hash != 0) InsertWithoutGrowing(hash);
    }
  }

  std::vector<uint64_t> slots_;
  uint64_t size_ = 0;
};

const char* NameOf(Order order) {
  switch (order) {
    case Order::kPlain:
      return "plain";
    case Order::kRelaxed:
      return "relaxed";
    case Order::kOneSided:
      return "acquire/release";
    case Order::kSequential:
      return "seq_cst";
  }
  return "";
}

}  // namespace

// The scheduler. It has no stack of its own. It runs on the stack of the
// process that reaches a step, so a process that continues needs no switch.
class Explorer {
 public:
  Explorer(const Options& options, const Scenario& scenario)
      : options_(options),
        scenario_(scenario),
        memory_(options.memory, options.buffer_max) {}

  Result ExploreAll();
  Result ExploreSeeds(uint64_t seed, uint64_t runs);
  Result ReplayChoices(const std::vector<uint16_t>& choices);

  bool in_process() const { return current_ >= 0; }
  uint64_t Load(const void* word, uint32_t bytes, Order order);
  void Store(void* word, uint32_t bytes, uint64_t value, Order order);

 private:
  friend class Run;
  friend class WakePipe;

  struct Process {
    explicit Process(Explorer* explorer)
        : explorer(explorer), fiber(&Explorer::Enter, this) {}

    Explorer* explorer;
    Fiber fiber;
    std::string name;
    std::function<void()> body;
    bool may_die = false;
    bool done = true;
    bool dead = false;
    const std::function<bool()>* awaits = nullptr;  // nullptr: it can run
    uint64_t digest = 0;
  };
  enum class Act : uint8_t { kStep, kFlush, kDie };
  struct Option {
    Act act;
    int process;
  };
  struct Choice {
    uint16_t taken;
    uint16_t count;
  };

  static void Enter(void* process);
  void RunOnce();
  void Schedule(int self);
  void ScheduleUnnoticed(int self);
  bool Next(int* next);
  void Enumerate(int last);
  uint16_t Choose(size_t count, bool deadly);
  void Await(int self, const std::function<bool()>& predicate);
  void CheckAlways();
  void Fail(const std::string& message);
  [[noreturn]] void FailInProcess(const std::string& message);
  bool Enabled(const Process& process) const;
  uint64_t Fingerprint() const;
  int LocationOf(const void* word, uint32_t bytes, Order order);
  std::string Called(const void* word);
  template <typename... Args>
  void Trace(fmt::format_string<Args...> text, Args&&... args) {
    if (tracing_) trace_ += Format(text, std::forward<Args>(args)...);
  }
  void Digest(int process, uint64_t value) {
    processes_[process]->digest = Mix(processes_[process]->digest, value);
  }
  Result Explained(Result result);

  const Options options_;
  const Scenario& scenario_;
  MemoryModel memory_;
  Fiber main_;
  std::vector<std::unique_ptr<Process>> processes_;  // kept for their stacks

  // The state of a run.
  Run run_{*this};
  int process_count_ = 0;
  int current_ = -1;  // whose lambda runs; < 0: the scheduler or a check
  int last_ = -1;     // that took the last step
  bool starting_ = false;
  bool over_ = false;
  bool unwinding_ = false;
  int deaths_ = 0;
  int preemptions_ = 0;
  int run_steps_ = 0;
  std::vector<std::function<void()>> always_;
  std::vector<std::function<void()>> at_end_;
  std::vector<std::function<uint64_t()>> digests_;
  std::vector<const WakePipe*> pipes_;
  std::function<bool()> may_sleep_;
  std::vector<Option> enabled_;
  std::string failure_;
  bool failed_ = false;

  // Where choices come from: the prefix first, then as the mode says.
  enum class Mode { kAll, kRandom, kReplay } mode_ = Mode::kAll;
  std::vector<Choice> choices_;
  size_t chosen_ = 0;
  size_t prefix_ = 0;
  uint64_t random_ = 0;
  HashSet visited_;
  uint64_t steps_ = 0;

  bool tracing_ = false;
  std::string trace_;
  std::map<const void*, std::string> names_;
  std::map<const void*, size_t> numbers_;  // of words without a name
};

namespace {
// One explorer at a time, because the code under test has no reference to it.
Explorer* running = nullptr;
}  // namespace

// ---- choices

uint16_t Explorer::Choose(size_t count, bool deadly) {
  if (chosen_ == choices_.size()) {
    uint16_t taken = 0;
    if (mode_ == Mode::kRandom) {
      random_ = Mix(random_, 1);
      // Deaths are the last options. If they were as likely as steps, they
      // would come at once, and runs would do little.
      size_t among = count;
      if (deadly && random_ % 16 != 0) {
        while (among > 1 && enabled_[among - 1].act == Act::kDie) --among;
      }
      taken = static_cast<uint16_t>((random_ >> 16) % among);
    }
    choices_.push_back({taken, static_cast<uint16_t>(count)});
  }
  const uint16_t taken = choices_[chosen_++].taken;
  if (taken >= count) {
    Fail(Format("choice {} is {} of {}: not of this scenario", chosen_ - 1,
                taken, count));
    return 0;
  }
  return taken;
}

bool Explorer::Enabled(const Process& process) const {
  return !process.dead && !process.done &&
         (process.awaits == nullptr || (*process.awaits)());
}

void Explorer::Enumerate(int last) {
  enabled_.clear();
  const bool goes_on = last >= 0 && Enabled(*processes_[last]);
  if (goes_on) enabled_.push_back({Act::kStep, last});
  if (!goes_on || options_.preemptions_max < 0 ||
      preemptions_ < options_.preemptions_max) {
    for (int i = 0; i < process_count_; ++i) {
      if (i != last && Enabled(*processes_[i])) {
        enabled_.push_back({Act::kStep, i});
      }
    }
  }
  for (int i = 0; i < process_count_; ++i) {
    if (memory_.buffered(i)) enabled_.push_back({Act::kFlush, i});
  }
  if (enabled_.empty()) {
    for (int i = 0; i < process_count_; ++i) {
      const Process& process = *processes_[i];
      if (process.awaits == &kOthersSleep && !process.dead && !process.done) {
        enabled_.push_back({Act::kStep, i});
      }
    }
  }
  if (enabled_.empty()) return;  // a death is no progress
  if (deaths_ == options_.deaths_max) return;
  for (int i = 0; i < process_count_; ++i) {
    const Process& process = *processes_[i];
    if (process.may_die && !process.dead && !process.done) {
      enabled_.push_back({Act::kDie, i});
    }
  }
}

uint64_t Explorer::Fingerprint() const {
  uint64_t hash = memory_.Fingerprint(process_count_);
  for (int i = 0; i < process_count_; ++i) {
    const Process& process = *processes_[i];
    hash = Mix(hash, process.digest);
    hash = Mix(hash, (process.done ? 4u : 0u) + (process.dead ? 2u : 0u) +
                         (process.awaits != nullptr ? 1u : 0u));
  }
  for (const WakePipe* pipe : pipes_) {
    hash = Mix(hash, pipe->pending_);
    if (options_.memory == Memory::kCpp) {
      hash = Mix(hash, memory_.ViewHash(pipe->view_));
    }
  }
  for (const auto& digest : digests_) hash = Mix(hash, digest());
  if (options_.preemptions_max >= 0) {
    hash = Mix(Mix(hash, static_cast<uint64_t>(preemptions_)),
               static_cast<uint64_t>(last_));
  }
  return hash;
}

void Explorer::CheckAlways() {
  try {
    for (const auto& check : always_) check();
  } catch (const RunOver&) {
  }
}

// Chooses until it is a process's turn. False: the run is over.
bool Explorer::Next(int* next) {
  for (;;) {
    CheckAlways();
    if (over_) return false;
    Enumerate(last_);
    if (enabled_.empty()) {
      bool sleeps = false;
      std::string who;
      for (int i = 0; i < process_count_; ++i) {
        if (processes_[i]->done || processes_[i]->dead) continue;
        sleeps = true;
        who += (who.empty() ? "" : ", ") + processes_[i]->name;
      }
      if (sleeps && !(may_sleep_ && may_sleep_())) {
        Fail("all who live sleep for ever: " + who);
      }
      return false;
    }
    if (++run_steps_ > options_.steps_max) {
      Fail(Format("no end after {} steps: a livelock", run_steps_ - 1));
      return false;
    }
    if (mode_ == Mode::kAll && chosen_ >= prefix_) {
      if (!visited_.Insert(Fingerprint())) return false;
    }
    ++steps_;
    const uint16_t taken = Choose(enabled_.size(), true);
    if (over_) return false;
    const Option option = enabled_[taken];
    Process& process = *processes_[option.process];
    switch (option.act) {
      case Act::kFlush:
        Trace("  {:10} oldest buffered store goes to memory\n", process.name);
        memory_.Flush(option.process);
        break;
      case Act::kDie:
        Trace("  {:10} DIES\n", process.name);
        process.dead = true;
        ++deaths_;
        break;
      case Act::kStep:
        if (last_ >= 0 && option.process != last_ &&
            Enabled(*processes_[last_])) {
          ++preemptions_;
        }
        last_ = option.process;
        *next = option.process;
        return true;
    }
  }
}

// Called on the stack of self (< 0: the main one), which is done, dead, or
// before its next step; returns when that is its turn.
void Explorer::Schedule(int self) {
  current_ = -1;
  Fiber& mine = self < 0 ? main_ : processes_[self]->fiber;
  if (starting_) {
    mine.SwitchTo(main_);
  } else {
    int next;
    if (!over_ && Next(&next)) {
      if (next != self) mine.SwitchTo(processes_[next]->fiber);
    } else if (self >= 0) {
      over_ = true;
      mine.SwitchTo(main_);
    }
  }
  if (self < 0) return;
  if (unwinding_) throw RunOver{};
  current_ = self;
}

// As Schedule, before a step that commutes with all steps of others, so that no
// other order needs a try. Only a death before it differs from one after it.
void Explorer::ScheduleUnnoticed(int self) {
  Process& process = *processes_[self];
  if (starting_) {
    Schedule(self);
    return;
  }
  if (!process.may_die || deaths_ == options_.deaths_max) return;
  ++steps_;
  enabled_ = {{Act::kStep, self}, {Act::kDie, self}};
  if (Choose(2, true) == 0) return;
  if (over_) throw RunOver{};
  Trace("  {:10} DIES\n", process.name);
  process.dead = true;
  ++deaths_;
  Schedule(self);
}

// ---- processes

void Explorer::Enter(void* argument) {
  auto* process = static_cast<Process*>(argument);
  Explorer& explorer = *process->explorer;
  for (;;) {
    const auto self = static_cast<int>(
        std::find_if(explorer.processes_.begin(), explorer.processes_.end(),
                     [&](const auto& each) { return each.get() == process; }) -
        explorer.processes_.begin());
    explorer.current_ = self;
    try {
      process->body();
    } catch (const RunOver&) {
    }
    // From here on outside of the catch: another stack may throw meanwhile.
    process->done = true;
    explorer.current_ = -1;
    if (explorer.unwinding_ || explorer.over_) {
      explorer.over_ = true;
      process->fiber.SwitchTo(explorer.main_);
    } else {
      try {
        explorer.Schedule(self);
      } catch (const RunOver&) {
      }
    }
  }
}

void Explorer::Fail(const std::string& message) {
  if (!failed_) failure_ = message;
  failed_ = true;
  over_ = true;
}

void Explorer::FailInProcess(const std::string& message) {
  Fail(message);
  throw RunOver{};
}

int Explorer::LocationOf(const void* word, uint32_t bytes, Order order) {
  const int location = memory_.LocationOf(word, bytes, order);
  if (location < 0) {
    FailInProcess("a word is not in what the scenario shares, or one too many");
  }
  return location;
}

std::string Explorer::Called(const void* word) {
  const auto it = names_.find(word);
  if (it != names_.end()) return it->second;
  // Numbered anew in each run, so that a seed gives the same list of steps.
  const auto numbered = numbers_.emplace(word, numbers_.size()).first;
  return Format("word {}", numbered->second);
}

uint64_t Explorer::Load(const void* word, uint32_t bytes, Order order) {
  const int self = current_;
  if (memory_.Constant(word)) {
    uint64_t value = 0;
    std::memcpy(&value, word, bytes);
    return value;
  }
  const int location = LocationOf(word, bytes, order);
  if (memory_.UnnoticedRead(self, location, order)) {
    ScheduleUnnoticed(self);
  } else {
    Schedule(self);
  }
  const int readable = memory_.Readable(self, location, order);
  const int age = readable == 1 ? 0 : Choose(readable, false);
  if (over_) throw RunOver{};
  bool race = false;
  const uint64_t value = memory_.Read(self, word, location, order, age, &race);
  Trace("  {:10} load  {} = {} {}{}\n", processes_[self]->name, Called(word),
        value, NameOf(order),
        age > 0 ? Format(", {} older than the newest", age) : "");
  if (race) FailInProcess("data race: read of " + Called(word));
  if (memory_.overflowed()) FailInProcess("too many accesses of one word");
  Digest(self, value);
  return value;
}

void Explorer::Store(void* word, uint32_t bytes, uint64_t value, Order order) {
  const int self = current_;
  const int location = LocationOf(word, bytes, order);
  if (memory_.UnnoticedWrite(self, order)) {
    ScheduleUnnoticed(self);
  } else {
    Schedule(self);
  }
  if (!memory_.MayWrite(self, location)) {
    FailInProcess("store by another than the one writer of " + Called(word));
  }
  bool race = false;
  memory_.Write(self, word, location, value, order, &race);
  Trace("  {:10} store {} = {} {}\n", processes_[self]->name, Called(word),
        value, NameOf(order));
  if (race) FailInProcess("data race: write of " + Called(word));
  if (memory_.overflowed()) FailInProcess("too many accesses of one word");
  Digest(self, 0);
}

void Explorer::Await(int self, const std::function<bool()>& predicate) {
  processes_[self]->awaits = &predicate;
  Schedule(self);
  processes_[self]->awaits = nullptr;
  Digest(self, 1);
}

// ---- runs

void Explorer::RunOnce() {
  memory_.Reset();
  numbers_.clear();
  process_count_ = 0;
  current_ = last_ = -1;
  over_ = unwinding_ = failed_ = false;
  deaths_ = preemptions_ = run_steps_ = 0;
  failure_.clear();
  trace_.clear();
  names_.clear();
  chosen_ = 0;
  prefix_ = choices_.size();
  running = this;

  scenario_(run_);
  // Runs each to its first step; the code before it accesses nothing shared.
  starting_ = true;
  for (int i = 0; i < process_count_; ++i) {
    main_.SwitchTo(processes_[i]->fiber);
  }
  starting_ = false;
  current_ = -1;
  Schedule(-1);  // comes back when the run is over
  over_ = over_ || failed_;
  current_ = -1;
  const bool ended = enabled_.empty() && !failed_;
  if (ended) {
    try {
      for (const auto& check : at_end_) check();
    } catch (const RunOver&) {
    }
  }
  unwinding_ = true;
  for (int i = 0; i < process_count_; ++i) {
    if (!processes_[i]->done) main_.SwitchTo(processes_[i]->fiber);
    processes_[i]->body = nullptr;
  }
  always_.clear();
  at_end_.clear();
  digests_.clear();
  pipes_.clear();
  may_sleep_ = nullptr;
  running = nullptr;
}

Result Explorer::Explained(Result result) {
  result.states = visited_.size();
  result.steps = steps_;
  if (!failed_) return result;
  result.failed = true;
  result.exhausted = false;
  for (const Choice& choice : choices_) result.choices.push_back(choice.taken);
  result.choices.resize(chosen_);
  mode_ = Mode::kReplay;
  tracing_ = true;
  choices_.resize(chosen_);
  RunOnce();
  result.message = failure_;
  if (result.seed != 0) result.message += Format("\nseed {}", result.seed);
  result.message += "\nchoices";
  for (const uint16_t choice : result.choices) {
    result.message += Format(" {},", choice);
  }
  result.message += "\n" + trace_;
  return result;
}

Result Explorer::ExploreAll() {
  mode_ = Mode::kAll;
  Result result;
  for (;;) {
    RunOnce();
    ++result.runs;
    if (failed_) return Explained(result);
    // Choices beyond those of this run are of an older one.
    choices_.resize(chosen_);
    while (!choices_.empty() &&
           choices_.back().taken + 1 == choices_.back().count) {
      choices_.pop_back();
    }
    if (choices_.empty()) {
      result.exhausted = true;
      return Explained(result);
    }
    ++choices_.back().taken;
    if (visited_.size() >= options_.states_max) return Explained(result);
  }
}

Result Explorer::ExploreSeeds(uint64_t seed, uint64_t runs) {
  mode_ = Mode::kRandom;
  Result result;
  for (uint64_t i = 0; i < runs; ++i) {
    choices_.clear();
    random_ = Mix(seed + i, 0);
    RunOnce();
    ++result.runs;
    if (failed_) {
      result.seed = seed + i;
      break;
    }
  }
  return Explained(result);
}

Result Explorer::ReplayChoices(const std::vector<uint16_t>& choices) {
  mode_ = Mode::kReplay;
  for (const uint16_t choice : choices) choices_.push_back({choice, 0});
  Result result;
  RunOnce();
  ++result.runs;
  return Explained(result);
}

// ---- what scenarios see

void Run::Share(const void* base, size_t bytes, int writer) {
  explorer_.memory_.Share(base, bytes, writer);
}

void Run::Name(const void* word, const char* name) {
  if (explorer_.tracing_) explorer_.names_[word] = name;
}

int Run::AddProcess(std::string name, std::function<void()> body,
                    Mortality mortality) {
  const int number = explorer_.process_count_++;
  auto& processes = explorer_.processes_;
  if (number == static_cast<int>(processes.size())) {
    processes.push_back(std::make_unique<Explorer::Process>(&explorer_));
  }
  Explorer::Process& process = *processes[number];
  process.name = std::move(name);
  process.body = std::move(body);
  process.may_die = mortality == Mortality::kMayDie;
  process.done = process.dead = false;
  process.awaits = nullptr;
  process.digest = static_cast<uint64_t>(number);
  return number;
}

void Run::Always(std::function<void()> check) {
  explorer_.always_.push_back(std::move(check));
}
void Run::AtEnd(std::function<void()> check) {
  explorer_.at_end_.push_back(std::move(check));
}
void Run::DigestWith(std::function<uint64_t()> digest) {
  explorer_.digests_.push_back(std::move(digest));
}
void Run::MaySleepForever(std::function<bool()> right) {
  explorer_.may_sleep_ = std::move(right);
}

void Run::WaitUntil(const std::function<bool()>& predicate) {
  if (explorer_.unwinding_) return;
  explorer_.Await(explorer_.current_, predicate);
  explorer_.Trace("  {:10} goes on\n",
                  explorer_.processes_[explorer_.current_]->name);
}

void Run::WaitUntilOthersSleep() { WaitUntil(kOthersSleep); }

void Run::Observe(uint64_t value) {
  if (explorer_.in_process()) explorer_.Digest(explorer_.current_, value);
}

void Run::Step(const char* what) {
  if (explorer_.unwinding_) return;
  explorer_.Schedule(explorer_.current_);
  explorer_.Digest(explorer_.current_, 2);
  explorer_.Trace("  {:10} {}\n",
                  explorer_.processes_[explorer_.current_]->name, what);
}

void Run::Fail(const std::string& message) { explorer_.FailInProcess(message); }

bool Run::dead(int process) const {
  return explorer_.processes_[process]->dead;
}

bool Run::gone(int process) const {
  return explorer_.processes_[process]->dead ||
         explorer_.processes_[process]->done;
}

void WakePipe::Connect(Run* run, int from, int to) {
  run_ = run;
  from_ = from;
  to_ = to;
  run->explorer_.pipes_.push_back(this);
}

void WakePipe::Send() {
  Explorer& explorer = run_->explorer_;
  if (explorer.unwinding_) return;
  run_->Step("sends a wake");
  explorer.memory_.Tell(from_, &view_);
  pending_ = true;
}

bool WakePipe::readable() const { return pending_ || run_->gone(from_); }

bool WakePipe::Wait() {
  Explorer& explorer = run_->explorer_;
  if (explorer.unwinding_) return false;
  run_->WaitUntil([this] { return readable(); });
  const bool gone = run_->gone(from_);
  run_->Observe((gone ? 2u : 0u) + (pending_ ? 1u : 0u));
  pending_ = false;
  explorer.memory_.Learn(to_, view_);
  if (gone) explorer.memory_.LearnAll(to_, from_);
  return !gone;
}

// ---- what the atomics call

bool InProcess() { return running != nullptr && running->in_process(); }

uint64_t Load(const void* word, uint32_t bytes, Order order) {
  return running->Load(word, bytes, order);
}

void Store(void* word, uint32_t bytes, uint64_t value, Order order) {
  running->Store(word, bytes, value, order);
}

Result Explore(const Options& options, const Scenario& scenario) {
  return Explorer(options, scenario).ExploreAll();
}

Result ExploreRandomly(const Options& options, const Scenario& scenario,
                       uint64_t seed, uint64_t runs) {
  return Explorer(options, scenario).ExploreSeeds(seed, runs);
}

Result RunSeed(const Options& options, const Scenario& scenario,
               uint64_t seed) {
  return ExploreRandomly(options, scenario, seed, 1);
}

Result Replay(const Options& options, const Scenario& scenario,
              const std::vector<uint16_t>& choices) {
  return Explorer(options, scenario).ReplayChoices(choices);
}

}  // namespace penstock::simulation
