// Compares alternatives in interleaved runs. In each round every alternative
// runs once, so a disturbance of the machine affects all of them alike. A ratio
// is to the baseline's run of the same round.
//
//   CommandLine line("NAME", "...");
//   SideBySideOptions options;
//   AddSideBySideOptions(line, &options);  // --runs N, --tiny, --json,
//                                          // --only TEXT
//   line.ParseOrExit(argc, argv);
//   SideBySide spinning("peer spins, one way", "ns");
//   spinning.Add("cache line", [&] { return ... });  // first: the baseline
//   spinning.Add("Penstock", [&] { return ... });    // the cost of one run
//   spinning.Absent("iceoryx", "not installed (apt install iceoryx)");
//   RunSideBySide({&spinning}, options);
//
// A cost is a number in the table's unit; less is better. The first round warms
// caches and pages and is not counted. Nothing here judges a figure.
#ifndef BENCH_SIDE_BY_SIDE_H_
#define BENCH_SIDE_BY_SIDE_H_

#include <sys/types.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/command_line.h"
#include "common/format.h"

namespace penstock {

struct SideBySideOptions {
  int runs = 5;       // of each alternative, counted
  bool tiny = false;  // one shortest run, for ctest
  bool json = false;
  std::string only;  // rows whose name contains this, and the baselines
};

inline void AddSideBySideOptions(Command command, SideBySideOptions* options) {
  command.AddOption("--runs", &options->runs, "Runs of each alternative")
      .InRange(1, 1000)
      .ShowDefault();
  command.AddFlag("--tiny", &options->tiny,
                  "One minimal run, to show that it works");
  command.AddFlag("--json", &options->json, "Print JSON");
  command.AddOption("--only", &options->only,
                    "Only rows whose name contains this, and the baselines");
}

// One table.
class SideBySide {
 public:
  SideBySide(std::string title, std::string unit)
      : title_(std::move(title)), unit_(std::move(unit)) {}

  // run makes one run and returns its cost. The first added is the baseline.
  void Add(std::string name, std::function<double()> run) {
    rows_.push_back({std::move(name), std::move(run), {}, {}});
  }
  // A row that only gives the reason why there is no figure.
  void Absent(std::string name, std::string why) {
    rows_.push_back({std::move(name), {}, std::move(why), {}});
  }

  void RunAll(const SideBySideOptions& options) {
    const Row* const baseline = Baseline();
    const std::string name = baseline == nullptr ? "" : baseline->name;
    std::erase_if(rows_, [&](const Row& row) {
      return row.name != name && row.name.find(options.only) == row.name.npos;
    });
    const int warm_up = options.tiny ? 0 : 1;
    const int rounds = warm_up + (options.tiny ? 1 : options.runs);
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < rows_.size(); ++i) {
        // Each round begins with another one, so that none always follows the
        // same one.
        Row& row = rows_[(i + static_cast<size_t>(round)) % rows_.size()];
        if (!row.run) continue;
        const double cost = row.run();
        if (round >= warm_up) row.costs.push_back(cost);
      }
    }
  }

  std::string Table() const {
    const Row* const baseline = Baseline();
    std::string text = Format("{}, {}\n", title_, unit_);
    if (baseline == nullptr) return text;
    constexpr const char* kLine = "  {:<36}  {:>8} {:<20}  {:>6} {}\n";
    text +=
        Format(kLine, "", "mean", "(min-max)", "ratio", "to " + baseline->name);
    for (const Row& row : rows_) {
      if (!row.run) {
        text += Format("  {:<36}  {}\n", row.name, row.why_absent);
        continue;
      }
      const Spread cost(row.costs);
      const Spread ratio(Ratios(row, *baseline));
      text += Format(kLine, row.name, Short(cost.mean),
                     Format("({}-{})", Short(cost.min), Short(cost.max)),
                     Short(ratio.mean),
                     Format("({}-{})", Short(ratio.min), Short(ratio.max)));
    }
    return text;
  }

  nlohmann::json Json() const {
    nlohmann::json rows = nlohmann::json::array();
    const Row* const baseline = Baseline();
    for (const Row& row : rows_) {
      if (!row.run) {
        rows.push_back({{"name", row.name}, {"absent", row.why_absent}});
        continue;
      }
      rows.push_back({{"name", row.name},
                      {"costs", row.costs},
                      {"mean", Spread(row.costs).mean},
                      {"ratio", Spread(Ratios(row, *baseline)).mean}});
    }
    return {{"title", title_}, {"unit", unit_}, {"rows", rows}};
  }

 private:
  struct Row {
    std::string name;
    std::function<double()> run;  // none: absent
    std::string why_absent;
    std::vector<double> costs;  // one a round
  };
  struct Spread {
    explicit Spread(const std::vector<double>& values)
        : mean(std::accumulate(values.begin(), values.end(), 0.0) /
               static_cast<double>(values.size())),
          min(*std::min_element(values.begin(), values.end())),
          max(*std::max_element(values.begin(), values.end())) {}
    double mean, min, max;
  };

  const Row* Baseline() const {
    const auto row = std::find_if(rows_.begin(), rows_.end(), [](const Row& r) {
      return static_cast<bool>(r.run);
    });
    return row == rows_.end() ? nullptr : &*row;
  }
  static std::vector<double> Ratios(const Row& row, const Row& baseline) {
    std::vector<double> ratios;
    for (size_t i = 0; i < row.costs.size(); ++i) {
      ratios.push_back(row.costs[i] / baseline.costs[i]);
    }
    return ratios;
  }
  static std::string Short(double value) {
    return value < 100 ? Format("{:#.3g}", value) : Format("{:.0f}", value);
  }

  const std::string title_;
  const std::string unit_;
  std::vector<Row> rows_;
};

// CPU time of a penstockd, all threads. Ends the benchmark if there is none.
inline double CpuSeconds(pid_t pid) {
  clockid_t clock{};
  timespec now{};
  if (clock_getcpuclockid(pid, &clock) != 0 ||
      clock_gettime(clock, &now) != 0) {
    std::perror("the CPU clock of penstockd");
    std::exit(1);
  }
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

// Runs the tables one after the other and prints each.
inline void RunSideBySide(const std::vector<SideBySide*>& tables,
                          const SideBySideOptions& options) {
  if (!options.json) {
    Print(stdout, "{} interleaved runs of each{}\n\n",
          options.tiny ? 1 : options.runs,
          options.tiny ? ", tiny: figures mean nothing" : "");
  }
  nlohmann::json document = {{"runs", options.tiny ? 1 : options.runs},
                             {"tiny", options.tiny},
                             {"tables", nlohmann::json::array()}};
  for (SideBySide* table : tables) {
    table->RunAll(options);
    if (options.json) {
      document["tables"].push_back(table->Json());
    } else {
      Print(stdout, "{}\n", table->Table());
      std::fflush(stdout);
    }
  }
  if (options.json) Print(stdout, "{}\n", document.dump(2));
}

}  // namespace penstock
#endif  // BENCH_SIDE_BY_SIDE_H_
