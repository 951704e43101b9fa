// A crash storm runs several jobs at once. Their ranks, producers and broker
// are killed, terminated and stopped at random moments and at kill points
// (common/kill_point.h), and restarted. Afterwards the logs of all processes
// are checked: no row is lost or torn, and none comes twice unmarked.
//
//   crash_storm --kills 1000
//
// When the data of a job end, another job of its kind starts, until enough
// processes were killed. Jobs that run then may end. The seed decides which
// process is killed, how, and after what pause. What the process is doing then
// is chance.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "tests/crash/judge.h"
#include "tests/crash/storm_broker.h"
#include "tests/crash/storm_producer.h"
#include "tests/crash/storm_rank.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPaceUs = 6000;
// One rank in three attaches late: some when the others are done.
constexpr uint64_t kLateMsMax = 8000;
// On a busy machine faults may come faster than processes restart. If a job
// made no progress over kFaultsInVain faults, the storm waits for it up to
// kPatience.
constexpr uint64_t kFaultsInVain = 20;
constexpr std::chrono::seconds kPatience{5};

// The kill points (kill_point.h) of a rank and of the broker.
constexpr const char* kRankKillPoints[] = {
    "take.copied",      "take.noted",      "take.taken",      "release.begun",
    "release.released", "attach.answered", "reconnect.begun", "reconnect.done",
};
constexpr const char* kBrokerKillPoints[] = {
    "publish.copied",   "publish.published", "delivery.recorded",
    "evict.closed",     "gone.reclaimed",    "journal.begun",
    "journal.appended", "attach.stored",     "attach.recorded",
    "shrink.recorded",  "producer.stored",
};

constexpr char kListsFile[] = "lists.jsonl";
constexpr uint64_t kLists = 3000;

void WriteLists(const std::string& folder) {
  std::ofstream file(folder + "/" + kListsFile);
  for (uint64_t id = 0; id < kLists; ++id) {
    std::byte row[JobKind::kRowBytes];
    JobKind::FillRow(static_cast<int64_t>(id), row);
    file << R"({"bytes": [)";
    const uint64_t length = JobKind::LengthOf(static_cast<int64_t>(id));
    for (uint64_t i = 0; i < length; ++i) {
      file << (i == 0 ? "" : ", ") << static_cast<int>(row[i]);
    }
    file << "]}\n";
  }
  if (!file.flush()) throw std::runtime_error("cannot write in " + folder);
}

std::vector<JobKind> Kinds() {
  std::vector<JobKind> kinds(14);
  kinds[0].name = "split";
  kinds[0].delivery = "split";
  kinds[0].on_rank_death = "wait";
  kinds[0].batch = 12;
  kinds[0].records = 3000 - 7;  // the last batch is a smaller one
  kinds[1].name = "dynamic";
  kinds[1].delivery = "dynamic";
  kinds[1].batch = 4;
  kinds[1].records = 3000;
  kinds[2].name = "block";
  kinds[2].delivery = "broadcast";
  kinds[2].lag = "block";
  kinds[2].window = 4;
  kinds[2].batch = 4;
  kinds[2].records = 1000;
  kinds[3] = kinds[2];
  kinds[3].name = "skip";
  kinds[3].lag = "skip";
  kinds[3].records = 2000;
  kinds[4] = kinds[2];
  kinds[4].name = "kept";
  kinds[4].on_rank_death = "wait";
  kinds[5] = kinds[0];
  kinds[5].name = "shrink";
  kinds[5].on_rank_death = "shrink";
  kinds[5].ranks = 4;
  size_t streams = 6;
  for (const size_t of : {0, 1, 3}) {
    JobKind& kind = kinds[streams++];
    kind = kinds[of];
    kind.name += "-stream";
    kind.stream = true;
    kind.epochs = 1;
  }
  kinds[8].on_rank_death = "wait";
  kinds[9] = kinds[0];
  kinds[9].name = "independent";
  kinds[9].delivery = "independent";
  kinds[9].batch = 4;
  kinds[9].records = 1000;
  kinds[10] = kinds[0];
  kinds[10].name = "buckets";
  kinds[10].lists = kListsFile;
  kinds[10].records = kLists;
  kinds[11] = kinds[0];
  kinds[11].name = "replicas";
  kinds[11].ranks = 4;
  kinds[11].replicas = 2;
  kinds[12] = kinds[5];
  kinds[12].name = "replicas-shrink";
  kinds[12].ranks = 6;
  kinds[12].replicas = 2;
  kinds[12].records = 1500 - 7;
  kinds[13] = kinds[9];
  kinds[13].name = "replicas-independent";
  kinds[13].ranks = 4;
  kinds[13].replicas = 2;
  kinds[13].records = 500;
  return kinds;
}

