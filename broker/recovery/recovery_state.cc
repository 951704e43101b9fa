#include "broker/recovery/recovery_state.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

#include "broker/base/log.h"
#include "broker/recovery/journal_writer.h"

namespace penstock {
namespace {

using nlohmann::json;

// Numbers in files: none is used for anything else, ever.
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
  kLedger = 12,    // its chunks follow as kRowsKept
  kRowsKept = 13,  // from a compacted journal
  kProducer = 14,
  kRowsPut = 15,
  kProducerEnd = 16,
  kRowsReleased = 17,
  kRetained = 18,
  kRowsMoved = 19,
  // 20 is kBootRecord, which the writer keeps for itself.
  kDelivered = 21,
  kLaunch = 22,  // of a job, from a compacted journal
  kMapped = 23,
  kUnmapped = 24,
  kWeights = 25,
  kTypesEnd,
};
static_assert(kBootRecord == 20);

// In kRowsKept; far below the record size limit.
constexpr size_t kRunsPerRecord = 4096;

StateRecord Record(Type type, const json& record) {
  return {type, record.dump()};
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

StatusOr<RecordedJob> JobFromJson(const json& record) {
  RecordedJob job;
  job.id = record.at("id").get<uint64_t>();
  job.key = KeyFromJson(record);
  PENSTOCK_ASSIGN_OR_RETURN(job.options, JobOptionsFromJson(record));
  job.options.consumer = job.key.consumer.value_or(0);
  job.incarnation = IncarnationFromJson(record);
  job.named = record.at("named").get<bool>();
  job.launch = Launch::FromJson(record.at("launch"));
  job.incomplete = record.value("incomplete", false);
  return job;
}

}  // namespace

namespace records {

StateRecord Dataset(uid_t uid, const std::string& name,
                    const std::string& spec) {
  return Record(kDataset, {{"uid", uid}, {"name", name}, {"spec", spec}});
}

StateRecord DatasetGone(uid_t uid, const std::string& name) {
  return Record(kDatasetGone, {{"uid", uid}, {"name", name}});
}

StateRecord Job(const RecordedJob& job) {
  json record = KeyToJson(job.id, job.key, job.incarnation);
  record.update(JobOptionsToJson(job.options));
  record["named"] = job.named;
  record["launch"] = job.launch.ToJson();
  if (job.incomplete) record["incomplete"] = true;
  return Record(kJob, record);
}

StateRecord JobEnd(uint64_t job) { return Record(kJobEnd, {{"id", job}}); }

StateRecord Delivered(const EndedJob& job) {
  json record = KeyToJson(job.id, job.key, job.incarnation);
  record["launch"] = job.launch.ToJson();
  record["agreement"] = job.agreement;
  record["ended_s"] = std::chrono::duration_cast<std::chrono::seconds>(
                          job.ended.time_since_epoch())
                          .count();
  return Record(kDelivered, record);
}

StateRecord Rank(uint64_t job, uint64_t attach, const RecordedRank& rank) {
  return Record(kRank, {{"id", job},
                        {"attach", attach},
                        {"rank", rank.rank},
                        {"from", rank.from},
                        {"bytes", rank.bytes},
                        {"segment", rank.segment},
                        {"evicted", rank.evicted}});
}

StateRecord RankEnd(uint64_t job, uint64_t attach) {
  return Record(kRankEnd, {{"id", job}, {"attach", attach}});
}

StateRecord RankLeft(uint64_t job, uint64_t attach, bool finished) {
  return Record(kRankLeft,
                {{"id", job}, {"attach", attach}, {"finished", finished}});
}

StateRecord Mapped(const RecordedMapping& mapping) {
  return Record(kMapped, {{"id", mapping.job},
                          {"attach", mapping.attach},
                          {"uid", mapping.uid},
                          {"segment", mapping.segment},
                          {"bytes", mapping.bytes},
                          {"evicted", mapping.evicted}});
}

StateRecord Unmapped(uint64_t job, uint64_t attach) {
  return Record(kUnmapped, {{"id", job}, {"attach", attach}});
}

StateRecord Phase(uint64_t job, const FormerPhase& phase) {
  return Record(kPhase, {{"id", job},
                         {"ranks", phase.ranks},
                         {"boundary", phase.boundary},
                         {"start", StartToJson(phase.start)}});
}

// These three are recorded once per batch: formatted by hand in a tenth of the
// JSON library's time.
StateRecord Completed(uint64_t job, uint64_t position, uint64_t next) {
  return {kCompleted, Format(R"({{"id":{},"position":{},"next":{}}})", job,
                             position, next)};
}

StateRecord Weights(uint64_t job, const WeightsChange& change) {
  return Record(kWeights,
                {{"id", job}, {"weights", WeightsChangeToJson(change)}});
}

StateRecord HandedOver(uint64_t job, uint32_t rank, uint64_t step) {
  return {kHandedOver,
          Format(R"({{"id":{},"rank":{},"step":{}}})", job, rank, step)};
}

StateRecord Opened(const RecordedJob& job) {
  return {kOpened, Format(R"({{"id":{},"position":{},"low":{},"bytes":{}}})",
                          job.id, job.opened, job.low, job.segment_bytes)};
}

StateRecord Ledger(uint64_t job, const StreamLedger& ledger) {
  return Record(kLedger, {{"id", job}, {"ledger", ledger.ToJson()}});
}

StateRecord Producer(uint64_t job, uint32_t number,
                     const StreamLedger::Producer& producer) {
  return Record(kProducer, {{"id", job},
                            {"producer", number},
                            {"token", producer.token},
                            {"ring_rows", producer.ring_rows},
                            {"put_rows", producer.put_rows}});
}

StateRecord ProducerEnd(uint64_t job, uint32_t number, bool finished) {
  return Record(kProducerEnd,
                {{"id", job}, {"producer", number}, {"finished", finished}});
}

StateRecord RowsPut(uint64_t job, uint32_t number, uint64_t ring_position,
                    uint64_t rows, uint64_t first) {
  return Record(kRowsPut, {{"id", job},
                           {"producer", number},
                           {"place", ring_position},
                           {"rows", rows},
                           {"first", first}});
}

StateRecord RowsReleased(uint64_t job, uint64_t row) {
  return Record(kRowsReleased, {{"id", job}, {"row", row}});
}

StateRecord Retained(uint64_t job, uint64_t rows) {
  return Record(kRetained, {{"id", job}, {"rows", rows}});
}

StateRecord RowsMoved(uint64_t job, uint64_t row,
                      const std::vector<StreamLedger::Chunk>& needed) {
  json runs = json::array();
  for (const StreamLedger::Chunk& chunk : needed) {
    runs.push_back({chunk.first, chunk.rows, chunk.ring_position});
  }
  return Record(kRowsMoved,
                {{"id", job}, {"row", row}, {"needed", std::move(runs)}});
}

}  // namespace records

namespace {

// Adds the ledger's chunks to records.
void AddChunks(uint64_t job, const StreamLedger& ledger,
               std::vector<StateRecord>* records) {
  json runs = json::array();
  for (const StreamLedger::Chunk& chunk : ledger.chunks()) {
    runs.push_back(
        {chunk.first, chunk.rows, chunk.producer, chunk.ring_position});
    if (runs.size() < kRunsPerRecord && &chunk != &ledger.chunks().back()) {
      continue;
    }
    records->push_back(
        Record(kRowsKept, {{"id", job}, {"runs", std::move(runs)}}));
    runs = json::array();
  }
}

// A record of a stream.
void ApplyToLedger(uint8_t type, const json& record, StreamLedger* ledger) {
  const auto number = [&] { return record.at("producer").get<uint32_t>(); };
  switch (type) {
    case kRowsKept:
      for (const auto& run : record.at("runs")) {
        ledger->Keep({run.at(0).get<uint64_t>(), run.at(1).get<uint64_t>(),
                      run.at(2).get<uint32_t>(), run.at(3).get<uint64_t>()});
      }
      break;
    case kProducer:
      ledger->Join(number(), record.at("token").get<uint64_t>(),
                   record.at("ring_rows").get<uint64_t>(),
                   record.at("put_rows").get<uint64_t>());
      break;
    case kRowsPut:
      ledger->Put(number(), record.at("place").get<uint64_t>(),
                  record.at("rows").get<uint64_t>(),
                  record.at("first").get<uint64_t>());
      break;
    case kProducerEnd:
      ledger->Leave(number(), record.at("finished").get<bool>());
      break;
    case kRowsReleased:
      ledger->Release(record.at("row").get<uint64_t>());
      break;
    case kRetained:
      ledger->OpenRetained(record.at("rows").get<uint64_t>());
      break;
    default: {  // kRowsMoved
      std::vector<StreamLedger::Chunk> needed;
      for (const auto& run : record.at("needed")) {
        needed.push_back({run.at(0).get<uint64_t>(), run.at(1).get<uint64_t>(),
                          StreamLedger::kRetained, run.at(2).get<uint64_t>()});
      }
      ledger->Move(record.at("row").get<uint64_t>(), needed);
    }
  }
}

// A record of a job's ranks or of its progress.
void ApplyToJob(uint8_t type, const json& record, uint64_t* next_id,
                RecordedJob* job) {
  switch (type) {
    case kLaunch:
      job->launch = Launch::FromJson(record.at("launch"));
      break;
    case kRank: {
      const uint64_t attach = record.at("attach").get<uint64_t>();
      const auto [item, is_new] = job->ranks.try_emplace(attach);
      RecordedRank& rank = item->second;
      rank.rank = record.at("rank").get<uint32_t>();
      rank.from = record.at("from").get<uint64_t>();
      rank.segment = record.value("segment", uint64_t{0});
      rank.bytes = record.value("bytes", uint64_t{0});
      rank.evicted = record.value("evicted", uint64_t{0});
      if (is_new) job->launch.Attached(rank.rank);
      *next_id = std::max({*next_id, attach + 1, rank.segment + 1});
      break;
    }
    case kRankEnd:
      job->ranks.erase(record.at("attach").get<uint64_t>());
      break;
    case kRankLeft: {
      const auto rank = job->ranks.find(record.at("attach").get<uint64_t>());
      if (rank == job->ranks.end()) break;
      rank->second.left = true;
      job->launch.Left(rank->second.rank, record.value("finished", false));
      break;
    }
    case kPhase:
      job->phases.push_back({record.at("ranks").get<std::vector<uint32_t>>(),
                             record.at("boundary").get<uint64_t>(),
                             StartFromJson(record.at("start"))});
      break;
    case kCompleted:
      job->Complete(record.at("position").get<uint64_t>(),
                    record.at("next").get<uint64_t>());
      break;
    case kOpened:
      job->opened = record.at("position").get<uint64_t>();
      job->segment_bytes = record.at("bytes").get<uint64_t>();
      job->low = std::max(job->low, record.at("low").get<uint64_t>());
      break;
    case kWeights: {
      auto change = WeightsChangeFromJson(record.at("weights"));
      if (change.ok()) job->ChangeWeights(*std::move(change));
      break;
    }
    case kHandedOver:
      job->handed_over.insert({record.at("rank").get<uint32_t>(),
                               record.at("step").get<uint64_t>()});
      break;
    case kLedger:
      // Otherwise a compacted journal restored it already.
      if (!job->ledger) {
        job->ledger = StreamLedger::FromJson(record.at("ledger"));
      }
      break;
    default:
      if (job->ledger) ApplyToLedger(type, record, &*job->ledger);
  }
}

void ApplyTo(RecoveryState* state, uint8_t type, const json& record) {
  const auto id = [&] { return record.at("id").get<uint64_t>(); };
  const auto dataset = [&] {
    return std::pair(record.at("uid").get<uid_t>(),
                     record.at("name").get<std::string>());
  };
  const auto uses_id = [state](uint64_t id) {
    state->next_id = std::max(state->next_id, id + 1);
  };
  switch (type) {
    case kDataset:
      state->datasets[dataset()] = record.at("spec").get<std::string>();
      break;
    case kDatasetGone:
      state->datasets.erase(dataset());
      break;
    case kJob: {
      uses_id(id());
      StatusOr<RecordedJob> job = JobFromJson(record);
      if (!job.ok()) {
        Log<"job-given-up">(id(), job.status().message());
        break;
      }
      // A continued job is recorded again: its progress stays.
      RecordedJob& known = state->jobs[job->id];
      known.id = job->id;
      known.key = std::move(job->key);
      known.options = std::move(job->options);
      known.incarnation = job->incarnation;
      known.named = job->named;
      known.launch = std::move(job->launch);
      known.incomplete = job->incomplete;
      break;
    }
    case kJobEnd:
      state->jobs.erase(id());
      state->ended.erase(id());
      break;
    case kDelivered: {
      EndedJob job = EndedFromJson(record);
      uses_id(job.id);
      state->jobs.erase(job.id);
      state->ended[job.id] = std::move(job);
      break;
    }
    case kMapped: {
      RecordedMapping mapping;
      mapping.job = id();
      mapping.attach = record.at("attach").get<uint64_t>();
      mapping.uid = record.at("uid").get<uint32_t>();
      mapping.segment = record.at("segment").get<uint64_t>();
      mapping.bytes = record.at("bytes").get<uint64_t>();
      mapping.evicted = record.value("evicted", uint64_t{0});
      uses_id(mapping.attach);
      uses_id(mapping.segment);
      state->mapped[{mapping.job, mapping.attach}] = mapping;
      break;
    }
    case kUnmapped:
      state->mapped.erase({id(), record.at("attach").get<uint64_t>()});
      break;
    default:
      if (type == 0 || type == kBootRecord || type >= kTypesEnd) {
        Log<"record-left-out">(type, "unknown here");
      } else if (RecordedJob* const job = state->Job(id())) {
        ApplyToJob(type, record, &state->next_id, job);
      }
  }
}

}  // namespace

RecordedJob* RecoveryState::Job(uint64_t id) {
  const auto found = jobs.find(id);
  return found == jobs.end() ? nullptr : &found->second;
}

void RecoveryState::Apply(uint8_t type, std::string_view text) {
  try {
    ApplyTo(this, type, json::parse(text, nullptr, false));
  } catch (const std::exception& error) {
    Log<"record-left-out">(type, error.what());
  }
}

std::vector<StateRecord> RecoveryState::Records() const {
  std::vector<StateRecord> all;
  for (const auto& [key, spec] : datasets) {
    all.push_back(records::Dataset(key.first, key.second, spec));
  }
  for (const auto& [id, job] : ended) all.push_back(records::Delivered(job));
  for (const auto& [key, each] : mapped) all.push_back(records::Mapped(each));
  for (const auto& [id, job] : jobs) {
    all.push_back(records::Job(job));
    for (const FormerPhase& phase : job.phases) {
      all.push_back(records::Phase(id, phase));
    }
    for (const auto& [attach, rank] : job.ranks) {
      all.push_back(records::Rank(id, attach, rank));
      if (rank.left) all.push_back(records::RankLeft(id, attach, false));
    }
    // After the ranks, some of which are forgotten.
    all.push_back(
        Record(kLaunch, {{"id", id}, {"launch", job.launch.ToJson()}}));
    if (job.segment_bytes > 0) all.push_back(records::Opened(job));
    for (const auto& [position, next] : job.completed) {
      all.push_back(records::Completed(id, position, next));
    }
    for (const auto& [rank, step] : job.handed_over) {
      all.push_back(records::HandedOver(id, rank, step));
    }
    if (!job.ledger) continue;
    all.push_back(records::Ledger(id, *job.ledger));
    AddChunks(id, *job.ledger, &all);
  }
  return all;
}

}  // namespace penstock
