#include "broker/workers/worker.h"

#include <algorithm>
#include <chrono>

#include "broker/base/log.h"
#include "broker/workers/sample_quarantine.h"
#include "broker/workers/worker_pool.h"

namespace penstock {
namespace {

// on_error: substitute tries this many records after the bad one.
constexpr uint64_t kSubstituteTries = 16;
// Rows that need no reading are made for this long before reads get their turn.
constexpr uint64_t kInlineNs = 10'000'000;
// Rows of another job may come while this worker waits for a read: it looks so
// often, or, without a ticket for them, so often.
constexpr uint64_t kWaitNs = 10'000'000;
constexpr uint64_t kWaitNoTicketNs = 1'000'000'000;

uint64_t NowNs() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Of one job, in buffers of the reader, on their way.
constexpr double kReadAheadBytesMax = 64 << 20;
// Reads that their mean size is of, roughly.
constexpr double kBufferBytesOver = 16;

// Counters are relaxed: they are shown and compared, nothing depends on them.
void Count(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.fetch_add(value, std::memory_order_relaxed);
}

}  // namespace

Worker::Worker(WorkerPool* pool, const Seat& seat, uint32_t most,
               ReadsInFlight* reads)
    : pool_(pool),
      seat_(seat),
      tickets_per_lane_(Tickets(most)),
      reads_(reads) {
  OpenLane(0);
}

void Worker::OpenLane(uint32_t number) {
  Lane& lane = lanes_[number];
  lane.reader = pool_->MakeWorkerReader(seat_.index);
  lane.reader->ReportBlocking(reads_->blocked_on(), Entry(number, 0));
  lane.tickets = std::vector<Ticket>(lane.reader->depth());
  lane.free.clear();
  for (uint32_t ticket = lane.reader->depth(); ticket > 0; --ticket) {
    lane.free.push_back(ticket - 1);
  }
  lane.given_up = 0;
  lane_ = number;
}

void Worker::ChangeLane() {
  for (uint32_t number = 0; number < kLanesMax; ++number) {
    if (lanes_[number].reader != nullptr) continue;
    LogWarning("worker {}: {} reads of ended jobs hang; it goes on beside them",
               seat_.index, given_up_);
    for (auto& [key, state] : states_) Unpin(state);
    return OpenLane(number);
  }
}

Worker::JobState& Worker::StateOf(const std::shared_ptr<Job>& job) {
  JobState& state = states_[job.get()];
  if (state.scratch == nullptr || state.job.lock() != job) {
    // Also the moment to forget jobs that ended. A read that is waited for
    // keeps its job, so theirs are none.
    for (auto it = states_.begin(); it != states_.end();) {
      if (it->first == job.get() || !it->second.job.expired()) {
        ++it;
        continue;
      }
      Unpin(it->second);
      it = states_.erase(it);
    }
    state.job = job;
    state.scratch =
        job->dataset().program->MakeScratch([this, job = job.get()] {
          return job->Cancelled() || pool_->stopping();
        });
    state.order = Plan::OrderCache();
    state.dataset_hash =
        SampleQuarantine::DatasetHash(DatasetKey(job->options().spec));
    state.reads = {};
    state.read_at_once = 0;
    Unpin(state);
  }
  return state;
}

bool Worker::ClaimMore() {
  // The pool's lock is not taken in vain: once per news, not per sample.
  const uint64_t news = pool_->news();
  if (claim_failed_ && news == news_seen_) return false;
  jobs_of_open_.clear();
  uint64_t before = UINT64_MAX;
  for (const auto& work : open_) {
    jobs_of_open_.push_back(work->job.get());
    if (work->reads) continue;
    // One that is yet to be begun is made at once.
    before = work->started == 0
                 ? 0
                 : std::min(before, TurnOf(CandidateOf(*work->account,
                                                       *work->job, NowNs())));
  }
  std::sort(jobs_of_open_.begin(), jobs_of_open_.end());
  WorkerPool::Claimed claimed = pool_->ClaimFair(jobs_of_open_, before, *this);
  claim_failed_ = claimed.claim.batch == nullptr;
  news_seen_ = news;
  if (claim_failed_) return false;
  auto work = std::make_shared<Work>();
  work->job = std::move(claimed.job);
  work->account = claimed.account;
  work->state = &StateOf(work->job);
  work->number = claimed.number;
  work->claim = claimed.claim;
  const Plan::RankBatch& batch = work->claim.batch->rows;
  const uint64_t rows = work->claim.end - work->claim.begin;
  work->rows.resize(rows);
  work->job->plan().Rows(batch.epoch, batch.first_row + work->claim.begin, rows,
                         &work->state->order, work->rows.data());
  if (const Stream* const stream = work->job->stream()) {
    auto pieces = stream->Find(work->rows.front().record, rows);
    if (pieces.ok()) {
      work->pieces = *std::move(pieces);
    } else {
      work->job->Fail(pieces.status());
    }
  } else {
    work->job->dataset().source->Locate(work->rows.front().record, &request_);
    work->reads = request_.kind != ReadRequest::Kind::kNone;
  }
  open_.push_back(std::move(work));
  return true;
}

bool Worker::MayRead(const Work& work) const {
  const uint32_t reads = work.state->reads[lane_];
  if (given_up_ > 0 && reads > 0 &&
      given_up_of_.count(work.state->dataset_hash) > 0) {
    return false;
  }
  // Read ahead by as many as the depth says, of large files by fewer: their
  // buffers are nobody's promise.
  if (reads >= ReadDepth::kFirst &&
      reads * work.state->buffer_bytes > kReadAheadBytesMax) {
    return false;
  }
  return reads < pool_->read_depth() && reads < lanes_[lane_].free.size();
}

void Worker::StartReads(const std::shared_ptr<Work>& shared) {
  Work& work = *shared;
  if (!work.reads) return;
  if (work.job->Cancelled()) {
    const uint64_t rest = work.rows.size() - work.started;
    work.started = work.rows.size();
    Done(work, rest);
    return;
  }
  JobState& state = *work.state;
  if (state.read_at_once > 0 || !MayRead(work)) return;
  const Source& source = *work.job->dataset().source;
  Lane& lane = lanes_[lane_];
  const uint64_t begin_ns = NowNs();
  while (work.started < work.rows.size() && MayRead(work)) {
    const uint64_t index = work.started;
    source.Locate(work.rows[index].record, &request_);
    const uint32_t ticket = lane.free.back();
    lane.free.pop_back();
    const std::optional<size_t> in_place =
        request_.kind == ReadRequest::Kind::kRange
            ? work.job->dataset().FeatureReadInPlace()
            : std::nullopt;
    lane.tickets[ticket] = {true,
                            false,
                            false,
                            shared,
                            index,
                            SharedDataset(work.job),
                            in_place ? work.job : nullptr,
                            state.dataset_hash};
    std::span<std::byte> into;
    uint32_t pinned = kNotPinned;
    if (in_place) {
      into = {Place(work, index, *in_place), request_.bytes};
      if (request_.align > 0 && ReadsStraight(request_, into)) {
        pinned = PinOf(work, *in_place);
      }
    }
    ++state.reads[lane_];
    ++waited_for_;
    ++work.started;
    reads_->Start(Entry(lane_, ticket), work.number, work.rows[index].record,
                  pool_->now_ns());
    // Made while its bytes are in the caches, and read into one buffer in turn.
    if (lane.reader->Start(ticket, request_, into, pinned)) {
      lane.tickets[ticket].at_once = true;
      ++state.read_at_once;
      break;
    }
  }
  Count(work.account->virtual_time_ns, NowNs() - begin_ns);
}

void Worker::MakeRows(Work& work) {
  const uint64_t begin_ns = NowNs();
  uint64_t made = 0;
  while (work.started < work.rows.size()) {
    const uint64_t index = work.started;
    if (work.job->Cancelled()) {
      work.started = work.rows.size();
      made += work.started - index;
      break;
    }
    if (!work.pieces.empty()) {
      const StatusOr<uint64_t> rows = MakeStreamRows(work, index);
      if (rows.status().code() == StatusCode::kCancelled) {
        work.cut_off |= !work.job->Cancelled();
      } else if (!rows.ok() && !work.job->GivenUp(work.claim.batch)) {
        work.job->Fail(rows.status());
      }
      work.started += rows.ok() ? *rows : work.rows.size() - index;
      made += work.started - index;
      continue;
    }
    // Reads, and rows of other jobs, must not wait for long; the clock is not
    // read for each of many that cost little.
    const bool look = made % 8 == 0 || (made & (made - 1)) == 0;
    if (made > 0 && look && NowNs() - begin_ns > kInlineNs) break;
    ++work.started;
    ++made;
    const Status status = MakeRow(work, index, work.rows[index].record, {});
    if (!status.ok()) HandleError(work, index, status);
  }
  const uint64_t spent = NowNs() - begin_ns;
  Count(work.job->counters().decode_ns, spent);
  Count(work.job->counters().decoded, made);
  Count(work.account->virtual_time_ns, spent);
  Done(work, made);
}

bool Worker::ReadAhead() {
  bool any = false;
  for (;;) {
    for (size_t i = 0; i < open_.size();) {
      StartReads(open_[i]);
      if (open_[i]->started < open_[i]->rows.size()) {
        ++i;
        continue;
      }
      open_.erase(open_.begin() + static_cast<ptrdiff_t>(i));
      claim_failed_ = false;  // more of this job's may be had
    }
    // What a blocking reader hangs in holds no other job's rows.
    const bool full =
        lanes_[lane_].free.empty() || (blocking() && !open_.empty());
    if (full || !ClaimMore()) return any;
    any = true;
  }
}

bool Worker::MakeNext() {
  makeable_.clear();
  for (JobState* const state : arrived_of_) {
    const Arrival& first = state->arrived.front();
    makeable_.push_back(
        {lanes_[first.lane].tickets[first.done.ticket].work.get(), state});
  }
  for (const std::shared_ptr<Work>& work : open_) {
    if (!work->reads) makeable_.push_back({work.get(), nullptr});
  }
  if (makeable_.empty()) return false;
  size_t next = 0;
  if (makeable_.size() > 1) {
    const uint64_t now_ns = NowNs();
    candidates_.clear();
    for (const Makeable& each : makeable_) {
      candidates_.push_back(
          CandidateOf(*each.work->account, *each.work->job, now_ns));
    }
    next = ServedNext(candidates_);
  }
  Work& work = *makeable_[next].work;
  // Time of function workers is nobody else's.
  if (seat_.job == 0) {
    pool_->Served(
        work.account->virtual_time_ns.load(std::memory_order_relaxed));
  }
  if (makeable_[next].arrived == nullptr) {
    MakeRows(work);
  } else {
    MakeArrived(makeable_[next].arrived);
  }
  return true;
}

bool Worker::RunOnce() {
  bool any = false;
  if (pins_ > 0) UnpinEnded();
  claim_failed_ = false;
  for (;;) {
    if (pool_->now_ns() != looked_at_ns_) CheckReads();
    any |= ReadAhead();
    lanes_[lane_].reader->Submit();
    any |= TakeArrived(kNoWait);
    if (MakeNext()) {
      any = true;
      continue;
    }
    if (waited_for_ == 0 && open_.empty()) {
      // What was given up; it may have left no ticket to claim rows for.
      TakeArrived(lanes_[lane_].free.empty() ? kWaitNs : kNoWait);
      return any;
    }
    if (pool_->stopping()) return false;
    TakeArrived(lanes_[lane_].free.empty() ? kWaitNoTicketNs : kWaitNs);
  }
}

bool Worker::TakeArrived(uint64_t wait_ns) {
  bool any = false;
  StorageReader::Done done;
  for (uint32_t number = 0; number < kLanesMax; ++number) {
    Lane& lane = lanes_[number];
    if (number == lane_ || lane.reader == nullptr) continue;
    while (lane.reader->Next(kNoWait, &done)) {
      Arrive(number, done);
      any = true;
    }
    // Some may have arrived, and lie in its buffers.
    if (lane.free.size() == lane.tickets.size()) lane.reader = nullptr;
  }
  if (any) wait_ns = kNoWait;
  Lane& lane = lanes_[lane_];
  const bool clocked = wait_ns != kNoWait || blocking();
  const uint64_t begin_ns = clocked ? NowNs() : 0;
  bool arrived = lane.reader->Next(wait_ns, &done);
  if (clocked) {
    const uint64_t spent = NowNs() - begin_ns;
    CountReadWait(spent);
    // It had the worker for that long.
    const Work* const work =
        arrived ? lane.tickets[done.ticket].work.get() : nullptr;
    if (blocking() && work != nullptr) {
      Count(work->account->virtual_time_ns, spent);
    }
  }
  for (; arrived; arrived = lane.reader->Next(kNoWait, &done)) {
    Arrive(lane_, done);
    any = true;
  }
  return any;
}

void Worker::Arrive(uint32_t number, const StorageReader::Done& done) {
  Lane& lane = lanes_[number];
  reads_->End(Entry(number, done.ticket));
  reads_->CountBytes(done.bytes.size());
  Ticket& ticket = lane.tickets[done.ticket];
  if (ticket.work != nullptr) {
    ticket.arrived = true;
    JobState* const state = ticket.work->state;
    if (state->arrived.empty()) arrived_of_.push_back(state);
    state->arrived.push_back({number, done});
    return;
  }
  --lane.given_up;
  --given_up_;
  const auto of_dataset = given_up_of_.find(ticket.dataset_hash);
  if (--of_dataset->second == 0) given_up_of_.erase(of_dataset);
  ticket = {};
  lane.reader->Release(done.ticket);
  lane.free.push_back(done.ticket);
}

void Worker::MakeArrived(JobState* state) {
  const Arrival arrival = std::move(state->arrived.front());
  state->arrived.pop_front();
  if (state->arrived.empty()) std::erase(arrived_of_, state);
  Lane& lane = lanes_[arrival.lane];
  const Ticket ticket = std::exchange(lane.tickets[arrival.done.ticket], {});
  --state->reads[arrival.lane];
  if (ticket.at_once) --state->read_at_once;
  --waited_for_;
  Finish(ticket, arrival.done);
  lane.reader->Release(arrival.done.ticket);
  lane.free.push_back(arrival.done.ticket);
}

uint32_t Worker::PinOf(const Work& work, size_t feature) {
  if (!work.job->MayPin()) return kNotPinned;
  auto& pins = work.state->pins;
  if (pins.empty()) pins.resize(work.job->segment().plan().slot_count);
  std::optional<uint32_t>& pin = pins[work.claim.slot];
  if (!pin) {
    const Segment& segment = work.job->segment();
    const ElementSpec& element = work.job->dataset().program->element_spec();
    const uint64_t bytes =
        segment.plan().rows_max * element[feature].RowBytes();
    pin = lanes_[lane_].reader->Pin(
        {segment.feature(work.claim.slot, feature), bytes});
    if (*pin != kNotPinned) {
      ++pins_;
      work.state->pin_bytes = bytes;
      pool_->CountPinned(bytes);
    }
  }
  return *pin;
}

void Worker::Unpin(JobState& state) {
  for (const std::optional<uint32_t> pin : state.pins) {
    if (pin.value_or(kNotPinned) == kNotPinned) continue;
    lanes_[lane_].reader->Unpin(*pin);
    --pins_;
    pool_->CountPinned(-state.pin_bytes);
  }
  state.pins.clear();
}

void Worker::UnpinEnded() {
  for (auto& [key, state] : states_) {
    const auto job = state.job.lock();
    if (job == nullptr || job->Cancelled()) Unpin(state);
  }
}

// For every job that has a read in flight here, whether it has arrived or not.
void Worker::CountReadWait(uint64_t ns) {
  if (waited_for_ > 0) reads_->CountWait(ns);
  for (const auto& [key, state] : states_) {
    if (state.reads[lane_] == 0) continue;
    if (const auto job = state.job.lock()) {
      Count(job->counters().read_wait_ns, ns);
    }
  }
}

void Worker::CheckReads() {
  looked_at_ns_ = pool_->now_ns();
  if (pins_ > 0) UnpinEnded();
  for (uint32_t number = 0; number < kLanesMax; ++number) {
    Lane& lane = lanes_[number];
    if (lane.reader == nullptr) continue;
    for (uint32_t i = 0; i < lane.tickets.size(); ++i) {
      const Ticket& ticket = lane.tickets[i];
      if (!ticket.taken || ticket.arrived || lane.reader->Arrived(i)) continue;
      reads_->StillWaiting(Entry(number, i), looked_at_ns_);
      // A blocking reader has only queued it: it is asked for soon enough.
      if (ticket.work != nullptr && ticket.work->job->Cancelled() &&
          !lane.reader->blocking()) {
        GiveUp(number, i);
      }
    }
  }
  const Lane& lane = lanes_[lane_];
  if (lane.given_up > 0 && lane.given_up >= lane.tickets.size() / 2) {
    ChangeLane();
  }
}

void Worker::GiveUp(uint32_t number, uint32_t index) {
  Lane& lane = lanes_[number];
  const std::shared_ptr<Work> work =
      std::exchange(lane.tickets[index].work, nullptr);
  --work->state->reads[number];
  --waited_for_;
  ++lane.given_up;
  ++given_up_;
  ++given_up_of_[lane.tickets[index].dataset_hash];
  Done(*work, 1);
}

void Worker::Finish(const Ticket& ticket, const StorageReader::Done& done) {
  Work& work = *ticket.work;
  const uint64_t begin_ns = NowNs();
  Count(work.job->counters().reads, 1);
  if (done.cached) Count(work.job->counters().reads_cached, 1);
  Count(work.job->counters().bytes_read, done.bytes.size());
  if (ticket.into == nullptr) {
    work.state->buffer_bytes +=
        (done.bytes.size() - work.state->buffer_bytes) / kBufferBytesOver;
  }
  if (!work.job->Cancelled()) {
    const Status status =
        done.status.ok() ? MakeRow(work, ticket.index,
                                   work.rows[ticket.index].record, done.bytes)
                         : done.status;
    if (!status.ok()) HandleError(work, ticket.index, status);
  }
  const uint64_t spent = NowNs() - begin_ns;
  Count(work.job->counters().decode_ns, spent);
  Count(work.job->counters().decoded, 1);
  Count(work.account->virtual_time_ns, spent);
  Done(work, 1);
}

// What is copied as it is goes straight to its place, all rows at once.
StatusOr<uint64_t> Worker::MakeStreamRows(Work& work, uint64_t index) {
  uint64_t first = 0;  // index of the piece's first row
  auto piece = work.pieces.begin();
  for (; index >= first + piece->rows; ++piece) first += piece->rows;
  const uint64_t rows = first + piece->rows - index;
  const Dataset& dataset = work.job->dataset();
  const RawSpec& features = dataset.source->raw_spec();
  stream_scratch_.resize(std::max(stream_scratch_.size(), features.size()));
  for (size_t i = 0; i < features.size(); ++i) {
    std::byte* out = nullptr;
    if (dataset.program->Copies(i)) {
      out = Place(work, index, i);
    } else {
      stream_scratch_[i].resize(rows * features[i].feature.RowBytes());
      out = stream_scratch_[i].data();
    }
    PENSTOCK_RETURN_IF_ERROR(piece->Read(i, index - first, rows, out));
  }
  raw_.resize(features.size());
  out_.resize(dataset.program->element_spec().size());
  int64_t* const ids = work.job->segment().ids(work.claim.slot);
  for (uint64_t row = index; row < index + rows; ++row) {
    for (size_t i = 0; i < out_.size(); ++i) out_[i] = Place(work, row, i);
    for (size_t i = 0; i < features.size(); ++i) {
      const uint64_t bytes = features[i].feature.RowBytes();
      raw_[i] = {dataset.program->Copies(i)
                     ? out_[i]
                     : stream_scratch_[i].data() + (row - index) * bytes,
                 bytes};
    }
    const uint64_t record = work.rows[row].record;
    const AugmentationKey key{work.job->options().spec.seed,
                              work.rows[row].pass, record};
    const SampleQuarantine::Mark mark(
        pool_->samples(), seat_.index, {work.state->dataset_hash, record},
        work.number, pool_->now_ns() + dataset.program->wait_ns());
    PENSTOCK_RETURN_IF_ERROR(mark.status());
    const Status status =
        dataset.program->Run(raw_, key, *work.state->scratch, out_);
    if (!status.ok()) {
      return status.Prepend(Format("dataset '{}': row {} of its producers",
                                   work.job->key().dataset, record));
    }
    ids[work.claim.begin + row] = static_cast<int64_t>(record);
  }
  return rows;
}

// Decodes record into the place of the claim's row index.
//
// The mark stands around everything that foreign bytes meet.
Status Worker::MakeRow(Work& work, uint64_t index, uint64_t record,
                       std::span<const std::byte> bytes) {
  const Dataset& dataset = work.job->dataset();
  // What it may wait for other processes is not its own time.
  const SampleQuarantine::Mark mark(
      pool_->samples(), seat_.index, {work.state->dataset_hash, record},
      work.number, pool_->now_ns() + dataset.program->wait_ns());
  PENSTOCK_RETURN_IF_ERROR(mark.status());
  PENSTOCK_RETURN_IF_ERROR(
      dataset.source->Unpack(record, bytes, &unpack_scratch_, &raw_));
  out_.resize(dataset.program->element_spec().size());
  for (size_t i = 0; i < out_.size(); ++i) out_[i] = Place(work, index, i);
  const AugmentationKey key{work.job->options().spec.seed,
                            work.rows[index].pass, record};
  PENSTOCK_RETURN_IF_ERROR(
      dataset.program->Run(raw_, key, *work.state->scratch, out_));
  work.job->segment().ids(work.claim.slot)[work.claim.begin + index] =
      static_cast<int64_t>(record);
  return OkStatus();
}

// Where a feature of the claim's row index goes.
std::byte* Worker::Place(const Work& work, uint64_t index,
                         size_t feature) const {
  const ElementSpec& element = work.job->dataset().program->element_spec();
  return work.job->segment().feature(work.claim.slot, feature) +
         (work.claim.begin + index) * element[feature].RowBytes();
}

void Worker::HandleError(Work& work, uint64_t index, const Status& status) {
  Job& job = *work.job;
  if (status.code() == StatusCode::kCancelled) {
    // Nobody waits for the row; or the broker stops, and it is not whole.
    work.cut_off |= !job.Cancelled();
    return;
  }
  if (job.GivenUp(work.claim.batch)) return;
  const uint64_t record = work.rows[index].record;
  // What cannot be read names its file by itself, what cannot be made does not.
  const std::string where = job.dataset().source->Describe(record);
  const bool told = std::string_view(status.message()).starts_with(where);
  const std::string text =
      Format("dataset '{}': sample {}{}: {}", job.key().dataset, record,
             told ? "" : " in " + where, status.message());
  // What this machine lacks is not the sample's fault.
  if (status.code() == StatusCode::kResourceExhausted ||
      status.code() == StatusCode::kInvalidArgument) {
    return job.Fail(Status(status.code(), text));
  }
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
                      Format("{}; the {} samples after it cannot be read "
                             "either",
                             text, kSubstituteTries)));
      return;
    case OnError::kSkip:
      job.LeaveOut(work.claim.batch, work.claim.begin + index, text);
      return;
  }
}

