#include "client/reader.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "client/fork.h"
#include "client/own_broker.h"
#include "client/private_memory.h"
#include "common/kill_point.h"
#include "common/ring.h"
#include "common/wake.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

Deadline DeadlineAfter(double timeout_s) {
  if (timeout_s < 0) return std::nullopt;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(
             std::chrono::duration<double>(std::min(timeout_s, 1e9)));
}

// Waits this long at most for what a live broker sends at once.
constexpr std::chrono::seconds kEventTimeout{10};
constexpr std::chrono::seconds kNoSocketTimeout{2};
// Looks at the ring between two at the clock, a microsecond at most together.
constexpr uint32_t kLooksPerClock = 32;
constexpr std::chrono::milliseconds kRetryDelayMin{10};
constexpr std::chrono::milliseconds kRetryDelayMax{1000};

timespec TimespecOf(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {static_cast<time_t>(seconds.count()),
          static_cast<long>((time - seconds).count())};
}

Status AddToEpoll(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError(errno, "epoll_ctl");
  }
  return OkStatus();
}

}  // namespace

struct Reader::Session {
  Fd control;
  Fd wake;
  OwnedCursor cursor;
  Fd segment;
  std::unique_ptr<SegmentView> view;
  std::optional<ForkGuard> guards[2];  // of cursor and view
  const Ring* ring = nullptr;
  bool broker_died = false;
  // Batches. Only the consuming thread adds to it, and nothing more once it has
  // superseded the session.
  std::atomic<uint64_t> taken{0};
  // Guarded by sessions_mutex_:
  std::unique_ptr<CopyOnWrite> writable;  // once somebody asked for it
  uint64_t given_back = 0;
  bool superseded = false;
  bool Unused() const {  // superseded, and nothing of it is held
    // Relaxed: who sees superseded, through the mutex, sees the last of them.
    return superseded && given_back == taken.load(std::memory_order_relaxed);
  }
  std::array<Batch, kLeasesMax> batches;
};

const int64_t* Reader::ids(const Batch& batch) {
  return batch.session->view->ids(batch.cell);
}
const std::byte* Reader::data(const Batch& batch, uint32_t feature) {
  return batch.session->view->feature(batch.cell, feature);
}

StatusOr<std::unique_ptr<Reader>> Reader::Attach(const AttachOptions& options) {
  const Deadline deadline =
      DeadlineAfter(options.timeout_s > 0 ? options.timeout_s : -1);
  PENSTOCK_ASSIGN_OR_RETURN(AttachRequest request,
                            MakeAttachRequest(options, ProcessEnvironment()));
  std::unique_ptr<Reader> reader(new Reader());
  reader->repeat_first_ = request.repeat_first;
  reader->timeout_s_ = options.timeout_s;
  if (options.reconnect_s >= 0) reader->reconnect_s_ = options.reconnect_s;
  reader->fork_generation_ = ForkGeneration();
  reader->interrupt_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  reader->retry_ =
      Fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  reader->poll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!reader->interrupt_ || !reader->retry_ || !reader->poll_) {
    return ErrnoError(errno, "eventfd, timerfd or epoll");
  }
  PENSTOCK_RETURN_IF_ERROR(
      AddToEpoll(reader->poll_.get(), reader->retry_.get()));
  reader->socket_ = SocketPath(options.socket);
  if (options.autostart) {
    const auto ranks = request.job.at("world_size").get<int64_t>();
    if (ranks > 1) {
      return InvalidArgumentError(
          "autostart: a broker of this process's own is for one rank, and "
          "there are {}: start the ranks with `penstock run`, or the service "
          "(systemctl start penstockd.socket)",
          ranks);
    }
    PENSTOCK_ASSIGN_OR_RETURN(reader->socket_,
                              SocketOfAnyBroker(reader->socket_));
  }
  reader->request_ = std::move(request.job);
  reader->dynamic_ = options.delivery == "dynamic";
  reader->cancelled_ = options.cancelled;
  nlohmann::json first = reader->request_;
  first.update(request.start);
  PENSTOCK_RETURN_IF_ERROR(reader->Open(std::move(first), deadline));
  return reader;
}

