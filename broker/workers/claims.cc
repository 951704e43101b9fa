#include "broker/workers/claims.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "broker/transform/mixup.h"

namespace penstock {

WorkerJob& Claims::StateOf(const std::shared_ptr<Job>& job, uint64_t number) {
  WorkerJob& state = (*jobs_)[job.get()];
  if (state.maker != nullptr && state.job.lock() == job) return state;
  // Also drops ended jobs. An awaited read keeps its job, so ended jobs have
  // none.
  for (auto it = jobs_->begin(); it != jobs_->end();) {
    if (it->first == job.get() || !it->second.job.expired()) {
      ++it;
      continue;
    }
    reads_->Unpin(it->second.reads);
    it = jobs_->erase(it);
  }
  reads_->Unpin(state.reads);
  const Cancelled cancelled = [this, job = job.get()] {
    return job->Cancelled() || host_->stopping();
  };
  RowMaker::Watch watch = watch_;
  watch.job_number = number;
  state = {job, std::make_unique<RowMaker>(job->dataset(), job->options().spec,
                                           cancelled, watch)};
  state.maker->SetOnProcessEnd(
      [&state](size_t begun) { state.in_work->GiveBack(begun); });
  return state;
}

bool Claims::ClaimMore() {
  // Takes the host's lock only after news, not per sample.
  const uint64_t news = host_->news();
  if (failed_ && news == news_seen_) return false;
  jobs_of_open_.clear();
  Turn before = kLastTurn;
  for (const auto& rows : open_) {
    jobs_of_open_.push_back(rows->job.get());
    if (rows->at_once == rows->rows.size()) continue;
    // A claim not yet started is made next.
    before =
        rows->at_once == rows->to_read
            ? Turn{}
            : std::min(before, order_.TurnIn(CandidateOf(
                                   *rows->account, *rows->job, MonotonicNs())));
  }
  std::sort(jobs_of_open_.begin(), jobs_of_open_.end());
  WorkerHost::Claimed claimed = host_->ClaimFair(&order_, jobs_of_open_, before,
                                                 seat_, reads_->blocking());
  failed_ = claimed.claim.batch == nullptr;
  news_seen_ = news;
  if (failed_) return false;

  auto rows = std::make_shared<ClaimedRows>();
  rows->job = std::move(claimed.job);
  rows->account = claimed.account;
  rows->state = &StateOf(rows->job, claimed.number);
  rows->job_number = claimed.number;
  rows->claim = claimed.claim;
  const Plan::RankBatch& batch = rows->claim.batch->rows;
  const uint64_t count = rows->claim.end - rows->claim.begin;
  rows->rows.resize(count);
  rows->claim.plan->Rows(batch.epoch, batch.first_row + rows->claim.begin,
                         count, &rows->state->shuffles, rows->rows.data());
  rows->in_slot = rows->job->segment().rows(
      rows->claim.slot, rows->job->dataset().element_spec(batch.part));
  if (rows->job->dataset().packing != nullptr) rows->Unpack();
  const uint64_t first = rows->rows.front().record;
  if (const Stream* const stream = rows->job->stream()) {
    auto pieces = stream->Find(first, count);
    if (pieces.ok()) {
      rows->pieces = *std::move(pieces);
    } else {
      rows->job->Fail(pieces.status());
    }
  } else {
    if (const AskedRows* const asked = rows->job->asked()) {
      const Status found = asked->Find(first, rows->rows);
      if (!found.ok()) {
        rows->job->Fail(found);
        std::fill(rows->rows.begin(), rows->rows.end(), Plan::Row());
      }
    }
    if (RemoteRows* const remote = rows->job->remote()) {
      rows->heads = remote->Take(rows->rows);
    }
    request_.more.clear();
    rows->job->dataset().source->Locate(rows->rows.front().record, &request_);
    rows->reads = request_.kind != ReadRequest::Kind::kNone;
    Sort(rows.get());
  }
  open_.push_back(std::move(rows));
  return true;
}

// Which rows are read, and which are made at once.
void Claims::Sort(ClaimedRows* rows) {
  const uint64_t count = rows->rows.size();
  const RowCache* const cache = rows->job->dataset().cache.get();
  if (cache == nullptr && (rows->heads.of_rows.empty() || !rows->reads)) {
    rows->to_read = rows->reads ? count : 0;
  } else {
    // By now: what is cached meanwhile is found when the row is made.
    const auto is_read = [&](uint32_t i) {
      if (rows->HeadOf(i) != nullptr) return false;
      return cache != nullptr && cache->Has(rows->rows[i].record)
                 ? cache->is_read()
                 : rows->reads;
    };
    rows->order.resize(count);
    std::iota(rows->order.begin(), rows->order.end(), 0);
    rows->to_read = static_cast<uint64_t>(
        std::stable_partition(rows->order.begin(), rows->order.end(), is_read) -
        rows->order.begin());
  }
  rows->at_once = rows->to_read;
}

void Claims::Close(size_t i) {
  const ClaimedRows& rows = *open_[i];
  order_.Add(rows.reads || rows.to_read > 0,
             {order_.TurnIn(CandidateOf(*rows.account)), rows.account->index});
  open_.erase(open_.begin() + static_cast<ptrdiff_t>(i));
  failed_ = false;
}

void ClaimedRows::Unpack() {
  const Packing& packing = *job->dataset().packing;
  const PackedRows& packed_rows = *job->dataset().packed_rows;
  const std::vector<Plan::Row> sequences = std::move(rows);
  rows.clear();
  std::vector<Piece> of_row;
  std::vector<std::byte*> places(in_slot.features());
  for (uint64_t row = 0; row < sequences.size(); ++row) {
    const Plan::Row& sequence = sequences[row];
    packing.PiecesOf(sequence.record, sequence.pass, &of_row);
    for (const Piece& piece : of_row) {
      Plan::Row& document = rows.emplace_back(sequence);
      document.record = piece.record;
      packed.push_back({row, piece});
    }
    for (size_t i = 0; i < places.size(); ++i) {
      places[i] = in_slot.Place(claim.begin + row, i);
    }
    packed_rows.Begin(of_row, places);
    in_slot.Id(claim.begin + row) = static_cast<int64_t>(sequence.record);
  }
}

void ClaimedRows::GiveBack(uint64_t begun) {
  // Rows to read are in flight, in an order of their own. The documents of a
  // packed row stay together.
  if (to_read > 0 || !pieces.empty() || !packed.empty()) return;
  if (begun >= rows.size() - at_once) return;
  uint64_t end = claim.begin + at_once + begun;
  if (job->dataset().mixes_pairs()) {
    const uint64_t row = claim.batch->rows.first_row + end;
    end += (kPairedRows - row % kPairedRows) % kPairedRows;
  }
  if (end >= claim.end) return;
  Claim rest = claim;
  rest.begin = claim.end = end;
  rows.resize(end - claim.begin);
  if (!order.empty()) order.resize(rows.size());
  job->GiveBack(rest);
}

void ClaimedRows::Finish(uint64_t count) {
  finished += count;
  if (finished < rows.size() || cut_off) return;
  Job::Counters& counters = job->counters();
  Count(claim.local ? counters.rows_local : counters.rows_remote,
        claim.end - claim.begin);
  if (!heads.of_rows.empty()) job->remote()->Free(heads);
  job->FinishRows(claim);
}

}  // namespace penstock
