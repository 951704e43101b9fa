#include "broker/workers/row_maker.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "broker/transform/mixup.h"
#include "broker/workers/sample_quarantine.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// on_error: substitute tries this many records after the bad one.
constexpr uint64_t kSubstituteTries = 16;

// The machine's lack of resources is not the sample's fault.
bool IsOfSample(const Status& status) {
  return status.code() != StatusCode::kResourceExhausted &&
         status.code() != StatusCode::kInvalidArgument;
}

Status ErrorOf(const Job& job, uint64_t record, const Status& status) {
  // Read errors name the file, decoder errors do not.
  const std::string where = job.dataset().source->Describe(record);
  const bool told = std::string_view(status.message()).starts_with(where);
  return Status(status.code(),
                Format("dataset '{}': sample {}{}: {}", job.key().dataset,
                       record, told ? "" : " in " + where, status.message()));
}

Status WithWayOut(const Status& error) {
  return Status(error.code(),
                Format("{}; set `on_error` to `skip` or `substitute` to go on "
                       "without such samples",
                       error.message()));
}

}  // namespace

void RowMaker::Expect(const ClaimedRows& rows) {
  if (rows.kept->maker == nullptr) return;
  wanted_.clear();
  for (size_t i = rows.at_once; i < rows.rows.size(); ++i) {
    wanted_.push_back({rows.rows[i].record, rows.rows[i].pass});
  }
  rows.kept->maker->Expect(rows.job->options().spec.seed, wanted_);
}

void RowMaker::Make(ClaimedRows& rows, uint64_t index, const ReadBytes& read,
                    bool kept) {
  Aim(rows, index);
  const Status status = MakeRow(rows, rows.rows[index], read, kept);
  if (!status.ok()) return HandleError(rows, index, status);
  *rows.Id(index) = static_cast<int64_t>(rows.rows[index].record);
}

void RowMaker::Aim(const ClaimedRows& rows, uint64_t index) {
  out_.resize(rows.columns.size());
  for (size_t i = 0; i < out_.size(); ++i) out_[i] = rows.Place(index, i);
}

Status RowMaker::MakeRow(ClaimedRows& rows, const Plan::Row& row,
                         const ReadBytes& read, bool kept) {
  const AugmentationKey key{rows.job->options().spec.seed, row.pass,
                            row.record};
  MadeBy by = MadeBy::kSource;
  const Status status = Run(rows, key, read, kept, &by);
  if (by == MadeBy::kNothing) return ReadAndMake(rows, row);
  if (by == MadeBy::kHead) Keep(rows, row.record);
  return status;
}

Status RowMaker::Run(ClaimedRows& rows, const AugmentationKey& key,
                     const ReadBytes& read, bool kept, MadeBy* by) {
  const Dataset& dataset = rows.job->dataset();
  RowCache* const cache = dataset.cache.get();
  Job::Counters& counters = rows.job->counters();
  const size_t number = dataset.ProgramOf(key.sample);
  const RowProgram& program = *dataset.programs[number];
  RowProgram::Scratch& scratch = *rows.kept->scratch[number];
  StepClock* const clock = &rows.kept->clock;
  // The program's allowed wait for other processes does not count as the
  // sample's time.
  const SampleQuarantine::Mark mark(
      host_->samples(), thread_index_, {rows.kept->dataset_hash, key.sample},
      rows.job_number, host_->now_ns() + dataset.wait_ns());
  PENSTOCK_RETURN_IF_ERROR(mark.status());
  if (kept) {
    const StepClock::In in(clock, kUnpacking);
    const Status status =
        cache->Unpack(key.sample, read.bytes, &rows.kept->cache, &kept_);
    if (!status.ok()) {
      cache->NoteDamage(key.sample, status, rows.reads);
      *by = MadeBy::kNothing;
      return OkStatus();
    }
  }
  const auto get = [&] {
    const StepClock::In in(clock, kUnpacking);
    return cache->Get(key.sample, &kept_);
  };
  if (kept || (cache != nullptr && get())) {
    Count(counters.cache_hits, 1);
    return program.RunRest(kept_, key, scratch, out_);
  }
  {
    const StepClock::In in(clock, kUnpacking);
    PENSTOCK_RETURN_IF_ERROR(
        rows.kept->maker
            ? rows.kept->maker->Make(key.seed, {key.sample, key.epoch}, &raw_)
            : dataset.source->Unpack(key.sample, read, &unpack_scratch_,
                                     &raw_));
  }
  if (cache == nullptr) return program.Run(raw_, key, scratch, out_);
  Count(counters.cache_misses, 1);
  PENSTOCK_RETURN_IF_ERROR(program.RunHead(raw_, scratch, out_, &kept_));
  *by = MadeBy::kHead;
  return program.RunRest(kept_, key, scratch, out_);
}

