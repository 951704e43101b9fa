// Ranks of one job for the benchmarks that start a penstockd: threads of this
// process that take batches, one after the other, until they are stopped. With
// a step of length 0 a rank only drains.
#ifndef BENCH_JOB_RANKS_H_
#define BENCH_JOB_RANKS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "client/penstock.hpp"

namespace penstock {

// Rows that each cost a worker cost_us; batch: rows of a rank's batch.
inline std::string SyntheticJob(const std::string& name, int cost_us,
                                int batch) {
  return "dataset: " + name +
         "\nsource: {synthetic: {records: 1000000, cost_us: " +
         std::to_string(cost_us) +
         ", features: {x: {dtype: uint8, shape: [64]}}}}\n"
         "batch: {per_rank: " +
         std::to_string(batch) + "}\nepochs: forever\n";
}

class JobRanks {
 public:
  JobRanks(const std::string& socket, const std::string& job,
           const std::string& spec, int ranks, std::chrono::microseconds step) {
    for (int rank = 0; rank < ranks; ++rank) {
      Options options;
      options.spec = spec;
      options.job = job;
      options.socket = socket;
      options.rank = rank;
      options.world_size = ranks;
      options.timeout_s = 60;
      threads_.emplace_back([this, options, step] { Run(options, step); });
    }
  }
  ~JobRanks() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  JobRanks(const JobRanks&) = delete;
  JobRanks& operator=(const JobRanks&) = delete;

  uint64_t rows() const { return rows_; }  // taken, by all

 private:
  void Run(const Options& options, std::chrono::microseconds step) {
    try {
      Reader reader(options);
      Batch batch;
      while (!stop_) {
        if (reader.next(&batch) != Reader::Result::kBatch) continue;
        rows_ += batch.rows();
        if (step.count() > 0) std::this_thread::sleep_for(step);
        batch.release();
      }
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(1);
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> rows_{0};
  std::vector<std::thread> threads_;
};

}  // namespace penstock
#endif  // BENCH_JOB_RANKS_H_
