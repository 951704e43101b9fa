#include "broker/workers/row_maker.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "broker/workers/sample_quarantine.h"

namespace penstock {
namespace {

// on_error: substitute tries this many records after the bad one.
constexpr uint64_t kSubstituteTries = 16;

}  // namespace

void RowMaker::Expect(const ClaimedRows& rows) {
  if (rows.kept->maker == nullptr) return;
  wanted_.clear();
  for (size_t i = rows.started; i < rows.rows.size(); ++i) {
    wanted_.push_back({rows.rows[i].record, rows.rows[i].pass});
  }
  rows.kept->maker->Expect(rows.job->options().spec.seed, wanted_);
}

void RowMaker::Make(ClaimedRows& rows, uint64_t index, const ReadBytes& read) {
  const Status status = MakeRow(rows, index, rows.rows[index].record, read);
  if (!status.ok()) HandleError(rows, index, status);
}

// Makes `record` as row `index`; a substitute differs from the plan's record.
Status RowMaker::MakeRow(ClaimedRows& rows, uint64_t index, uint64_t record,
                         const ReadBytes& read) {
  const Dataset& dataset = rows.job->dataset();
  // The program's allowed wait for other processes does not count as the
  // sample's time.
  const SampleQuarantine::Mark mark(
      pool_->samples(), thread_index_, {rows.kept->dataset_hash, record},
      rows.job_number, pool_->now_ns() + dataset.wait_ns());
  PENSTOCK_RETURN_IF_ERROR(mark.status());
  const AugmentationKey key{rows.job->options().spec.seed,
                            rows.rows[index].pass, record};
  PENSTOCK_RETURN_IF_ERROR(
      rows.kept->maker
          ? rows.kept->maker->Make(key.seed, {record, key.epoch}, &raw_)
          : dataset.source->Unpack(record, read, &unpack_scratch_, &raw_));
  out_.resize(rows.columns.size());
  for (size_t i = 0; i < out_.size(); ++i) out_[i] = rows.Place(index, i);
  PENSTOCK_RETURN_IF_ERROR(
      dataset.program->Run(raw_, key, *rows.kept->scratch, out_));
  rows.job->segment().ids(rows.claim.slot)[rows.claim.begin + index] =
      static_cast<int64_t>(record);
  return OkStatus();
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
  stream_scratch_.resize(std::max(stream_scratch_.size(), features.size()));
  for (size_t i = 0; i < features.size(); ++i) {
    std::byte* out = nullptr;
    if (dataset.program->Copies(i)) {
      out = rows.Place(index, i);
    } else {
      stream_scratch_[i].resize(count * features[i].feature.RowBytes());
      out = stream_scratch_[i].data();
    }
    PENSTOCK_RETURN_IF_ERROR(piece->Read(i, index - first, count, out));
  }
  raw_.resize(features.size());
  out_.resize(rows.columns.size());
  int64_t* const ids = rows.job->segment().ids(rows.claim.slot);
  for (uint64_t row = index; row < index + count; ++row) {
    for (size_t i = 0; i < out_.size(); ++i) out_[i] = rows.Place(row, i);
    for (size_t i = 0; i < features.size(); ++i) {
      const uint64_t bytes = features[i].feature.RowBytes();
      raw_[i] = {dataset.program->Copies(i)
                     ? out_[i]
                     : stream_scratch_[i].data() + (row - index) * bytes,
                 bytes};
    }
    const uint64_t record = rows.rows[row].record;
    const AugmentationKey key{rows.job->options().spec.seed,
                              rows.rows[row].pass, record};
    const SampleQuarantine::Mark mark(
        pool_->samples(), thread_index_, {rows.kept->dataset_hash, record},
        rows.job_number, pool_->now_ns() + dataset.wait_ns());
    PENSTOCK_RETURN_IF_ERROR(mark.status());
    const Status status =
        dataset.program->Run(raw_, key, *rows.kept->scratch, out_);
    if (!status.ok()) {
      return status.Prepend(Format("dataset '{}': row {} of its producers",
                                   rows.job->key().dataset, record));
    }
    ids[rows.claim.begin + row] = static_cast<int64_t>(record);
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
  const uint64_t record = rows.rows[index].record;
  // Read errors name the file, decoder errors do not.
  const std::string where = job.dataset().source->Describe(record);
  const bool told = std::string_view(status.message()).starts_with(where);
  const std::string text =
      Format("dataset '{}': sample {}{}: {}", job.key().dataset, record,
             told ? "" : " in " + where, status.message());
  // The machine's lack of resources is not the sample's fault.
  if (status.code() == StatusCode::kResourceExhausted ||
      status.code() == StatusCode::kInvalidArgument) {
    return job.Fail(Status(status.code(), text));
  }
  switch (job.options().spec.on_error) {
    case OnError::kFail:
      job.Fail(Status(status.code(),
                      text + "; set `on_error` to `skip` or `substitute` to go "
                             "on without such samples"));
      return;
    case OnError::kSubstitute:
      if (Substitute(rows, index)) {
        job.CountSubstitute(Status(status.code(), text));
        return;
      }
      job.Fail(Status(status.code(),
                      Format("{}; the {} samples after it cannot be read "
                             "either",
                             text, kSubstituteTries)));
      return;
    case OnError::kSkip:
      job.LeaveOut(rows.claim.batch, rows.claim.begin + index,
                   Status(status.code(), text));
      return;
  }
}

// Makes the row from the next readable record. The choice depends only on the
// data, so a resumed run substitutes the same.
bool RowMaker::Substitute(ClaimedRows& rows, uint64_t index) {
  const Source& source = *rows.job->dataset().source;
  const uint64_t count = source.record_count();
  if (substitute_reader_ == nullptr) {
    auto reader = MakeStorageReader(ReadBackend::kPread, 1);
    if (!reader.ok()) return false;
    substitute_reader_ = *std::move(reader);
    substitute_reader_->ReportBlocking(in_flight_->blocked_on(),
                                       substitute_entry_);
  }
  for (uint64_t i = 1; i <= std::min(kSubstituteTries, count - 1); ++i) {
    const uint64_t record = (rows.rows[index].record + i) % count;
    ReadRequest request;
    source.Locate(record, &request);
    if (request.kind == ReadRequest::Kind::kNone) {
      if (MakeRow(rows, index, record, {}).ok()) return true;
      if (rows.job->Cancelled()) return false;
      continue;
    }
    in_flight_->Start(substitute_entry_, rows.job_number, record,
                      pool_->now_ns());
    substitute_reader_->Start(0, request, {}, kNotPinned);
    substitute_reader_->Submit();
    StorageReader::Done done;
    const bool read = substitute_reader_->Next(kWaitForever, &done);
    in_flight_->End(substitute_entry_);
    // A slow read may have failed the job.
    if (!read || rows.job->Cancelled()) return false;
    const bool made =
        done.status.ok() && MakeRow(rows, index, record, done.read()).ok();
    substitute_reader_->Release(0);
    if (made) return true;
  }
  return false;
}

}  // namespace penstock
