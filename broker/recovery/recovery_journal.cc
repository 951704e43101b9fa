#include "broker/recovery/recovery_journal.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "broker/base/service_protocol.h"
#include "common/kill_point.h"
#include "common/segment.h"

namespace penstock {
namespace {

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
  NotifyServiceManager(Format("FDSTORE=1\nFDPOLL=0\nFDNAME={}", name), fd);
}

void Unstore(const std::string& name) {
  NotifyServiceManager(Format("FDSTOREREMOVE=1\nFDNAME={}", name));
}

void UnstoreProducer(uint64_t job, uint32_t producer) {
  Unstore(MemoryName(job, producer));
  Unstore(ProducerPidfdName(job, producer));
}

}  // namespace

StatusOr<std::unique_ptr<RecoveryJournal>> RecoveryJournal::Open(
    const std::string& directory, std::vector<StoredFd> stored) {
  std::unique_ptr<RecoveryJournal> journal(new RecoveryJournal());
  RecoveryJournal* const self = journal.get();
  MutexLock lock(&self->mutex_);
  PENSTOCK_ASSIGN_OR_RETURN(
      self->writer_,
      JournalWriter::Open(directory,
                          [self](uint8_t type, std::string_view text) {
                            self->mutex_.AssertHeld();
                            self->state_.Apply(type, text);
                          }));
  // Until the jobs are resumed, over any number of broker instances.
  for (auto& [id, job] : self->state_.jobs) {
    job.incomplete |= self->writer_->incomplete();
  }
  for (StoredFd& each : stored) {
    // The names of stored but unrecorded attaches are not reused.
    const std::string number = each.name.rfind("producer", 0) == 0
                                   ? ""
                                   : each.name.substr(each.name.rfind('-') + 1);
    self->state_.next_id = std::max<uint64_t>(
        self->state_.next_id, std::strtoull(number.c_str(), nullptr, 10) + 1);
    self->stored_[each.name] = std::move(each.fd);
  }
  self->writer_->Start([self] {
    MutexLock lock(&self->mutex_);
    return JournalWriter::Snapshot{self->state_.Records(),
                                   self->writer_->Now()};
  });
  return journal;
}

// ---- what the former broker instance left

bool RecoveryJournal::KnowsAllJobs() const {
  return writer_->records() && !writer_->incomplete();
}

std::vector<RecoveryJournal::Dataset> RecoveryJournal::TakeDatasets() {
  MutexLock lock(&mutex_);
  std::vector<Dataset> datasets;
  for (const auto& [key, spec] : state_.datasets) {
    datasets.push_back({key.first, key.second, spec});
  }
  return datasets;
}

std::vector<RecordedMapping> RecoveryJournal::TakeMappings() {
  MutexLock lock(&mutex_);
  std::vector<RecordedMapping> mappings;
  std::erase_if(state_.mapped, [&](const auto& item) {
    mutex_.AssertHeld();
    const auto& [key, mapping] = item;
    auto pidfd = stored_.extract(PidfdName(key.first, key.second));
    // Without a pidfd its end cannot be seen.
    if (pidfd.empty()) return true;
    mappings.push_back(mapping);
    mappings.back().pidfd = std::make_shared<Fd>(std::move(pidfd.mapped()));
    return false;
  });
  return mappings;
}

std::vector<FormerJob> RecoveryJournal::TakeJobs() {
  MutexLock lock(&mutex_);
  std::vector<FormerJob> jobs;
  for (auto& [id, job] : state_.jobs) {
    FormerJob& former = jobs.emplace_back(FormerJob{job, nullptr});
    for (auto& [attach, rank] : former.ranks) {
      TakeStored(id, attach, &rank);
      // Without a pidfd the end of the process cannot be seen.
      job.ranks[attach].unmapped = rank.pidfd == nullptr;
    }
    if (job.ledger) former.stream = TakeStream(job);
  }
  for (const auto& [name, fd] : stored_) Unstore(name);
  stored_.clear();
  return jobs;
}

void RecoveryJournal::TakeStored(uint64_t job, uint64_t attach,
                                 RecordedRank* rank) {
  if (auto pidfd = stored_.extract(PidfdName(job, attach)); pidfd) {
    rank->pidfd = std::make_shared<Fd>(std::move(pidfd.mapped()));
  }
  auto cursor = stored_.extract(CursorName(job, attach));
  if (cursor.empty()) return;
  // Written by a rank, so untrusted.
  auto mapping = OpenCursor(cursor.mapped().get());
  if (!mapping.ok()) return;
  rank->inode = CursorInode(cursor.mapped().get());
  const auto shared = std::make_shared<Mapping>(*std::move(mapping));
  rank->page = std::shared_ptr<const CursorPage>(
      shared, reinterpret_cast<const CursorPage*>(shared->data()));
}

