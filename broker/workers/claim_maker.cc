#include "broker/workers/claim_maker.h"

#include <algorithm>
#include <span>
#include <utility>

#include "broker/transform/mixup.h"

namespace penstock {

void ClaimMaker::Expect(const ClaimedRows& rows) {
  rows.state->maker->Expect(std::span(rows.rows).subspan(rows.at_once));
}

void ClaimMaker::Aim(const ClaimedRows& rows, uint64_t index) {
  rows.state->maker->SetPart(rows.claim.batch->rows.part);
  out_.resize(rows.in_slot.features());
  for (size_t i = 0; i < out_.size(); ++i) out_[i] = rows.Place(index, i);
  if (!rows.packed.empty()) {
    rows.state->maker->SetPiece(rows.packed[index].piece);
  }
}

void ClaimMaker::Make(ClaimedRows& rows, uint64_t index, const ReadBytes& read,
                      bool from_cache) {
  RowMaker& maker = *rows.state->maker;
  const Plan::Row& row = rows.rows[index];
  if (const RemoteRows::Head* const head = rows.HeadOf(index)) {
    FinishAdded(rows);
    Aim(rows, index);
    const Status made =
        maker.MakeOfHead(rows.job->remote(), rows.heads, *head, row, out_);
    return Made(rows, index, made);
  }
  if (maker.takes_several()) {
    if (maker.IsFull(row)) FinishAdded(rows);
    Aim(rows, index);
    const auto added = maker.Add(row, read, from_cache, out_);
    if (!added.ok()) return Made(rows, index, added.status());
    if (*added == RowMaker::Added::kMade) return Made(rows, index, OkStatus());
    if (*added == RowMaker::Added::kAdded) return added_.push_back(index);
    FinishAdded(rows);
  }
  Aim(rows, index);
  Made(rows, index, maker.Make(row, read, from_cache, out_));
}

void ClaimMaker::Made(ClaimedRows& rows, uint64_t index, const Status& status) {
  if (!status.ok()) return HandleError(rows, index, status);
  if (!rows.packed.empty()) return;  // its id is that of the sequence
  rows.Id(index) = static_cast<int64_t>(rows.rows[index].record);
}

// Errors come last: a substitute is made where these rows are.
void ClaimMaker::FinishAdded(ClaimedRows& rows) {
  if (added_.empty()) return;
  RowMaker& maker = *rows.state->maker;
  std::vector<std::pair<uint64_t, Status>> failed;
  maker.CallAdded();
  for (size_t i = 0; i < added_.size(); ++i) {
    Aim(rows, added_[i]);
    const Status status = maker.Finish(i, out_);
    if (status.ok()) {
      Made(rows, added_[i], status);
    } else {
      failed.emplace_back(added_[i], status);
    }
  }
  maker.ForgetAdded();
  added_.clear();
  for (const auto& [index, status] : failed) HandleError(rows, index, status);
}

void ClaimMaker::End(ClaimedRows& rows, const Status& status) {
  if (status.code() == StatusCode::kCancelled) {
    // Nobody waits for the rows; or the broker stops before they are made.
    rows.cut_off |= !rows.job->Cancelled();
  } else if (!rows.job->GivenUp(rows.claim.batch)) {
    rows.job->FailBatch(rows.claim.batch, status);
  }
}

void ClaimMaker::HandleError(ClaimedRows& rows, uint64_t index,
                             const Status& status) {
  Job& job = *rows.job;
  if (status.code() != StatusCode::kCancelled &&
      job.GivenUp(rows.claim.batch)) {
    return;
  }
  FinishAdded(rows);
  Aim(rows, index);
  const auto outcome = rows.state->maker->Recover(
      rows.rows[index], status, *rows.claim.plan, &rows.state->shuffles, out_);
  if (!outcome.ok()) return End(rows, outcome.status());
  if (outcome->record) {
    rows.Id(index) = static_cast<int64_t>(*outcome->record);
    job.CountSubstitute(rows.rows[index].record, outcome->error);
  } else if (!rows.packed.empty()) {
    job.dataset().packed_rows->LeaveOut(rows.packed[index].piece, out_);
    job.CountLeftOut(rows.rows[index].record, outcome->error);
  } else {
    rows.left_out.push_back(index);
    job.LeaveOut(rows.claim.batch, rows.claim.begin + index,
                 rows.rows[index].record, outcome->error);
  }
}

// ---- streams

uint64_t ClaimMaker::MakeOfStream(ClaimedRows& rows, uint64_t index) {
  const StatusOr<uint64_t> made = MakePiece(rows, index);
  if (made.ok()) return *made;
  End(rows, made.status());
  return rows.rows.size() - index;
}

// Features copied unchanged go straight to the slot, all rows at once.
StatusOr<uint64_t> ClaimMaker::MakePiece(ClaimedRows& rows, uint64_t index) {
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
  stream_row_.resize(features.size());
  for (uint64_t at = index; at < index + count; ++at) {
    Aim(rows, at);
    for (size_t i = 0; i < features.size(); ++i) {
      const uint64_t bytes = features[i].feature.RowBytes();
      stream_row_[i] = {program.Copies(i)
                            ? out_[i]
                            : stream_scratch_[i].data() + (at - index) * bytes,
                        bytes};
    }
    const Plan::Row& row = rows.rows[at];
    const Status status = rows.state->maker->MakeOf(stream_row_, row, out_);
    if (!status.ok()) {
      return status.Prepend(Format("dataset '{}': row {} of its producers",
                                   rows.job->key().dataset, row.record));
    }
    rows.Id(at) = static_cast<int64_t>(row.record);
  }
  return count;
}

// ---- pairs

void ClaimMaker::MixPairs(ClaimedRows& rows) {
  if (!rows.job->dataset().mixes_pairs()) return;
  const Plan::RankBatch& batch = rows.claim.batch->rows;
  const uint64_t seed = rows.job->options().spec.seed;
  const uint64_t end = rows.job->plan().rows_per_epoch();
  const uint64_t first = batch.first_row + rows.claim.begin;
  const auto is_left_out = [&rows](uint64_t index) {
    return std::find(rows.left_out.begin(), rows.left_out.end(), index) !=
           rows.left_out.end();
  };
  for (uint64_t index = 0; index < rows.rows.size(); ++index) {
    if (rows.cut_off || rows.job->Cancelled()) return;
    const uint64_t row = first + index;
    const auto partner = PartnerOf(row, end, seed, batch.epoch);
    if (!partner || is_left_out(index)) continue;
    const bool is_mutual = PartnerOf(*partner, end, seed, batch.epoch) == row;
    if (is_mutual && *partner >= first && *partner - first < rows.rows.size()) {
      if (*partner < row || is_left_out(*partner - first)) continue;
      Aim(rows, *partner - first);
      partner_out_ = out_;
    } else if (!MakePartner(rows, *partner)) {
      continue;
    }
    Aim(rows, index);
    rows.state->maker->MixPair(rows.rows[index],
                               {seed, batch.epoch, std::min(row, *partner)},
                               out_, partner_out_);
  }
}

// Into memory of its own.
bool ClaimMaker::MakePartner(ClaimedRows& rows, uint64_t row_of_epoch) {
  const Plan::RankBatch& batch = rows.claim.batch->rows;
  const ElementSpec& element = rows.job->dataset().element_spec(batch.part);
  partner_.resize(std::max(partner_.size(), element.size()));
  partner_out_.resize(element.size());
  for (size_t i = 0; i < element.size(); ++i) {
    partner_[i].resize(std::max(partner_[i].size(), element[i].RowBytes()));
    partner_out_[i] = partner_[i].data();
  }
  Plan::Row row;
  rows.claim.plan->Rows(batch.epoch, row_of_epoch, 1, &rows.state->shuffles,
                        &row);
  const auto outcome = rows.state->maker->MakeAnyhow(
      row, *rows.claim.plan, &rows.state->shuffles, partner_out_);
  if (!outcome.ok()) End(rows, outcome.status());
  return outcome.ok() && outcome->record;
}

}  // namespace penstock
