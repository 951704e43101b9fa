#include "broker/recovery/recovery_journal.h"

#include <poll.h>
#include <pthread.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "broker/base/boot_id.h"
#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/recovery/memory_folder.h"
#include "common/kill_point.h"
#include "common/segment.h"

namespace penstock {
namespace {

using nlohmann::json;

enum Type : uint8_t {
  kDataset = 1,
  kJob = 2,
  kJobEnd = 3,
  kRank = 4,
  kRankEnd = 5,
  kCompleted = 6,
  kOpened = 7,
  kHandedOver = 8,
  kPhase = 9,
  kRankLeft = 10,
  kDatasetGone = 11,
  kStream = 12,  // a ledger; its chunks follow as kRowsKept
  kRowsKept = 13,
  kProducer = 14,
  kRowsPut = 15,
  kProducerEnd = 16,
  kRowsReleased = 17,
  kRetained = 18,
  kRowsMoved = 19,
  // The writer's boot id, and the tail and position where later records begin.
  // The last record of each write.
  kBoot = 20,
  kDelivered = 21,  // an EndedJob
  kLaunch = 22,     // of a job, from a compacted journal
  kMapped = 23,     // a FormerMapping
  kUnmapped = 24,
};

// In kRowsKept; far below the record size limit.
constexpr size_t kRunsPerRecord = 4096;
// Bytes of one write; exceeded only by a single larger record.
constexpr size_t kGroupBytes = 256 * 1024;
// Delay before a refused write is retried.
constexpr std::chrono::seconds kRetryTime{1};

std::string CursorName(uint64_t job, uint64_t attach) {
  return Format("cursor-{}-{}", job, attach);
}
std::string PidfdName(uint64_t job, uint64_t attach) {
  return Format("pidfd-{}-{}", job, attach);
}

std::string MemoryName(uint64_t job, uint32_t producer) {
  return Format("producer-{}-{}", job, producer);
}
std::string ProducerPidfdName(uint64_t job, uint32_t producer) {
  return Format("producerpid-{}-{}", job, producer);
}

// FDPOLL=0: otherwise the store drops a pidfd when its process ends, which the
// next broker instance has to see.
void Store(const std::string& name, int fd) {
  if (fd < 0) return;
  const std::string text = Format("FDSTORE=1\nFDPOLL=0\nFDNAME={}", name);
  sd_pid_notify_with_fds(0, 0, text.c_str(), &fd, 1);
}

void Unstore(const std::string& name) {
  sd_notify(0, Format("FDSTOREREMOVE=1\nFDNAME={}", name).c_str());
}

void UnstoreProducer(uint64_t job, uint32_t producer) {
  Unstore(MemoryName(job, producer));
  Unstore(ProducerPidfdName(job, producer));
}

std::string TimeText(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm local = {};
  localtime_r(&seconds, &local);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%F %T", &local)};
}

template <typename E, size_t N>
E ChoiceOf(const json& value, const std::array<std::string_view, N>& names) {
  const auto found =
      std::find(names.begin(), names.end(), value.get<std::string>());
  if (found == names.end()) throw std::runtime_error("an unknown word");
  return static_cast<E>(found - names.begin());
}

json StartToJson(const PlanStart& start) {
  json owed = json::array();
  for (const RowRange& range : start.owed) {
    owed.push_back({range.position, range.rows, range.redelivered});
  }
  return {{"position", start.position}, {"owed", std::move(owed)}};
}

PlanStart StartFromJson(const json& json) {
  PlanStart start;
  start.position = json.at("position").get<uint64_t>();
  for (const auto& each : json.at("owed")) {
    start.owed.push_back({each.at(0).get<uint64_t>(),
                          each.at(1).get<uint64_t>(), each.at(2).get<bool>()});
  }
  return start;
}

json KeyToJson(uint64_t id, const JobKey& key, const Incarnation& incarnation) {
  json record = {{"id", id},
                 {"uid", key.uid},
                 {"name", key.name},
                 {"dataset", key.dataset},
                 {"incarnation", incarnation.number},
                 {"token", incarnation.token}};
  if (key.consumer) record["consumer"] = *key.consumer;
  return record;
}

JobKey KeyFromJson(const json& record) {
  JobKey key;
  key.uid = record.at("uid").get<uint32_t>();
  key.name = record.at("name").get<std::string>();
  key.dataset = record.at("dataset").get<std::string>();
  if (record.contains("consumer")) {
    key.consumer = record["consumer"].get<uint32_t>();
  }
  return key;
}

Incarnation IncarnationFromJson(const json& record) {
  return {record.at("incarnation").get<uint64_t>(),
          record.at("token").get<uint64_t>()};
}

json EndedToJson(const EndedJob& job) {
  json record = KeyToJson(job.id, job.key, job.incarnation);
  record["launch"] = job.launch.ToJson();
  record["agreement"] = job.agreement;
  record["ended_s"] = std::chrono::duration_cast<std::chrono::seconds>(
                          job.ended.time_since_epoch())
                          .count();
  return record;
}

EndedJob EndedFromJson(const json& record) {
  EndedJob job;
  job.id = record.at("id").get<uint64_t>();
  job.key = KeyFromJson(record);
  job.incarnation = IncarnationFromJson(record);
  job.launch = Launch::FromJson(record.at("launch"));
  job.agreement = record.at("agreement").get<uint32_t>();
  job.ended = std::chrono::system_clock::time_point(
      std::chrono::seconds(record.at("ended_s").get<int64_t>()));
  return job;
}

StatusOr<FormerJob> JobFromJson(const json& record) {
  FormerJob job;
  job.id = record.at("id").get<uint64_t>();
  job.key = KeyFromJson(record);
  job.options.consumer = job.key.consumer.value_or(0);
  PENSTOCK_ASSIGN_OR_RETURN(
      job.options.spec,
      ParseDatasetSpec(record.at("spec").get<std::string>(), "journal", "/"));
  job.options.world_size = record.at("world_size").get<uint32_t>();
  job.options.local_world_size = record.at("local_world_size").get<uint32_t>();
  job.options.repeat_first = record.at("repeat_first").get<bool>();
  job.options.consumers_max = record.at("consumers_max").get<uint32_t>();
  DeliveryOptions& delivery = job.options.delivery;
  delivery.mode =
      ChoiceOf<DeliveryMode>(record.at("delivery"), kDeliveryModeNames);
  delivery.lag = ChoiceOf<Lag>(record.at("lag"), kLagNames);
  delivery.window = record.at("window").get<uint32_t>();
  delivery.on_rank_death =
      ChoiceOf<OnRankDeath>(record.at("on_rank_death"), kOnRankDeathNames);
  job.options.wait_s = record.at("wait_s").get<double>();
  if (record.contains("start")) {
    PENSTOCK_ASSIGN_OR_RETURN(job.options.start,
                              JobStateFromJson(record["start"]));
  }
  job.incarnation = IncarnationFromJson(record);
  job.named = record.at("named").get<bool>();
  return job;
}

}  // namespace

json JobOptionsToJson(const JobOptions& options) {
  const DeliveryOptions& delivery = options.delivery;
  json record = {
      {"spec", DatasetSpecToJson(options.spec).dump()},
      {"world_size", options.world_size},
      {"local_world_size", options.local_world_size},
      {"repeat_first", options.repeat_first},
      {"consumers_max", options.consumers_max},
      {"delivery", kDeliveryModeNames[static_cast<size_t>(delivery.mode)]},
      {"lag", kLagNames[static_cast<size_t>(delivery.lag)]},
      {"window", delivery.window},
      {"on_rank_death",
       kOnRankDeathNames[static_cast<size_t>(delivery.on_rank_death)]},
      {"wait_s", options.wait_s}};
  if (options.start) record["start"] = JobStateToJson(*options.start);
  return record;
}

uint32_t AgreementDigest(const JobOptions& options) {
  json agreement = JobOptionsToJson(options);
  agreement.erase("wait_s");
  const std::string text = agreement.dump();
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

pid_t PidOf(int pidfd) {
  std::ifstream info(Format("/proc/self/fdinfo/{}", pidfd));
  for (std::string line; std::getline(info, line);) {
    pid_t pid = 0;
    if (std::sscanf(line.c_str(), "Pid: %d", &pid) == 1) return pid;
  }
  return 0;
}

namespace {

// Written by a rank: any other value is treated as kAnswered.
RankStage StageOf(const CursorPage& page) {
  return static_cast<RankStage>(page.stage.load(std::memory_order_relaxed));
}

}  // namespace

std::optional<bool> FormerRank::LeftUnheard() const {
  // An evicted process detaches when told of its eviction; its rank remains.
  if (left || evicted || page == nullptr) return std::nullopt;
  const RankStage stage = StageOf(*page);
  if (stage != RankStage::kLeft && stage != RankStage::kFinished) {
    return std::nullopt;
  }
  return stage == RankStage::kFinished;
}

bool FormerRank::MayLive() const {
  if (left || evicted) return false;
  if (pidfd == nullptr) return true;
  pollfd entry{pidfd->get(), POLLIN, 0};
  return poll(&entry, 1, 0) != 1;
}

bool FormerRank::WasNotAnswered(int other) const {
  if (page == nullptr || pidfd == nullptr ||
      StageOf(*page) != RankStage::kAsks) {
    return false;
  }
  const pid_t pid = PidOf(pidfd->get());
  return pid > 0 && pid == PidOf(other);
}

StatusOr<std::unique_ptr<RecoveryJournal>> RecoveryJournal::Open(
    const std::string& directory, std::vector<StoredFd> stored) {
  std::unique_ptr<RecoveryJournal> life(new RecoveryJournal());
  MutexLock lock(&life->mutex_);
  if (!directory.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<JournalFiles> files,
                              OpenJournalDirectory(directory));
    JournalReplay replayed;
    PENSTOCK_ASSIGN_OR_RETURN(life->journal_,
                              Journal::Open(
                                  std::move(files), JournalLimits{},
                                  [&](uint8_t type, std::string_view payload) {
                                    life->mutex_.AssertHeld();
                                    return life->Replay(type, payload);
                                  },
                                  &replayed));
    if (!replayed.warning.empty()) LogWarning("{}", replayed.warning);
    life->OpenTail(directory, replayed);
  }
  for (StoredFd& each : stored) {
    // The names of stored but unrecorded attaches are not reused.
    const std::string number = each.name.rfind("producer", 0) == 0
                                   ? ""
                                   : each.name.substr(each.name.rfind('-') + 1);
    life->next_id_ = std::max<uint64_t>(
        life->next_id_, std::strtoull(number.c_str(), nullptr, 10) + 1);
    life->stored_[each.name] = std::move(each.fd);
  }
  if (life->tail_ != nullptr) {
    life->writer_ = std::thread([writer = life.get()] { writer->Write(); });
  }
  return life;
}

// Replays what the former broker instance had not written, and prepares the
// tail for this one.
void RecoveryJournal::OpenTail(const std::string& directory,
                               const JournalReplay& replayed) {
  directory_ = directory;
  StatusOr<std::string> folder = OpenMemoryFolder(directory);
  StatusOr<std::unique_ptr<JournalTail>> tail =
      folder.ok() ? JournalTail::Open(*folder) : folder.status();
  if (tail.ok()) {
    memory_folder_ = *std::move(folder);
  } else {
    LogWarning(
        "no memory that outlives this process: {}; should it be killed, the "
        "next one does not know all that the ranks have had, marks as "
        "redelivered what may come twice, and ends streams",
        tail.status().message());
    tail = JournalTail::Open("");
  }
  const std::string boot = BootId();
  // The death of the machine ended the ranks and the tail too.
  const bool same_boot = boot.empty() || boot_.empty() || boot == boot_;
  incomplete_ = replayed.incomplete;
  // After a process death the tail has the unfinished records. A machine death
  // may have lost more.
  if (replayed.unfinished && (boot.empty() || boot != boot_)) {
    incomplete_ = true;
  }
  if (!tail.ok()) {
    // As on a full disk: nothing is recorded, jobs go on.
    LogError("journal: {}", tail.status().message());
    return;
  }
  tail_ = *std::move(tail);
  if (tail_token_ != 0 && tail_token_ == tail_->token() &&
      tail_from_ >= tail_->begin() && tail_from_ <= tail_->end()) {
    uint64_t at = tail_from_;
    for (JournalEntry entry; tail_->Next(&at, &entry);) {
      (void)Replay(entry.type, entry.payload);
    }
    const bool all = at == tail_->end() && tail_->lost_ns() == 0;
    incomplete_ = !all || replayed.damaged;
    if (!all) {
      LogWarning(
          "journal: the former broker could not keep all records, because its "
          "state directory did not take them: what may come twice is marked "
          "as redelivered, streams end");
    }
    tail_->Drop(tail_from_);  // the file has all earlier records
    if (at != tail_->end()) tail_->BeginAnew();
  } else {
    if (tail_token_ != 0 && same_boot) {
      incomplete_ = true;
      LogWarning(
          "journal: what the former broker had not written yet is gone with "
          "its folder in memory: what may come twice is marked as redelivered, "
          "streams end");
    }
    tail_->BeginAnew();
  }
  boot_ = boot;
  tail_token_ = tail_->token();
  if (incomplete_) {
    // Until the jobs are resumed, over any number of broker instances.
    for (auto& [id, live] : jobs_) live.job["incomplete"] = true;
    NoteLost();  // until a compaction has written this
  }
  // Records count only once the file names this tail.
  refusal_ = journal_->Append(kBoot, BootRecord(tail_->begin()).dump());
  named_ = refusal_.ok();
  refused_ = Clock::now();
}

RecoveryJournal::~RecoveryJournal() {
  if (!writer_.joinable()) return;
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    work_.NotifyOne();
  }
  writer_.join();
  MutexLock lock(&mutex_);
  if (tail_->begin() != tail_->end() || tail_->lost_ns() != 0) return;
  // An orderly shutdown leaves nothing in memory.
  const uint64_t token = std::exchange(tail_token_, 0);
  if (journal_->Append(kBoot, BootRecord(0).dump()).ok()) {
    tail_->Remove();
    // Fails if the folder has other files.
    if (memory_folder_ != directory_) rmdir(memory_folder_.c_str());
  } else {
    tail_token_ = token;
  }
}

