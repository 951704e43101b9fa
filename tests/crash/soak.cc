// A soak runs one penstockd that is never restarted. Jobs of all modes and
// sizes begin and end in it, round after round: they are taken to the end or
// left early, their ranks are killed and replaced, or the whole job is killed.
// Nothing of them may remain: memory and descriptors stay flat.
//
//   soak --minutes 30
//
// penstockd is sampled between rounds, when it has no job. The verdict leaves
// out the first fifth, in which allocators and pools reach their size.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/private_broker/control_call.h"
#include "client/private_broker/table.h"
#include "common/command_line.h"
#include "tests/crash/judge.h"
#include "tests/crash/storm_broker.h"
#include "tests/crash/storm_rank.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSampleEvery_s = 10;  // or six samples in all
// Within the limit of jobs per user, and of processes for two cores.
constexpr size_t kJobsAtOnce = 4;
constexpr double kMemoryBound_bytes = 2 << 20;
constexpr std::chrono::seconds kQuietWithin{60};

struct SoakOptions {
  double minutes = 30;
  uint64_t seed = 1;
  std::string out;
  bool json = false;
};

struct Sample {
  double at_s = 0;
  uint64_t rss_bytes = 0;
  uint64_t pss_bytes = 0;
  // Its own memory: no file's, and none that it shares with other programs.
  uint64_t anonymous_bytes = 0;
  uint64_t shared_bytes = 0;  // segments and cursor pages
  uint64_t descriptors = 0;
  uint64_t threads = 0;
  uint64_t jobs = 0;
  uint64_t state_bytes = 0;  // of the journal and what lies beside it
};

// How a job ends.
enum class Course { kToTheEnd, kLeft, kReplaced, kKilled };

struct Job {
  JobKind kind;
  std::string name;
  std::string folder;
  Course course = Course::kToTheEnd;
  Clock::time_point fault_at;  // kReplaced, kKilled
  bool fault_injected = false;
  struct Rank {
    uint32_t restart = 0;
    Process process;
    bool done = false;
  };
  std::vector<Rank> ranks;
};

class Soak {
 public:
  explicit Soak(const SoakOptions& options)
      : options_(options),
        random_(options.seed),
        broker_(FindBroker(), options.out,
                [] { return StormBroker::Environment{}; }) {}

  int Run() {
    begin_ = Clock::now();
    const double seconds = options_.minutes * 60;
    while (Seconds() < seconds) {
      Round(
          std::min(seconds, Seconds() + std::min(kSampleEvery_s, seconds / 6)));
      WaitUntilQuiet();
      samples_.push_back(TakeSample());
    }
    const bool ok = Report();
    broker_.Stop();
    if (ok) std::filesystem::remove_all(options_.out);
    return ok ? 0 : 1;
  }

 private:
  static std::string FindBroker() {
    const char* given = std::getenv("PENSTOCKD");
    return given != nullptr ? given : PENSTOCK_BUILD_DIR "/broker/penstockd";
  }
  double Seconds() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  uint64_t Random(uint64_t below) { return random_() % below; }

  // ---- jobs

  JobKind RandomKind() {
    JobKind kind;
    kind.ranks = 1 + static_cast<uint32_t>(Random(3));
    kind.batch = kind.ranks * (1 + Random(16));
    kind.records = kind.batch * (10 + Random(200)) - Random(kind.batch);
    kind.epochs = 1 + Random(2);
    kind.hold = 1 + Random(3);
    switch (Random(4)) {
      case 0:
        kind.name = kind.delivery = "split";
        kind.on_rank_death = "wait";
        break;
      case 1:
        kind.name = kind.delivery = "dynamic";
        break;
      case 2:
        kind.name = kind.delivery = "broadcast";
        kind.lag = Random(2) == 0 ? "block" : "skip";
        kind.window = 1 + static_cast<int>(Random(6));
        break;
      default:
        kind.name = kind.delivery = "independent";
        break;
    }
    return kind;
  }