Status Reader::Open(nlohmann::json request, Deadline deadline) {
  // Each time: it may have been bound since.
  DescribePlacement(&request);
  auto session = std::make_unique<Session>();
  PENSTOCK_ASSIGN_OR_RETURN(session->cursor, CreateCursor());
  std::vector<int> fds = {session->cursor.fd.get()};
  // What was taken of the former life is in its page.
  const bool reconnects = request.contains("incarnation");
  if (reconnects) fds.push_back(session_->cursor.fd.get());
  PENSTOCK_ASSIGN_OR_RETURN(session->control,
                            ConnectControl(socket_, deadline));
  PENSTOCK_ASSIGN_OR_RETURN(
      Message answer,
      Request(session->control.get(), std::move(request), fds, deadline,
              [this](const nlohmann::json&) { return !Cancelled(); }));
  KillPoint("attach.answered");
  PENSTOCK_RETURN_IF_ERROR(ReadAnswer(std::move(answer), session.get()));
  if (!reconnects) joined_at_ = position_;
  // Relaxed: read by the broker after this process is dead, or never.
  session->cursor.page().position.store(position_, std::memory_order_relaxed);
  session->cursor.page().answered.store(1, std::memory_order_relaxed);
  PENSTOCK_RETURN_IF_ERROR(AddToEpoll(poll_.get(), session->wake.get()));
  for (Batch& batch : session->batches) {
    batch.reader = this;
    batch.session = session.get();
  }
  Supersede();
  const std::lock_guard lock(sessions_mutex_);
  session_ = session.get();
  sessions_.push_back(std::move(session));
  return OkStatus();
}

Status Reader::ReadAnswer(Message answer, Session* session) {
  if (answer.fds.size() != 2) {
    return InternalError("the broker's answer has {} descriptors, wanted 2",
                         answer.fds.size());
  }
  // The broker is trusted more than a rank is, but a wrong build of it must end
  // in a message, not in a crash of the trainer.
  uint32_t seat = 0;
  bool handed_over = false;
  bool replaces = false;
  try {
    const nlohmann::json& json = answer.json;
    PENSTOCK_ASSIGN_OR_RETURN(element_spec_,
                              ElementSpecFromJson(json.at("element_spec")));
    job_ = json.at("job").get<std::string>();
    dataset_ = json.at("dataset").get<std::string>();
    rank_ = plan_rank_ = json.at("rank").get<int64_t>();
    world_size_ = request_.at("world_size").get<int64_t>();
    phase_ = json.at("phase").get<uint32_t>();
    if (phase_ > 0) {  // ranks died, and the others go on without them
      plan_rank_ = json.at("plan_rank").get<int64_t>();
      world_size_ = json.at("plan_ranks").get<int64_t>();
    }
    seat = json.at("seat").get<uint32_t>();
    hold_ = json.at("hold").get<uint32_t>();
    records_ = json.at("records").get<uint64_t>();
    steps_per_epoch_ = json.at("steps_per_epoch").get<uint64_t>();
    rows_per_epoch_ =
        std::max<uint64_t>(json.at("rows_per_epoch").get<uint64_t>(), 1);
    epochs_ = json.at("epochs").get<uint64_t>();
    incarnation_ = json.at("incarnation").get<uint64_t>();
    token_ = json.at("token").get<uint64_t>();
    position_ = json.at("position").get<uint64_t>();
    handed_over = json.at("handed_over").get<uint64_t>() > 0;
    replaces = json.at("replaces").get<bool>();
    spin_ = std::chrono::nanoseconds(json.at("spin_ns").get<int64_t>());
    PENSTOCK_ASSIGN_OR_RETURN(start_, JobStateFromJson(json.at("state")));
    nlohmann::json left = json.at("state");
    left["owed"] = json.at("owed");
    PENSTOCK_ASSIGN_OR_RETURN(const JobState state, JobStateFromJson(left));
    owed_ = state.owed;
  } catch (const nlohmann::json::exception& error) {
    return InternalError("the broker's answer is not of this protocol: {}",
                         error.what());
  }
  events_.clear();
  epoch_ = position_ / rows_per_epoch_;
  // All ranks of a dynamic job count the same epochs, whoever gets the batches.
  if (position_ == start_.epoch * rows_per_epoch_ + start_.row ||
      (dynamic_ && !replaces)) {
    epoch_ = start_.epoch;
    // What is owed comes first: its epoch is not over.
    for (const JobState::Owed& each : owed_) {
      epoch_ = std::min(epoch_, each.epoch);
    }
  }
  // The first batch of a predecessor may be of the epoch before.
  epoch_known_ = !handed_over;
  PENSTOCK_ASSIGN_OR_RETURN(
      session->view,
      SegmentView::Open(answer.fds[0].get(),
                        static_cast<uint32_t>(element_spec_.size())));
  if (seat >= session->view->seats()) {
    return InternalError("the broker gave seat {} of {}", seat,
                         session->view->seats());
  }
  session->ring = &session->view->ring(seat);
  session->guards[0].emplace(session->cursor.mapping.data(),
                             session->cursor.mapping.bytes());
  session->guards[1].emplace(session->view->memory().data(),
                             session->view->memory().size());
  session->segment = std::move(answer.fds[0]);
  session->wake = std::move(answer.fds[1]);
  return OkStatus();
}

