// What share does a job get beside another job whose rows cost 20 times as
// much?
//
// Shares are fair if jobs that want more than they can get have equal shares of
// the workers' time, whatever their rows cost and however many ranks they have,
// and a job that wants less than its share gets all it needs.
//
// Method. A penstockd with two workers and two jobs: "cheap" (rows of 50 us,
// batches of 64 rows a rank) and "dear" (rows of 1,000 us, batches of 8); or
// "reads", pictures of 196 KB from a file that the page cache has, normalised.
// A job either drains (its ranks take as fast as they can) or trains (a step of
// so many ms after each batch). Each round measures each job alone and then
// both together, two seconds each, half a second after the start. Shares are
// those of decode_s in the broker's status. A rate is that of rows taken, over
// the rate of the same job alone in the same round.
//
// Isolation. Each measurement has its own penstockd. A disturbance of the
// machine affects a round as a whole. The ranks are threads of this process:
// they sleep or wait.
//
// Limits: a chunk of rows in progress is finished first (10 ms at most), and
// meanwhile a job has only `prefetch` (2) batches in store. A worker's time is
// wall-clock time, so shares are less exact on a machine with other load.
//
//   fairness_benchmark [--runs N] [--json]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/job_ranks.h"
#include "bench/side_by_side.h"
#include "common/format.h"
#include "common/message.h"
#include "tests/support/broker_process.h"

namespace penstock {
namespace {

using Seconds = std::chrono::duration<double>;

struct JobKind {
  std::string name;
  int cost_us = 0;
  int batch = 0;
  int ranks = 1;
  std::chrono::milliseconds step{0};
  std::string file;  // its rows are read from there

  std::string Spec() const {
    if (file.empty()) return SyntheticJob(name, cost_us, batch);
    return Format(
        "dataset: {}\n"
        "source: {{fixed_length_records: {{files: {}, features: {{image: "
        "{{dtype: uint8, shape: [256, 256, 3]}}}}}}}}\n"
        "map: [{{normalize: {{mean: [0.5, 0.5, 0.5], std: [0.2, 0.2, "
        "0.2]}}}}]\n"
        "batch: {{per_rank: {}}}\nepochs: forever\n",
        name, file, batch);
  }

  std::string ToString() const {
    return Format("{}, {} rank{} that {}", name, ranks, ranks == 1 ? "" : "s",
                  step.count() == 0
                      ? (ranks == 1 ? "drains" : "drain")
                      : Format("{} in steps of {} ms",
                               ranks == 1 ? "trains" : "train", step.count()));
  }
};

JobKind Cheap(int ranks, int step_ms) {
  return {"cheap", 50, 64, ranks, std::chrono::milliseconds(step_ms), ""};
}
JobKind Dear(int ranks, int step_ms) {
  return {"dear", 1000, 8, ranks, std::chrono::milliseconds(step_ms), ""};
}

// Rows that are read from a file, and rows that each cost cost_us.
JobKind Reads(const std::string& file) { return {"reads", 0, 16, 1, {}, file}; }
JobKind Slow(int cost_us) { return {"slow", cost_us, 8, 1, {}, ""}; }

// Pictures of noise.
void WritePictures(const std::string& file, int count) {
  std::ofstream out(file, std::ios::binary);
  std::mt19937_64 random(1);
  std::vector<uint64_t> picture(256 * 256 * 3 / sizeof(uint64_t));
  for (int i = 0; i < count; ++i) {
    for (uint64_t& word : picture) word = random();
    out.write(reinterpret_cast<const char*>(picture.data()),
              static_cast<std::streamsize>(picture.size() * sizeof(uint64_t)));
  }
  if (!out.flush()) {
    std::fprintf(stderr, "cannot write %s\n", file.c_str());
    std::exit(1);
  }
}

struct Got {
  double rows_per_s = 0;
  double workers_s = 0;
};

// Workers' time of the job so far.
double DecodeSeconds(const BrokerProcess& broker, const std::string& name) {
  const StatusOr<Fd> socket = ConnectControl(broker.socket());
  if (socket.ok()) {
    const StatusOr<Message> answer = Request(socket->get(), {{"op", "jobs"}});
    if (answer.ok()) {
      for (const nlohmann::json& job : answer->json.at("jobs")) {
        if (job.at("job") == name) return job.value("decode_s", 0.0);
      }
    }
  }
  std::fprintf(stderr, "penstockd does not report job %s\n", name.c_str());
  std::exit(1);
}

std::vector<Got> Measure(const std::vector<JobKind>& kinds, bool tiny) {
  const BrokerProcess broker({"--workers", "2"});
  std::vector<std::unique_ptr<JobRanks>> jobs;
  for (const JobKind& kind : kinds) {
    jobs.push_back(std::make_unique<JobRanks>(
        broker.socket(), kind.name, kind.Spec(), kind.ranks, kind.step));
  }
  std::this_thread::sleep_for(Seconds(tiny ? 0.1 : 0.5));
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Got> before(jobs.size());
  const auto progress_of = [&](size_t i) {
    return Got{static_cast<double>(jobs[i]->rows()),
               DecodeSeconds(broker, kinds[i].name)};
  };
  for (size_t i = 0; i < jobs.size(); ++i) before[i] = progress_of(i);
  std::this_thread::sleep_for(Seconds(tiny ? 0.1 : 2));
  const Seconds wall = std::chrono::steady_clock::now() - begin;
  std::vector<Got> got(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Got after = progress_of(i);
    got[i] = {(after.rows_per_s - before[i].rows_per_s) / wall.count(),
              after.workers_s - before[i].workers_s};
  }
  return got;
}

struct Figures {
  std::vector<double> share;  // of the workers' time, by round
  std::vector<double> rate;   // beside alone

