#include "broker/workers/sample_quarantine.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <chrono>
#include <cstring>
#include <set>

#include "broker/base/boot_id.h"
#include "broker/base/log.h"
#include "common/hash.h"

namespace penstock {
namespace {

// 1,024 suspects set 1.6 % of them.
constexpr uint64_t kFilterBits = 65536;
// Each broker instance counts one death; more evidence than this is damage.
constexpr uint64_t kEvidencePlausible = 1'000'000;

// The line of this thread's sample in work.
thread_local constinit SampleLine* in_work_here = nullptr;

uint64_t FilterBit(const Sample& sample) {
  // Fibonacci hashing: the top bits depend on all of both.
  return ((sample.dataset ^ sample.record) * kGolden64) >> 48;
}
static_assert(kFilterBits == uint64_t{1} << (64 - 48));

uint64_t BootHash() {
  const std::string id = BootId();
  return id.empty() ? 0 : Fnv1a(id);
}

// "" if the file is a valid quarantine file, otherwise the reason.
std::string WhyForeign(int fd) {
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return "not a regular file";
  if (static_cast<uint64_t>(st.st_size) != kSamplesFileBytes) {
    return Format("{} bytes long, not {}", st.st_size, kSamplesFileBytes);
  }
  // Copied once, so that the checked values are those used.
  SamplesHeader header;
  if (pread(fd, &header, sizeof(header), 0) != sizeof(header)) {
    return "not readable";
  }
  if (header.magic != kSamplesMagic) return "without its magic number";
  if (header.version != kSamplesVersion) {
    return Format("of version {}, not {}", header.version, kSamplesVersion);
  }
  if (header.lines != kSampleLines || header.suspects != kSuspectsMax ||
      header.reserved != 0 || header.file_bytes != kSamplesFileBytes) {
    return "contradicting itself";
  }
  std::vector<uint64_t> entries(kSuspectsMax * sizeof(SuspectEntry) /
                                sizeof(uint64_t));
  const size_t bytes = entries.size() * sizeof(uint64_t);
  if (pread(fd, entries.data(), bytes, kSuspectsOffset) !=
      static_cast<ssize_t>(bytes)) {
    return "not readable";
  }
  for (size_t i = 2; i < entries.size(); i += 3) {
    if (entries[i] > kEvidencePlausible) return "contradicting itself";
  }
  return "";
}

// Allocates space now: a store to a page without space raises SIGBUS.
Status MakeFile(int fd) {
  // Returns the error. Emulated by writes if the file system cannot do it.
  const int error = posix_fallocate(fd, 0, kSamplesFileBytes);
  return error == 0 ? OkStatus()
                    : ErrnoError(error, Format("make it {} bytes long",
                                               kSamplesFileBytes));
}

void WriteHeader(const Mapping& mapping) {
  SamplesHeader header = {};
  header.version = kSamplesVersion;
  header.lines = kSampleLines;
  header.suspects = kSuspectsMax;
  header.file_bytes = kSamplesFileBytes;
  header.boot = BootHash();
  std::memcpy(mapping.data(), &header, sizeof(header));
  // Release: a death in between leaves a file without the magic number.
  reinterpret_cast<std::atomic<uint64_t>*>(mapping.data())
      ->store(kSamplesMagic, std::memory_order_release);
}

StatusOr<Fd> OpenAndLock(const std::string& path) {
  // NONBLOCK: the open of a FIFO would wait for its writer.
  Fd fd(open(path.c_str(),
             O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
             0600));
  if (!fd) return ErrnoError(errno, "open");
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return FailedPreconditionError("another broker uses it");
    }
    return ErrnoError(errno, "lock");
  }
  return fd;
}

}  // namespace

uint64_t SampleQuarantine::DatasetHash(const std::string& dataset_key) {
  return Fnv1a(dataset_key);
}