  void Start(const Job& job, uint32_t number, Job::Rank* rank) {
    StormRankOptions options;
    options.kind = job.kind;
    options.job = job.name;
    options.socket = broker_.socket();
    options.folder = job.folder;
    options.rank = number;
    options.restart = rank->restart;
    options.seed = random_();
    options.pace_us = 1 + Random(3000);
    if (job.course == Course::kLeft) options.leave_after = 1 + Random(20);
    ProcessSpec spec;
    spec.argv = {"/proc/self/exe", "rank"};
    for (std::string& argument : options.Arguments()) {
      spec.argv.push_back(std::move(argument));
    }
    spec.stdout_fd = STDERR_FILENO;
    StatusOr<Process> process = Process::Start(spec);
    if (!process.ok()) throw std::runtime_error(process.status().message());
    rank->process = *std::move(process);
    ++attaches_;
  }

  void StartJob() {
    Job& job = jobs_.emplace_back();
    job.kind = RandomKind();
    job.name = Format("soak-{}", job_count_++);
    job.folder = options_.out + "/" + job.name;
    std::filesystem::create_directory(job.folder);
    job.course = static_cast<Course>(Random(4));
    // A job would remain as long as it waits for replacements of its dead
    // ranks.
    if (job.course == Course::kKilled) job.kind.on_rank_death = "fail";
    if (job.course == Course::kReplaced && job.kind.delivery != "split") {
      job.course = Course::kToTheEnd;
    }
    job.fault_at = Clock::now() + std::chrono::milliseconds(20 + Random(600));
    job.ranks.resize(job.kind.ranks);
    for (uint32_t number = 0; number < job.kind.ranks; ++number) {
      Start(job, number, &job.ranks[number]);
    }
  }

  void Tend(Job& job) {
    const bool killed = job.course == Course::kKilled;
    if (!job.fault_injected && Clock::now() >= job.fault_at &&
        (killed || job.course == Course::kReplaced)) {
      job.fault_injected = true;
      for (uint32_t i = 0; i < (killed ? job.ranks.size() : 1); ++i) {
        job.ranks[i].process.Signal(SIGKILL);
        ++kills_;
      }
    }
    for (uint32_t number = 0; number < job.ranks.size(); ++number) {
      Job::Rank& rank = job.ranks[number];
      if (rank.done) continue;
      const std::optional<ProcessExit> exit = rank.process.Ended();
      if (!exit) continue;
      rank.process.Reap();
      if (!exit->ok() && !(job.fault_injected && (killed || exit->signaled))) {
        throw std::runtime_error(Format("rank {} of job '{}' {}", number,
                                        job.name, exit->ToString()));
      }
      if (exit->ok() || killed) {
        rank.done = true;
      } else {
        ++rank.restart;
        Start(job, number, &rank);
      }
    }
  }

  // Starts jobs until then, and waits for the end of all of them.
  void Round(double until_s) {
    while (Seconds() < until_s || !jobs_.empty()) {
      while (jobs_.size() < kJobsAtOnce && Seconds() < until_s) StartJob();
      std::vector<pollfd> entries;
      broker_.AddTo(&entries);
      for (const Job& job : jobs_) {
        for (const Job::Rank& rank : job.ranks) {
          if (rank.process.pid() > 0) {
            entries.push_back({rank.process.pidfd(), POLLIN, 0});
          }
        }
      }
      poll(entries.data(), entries.size(), 20);
      CheckBroker();
      for (Job& job : jobs_) Tend(job);
      std::erase_if(jobs_, [](const Job& job) {
        const bool over =
            std::all_of(job.ranks.begin(), job.ranks.end(),
                        [](const Job::Rank& rank) { return rank.done; });
        if (!over) return false;
        std::filesystem::remove_all(job.folder);
        return true;
      });
    }
  }

  // ---- the broker