// A record of an unknown type, or with other fields, is from another release:
// what it describes is given up, the rest is kept.
Status RecoveryJournal::Replay(uint8_t type, std::string_view payload) {
  const json record = json::parse(payload, nullptr, false);
  try {
    const auto live = [&]() -> Live* {
      mutex_.AssertHeld();
      const auto found = jobs_.find(record.at("id").get<uint64_t>());
      return found == jobs_.end() ? nullptr : &found->second;
    };
    switch (type) {
      case kDataset:
        datasets_[{record.at("uid").get<uid_t>(),
                   record.at("name").get<std::string>()}] =
            record.at("spec").get<std::string>();
        break;
      case kBoot:
        boot_ = record.at("boot").get<std::string>();
        tail_token_ = record.value("tail", uint64_t{0});
        tail_from_ = record.value("from", uint64_t{0});
        break;
      case kDatasetGone:
        datasets_.erase({record.at("uid").get<uid_t>(),
                         record.at("name").get<std::string>()});
        break;
      case kJob: {
        const uint64_t id = record.at("id").get<uint64_t>();
        jobs_[id].job = record;
        jobs_[id].launch = Launch::FromJson(record.at("launch"));
        next_id_ = std::max(next_id_, id + 1);
        break;
      }
      case kJobEnd:
        jobs_.erase(record.at("id").get<uint64_t>());
        ended_.erase(record.at("id").get<uint64_t>());
        break;
      case kDelivered: {
        EndedJob job = EndedFromJson(record);
        jobs_.erase(job.id);
        next_id_ = std::max(next_id_, job.id + 1);
        ended_[job.id] = std::move(job);
        break;
      }
      case kLaunch:
        if (Live* job = live()) {
          job->launch = Launch::FromJson(record.at("launch"));
        }
        break;
      case kRank:
        if (Live* job = live()) {
          const uint64_t attach = record.at("attach").get<uint64_t>();
          Rank& rank = job->ranks[attach];
          rank = {record.at("rank").get<uint32_t>(),
                  record.at("from").get<uint64_t>(),
                  false,
                  record.value("segment", uint64_t{0}),
                  record.value("bytes", uint64_t{0}),
                  false,
                  record.value("evicted", uint64_t{0})};
          job->launch.Attached(rank.rank);
          next_id_ = std::max({next_id_, attach + 1, rank.segment + 1});
        }
        break;
      case kMapped: {
        const FormerMapping mapping = {record.at("id").get<uint64_t>(),
                                       record.at("attach").get<uint64_t>(),
                                       record.at("uid").get<uint32_t>(),
                                       record.at("segment").get<uint64_t>(),
                                       record.at("bytes").get<uint64_t>(),
                                       nullptr,
                                       record.value("evicted", uint64_t{0})};
        mapped_[{mapping.job, mapping.attach}] = mapping;
        next_id_ =
            std::max({next_id_, mapping.attach + 1, mapping.segment + 1});
        break;
      }
      case kUnmapped:
        mapped_.erase({record.at("id").get<uint64_t>(),
                       record.at("attach").get<uint64_t>()});
        break;
      case kRankEnd:
        if (Live* job = live()) {
          job->ranks.erase(record.at("attach").get<uint64_t>());
        }
        break;
      case kRankLeft:
        if (Live* job = live()) {
          const auto rank =
              job->ranks.find(record.at("attach").get<uint64_t>());
          if (rank == job->ranks.end()) break;
          rank->second.left = true;
          job->launch.Left(rank->second.rank, record.value("finished", false));
        }
        break;
      case kCompleted:
        if (Live* job = live()) {
          job->Complete(record.at("position").get<uint64_t>(),
                        record.at("next").get<uint64_t>());
        }
        break;
      case kOpened:
        if (Live* job = live()) {
          job->opened = record.at("position").get<uint64_t>();
          job->segment_bytes = record.at("bytes").get<uint64_t>();
          job->low = std::max(job->low, record.at("low").get<uint64_t>());
        }
        break;
      case kHandedOver:
        if (Live* job = live()) {
          job->handed_over.insert({record.at("rank").get<uint32_t>(),
                                   record.at("step").get<uint64_t>()});
        }
        break;
      case kPhase:
        if (Live* job = live()) job->phases.push_back(record);
        break;
      case kStream:
        // Otherwise a compacted journal restored it already.
        if (Live* job = live(); job != nullptr && !job->stream) {
          job->stream = StreamLedger::FromJson(record.at("ledger"));
        }
        break;
      case kRowsKept:
        if (Live* job = live(); job != nullptr && job->stream) {
          for (const auto& run : record.at("runs")) {
            job->stream->Keep(
                {run.at(0).get<uint64_t>(), run.at(1).get<uint64_t>(),
                 run.at(2).get<uint32_t>(), run.at(3).get<uint64_t>()});
          }
        }
        break;
      case kProducer:
        if (Live* job = live(); job != nullptr && job->stream) {
          job->stream->Join(record.at("producer").get<uint32_t>(),
                            record.at("token").get<uint64_t>(),
                            record.at("ring_rows").get<uint64_t>(),
                            record.at("put_rows").get<uint64_t>());
        }
        break;
      case kRowsPut:
        if (Live* job = live(); job != nullptr && job->stream) {
          job->stream->Put(record.at("producer").get<uint32_t>(),
                           record.at("place").get<uint64_t>(),
                           record.at("rows").get<uint64_t>(),
                           record.at("first").get<uint64_t>());
        }
        break;
      case kProducerEnd:
        if (Live* job = live(); job != nullptr && job->stream) {
          job->stream->Leave(record.at("producer").get<uint32_t>(),
                             record.at("finished").get<bool>());
        }
        break;
      case kRowsReleased:
        if (Live* job = live(); job != nullptr && job->stream) {
          job->stream->Release(record.at("row").get<uint64_t>());
        }
        break;
      case kRetained:
        if (Live* job = live(); job != nullptr && job->stream) {
          job->stream->OpenRetained(record.at("rows").get<uint64_t>());
        }
        break;
      case kRowsMoved:
        if (Live* job = live(); job != nullptr && job->stream) {
          std::vector<StreamLedger::Chunk> needed;
          for (const auto& run : record.at("needed")) {
            needed.push_back(
                {run.at(0).get<uint64_t>(), run.at(1).get<uint64_t>(),
                 StreamLedger::kRetained, run.at(2).get<uint64_t>()});
          }
          job->stream->Move(record.at("row").get<uint64_t>(), needed);
        }
        break;
      default:
        LogWarning("journal: a record of type {}, unknown here, is left out",
                   type);
    }
  } catch (const std::exception& error) {
    LogWarning("journal: a record of type {} is left out: {}", type,
               error.what());
  }
  return OkStatus();
}