std::unique_ptr<FormerStream> RecoveryJournal::TakeStream(
    const RecordedJob& job) {
  std::unique_ptr<FormerStream> stream(new FormerStream{*job.ledger, {}});
  for (const auto& [number, producer] : job.ledger->producers()) {
    FormerStream::Kept& kept = stream->kept[number];
    if (auto memory = stored_.extract(MemoryName(job.id, number)); memory) {
      kept.memory = std::move(memory.mapped());
    }
    if (auto pidfd = stored_.extract(ProducerPidfdName(job.id, number));
        pidfd) {
      kept.pidfd = std::move(pidfd.mapped());
    }
  }
  return stream;
}

std::vector<EndedJob> RecoveryJournal::TakeEnded() {
  MutexLock lock(&mutex_);
  std::vector<EndedJob> jobs;
  for (const auto& [id, job] : state_.ended) jobs.push_back(job);
  return jobs;
}

// ---- datasets and jobs

void RecoveryJournal::Record(const StateRecord& record) {
  state_.Apply(record.type, record.text);
  writer_->Put(record);
}

Status RecoveryJournal::RecordOrRefuse(const StateRecord& record) {
  PENSTOCK_RETURN_IF_ERROR(writer_->PutOrRefuse(record));
  state_.Apply(record.type, record.text);
  return OkStatus();
}

Status RecoveryJournal::DatasetRegistered(const Dataset& dataset) {
  MutexLock lock(&mutex_);
  return RecordOrRefuse(
      records::Dataset(dataset.uid, dataset.name, dataset.spec));
}

Status RecoveryJournal::DatasetUnregistered(uid_t uid,
                                            const std::string& name) {
  MutexLock lock(&mutex_);
  return RecordOrRefuse(records::DatasetGone(uid, name));
}

StatusOr<uint64_t> RecoveryJournal::JobOpened(const JobKey& key,
                                              const JobOptions& options,
                                              const Incarnation& incarnation,
                                              bool named,
                                              std::optional<uint64_t> former) {
  MutexLock lock(&mutex_);
  RecordedJob* const known = former ? state_.Job(*former) : nullptr;
  RecordedJob job;
  if (known != nullptr) job = *known;
  job.id = former ? *former : state_.next_id++;
  job.key = key;
  job.options = options;
  job.incarnation = incarnation;
  job.named = named;
  if (known == nullptr) job.launch = LaunchOf(options);
  // Not applied: its spec need not be parsed again.
  const Status status = writer_->PutOrRefuse(records::Job(job));
  // A former job is recorded already.
  if (!status.ok() && !former) return status;
  const uint64_t id = job.id;
  state_.jobs[id] = std::move(job);
  return id;
}

void RecoveryJournal::Begun(uint64_t job, uint64_t position,
                            uint64_t segment_bytes) {
  MutexLock lock(&mutex_);
  RecordedJob* const found = state_.Job(job);
  if (found == nullptr) return;
  found->low = std::max(found->low, position);
  found->opened = std::max(found->opened, position);
  found->segment_bytes = segment_bytes;
  found->segment = state_.next_id++;
  writer_->Put(records::Opened(*found));
}

void RecoveryJournal::JobEnded(uint64_t job) {
  MutexLock lock(&mutex_);
  if (state_.jobs.count(job) == 0 && state_.ended.count(job) == 0) return;
  End(job, records::JobEnd(job));
}

void RecoveryJournal::JobDelivered(const EndedJob& job) {
  MutexLock lock(&mutex_);
  End(job.id, records::Delivered(job));
}

void RecoveryJournal::End(uint64_t job, const StateRecord& end) {
  RecordedJob ended;
  if (const RecordedJob* const found = state_.Job(job)) ended = *found;
  for (const auto& [attach, rank] : ended.ranks) LetGo(ended, attach, rank);
  // Recorded first: a recorded job needs its ranks' pages and pidfds to tell
  // whether they live.
  Record(end);
  for (const auto& [attach, rank] : ended.ranks) UnstoreRank(job, attach);
  if (!ended.ledger) return;
  for (const auto& [number, producer] : ended.ledger->producers()) {
    UnstoreProducer(job, number);
  }
}