void Reader::Supersede() {
  if (session_ == nullptr) return;
  epoll_ctl(poll_.get(), EPOLL_CTL_DEL, session_->wake.get(), nullptr);
  const std::lock_guard lock(sessions_mutex_);
  session_->superseded = true;
  if (session_->Unused()) Retire(session_);
  session_ = nullptr;
}

// To the broker that counts the memory of a former life. sessions_mutex_ is
// held.
void Reader::SayUnmapped() {
  const bool maps_former = std::any_of(
      sessions_.begin(), sessions_.end(), [this](const auto& session) {
        return session.get() != session_ && session->broker_died;
      });
  if (maps_former) return;
  (void)SendMessage(session_->control.get(),
                    {{"penstock", kProtocolVersion}, {"op", "unmapped"}});
}

// sessions_mutex_ is held.
void Reader::Retire(Session* session) {
  const Fd control = std::move(session->control);
  const bool of_former_life = session->broker_died && session != session_;
  sessions_.remove_if(
      [session](const auto& each) { return each.get() == session; });
  // Everything of it is unmapped now.
  if (of_former_life) SayUnmapped();
  if (control) {
    (void)SendMessage(control.get(),
                      {{"penstock", kProtocolVersion}, {"op", "detach"}});
  }
}

Reader::~Reader() { Leave(); }

// Says so to the brokers that it has not said it to.
void Reader::Leave() {
  const bool ours = ForkGeneration() == fork_generation_;
  for (const auto& session : sessions_) {
    const Fd control = std::move(session->control);
    if (!control || !ours) continue;
    (void)SendMessage(control.get(),
                      {{"penstock", kProtocolVersion}, {"op", "detach"}});
    // Shut down and not only closed: a child that was forked meanwhile holds
    // the same socket.
    shutdown(control.get(), SHUT_RDWR);
  }
}

void Reader::Detach(std::unique_ptr<Reader> reader) {
  if (ForkGeneration() != reader->fork_generation_) {
    // A child may still let go of batches that its parent held.
    if (reader->held() > 0) (void)reader.release();
    return;
  }
  Reader& mine = *reader;
  const std::lock_guard lock(mine.sessions_mutex_);
  bool all_let_go = true;
  for (const auto& session : mine.sessions_) {
    all_let_go &= mine.Disown(session.get());
  }
  // Without memory for copies the batches that are held stay the broker's, and
  // the rank attached, until they are released.
  if (all_let_go) mine.Leave();
  // The last Release destroys it.
  if (mine.left_behind_ > 0) (void)reader.release();
}