StatusOr<std::unique_ptr<SampleQuarantine>> SampleQuarantine::Open(
    const std::string& folder) {
  const std::string path =
      folder.empty() ? "" : Format("{}/{}", folder, kFileName);
  const std::string name = path.empty() ? "memory for samples in work" : path;
  const auto open_checked = [&]() -> StatusOr<Fd> {
    if (path.empty()) {
      Fd fd(memfd_create("penstock samples in work", MFD_CLOEXEC));
      if (!fd) return ErrnoError(errno, "memfd_create");
      PENSTOCK_RETURN_IF_ERROR(MakeFile(fd.get()));
      return fd;
    }
    // The second iteration opens the created file.
    for (int round = 0;; ++round) {
      PENSTOCK_ASSIGN_OR_RETURN(Fd fd, OpenAndLock(path));
      struct stat st;
      if (fstat(fd.get(), &st) != 0) return ErrnoError(errno, "fstat");
      if (S_ISREG(st.st_mode) && st.st_size == 0) {
        PENSTOCK_RETURN_IF_ERROR(MakeFile(fd.get()));
        return fd;
      }
      const std::string why = WhyForeign(fd.get());
      if (why.empty()) return fd;
      if (round > 0) return InternalError("it is {}", why);
      const std::string aside = path + ".set_aside";
      if (rename(path.c_str(), aside.c_str()) != 0) {
        return ErrnoError(errno, "rename to " + aside);
      }
      Log<"samples-forgotten">(path, why, aside);
    }
  };
  StatusOr<Fd> fd = open_checked();
  if (!fd.ok()) return fd.status().Prepend(name);
  auto mapping = Mapping::Map(fd->get(), kSamplesFileBytes, true);
  if (!mapping.ok()) return mapping.status().Prepend(name);
  std::unique_ptr<SampleQuarantine> samples(
      new SampleQuarantine(path, *std::move(fd), *std::move(mapping)));
  samples->Accuse();
  return samples;
}

SampleQuarantine::SampleQuarantine(std::string path, Fd fd, Mapping mapping)
    : path_(std::move(path)),
      fd_(std::move(fd)),
      mapping_(std::move(mapping)) {}

std::atomic<uint64_t>& SampleQuarantine::ended() const {
  return *reinterpret_cast<std::atomic<uint64_t>*>(
      mapping_.data() + offsetof(SamplesHeader, ended));
}

SuspectEntry* SampleQuarantine::entries() const {
  return reinterpret_cast<SuspectEntry*>(mapping_.data() + kSuspectsOffset);
}

SampleLine& SampleQuarantine::line(uint32_t worker) const {
  assert(worker < kSampleLines);
  return reinterpret_cast<SampleLine*>(mapping_.data() +
                                       kSampleLinesOffset)[worker];
}

// Starting thread only. All accesses are relaxed: no other thread knows this
// object yet, and the process that wrote the file is dead.
void SampleQuarantine::Accuse() {
  uint64_t boot = 0;
  std::memcpy(&boot, mapping_.data() + offsetof(SamplesHeader, boot),
              sizeof(boot));
  const uint64_t boot_now = BootHash();
  // A machine that went down is no evidence against a sample.
  const bool same_boot = boot == boot_now || boot == 0 || boot_now == 0;
  const bool is_known = ended().load(std::memory_order_relaxed) != 0;
  // Two jobs may have decoded the same sample: one death counts once.
  std::set<Sample> accused;
  for (uint32_t worker = 0; worker < kSampleLines; ++worker) {
    SampleLine& at = line(worker);
    if (at.since_ns.load(std::memory_order_relaxed) == 0) continue;
    const Sample sample{at.dataset.load(std::memory_order_relaxed),
                        at.record.load(std::memory_order_relaxed)};
    // Clears the line first: if this process dies here, too few samples are
    // accused, but none twice.
    at.since_ns.store(0, std::memory_order_relaxed);
    const bool blamed = at.blamed.exchange(0, std::memory_order_relaxed) != 0;
    if (same_boot && (blamed || !is_known) && accused.insert(sample).second) {
      const uint64_t evidence = Add(sample, blamed ? kCrash : kKill);
      charges_.push_back({sample, blamed, evidence >= kGuilty});
      death_explained_ |= blamed || evidence >= kGuilty;
    }
  }
  WriteHeader(mapping_);
  if (const uint32_t count = suspects(); count > 0) {
    filter_.assign(kFilterBits / 64, 0);
    for (uint32_t i = 0; i < kSuspectsMax; ++i) {
      const SuspectEntry& entry = entries()[i];
      if (entry.evidence.load(std::memory_order_relaxed) == 0) continue;
      const uint64_t bit =
          FilterBit({entry.dataset.load(std::memory_order_relaxed),
                     entry.record.load(std::memory_order_relaxed)});
      filter_[bit / 64] |= uint64_t{1} << (bit % 64);
    }
    Log<"samples-suspected">(accused.size(), count, condemned(), path_);
  }
}