// Outside of the mark: it may wait for a disk, for which no sample is to blame.
void RowMaker::Keep(ClaimedRows& rows, uint64_t record) {
  RowCache& cache = *rows.job->dataset().cache;
  const bool waits = cache.is_read();
  if (waits) {
    in_flight_->Start(substitute_entry_, rows.job_number, record,
                      host_->now_ns());
  }
  cache.Put(record, kept_, &rows.kept->cache);
  if (waits) in_flight_->End(substitute_entry_);
}

// ---- streams

uint64_t RowMaker::MakeOfStream(ClaimedRows& rows, uint64_t index) {
  const StatusOr<uint64_t> made = MakePiece(rows, index);
  if (made.ok()) return *made;
  if (made.status().code() == StatusCode::kCancelled) {
    rows.cut_off |= !rows.job->Cancelled();
  } else if (!rows.job->GivenUp(rows.claim.batch)) {
    rows.job->Fail(made.status());
  }
  return rows.rows.size() - index;
}

// Features copied unchanged go straight to the slot, all rows at once.
StatusOr<uint64_t> RowMaker::MakePiece(ClaimedRows& rows, uint64_t index) {
  uint64_t first = 0;  // index of the piece's first row
  auto piece = rows.pieces.begin();
  for (; index >= first + piece->rows; ++piece) first += piece->rows;
  const uint64_t count = first + piece->rows - index;
  const Dataset& dataset = rows.job->dataset();
  const RawSpec& features = dataset.source->raw_spec();
  const RowProgram& program = *dataset.programs[0];  // a stream has no parts
  stream_scratch_.resize(std::max(stream_scratch_.size(), features.size()));
  for (size_t i = 0; i < features.size(); ++i) {
    std::byte* out = nullptr;
    if (program.Copies(i)) {
      out = rows.Place(index, i);
    } else {
      stream_scratch_[i].resize(count * features[i].feature.RowBytes());
      out = stream_scratch_[i].data();
    }
    PENSTOCK_RETURN_IF_ERROR(piece->Read(i, index - first, count, out));
  }
  raw_.resize(features.size());
  for (uint64_t row = index; row < index + count; ++row) {
    Aim(rows, row);
    for (size_t i = 0; i < features.size(); ++i) {
      const uint64_t bytes = features[i].feature.RowBytes();
      raw_[i] = {program.Copies(i)
                     ? out_[i]
                     : stream_scratch_[i].data() + (row - index) * bytes,
                 bytes};
    }
    const uint64_t record = rows.rows[row].record;
    const AugmentationKey key{rows.job->options().spec.seed,
                              rows.rows[row].pass, record};
    const SampleQuarantine::Mark mark(
        host_->samples(), thread_index_, {rows.kept->dataset_hash, record},
        rows.job_number, host_->now_ns() + dataset.wait_ns());
    PENSTOCK_RETURN_IF_ERROR(mark.status());
    const Status status = program.Run(raw_, key, *rows.kept->scratch[0], out_);
    if (!status.ok()) {
      return status.Prepend(Format("dataset '{}': row {} of its producers",
                                   rows.job->key().dataset, record));
    }
    *rows.Id(row) = static_cast<int64_t>(record);
  }
  return count;
}

// ---- errors

void RowMaker::HandleError(ClaimedRows& rows, uint64_t index,
                           const Status& status) {
  Job& job = *rows.job;
  if (status.code() == StatusCode::kCancelled) {
    // The row is not awaited; or the broker stops before it is made.
    rows.cut_off |= !job.Cancelled();
    return;
  }
  if (job.GivenUp(rows.claim.batch)) return;
  const Status error = ErrorOf(job, rows.rows[index].record, status);
  if (!IsOfSample(status)) return job.Fail(error);
  if (RowCache* const cache = job.dataset().cache.get()) {
    cache->Fail(rows.rows[index].record);
  }
  switch (job.options().spec.on_error) {
    case OnError::kFail:
      job.Fail(WithWayOut(error));
      return;
    case OnError::kSubstitute:
      Aim(rows, index);
      if (const auto record = Substitute(rows, rows.rows[index])) {
        *rows.Id(index) = static_cast<int64_t>(*record);
        job.CountSubstitute(error);
        return;
      }
      job.Fail(Status(
          status.code(),
          Format("{}; {} after it cannot be read either", error.message(),
                 Counted(
                     std::min(kSubstituteTries, rows.claim.plan->records() - 1),
                     "sample"))));
      return;
    case OnError::kSkip:
      rows.left_out.push_back(index);
      job.LeaveOut(rows.claim.batch, rows.claim.begin + index, error);
      return;
  }
}