// Puts the next readable record in the row's place: a function of the data
// alone, so a resumed run substitutes the same.
bool Worker::Substitute(Work& work, uint64_t index) {
  const Source& source = *work.job->dataset().source;
  const uint64_t count = source.record_count();
  if (substitute_reader_ == nullptr) {
    auto reader = MakeStorageReader(ReadBackend::kPread, 1);
    if (!reader.ok()) return false;
    substitute_reader_ = *std::move(reader);
    substitute_reader_->ReportBlocking(reads_->blocked_on(), SubstituteEntry());
  }
  for (uint64_t i = 1; i <= std::min(kSubstituteTries, count - 1); ++i) {
    const uint64_t record = (work.rows[index].record + i) % count;
    ReadRequest request;
    source.Locate(record, &request);
    if (request.kind == ReadRequest::Kind::kNone) {
      if (MakeRow(work, index, record, {}).ok()) return true;
      if (work.job->Cancelled()) return false;
      continue;
    }
    reads_->Start(SubstituteEntry(), work.number, record, pool_->now_ns());
    substitute_reader_->Start(0, request, {}, kNotPinned);
    substitute_reader_->Submit();
    StorageReader::Done done;
    const bool read = substitute_reader_->Next(kWaitForever, &done);
    reads_->End(SubstituteEntry());
    // The read may have taken so long that the job was failed.
    if (!read || work.job->Cancelled()) return false;
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
  if (work.finished == work.rows.size() && !work.cut_off) {
    Job::Counters& counters = work.job->counters();
    Count(work.claim.local ? counters.rows_local : counters.rows_remote,
          work.finished);
    work.job->FinishRows(work.claim);
  }
}

}  // namespace penstock