uint64_t SampleQuarantine::Add(const Sample& sample, uint64_t evidence) {
  SuspectEntry* entry = Find(sample);
  if (entry != nullptr) {
    // Relaxed, as in Accuse.
    evidence += entry->evidence.load(std::memory_order_relaxed);
    entry->evidence.store(evidence, std::memory_order_relaxed);
    return evidence;
  }
  // Takes a free entry, otherwise the one with the least evidence. A suspect
  // that is guilty will be met again; a condemned one must not be forgotten.
  for (uint64_t least = 0; least < kGuilty; ++least) {
    for (uint32_t i = 0; i < kSuspectsMax; ++i) {
      entry = &entries()[i];
      if (entry->evidence.load(std::memory_order_relaxed) != least) continue;
      entry->evidence.store(0, std::memory_order_relaxed);
      entry->dataset.store(sample.dataset, std::memory_order_release);
      entry->record.store(sample.record, std::memory_order_release);
      // Release, as the two above, only for the order of stores at a death
      // (invariant 3).
      entry->evidence.store(evidence, std::memory_order_release);
      return evidence;
    }
  }
  Log<"samples-full">(path_, kSuspectsMax);
  return 0;
}

std::vector<SampleQuarantine::Charge> SampleQuarantine::TakeCharges(
    uint64_t dataset) {
  std::vector<Charge> taken;
  std::erase_if(charges_, [&](const Charge& charge) {
    if (charge.sample.dataset != dataset) return false;
    taken.push_back(charge);
    return true;
  });
  return taken;
}

SuspectEntry* SampleQuarantine::Find(const Sample& sample) const {
  for (uint32_t i = 0; i < kSuspectsMax; ++i) {
    SuspectEntry& entry = entries()[i];
    // Relaxed: under the mutex, or in Accuse.
    if (entry.evidence.load(std::memory_order_relaxed) != 0 &&
        entry.dataset.load(std::memory_order_relaxed) == sample.dataset &&
        entry.record.load(std::memory_order_relaxed) == sample.record) {
      return &entry;
    }
  }
  return nullptr;
}

bool SampleQuarantine::Suspected(const Sample& sample) const {
  if (filter_.empty()) return false;
  const uint64_t bit = FilterBit(sample);
  return (filter_[bit / 64] >> (bit % 64) & 1) != 0;
}

// Returns the evidence. 0: no suspect; below kGuilty: its turn has begun.
uint64_t SampleQuarantine::WaitForTurn(const Sample& sample) {
  MutexLock lock(&mutex_);
  for (;;) {
    // Repeated after each turn: another job may have decoded this sample.
    const SuspectEntry* entry = Find(sample);
    if (entry == nullptr) return 0;
    const uint64_t evidence = entry->evidence.load(std::memory_order_relaxed);
    if (evidence >= kGuilty) return evidence;
    if (!turn_taken_) {
      turn_taken_ = true;
      return evidence;
    }
    turn_over_.Wait(&mutex_);
  }
}

void SampleQuarantine::EndTurn(const Sample& sample) {
  MutexLock lock(&mutex_);
  // Relaxed: under the mutex.
  if (SuspectEntry* entry = Find(sample); entry != nullptr) {
    entry->evidence.store(0, std::memory_order_relaxed);
  }
  turn_taken_ = false;
  turn_over_.NotifyAll();
}