// Of the session's memory the batches that are held are left, as copies. False:
// there was no memory for them. sessions_mutex_ is held.
bool Reader::Disown(Session* session) {
  std::vector<const Batch*> held;
  for (const Batch& batch : session->batches) {
    // Of pending_ nobody knows.
    if (batch.held.load() && &batch != pending_) held.push_back(&batch);
  }
  std::sort(held.begin(), held.end(), [](const Batch* a, const Batch* b) {
    return a->cell.slot_offset < b->cell.slot_offset;
  });
  std::vector<KeptSlot> kept;
  for (const Batch* batch : held) {
    const Cell& cell = batch->cell;
    KeptSlot& slot = kept.emplace_back();
    slot.slot = {cell.slot_offset, session->view->slot_bytes()};
    const auto use = [&](const void* data, uint64_t bytes) {
      slot.used.push_back(
          {static_cast<uint64_t>(static_cast<const std::byte*>(data) -
                                 session->view->memory().data()),
           bytes});
    };
    use(session->view->ids(cell), cell.rows * sizeof(int64_t));
    for (size_t i = 0; i < element_spec_.size(); ++i) {
      use(session->view->feature(cell, i),
          cell.rows * element_spec_[i].RowBytes());
    }
  }
  left_behind_ += static_cast<uint32_t>(held.size());
  if (!LetGo(session->view->memory(), kept, false).ok()) return false;
  const CopyOnWrite* const writable = session->writable.get();
  return writable == nullptr ||
         LetGo({writable->data(), writable->bytes()}, kept, true).ok();
}

Status Reader::CheckProcess() const {
  if (ForkGeneration() == fork_generation_) return OkStatus();
  return FailedPreconditionError(
      "this reader belongs to the parent process: attach again after fork");
}

StatusOr<Reader::Ready> Reader::TakeReady() {
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
      session.batches[cell.lease].held.load(std::memory_order_relaxed)) {
    return InternalError(
        "a batch that cannot be: something wrote over this rank's cursor page "
        "(a wild pointer of the trainer), or the broker has a bug");
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
  if ((cell.flags & kRanksChanged) != 0) {
    PENSTOCK_RETURN_IF_ERROR(ReadRanksChanged(cell.flags >> kPhaseShift));
  }
  return Ready::kBatch;
}

StatusOr<Message> Reader::Ask(nlohmann::json request) {
  return Request(session_->control.get(), std::move(request), {},
                 DeadlineAfter(timeout_s_ > 0 ? timeout_s_ : -1),
                 [this](const nlohmann::json& event) {
                   if (event.empty()) return !Cancelled();
                   events_.push_back(event);
                   return true;
                 });
}