Status RowMaker::ReadAndMake(ClaimedRows& rows, const Plan::Row& row) {
  const Dataset& dataset = rows.job->dataset();
  const RowCache* const cache = dataset.cache.get();
  ReadRequest request;
  dataset.source->Locate(row.record, &request);
  if (request.kind == ReadRequest::Kind::kNone ||
      (cache != nullptr && !cache->is_read() && cache->Has(row.record))) {
    return MakeRow(rows, row, {}, false);
  }
  if (substitute_reader_ == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(substitute_reader_,
                              MakeStorageReader(ReadBackend::kPread, 1));
    substitute_reader_->ReportBlocking(in_flight_->blocked_on(),
                                       substitute_entry_);
  }
  in_flight_->Start(substitute_entry_, rows.job_number, row.record,
                    host_->now_ns());
  substitute_reader_->Start(0, request, {}, kNotPinned);
  substitute_reader_->Submit();
  StorageReader::Done done;
  const bool read = substitute_reader_->Next(kWaitForever, &done);
  in_flight_->End(substitute_entry_);
  if (!read) return InternalError("a read was lost");
  const Status status =
      done.status.ok() ? MakeRow(rows, row, done.read(), false) : done.status;
  substitute_reader_->Release(0);
  return status;
}

// Makes the row from the next readable record. The choice depends only on the
// data, so a resumed run substitutes the same.
std::optional<uint64_t> RowMaker::Substitute(ClaimedRows& rows,
                                             const Plan::Row& row) {
  const Plan& plan = *rows.claim.plan;
  for (uint64_t i = 1; i <= std::min(kSubstituteTries, plan.records() - 1);
       ++i) {
    const Plan::Row other = plan.Following(row, i, &rows.kept->shuffles);
    const Status made = ReadAndMake(rows, other);
    // A slow read may have failed the job.
    if (rows.job->Cancelled()) return std::nullopt;
    if (made.ok()) return other.record;
  }
  return std::nullopt;
}

// ---- pairs

void RowMaker::MixPairs(ClaimedRows& rows) {
  const Dataset& dataset = rows.job->dataset();
  if (!dataset.mixes_pairs() || rows.cut_off || rows.job->Cancelled()) return;
  const Plan::RankBatch& batch = rows.claim.batch->rows;
  const uint64_t seed = rows.job->options().spec.seed;
  const uint64_t end = rows.job->plan().rows_per_epoch();
  const uint64_t first = batch.first_row + rows.claim.begin;
  const auto is_left_out = [&rows](uint64_t index) {
    return std::find(rows.left_out.begin(), rows.left_out.end(), index) !=
           rows.left_out.end();
  };
  std::vector<std::byte*> out;
  for (uint64_t index = 0; index < rows.rows.size(); ++index) {
    const uint64_t row = first + index;
    const auto partner = PartnerOf(row, end, seed, batch.epoch);
    if (!partner || is_left_out(index)) continue;
    const AugmentationKey key{seed, batch.epoch, std::min(row, *partner)};
    const bool is_mutual = PartnerOf(*partner, end, seed, batch.epoch) == row;
    if (is_mutual && *partner >= first && *partner - first < rows.rows.size()) {
      if (*partner < row || is_left_out(*partner - first)) continue;
      Aim(rows, *partner - first);
    } else {
      const Status made = MakePartner(rows, *partner);
      if (made.code() == StatusCode::kCancelled) {
        rows.cut_off |= !rows.job->Cancelled();
        return;
      }
      if (!made.ok()) continue;
    }
    out.clear();
    for (size_t i = 0; i < rows.columns.size(); ++i) {
      out.push_back(rows.Place(index, i));
    }
    // Of the last step of `map`, if several mix pairs.
    const auto part = static_cast<uint32_t>(
        kFirstStep + rows.job->options().spec.map.size() - 1);
    const StepClock::In in(&rows.kept->clock, part);
    const size_t number = dataset.ProgramOf(rows.rows[index].record);
    dataset.programs[number]->MixPair(key, out, out_);
  }
}

// Into memory of its own. An error: on_error leaves it out; or the job is over.
Status RowMaker::MakePartner(ClaimedRows& rows, uint64_t row_of_epoch) {
  Job& job = *rows.job;
  const ElementSpec& element =
      job.dataset().element_spec(rows.claim.batch->rows.part);
  partner_.resize(std::max(partner_.size(), element.size()));
  out_.resize(element.size());
  for (size_t i = 0; i < element.size(); ++i) {
    partner_[i].resize(std::max(partner_[i].size(), element[i].RowBytes()));
    out_[i] = partner_[i].data();
  }
  Plan::Row row;
  rows.claim.plan->Rows(rows.claim.batch->rows.epoch, row_of_epoch, 1,
                        &rows.kept->shuffles, &row);
  const Status status = ReadAndMake(rows, row);
  if (status.ok() || status.code() == StatusCode::kCancelled) return status;
  const OnError on_error = job.options().spec.on_error;
  if (IsOfSample(status)) {
    if (on_error == OnError::kSkip) return status;
    if (on_error == OnError::kSubstitute && Substitute(rows, row)) {
      return OkStatus();
    }
  }
  if (!job.GivenUp(rows.claim.batch)) {
    job.Fail(WithWayOut(ErrorOf(job, row.record, status)));
  }
  return status;
}

}  // namespace penstock
