// Who is the bottleneck of a job, over the last seconds: its ranks, one of
// them, the decoding, its Python function, the storage or its producers.
//
// Runs on the control thread, which looks at every job as often as it ticks
// (5 times a second); a job's part under the job's mutex. What a rank says of
// itself (its cursor page) is untrusted: a wait that cannot be counts as none,
// or as all of the time.
//
// What is measured
//   waits     share of the time in which a rank stood in `next` beside an empty
//             ring. Only this is the broker's fault.
//   decoding  workers, at a time, that made rows; storage: that waited for
//             reads and had no row to make. Both by wall clock: a worker that
//             the kernel does not let run counts as busy.
//   function_workers      of a job with a Python function, whose rows threads
//   of its own
//             make: how many of them were on a row, at each look. A row that
//             hangs is seen while it does.
//   starved   share of the looks at which a stream had no rows for a batch.
//   behind    share of the looks at which a rank had taken and released less
//             than another. Ranks that wait for each other (all-reduce) are a
//             step apart at most, so a slow one is not told by its position but
//             by being late again and again. One that holds its batch through
//             the all-reduce, and is slow between, is not told from the others:
//             then "ranks" is all that can be said. Of ranks that do not keep
//             step the last is named, also when it is as fast as the others.
//   stands    how long a rank that has batches has neither taken nor released
//             one, and no other with data left has gone on without it: each is
//             ahead of it and waits, or stands still as well. Where ranks do
//             not get the same steps: each stands beside an empty ring, and no
//             batch is being made, or stands still as well. A rank alone just
//             does nothing. It counts from the first look that finds this so,
//             and a look that does not ends it: it does not fade while the
//             rank hangs, whatever became of the others.
//   all stand  how long no rank has taken or released a batch while none was
//             being made that somebody may get, and no stream starved.
//
// The judgement, in this order
//   ranks are absent, and all others stand for longer than kStands, or than
//     kSecondsMin when one of them waits: "absent". It does not matter whether
//     they stand for want of batches (broadcast) or in an all-reduce (split);
//   one stands for longer than kStands: "rank"; several: "ranks";
//   no rank waits for more than kWaits of the time: "rank" when one is behind
//     and no other is, else "ranks";
//   somebody waits, and the stream is starved more often than not: "producers";
//   somebody waits, and a rank that waits for nothing is behind while the
//     workers are idle: "rank" (a broadcast whose slots it holds);
//   else "storage" or "decode", whichever the workers do more; "python" instead
//     of "decode" where they have a Python function to call.
#ifndef BROKER_JOB_BOTTLENECK_H_
#define BROKER_JOB_BOTTLENECK_H_

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

// The mean of what was seen, each second counting for less than the next: that
// of the last few seconds, in O(1) memory.
class RecentMean {
 public:
  static constexpr double kSeconds = 3;  // until it counts for 1/e

  // value held for so many seconds.
  void Add(double value, double seconds);
  double mean() const { return weight_ > 0 ? sum_ / weight_ : 0; }

 private:
  double sum_ = 0;
  double weight_ = 0;  // of all that was added; towards 1
};

// What the threads of a job with a Python function do at one moment; such a job
// has function workers of its own (worker_pool.h).
struct FunctionWorkersUse {
  uint32_t threads = 0;         // 0: it has none
  uint32_t busy = 0;            // on a row
  uint64_t longest_ns = 0;      // of those, the one that takes longest
  uint64_t longest_record = 0;  // its sample
};

// The last seconds of one job.
class RecentUse {
 public:
  // A rank that is attached.
  struct Rank {
    uint32_t rank = 0;
    uint64_t waits = 0;    // ended; untrusted
    uint64_t wait_ns = 0;  // of them
    bool waiting = false;  // now
    // Half steps that it is through with: two for a batch that it released, one
    // for one that it took. None: the ranks are not to keep step.
    std::optional<int64_t> progress;
    bool done = false;  // it has taken and released all of its data
    // It has batches to take or to release, and has done neither since the look
    // before.
    bool still = false;
    // It has taken or released a batch since the look before.
    bool moved = false;
  };
  // now_ns: of a steady clock. The counters are those of the job, from its
  // beginning.
  // starved: of a stream. filling: a batch is being made.
  void Add(uint64_t now_ns, uint64_t decode_ns, uint64_t read_wait_ns,
           const std::vector<Rank>& ranks, bool starved = false,
           const FunctionWorkersUse& function_workers = {},
           bool filling = true);

  struct RankUse {
    uint32_t rank = 0;
    double waits = 0;
    double behind = 0;
    double stands_s = 0;
  };
  // Of those that are not done.
  std::vector<RankUse> ranks() const;
  double decoding() const { return decoding_.mean(); }
  double storage() const { return storage_.mean(); }
  double starved() const { return starved_.mean(); }
  // Share of its threads; and what it did at the last look.
  double function_workers_busy() const { return function_workers_busy_.mean(); }
  const FunctionWorkersUse& function_workers() const {
    return function_workers_;
  }
  double seconds() const { return seconds_; }  // looked at, in all
  double all_stand_s() const { return static_cast<double>(stand_ns_) * 1e-9; }

 private:
  struct Seen {
    uint64_t waits = 0;
    uint64_t wait_ns = 0;
    bool waiting = false;
    uint64_t counted_ns = 0;  // of that wait, which wait_ns does not count yet
    uint64_t stands_ns = 0;
    RecentMean waited;
    RecentMean behind;
  };
  std::map<uint32_t, Seen> seen_;  // by rank
  uint64_t looked_ns_ = 0;         // 0: never
  uint64_t decode_ns_ = 0;
  uint64_t read_wait_ns_ = 0;
  RecentMean decoding_;
  RecentMean storage_;
  RecentMean starved_;
  RecentMean function_workers_busy_;
  FunctionWorkersUse function_workers_;
  double seconds_ = 0;
  uint64_t stand_ns_ = 0;  // all of them
};

// Ranks that a job waits for, numbers as people know them.
struct AbsentRanks {
  std::vector<uint32_t> to_attach;
  std::vector<uint32_t> to_reconnect;  // since the broker was started again

  bool empty() const { return to_attach.empty() && to_reconnect.empty(); }
};

// What the workers did for all jobs, as shares of their time.
struct PoolUse {
  uint32_t workers = 1;
  double decoding = 0;
  double storage = 0;
  double idle = 0;  // asleep: no row to make
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
    kAbsent
  };
  What what = What::kUnknown;
  std::optional<uint32_t> rank;  // kRank
  AbsentRanks absent;            // kAbsent
  double ranks_wait = 0;         // of the rank that waits most
  double behind = 0;             // kRank: its
  double stands_s = 0;           // likewise
  double decoding = 0;  // for this job, of its function workers' time or,
                        // without one, of all workers'
  double storage = 0;   // likewise
  PoolUse pool;
  std::string text;  // for people, with the numbers

  static Bottleneck Of(const RecentUse& job, const PoolUse& pool,
                       const AbsentRanks& absent = {});
  // {"what": "ranks", ...}; client/command/README.md has the keys.
  nlohmann::json ToJson() const;
};

}  // namespace penstock
#endif  // BROKER_JOB_BOTTLENECK_H_
