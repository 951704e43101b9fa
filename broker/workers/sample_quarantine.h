// Records which sample each worker is decoding, in a file that outlives the
// broker, so that the next broker instance knows what the last one died of.
//
// An image that crashes or hangs its decoder would end the broker after every
// restart. So a worker writes the sample's name into its line before it decodes
// and clears it afterwards. A crashing worker marks its line (a handler of the
// fatal signals does), and so does the thread that ends a hung broker. A sample
// on a marked line becomes a suspect. After a SIGKILL the cause is unknown: a
// sample may have made the broker grow until the kernel killed it, or not. So
// all samples in work become suspects, with half the weight. Only one suspect
// is decoded at a time. A suspect that decodes is cleared. After two crashes or
// four kills a sample is not decoded any more, and its row is an error handled
// by `on_error`.
//
// Threads: the starting thread calls Open. A line is written by its worker and
// read by any thread. One mutex protects the suspects. Invariants:
//   1. Only Open adds suspects; later their number only falls.
//   2. At most one suspect is in work at any time.
//   3. Death at any instruction leaves a readable file: a suspect exists once
//      its evidence is not 0, a sample is in work while since is not 0.
//
// Synchronising edges, of one line:
//   E1  Mark's release of dataset, record and job  ->  Of's acquire of
//       each: a reader of a new name also sees that since was 0 in between, so
//       it notices a name mixed from two samples.
//   E2  Mark's release of since  ->  Of's acquire: a reader of since sees
//       the name that belongs to it.
// The next broker instance needs no edge: the kernel preserves the dead
// process's stores, in order.
//
// The file is in memory (memory_folder.h) and survives the process, not the
// machine. A store to a file on disk would wait while its file system is
// frozen.
#ifndef BROKER_WORKERS_SAMPLE_QUARANTINE_H_
#define BROKER_WORKERS_SAMPLE_QUARANTINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/base/mutex.h"
#include "common/fd.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

// ---- the file
//
//      0  SamplesHeader, the rest of the page is 0
//   4096  kSuspectsMax times SuspectEntry
//  28672  kSampleLines times SampleLine
// 552960  its end

inline constexpr uint64_t kSamplesMagic = 0x4b524f574b545350;  // "PSTKWORK"
inline constexpr uint32_t kSamplesVersion = 2;
inline constexpr uint32_t kSuspectsMax = 1024;
inline constexpr uint32_t kSampleLines = 8192;  // threads of the worker pool

struct SamplesHeader {
  uint64_t magic;  // written last
  uint32_t version;
  uint32_t lines;
  uint32_t suspects;
  uint32_t reserved;
  uint64_t file_bytes;
  uint64_t boot;  // a hash of the kernel's boot id; 0: not known
  // 1: it crashed or ended itself, and the blamed sample is known or none.
  uint64_t ended;
};

struct SuspectEntry {
  std::atomic<uint64_t> dataset;
  std::atomic<uint64_t> record;
  std::atomic<uint64_t> evidence;  // 0: the entry is free; written last
};

struct alignas(64) SampleLine {
  std::atomic<uint64_t> dataset;
  std::atomic<uint64_t> record;
  std::atomic<uint64_t> job;       // the worker pool's job number
  std::atomic<uint64_t> since_ns;  // by the pool's clock; 0: nothing in work
  std::atomic<uint64_t> blamed;    // 1: the sample ended the broker
};

inline constexpr uint64_t kSuspectsOffset = 4096;
inline constexpr uint64_t kSampleLinesOffset =
    kSuspectsOffset + kSuspectsMax * sizeof(SuspectEntry);
inline constexpr uint64_t kSamplesFileBytes =
    kSampleLinesOffset + kSampleLines * sizeof(SampleLine);
static_assert(sizeof(SamplesHeader) == 48 && sizeof(SuspectEntry) == 24 &&
              sizeof(SampleLine) == 64);
static_assert(kSampleLinesOffset == 28672 && kSamplesFileBytes == 552960);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// ----------------------------------------------------------------------------