  static std::string Text(const std::vector<double>& values) {
    return Format("{:.2f} ({:.2f}-{:.2f})", Mean(values),
                  *std::min_element(values.begin(), values.end()),
                  *std::max_element(values.begin(), values.end()));
  }
  static double Mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) /
           static_cast<double>(values.size());
  }
};

struct Pair {
  std::vector<JobKind> jobs;
  std::vector<Figures> figures = std::vector<Figures>(2);

  void Round(bool tiny, bool counts) {
    std::vector<Got> alone;
    for (const JobKind& job : jobs) alone.push_back(Measure({job}, tiny)[0]);
    const std::vector<Got> both = Measure(jobs, tiny);
    if (!counts) return;
    const double workers_s = both[0].workers_s + both[1].workers_s;
    for (size_t i = 0; i < jobs.size(); ++i) {
      figures[i].share.push_back(both[i].workers_s / std::max(workers_s, 1e-9));
      figures[i].rate.push_back(both[i].rows_per_s /
                                std::max(alone[i].rows_per_s, 1e-9));
    }
  }
};

void Run(const SideBySideOptions& options) {
  std::string file =
      (std::filesystem::temp_directory_path() / "penstock-pictures-XXXXXX");
  const Fd opened(mkstemp(file.data()));
  const auto remove = [](const std::string* path) { unlink(path->c_str()); };
  const std::unique_ptr<const std::string, decltype(remove)> removed(&file,
                                                                     remove);
  WritePictures(file, options.tiny ? 16 : 512);
  std::vector<Pair> pairs = {
      {{Cheap(1, 0), Dear(1, 0)}},  {{Cheap(4, 0), Dear(1, 0)}},
      {{Cheap(1, 0), Dear(1, 40)}}, {{Cheap(1, 20), Dear(1, 0)}},
      {{Reads(file), Slow(1000)}},  {{Reads(file), Slow(20000)}}};
  const int warm_up = options.tiny ? 0 : 1;
  const int runs = options.tiny ? 1 : options.runs;
  for (int round = 0; round < warm_up + runs; ++round) {
    for (Pair& pair : pairs) pair.Round(options.tiny, round >= warm_up);
  }
  nlohmann::json document = {{"runs", runs},
                             {"tiny", options.tiny},
                             {"pairs", nlohmann::json::array()}};
  if (!options.json) {
    Print(stdout, "{} interleaved runs of each{}\n\n  {:<42}  {:<20}  {}\n",
          runs, options.tiny ? ", tiny: figures mean nothing" : "",
          "two jobs at once", "share of the workers", "rate over rate alone");
  }
  for (const Pair& pair : pairs) {
    nlohmann::json jobs = nlohmann::json::array();
    for (size_t i = 0; i < pair.jobs.size(); ++i) {
      const Figures& figures = pair.figures[i];
      jobs.push_back({{"job", pair.jobs[i].ToString()},
                      {"share", figures.share},
                      {"rate", figures.rate}});
      if (options.json) continue;
      Print(stdout, "  {:<42}  {:<20}  {}\n", pair.jobs[i].ToString(),
            Figures::Text(figures.share), Figures::Text(figures.rate));
    }
    document["pairs"].push_back(jobs);
    if (!options.json) Print(stdout, "\n");
  }
  if (options.json) Print(stdout, "{}\n", document.dump(2));
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::CommandLine line(
      "fairness_benchmark",
      "The shares of one broker that two unequal jobs get.");
  penstock::SideBySideOptions options;
  penstock::AddSideBySideOptions(line, &options);
  line.ParseOrExit(argc, argv);
  penstock::Run(options);
}
