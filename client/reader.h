// One rank's end: attaches to a job and takes its batches. What penstock.h
// offers, in C++, for the C ABI to wrap.
//
// Threads: one thread at a time calls Next; Release and Interrupt any thread.
// Owns one control connection, one wake socket, one cursor page, one mapping.
#ifndef CLIENT_READER_H_
#define CLIENT_READER_H_

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/element_spec.h"
#include "common/layout.h"
#include "common/message.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

struct AttachOptions {
  std::string dataset;           // registered name or spec file
  std::string spec;              // or the text itself
  std::string job;               // "": PENSTOCK_JOB, the launcher's, "default"
  std::string socket;            // "": PENSTOCK_SOCKET, the default
  int64_t rank = -1;             // -1: the launcher's
  int64_t world_size = 0;        // 0: the launcher's
  int64_t local_world_size = 0;  // 0: the launcher's
  double timeout_s = 0;          // 0: none
  bool repeat_first = false;
};

class Reader {
 public:
  // A lease: lives in the reader's table, one per lease number.
  struct Batch {
    Reader* reader = nullptr;
    Cell cell;
    std::atomic<bool> held{false};
  };
  enum class Result { kBatch, kEndOfEpoch, kEndOfData };
  struct Stats {
    uint64_t batches = 0;
    uint64_t rows = 0;
    uint64_t waits = 0;
    uint64_t wait_ns = 0;
  };

  static StatusOr<std::unique_ptr<Reader>> Attach(AttachOptions options);
  ~Reader();

  // timeout_s < 0: for ever; 0: do not wait.
  StatusOr<Result> Next(double timeout_s, Batch** batch);
  static void Release(Batch* batch);
  void Interrupt();

  const int64_t* ids(const Batch& batch) const {
    return view_->ids(batch.cell);
  }
  const std::byte* data(const Batch& batch, uint32_t feature) const {
    return view_->feature(batch.cell, feature);
  }

  double default_timeout_s() const { return timeout_s_; }
  int fileno() const { return wake_.get(); }
  int64_t rank() const { return rank_; }
  int64_t world_size() const { return world_size_; }
  const std::string& job() const { return job_; }
  const ElementSpec& element_spec() const { return element_spec_; }
  uint64_t sample_count() const { return records_; }
  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  uint64_t epochs() const { return epochs_; }
  uint32_t held() const { return held_.load(std::memory_order_relaxed); }
  uint32_t hold_max() const { return hold_; }
  const Stats& stats() const { return stats_; }

 private:
  Reader() = default;
  Status ReadAnswer(Message answer);
  StatusOr<bool> TakeReady(Batch** batch);  // false: nothing is ready
  Status ClosedStatus() const;              // ok: finished
  // Sleeps until something may be ready. False: the deadline passed.
  StatusOr<bool> Sleep(std::optional<std::chrono::steady_clock::time_point>);
  Batch* Lease(const Cell& cell);

  // Fixed after Attach.
  Fd control_;
  Fd wake_;
  Fd interrupt_;  // an eventfd of our own
  OwnedCursor cursor_;
  std::unique_ptr<SegmentView> view_;
  const Ring* ring_ = nullptr;
  ElementSpec element_spec_;
  std::string job_;
  std::string dataset_;
  int64_t rank_ = 0;
  int64_t world_size_ = 1;
  uint64_t records_ = 0;
  uint64_t steps_per_epoch_ = 0;
  uint64_t epochs_ = 0;
  uint32_t hold_ = 0;
  double timeout_s_ = 0;
  std::chrono::nanoseconds spin_{0};
  bool repeat_first_ = false;
  uint64_t fork_generation_ = 0;

  // The consuming thread's.
  bool end_of_epoch_next_ = false;
  bool end_of_data_next_ = false;
  bool ended_ = false;
  std::optional<Cell> repeated_;
  Stats stats_;

  // Any thread's.
  std::atomic<uint32_t> held_{0};
  std::atomic<bool> interrupted_{false};
  std::array<Batch, kLeasesMax> batches_;
};

}  // namespace penstock
#endif  // CLIENT_READER_H_