// The broker's exit status when a decoder hangs (EX_SOFTWARE). The service
// manager restarts it.
inline constexpr int kStuckExitStatus = 70;

// A record and the hash of its dataset's key. Another path or another map is
// another dataset.
struct Sample {
  uint64_t dataset = 0;
  uint64_t record = 0;
  auto operator<=>(const Sample&) const = default;
};

class SampleQuarantine {
 public:
  // Evidence of one death against a sample; from kGuilty on it is not decoded.
  static constexpr uint64_t kCrash = 2;
  static constexpr uint64_t kKill = 1;
  static constexpr uint64_t kGuilty = 4;
  static constexpr char kFileName[] = "sample_quarantine";

  // FNV-1a.
  static uint64_t DatasetHash(const std::string& dataset_key);

  // Maps the file in folder; folder "": memory that ends with this process. A
  // damaged or foreign file is renamed to FILE.set_aside, with a warning, and
  // replaced. Errors: FailedPrecondition (another broker has it), or the file
  // system's.
  static StatusOr<std::unique_ptr<SampleQuarantine>> Open(
      const std::string& folder);

  // The sample is in work on this worker's thread while its Mark exists. The
  // constructor may wait until another suspect is decoded.
  class Mark {
   public:
    // worker < kSampleLines; now_ns is not 0.
    Mark(SampleQuarantine* samples, uint32_t worker, const Sample& sample,
         uint64_t job, uint64_t now_ns);
    ~Mark();
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    // Not OK (DataLoss): it is guilty and must not be decoded.
    Status status() const;

   private:
    enum class Trust { kFull, kSuspect, kNone };
    SampleQuarantine* const samples_;
    const uint32_t worker_;
    const Sample sample_;
    Trust trust_ = Trust::kFull;
  };

  struct InWork {
    uint32_t worker = 0;
    Sample sample;
    uint64_t job = 0;
    uint64_t since_ns = 0;
  };
  // Blames the end of this process on the sample that this thread has in work,
  // if any. Safe in a signal handler: it only stores.
  void BlameThisThread();
  // Same for the sample that `worker` has in work.
  void Blame(uint32_t worker);

  // The sample in work on this worker.
  std::optional<InWork> Of(uint32_t worker) const;
  // The sample longest in work on workers 0 to workers - 1.
  std::optional<InWork> Oldest(uint32_t workers) const;

  // A sample charged with the death of the last broker instance. For the thread
  // that called Open.
  struct Charge {
    Sample sample;
    bool is_certain = false;    // crashed or hung in it; else killed
    bool is_condemned = false;  // not decoded any more
  };
  // The charges of this dataset, once.
  std::vector<Charge> TakeCharges(uint64_t dataset);
  // The death was progress towards the end of deaths by samples that crash or
  // hang the broker: a sample was identified (at most twice each) or condemned.
  // The service manager need not count this death.
  bool death_explained() const { return death_explained_; }

  // Number of suspects; of those, no longer decoded.
  uint32_t suspects() const;
  uint32_t condemned() const;

 private:
  SampleQuarantine(std::string path, Fd fd, Mapping mapping);
  void Accuse();
  // Returns the total evidence against it.
  uint64_t Add(const Sample& sample, uint64_t evidence);
  SuspectEntry* Find(const Sample& sample) const;
  bool Suspected(const Sample& sample) const;
  // Waits until sample may be decoded; returns the evidence then.
  uint64_t WaitForTurn(const Sample& sample);
  void EndTurn(const Sample& sample);

  std::atomic<uint64_t>& ended() const;
  SuspectEntry* entries() const;
  SampleLine& line(uint32_t worker) const;

  const std::string path_;  // "" without a file
  const Fd fd_;             // holds the lock
  const Mapping mapping_;

  std::vector<Charge> charges_;  // not taken yet
  bool death_explained_ = false;

  // One bit per hash of a suspect, constant after Open, so that other samples
  // pass without a lock. Empty: there were no suspects.
  std::vector<uint64_t> filter_;

  mutable Mutex mutex_;
  CondVar turn_over_;
  bool turn_taken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_SAMPLE_QUARANTINE_H_
