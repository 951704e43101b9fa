// Which sample each worker decodes at this moment, in a file that outlives the
// broker: how the next one knows what the last one died of.
//
// A picture that crashes its decoder, or hangs it, would end the broker at
// every restart. So a worker writes the sample's name down before it decodes it
// and wipes it out afterwards. A worker that crashes marks its line (a handler
// of the fatal signals), as does who ends a broker that hangs: the sample on it
// is a suspect. After a SIGKILL nobody knows whether a sample made the broker
// grow until the kernel killed it or somebody just killed it: all that was in
// work is suspected, with half the weight. A suspect is decoded alone: no other
// suspect is in work meanwhile. If it decodes, it was innocent and is
// forgotten; after two crashes, or four kills, it is not decoded any more, and
// its row is an error as `on_error` has it.
//
// Who runs it: Open the starting thread; a line is written by its worker and
// read by any thread; the suspects are under one mutex. Invariants:
//   1. Suspects are added by Open only, later they only become fewer.
//   2. At most one suspect is in work at any time.
//   3. A death at any instruction leaves a file that can be read: a suspect is
//      there once its evidence is not 0, a sample is in work while since is
//      not.
//
// Synchronising edges, of one line:
//   E1  Begin's release of dataset, record and job  ->  Oldest's acquire of
//       each: who sees a new name also sees that since was 0 in between, so a
//       name made of two samples is noticed.
//   E2  Begin's release of since  ->  Oldest's acquire: who sees since, sees
//       the name that goes with it.
// To the next broker no edge is needed: the kernel keeps what the dead one had
// stored, in its order.
//
// The file is in memory (memory_folder.h), it survives the process, not the
// machine: a store to a file on a disk waits while its file system is frozen.
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
// ---------------------------------------------------------------
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
  // 1: it crashed or ended itself; who is to blame is known, or it is nobody.
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
  std::atomic<uint64_t> job;       // the worker pool's number, of this life
  std::atomic<uint64_t> since_ns;  // by the pool's clock; 0: nothing in work
  std::atomic<uint64_t> blamed;    // 1: the broker ended of it
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

// With this the broker ends itself when a decoder hangs (EX_SOFTWARE): whoever
// runs it starts it again.
inline constexpr int kStuckExitStatus = 70;

// A sample by what made it: a record and the hash of its dataset's key. Another
// path or another map is another dataset.
struct Sample {
  uint64_t dataset = 0;
  uint64_t record = 0;
  auto operator<=>(const Sample&) const = default;
};

class SampleQuarantine {
 public:
  // What a death is worth against a sample, and from where on it is not decoded
  // any more.
  static constexpr uint64_t kCrash = 2;
  static constexpr uint64_t kKill = 1;
  static constexpr uint64_t kGuilty = 4;
  static constexpr char kFileName[] = "sample_quarantine";

  // FNV-1a.
  static uint64_t DatasetHash(const std::string& dataset_key);

  // Of the file in folder; folder "": of memory that ends with this process. A
  // file that is damaged or somebody else's is renamed to FILE.set_aside, with
  // a warning, and begun anew. Errors: FailedPrecondition (another broker has
  // it), or what the file system says.
  static StatusOr<std::unique_ptr<SampleQuarantine>> Open(
      const std::string& folder);

  // From here to its end the sample is in work on this worker's thread. May
  // wait, for another suspect to be decoded.
  class Mark {
   public:
    // worker < kSampleLines; now_ns is not 0.
    Mark(SampleQuarantine* samples, uint32_t worker, const Sample& sample,
         uint64_t job, uint64_t now_ns);
    ~Mark();
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    // Not OK (DataLoss): it is guilty, and not to be decoded.
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
  // This process ends, of what this thread has in work if anything. Where a
  // signal handler may be: it only stores.
  void BlameThisThread();
  // The same of what worker has in work.
  void Blame(uint32_t worker);

  // What this one is on.
  std::optional<InWork> Of(uint32_t worker) const;
  // What has been in work for the longest time on workers 0 to workers - 1.
  std::optional<InWork> Oldest(uint32_t workers) const;

  // What the death of the last life was charged to. For the thread that called
  // Open.
  struct Charge {
    Sample sample;
    bool is_certain = false;    // it crashed or hung in it; else it was killed
    bool is_condemned = false;  // of this: it is not decoded any more
  };
  // Those of this dataset, once.
  std::vector<Charge> TakeCharges(uint64_t dataset);
  // The death has brought the end of the deaths nearer, which come of samples
  // that crash or hang it: one was found out, each twice at most, or was
  // condemned. Whoever restarts the broker need not count this death.
  bool death_explained() const { return death_explained_; }

  // How many samples are under suspicion; of those, not decoded any more.
  uint32_t suspects() const;
  uint32_t condemned() const;

 private:
  SampleQuarantine(std::string path, Fd fd, Mapping mapping);
  void Accuse();
  // The evidence against it, with this.
  uint64_t Add(const Sample& sample, uint64_t evidence);
  SuspectEntry* Find(const Sample& sample) const;
  // Waits until sample may be decoded; what it is then.
  bool Suspected(const Sample& sample) const;
  uint64_t WaitForTurn(const Sample& sample);
  void EndTurn(const Sample& sample);

  std::atomic<uint64_t>& ended() const;
  SuspectEntry* entries() const;
  SampleLine& line(uint32_t worker) const;

  const std::string path_;  // "" without a file
  const Fd fd_;             // holds the lock
  const Mapping mapping_;

  std::vector<Charge> charges_;  // nobody has asked for them yet
  bool death_explained_ = false;

  // One bit per hash of a suspect, constant after Open: with suspects about,
  // every other sample still passes without a lock. Empty: there were none.
  std::vector<uint64_t> filter_;

  mutable Mutex mutex_;
  CondVar turn_over_;
  bool turn_taken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_SAMPLE_QUARANTINE_H_
