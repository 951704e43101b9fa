#include "client/rank/rank_reader.h"

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>

#include "client/attach/fork.h"
#include "client/rank/rank_session.h"
#include "common/quantity.h"
#include "common/ring.h"
#include "common/wake.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Limit of a wait for an event that a live broker sends at once.
constexpr std::chrono::seconds kEventTimeout{10};
// A wait of at least this long is worth asking the broker why, for so long.
constexpr std::chrono::seconds kWorthAsking{1};
// Checks of the ring between two reads of the clock, together a microsecond at
// most.
constexpr uint32_t kPollsPerClock = 32;

// The broker's words; "": not known. By a connection of its own, so that an
// answer that is late is not taken for another's.
std::string WhatJobWaitsFor(const std::string& socket, const std::string& name,
                            const std::string& dataset, int64_t rank) {
  const Deadline deadline = Clock::now() + kWorthAsking;
  const StatusOr<Fd> control = ConnectControl(socket, deadline);
  if (!control.ok()) return "";
  const StatusOr<Message> answer =
      Request(control->get(), {{"op", "status"}}, {}, deadline, {});
  if (!answer.ok()) return "";
  try {
    for (const nlohmann::json& job : answer->json.at("jobs")) {
      if (job.at("job") != name || job.at("dataset") != dataset ||
          job.value("consumer", rank) != rank) {
        continue;
      }
      const nlohmann::json& found = job.at("bottleneck");
      if (found.at("what") == "unknown") return "";
      return found.at("text").get<std::string>();
    }
  } catch (const nlohmann::json::exception&) {
    // A broker of another version: the time-out says enough.
  }
  return "";
}

timespec TimespecOf(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {static_cast<time_t>(seconds.count()),
          static_cast<long>((time - seconds).count())};
}

}  // namespace

Status RankReader::CheckProcess() const {
  if (ForkGeneration() == fork_generation_) return OkStatus();
  return FailedPreconditionError(
      "this reader belongs to the parent process: attach again after fork");
}

bool RankReader::Fits(const Session& session, const Cell& cell) const {
  if (spec_by_part_.empty()) return true;
  const std::optional<uint32_t> part = PartOf(cell);
  if (!part || *part >= spec_by_part_.size()) return false;
  const ElementSpec& element = spec_by_part_[*part];
  for (size_t i = 0; i < element.size(); ++i) {
    const uint64_t bytes = element[i].RowBytes();
    const uint64_t values = element[i].room > 0 ? 1 : cell.rows;
    if (bytes > 0 && values > session.view->feature_bytes(i) / bytes) {
      return false;
    }
  }
  return true;
}

StatusOr<RankReader::Ready> RankReader::TakeReady() {
  Session& session = *session_;
  Cell cell;
  const TakeResult result =
      TryTake(*session.ring, session.cursor.page(), &cell);
  if (result == TakeResult::kEmpty) return Ready::kNothing;
  if (result == TakeResult::kClosed) {
    PENSTOCK_RETURN_IF_ERROR(ClosedStatus());
    return Ready::kOver;
  }
  if (result == TakeResult::kCorrupt || !session.view->Valid(cell) ||
      !Fits(session, cell) ||
      session.batches[cell.lease].held.load(std::memory_order_relaxed)) {
    return InternalError(
        "an impossible batch: something overwrote this rank's cursor page (a "
        "wild pointer of the trainer), or the broker has a bug");
  }
  if (BrokerWaitsForTakes(*session.ring)) SendWake(session.wake.get());
  Batch* batch = &session.batches[cell.lease];
  batch->cell = cell;
  // Relaxed: the pointer reaches another thread by the caller's own means.
  batch->held.store(true, std::memory_order_relaxed);
  CountHandedOut();
  session.taken.store(session.taken.load(std::memory_order_relaxed) + 1,
                      std::memory_order_relaxed);
  pending_ = batch;
  if (device_ != nullptr) CopyTaken(batch);
  if ((cell.flags & kRanksChanged) != 0) {
    PENSTOCK_RETURN_IF_ERROR(ReadRanksChanged(cell.flags >> kPhaseShift));
  }
  return Ready::kBatch;
}

