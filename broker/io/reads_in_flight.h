// The unanswered reads of one worker, visible to other threads: the control
// thread, which ends a job whose read is late, and `penstock status`. The
// worker itself may be stuck in such a read.
//
// Threads: one worker writes, any thread reads. Cost: four stores per read.
// Bound: a fixed number of entries, one per ticket.
//
// Synchronizing edges, per entry:
//   E1  Start's release of job and record -> List's acquire of each: a reader
//       that sees a new read's values also sees that since was 0 in between.
//   E2  Start's release of since -> List's acquire: a reader that sees since
//       sees the job and record that go with it, and no waited_until older than
//       the one the previous read left, which is before since.
#ifndef BROKER_IO_READS_IN_FLIGHT_H_
#define BROKER_IO_READS_IN_FLIGHT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace penstock {

class ReadsInFlight {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit ReadsInFlight(uint32_t entries) : entries_(entries) {}

  // ---- called by the worker ------------------------------------------------

  // Starts a read of record for job (the pool's number); now_ns is not 0.
  void Start(uint32_t entry, uint64_t job, uint64_t record, uint64_t now_ns) {
    Entry& mine = entries_[entry];
    // since_ns is 0 here, from End.
    mine.job.store(job, std::memory_order_release);          // E1
    mine.record.store(record, std::memory_order_release);    // E1
    mine.since_ns.store(now_ns, std::memory_order_release);  // E2
    Add(started_, 1);
  }
  void End(uint32_t entry) {
    // Relaxed: listing the read a moment longer is harmless; E1 orders this
    // before the next read.
    entries_[entry].since_ns.store(0, std::memory_order_relaxed);
    Add(ended_, 1);
  }
  // The worker has just checked: the read has not arrived.
  void StillWaiting(uint32_t entry, uint64_t now_ns) {
    // Relaxed: only compared with since_ns; an older value makes the read look
    // younger.
    entries_[entry].waited_until_ns.store(now_ns, std::memory_order_relaxed);
  }
  // Sums of this worker, the only writer. Relaxed: only compared with their
  // former values.
  void CountBytes(uint64_t bytes) { Add(bytes_, bytes); }
  void CountWait(uint64_t ns) { Add(waited_ns_, ns); }
  // The entry whose plain system calls the worker is in, or kNone.
  std::atomic<uint32_t>* blocked_on() { return &blocked_on_; }

  // ---- called by any thread ------------------------------------------------

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // Time in which the worker could only wait.
  uint64_t waited_ns() const {
    return waited_ns_.load(std::memory_order_relaxed);
  }

  // Reads that ended, and those in flight now, about.
  uint64_t ended() const { return ended_.load(std::memory_order_relaxed); }
  uint64_t in_flight() const {
    const uint64_t ended = this->ended();
    return std::max(started_.load(std::memory_order_relaxed), ended) - ended;
  }

  struct Late {
    uint64_t job = 0;
    uint64_t record = 0;
    uint64_t ns = 0;       // time in flight, at least
    bool blocked = false;  // its worker is in the system call
  };
  // Appends the reads that have taken at least_ns. A busy worker does not see
  // arrivals, so a read's time ends when the worker last checked for it: slow
  // decoding does not look like slow storage. For a worker blocked in one read,
  // which cannot check, that read's time runs on.
  void List(uint64_t now_ns, uint64_t at_least_ns,
            std::vector<Late>* late) const {
    // Relaxed: as in blocked_on()'s writer.
    const uint32_t blocked_on = blocked_on_.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      const uint64_t since_ns =
          entry.since_ns.load(std::memory_order_acquire);  // E2
      // Relaxed: as in StillWaiting.
      const uint64_t until_ns =
          i == blocked_on
              ? now_ns
              : entry.waited_until_ns.load(std::memory_order_relaxed);
      if (since_ns == 0 || until_ns < since_ns ||
          until_ns - since_ns < at_least_ns) {
        continue;
      }
      const Late found{entry.job.load(std::memory_order_acquire),     // E1
                       entry.record.load(std::memory_order_acquire),  // E1
                       until_ns - since_ns, i == blocked_on};
      // Relaxed: after E1, this detects a job or record of another read.
      if (entry.since_ns.load(std::memory_order_relaxed) == since_ns) {
        late->push_back(found);
      }
    }
  }

 private:
  struct Entry {
    std::atomic<uint64_t> job{0};
    std::atomic<uint64_t> record{0};
    std::atomic<uint64_t> since_ns{0};  // 0: none is in flight
    std::atomic<uint64_t> waited_until_ns{0};
  };
  static void Add(std::atomic<uint64_t>& sum, uint64_t value) {
    sum.store(sum.load(std::memory_order_relaxed) + value,
              std::memory_order_relaxed);
  }
  std::vector<Entry> entries_;
  std::atomic<uint32_t> blocked_on_{kNone};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> waited_ns_{0};
  std::atomic<uint64_t> started_{0};
  std::atomic<uint64_t> ended_{0};
};

}  // namespace penstock
#endif  // BROKER_IO_READS_IN_FLIGHT_H_