bool RecoveryJournal::KnowsAllJobs() const {
  MutexLock lock(&mutex_);
  return tail_ != nullptr && !incomplete_;
}

std::vector<RecoveryJournal::Dataset> RecoveryJournal::TakeDatasets() {
  MutexLock lock(&mutex_);
  std::vector<Dataset> datasets;
  for (const auto& [key, spec] : datasets_) {
    datasets.push_back({key.first, key.second, spec});
  }
  return datasets;
}

std::vector<FormerMapping> RecoveryJournal::TakeMappings() {
  MutexLock lock(&mutex_);
  std::vector<FormerMapping> mappings;
  for (auto it = mapped_.begin(); it != mapped_.end();) {
    auto pidfd = stored_.extract(PidfdName(it->first.first, it->first.second));
    if (pidfd.empty()) {
      // Without a pidfd its end cannot be seen.
      it = mapped_.erase(it);
      continue;
    }
    mappings.push_back(it->second);
    mappings.back().pidfd = std::make_shared<Fd>(std::move(pidfd.mapped()));
    ++it;
  }
  return mappings;
}

std::vector<FormerJob> RecoveryJournal::TakeJobs() {
  MutexLock lock(&mutex_);
  std::vector<FormerJob> jobs;
  for (auto& [id, live] : jobs_) {
    StatusOr<FormerJob> job = InternalError("no record");
    try {
      job = JobFromJson(live.job);
      if (job.ok()) {
        for (const json& phase : live.phases) {
          job->phases.push_back({phase.at("ranks").get<std::vector<uint32_t>>(),
                                 phase.at("boundary").get<uint64_t>(),
                                 StartFromJson(phase.at("start"))});
        }
      }
    } catch (const std::exception& error) {
      job = InternalError("{}", error.what());
    }
    if (!job.ok()) {
      LogWarning("journal: job {} is given up: {}", id, job.status().message());
      continue;
    }
    job->incomplete = live.job.value("incomplete", false);
    job->launch = live.launch;
    job->opened = live.opened;
    job->segment_bytes = live.segment_bytes;
    job->low = live.low;
    for (const auto& [position, next] : live.completed) {
      job->completed.insert(position);
    }
    job->handed_over = live.handed_over;
    for (auto& [attach, rank] : live.ranks) {
      FormerRank& former = job->ranks[attach];
      former.rank = rank.rank;
      former.from = rank.from;
      former.left = rank.left;
      former.evicted = rank.evicted != 0;
      former.segment = rank.segment;
      former.bytes = rank.bytes;
      // Without a pidfd the end of the process cannot be seen.
      rank.unmapped = stored_.count(PidfdName(id, attach)) == 0;
      if (auto pidfd = stored_.extract(PidfdName(id, attach)); pidfd) {
        former.pidfd = std::make_shared<Fd>(std::move(pidfd.mapped()));
      }
      if (auto cursor = stored_.extract(CursorName(id, attach)); cursor) {
        // Written by a rank, so untrusted.
        auto mapping = OpenCursor(cursor.mapped().get());
        if (!mapping.ok()) continue;
        former.inode = CursorInode(cursor.mapped().get());
        const auto shared = std::make_shared<Mapping>(*std::move(mapping));
        former.page = std::shared_ptr<const CursorPage>(
            shared, reinterpret_cast<const CursorPage*>(shared->data()));
      }
    }
    if (live.stream) TakeStream(id, live, &*job);
    jobs.push_back(*std::move(job));
  }
  for (const auto& [name, fd] : stored_) Unstore(name);
  stored_.clear();
  return jobs;
}