StatusOr<Message> RankReader::Ask(nlohmann::json request) {
  return Request(session_->control.get(), std::move(request), {},
                 DeadlineOf(timeout_s_), [this](const nlohmann::json& event) {
                   if (event.empty()) return !Cancelled();
                   NoteEvent(event);
                   return true;
                 });
}

Status RankReader::ReadRanksChanged(uint32_t phase) {
  const Clock::time_point give_up = Clock::now() + kEventTimeout;
  for (;;) {
    while (events_.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(auto message,
                                ReceiveMessage(session_->control.get()));
      if (message) {
        NoteEvent(std::move(message->json));
        continue;
      }
      if (Clock::now() > give_up) {
        return InternalError("the broker did not list the ranks");
      }
      pollfd entry{session_->control.get(), POLLIN, 0};
      poll(&entry, 1, 100);
    }
    const nlohmann::json event = std::move(events_.front());
    events_.pop_front();
    try {
      // The ranks may have changed twice between two batches.
      if (event.at("phase").get<uint32_t>() % (1u << kPhaseShift) != phase) {
        continue;
      }
      plan_rank_ = event.at("rank").get<int64_t>();
      world_size_ = event.at("world_size").get<int64_t>();
      PENSTOCK_ASSIGN_OR_RETURN(const JobState state,
                                JobStateFromJson(event.at("state")));
      phase_ = phase;
      for (const JobState::Owed& each : state.owed) {
        // What nobody began of the steps owed before is owed anew.
        std::erase_if(owed_,
                      [&](const auto& item) { return item.second == each; });
        owed_[StepId(each.epoch * rows_per_epoch_ + each.row, phase_)] = each;
      }
      return OkStatus();
    } catch (const nlohmann::json::exception&) {
      return InternalError("the broker's event does not follow the protocol");
    }
  }
}

Status RankReader::ClosedStatus() const {
  const Ring& ring = *session_->ring;
  // Acquire: seeing closed means seeing code and reason (ring.h, E7).
  const uint32_t closed = ring.closed.load(std::memory_order_acquire);
  char reason[sizeof(Ring::reason)];
  std::memcpy(reason, ring.reason, sizeof(reason));
  reason[sizeof(reason) - 1] = '\0';
  switch (static_cast<Closed>(closed)) {
    case Closed::kOpen:
    case Closed::kFinished:
      return OkStatus();
    case Closed::kRecalled:
      return AbortedError("the broker detached rank {} of job '{}': {}", name(),
                          job_, reason);
    case Closed::kFailed:
    case Closed::kEvicted:
      return Status(static_cast<StatusCode>(ring.code), reason);
  }
  return InternalError("the broker closed the ring with code {}", closed);
}

void RankReader::NoteOver() {
  over_ = true;
  // lag: skip: batches missed after the last one taken are counted here.
  stats_.skipped += session_->ring->skipped;
  uint64_t end = epoch_ + (in_epoch_ ? 1 : 0);
  if (dynamic_) {
    // Other ranks may have taken all batches of the last epochs. Without the
    // broker's answer, only epochs of which this rank had batches are known.
    StatusOr<std::string> state = State();
    const auto job = state.ok() ? ParseJobState(*state) : state.status();
    if (job.ok()) end = std::max(end, job->epoch + (job->row > 0 ? 1 : 0));
  }
  ends_owed_ = end - epoch_;
}

