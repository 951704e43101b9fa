#include "broker/recovery/journal_writer.h"

#include <pthread.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "broker/base/boot_id.h"
#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/recovery/memory_folder.h"
#include "common/kill_point.h"

namespace penstock {
namespace {

// Bytes of one write; exceeded only by a single larger record.
constexpr size_t kGroupBytes = 256 * 1024;
// Delay before a refused write is retried.
constexpr std::chrono::seconds kRetryTime{1};

std::string TimeText(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm local = {};
  localtime_r(&seconds, &local);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%F %T", &local)};
}

}  // namespace

JournalWriter::Boot JournalWriter::BootOf(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  try {
    return {json.at("boot").get<std::string>(), json.value("tail", uint64_t{0}),
            json.value("from", uint64_t{0})};
  } catch (const nlohmann::json::exception& error) {
    Log<"record-left-out">(kBootRecord, error.what());
    return {};
  }
}

std::string JournalWriter::BootText(uint64_t token, uint64_t written) const {
  return nlohmann::json(
             {{"boot", boot_.id}, {"tail", token}, {"from", written}})
      .dump();
}

StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Open(
    const std::string& directory,
    const std::function<void(uint8_t type, std::string_view text)>& replay) {
  std::unique_ptr<JournalWriter> writer(new JournalWriter());
  if (directory.empty()) return writer;
  MutexLock lock(&writer->mutex_);
  // Clients, which work in other folders, are told of it.
  std::error_code error;
  writer->directory_ = std::filesystem::absolute(directory, error).string();
  if (error) writer->directory_ = directory;
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<JournalFiles> files,
                            OpenJournalDirectory(writer->directory_));
  JournalReplay replayed;
  PENSTOCK_ASSIGN_OR_RETURN(writer->journal_,
                            Journal::Open(
                                std::move(files), JournalLimits{},
                                [&](uint8_t type, std::string_view text) {
                                  if (type == kBootRecord) {
                                    writer->boot_ = BootOf(text);
                                  } else {
                                    replay(type, text);
                                  }
                                  return OkStatus();
                                },
                                &replayed));
  if (!replayed.warning.empty()) Log<"state-unread">(replayed.warning);
  writer->OpenTail(replay, replayed);
  return writer;
}

void JournalWriter::OpenTail(
    const std::function<void(uint8_t type, std::string_view text)>& replay,
    const JournalReplay& replayed) {
  StatusOr<std::string> folder = OpenMemoryFolder(directory_);
  StatusOr<std::unique_ptr<JournalTail>> tail =
      folder.ok() ? JournalTail::Open(*folder) : folder.status();
  if (tail.ok()) {
    memory_folder_ = *std::move(folder);
  } else {
    Log<"state-in-memory-off">(tail.status().message());
    tail = JournalTail::Open("");
  }
  const std::string boot = BootId();
  incomplete_ = replayed.damaged;
  // After a process death the tail has the unfinished records. A machine death
  // may have lost more.
  if (replayed.unfinished && (boot.empty() || boot != boot_.id)) {
    incomplete_ = true;
  }
  if (!tail.ok()) {
    // As on a full disk: nothing is recorded, jobs go on.
    Log<"state-not-kept">(tail.status().message());
    return;
  }
  tail_ = *std::move(tail);
  if (boot_.token != 0 && boot_.token == tail_->token() &&
      boot_.from >= tail_->begin() && boot_.from <= tail_->end()) {
    uint64_t at = boot_.from;
    for (JournalEntry entry; tail_->Next(&at, &entry);) {
      replay(entry.type, entry.payload);
    }
    const bool all = at == tail_->end() && tail_->lost_ns() == 0;
    incomplete_ = !all || replayed.damaged;
    if (!all) {
      Log<"state-incomplete">();
    }
    tail_->Drop(boot_.from);  // the file has all earlier records
    if (at != tail_->end()) tail_->BeginAnew();
  } else {
    // The death of the machine ended the ranks and the tail too.
    if (boot_.token != 0 &&
        (boot.empty() || boot_.id.empty() || boot == boot_.id)) {
      incomplete_ = true;
      Log<"state-memory-gone">();
    }
    tail_->BeginAnew();
  }
  boot_.id = boot;
  if (incomplete_) NoteLost();  // until a compaction has written this
  // Records count only once the file names this tail.
  refusal_ =
      journal_->Append(kBootRecord, BootText(tail_->token(), tail_->begin()));
  named_ = refusal_.ok();
  refused_ = Clock::now();
}

