#include "broker/workers/worker_reads.h"

#include <span>
#include <utility>

#include "broker/base/log.h"
#include "broker/io/read_depth.h"

namespace penstock {
namespace {

// One job's bytes in flight in the reader's buffers.
constexpr double kReadAheadBytesMax = 64 << 20;
// JobReads::buffer_bytes is a mean over about this many reads.
constexpr double kBufferBytesOver = 16;

}  // namespace

WorkerReads::WorkerReads(WorkerHost* host, uint32_t thread_index, uint32_t most,
                         ReadsInFlight* in_flight, WorkerJobs* jobs)
    : host_(host),
      thread_index_(thread_index),
      tickets_per_group_(Tickets(most)),
      in_flight_(in_flight),
      jobs_(jobs) {
  OpenGroup(0);
}

void WorkerReads::OpenGroup(uint32_t g) {
  Group& group = groups_[g];
  group.reader = host_->MakeWorkerReader(thread_index_);
  group.reader->ReportBlocking(in_flight_->blocked_on(), Entry(g, 0));
  group.tickets = std::vector<Ticket>(group.reader->depth());
  group.free.clear();
  for (uint32_t ticket = group.reader->depth(); ticket > 0; --ticket) {
    group.free.push_back(ticket - 1);
  }
  group.given_up = 0;
  current_ = g;
}

void WorkerReads::ChangeGroup() {
  for (uint32_t g = 0; g < JobReads::kGroupsMax; ++g) {
    if (groups_[g].reader != nullptr) continue;
    Log<"reads-hang">(thread_index_, given_up_);
    for (auto& [key, state] : *jobs_) Unpin(state.reads);
    return OpenGroup(g);
  }
}

// ---- starting

bool WorkerReads::MayStart(const ClaimedRows& rows) const {
  const JobReads& job = rows.state->reads;
  const uint32_t reads = job.in_group[current_];
  if (given_up_ > 0 && reads > 0 &&
      given_up_of_.count(rows.state->maker->dataset_hash()) > 0) {
    return false;
  }
  // Large files get fewer reads than read_depth: no reservation counts their
  // buffers.
  if (reads >= ReadDepth::kFirst &&
      reads * job.buffer_bytes > kReadAheadBytesMax) {
    return false;
  }
  return reads < host_->read_depth() && reads < groups_[current_].free.size();
}

void WorkerReads::Start(const std::shared_ptr<ClaimedRows>& shared) {
  ClaimedRows& rows = *shared;
  if (rows.job->Cancelled()) {
    const uint64_t rest = rows.to_read - rows.started;
    rows.started = rows.to_read;
    rows.Finish(rest);
    return;
  }
  JobReads& job = rows.state->reads;
  if (job.at_once > 0 || !MayStart(rows)) return;
  const Source& source = *rows.job->dataset().source;
  Group& group = groups_[current_];
  const uint64_t begin_ns = MonotonicNs();
  const RowCache* const cache = rows.job->dataset().cache.get();
  while (rows.started < rows.to_read && MayStart(rows)) {
    const uint64_t index = rows.IndexOf(rows.started);
    const bool from_cache =
        LocateRow(source, cache, rows.rows[index].record, &request_);
    const uint32_t ticket = group.free.back();
    group.free.pop_back();
    std::optional<size_t> in_place;
    if (!from_cache && request_.kind == ReadRequest::Kind::kRange &&
        request_.more.empty()) {
      in_place = rows.job->dataset().FeatureReadInPlace();
    }
    group.tickets[ticket] = {true,
                             false,
                             false,
                             request_.kind == ReadRequest::Kind::kRange,
                             from_cache,
                             false,
                             shared,
                             index,
                             rows.job->shared_dataset(),
                             in_place ? rows.job : nullptr,
                             rows.state->maker->dataset_hash()};
    std::span<std::byte> into;
    uint32_t pinned = kNotPinned;
    if (in_place) {
      into = {rows.Place(index, *in_place), request_.bytes};
      if (request_.align > 0 && ReadsStraight(request_, into)) {
        pinned = PinOf(rows, *in_place);
      }
    }
    ++job.in_group[current_];
    ++waited_for_;
    ++rows.started;
    in_flight_->Start(Entry(current_, ticket), rows.job_number,
                      rows.rows[index].record, host_->now_ns());
    // Stops here: the row is made while its bytes are in the caches, and all
    // such reads use one buffer.
    if (group.reader->Start(ticket, request_, into, pinned)) {
      group.tickets[ticket].at_once = true;
      ++job.at_once;
      break;
    }
    if (request_.remote != nullptr && group.reader->Fetches(ticket)) {
      group.tickets[ticket].fetching = true;
      ++job.fetching;
    }
  }
  const uint64_t spent_ns = MonotonicNs() - begin_ns;
  rows.account->Charge(spent_ns);
  if (rows.job->measured()) rows.job->CountPart(kReading, spent_ns);
}

// ---- arriving

bool WorkerReads::Await(uint64_t wait_ns) {
  bool any = false;
  StorageReader::Done done;
  for (uint32_t g = 0; g < JobReads::kGroupsMax; ++g) {
    Group& group = groups_[g];
    if (g == current_ || group.reader == nullptr) continue;
    while (group.reader->Next(kNoWait, &done)) {
      Arrive(g, done);
      any = true;
    }
    // Arrived reads still use the reader's buffers.
    if (group.free.size() == group.tickets.size()) group.reader = nullptr;
  }
  if (any) wait_ns = kNoWait;
  Group& group = groups_[current_];
  const bool clocked = wait_ns != kNoWait || blocking();
  const uint64_t begin_ns = clocked ? MonotonicNs() : 0;
  bool arrived = group.reader->Next(wait_ns, &done);
  if (clocked) {
    const uint64_t spent = MonotonicNs() - begin_ns;
    CountWait(spent);
    if (host_->trace().on() && waited_for_ > 0) {
      uint64_t fetching = 0;
      for (const auto& [key, state] : *jobs_) fetching += state.reads.fetching;
      host_->trace().Add(TraceActivity::kRead, thread_index_, nullptr, fetching,
                         begin_ns, begin_ns + spent);
    }
    // The read blocked the worker for that long.
    const ClaimedRows* const rows =
        arrived ? group.tickets[done.ticket].rows.get() : nullptr;
    if (blocking() && rows != nullptr) {
      rows->account->Charge(spent);
    }
  }
  for (; arrived; arrived = group.reader->Next(kNoWait, &done)) {
    Arrive(current_, done);
    any = true;
  }
  return any;
}

void WorkerReads::Arrive(uint32_t g, const StorageReader::Done& done) {
  Group& group = groups_[g];
  in_flight_->End(Entry(g, done.ticket));
  in_flight_->CountBytes(done.bytes.size());
  Ticket& ticket = group.tickets[done.ticket];
  if (ticket.rows != nullptr) {
    ticket.arrived = true;
    WorkerJob* const job = ticket.rows->state;
    job->reads.fetching -= std::exchange(ticket.fetching, false);
    if (job->reads.arrived.empty()) arrived_.push_back(job);
    job->reads.arrived.push_back({g, done});
    return;
  }
  --group.given_up;
  --given_up_;
  const auto of_dataset = given_up_of_.find(ticket.dataset_hash);
  if (--of_dataset->second == 0) given_up_of_.erase(of_dataset);
  ticket = {};
  group.reader->Release(done.ticket);
  group.free.push_back(done.ticket);
}

WorkerReads::Read WorkerReads::TakeFirst(WorkerJob* job) {
  JobReads& reads = job->reads;
  Read read;
  read.arrival = std::move(reads.arrived.front());
  reads.arrived.pop_front();
  if (reads.arrived.empty()) std::erase(arrived_, job);
  Ticket& slot = groups_[read.arrival.group].tickets[read.arrival.done.ticket];
  Ticket ticket = std::exchange(slot, {});
  --reads.in_group[read.arrival.group];
  if (ticket.at_once) --reads.at_once;
  --waited_for_;
  read.rows = std::move(ticket.rows);
  read.index = ticket.index;
  read.in_place = ticket.into != nullptr;
  read.cached = ticket.at_once && ticket.range;
  read.from_cache = ticket.from_cache;
  if (!read.in_place) {
    reads.buffer_bytes +=
        (read.arrival.done.bytes.size() - reads.buffer_bytes) /
        kBufferBytesOver;
  }
  Job::Counters& counters = read.rows->job->counters();
  Count(counters.reads, 1);
  if (read.arrival.done.cached) Count(counters.reads_cached, 1);
  Count(counters.bytes_read, read.arrival.done.bytes.size());
  return read;
}

void WorkerReads::Release(const Read& read) {
  Group& group = groups_[read.arrival.group];
  group.reader->Release(read.arrival.done.ticket);
  group.free.push_back(read.arrival.done.ticket);
}

// Counts for every job that has a read here, arrived or not.
void WorkerReads::CountWait(uint64_t ns) {
  if (waited_for_ > 0) in_flight_->CountWait(ns);
  for (const auto& [key, state] : *jobs_) {
    if (state.reads.in_group[current_] == 0) continue;
    if (const auto job = state.job.lock()) {
      Count(job->counters().read_wait_ns, ns);
      if (state.reads.fetching > 0) Count(job->counters().fetch_wait_ns, ns);
    }
  }
}

// ---- in time

void WorkerReads::CheckTimeouts() {
  if (host_->now_ns() == checked_ns_) return;
  checked_ns_ = host_->now_ns();
  if (pins_ > 0) UnpinEnded();
  for (uint32_t g = 0; g < JobReads::kGroupsMax; ++g) {
    Group& group = groups_[g];
    if (group.reader == nullptr) continue;
    for (uint32_t i = 0; i < group.tickets.size(); ++i) {
      const Ticket& ticket = group.tickets[i];
      if (!ticket.taken || ticket.arrived || group.reader->Arrived(i)) continue;
      if (!group.reader->Fetches(i)) {
        in_flight_->StillWaiting(Entry(g, i), checked_ns_);
      }
      // A blocking reader has only queued it and reaches it soon enough.
      if (ticket.rows != nullptr && ticket.rows->job->Cancelled() &&
          !group.reader->blocking()) {
        GiveUp(g, i);
      }
    }
  }
  const Group& group = groups_[current_];
  if (group.given_up > 0 && group.given_up >= group.tickets.size() / 2) {
    ChangeGroup();
  }
}

void WorkerReads::GiveUp(uint32_t g, uint32_t index) {
  Group& group = groups_[g];
  const std::shared_ptr<ClaimedRows> rows =
      std::exchange(group.tickets[index].rows, nullptr);
  --rows->state->reads.in_group[g];
  rows->state->reads.fetching -=
      std::exchange(group.tickets[index].fetching, false);
  --waited_for_;
  ++group.given_up;
  ++given_up_;
  ++given_up_of_[group.tickets[index].dataset_hash];
  rows->Finish(1);
}

// ---- pinned memory

uint32_t WorkerReads::PinOf(const ClaimedRows& rows, size_t feature) {
  if (!rows.job->MayPin()) return kNotPinned;
  JobReads& job = rows.state->reads;
  if (job.pins.empty()) job.pins.resize(rows.job->segment().plan().slot_count);
  std::optional<uint32_t>& pin = job.pins[rows.claim.slot];
  if (!pin) {
    const Segment& segment = rows.job->segment();
    const uint64_t bytes = segment.plan().FeatureBytes(feature);
    pin = groups_[current_].reader->Pin(
        {segment.feature(rows.claim.slot, feature), bytes});
    if (*pin != kNotPinned) {
      ++pins_;
      job.pin_bytes = bytes;
      host_->CountPinned(bytes);
    }
  }
  return *pin;
}

void WorkerReads::Unpin(JobReads& reads) {
  for (const std::optional<uint32_t> pin : reads.pins) {
    if (pin.value_or(kNotPinned) == kNotPinned) continue;
    groups_[current_].reader->Unpin(*pin);
    --pins_;
    host_->CountPinned(-reads.pin_bytes);
  }
  reads.pins.clear();
}

void WorkerReads::UnpinEnded() {
  if (pins_ == 0) return;
  for (auto& [key, state] : *jobs_) {
    const auto job = state.job.lock();
    if (job == nullptr || job->Cancelled()) Unpin(state.reads);
  }
}

}  // namespace penstock