std::vector<EndedJob> RecoveryJournal::TakeEnded() {
  MutexLock lock(&mutex_);
  std::vector<EndedJob> jobs;
  for (const auto& [id, job] : ended_) jobs.push_back(job);
  return jobs;
}

void RecoveryJournal::TakeStream(uint64_t id, const Live& live,
                                 FormerJob* job) {
  job->stream.reset(new FormerStream{*live.stream, {}});
  FormerStream& stream = *job->stream;
  for (const auto& [number, producer] : live.stream->producers()) {
    FormerStream::Kept& kept = stream.kept[number];
    if (auto memory = stored_.extract(MemoryName(id, number)); memory) {
      kept.memory = std::move(memory.mapped());
    }
    if (auto pidfd = stored_.extract(ProducerPidfdName(id, number)); pidfd) {
      kept.pidfd = std::move(pidfd.mapped());
    }
  }
}

json RecoveryJournal::BootRecord(uint64_t written) const {
  return {{"boot", boot_}, {"tail", tail_token_}, {"from", written}};
}

bool RecoveryJournal::PutInTail(uint8_t type, std::string_view text) {
  KillPoint("journal.begun");
  const bool is_in = tail_->Put(type, text);
  KillPoint("journal.appended");
  if (std::exchange(idle_, false)) work_.NotifyOne();
  return is_in;
}

