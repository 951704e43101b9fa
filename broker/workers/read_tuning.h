// How many reads are in flight, by what the storage gains by more
// (base/tuner.h): reads of each worker, or where a read blocks its worker, more
// workers.
//
// Used on the control thread.
#ifndef BROKER_WORKERS_READ_TUNING_H_
#define BROKER_WORKERS_READ_TUNING_H_

#include <cstdint>
#include <string>

#include "broker/base/tuner.h"
#include "broker/io/read_depth.h"
#include "broker/job/bottleneck.h"
#include "broker/workers/worker_threads.h"

namespace penstock {

// Where reads block workers, and the broker chooses their number.
inline constexpr uint32_t kThreadsOfProcessorMax = 16;

class ReadTuning {
 public:
  ReadTuning() = default;
  // read_depth: 0: automatic.
  explicit ReadTuning(uint32_t read_depth) : depth_(read_depth) {}

  const ReadDepth& depth() const { return depth_; }
  const Tuner& threads_of_processor() const { return threads_; }
  std::string ThreadsReason() const;
  // The number of workers was set anew.
  void BeginThreads() { threads_ = Tuner(kThreads); }

  // The sums of all threads' reads, `seconds` after the last call.
  void Saw(double seconds, const WorkerThreads::Reads& reads, uint32_t workers);
  // By what was seen last. True: the number changed.
  bool ChangesDepth() { return depth_.Measured(seconds_, bytes_, waiting_); }
  // most: threads of each processor.
  bool ChangesThreads(uint32_t most) {
    return threads_.Measured(seconds_, bytes_, waiting_,
                             2 * threads_.number() <= most);
  }

  // Why this depth, with what was measured.
  std::string DepthReason(bool reads_block) const;

 private:
  static constexpr Tuner::Range kThreads{1, kThreadsOfProcessorMax, true};

  ReadDepth depth_;
  Tuner threads_{kThreads};
  RecentMean reads_per_s_;
  RecentMean reads_at_once_;
  WorkerThreads::Reads seen_;
  // Since the last call but one.
  double seconds_ = 0;
  double bytes_ = 0;
  double waiting_ = 0;  // share of the workers' time
};

}  // namespace penstock
#endif  // BROKER_WORKERS_READ_TUNING_H_