struct StormOptions {
  uint64_t kills = 100;
  uint64_t seed = 1;
  double seconds = 3600;
  double pause_ms = 120;
  std::vector<std::string> kinds;  // none: all
  std::string out;
  bool json = false;
};

std::string FindBroker() {
  const char* given = std::getenv("PENSTOCKD");
  return given != nullptr ? given : PENSTOCK_BUILD_DIR "/broker/penstockd";
}

nlohmann::json ToJson(const Verdict& verdict) {
  return {{"batches", verdict.batches},
          {"rows", verdict.rows},
          {"redelivered", verdict.redelivered},
          {"skipped", verdict.skipped},
          {"reconnects", verdict.reconnects},
          {"lost", verdict.lost},
          {"torn", verdict.torn},
          {"unmarked_duplicates", verdict.unmarked},
          {"after_release", verdict.released},
          {"gaps", verdict.gaps},
          {"errors", verdict.errors},
          {"findings", verdict.findings}};
}

// ---- for tests/hosts/storm, whose hosts have brokers and ranks of this one's

// A penstockd that is started again whenever a signal has ended it.
int KeepBroker(const std::string& folder) {
  StormBroker broker(FindBroker(), folder,
                     [] { return StormBroker::Environment(); });
  for (;;) {
    std::vector<pollfd> entries;
    broker.AddTo(&entries);
    poll(entries.data(), entries.size(), -1);
    const std::optional<ProcessExit> exit = broker.Tend();
    if (exit && !exit->signaled) {
      std::fprintf(stderr, "penstockd %s\n", exit->ToString().c_str());
      return 1;
    }
    if (exit) broker.Launch();
  }
}

// The folder has the logs of ranks, a file `attempts`, whose i-th line has
// epoch, step and ranks of the i-th, and that of a rank alone in `alone`.
int JudgeFolder(const StormRankOptions& options) {
  std::vector<Attempt> attempts;
  std::ifstream file(options.folder + "/attempts");
  for (Attempt each; file >> each.epoch >> each.step >> each.ranks;) {
    attempts.push_back(each);
  }
  const Verdict verdict =
      JudgeAttempts(options.kind, attempts, ReadRankLogs(options.folder),
                    ReadRankLogs(options.folder + "/alone").at(0));
  std::printf("%s\n", ToJson(verdict).dump().c_str());
  return verdict.ok() ? 0 : 1;
}

// A process of a rank, of a producer or of the broker.
struct Victim {
  std::string sent;         // the signal that should end it; "": none yet
  bool terminated = false;  // SIGTERM was sent, maybe among others
  std::string kill_point;   // where it may kill itself
  std::optional<Clock::time_point> continues;  // it is stopped until then
};

struct Rank {
  uint32_t number = 0;
  uint32_t restart = 0;
  Process process;
  Victim victim;
  std::optional<Clock::time_point> starts;  // it has not started yet
  // Its job shrinks: its attach is refused while the others continue, and gets
  // the end of the data when they are done. A job that has finished ranks does
  // not shrink: the other replicas wait for it.
  bool dead = false;
  bool done = false;
};

// One job from its first batch to its last.
struct Lap {
  JobKind kind;
  std::string job;
  std::string folder;
  std::vector<Rank> ranks;
  // The producer of a stream; restarted until the ranks are done.
  Process producer;
  Victim producer_victim;
  uintmax_t logged = 0;  // bytes, at its last progress
  uint64_t faults = 0;   // of the storm since then
  bool over() const {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](const Rank& rank) { return rank.done; });
  }
  bool any_is_done() const {
    return std::any_of(ranks.begin(), ranks.end(),
                       [](const Rank& rank) { return rank.done; });
  }
  bool only_dead_are_left() const {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](const Rank& rank) { return rank.done || rank.dead; });
  }
};