void JournalWriter::Start(std::function<Snapshot()> snapshot) {
  if (tail_ == nullptr) return;
  snapshot_ = std::move(snapshot);
  thread_ = std::thread([this] { Write(); });
}

JournalWriter::~JournalWriter() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    work_.NotifyOne();
  }
  thread_.join();
  if (tail_->begin() != tail_->end() || tail_->lost_ns() != 0) return;
  // An orderly shutdown leaves nothing in memory.
  if (journal_->Append(kBootRecord, BootText(0, 0)).ok()) {
    tail_->Remove();
    // Fails if the folder has other files.
    if (memory_folder_ != directory_) rmdir(memory_folder_.c_str());
  }
}

// ---- records

bool JournalWriter::PutInTail(const StateRecord& record) {
  KillPoint("journal.begun");
  const bool is_in = tail_->Put(record.type, record.text);
  KillPoint("journal.appended");
  if (std::exchange(idle_, false)) work_.NotifyOne();
  return is_in;
}

Status JournalWriter::PutOrRefuse(const StateRecord& record) {
  if (tail_ == nullptr) return OkStatus();
  MutexLock lock(&mutex_);
  if (!refusal_.ok()) {
    return refusal_.Prepend(Format(
        "the state directory {} takes no records, so this one is refused",
        directory_));
  }
  if (tail_->lost_ns() != 0 || !PutInTail(record)) {
    return UnavailableError(
        "it cannot be recorded: {}; try again when the state directory answers",
        TroubleText());
  }
  return OkStatus();
}

void JournalWriter::Put(const StateRecord& record) {
  if (tail_ == nullptr) return;
  MutexLock lock(&mutex_);
  if (!PutInTail(record)) NoteLost();
}

void JournalWriter::NoteLost() {
  ++losses_;
  tail_->NoteLost(static_cast<uint64_t>(
      std::chrono::nanoseconds(Clock::now().time_since_epoch()).count()));
}

JournalWriter::Moment JournalWriter::Now() const {
  MutexLock lock(&mutex_);
  return {tail_->end(), losses_};
}

// ---- the thread

bool JournalWriter::HasWork() const {
  return check_ || !named_ || tail_->begin() != tail_->end() ||
         tail_->lost_ns() != 0;
}

void JournalWriter::Write() {
  pthread_setname_np(pthread_self(), "journal");
  while (BeginRound()) {
    Status status = WriteTail();
    const StatusOr<bool> compacted = CompactIfWanted();
    if (!compacted.ok()) {
      if (status.ok() && tail_->lost_ns() != 0) {
        status = compacted.status();  // losses remain
      } else if (status.ok()) {
        Log<"state-not-compacted">(compacted.status().message());
      }
    } else if (*compacted) {
      status = OkStatus();  // it wrote everything, including failed records
    }
    if (!EndRound(status)) return;
  }
}

bool JournalWriter::BeginRound() {
  MutexLock lock(&mutex_);
  while (!HasWork() && !stop_) {
    idle_ = true;
    work_.Wait(&mutex_);
  }
  idle_ = false;
  if (!HasWork()) return false;
  // Gathers records that arrive meanwhile.
  if (!stop_ && !flush_) {
    work_.WaitFor(&mutex_, refusal_.ok()
                               ? std::chrono::milliseconds(kGatherTime)
                               : std::chrono::milliseconds(kRetryTime));
  }
  check_ = false;
  call_began_ = Clock::now();
  return true;
}

bool JournalWriter::EndRound(const Status& status) {
  MutexLock lock(&mutex_);
  call_began_.reset();
  if (!status.ok() && refusal_.ok()) refused_ = Clock::now();
  refusal_ = status;
  ++rounds_;
  flush_ = false;
  written_.NotifyAll();
  return status.ok() || !stop_;
}

