#include "broker/workers/worker.h"

namespace penstock {
namespace {

// Rows that need no reading are made for this long before reads are checked.
constexpr uint64_t kInlineNs = 10'000'000;
// And rows whose bytes are in the page cache.
constexpr uint64_t kCachedNs = 200'000;
// The clock is not read for every cheap row.
bool ReadsClock(uint64_t made) {
  return made % 8 == 0 || (made & (made - 1)) == 0;
}
// How often a worker that waits for a read checks for rows of other jobs, with
// and without a free ticket to read them.
constexpr uint64_t kWaitNs = 10'000'000;
constexpr uint64_t kWaitNoTicketNs = 1'000'000'000;

}  // namespace

Worker::Worker(WorkerPool* pool, const WorkerSeat& seat, uint32_t most,
               ReadsInFlight* in_flight)
    : pool_(pool),
      seat_(seat),
      reads_(pool, seat.thread_index, most, in_flight, &jobs_),
      claims_(pool, seat, &reads_, &jobs_),
      cached_(pool, in_flight, reads_.extra_entry(0)),
      maker_(pool, seat.thread_index, in_flight, reads_.extra_entry(1)) {}

bool Worker::RunOnce() {
  bool any = false;
  reads_.UnpinEnded();
  claims_.Retry();
  for (;;) {
    seat_.turns->Turn();
    reads_.CheckTimeouts();
    any |= ReadAhead();
    reads_.Submit();
    any |= reads_.Await(kNoWait);
    if (MakeNext()) {
      any = true;
      continue;
    }
    if (reads_.waited_for() == 0 && claims_.open().empty()) {
      // Collects given up reads, which may occupy all tickets.
      reads_.Await(reads_.full() ? kWaitNs : kNoWait);
      return any;
    }
    if (pool_->stopping()) return false;
    reads_.Await(reads_.full() ? kWaitNoTicketNs : kWaitNs);
  }
}

bool Worker::ReadAhead() {
  bool any = false;
  for (;;) {
    for (size_t i = 0; i < claims_.open().size();) {
      const std::shared_ptr<ClaimedRows>& rows = claims_.open()[i];
      if (rows->started < rows->to_read) reads_.Start(rows);
      rows->AllStarted() ? claims_.Close(i) : (void)++i;
    }
    // So a hung blocking reader holds no other job's rows.
    const bool full =
        reads_.full() || (reads_.blocking() && !claims_.open().empty());
    if (full || !claims_.ClaimMore()) return any;
    any = true;
  }
}

bool Worker::MakeNext() {
  makeable_.clear();
  for (WorkerJob* const job : reads_.arrived()) {
    makeable_.push_back({reads_.FirstArrived(*job), job});
  }
  for (const std::shared_ptr<ClaimedRows>& rows : claims_.open()) {
    if (rows->at_once < rows->rows.size()) {
      makeable_.push_back({rows.get(), nullptr});
    }
  }
  if (makeable_.empty()) return false;
  size_t next = 0;
  if (makeable_.size() > 1) {
    const uint64_t now_ns = MonotonicNs();
    candidates_.clear();
    for (const Makeable& each : makeable_) {
      candidates_.push_back(
          CandidateOf(*each.rows->account, *each.rows->job, now_ns));
    }
    next = ServedNext(candidates_);
  }
  const auto [rows, arrived] = makeable_[next];
  pool_->Served(*rows->account);
  if (arrived == nullptr) {
    MakeUnread(*rows);
  } else {
    MakeArrived(arrived);
  }
  return true;
}

void Worker::MakeArrived(WorkerJob* job) {
  const WorkerReads::Read read = reads_.TakeFirst(job);
  ClaimedRows& rows = *read.rows;
  const uint64_t begin_ns = Begin(rows);
  const StorageReader::Done& done = read.arrival.done;
  if (rows.job->Cancelled()) {
    // Its bytes are discarded.
  } else if (done.status.ok()) {
    maker_.Make(rows, read.index, done.read(), read.kept);
  } else if (read.kept) {
    maker_.Make(rows, read.index, {}, true);
  } else {
    maker_.HandleError(rows, read.index, done.status);
  }
  uint64_t made = 1;
  if (read.cached) made += MakeCached(rows, begin_ns);
  Made(rows, made, begin_ns);
  reads_.Release(read);
}

uint64_t Worker::MakeCached(ClaimedRows& rows, uint64_t begin_ns) {
  uint64_t made = 0;
  uint64_t index = 0;
  ReadBytes read;
  bool kept = false;
  StepClock* const clock = &rows.kept->clock;
  const auto read_next = [&] {
    const StepClock::In in(clock, kReading);
    return cached_.Next(&index, &read, &kept);
  };
  cached_.Begin(&rows);
  while ((!ReadsClock(made) || MonotonicNs() - begin_ns < kCachedNs) &&
         read_next()) {
    maker_.Make(rows, index, read, kept);
    ++made;
  }
  cached_.End();
  return made;
}

uint64_t Worker::Begin(const ClaimedRows& rows) {
  const uint64_t now_ns = MonotonicNs();
  if (rows.job->measured()) {
    rows.kept->clock.Start(rows.job->parts(), now_ns);
  }
  return now_ns;
}

void Worker::Made(ClaimedRows& rows, uint64_t count, uint64_t begin_ns) {
  if (rows.finished + count == rows.rows.size()) maker_.MixPairs(rows);
  const uint64_t end_ns = MonotonicNs();
  Count(rows.job->counters().decode_ns, end_ns - begin_ns);
  Count(rows.job->counters().decoded, count);
  rows.account->Charge(end_ns - begin_ns);
  if (pool_->trace().on()) {
    pool_->trace().Add(
        seat_.job == 0 ? TraceActivity::kMake : TraceActivity::kFunction,
        seat_.thread_index, &rows.job->key(), count, begin_ns, end_ns);
  }
  if (StepClock& clock = rows.kept->clock; clock.on()) {
    rows.job->CountParts(clock.Stop(end_ns), count);
  }
  rows.Finish(count);
}

void Worker::MakeUnread(ClaimedRows& rows) {
  const uint64_t begin_ns = Begin(rows);
  maker_.Expect(rows);
  uint64_t made = 0;
  while (rows.at_once < rows.rows.size()) {
    const uint64_t index = rows.Number(rows.at_once);
    if (rows.job->Cancelled()) {
      made += rows.rows.size() - rows.at_once;
      rows.at_once = rows.rows.size();
      break;
    }
    if (!rows.pieces.empty()) {
      const uint64_t count = maker_.MakeOfStream(rows, index);
      rows.at_once += count;
      made += count;
      continue;
    }
    // Reads and rows of other jobs must not wait long.
    if (made > 0 && ReadsClock(made) &&
        MonotonicNs() - begin_ns > kInlineNs) {
      break;
    }
    ++rows.at_once;
    ++made;
    maker_.Make(rows, index, {});
  }
  Made(rows, made, begin_ns);
}

}  // namespace penstock