class Storm {
 public:
  explicit Storm(const StormOptions& options)
      : options_(options),
        random_(options.seed),
        broker_(FindBroker(), options.out, [this] { return NewInstance(); }) {}

  // Its exit status.
  int Run() {
    begin_ = Clock::now();
    for (const JobKind& kind : Kinds()) {
      if (IsWanted(kind.name)) StartLap(kind);
    }
    next_fault_ = begin_;
    while (!laps_.empty() && failure_.empty()) {
      if (SecondsSince(begin_) > options_.seconds) {
        Fail(Format("not over after {} s", options_.seconds));
        break;
      }
      Wait();
      TendBroker();
      TendRanks();
      if (!calm() && Clock::now() >= next_fault_) InjectUnlessInVain();
      Continue();
    }
    const double seconds = SecondsSince(begin_);
    for (Lap& lap : laps_) {
      for (Rank& rank : lap.ranks) rank.process.Reap();
      lap.producer.Reap();
      Close(lap);
    }
    broker_.Stop();
    Report(seconds);
    const bool ok = failure_.empty() && total_.ok();
    if (ok) {
      std::filesystem::remove_all(options_.out);
    } else {
      std::fprintf(stderr, "crash_storm: the logs are in %s\n",
                   options_.out.c_str());
    }
    return ok ? 0 : 1;
  }

 private:
  static double SecondsSince(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  }

  bool IsWanted(const std::string& kind) const {
    const std::vector<std::string>& kinds = options_.kinds;
    return kinds.empty() ||
           std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  }
  bool calm() const { return kills_ >= options_.kills; }
  // [0, below)
  uint64_t Random(uint64_t below) { return random_() % below; }
  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  // ---- processes

  // Half of all processes have a kill point.
  template <size_t kCount>
  StormBroker::Environment Odds(const char* const (&points)[kCount],
                                uint64_t passes_max, Victim* victim) {
    *victim = Victim{};
    const std::string kill_point = points[Random(kCount)];
    // Some are passed all the time, some once in a process.
    const uint64_t odds = 2 + Random(1 + Random(passes_max));
    const uint64_t seed = random_();
    if (kKillPoints && !calm() && Random(2) == 0) {
      victim->kill_point = kill_point;
      return {{"PENSTOCK_KILL_ODDS", Format("{}={}", kill_point, odds)},
              {"PENSTOCK_KILL_SEED", std::to_string(seed)}};
    }
    return {};
  }
  StormBroker::Environment NewInstance() {
    return Odds(kBrokerKillPoints, 300, &broker_victim_);
  }

  StormRankOptions OptionsOf(const Lap& lap) {
    StormRankOptions options;
    options.kind = lap.kind;
    options.job = lap.job;
    options.socket = broker_.socket();
    options.folder = lap.folder;
    options.seed = random_();
    // Some are slow: with lag: skip they miss batches.
    options.pace_us = kPaceUs / (1 + Random(3));
    return options;
  }
  static Process StartProcess(const char* what, const StormRankOptions& options,
                              StormBroker::Environment environment) {
    ProcessSpec spec;
    spec.argv = {"/proc/self/exe", what};
    for (std::string& argument : options.Arguments()) {
      spec.argv.push_back(std::move(argument));
    }
    spec.environment = std::move(environment);
    spec.stdout_fd = STDERR_FILENO;
    StatusOr<Process> process = Process::Start(spec);
    if (!process.ok()) throw std::runtime_error(process.status().message());
    return *std::move(process);
  }
  void Start(Lap& lap, Rank& rank) {
    StormRankOptions options = OptionsOf(lap);
    options.rank = rank.number;
    options.restart = rank.restart;
    StormBroker::Environment environment;
    if (lap.kind.mortal(rank.number)) {
      environment = Odds(kRankKillPoints, 200, &rank.victim);
    }
    rank.process = StartProcess("rank", options, std::move(environment));
  }
  void StartProducer(Lap& lap) {
    lap.producer_victim = Victim{};
    lap.producer = StartProcess("producer", OptionsOf(lap), {});
  }