Status RecoveryJournal::RecordOrRefuse(uint8_t type, const json& record) {
  if (tail_ == nullptr) return OkStatus();
  if (!refusal_.ok()) return refusal_;
  if (tail_->lost_ns() != 0 || !PutInTail(type, record.dump())) {
    return UnavailableError(
        "it cannot be recorded: {}; try again when the state directory answers",
        TroubleText());
  }
  return OkStatus();
}

void RecoveryJournal::Record(uint8_t type, const json& record) {
  if (tail_ != nullptr) RecordText(type, record.dump());
}

void RecoveryJournal::RecordText(uint8_t type, std::string_view text) {
  if (tail_ != nullptr && !PutInTail(type, text)) NoteLost();
}

void RecoveryJournal::NoteLost() {
  ++losses_;
  tail_->NoteLost(static_cast<uint64_t>(
      std::chrono::nanoseconds(Clock::now().time_since_epoch()).count()));
}

Status RecoveryJournal::DatasetRegistered(const Dataset& dataset) {
  MutexLock lock(&mutex_);
  PENSTOCK_RETURN_IF_ERROR(RecordOrRefuse(
      kDataset,
      {{"uid", dataset.uid}, {"name", dataset.name}, {"spec", dataset.spec}}));
  datasets_[{dataset.uid, dataset.name}] = dataset.spec;
  return OkStatus();
}

Status RecoveryJournal::DatasetUnregistered(uid_t uid,
                                            const std::string& name) {
  MutexLock lock(&mutex_);
  PENSTOCK_RETURN_IF_ERROR(
      RecordOrRefuse(kDatasetGone, {{"uid", uid}, {"name", name}}));
  datasets_.erase({uid, name});
  return OkStatus();
}

StatusOr<uint64_t> RecoveryJournal::JobOpened(const JobKey& key,
                                              const JobOptions& options,
                                              const Incarnation& incarnation,
                                              bool named,
                                              std::optional<uint64_t> former) {
  MutexLock lock(&mutex_);
  const uint64_t id = former ? *former : next_id_++;
  json record = KeyToJson(id, key, incarnation);
  record.update(JobOptionsToJson(options));
  record["named"] = named;
  const auto known = former ? jobs_.find(id) : jobs_.end();
  const Launch launch =
      known == jobs_.end() ? LaunchOf(options) : known->second.launch;
  record["launch"] = launch.ToJson();
  if (known != jobs_.end() && known->second.job.value("incomplete", false)) {
    record["incomplete"] = true;
  }
  const Status status = RecordOrRefuse(kJob, record);
  // A former job is recorded already.
  if (!status.ok() && !former) return status;
  Live& live = jobs_[id];
  live.job = record;
  live.launch = launch;
  return id;
}

nlohmann::json RecoveryJournal::OpenedRecord(uint64_t id, const Live& live) {
  return {{"id", id},
          {"position", live.opened},
          {"low", live.low},
          {"bytes", live.segment_bytes}};
}

void RecoveryJournal::Begun(uint64_t job, uint64_t position,
                            uint64_t segment_bytes) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  Live& live = found->second;
  live.low = std::max(live.low, position);
  live.opened = std::max(live.opened, position);
  live.segment_bytes = segment_bytes;
  live.segment = next_id_++;
  Record(kOpened, OpenedRecord(job, live));
}

void RecoveryJournal::JobEnded(uint64_t job) {
  MutexLock lock(&mutex_);
  if (jobs_.count(job) == 0 && ended_.count(job) == 0) return;
  LetGoAll(job);
  // Before Forget: a recorded job needs its ranks' pages and pidfds to tell
  // whether they live.
  Record(kJobEnd, {{"id", job}});
  Forget(job);
  ended_.erase(job);
}

