// Finds the bottleneck of a job over the last seconds: its ranks, one rank,
// decoding, its Python function, the storage, the network or its producers.
//
// Runs on the control thread, which samples every job on each tick (5 times a
// second), a job's part under the job's mutex. A rank's cursor page is
// untrusted: an impossible wait counts as none or as all of the time.
//
// Measurements
//   waits     share of the time that a rank spent in `next` on an empty ring.
//             The broker is at fault only for this.
//   decoding  number of workers that made rows; storage: that waited for reads
//             and had no row to make. Both by wall clock: a worker that the
//             kernel does not schedule counts as busy. network: the part of
//             storage in which an object store had not answered yet.
//   function_workers
//             for a job with a Python function, whose rows are made by threads
//             of its own: how many of them were on a row, in each sample. A row
//             that hangs is thus seen while it hangs.
//   starved   share of the samples in which a stream had no rows for a batch.
//   behind    share of the samples in which a rank had taken and released less
//             than another. Ranks that wait for each other (all-reduce) are at
//             most a step apart, so a slow one shows not by its position but by
//             being late repeatedly. One that holds its batch through the
//             all-reduce, and is slow between, looks like the others: then
//             "ranks" is all that can be said. Of ranks that do not keep step
//             (more than one apart) only one that is slower counts.
//   batch     time from one batch of a rank to its next, less its waits for
//             batches. In an all-reduce that is the same for all: there, what
//             the others take is this less the time in which it is behind.
//   stands    how long a rank that has batches has neither taken nor released
//             one while no other rank with data left went on without it: each
//             is ahead of it and waits, or stands still too. Where ranks do not
//             get the same steps: each sleeps on an empty ring while no batch
//             is being made, or stands still too. A single rank just has to do
//             nothing. It counts from the first sample in which this holds and
//             ends with one in which it does not; unlike the means it does not
//             fade while the rank hangs, whatever the others did.
//   all stand  how long no rank has taken or released a batch while none that
//             somebody may get was being made and no stream was starved.
//
// Verdict, the first that holds
//   "evicted": a rank waits, and evicted processes that live have its slots;
//   "absent": ranks are absent, and all others stand for longer than
//     kStandsSeconds, or than kSecondsMin if one of them waits, whether for
//     want of batches (broadcast) or in an all-reduce (split);
//   "rank": one stands for longer than kStandsSeconds; "ranks": several do;
//   no rank waits for more than kWaits of the time: "rank" if exactly one is
//     behind, else "ranks";
//   "producers": a rank waits, and the stream is starved more often than not;
//   "rank": a rank waits, and one that does not wait is behind while the
//     workers are idle (a broadcast whose slots it holds);
//   "storage" or "decode", whichever the workers do more; "python" instead of
//     "decode" if they call a Python function, "network" instead of "storage"
//     if most of that is.
#ifndef BROKER_JOB_BOTTLENECK_H_
#define BROKER_JOB_BOTTLENECK_H_

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

// Exponentially decaying mean of the last few seconds, in O(1) memory.
class RecentMean {
 public:
  static constexpr double kSeconds = 3;  // until a value weighs 1/e

  // The value held for so many seconds.
  void Add(double value, double seconds);
  double mean() const { return weight_ > 0 ? sum_ / weight_ : 0; }

 private:
  double sum_ = 0;
  double weight_ = 0;  // of all values added; tends to 1
};

// State of the threads of a job with a Python function at one moment; such a
// job has function workers of its own (function_workers.h).
struct FunctionWorkersUse {
  uint32_t threads = 0;         // 0: it has none
  uint32_t busy = 0;            // on a row
  uint64_t longest_ns = 0;      // time of the row that has taken longest
  uint64_t longest_record = 0;  // its sample
};

// Samples of one job over the last seconds.
class RecentUse {
 public:
  // A rank that is attached.
  struct Rank {
    uint32_t rank = 0;
    uint64_t waits = 0;    // that ended; untrusted
    uint64_t wait_ns = 0;  // total of these
    bool waiting = false;  // now
    // Half steps it has finished with: two for each batch released, one for
    // each taken. None: the ranks need not keep step.
    std::optional<int64_t> progress;
    bool done = false;  // it has taken and released all its data
    // It has batches to take or to release and did neither since the previous
    // sample.
    bool still = false;
    // It has taken or released a batch since the previous sample.
    bool moved = false;
    uint64_t taken = 0;  // batches
  };
  // now_ns: of a steady clock. The counters are totals since the job began.
  // starved: of a stream. filling: a batch is being made.
  void Add(uint64_t now_ns, uint64_t decode_ns, uint64_t read_wait_ns,
           const std::vector<Rank>& ranks, bool starved = false,
           const FunctionWorkersUse& function_workers = {}, bool filling = true,
           uint64_t fetch_wait_ns = 0);