  void StartLap(const JobKind& kind) {
    Lap& lap = laps_.emplace_back();
    lap.kind = kind;
    if (!kind.lists.empty()) lap.kind.lists = options_.out + "/" + kListsFile;
    lap.job = Format("{}-{}", kind.name, jobs_++);
    lap.folder = options_.out + "/" + lap.job;
    std::filesystem::create_directory(lap.folder);
    lap.ranks.resize(kind.ranks);
    for (uint32_t number = 0; number < kind.ranks; ++number) {
      Rank& rank = lap.ranks[number];
      rank.number = number;
      if (Random(3) == 0) {
        rank.starts =
            Clock::now() + std::chrono::milliseconds(Random(kLateMsMax));
      } else {
        Start(lap, rank);
      }
    }
    if (kind.stream) StartProducer(lap);
  }

  // How a process may have ended; counts it. False: it must not have.
  bool Ended(const ProcessExit& exit, const char* whose, const Victim& victim) {
    const bool killed = exit.signaled && exit.number == SIGKILL;
    if (!victim.sent.empty() && (killed || victim.terminated)) {
      Count(whose, victim.sent);
    } else if (killed && !victim.kill_point.empty()) {
      Count(whose, "at " + victim.kill_point);
    } else {
      return false;
    }
    ++kills_;
    return true;
  }
  void Count(const std::string& whose, const std::string& how) {
    ++counts_[{how, whose}];
  }

  void TendBroker() {
    const std::optional<ProcessExit> exit = broker_.Tend();
    if (!exit) return;
    if (!Ended(*exit, "broker", broker_victim_)) {
      Fail("penstockd " + exit->ToString());
      return;
    }
    broker_.Launch();
  }

  void TendRanks() {
    for (auto lap = laps_.begin(); lap != laps_.end();) {
      for (Rank& rank : lap->ranks) TendRank(*lap, rank);
      if (lap->kind.stream) TendProducer(*lap);
      if (!lap->over()) {
        ++lap;
        continue;
      }
      const JobKind kind = lap->kind;
      lap->producer.Reap();
      Close(*lap);
      lap = laps_.erase(lap);
      if (!calm() && failure_.empty()) StartLap(kind);
    }
  }

  void TendRank(Lap& lap, Rank& rank) {
    if (rank.done) return;
    if (rank.starts) {
      if (Clock::now() < *rank.starts) return;
      rank.starts.reset();
      Start(lap, rank);
      return;
    }
    if (rank.dead) {
      if (!(lap.kind.evicts() ? lap.any_is_done() : lap.only_dead_are_left())) {
        return;
      }
      rank.dead = false;
      Restart(lap, rank);
      return;
    }
    const std::optional<ProcessExit> exit = rank.process.Ended();
    if (!exit) return;
    rank.process.Reap();
    if (exit->ok()) {
      rank.done = true;
      return;
    }
    if (!Ended(*exit, "rank", rank.victim)) {
      Fail(Format("rank {} of job '{}' {}", rank.number, lap.job,
                  exit->ToString()));
      return;
    }
    // It was killed after it had logged the end of its data. A process that
    // attached again would begin a new incarnation.
    if (AnyLogOf(lap, rank, [](const RankLog& log) { return log.ended; })) {
      rank.done = true;
    } else if (lap.kind.shrinks() &&
               AnyLogOf(lap, rank, [](const RankLog& log) {
                 return log.attached_ns.has_value();
               })) {
      rank.dead = true;
    } else {
      Restart(lap, rank);
    }
  }

  void TendProducer(Lap& lap) {
    const std::optional<ProcessExit> exit = lap.producer.Ended();
    if (!exit) return;
    lap.producer.Reap();
    if (Ended(*exit, "producer", lap.producer_victim)) {
      StartProducer(lap);
    } else {
      Fail("the producer of job '" + lap.job + "' " + exit->ToString());
    }
  }

  void Restart(Lap& lap, Rank& rank) {
    ++rank.restart;
    ++rank_restarts_;
    Start(lap, rank);
  }
  // Looks at the log of the rank's current process.
  template <typename Predicate>
  static bool AnyLogOf(const Lap& lap, const Rank& rank, Predicate is_it) {
    const std::vector<RankLog> logs = ReadRankLogs(lap.folder);
    return std::any_of(logs.begin(), logs.end(), [&](const RankLog& log) {
      return log.rank == rank.number && log.restart == rank.restart &&
             is_it(log);
    });
  }