Status Reader::ReadRanksChanged(uint32_t phase) {
  const Clock::time_point give_up = Clock::now() + kEventTimeout;
  for (;;) {
    while (events_.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(auto message,
                                ReceiveMessage(session_->control.get()));
      if (message) {
        events_.push_back(std::move(message->json));
        break;
      }
      if (Clock::now() > give_up) {
        return InternalError("the broker did not say which ranks there are");
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
      owed_ = state.owed;
      phase_ = phase;
      return OkStatus();
    } catch (const nlohmann::json::exception& error) {
      return InternalError("the broker's event is not of this protocol: {}",
                           error.what());
    }
  }
}

Status Reader::ClosedStatus() const {
  const Ring& ring = *session_->ring;
  // Acquire: who sees closed sees reason (ring.h, E7).
  const uint32_t closed = ring.closed.load(std::memory_order_acquire);
  char reason[sizeof(Ring::reason)];
  std::memcpy(reason, ring.reason, sizeof(reason));
  reason[sizeof(reason) - 1] = '\0';
  switch (static_cast<Closed>(closed)) {
    case Closed::kOpen:
    case Closed::kFinished:
      return OkStatus();
    case Closed::kRecalled:
      return AbortedError("rank {} of job '{}' was taken off: {}", rank_, job_,
                          reason);
    case Closed::kFailed: {
      // "code text": the job's own status.
      char* text = nullptr;
      const long code = std::strtol(reason, &text, 10);
      return Status(static_cast<StatusCode>(code), text + (*text == ' '));
    }
  }
  return InternalError("the broker closed the ring with code {}", closed);
}

void Reader::NoteOver() {
  over_ = true;
  // lag: skip: no batch came to tell of those missed last.
  if (!dynamic_)
    stats_.skipped += std::strtoul(session_->ring->reason, nullptr, 10);
  uint64_t end = epoch_ + (in_epoch_ ? 1 : 0);
  if (dynamic_) {
    // Others may have had all batches of the last epochs. Without an answer it
    // is known of those epochs only that we had batches of.
    StatusOr<std::string> state = State();
    const auto job = state.ok() ? ParseJobState(*state) : state.status();
    if (job.ok()) end = std::max(end, job->epoch + (job->row > 0 ? 1 : 0));
  }
  ends_owed_ = end - epoch_;
}

// What is to be told next: ends of epochs before the batch that is pending.
StatusOr<Reader::Result> Reader::HandOut(Batch** batch) {
  if (pending_ != nullptr && ends_owed_ == 0) {
    const uint64_t epoch = pending_->cell.epoch;
    if (!epoch_known_) epoch_ = epoch;
    epoch_known_ = true;
    // A batch that was handed out before may be of an epoch that is over.
    if (epoch > epoch_) ends_owed_ = epoch - epoch_;
  }
  if (ends_owed_ > 0) {
    --ends_owed_;
    ++epoch_;
    in_epoch_ = false;
    return Result::kEndOfEpoch;
  }
  if (pending_ == nullptr) return Result::kEndOfData;
  const Cell& cell = pending_->cell;
  const auto owed =
      std::find_if(owed_.begin(), owed_.end(), [&](const JobState::Owed& each) {
        return each.epoch * rows_per_epoch_ + each.row == cell.position;
      });
  if ((cell.flags & kExtra) != 0 && owed != owed_.end()) {
    owed_.erase(owed);
  } else {
    position_ = cell.position + cell.global_rows;
  }
  if (cell.epoch == epoch_) {
    in_epoch_ = true;
    // In dynamic others may still have batches of it, and leave them to us.
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

StatusOr<Reader::Ready> Reader::WaitUntilReady(double timeout_s) {
  const Clock::time_point begin = Clock::now();
  const Deadline deadline = DeadlineAfter(timeout_s);
  const Clock::time_point spin_end = begin + spin_;
  // Not read for every look at the ring: it costs as much as the batch's way
  // from the other core.
  Clock::time_point now = begin;
  Ready what = Ready::kNothing;
  for (uint32_t looks = 1; what == Ready::kNothing; ++looks) {
    bool in_time = true;
    if (!lost_) {
      if (now < spin_end) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (looks % kLooksPerClock == 0) now = Clock::now();
      } else {
        CursorPage& cursor = session_->cursor.page();
        if (ArmWait(*session_->ring, cursor)) {
          if (BrokerWaitsForTakes(*session_->ring))
            SendWake(session_->wake.get());
          // Left armed on a time-out: fileno() then tells of the next batch.
          PENSTOCK_ASSIGN_OR_RETURN(in_time, Sleep(deadline));
        }
        if (in_time) DisarmWait(cursor);
        now = Clock::now();
      }
    }
    if (lost_) {
      PENSTOCK_ASSIGN_OR_RETURN(in_time, Reconnect(deadline));
    }
    if (!in_time) {
      return DeadlineExceededError(
          "no batch for rank {} of job '{}' within {} s; `penstock status` "
          "says what the job waits for",
          rank_, job_, timeout_s);
    }
    PENSTOCK_ASSIGN_OR_RETURN(what, TakeReady());
  }
  ++stats_.waits;
  stats_.wait_ns += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now - begin)
          .count());
  // Relaxed: shown by `penstock status`, nothing depends on it.
  CursorPage& cursor = session_->cursor.page();
  cursor.waits.store(stats_.waits, std::memory_order_relaxed);
  cursor.wait_ns.store(stats_.wait_ns, std::memory_order_relaxed);
  return what;
}