// ---- ranks

void RecoveryJournal::LetGo(const RecordedJob& job, uint64_t attach,
                            const RecordedRank& rank) {
  if (rank.unmapped || rank.left || rank.segment == 0) return;
  Record(records::Mapped({.job = job.id,
                          .attach = attach,
                          .uid = job.key.uid,
                          .segment = rank.segment,
                          .bytes = rank.bytes,
                          .evicted = rank.evicted}));
}

void RecoveryJournal::UnstoreRank(uint64_t job, uint64_t attach) {
  Unstore(CursorName(job, attach));
  if (state_.mapped.count({job, attach}) == 0) Unstore(PidfdName(job, attach));
}

StatusOr<uint64_t> RecoveryJournal::RankAttached(uint64_t job, uint32_t rank,
                                                 uint64_t from, int cursor_fd,
                                                 int pidfd) {
  MutexLock lock(&mutex_);
  const uint64_t attach = state_.next_id++;
  RecordedJob* const found = state_.Job(job);
  if (found == nullptr) return attach;
  // The rank reconnects or is replaced: a running job goes on.
  const bool known = std::any_of(
      found->ranks.begin(), found->ranks.end(),
      [rank](const auto& item) { return item.second.rank == rank; });
  const StateRecord record = records::Rank(job, attach,
                                           {.rank = rank,
                                            .from = from,
                                            .segment = found->segment,
                                            .bytes = found->segment_bytes});
  // Stored before it is recorded: a recorded rank needs its page to tell what
  // it had. A rank stored but not recorded was not answered.
  Store(CursorName(job, attach), cursor_fd);
  Store(PidfdName(job, attach), pidfd);
  KillPoint("attach.stored");
  if (known) {
    Record(record);
  } else if (const Status status = RecordOrRefuse(record); !status.ok()) {
    UnstoreRank(job, attach);
    return status;
  }
  found->ranks[attach].unmapped = pidfd < 0;
  return attach;
}

void RecoveryJournal::RankLeft(uint64_t job, uint64_t attach, bool finished) {
  MutexLock lock(&mutex_);
  const RecordedJob* const found = state_.Job(job);
  if (found == nullptr || found->ranks.count(attach) == 0) return;
  Record(records::RankLeft(job, attach, finished));
}

void RecoveryJournal::RankEvicted(uint64_t job, uint64_t attach,
                                  uint64_t inode) {
  MutexLock lock(&mutex_);
  const RecordedJob* const found = state_.Job(job);
  if (found == nullptr) return;
  const auto rank = found->ranks.find(attach);
  if (rank == found->ranks.end() || rank->second.evicted != 0) return;
  RecordedRank evicted = rank->second;
  evicted.evicted = inode;
  Record(records::Rank(job, attach, evicted));
}

void RecoveryJournal::RankForgotten(uint64_t job, uint64_t attach) {
  MutexLock lock(&mutex_);
  const RecordedJob* const found = state_.Job(job);
  if (found == nullptr) return;
  const auto rank = found->ranks.find(attach);
  if (rank == found->ranks.end()) return;
  LetGo(*found, attach, rank->second);
  Record(records::RankEnd(job, attach));
  UnstoreRank(job, attach);
}

void RecoveryJournal::Unmapped(uint64_t job, uint64_t attach) {
  MutexLock lock(&mutex_);
  if (state_.mapped.count({job, attach}) > 0) {
    Record(records::Unmapped(job, attach));
    Unstore(PidfdName(job, attach));
    return;
  }
  RecordedJob* const found = state_.Job(job);
  if (found == nullptr) return;
  const auto rank = found->ranks.find(attach);
  if (rank != found->ranks.end()) rank->second.unmapped = true;
}

// ---- progress

void RecoveryJournal::PhaseBegun(uint64_t job, const FormerPhase& phase) {
  MutexLock lock(&mutex_);
  if (state_.Job(job) != nullptr) Record(records::Phase(job, phase));
}

Status RecoveryJournal::WeightsChanged(uint64_t job,
                                       const WeightsChange& change) {
  MutexLock lock(&mutex_);
  if (state_.Job(job) == nullptr) return OkStatus();
  return RecordOrRefuse(records::Weights(job, change));
}