  void CheckBroker() {
    if (const auto exit = broker_.Tend()) {
      throw std::runtime_error("penstockd " + exit->ToString());
    }
  }
  nlohmann::json Ask(nlohmann::json request) {
    StatusOr<nlohmann::json> answer = Call(request);
    if (!answer.ok()) throw std::runtime_error(answer.status().message());
    return *std::move(answer);
  }
  // Before it answers, the broker may wait until its message to the store is
  // received.
  StatusOr<nlohmann::json> Call(const nlohmann::json& request) {
    return CallBroker(broker_.socket(), request, [this](int socket) {
      for (;;) {
        std::vector<pollfd> entries = {{socket, POLLIN, 0}};
        broker_.AddTo(&entries);
        poll(entries.data(), entries.size(), -1);
        if (entries[0].revents != 0) return OkStatus();
        CheckBroker();
      }
    });
  }
  void WaitUntilQuiet() {
    const auto give_up = Clock::now() + kQuietWithin;
    while (!Ask({{"op", "status"}}).at("jobs").empty()) {
      if (Clock::now() > give_up) {
        throw std::runtime_error("penstockd keeps a job that is over: " +
                                 Ask({{"op", "status"}}).at("jobs").dump());
      }
      pollfd entry{-1, 0, 0};
      poll(&entry, 1, 20);
      CheckBroker();
    }
  }

  uint64_t Field(const char* file, const std::string& name) const {
    std::ifstream in(Format("/proc/{}/{}", broker_.process().pid(), file));
    for (std::string line; std::getline(in, line);) {
      if (line.rfind(name + ":", 0) == 0) {
        return std::stoull(line.substr(name.size() + 1));
      }
    }
    throw std::runtime_error(Format("no {} of penstockd in {}", name, file));
  }
  Sample TakeSample() {
    Sample sample;
    sample.at_s = Seconds();
    sample.rss_bytes = Field("smaps_rollup", "Rss") * 1024;
    sample.pss_bytes = Field("smaps_rollup", "Pss") * 1024;
    sample.anonymous_bytes = Field("status", "RssAnon") * 1024;
    sample.shared_bytes = Field("status", "RssShmem") * 1024;
    // Objects that are destroyed in the background may outlive their job a
    // little.
    sample.descriptors = sample.threads = UINT64_MAX;
    const std::filesystem::path proc =
        Format("/proc/{}/fd", broker_.process().pid());
    for (int i = 0; i < 25; ++i) {
      sample.threads = std::min(sample.threads, Field("status", "Threads"));
      sample.descriptors =
          std::min(sample.descriptors,
                   static_cast<uint64_t>(std::distance(
                       std::filesystem::directory_iterator(proc), {})));
      pollfd nothing{-1, 0, 0};
      poll(&nothing, 1, 20);
    }
    sample.jobs = Ask({{"op", "status"}}).at("jobs").size();
    for (const auto& entry :
         std::filesystem::directory_iterator(broker_.state_folder())) {
      if (entry.is_regular_file()) sample.state_bytes += entry.file_size();
    }
    return sample;
  }

  // ---- the verdict

  // By least squares, over the whole time that is judged.
  template <typename Value>
  static double Growth(const std::vector<Sample>& samples, Value value) {
    double t = 0, v = 0, tt = 0, tv = 0;
    const auto n = static_cast<double>(samples.size());
    for (const Sample& sample : samples) {
      t += sample.at_s;
      v += value(sample);
      tt += sample.at_s * sample.at_s;
      tv += sample.at_s * value(sample);
    }
    const double spread = n * tt - t * t;
    if (spread <= 0) return 0;
    return (n * tv - t * v) / spread *
           (samples.back().at_s - samples.front().at_s);
  }