StatusOr<Reader::Result> Reader::Next(double timeout_s, Batch** batch) {
  *batch = nullptr;
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  if (repeated_ != nullptr) {
    // The one batch, for ever; its lease is never given back.
    if (repeated_->held.exchange(true, std::memory_order_relaxed)) {
      return ResourceExhaustedError(
          "repeat_first holds one batch: release it before the next");
    }
    CountHandedOut();
    ++stats_.batches;
    stats_.rows += repeated_->cell.valid_rows;
    *batch = repeated_;
    return Result::kBatch;
  }
  if (ends_owed_ > 0 || pending_ != nullptr) return HandOut(batch);
  if (over_) return Result::kEndOfData;
  if (held() >= hold_) {
    return ResourceExhaustedError(
        "rank {} holds {} batches, all it may hold at once: release one before "
        "the next, or set `hold:` in the dataset's spec higher",
        rank_, hold_);
  }

  PENSTOCK_ASSIGN_OR_RETURN(Ready what, lost_ ? Ready::kNothing : TakeReady());
  if (what == Ready::kNothing) {
    PENSTOCK_ASSIGN_OR_RETURN(what, WaitUntilReady(timeout_s));
  }
  if (what == Ready::kOver) NoteOver();
  return HandOut(batch);
}

StatusOr<bool> Reader::Sleep(Deadline deadline) {
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
    // The broker is gone, or has taken this rank off. What it published before
    // can still be taken.
    if (session_->ring->published.load(std::memory_order_acquire) !=
            session_->cursor.page().taken.load(std::memory_order_relaxed) ||
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

nlohmann::json Reader::ReconnectRequest() const {
  nlohmann::json request = request_;
  request["rank"] = rank_;
  request["incarnation"] = incarnation_;
  request["token"] = token_;
  request["position"] = position_;
  request["phase"] = phase_;
  request["taken"] = stats_.batches;
  if (request.contains("full_epoch")) request["epochs_from"] = joined_at_;
  request["owed"] = nlohmann::json::array();
  for (const JobState::Owed& each : owed_) {
    request["owed"].push_back(each.epoch * rows_per_epoch_ + each.row);
  }
  request["state"] = JobStateToJson(start_);
  return request;
}

StatusOr<bool> Reader::Reconnect(Deadline deadline) {
  const Clock::time_point give_up =
      *lost_ + std::chrono::duration_cast<Clock::duration>(
                   std::chrono::duration<double>(reconnect_s_));
  const auto gone = [&](const std::string& last) {
    return UnavailableError(
        "the broker is gone: its process died or was killed while job '{}' ran "
        "(see its log, or journalctl -u penstockd){}{}",
        job_,
        reconnect_s_ > 0 ? fmt::format("; it did not come back within {} s, "
                                       "reconnect_s: ",
                                       reconnect_s_)
                         : "",
        last);
  };
  if (reconnect_s_ <= 0) return gone("");
  {
    const std::lock_guard lock(sessions_mutex_);
    for (const auto& session : sessions_) {
      if (session.get() != session_ && session->broker_died) {
        return ResourceExhaustedError(
            "the broker died twice and rank {} still holds batches of the "
            "first time: release them",
            rank_);
      }
    }
  }
  for (;;) {
    if (retry_delay_.count() > 0) {
      itimerspec timer{};
      timer.it_value = TimespecOf(retry_delay_);
      timerfd_settime(retry_.get(), 0, &timer, nullptr);
      PENSTOCK_ASSIGN_OR_RETURN(const bool rung, Sleep(deadline));
      if (!rung) return false;
      uint64_t count;
      (void)!read(retry_.get(), &count, sizeof(count));
    }
    const uint64_t epoch = epoch_;
    const bool in_epoch = in_epoch_;
    KillPoint("reconnect.begun");
    const Status status = Open(ReconnectRequest(), give_up);
    KillPoint("reconnect.done");
    if (status.ok()) {
      lost_.reset();
      {
        const std::lock_guard lock(sessions_mutex_);
        SayUnmapped();
      }
      ++stats_.reconnects;
      // It goes on in the middle of what it knows.
      epoch_ = epoch;
      epoch_known_ = true;
      in_epoch_ = in_epoch;
      return true;
    }
    switch (status.code()) {
      case StatusCode::kUnavailable:
      case StatusCode::kNotFound:
      case StatusCode::kDeadlineExceeded:
      case StatusCode::kAlreadyExists:
        break;
      default:
        return status;
    }
    // Without its socket there is no broker to come back: systemd and penstock
    // run keep it while they restart one.
    const bool no_socket = status.code() == StatusCode::kNotFound &&
                           Clock::now() - *lost_ > kNoSocketTimeout;
    if (no_socket || Clock::now() >= give_up) return gone(status.message());
    retry_delay_ = std::clamp(2 * retry_delay_, kRetryDelayMin, kRetryDelayMax);
  }
}

void Reader::Release(Batch* batch) {
  Reader* reader = batch->reader;
  if (ForkGeneration() != reader->fork_generation_) return;
  std::unique_ptr<Reader> finished;  // destroyed when the mutex is free
  const std::lock_guard lock(reader->sessions_mutex_);
  if (!batch->held.exchange(false)) return;  // given back before
  reader->given_back_.fetch_add(1, std::memory_order_release);
  if (reader->left_behind_ > 0) {
    if (--reader->left_behind_ == 0) finished.reset(reader);
    return;
  }
  Session* session = batch->session;
  if (std::exchange(batch->writable, false)) {
    session->writable->Discard(batch->cell.slot_offset,
                               session->view->slot_bytes());
  }
  if (reader->repeat_first_) return;
  if (penstock::Release(*session->ring, session->cursor.page(),
                        batch->cell.lease, batch->cell.generation)) {
    SendWake(session->wake.get());
  }
  ++session->given_back;
  if (session->Unused()) reader->Retire(session);
}

StatusOr<std::byte*> Reader::WritableData(Batch* batch, uint32_t feature) {
  Reader* reader = batch->reader;
  PENSTOCK_RETURN_IF_ERROR(reader->CheckProcess());
  const std::lock_guard lock(reader->sessions_mutex_);
  Session* session = batch->session;
  if (reader->left_behind_ > 0 && !batch->writable) {
    return FailedPreconditionError(
        "the reader is closed: ask for data to write before");
  }
  if (session->writable == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(session->writable,
                              CopyOnWrite::Map(session->segment.get(),
                                               session->view->memory().size()));
  }
  batch->writable = true;
  return session->writable->data() +
         (session->view->feature(batch->cell, feature) -
          session->view->memory().data());
}

void Reader::Interrupt() {
  interrupted_.store(true);
  const uint64_t one = 1;
  (void)!write(interrupt_.get(), &one, sizeof(one));
}

StatusOr<std::string> Reader::State() {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  if (dynamic_) {
    // What the others have is known to the broker alone.
    PENSTOCK_ASSIGN_OR_RETURN(const Message answer, Ask({{"op", "state"}}));
    return answer.json.value("state", nlohmann::json()).dump();
  }
  JobState state = start_;
  state.epoch = position_ / rows_per_epoch_;
  state.row = position_ % rows_per_epoch_;
  state.owed = owed_;
  return JobStateToJson(state).dump();
}

Status Reader::Reset(int64_t rank, int64_t world_size, int64_t local_world_size,
                     const std::string& state) {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  if (world_size < 1) {
    return InvalidArgumentError("reset: a world of {} ranks; at least 1",
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
  PENSTOCK_RETURN_IF_ERROR(Open(
      std::move(request), DeadlineAfter(timeout_s_ > 0 ? timeout_s_ : -1)));
  lost_.reset();
  over_ = in_epoch_ = false;
  ends_owed_ = 0;
  repeated_ = nullptr;
  return OkStatus();
}

Status Reader::StopJob(bool now) {
  PENSTOCK_RETURN_IF_ERROR(CheckProcess());
  return Ask({{"op", "stop"}, {"now", now}}).status();
}

}  // namespace penstock