  void Close(const Lap& lap) {
    Verdict verdict = Judge(lap.kind, ReadRankLogs(lap.folder));
    if (!lap.over()) {
      // It was cut short by a failure elsewhere.
      verdict.lost = 0;
      std::erase_if(verdict.findings, [](const std::string& finding) {
        return finding.rfind("lost", 0) == 0;
      });
    }
    for (const std::string& finding : verdict.findings) {
      std::fprintf(stderr, "crash_storm: job '%s': %s\n", lap.job.c_str(),
                   finding.c_str());
    }
    if (!verdict.ok()) Fail("the verdict on job '" + lap.job + "'");
    by_kind_[lap.kind.name].Add(verdict);
    total_.Add(verdict);
    if (verdict.ok() && failure_.empty()) {
      std::filesystem::remove_all(lap.folder);
    }
  }

  // ---- faults

  void Hit(const Process& process, Victim& victim, int signal,
           const char* how) {
    if (process.pid() <= 0 || process.Ended()) return;
    victim.sent = how;
    victim.terminated |= signal == SIGTERM;
    process.Signal(signal);
    // A stopped process takes SIGTERM when it continues.
    if (signal == SIGTERM && victim.continues) {
      victim.continues = Clock::now();
    }
  }
  void Stop(const Process& process, Victim& victim, const char* whose) {
    if (process.pid() <= 0 || victim.continues || !victim.sent.empty()) return;
    process.Signal(SIGSTOP);
    victim.continues =
        Clock::now() + std::chrono::milliseconds(1 + Random(300));
    ++stops_[whose];
  }
  void Continue() {
    const auto go_on = [](const Process& process, Victim& victim) {
      if (!victim.continues || *victim.continues > Clock::now()) return;
      victim.continues.reset();
      process.Signal(SIGCONT);
    };
    go_on(broker_.process(), broker_victim_);
    for (Lap& lap : laps_) {
      for (Rank& rank : lap.ranks) go_on(rank.process, rank.victim);
      go_on(lap.producer, lap.producer_victim);
    }
  }

  void HitRank(const Lap& lap, Rank& rank, int signal, const char* how) {
    if (!lap.kind.mortal(rank.number)) return;
    Hit(rank.process, rank.victim, signal, how);
  }

  void InjectUnlessInVain() {
    bool in_vain = false;
    for (Lap& lap : laps_) {
      uintmax_t logged = 0;
      for (const auto& log : std::filesystem::directory_iterator(lap.folder)) {
        logged += log.file_size();
      }
      if (std::exchange(lap.logged, logged) != logged) lap.faults = 0;
      in_vain |= lap.faults >= kFaultsInVain;
    }
    const Clock::time_point now = Clock::now();
    if (in_vain && !waits_since_) waits_since_ = now;
    if (in_vain && now - *waits_since_ < kPatience) {
      next_fault_ = now + std::chrono::milliseconds(20);
      return;
    }
    waits_since_.reset();
    for (Lap& lap : laps_) lap.faults = in_vain ? 0 : lap.faults + 1;
    Strike();
  }