  bool Report() const {
    std::vector<Sample> judged;
    for (const Sample& sample : samples_) {
      if (sample.at_s >= samples_.back().at_s / 5 || samples_.size() < 5) {
        judged.push_back(sample);
      }
    }
    const double memory = Growth(judged, [](const Sample& sample) {
      return static_cast<double>(sample.anonymous_bytes + sample.shared_bytes);
    });
    // The minimum of each half is what remains.
    Sample first = judged.front();
    Sample last = judged.back();
    for (size_t i = 0; i < judged.size(); ++i) {
      Sample& half = 2 * i < judged.size() ? first : last;
      half.descriptors = std::min(half.descriptors, judged[i].descriptors);
      half.threads = std::min(half.threads, judged[i].threads);
    }
    const bool flat = memory < kMemoryBound_bytes &&
                      last.descriptors <= first.descriptors &&
                      last.threads <= first.threads && last.jobs == 0;
    if (options_.json) {
      nlohmann::json json = {{"ok", flat},
                             {"jobs", job_count_},
                             {"attaches", attaches_},
                             {"kills", kills_},
                             {"memory_growth_bytes", memory},
                             {"memory_bound_bytes", kMemoryBound_bytes}};
      for (const Sample& sample : samples_) {
        json["samples"].push_back({{"at_s", sample.at_s},
                                   {"rss_bytes", sample.rss_bytes},
                                   {"pss_bytes", sample.pss_bytes},
                                   {"anonymous_bytes", sample.anonymous_bytes},
                                   {"shared_bytes", sample.shared_bytes},
                                   {"descriptors", sample.descriptors},
                                   {"threads", sample.threads},
                                   {"state_bytes", sample.state_bytes}});
      }
      std::printf("%s\n", json.dump(2).c_str());
      return flat;
    }
    Table table({">time", ">RSS", ">PSS", ">anonymous", ">shared",
                 ">descriptors", ">threads", ">jobs", ">state directory"});
    // Twenty lines are enough to see a slope.
    const size_t every = (samples_.size() + 19) / 20;
    for (size_t i = 0; i < samples_.size(); ++i) {
      if (i % every != 0 && i + 1 != samples_.size()) continue;
      const Sample& sample = samples_[i];
      table.AddRow(
          {FormatSeconds(sample.at_s), FormatBytes(sample.rss_bytes),
           FormatBytes(sample.pss_bytes), FormatBytes(sample.anonymous_bytes),
           FormatBytes(sample.shared_bytes), FormatCount(sample.descriptors),
           FormatCount(sample.threads), FormatCount(sample.jobs),
           FormatBytes(sample.state_bytes)});
    }
    std::printf("%s\n", table.ToString().c_str());
    std::printf(
        "%s jobs, %s attaches, %s kills in %s\n"
        "after the first fifth: memory (anonymous and shared) by %+.0f KiB, "
        "%+.1f KiB a minute "
        "(bound: %.0f KiB in all); descriptors %lu -> %lu, threads %lu -> %lu\n"
        "%s\n",
        FormatCount(job_count_).c_str(), FormatCount(attaches_).c_str(),
        FormatCount(kills_).c_str(), FormatSeconds(Seconds()).c_str(),
        memory / 1024,
        memory / 1024 / std::max(1e-3, (last.at_s - first.at_s) / 60),
        kMemoryBound_bytes / 1024, first.descriptors, last.descriptors,
        first.threads, last.threads, flat ? "flat" : "NOT FLAT");
    return flat;
  }

  const SoakOptions options_;
  std::mt19937_64 random_;
  StormBroker broker_;
  Clock::time_point begin_;
  std::vector<Job> jobs_;
  std::vector<Sample> samples_;
  uint64_t job_count_ = 0;
  uint64_t attaches_ = 0;
  uint64_t kills_ = 0;
};

int Main(int argc, char** argv) {
  SoakOptions options;
  StormRankOptions rank_options;
  CommandLine line(
      "soak",
      "Attaches, detaches and kills ranks of many jobs of one broker, and "
      "proves that its memory and descriptors stay as they are.");
  line.AddOption("--minutes", &options.minutes, "how long").ShowDefault();
  line.AddOption("--seed", &options.seed, "decides on the jobs and their ends")
      .ShowDefault();
  line.AddFlag("--json", &options.json, "the result as JSON");
  Command rank = line.AddCommand("rank", "").Hide();
  rank_options.AddTo(rank);
  line.ParseOrExit(argc, argv);
  if (rank.parsed()) return RunStormRank(rank_options);

  options.out = (std::filesystem::temp_directory_path() / "soak-XXXXXX");
  if (mkdtemp(options.out.data()) == nullptr) {
    throw std::runtime_error("cannot make a folder in /tmp");
  }
  return Soak(options).Run();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  try {
    return penstock::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "soak: %s\n", error.what());
    return 1;
  }
}
