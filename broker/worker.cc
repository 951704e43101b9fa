#include "broker/worker.h"

#include <chrono>

#include "broker/worker_pool.h"

namespace penstock {
namespace {

// on_error: substitute tries this many records after the bad one.
constexpr uint64_t kSubstituteTries = 16;
// Rows that need no reading are made for this long before reads get their turn.
constexpr uint64_t kInlineNs = 10'000'000;

uint64_t NowNs() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Counters are relaxed: they are shown and compared, nothing depends on them.
void Count(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.fetch_add(value, std::memory_order_relaxed);
}

}  // namespace

Worker::Worker(WorkerPool* pool, std::unique_ptr<Reader> reader)
    : pool_(pool), reader_(std::move(reader)), tickets_(reader_->depth()) {
  for (uint32_t ticket = reader_->depth(); ticket > 0; --ticket) {
    free_tickets_.push_back(ticket - 1);
  }
}

Worker::ProgramScratch& Worker::ScratchOf(const std::shared_ptr<Job>& job) {
  ProgramScratch& entry = scratch_[job.get()];
  if (entry.scratch == nullptr || entry.job.lock() != job) {
    // Also the moment to forget jobs that ended.
    std::erase_if(scratch_, [&](const auto& item) {
      return item.first != job.get() && item.second.job.expired();
    });
    entry.job = job;
    entry.scratch = job->dataset().program->MakeScratch();
    entry.order = Plan::OrderCache();
  }
  return entry;
}

bool Worker::ClaimMore() {
  std::shared_ptr<Job> job;
  const Claim claim = pool_->ClaimFair(&job);
  if (claim.share == nullptr) return false;
  current_ = std::make_shared<Work>();
  current_->job = job;
  current_->claim = claim;
  current_->rows.resize(claim.end - claim.begin);
  const Plan::Share& share = claim.share->rows;
  job->plan().Rows(share.epoch, share.first_row + claim.begin,
                   claim.end - claim.begin, &ScratchOf(job).order,
                   current_->rows.data());
  return true;
}

bool Worker::StartReads() {
  Work& work = *current_;
  const Source& source = *work.job->dataset().source;
  const uint64_t begin_ns = NowNs();
  uint64_t made = 0;
  while (work.started < work.rows.size()) {
    const uint64_t index = work.started;
    source.Locate(work.rows[index].record, &request_);
    if (request_.kind == ReadRequest::Kind::kNone) {
      if (work.job->Pointless()) {
        made += work.rows.size() - work.started;
        work.started = work.rows.size();
        break;
      }
      // Reads of other jobs must not wait for long.
      if (made % 8 == 0 && made > 0 && NowNs() - begin_ns > kInlineNs) break;
      ++work.started;
      ++made;
      const Status status = MakeRow(work, index, work.rows[index].record, {});
      if (!status.ok()) HandleError(work, index, status);
      continue;
    }
    if (free_tickets_.empty()) break;
    const uint32_t ticket = free_tickets_.back();
    free_tickets_.pop_back();
    tickets_[ticket] = {current_, index};
    ++work.started;
    reader_->Start(ticket, request_, {});
  }
  if (made > 0) {
    const uint64_t spent = NowNs() - begin_ns;
    Count(work.job->counters().decode_ns, spent);
    Count(work.job->counters().decoded, made);
    Count(work.job->virtual_time_ns, spent);
    Done(work, made);
  }
  if (work.started == work.rows.size()) current_ = nullptr;
  return made > 0;
}

bool Worker::RunOnce() {
  bool any = false;
  for (;;) {
    // Read ahead: keep the tickets busy. After a piece of work that needs no
    // reading it is the turn of what has been read.
    bool inline_made = false;
    while (!free_tickets_.empty() && !inline_made) {
      if (current_ == nullptr && !ClaimMore()) break;
      any = true;
      inline_made = StartReads();
    }
    reader_->Submit();
    if (reader_->in_flight() == 0) {
      if (!inline_made && current_ == nullptr) return any;
      continue;
    }
    Reader::Done done;
    if (!reader_->Next(false, &done)) {
      if (inline_made) continue;
      const uint64_t begin_ns = NowNs();
      if (!reader_->Next(true, &done)) continue;
      Count(tickets_[done.ticket].work->job->counters().read_wait_ns,
            NowNs() - begin_ns);
    }
    const Ticket ticket = std::move(tickets_[done.ticket]);
    Finish(ticket, done.status, done.bytes);
    reader_->Release(done.ticket);
    free_tickets_.push_back(done.ticket);
  }
}

void Worker::Finish(const Ticket& ticket, const Status& read,
                    std::span<const std::byte> bytes) {
  Work& work = *ticket.work;
  const uint64_t begin_ns = NowNs();
  Count(work.job->counters().bytes_read, bytes.size());
  if (!work.job->Pointless()) {
    const Status status =
        read.ok()
            ? MakeRow(work, ticket.index, work.rows[ticket.index].record, bytes)
            : read;
    if (!status.ok()) HandleError(work, ticket.index, status);
  }
  const uint64_t spent = NowNs() - begin_ns;
  Count(work.job->counters().decode_ns, spent);
  Count(work.job->counters().decoded, 1);
  Count(work.job->virtual_time_ns, spent);
  Done(work, 1);
}

// Decodes record into the place of the claim's row index.
Status Worker::MakeRow(Work& work, uint64_t index, uint64_t record,
                       std::span<const std::byte> bytes) {
  const Dataset& dataset = work.job->dataset();
  const Segment& segment = work.job->segment();
  PENSTOCK_RETURN_IF_ERROR(
      dataset.source->Unpack(record, bytes, &unpack_scratch_, &raw_));
  const uint64_t row = work.claim.begin + index;
  const uint32_t slot = work.claim.share->slot;
  const ElementSpec& element = dataset.program->element_spec();
  out_.resize(element.size());
  for (size_t i = 0; i < element.size(); ++i) {
    out_[i] = segment.feature(slot, i) + row * element[i].RowBytes();
  }
  const AugmentationKey key{work.job->options().spec.seed,
                            work.rows[index].pass, record};
  PENSTOCK_RETURN_IF_ERROR(
      dataset.program->Run(raw_, key, *ScratchOf(work.job).scratch, out_));
  segment.ids(slot)[row] = static_cast<int64_t>(record);
  return OkStatus();
}

void Worker::HandleError(Work& work, uint64_t index, const Status& status) {
  Job& job = *work.job;
  const uint64_t record = work.rows[index].record;
  const std::string text = fmt::format(
      "dataset '{}': sample {} in {}: {}", job.key().dataset, record,
      job.dataset().source->Describe(record), status.message());
  switch (job.options().spec.on_error) {
    case OnError::kFail:
      job.Fail(Status(status.code(),
                      text + "; set `on_error: skip` or `substitute` in the "
                             "spec to go on without such samples"));
      return;
    case OnError::kSubstitute:
      if (Substitute(work, index)) {
        job.CountSubstitute(text);
        return;
      }
      job.Fail(Status(status.code(),
                      fmt::format("{}; the {} samples after it cannot be read "
                                  "either",
                                  text, kSubstituteTries)));
      return;
    case OnError::kSkip:
      job.LeaveOut(work.claim.share, work.claim.begin + index, text);
      return;
  }
}

// Puts the next readable record in the row's place: a function of the data
// alone, so a resumed run substitutes the same.
bool Worker::Substitute(Work& work, uint64_t index) {
  const Source& source = *work.job->dataset().source;
  const uint64_t count = source.record_count();
  if (substitute_reader_ == nullptr) {
    auto reader = MakeReader(ReadBackend::kPread, 1);
    if (!reader.ok()) return false;
    substitute_reader_ = *std::move(reader);
  }
  for (uint64_t i = 1; i <= std::min(kSubstituteTries, count - 1); ++i) {
    const uint64_t record = (work.rows[index].record + i) % count;
    ReadRequest request;
    source.Locate(record, &request);
    if (request.kind == ReadRequest::Kind::kNone) {
      if (MakeRow(work, index, record, {}).ok()) return true;
      continue;
    }
    substitute_reader_->Start(0, request, {});
    substitute_reader_->Submit();
    Reader::Done done;
    if (!substitute_reader_->Next(true, &done)) return false;
    const bool made =
        done.status.ok() && MakeRow(work, index, record, done.bytes).ok();
    substitute_reader_->Release(0);
    if (made) return true;
  }
  return false;
}

void Worker::Done(Work& work, uint64_t rows) {
  // In one piece for the whole claim: the job's lock is taken once.
  work.finished += rows;
  if (work.finished == work.rows.size()) {
    work.job->FinishRows(work.claim.share, work.finished);
  }
}

}  // namespace penstock