  void Strike() {
    std::exponential_distribution<double> pause_ms(1 / options_.pause_ms);
    next_fault_ = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(
                                     1000 * pause_ms(random_)));
    auto lap = laps_.begin();
    std::advance(lap, Random(laps_.size()));
    Rank& rank = lap->ranks[Random(lap->ranks.size())];
    Rank& other = lap->ranks[Random(lap->ranks.size())];
    const auto kill_all = [&](const char* how) {
      for (Rank& each : lap->ranks) {
        HitRank(*lap, each, SIGKILL, how);
      }
    };
    // In a stream each fault may hit the producer, alone or with the broker.
    if (lap->kind.stream && Random(3) == 0) {
      const uint64_t how = Random(10);
      if (how < 2) {
        Stop(lap->producer, lap->producer_victim, "producer");
      } else if (how < 6) {
        Hit(lap->producer, lap->producer_victim, SIGKILL, "SIGKILL");
      } else {
        const char* const both = "SIGKILL, both at once";
        Hit(broker_.process(), broker_victim_, SIGKILL, both);
        Hit(lap->producer, lap->producer_victim, SIGKILL, both);
        if (how == 9) HitRank(*lap, rank, SIGKILL, both);
      }
      return;
    }
    const uint64_t what = Random(100);
    if (what < 34) {
      HitRank(*lap, rank, SIGKILL, "SIGKILL");
    } else if (what < 42) {
      HitRank(*lap, rank, SIGTERM, "SIGTERM");
    } else if (what < 54) {
      Stop(rank.process, rank.victim, "rank");
    } else if (what < 57) {
      kill_all("SIGKILL, whole job");
    } else if (what < 76) {
      Hit(broker_.process(), broker_victim_, SIGKILL, "SIGKILL");
    } else if (what < 81) {
      Hit(broker_.process(), broker_victim_, SIGTERM, "SIGTERM");
    } else if (what < 87) {
      Stop(broker_.process(), broker_victim_, "broker");
    } else if (what < 97) {
      // Whether the broker sees them die is chance.
      HitRank(*lap, rank, SIGKILL, "SIGKILL, both at once");
      Hit(broker_.process(), broker_victim_, SIGKILL, "SIGKILL, both at once");
      HitRank(*lap, other, SIGKILL, "SIGKILL, both at once");
    } else {
      Hit(broker_.process(), broker_victim_, SIGKILL, "SIGKILL, both at once");
      kill_all("SIGKILL, both at once");
    }
  }

  // Returns when a process ends, the broker sends a message, or the next fault
  // is due.
  void Wait() {
    std::vector<pollfd> entries;
    broker_.AddTo(&entries);
    auto until = Clock::now() + std::chrono::seconds(1);
    if (!calm()) until = std::min(until, next_fault_);
    const auto note = [&](const Victim& victim) {
      if (victim.continues) until = std::min(until, *victim.continues);
    };
    note(broker_victim_);
    for (const Lap& lap : laps_) {
      for (const Rank& rank : lap.ranks) {
        if (rank.starts) until = std::min(until, *rank.starts);
        if (rank.process.pid() <= 0) continue;
        entries.push_back({rank.process.pidfd(), POLLIN, 0});
        note(rank.victim);
      }
      if (lap.producer.pid() > 0) {
        entries.push_back({lap.producer.pidfd(), POLLIN, 0});
        note(lap.producer_victim);
      }
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    poll(entries.data(), entries.size(),
         static_cast<int>(std::max<int64_t>(left.count(), 0)));
  }

  // ---- the end

  void Report(double seconds) const {
    if (options_.json) {
      ReportJson(seconds);
      return;
    }
    Table deaths({"kill", ">broker", ">rank", ">producer"});
    std::map<std::string, std::map<std::string, uint64_t>> rows;
    for (const auto& [key, count] : counts_) {
      rows[key.first][key.second] = count;
    }
    for (auto& [how, whose] : rows) {
      deaths.AddRow({how, FormatCount(whose["broker"]),
                     FormatCount(whose["rank"]),
                     FormatCount(whose["producer"])});
    }
    std::map<std::string, uint64_t> stops = stops_;
    deaths.AddRow({"(SIGSTOP, SIGCONT)", FormatCount(stops["broker"]),
                   FormatCount(stops["rank"]), FormatCount(stops["producer"])});
    std::printf("%s\n", deaths.ToString().c_str());

    Table jobs({"mode", ">batches", ">rows", ">redelivered", ">skipped",
                ">reconnects", ">lost", ">torn", ">twice unmarked",
                ">after release", ">gaps", ">errors"});
    const auto add = [&](const std::string& name, const Verdict& verdict) {
      jobs.AddRow({name, FormatCount(verdict.batches),
                   FormatCount(verdict.rows), FormatCount(verdict.redelivered),
                   FormatCount(verdict.skipped),
                   FormatCount(verdict.reconnects), FormatCount(verdict.lost),
                   FormatCount(verdict.torn), FormatCount(verdict.unmarked),
                   FormatCount(verdict.released), FormatCount(verdict.gaps),
                   FormatCount(verdict.errors)});
    };
    for (const auto& [name, verdict] : by_kind_) add(name, verdict);
    add("all", total_);
    std::printf("%s\n", jobs.ToString().c_str());
    std::printf(
        "%s kills in %s: %s broker instances, %s restarts of ranks, %s jobs; "
        "seed %s%s\n",
        FormatCount(kills_).c_str(), FormatSeconds(seconds).c_str(),
        FormatCount(broker_.instances()).c_str(),
        FormatCount(rank_restarts_).c_str(), FormatCount(jobs_).c_str(),
        std::to_string(options_.seed).c_str(),
        kKillPoints ? "" : "; this build has no kill points");
    std::printf("%s\n", failure_.empty()
                            ? "nothing lost, nothing torn, nothing "
                              "twice but what was marked"
                            : ("FAILED: " + failure_).c_str());
  }

  void ReportJson(double seconds) const {
    nlohmann::json json = {{"kills", kills_},
                           {"seed", options_.seed},
                           {"seconds", seconds},
                           {"kill_points", kKillPoints},
                           {"broker_restarts", broker_.instances() - 1},
                           {"rank_restarts", rank_restarts_},
                           {"jobs", jobs_},
                           {"stops", stops_},
                           {"failure", failure_}};
    for (const auto& [key, count] : counts_) {
      json["kills_of"][key.second][key.first] = count;
    }
    for (const auto& [name, verdict] : by_kind_) {
      json["modes"][name] = ToJson(verdict);
    }
    json["all"] = ToJson(total_);
    std::printf("%s\n", json.dump(2).c_str());
  }

#ifdef PENSTOCK_KILL_POINTS
  static constexpr bool kKillPoints = true;
#else
  static constexpr bool kKillPoints = false;
#endif

  const StormOptions options_;
  std::mt19937_64 random_;
  uint64_t kills_ = 0;
  Victim broker_victim_;
  StormBroker broker_;  // after what NewInstance uses
  std::list<Lap> laps_;
  std::optional<Clock::time_point> waits_since_;
  uint64_t jobs_ = 0;
  uint64_t rank_restarts_ = 0;
  Clock::time_point begin_;
  Clock::time_point next_fault_;
  std::map<std::pair<std::string, std::string>, uint64_t> counts_;
  std::map<std::string, uint64_t> stops_;
  std::map<std::string, Verdict> by_kind_;
  Verdict total_;
  std::string failure_;
};