SampleQuarantine::Mark::Mark(SampleQuarantine* samples, uint32_t worker,
                             const Sample& sample, uint64_t job,
                             uint64_t now_ns)
    : samples_(samples), worker_(worker), sample_(sample) {
  assert(now_ns != 0);
  if (samples_->Suspected(sample)) {
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t evidence = samples_->WaitForTurn(sample);
    // The wait for other suspects is not the sample's time.
    now_ns += static_cast<uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin)
            .count());
    if (evidence >= kGuilty) {
      trust_ = Trust::kNone;
      return;
    }
    if (evidence > 0) trust_ = Trust::kSuspect;
  }
  // ~Mark set since_ns to 0. Decoding calls virtual functions in other files,
  // so no compiler moves it above these stores, and a processor completes
  // stores before a later fault.
  SampleLine& line = samples_->line(worker);
  line.dataset.store(sample.dataset, std::memory_order_release);  // E1
  line.record.store(sample.record, std::memory_order_release);    // E1
  line.job.store(job, std::memory_order_release);                 // E1
  line.since_ns.store(now_ns, std::memory_order_release);         // E2
  in_work_here = &line;
}

SampleQuarantine::Mark::~Mark() {
  if (trust_ == Trust::kNone) return;
  in_work_here = nullptr;
  // Release: not before the decoding has ended.
  samples_->line(worker_).since_ns.store(0, std::memory_order_release);
  if (trust_ == Trust::kSuspect) samples_->EndTurn(sample_);
}

Status SampleQuarantine::Mark::status() const {
  if (trust_ != Trust::kNone) return OkStatus();
  return DataLossError(
      "its decoding ended the broker again and again (crash or hang), so it is "
      "not decoded any more; to have it tried again, stop the broker and "
      "remove {}",
      samples_->path_);
}

// Relaxed, both: read by the next process.
void SampleQuarantine::BlameThisThread() {
  if (in_work_here != nullptr) {
    in_work_here->blamed.store(1, std::memory_order_relaxed);
  }
  ended().store(1, std::memory_order_relaxed);
}

void SampleQuarantine::Blame(uint32_t worker) {
  line(worker).blamed.store(1, std::memory_order_relaxed);
  ended().store(1, std::memory_order_relaxed);
}

std::optional<SampleQuarantine::InWork> SampleQuarantine::Of(
    uint32_t worker) const {
  const SampleLine& at = line(worker);
  InWork found;
  found.worker = worker;
  found.since_ns = at.since_ns.load(std::memory_order_acquire);       // E2
  found.sample.dataset = at.dataset.load(std::memory_order_acquire);  // E1
  found.sample.record = at.record.load(std::memory_order_acquire);    // E1
  found.job = at.job.load(std::memory_order_acquire);                 // E1
  // Relaxed: if any value above is of a later sample, E1 makes the change of
  // since_ns visible here. (Samples of one tick share since_ns; then this one
  // is not old.)
  if (found.since_ns == 0 ||
      at.since_ns.load(std::memory_order_relaxed) != found.since_ns) {
    return std::nullopt;
  }
  return found;
}

std::optional<SampleQuarantine::InWork> SampleQuarantine::Oldest(
    uint32_t workers) const {
  std::optional<InWork> oldest;
  for (uint32_t worker = 0; worker < workers; ++worker) {
    const std::optional<InWork> found = Of(worker);
    if (!found) continue;
    if (!oldest || found->since_ns < oldest->since_ns) oldest = found;
  }
  return oldest;
}

uint32_t SampleQuarantine::suspects() const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < kSuspectsMax; ++i) {
    // Relaxed: a number to show.
    if (entries()[i].evidence.load(std::memory_order_relaxed) > 0) ++count;
  }
  return count;
}

uint32_t SampleQuarantine::condemned() const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < kSuspectsMax; ++i) {
    // Relaxed, as above.
    if (entries()[i].evidence.load(std::memory_order_relaxed) >= kGuilty) {
      ++count;
    }
  }
  return count;
}

}  // namespace penstock