// Returns what comes next: ends of epochs before the pending batch.
StatusOr<RankReader::Result> RankReader::HandOut(bool may_wait, Batch** batch) {
  if (pending_ != nullptr && ends_owed_ == 0) {
    const uint64_t epoch = pending_->cell.epoch;
    if (!epoch_known_) epoch_ = epoch;
    epoch_known_ = true;
    // A redelivered batch may be of an epoch that is over.
    if (epoch > epoch_) ends_owed_ = epoch - epoch_;
  }
  if (device_ != nullptr && (ends_owed_ > 0 || pending_ == nullptr)) {
    PENSTOCK_RETURN_IF_ERROR(AwaitLeaving(false, may_wait));
  }
  if (ends_owed_ > 0) {
    --ends_owed_;
    ++epoch_;
    in_epoch_ = false;
    return Result::kEndOfEpoch;
  }
  if (pending_ == nullptr) return Result::kEndOfData;
  const Cell& cell = pending_->cell;
  // A step owed is one from before position_; one without rows for this rank
  // is not listed. An erase from an empty map would take 20 ns.
  if (owed_.empty() ||
      owed_.erase(StepId(cell.position, cell.flags >> kPhaseShift)) == 0) {
    position_ = std::max(position_, cell.position + cell.global_rows);
  }
  if (cell.epoch == epoch_) {
    in_epoch_ = true;
    // In dynamic this rank may still get batches of it that others leave.
    if ((cell.flags & kLastOfEpoch) != 0 && !dynamic_) ends_owed_ = 1;
  }
  ++stats_.batches;
  stats_.rows += cell.valid_rows;
  stats_.skipped += cell.skipped;
  stats_.redelivered += (cell.flags & kRedelivered) != 0 ? 1 : 0;
  if (repeat_first_) repeated_ = pending_;
  *batch = std::exchange(pending_, nullptr);
  return Result::kBatch;
}

// Not inline: code that is rarely run lengthens the loop that spins.
[[gnu::noinline]] Status RankReader::NoBatchWithin(
    double timeout_s, Clock::duration waited) const {
  const bool ask = !lost_ && waited >= kWorthAsking;
  const std::string why =
      ask ? WhatJobWaitsFor(socket_, job_, dataset_, rank_) : std::string();
  return DeadlineExceededError(
      "no batch for rank {} of job '{}' within {} s{}{}; `penstock status` "
      "says what the job waits for",
      name(), job_, timeout_s, why.empty() ? "" : ": ", why);
}

StatusOr<RankReader::Ready> RankReader::WaitUntilReady(double timeout_s,
                                                       bool reconnects) {
  const Clock::time_point begin = Clock::now();
  const Deadline deadline = DeadlineAfter(timeout_s);
  const Clock::time_point spin_end =
      std::min(begin + spin_, deadline.value_or(begin + spin_));
  // Not read for every check of the ring: a read costs as much as the transfer
  // of the batch's cache line between cores.
  Clock::time_point now = begin;
  Ready what = Ready::kNothing;
  const auto count_wait = [&] {
    ++stats_.waits;
    stats_.wait_ns += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - begin)
            .count());
    if (lost_) return;
    // Relaxed: shown by `penstock status`, nothing depends on it.
    CursorPage& cursor = session_->cursor.page();
    cursor.waits.store(stats_.waits, std::memory_order_relaxed);
    cursor.wait_ns.store(stats_.wait_ns, std::memory_order_relaxed);
  };
  for (uint32_t polls = 1; what == Ready::kNothing; ++polls) {
    bool in_time = true;
    if (!lost_) {
      if (now < spin_end) {
        KeepTakenLine(session_->cursor.page());
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (polls % kPollsPerClock == 0) now = Clock::now();
      } else {
        CursorPage& cursor = session_->cursor.page();
        if (ArmWait(*session_->ring, cursor)) {
          if (BrokerWaitsForTakes(*session_->ring))
            SendWake(session_->wake.get());
          // Stays armed after a timeout: fileno() then signals the next batch.
          PENSTOCK_ASSIGN_OR_RETURN(in_time, Sleep(deadline));
        }
        if (in_time) DisarmWait(cursor);
        armed_ = !in_time;
        now = Clock::now();
      }
    }
    if (lost_) {
      in_time = false;
      if (reconnects) {
        PENSTOCK_ASSIGN_OR_RETURN(in_time, Reconnect(deadline));
      }
    }
    if (!in_time) {
      count_wait();
      return NoBatchWithin(timeout_s, now - begin);
    }
    PENSTOCK_ASSIGN_OR_RETURN(what, TakeReady());
  }
  count_wait();
  return what;
}

StatusOr<RankReader::Result> RankReader::Next(double timeout_s, Batch** batch) {
  return Next(timeout_s, true, batch);
}

StatusOr<RankReader::Result> RankReader::NextReady(Batch** batch) {
  return Next(0, false, batch);
}