Status JournalWriter::WriteTail() {
  uint64_t at = tail_->begin();
  const uint64_t to = tail_->end();
  std::vector<JournalEntry> group;
  bool named = false;
  {
    MutexLock lock(&mutex_);
    named = named_;
  }
  for (; at < to || !named; named = true) {
    group.clear();
    for (size_t bytes = 0; at < to && bytes < kGroupBytes;) {
      JournalEntry& entry = group.emplace_back();
      if (!tail_->Next(&at, &entry)) {
        MutexLock lock(&mutex_);
        Log<"state-overwritten">(
            Format("{}/{}", memory_folder_, kJournalTailName));
        NoteLost();
        tail_->Drop(tail_->end());
        return OkStatus();  // a compaction follows
      }
      bytes += entry.payload.size();
    }
    const std::string boot = BootText(tail_->token(), at);
    group.push_back({kBootRecord, boot});
    KillPoint("journal.writing");
    PENSTOCK_RETURN_IF_ERROR(journal_->Append(group));
    KillPoint("journal.written");
    tail_->Drop(at);
    if (named) continue;
    MutexLock lock(&mutex_);
    named_ = true;
  }
  return OkStatus();
}

StatusOr<bool> JournalWriter::CompactIfWanted() {
  if (!journal_->WantsCompaction() && tail_->lost_ns() == 0) return false;
  Moment moment;
  PENSTOCK_RETURN_IF_ERROR(journal_->Compact([&](const JournalRecord& put) {
    const Snapshot snapshot = snapshot_();
    moment = snapshot.moment;
    for (const auto& [type, text] : snapshot.records) {
      PENSTOCK_RETURN_IF_ERROR(put(type, text));
    }
    return put(kBootRecord, BootText(tail_->token(), moment.end));
  }));
  KillPoint("journal.compacted");
  MutexLock lock(&mutex_);
  tail_->Drop(moment.end);
  named_ = true;
  if (losses_ == moment.losses) tail_->NothingIsLost();
  return true;
}

void JournalWriter::Flush() {
  if (tail_ == nullptr) return;
  MutexLock lock(&mutex_);
  check_ = true;
  const uint64_t enough = rounds_ + (call_began_ ? 2 : 1);
  while (rounds_ < enough) {
    flush_ = true;
    work_.NotifyOne();
    written_.Wait(&mutex_);
  }
}

// ---- trouble

JournalWriter::Health JournalWriter::health() const {
  if (tail_ == nullptr) return Health::kWell;
  if (tail_->lost_ns() != 0) return Health::kLoses;
  if (!refusal_.ok()) return Health::kRefuses;
  return call_began_ && Clock::now() - *call_began_ > kSilentTime
             ? Health::kSilent
             : Health::kWell;
}

std::string JournalWriter::TroubleText() const {
  const Health now = health();
  if (now == Health::kWell) return "";
  std::string text;
  if (!refusal_.ok()) {
    text = Format("since {}: {}", TimeText(refused_), refusal_.message());
  } else if (call_began_) {
    text = Format("the state directory {} has not answered since {}",
                  directory_, TimeText(*call_began_));
  } else {
    text = Format("the state directory {} is being written anew", directory_);
  }
  if (now != Health::kSilent) {
    text +=
        "; until it is written again, new ranks and registrations are refused";
  }
  if (now == Health::kLoses) {
    return text +
           Format(
               "; records are lost since {}: a broker that has to be started "
               "now marks as redelivered what may come twice, and ends streams",
               TimeText(Clock::time_point(
                   std::chrono::duration_cast<Clock::duration>(
                       std::chrono::nanoseconds(tail_->lost_ns())))));
  }
  return text + Format("; what running jobs do is kept in memory, {} of {}, {}",
                       BytesText(tail_->end() - tail_->begin()),
                       BytesText(kTailBytes),
                       memory_folder_.empty()
                           ? "which ends with this process"
                           : "and known to the next broker unless the machine "
                             "goes down");
}

std::string JournalWriter::Trouble() const {
  MutexLock lock(&mutex_);
  return TroubleText();
}

void JournalWriter::Tick() {
  MutexLock lock(&mutex_);
  const Health now = health();
  if (now == reported_) return;
  reported_ = now;
  if (now == Health::kWell) {
    Log<"state-well">(directory_);
  } else {
    Log<"state-trouble">(TroubleText());
  }
}

bool JournalWriter::WantsTick() const {
  MutexLock lock(&mutex_);
  return reported_ != Health::kWell || !refusal_.ok() || call_began_ ||
         (tail_ != nullptr && tail_->begin() != tail_->end());
}

}  // namespace penstock