int Main(int argc, char** argv) {
  StormOptions options;
  StormRankOptions rank_options;
  CommandLine line(
      "crash_storm",
      "Kills a broker, ranks and producers of several jobs repeatedly, and "
      "proves that no row was lost, torn, or delivered twice unmarked.");
  line.AddOption("--kills", &options.kills, "processes to kill").ShowDefault();
  line.AddOption("--seed", &options.seed,
                 "decides who is killed, how, and when")
      .ShowDefault();
  line.AddOption("--seconds", &options.seconds, "fails after this many seconds")
      .ShowDefault();
  line.AddOption("--pause-ms", &options.pause_ms,
                 "average time between two faults")
      .ShowDefault();
  std::vector<std::string> kinds;
  for (const JobKind& kind : Kinds()) kinds.push_back(kind.name);
  line.AddOption("--kind", &options.kinds,
                 "storm only jobs of this kind; may be given several times")
      .OneOf(kinds);
  line.AddOption("--out", &options.out,
                 "folder to create for the logs; kept on a failure (default: "
                 "one in /tmp)");
  line.AddFlag("--json", &options.json, "the result as JSON");
  Command rank = line.AddCommand("rank", "").Hide();
  Command producer = line.AddCommand("producer", "").Hide();
  Command broker = line.AddCommand("broker", "").Hide();
  Command judge = line.AddCommand("judge", "").Hide();
  rank_options.AddTo(rank);
  for (const Command& command : {producer, broker, judge}) {
    rank_options.AddTo(command);
  }
  line.ParseOrExit(argc, argv);
  if (rank.parsed()) return RunStormRank(rank_options);
  if (producer.parsed()) return RunStormProducer(rank_options);
  if (broker.parsed()) return KeepBroker(rank_options.folder);
  if (judge.parsed()) return JudgeFolder(rank_options);

  if (options.out.empty()) {
    options.out = (std::filesystem::temp_directory_path() / "storm-XXXXXX");
    if (mkdtemp(options.out.data()) == nullptr) {
      throw std::runtime_error("cannot make a folder in /tmp");
    }
  } else if (!std::filesystem::create_directories(options.out)) {
    throw std::runtime_error("'" + options.out + "' exists already");
  }
  WriteLists(options.out);
  return Storm(options).Run();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  try {
    return penstock::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "crash_storm: %s\n", error.what());
    return 1;
  }
}