StatusOr<RankReader::Result> RankReader::Next(double timeout_s, bool reconnects,
                                              Batch** batch) {
  *batch = nullptr;
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  if (repeated_ == nullptr) {
    if (ends_owed_ > 0 || pending_ != nullptr || over_) {
      return HandOut(reconnects, batch);
    }
  }
  if (device_ != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(AwaitLeaving(true, reconnects));
  }
  if (held() >= hold_) {
    return ResourceExhaustedError(
        "rank {} holds {}, the most it may hold at once: copy what you keep, "
        "release a batch before the next, or raise `hold:` in the dataset's "
        "spec",
        name(), Counted(hold_, "batch", "batches"));
  }
  if (repeated_ != nullptr) {
    // The one batch for ever; its lease is never given back.
    const std::lock_guard lock(sessions_mutex_);
    if (repeated_->held.exchange(true, std::memory_order_relaxed)) {
      ++repeated_->repeats;
    }
    CountHandedOut();
    ++stats_.batches;
    stats_.rows += repeated_->cell.valid_rows;
    *batch = repeated_;
    return Result::kBatch;
  }

  if (std::exchange(armed_, false) && !lost_) {
    DisarmWait(session_->cursor.page());
  }
  PENSTOCK_ASSIGN_OR_RETURN(Ready what, lost_ ? Ready::kNothing : TakeReady());
  if (what == Ready::kNothing) {
    if (device_ != nullptr && reconnects) {
      PENSTOCK_RETURN_IF_ERROR(AwaitLeaving(false, true));
    }
    PENSTOCK_ASSIGN_OR_RETURN(what, WaitUntilReady(timeout_s, reconnects));
  }
  if (what == Ready::kOver) NoteOver();
  return HandOut(reconnects, batch);
}

StatusOr<bool> RankReader::Sleep(Deadline deadline) {
  pollfd entries[2] = {{lost_ ? retry_.get() : session_->wake.get(), POLLIN, 0},
                       {interrupt_.get(), POLLIN, 0}};
  for (;;) {
    std::optional<Clock::duration> left;
    if (deadline) left = std::max(*deadline - Clock::now(), Clock::duration(0));
    const timespec timeout = TimespecOf(
        cancelled_ ? std::min<Clock::duration>(left.value_or(kPause), kPause)
                   : left.value_or(Clock::duration(0)));
    const int ready =
        ppoll(entries, 2, left || cancelled_ ? &timeout : nullptr, nullptr);
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    if (ready > 0) break;
    if (deadline && Clock::now() >= *deadline) return false;
    if (Cancelled()) {
      if (!lost_) DisarmWait(session_->cursor.page());
      return CancelledError("cancelled");
    }
  }
  if ((entries[1].revents & POLLIN) != 0) {
    uint64_t count;
    (void)!read(interrupt_.get(), &count, sizeof(count));
    if (interrupted_.exchange(false)) {
      if (!lost_) DisarmWait(session_->cursor.page());
      return CancelledError("interrupted");
    }
  }
  if (!lost_ && entries[0].revents != 0 && !DrainWakes(session_->wake.get())) {
    // The broker is gone, or has taken this rank off. Batches it published
    // before can still be taken.
    if (AnyUntaken(*session_->ring, session_->cursor.page()) ||
        session_->ring->closed.load(std::memory_order_acquire) !=
            static_cast<uint32_t>(Closed::kOpen)) {
      return true;
    }
    lost_ = Clock::now();
    session_->broker_died = true;
    retry_delay_ = std::chrono::milliseconds(0);
  }
  return true;
}

StatusOr<bool> RankReader::SleepToRetry(Deadline deadline) {
  if (retry_delay_.count() == 0) return true;
  itimerspec timer{};
  timer.it_value = TimespecOf(retry_delay_);
  timerfd_settime(retry_.get(), 0, &timer, nullptr);
  PENSTOCK_ASSIGN_OR_RETURN(const bool rung, Sleep(deadline));
  uint64_t count;
  if (rung) (void)!read(retry_.get(), &count, sizeof(count));
  return rung;
}

void RankReader::Interrupt() {
  interrupted_.store(true);
  const uint64_t one = 1;
  (void)!write(interrupt_.get(), &one, sizeof(one));
}