  struct RankUse {
    uint32_t rank = 0;
    double waits = 0;
    double behind = 0;
    double stands_s = 0;
    double batch_s = 0;  // of its own for a batch; 0: not known
    double lag = 0;      // half steps that it has finished fewer
  };
  // Without those that are done.
  std::vector<RankUse> ranks() const;
  double decoding() const { return decoding_.mean(); }
  double storage() const { return storage_.mean(); }
  double network() const { return network_.mean(); }
  double starved() const { return starved_.mean(); }
  // Share of its threads that are busy; and the last sample.
  double function_workers_busy() const { return function_workers_busy_.mean(); }
  const FunctionWorkersUse& function_workers() const {
    return function_workers_;
  }
  double seconds() const { return seconds_; }  // total time sampled
  double all_stand_s() const { return static_cast<double>(stand_ns_) * 1e-9; }

 private:
  struct Seen {
    uint64_t waits = 0;
    uint64_t wait_ns = 0;
    bool waiting = false;
    uint64_t counted_ns = 0;  // part of the current wait that wait_ns lacks
    uint64_t stands_ns = 0;
    uint64_t taken = 0;
    RecentMean waited;
    RecentMean behind;
    RecentMean takes;  // per second
    RecentMean lag;
  };
  std::map<uint32_t, Seen> seen_;  // by rank
  uint64_t checked_ns_ = 0;        // 0: never
  uint64_t decode_ns_ = 0;
  uint64_t read_wait_ns_ = 0;
  uint64_t fetch_wait_ns_ = 0;
  RecentMean decoding_;
  RecentMean storage_;
  RecentMean network_;
  RecentMean starved_;
  RecentMean function_workers_busy_;
  FunctionWorkersUse function_workers_;
  double seconds_ = 0;
  uint64_t stand_ns_ = 0;  // of all ranks
};

// Ranks that a job waits for, by the numbers that people know.
struct AbsentRanks {
  std::vector<uint32_t> to_attach;
  std::vector<uint32_t> to_reconnect;  // after a restart of the broker
  uint32_t replicas = 1;               // processes that are one rank

  bool empty() const { return to_attach.empty() && to_reconnect.empty(); }
};

// Workers' activity for all jobs, as shares of their time.
struct PoolUse {
  uint32_t workers = 1;
  double decoding = 0;
  double storage = 0;
  double idle = 0;  // asleep without a row to make
};

struct Bottleneck {
  enum class What {
    kUnknown,
    kRanks,
    kRank,
    kDecode,
    kStorage,
    kProducers,
    kPython,
    kAbsent,
    kEvicted,
    kNetwork
  };
  What what = What::kUnknown;
  std::optional<uint32_t> rank;  // kRank
  uint32_t replicas = 1;         // processes that are one rank
  AbsentRanks absent;            // kAbsent
  std::vector<int64_t> pids;     // kEvicted: those that are known
  double ranks_wait = 0;         // of the rank that waits most
  double behind = 0;             // kRank: that rank's
  double stands_s = 0;           // likewise
  double batch_s = 0;            // likewise; 0: not known
  double others_batch_s = 0;     // of the other ranks; 0: not known
  double decoding = 0;  // of its function workers' time, else of all workers'
  double storage = 0;   // likewise
  double network = 0;   // likewise; a part of storage
  PoolUse pool;
  double idle = 0;   // of the threads that make its rows
  std::string text;  // for people, with numbers

  static Bottleneck Of(const RecentUse& job, const PoolUse& pool,
                       const AbsentRanks& absent = {});
  // {"what": "ranks", ...}; client/command/README.md has the keys.
  nlohmann::json ToJson() const;
};

}  // namespace penstock
#endif  // BROKER_JOB_BOTTLENECK_H_