void RecoveryJournal::JobDelivered(const EndedJob& job) {
  MutexLock lock(&mutex_);
  LetGoAll(job.id);
  Record(kDelivered, EndedToJson(job));
  Forget(job.id);
  ended_[job.id] = job;
}

void RecoveryJournal::Forget(uint64_t job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  for (const auto& [attach, rank] : found->second.ranks) {
    Unstore(CursorName(job, attach));
    if (mapped_.count({job, attach}) == 0) Unstore(PidfdName(job, attach));
  }
  if (found->second.stream) {
    for (const auto& [number, producer] : found->second.stream->producers()) {
      UnstoreProducer(job, number);
    }
  }
  jobs_.erase(found);
}

nlohmann::json RecoveryJournal::RankRecord(uint64_t id, uint64_t attach,
                                           const Rank& rank) {
  return {{"id", id},
          {"attach", attach},
          {"rank", rank.rank},
          {"from", rank.from},
          {"bytes", rank.bytes},
          {"segment", rank.segment},
          {"evicted", rank.evicted}};
}

void RecoveryJournal::LetGoAll(uint64_t job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  for (const auto& [attach, rank] : found->second.ranks) {
    LetGo(job, found->second, attach, rank);
  }
}

nlohmann::json RecoveryJournal::MappedRecord(const FormerMapping& mapping) {
  return {{"id", mapping.job},      {"attach", mapping.attach},
          {"uid", mapping.uid},     {"segment", mapping.segment},
          {"bytes", mapping.bytes}, {"evicted", mapping.evicted}};
}

void RecoveryJournal::LetGo(uint64_t id, const Live& live, uint64_t attach,
                            const Rank& rank) {
  if (rank.unmapped || rank.left || rank.segment == 0) return;
  const FormerMapping mapping = {
      id,           attach,     live.job.at("uid").get<uint32_t>(),
      rank.segment, rank.bytes, nullptr,
      rank.evicted};
  mapped_[{id, attach}] = mapping;
  Record(kMapped, MappedRecord(mapping));
}

StatusOr<uint64_t> RecoveryJournal::RankAttached(uint64_t job, const Rank& rank,
                                                 int cursor_fd, int pidfd) {
  MutexLock lock(&mutex_);
  const uint64_t attach = next_id_++;
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return attach;
  // The rank reconnects or is replaced: a running job goes on.
  const bool known = std::any_of(
      found->second.ranks.begin(), found->second.ranks.end(),
      [&rank](const auto& item) { return item.second.rank == rank.rank; });
  Rank& added = found->second.ranks[attach];
  added = rank;
  added.segment = found->second.segment;
  added.bytes = found->second.segment_bytes;
  added.unmapped = pidfd < 0;
  // Stored before it is recorded: a recorded rank needs its page to tell what
  // it had. A rank stored but not recorded was not answered.
  Store(CursorName(job, attach), cursor_fd);
  Store(PidfdName(job, attach), pidfd);
  KillPoint("attach.stored");
  Status status;
  if (known) {
    Record(kRank, RankRecord(job, attach, added));
  } else {
    status = RecordOrRefuse(kRank, RankRecord(job, attach, added));
  }
  if (status.ok()) {
    found->second.launch.Attached(rank.rank);
    return attach;
  }
  found->second.ranks.erase(attach);
  Unstore(CursorName(job, attach));
  Unstore(PidfdName(job, attach));
  return status;
}

void RecoveryJournal::RankLeft(uint64_t job, uint64_t attach, bool finished) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  const auto rank = found->second.ranks.find(attach);
  if (rank == found->second.ranks.end()) return;
  rank->second.left = true;
  found->second.launch.Left(rank->second.rank, finished);
  Record(kRankLeft, {{"id", job}, {"attach", attach}, {"finished", finished}});
}

void RecoveryJournal::RankEvicted(uint64_t job, uint64_t attach,
                                  uint64_t inode) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  const auto rank = found->second.ranks.find(attach);
  if (rank == found->second.ranks.end() || rank->second.evicted != 0) return;
  rank->second.evicted = inode;
  Record(kRank, RankRecord(job, attach, rank->second));
}

void RecoveryJournal::RankForgotten(uint64_t job, uint64_t attach) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  const auto rank = found->second.ranks.extract(attach);
  if (rank.empty()) return;
  LetGo(job, found->second, attach, rank.mapped());
  Record(kRankEnd, {{"id", job}, {"attach", attach}});
  Unstore(CursorName(job, attach));
  if (mapped_.count({job, attach}) == 0) Unstore(PidfdName(job, attach));
}

void RecoveryJournal::Unmapped(uint64_t job, uint64_t attach) {
  MutexLock lock(&mutex_);
  if (mapped_.erase({job, attach}) > 0) {
    Record(kUnmapped, {{"id", job}, {"attach", attach}});
    Unstore(PidfdName(job, attach));
    return;
  }
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  const auto rank = found->second.ranks.find(attach);
  if (rank != found->second.ranks.end()) rank->second.unmapped = true;
}

void RecoveryJournal::PhaseBegun(uint64_t job, const FormerPhase& phase) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  const json record = {{"id", job},
                       {"ranks", phase.ranks},
                       {"boundary", phase.boundary},
                       {"start", StartToJson(phase.start)}};
  found->second.phases.push_back(record);
  Record(kPhase, record);
}

// Idempotent: a compacted journal may repeat a completion.
void RecoveryJournal::Live::Complete(uint64_t position, uint64_t next) {
  if (position >= low || next <= position) completed[position] = next;
  for (auto found = completed.find(low); found != completed.end();
       found = completed.find(low)) {
    if (found->second <= low) break;
    low = found->second;
    completed.erase(found);
  }
}

void RecoveryJournal::Completed(uint64_t job, uint64_t position,
                                uint64_t next) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  found->second.Complete(position, next);
  // Formatted by hand, once per batch: takes a tenth of the JSON library's
  // time.
  RecordText(kCompleted, Format(R"({{"id":{},"position":{},"next":{}}})", job,
                                position, next));
}