// Once per batch, here to Opened: the state changes without the record's text.

void RecoveryJournal::Completed(uint64_t job, uint64_t position,
                                uint64_t next) {
  MutexLock lock(&mutex_);
  RecordedJob* const found = state_.Job(job);
  if (found == nullptr) return;
  found->Complete(position, next);
  writer_->Put(records::Completed(job, position, next));
}

void RecoveryJournal::HandedOver(uint64_t job, uint32_t rank, uint64_t step) {
  MutexLock lock(&mutex_);
  RecordedJob* const found = state_.Job(job);
  if (found == nullptr) return;
  found->handed_over.insert({rank, step});
  writer_->Put(records::HandedOver(job, rank, step));
}

void RecoveryJournal::Opened(uint64_t job, uint64_t position) {
  MutexLock lock(&mutex_);
  RecordedJob* const found = state_.Job(job);
  if (found == nullptr || position <= found->opened) return;
  found->opened = position;
  writer_->Put(records::Opened(*found));
}

// ---- producers

StreamLedger* RecoveryJournal::LedgerOf(uint64_t job) {
  RecordedJob* const found = state_.Job(job);
  return found == nullptr || !found->ledger ? nullptr : &*found->ledger;
}

Status RecoveryJournal::ProducerJoined(uint64_t job, const StreamLedger& before,
                                       const StreamLedger::Producer& producer,
                                       int memory, int pidfd) {
  MutexLock lock(&mutex_);
  if (state_.Job(job) == nullptr) return OkStatus();
  if (LedgerOf(job) == nullptr) {
    // The ledger before the first producer.
    PENSTOCK_RETURN_IF_ERROR(RecordOrRefuse(records::Ledger(job, before)));
  }
  const uint32_t number = before.next_producer();
  // Stored before it is recorded, as in RankAttached.
  Store(MemoryName(job, number), memory);
  Store(ProducerPidfdName(job, number), pidfd);
  KillPoint("producer.stored");
  const Status status =
      RecordOrRefuse(records::Producer(job, number, producer));
  if (!status.ok()) UnstoreProducer(job, number);
  return status;
}

void RecoveryJournal::RowsPut(uint64_t job, uint32_t producer,
                              uint64_t ring_position, uint64_t rows,
                              uint64_t first) {
  MutexLock lock(&mutex_);
  StreamLedger* const ledger = LedgerOf(job);
  if (ledger == nullptr) return;
  writer_->Put(records::RowsPut(job, producer, ring_position, rows, first));
  ledger->Put(producer, ring_position, rows, first);
}

void RecoveryJournal::ProducerLeft(uint64_t job, uint32_t producer,
                                   bool finished) {
  MutexLock lock(&mutex_);
  StreamLedger* const ledger = LedgerOf(job);
  if (ledger == nullptr) return;
  writer_->Put(records::ProducerEnd(job, producer, finished));
  // Its rows may be retained, but nothing waits for the process.
  Unstore(ProducerPidfdName(job, producer));
  for (const uint32_t gone : ledger->Leave(producer, finished)) {
    UnstoreProducer(job, gone);
  }
}

void RecoveryJournal::RowsReleased(uint64_t job, uint64_t row) {
  MutexLock lock(&mutex_);
  StreamLedger* const ledger = LedgerOf(job);
  if (ledger == nullptr) return;
  writer_->Put(records::RowsReleased(job, row));
  for (const uint32_t gone : ledger->Release(row)) UnstoreProducer(job, gone);
}

Status RecoveryJournal::RetainedOpened(uint64_t job, uint64_t rows,
                                       int memory) {
  MutexLock lock(&mutex_);
  if (LedgerOf(job) == nullptr) return OkStatus();
  Store(MemoryName(job, StreamLedger::kRetained), memory);
  const Status status = RecordOrRefuse(records::Retained(job, rows));
  if (!status.ok()) Unstore(MemoryName(job, StreamLedger::kRetained));
  return status;
}

void RecoveryJournal::RowsMoved(
    uint64_t job, uint64_t row,
    const std::vector<StreamLedger::Chunk>& needed) {
  MutexLock lock(&mutex_);
  StreamLedger* const ledger = LedgerOf(job);
  if (ledger == nullptr) return;
  writer_->Put(records::RowsMoved(job, row, needed));
  for (const uint32_t gone : ledger->Move(row, needed)) {
    UnstoreProducer(job, gone);
  }
}

}  // namespace penstock
