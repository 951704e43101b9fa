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

Worker::Worker(WorkerHost* host, const WorkerSeat& seat, uint32_t most,
               ReadsInFlight* in_flight)
    : host_(host),
      seat_(seat),
      reads_(host, seat.thread_index, most, in_flight, &jobs_),
      claims_(host, seat, &reads_, &jobs_,
              {host->samples(), seat.thread_index, 0, host->clock(), in_flight,
               reads_.extra_entry(1)}),
      cached_(host, in_flight, reads_.extra_entry(0)) {}

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
    if (host_->stopping()) return false;
    reads_.Await(reads_.full() ? kWaitNoTicketNs : kWaitNs);
  }
}

bool Worker::ReadAhead() {
  bool any = false;
  for (;;) {
    for (size_t i = 0; i < claims_.open().size();) {
      const std::shared_ptr<ClaimedRows>& rows = claims_.open()[i];
      if (rows->started < rows->to_read) reads_.Start(rows);
      if (rows->AllStarted()) {
        claims_.Close(i);
      } else {
        ++i;
      }
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
  host_->accounts().Served(*rows->account);
  if (arrived == nullptr) {
    MakeUnread(*rows);
  } else {
    MakeArrived(arrived);
  }
  return true;
}

void Worker::MakeArrived(WorkerJob* job) {
  WorkerReads::Read read = reads_.TakeFirst(job);
  const std::shared_ptr<ClaimedRows> claimed = read.rows;
  ClaimedRows& rows = *claimed;
  const uint64_t begin_ns = Begin(rows);
  uint64_t made = 0;
  for (;;) {
    const StorageReader::Done& done = read.arrival.done;
    if (rows.job->Cancelled()) {
      // Its bytes are discarded.
    } else if (done.status.ok()) {
      maker_.Make(rows, read.index, done.read(), read.from_cache);
    } else if (read.from_cache) {
      maker_.Make(rows, read.index, {}, true);
    } else {
      maker_.HandleError(rows, read.index, done.status);
    }
    ++made;
    if (read.cached) made += MakeCached(rows, begin_ns);
    // Others that go to the same call of a function.
    if (!job->maker->takes_several() || job->reads.arrived.empty() ||
        reads_.FirstArrived(*job) != &rows ||
        MonotonicNs() - begin_ns > kInlineNs) {
      break;
    }
    reads_.Release(read);
    read = reads_.TakeFirst(job);
  }
  Made(rows, made, begin_ns);
  reads_.Release(read);
}

uint64_t Worker::MakeCached(ClaimedRows& rows, uint64_t begin_ns) {
  uint64_t made = 0;
  uint64_t index = 0;
  ReadBytes read;
  bool from_cache = false;
  StepClock* const clock = &rows.state->maker->clock();
  const auto read_next = [&] {
    const StepClock::In in(clock, kReading);
    return cached_.Next(&index, &read, &from_cache);
  };
  cached_.Begin(&rows);
  while ((!ReadsClock(made) || MonotonicNs() - begin_ns < kCachedNs) &&
         read_next()) {
    maker_.Make(rows, index, read, from_cache);
    ++made;
  }
  cached_.End();
  return made;
}

uint64_t Worker::Begin(ClaimedRows& rows) {
  rows.state->in_work = &rows;
  const uint64_t now_ns = MonotonicNs();
  if (rows.job->measured()) {
    rows.state->maker->clock().Start(rows.job->parts(), now_ns);
  }
  return now_ns;
}

void Worker::Made(ClaimedRows& rows, uint64_t count, uint64_t begin_ns) {
  maker_.FinishAdded(rows);
  if (rows.finished + count == rows.rows.size()) maker_.MixPairs(rows);
  const uint64_t end_ns = MonotonicNs();
  Count(rows.job->counters().decode_ns, end_ns - begin_ns);
  // The documents of packed rows count once all of the claim are made.
  uint64_t rows_made = count;
  if (!rows.packed.empty()) {
    Count(rows.job->counters().documents, count);
    const bool all = rows.finished + count == rows.rows.size();
    rows_made = all ? rows.claim.end - rows.claim.begin : 0;
  }
  Count(rows.job->counters().decoded, rows_made);
  rows.account->Charge(end_ns - begin_ns);
  if (host_->trace().on()) {
    host_->trace().Add(
        seat_.job == 0 ? TraceActivity::kMake : TraceActivity::kFunction,
        seat_.thread_index, &rows.job->key(), rows_made, begin_ns, end_ns);
  }
  const RowMaker::CacheUse use = rows.state->maker->TakeCacheUse();
  if (use.hits > 0) Count(rows.job->counters().cache_hits, use.hits);
  if (use.misses > 0) Count(rows.job->counters().cache_misses, use.misses);
  if (StepClock& clock = rows.state->maker->clock(); clock.on()) {
    rows.job->CountParts(clock.Stop(end_ns), rows_made);
  }
  rows.Finish(count);
}

void Worker::MakeUnread(ClaimedRows& rows) {
  const uint64_t begin_ns = Begin(rows);
  maker_.Expect(rows);
  uint64_t made = 0;
  while (rows.at_once < rows.rows.size()) {
    const uint64_t index = rows.IndexOf(rows.at_once);
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
    if (made > 0 && ReadsClock(made) && MonotonicNs() - begin_ns > kInlineNs) {
      break;
    }
    ++rows.at_once;
    ++made;
    maker_.Make(rows, index, {});
  }
  Made(rows, made, begin_ns);
}

}  // namespace penstock