void RecoveryJournal::HandedOver(uint64_t job, uint32_t rank, uint64_t step) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  found->second.handed_over.insert({rank, step});
  // By hand, as in Completed.
  RecordText(kHandedOver,
             Format(R"({{"id":{},"rank":{},"step":{}}})", job, rank, step));
}

void RecoveryJournal::Opened(uint64_t job, uint64_t position) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || position <= found->second.opened) return;
  const Live& live = found->second;
  found->second.opened = position;
  // By hand, as in Completed.
  RecordText(kOpened, Format(R"({{"id":{},"position":{},"low":{},"bytes":{}}})",
                             job, live.opened, live.low, live.segment_bytes));
}

// ---- producers

json RecoveryJournal::StreamJson(uint64_t id, const StreamLedger& ledger) {
  return {{"id", id}, {"ledger", ledger.ToJson()}};
}

Status RecoveryJournal::ProducerJoined(uint64_t job, const StreamLedger& before,
                                       const StreamLedger::Producer& producer,
                                       int memory, int pidfd) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return OkStatus();
  std::optional<StreamLedger>& stream = found->second.stream;
  if (!stream) {
    // The ledger before the first producer.
    PENSTOCK_RETURN_IF_ERROR(RecordOrRefuse(kStream, StreamJson(job, before)));
    stream = before;
  }
  const uint32_t number = before.next_producer();
  // Stored before it is recorded, as in RankAttached.
  Store(MemoryName(job, number), memory);
  Store(ProducerPidfdName(job, number), pidfd);
  KillPoint("producer.stored");
  const Status status =
      RecordOrRefuse(kProducer, {{"id", job},
                                 {"producer", number},
                                 {"token", producer.token},
                                 {"ring_rows", producer.ring_rows},
                                 {"put_rows", producer.put_rows}});
  if (!status.ok()) {
    UnstoreProducer(job, number);
    return status;
  }
  stream->Join(number, producer.token, producer.ring_rows, producer.put_rows);
  return OkStatus();
}

void RecoveryJournal::RowsPut(uint64_t job, uint32_t producer, uint64_t place,
                              uint64_t rows, uint64_t first) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || !found->second.stream) return;
  Record(kRowsPut, {{"id", job},
                    {"producer", producer},
                    {"place", place},
                    {"rows", rows},
                    {"first", first}});
  found->second.stream->Put(producer, place, rows, first);
}

void RecoveryJournal::ProducerLeft(uint64_t job, uint32_t producer,
                                   bool finished) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || !found->second.stream) return;
  Record(kProducerEnd,
         {{"id", job}, {"producer", producer}, {"finished", finished}});
  // Its rows may be retained, but nothing waits for the process.
  Unstore(ProducerPidfdName(job, producer));
  for (const uint32_t gone : found->second.stream->Leave(producer, finished)) {
    UnstoreProducer(job, gone);
  }
}

void RecoveryJournal::RowsReleased(uint64_t job, uint64_t row) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || !found->second.stream) return;
  Record(kRowsReleased, {{"id", job}, {"row", row}});
  for (const uint32_t gone : found->second.stream->Release(row)) {
    UnstoreProducer(job, gone);
  }
}

Status RecoveryJournal::RetainedOpened(uint64_t job, uint64_t rows,
                                       int memory) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || !found->second.stream) return OkStatus();
  Store(MemoryName(job, StreamLedger::kRetained), memory);
  const Status status =
      RecordOrRefuse(kRetained, {{"id", job}, {"rows", rows}});
  if (status.ok()) {
    found->second.stream->OpenRetained(rows);
  } else {
    Unstore(MemoryName(job, StreamLedger::kRetained));
  }
  return status;
}

void RecoveryJournal::RowsMoved(
    uint64_t job, uint64_t row,
    const std::vector<StreamLedger::Chunk>& needed) {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || !found->second.stream) return;
  json runs = json::array();
  for (const StreamLedger::Chunk& chunk : needed) {
    runs.push_back({chunk.first, chunk.rows, chunk.place});
  }
  Record(kRowsMoved, {{"id", job}, {"row", row}, {"needed", std::move(runs)}});
  for (const uint32_t gone : found->second.stream->Move(row, needed)) {
    UnstoreProducer(job, gone);
  }
}

std::vector<std::pair<uint8_t, std::string>> RecoveryJournal::LiveRecords()
    const {
  std::vector<std::pair<uint8_t, std::string>> records;
  const auto record = [&records](uint8_t type, const json& text) {
    records.emplace_back(type, text.dump());
  };
  for (const auto& [key, spec] : datasets_) {
    record(kDataset,
           {{"uid", key.first}, {"name", key.second}, {"spec", spec}});
  }
  for (const auto& [id, job] : ended_) {
    record(kDelivered, EndedToJson(job));
  }
  for (const auto& [key, mapping] : mapped_) {
    record(kMapped, MappedRecord(mapping));
  }
  for (const auto& [id, live] : jobs_) {
    record(kJob, live.job);
    for (const json& phase : live.phases) {
      record(kPhase, phase);
    }
    for (const auto& [attach, rank] : live.ranks) {
      record(kRank, RankRecord(id, attach, rank));
      if (!rank.left) continue;
      record(kRankLeft, {{"id", id}, {"attach", attach}});
    }
    // After the ranks, some of which are forgotten.
    record(kLaunch, {{"id", id}, {"launch", live.launch.ToJson()}});
    if (live.segment_bytes > 0) {
      record(kOpened, OpenedRecord(id, live));
    }
    for (const auto& [position, next] : live.completed) {
      record(kCompleted, {{"id", id}, {"position", position}, {"next", next}});
    }
    for (const auto& [rank, step] : live.handed_over) {
      record(kHandedOver, {{"id", id}, {"rank", rank}, {"step", step}});
    }
    if (!live.stream) continue;
    record(kStream, StreamJson(id, *live.stream));
    json runs = json::array();
    for (const StreamLedger::Chunk& chunk : live.stream->chunks()) {
      runs.push_back({chunk.first, chunk.rows, chunk.producer, chunk.place});
      if (runs.size() < kRunsPerRecord &&
          &chunk != &live.stream->chunks().back()) {
        continue;
      }
      record(kRowsKept, {{"id", id}, {"runs", std::move(runs)}});
      runs = json::array();
    }
  }
  return records;
}