void RankReader::NoteEvent(nlohmann::json event) {
  const auto change = event.find("change");
  if (change == event.end()) {
    events_.push_back(std::move(event));
    return;
  }
  auto weights = WeightsChangeFromJson(*change);
  if (!weights.ok()) return;
  std::vector<WeightsChange>& all = start_.weights;
  if (!all.empty() && all.back().epoch == weights->epoch &&
      all.back().row == weights->row) {
    all.pop_back();
  }
  all.push_back(*std::move(weights));
}

void RankReader::HearEvents() {
  while (session_ != nullptr) {
    auto message = ReceiveMessage(session_->control.get());
    if (!message.ok() || !*message) return;
    NoteEvent(std::move((*message)->json));
  }
}

StatusOr<std::string> RankReader::State() {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  if (dynamic_) {
    // Only the broker knows which batches the other ranks have.
    const StatusOr<Message> answer = Ask({{"op", "state"}});
    if (answer.status().code() == StatusCode::kUnavailable) {
      return UnavailableError(
          "only the broker knows the state of a dynamic job, and it is gone "
          "({}): take the next batch, which waits for the broker to come back, "
          "and try again",
          answer.status().message());
    }
    if (!answer.ok()) return answer.status();
    return answer->json.value("state", nlohmann::json()).dump();
  }
  HearEvents();
  JobState state = start_;
  state.epoch = position_ / rows_per_epoch_;
  state.row = position_ % rows_per_epoch_;
  for (const auto& [step, rows] : owed_) state.owed.push_back(rows);
  return JobStateToJson(state).dump();
}

Status RankReader::Reset(int64_t rank, int64_t world_size,
                         int64_t local_world_size, const std::string& state) {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  if (world_size < 1) {
    return InvalidArgumentError("reset: a world of {} ranks: wanted at least 1",
                                world_size);
  }
  if (rank < 0 || rank >= world_size) {
    return InvalidArgumentError(
        "reset: rank {} of a world of {}: ranks count from 0 to {}", rank,
        world_size, world_size - 1);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const JobState parsed, ParseJobState(state));
  if (pending_ != nullptr) Release(std::exchange(pending_, nullptr));
  if (local_world_size == 0) {
    const int64_t local = request_.at("local_world_size").get<int64_t>();
    local_world_size =
        local == request_.at("world_size").get<int64_t>() ? world_size : local;
  }
  nlohmann::json request = request_;
  request["rank"] = rank;
  request["world_size"] = world_size;
  request["local_world_size"] = local_world_size;
  request_ = request;
  request["state"] = JobStateToJson(parsed);
  PENSTOCK_RETURN_IF_ERROR(Open(std::move(request), DeadlineOf(timeout_s_)));
  lost_.reset();
  over_ = in_epoch_ = false;
  ends_owed_ = 0;
  repeated_ = nullptr;
  return OkStatus();
}

StatusOr<std::string> RankReader::Fingerprint(const std::string& part) {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  nlohmann::json request = {{"op", "fingerprint"}};
  if (!part.empty()) request["part"] = part;
  PENSTOCK_ASSIGN_OR_RETURN(const Message answer, Ask(std::move(request)));
  try {
    return answer.json.at(part.empty() ? "parts" : "part").dump();
  } catch (const nlohmann::json::exception&) {
    return InternalError("the broker's answer does not follow the protocol");
  }
}

Status RankReader::FirstFreeRow(int64_t* epoch, int64_t* row) {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  PENSTOCK_ASSIGN_OR_RETURN(const Message answer, Ask({{"op", "weights"}}));
  try {
    *epoch = answer.json.at("free_epoch").get<int64_t>();
    *row = answer.json.at("free_row").get<int64_t>();
  } catch (const nlohmann::json::exception&) {
    return UnavailableError(
        "job '{}': its position is not known yet; try again later", job_);
  }
  return OkStatus();
}

Status RankReader::SetWeights(const std::vector<double>& weights, int64_t epoch,
                              int64_t row) {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  nlohmann::json request = {{"op", "weights"}, {"weights", weights}};
  if (epoch >= 0) {
    request["epoch"] = epoch;
    request["row"] = row;
  }
  return Ask(std::move(request)).status();
}

Status RankReader::StopJob(bool now) {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  return Ask({{"op", "stop"}, {"now", now}}).status();
}

}  // namespace penstock