// ---- the writer

bool RecoveryJournal::HasWork() const {
  return look_ || !named_ || tail_->begin() != tail_->end() ||
         tail_->lost_ns() != 0;
}

void RecoveryJournal::Write() {
  pthread_setname_np(pthread_self(), "journal");
  while (BeginRound()) {
    Status status = WriteTail();
    const StatusOr<bool> compacted = CompactIfWanted();
    if (!compacted.ok()) {
      if (status.ok() && tail_->lost_ns() != 0) {
        status = compacted.status();  // losses remain
      } else if (status.ok()) {
        LogWarning("{}", compacted.status().message());  // only space is wasted
      }
    } else if (*compacted) {
      status = OkStatus();  // it wrote everything, including failed records
    }
    if (!EndRound(status)) return;
  }
}

bool RecoveryJournal::BeginRound() {
  MutexLock lock(&mutex_);
  while (!HasWork() && !stop_) {
    idle_ = true;
    work_.Wait(&mutex_);
  }
  idle_ = false;
  if (!HasWork()) return false;
  // Gathers records that arrive meanwhile.
  if (!stop_ && !hurry_) {
    work_.WaitFor(&mutex_, refusal_.ok()
                               ? std::chrono::milliseconds(kGatherTime)
                               : std::chrono::milliseconds(kRetryTime));
  }
  look_ = false;
  asked_ = Clock::now();
  return true;
}

bool RecoveryJournal::EndRound(const Status& status) {
  MutexLock lock(&mutex_);
  asked_.reset();
  if (!status.ok() && refusal_.ok()) refused_ = Clock::now();
  refusal_ = status;
  ++rounds_;
  hurry_ = false;
  written_.NotifyAll();
  return status.ok() || !stop_;
}

Status RecoveryJournal::WriteTail() {
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
    bool damaged = false;
    for (size_t bytes = 0; at < to && bytes < kGroupBytes && !damaged;) {
      JournalEntry entry;
      damaged = !tail_->Next(&at, &entry);
      bytes += entry.payload.size();
      if (!damaged) group.push_back(entry);
    }
    std::string boot;
    {
      MutexLock lock(&mutex_);
      if (damaged) {
        LogError("journal: another program wrote into {}/{}", memory_folder_,
                 kJournalTailName);
        NoteLost();
        tail_->Drop(tail_->end());
        return OkStatus();  // a compaction follows
      }
      boot = BootRecord(at).dump();
    }
    group.push_back({kBoot, boot});
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

StatusOr<bool> RecoveryJournal::CompactIfWanted() {
  {
    MutexLock lock(&mutex_);
    if (!journal_->WantsCompaction() && tail_->lost_ns() == 0) return false;
  }
  uint64_t losses = 0;
  uint64_t to = 0;
  PENSTOCK_RETURN_IF_ERROR(journal_->Compact([&](const JournalRecord& put) {
    std::vector<std::pair<uint8_t, std::string>> records;
    {
      MutexLock lock(&mutex_);
      losses = losses_;
      to = tail_->end();
      records = LiveRecords();
      records.emplace_back(kBoot, BootRecord(to).dump());
    }
    // Unlocked: put waits for the file system.
    for (const auto& [type, text] : records) {
      PENSTOCK_RETURN_IF_ERROR(put(type, text));
    }
    return OkStatus();
  }));
  KillPoint("journal.compacted");
  MutexLock lock(&mutex_);
  tail_->Drop(to);
  named_ = true;
  if (losses_ == losses) tail_->NothingIsLost();
  return true;
}

void RecoveryJournal::Flush() {
  if (tail_ == nullptr) return;
  MutexLock lock(&mutex_);
  look_ = true;
  const uint64_t enough = rounds_ + (asked_ ? 2 : 1);
  while (rounds_ < enough) {
    hurry_ = true;
    work_.NotifyOne();
    written_.Wait(&mutex_);
  }
}

// ---- trouble

RecoveryJournal::Health RecoveryJournal::health() const {
  if (tail_ == nullptr) return Health::kWell;
  if (tail_->lost_ns() != 0) return Health::kLoses;
  if (!refusal_.ok()) return Health::kRefuses;
  return asked_ && Clock::now() - *asked_ > kSilentTime ? Health::kSilent
                                                        : Health::kWell;
}

std::string RecoveryJournal::TroubleText() const {
  const Health now = health();
  if (now == Health::kWell) return "";
  std::string text;
  if (!refusal_.ok()) {
    text = Format("since {}: {}", TimeText(refused_), refusal_.message());
  } else if (asked_) {
    text = Format("the state directory {} has not answered since {}",
                  directory_, TimeText(*asked_));
  } else {
    text = Format("the state directory {} is being written anew", directory_);
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
  return text + Format(
                    "; what jobs do is kept in memory, {} of {}, and known to "
                    "the next broker unless the machine goes down",
                    BytesText(tail_->end() - tail_->begin()),
                    BytesText(kTailBytes));
}

std::string RecoveryJournal::Trouble() const {
  MutexLock lock(&mutex_);
  return TroubleText();
}

void RecoveryJournal::Tick() {
  MutexLock lock(&mutex_);
  const Health now = health();
  if (now == told_) return;
  told_ = now;
  if (now == Health::kWell) {
    LogWarning("the state directory {} is written again, nothing is missing",
               directory_);
  } else {
    LogError("{}", TroubleText());
  }
}

bool RecoveryJournal::WantsTick() const {
  MutexLock lock(&mutex_);
  return told_ != Health::kWell || !refusal_.ok() || asked_ ||
         (tail_ != nullptr && tail_->begin() != tail_->end());
}

}  // namespace penstock
