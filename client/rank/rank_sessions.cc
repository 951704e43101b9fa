// A reader's attaches: the first, those after a broker's death, and those to
// other incarnations; and what happens to batches held meanwhile.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <thread>

#include "client/attach/fork.h"
#include "client/attach/own_broker.h"
#include "client/attach/reconnect.h"
#include "client/rank/private_memory.h"
#include "client/rank/rank_session.h"
#include "common/kill_point.h"
#include "common/message.h"
#include "common/ring.h"
#include "common/wake.h"

namespace penstock {
namespace {

Status AddToEpoll(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError(errno, "epoll_ctl");
  }
  return OkStatus();
}

// A request without an answer, to a broker that may be gone.
void Tell(const Fd& control, const char* op) {
  (void)SendMessage(control.get(),
                    {{"penstock", kProtocolVersion}, {"op", op}});
}

}  // namespace

StatusOr<std::unique_ptr<RankReader>> RankReader::Attach(
    const AttachOptions& options) {
  const Deadline deadline = DeadlineOf(options.timeout_s);
  PENSTOCK_ASSIGN_OR_RETURN(AttachRequest request,
                            MakeAttachRequest(options, ProcessEnvironment()));
  std::unique_ptr<RankReader> reader(new RankReader());
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
    const bool shared = request.job.at("local_world_size").get<int64_t>() > 1 ||
                        request.job.value("local_replicas", 1) > 1;
    PENSTOCK_ASSIGN_OR_RETURN(reader->socket_,
                              SocketOfAnyBroker(reader->socket_, shared));
  }
  reader->request_ = std::move(request.job);
  reader->dynamic_ = options.delivery == "dynamic";
  reader->cancelled_ = options.cancelled;
  nlohmann::json first = reader->request_;
  first.update(request.start);
  if (options.wait_s > 0) {
    reader->AwaitBroker(Clock::now() + DurationOf(options.wait_s));
  }
  const Status opened = reader->Open(first, deadline);
  if (!reader->lost_) {
    PENSTOCK_RETURN_IF_ERROR(opened);
    return reader;
  }
  // The broker died before it answered; ask the next instance.
  PENSTOCK_ASSIGN_OR_RETURN(
      const bool in_time,
      reader->Reopen(
          "a rank was attaching", [&] { return first; }, deadline, deadline));
  if (in_time) return reader;
  return DeadlineExceededError(
      "the broker died while a rank was attaching and did not come back within "
      "{} s (timeout_s): {}",
      options.timeout_s, opened.message());
}

void RankReader::AwaitBroker(Clock::time_point until) const {
  constexpr std::chrono::milliseconds kLook{50};
  while (Clock::now() < until && !Cancelled()) {
    const StatusCode code = ConnectControl(socket_, until).status().code();
    if (code != StatusCode::kNotFound && code != StatusCode::kUnavailable) {
      return;
    }
    std::this_thread::sleep_for(kLook);
  }
}

Status RankReader::Open(nlohmann::json request, Deadline deadline) {
  // At each attach: the process may have been bound since.
  DescribePlacement(&request);
  auto session = std::make_unique<Session>();
  PENSTOCK_ASSIGN_OR_RETURN(session->cursor, CreateCursor());
  std::vector<int> fds = {session->cursor.fd.get()};
  // The former cursor page says which batches were taken.
  const bool reconnects = request.contains("incarnation");
  if (reconnects) fds.push_back(session_->cursor.fd.get());
  PENSTOCK_ASSIGN_OR_RETURN(session->control,
                            ConnectControl(socket_, deadline));
  auto answer =
      Request(session->control.get(), std::move(request), fds, deadline,
              [this](const nlohmann::json&) { return !Cancelled(); });
  // An existing session notices a death by its socket instead.
  if (answer.status().code() == StatusCode::kUnavailable &&
      session_ == nullptr && !lost_) {
    lost_ = Clock::now();
  }
  if (!answer.ok()) return answer.status();
  KillPoint("attach.answered");
  PENSTOCK_RETURN_IF_ERROR(ReadAnswer(*std::move(answer), session.get()));
  if (!reconnects) joined_at_ = position_;
  // Relaxed: the broker reads it only after this process has died.
  session->cursor.page().position.store(position_, std::memory_order_relaxed);
  Reach(session.get(), RankStage::kAnswered);
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

Status RankReader::ReadAnswer(Message answer, Session* session) {
  if (answer.fds.size() != 2) {
    return InternalError("the broker's answer has {} descriptors, wanted 2",
                         answer.fds.size());
  }
  // The broker is trusted, but a wrong build of it must cause an error, not a
  // crash of the trainer.
  uint32_t seat = 0;
  bool handed_over = false;
  try {
    const nlohmann::json& json = answer.json;
    PENSTOCK_ASSIGN_OR_RETURN(element_spec_,
                              ElementSpecFromJson(json.at("element_spec")));
    spec_by_part_.clear();
    if (json.contains("element_spec_by_part")) {
      for (const nlohmann::json& part : json.at("element_spec_by_part")) {
        PENSTOCK_ASSIGN_OR_RETURN(ElementSpec spec, ElementSpecFromJson(part));
        if (!SameButSizes(spec, element_spec_)) {
          return InternalError("the parts of the dataset have other features");
        }
        spec_by_part_.push_back(std::move(spec));
      }
      element_spec_ = CommonSpec(spec_by_part_);
    }
    job_ = json.at("job").get<std::string>();
    dataset_ = json.at("dataset").get<std::string>();
    rank_ = plan_rank_ = json.at("rank").get<int64_t>();
    replica_ = json.value("replica", int64_t{0});
    world_size_ = request_.at("world_size").get<int64_t>();
    phase_ = json.at("phase").get<uint32_t>();
    if (phase_ > 0) {  // shrunk
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
    warning_ = json.value("warning", std::string());
    position_ = json.at("position").get<uint64_t>();
    handed_over = json.at("handed_over").get<uint64_t>() > 0;
    replaces_ = json.at("replaces").get<bool>();
    spin_ = std::chrono::nanoseconds(json.at("spin_ns").get<int64_t>());
    PENSTOCK_ASSIGN_OR_RETURN(start_, JobStateFromJson(json.at("state")));
    nlohmann::json left = json.at("state");
    left["owed"] = json.at("owed");
    PENSTOCK_ASSIGN_OR_RETURN(const JobState state, JobStateFromJson(left));
    const nlohmann::json& steps = json.at("owed_steps");
    owed_.clear();
    for (size_t i = 0; i < state.owed.size(); ++i) {
      owed_[steps.at(i).get<uint64_t>()] = state.owed[i];
    }
  } catch (const nlohmann::json::exception&) {
    return InternalError("the broker's answer does not follow the protocol");
  }
  events_.clear();
  epoch_ = position_ / rows_per_epoch_;
  // All ranks of a dynamic job count the same epochs, whichever batches they
  // get.
  if (position_ == start_.epoch * rows_per_epoch_ + start_.row ||
      (dynamic_ && !replaces_)) {
    epoch_ = start_.epoch;
  }
  // Until the owed batches have come their epoch is not over.
  for (const auto& [step, rows] : owed_) {
    epoch_ = std::min(epoch_, rows.epoch);
  }
  // The first batch taken over from a predecessor may be of an earlier epoch.
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

void RankReader::Supersede() {
  if (session_ == nullptr) return;
  epoll_ctl(poll_.get(), EPOLL_CTL_DEL, session_->wake.get(), nullptr);
  const std::lock_guard lock(sessions_mutex_);
  ahead_.clear();
  session_->superseded = true;
  if (session_->Unused()) Retire(session_);
  session_ = nullptr;
}

// Tells the broker that this rank maps no memory of a former broker instance
// any more. sessions_mutex_ is held.
void RankReader::SendUnmapped() {
  const bool maps_former = std::any_of(
      sessions_.begin(), sessions_.end(), [this](const auto& session) {
        return session.get() != session_ && session->broker_died;
      });
  // session_ is null while a new one is being made, after which it is sent.
  if (maps_former || session_ == nullptr) return;
  Tell(session_->control, "unmapped");
}

// sessions_mutex_ is held.
void RankReader::Retire(Session* session) {
  const Fd control = std::move(session->control);
  const bool of_former_instance = session->broker_died && session != session_;
  sessions_.remove_if(
      [session](const auto& each) { return each.get() == session; });
  // All its memory is unmapped now.
  if (of_former_instance) SendUnmapped();
  if (control) Tell(control, "detach");
}

void RankReader::Reach(Session* session, RankStage stage) {
  // Relaxed: read after this process has died, or by the next broker instance.
  session->cursor.page().stage.store(static_cast<uint32_t>(stage),
                                     std::memory_order_relaxed);
}

RankReader::~RankReader() { Leave(); }

// Detaches the sessions that have not detached yet.
void RankReader::Leave() {
  const bool ours = ForkGeneration() == fork_generation_;
  for (const auto& session : sessions_) {
    const Fd control = std::move(session->control);
    if (!control || !ours) continue;
    // For the next broker instance, in case this one is dead.
    Reach(session.get(), over_ ? RankStage::kFinished : RankStage::kLeft);
    Tell(control, "detach");
    // Shut down, not only closed: a forked child holds the same socket.
    shutdown(control.get(), SHUT_RDWR);
  }
}

void RankReader::Detach(std::unique_ptr<RankReader> reader) {
  if (ForkGeneration() != reader->fork_generation_) {
    // A child may still release batches that its parent held.
    if (reader->held() > 0) (void)reader.release();
    return;
  }
  RankReader& mine = *reader;
  const std::lock_guard lock(mine.sessions_mutex_);
  mine.LeaveDevice();
  bool all_let_go = true;
  for (const auto& session : mine.sessions_) {
    all_let_go &= mine.Disown(session.get());
  }
  // Without memory for copies the held batches stay the broker's, and the rank
  // attached, until they are released.
  if (all_let_go) mine.Leave();
  // The last Release destroys it.
  if (mine.left_behind_ > 0) (void)reader.release();
}

// Replaces the session's memory by copies of the held batches. False: no memory
// for them. sessions_mutex_ is held.
bool RankReader::Disown(Session* session) {
  std::vector<const Batch*> held;
  for (const Batch& batch : session->batches) {
    // The caller does not have pending_.
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
    const ElementSpec& element = element_spec(cell);
    for (size_t i = 0; i < element.size(); ++i) {
      const std::byte* const data = session->view->feature(cell, i);
      use(data, element[i].BytesUsed(cell.rows, data));
    }
  }
  for (const Batch* batch : held) left_behind_ += 1 + batch->repeats;
  if (!LetGo(session->view->memory(), kept, false).ok()) return false;
  const CopyOnWrite* const writable = session->writable.get();
  return writable == nullptr ||
         LetGo({writable->data(), writable->bytes()}, kept, true).ok();
}

nlohmann::json RankReader::ReconnectRequest() const {
  nlohmann::json request = request_;
  request["rank"] = rank_;
  request["incarnation"] = incarnation_;
  request["token"] = token_;
  request["position"] = position_;
  request["phase"] = phase_;
  request["taken"] = stats_.batches;
  if (request.contains("full_epoch")) request["epochs_from"] = joined_at_;
  request["owed"] = nlohmann::json::array();
  for (const auto& [step, rows] : owed_) request["owed"].push_back(step);
  request["state"] = JobStateToJson(start_);
  return request;
}

StatusOr<bool> RankReader::Reconnect(Deadline deadline) {
  {
    const std::lock_guard lock(sessions_mutex_);
    if (device_ != nullptr) GiveBackCopied(DeviceCopies::kAll);
    for (const auto& session : sessions_) {
      if (session.get() != session_ && session->broker_died) {
        return ResourceExhaustedError(
            "the broker died twice and rank {} still holds batches from before "
            "the first death: release them",
            rank_);
      }
    }
  }
  const uint64_t epoch = epoch_;
  const bool in_epoch = in_epoch_;
  HearEvents();
  PENSTOCK_ASSIGN_OR_RETURN(
      const bool in_time,
      Reopen(
          Format("job '{}' ran", job_), [this] { return ReconnectRequest(); },
          deadline, *lost_ + DurationOf(reconnect_s_)));
  if (!in_time) return false;
  {
    const std::lock_guard lock(sessions_mutex_);
    SendUnmapped();
  }
  ++stats_.reconnects;
  // Continue in the epoch where it was.
  epoch_ = epoch;
  epoch_known_ = true;
  in_epoch_ = in_epoch;
  return true;
}

StatusOr<bool> RankReader::Reopen(
    const std::string& doing, const std::function<nlohmann::json()>& request,
    Deadline deadline, Deadline answered_by) {
  const Clock::time_point give_up = *lost_ + DurationOf(reconnect_s_);
  const auto gone = [&](const std::string& last) {
    return BrokerGoneError(doing, *lost_, reconnect_s_, last);
  };
  if (reconnect_s_ <= 0) return gone("");
  for (;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool in_time, SleepToRetry(deadline));
    if (!in_time) return false;
    KillPoint("reconnect.begun");
    const Status status = Open(request(), answered_by);
    KillPoint("reconnect.done");
    if (status.ok()) {
      lost_.reset();
      retry_delay_ = std::chrono::milliseconds(0);
      return true;
    }
    if (!MayComeBack(status.code())) return status;
    const bool no_socket = status.code() == StatusCode::kNotFound &&
                           Clock::now() - *lost_ > kNoSocketTimeout;
    if (no_socket || Clock::now() >= give_up) return gone(status.message());
    retry_delay_ = NextRetryDelay(retry_delay_);
  }
}

const int64_t* RankReader::ids(const Batch& batch) {
  return batch.session->view->ids(batch.cell);
}
const std::byte* RankReader::data(const Batch& batch, uint32_t feature) {
  return batch.session->view->feature(batch.cell, feature);
}

void RankReader::Release(Batch* batch) {
  RankReader* reader = batch->reader;
  if (ForkGeneration() != reader->fork_generation_) return;
  std::unique_ptr<RankReader> finished;  // destroyed when the mutex is free
  const std::lock_guard lock(reader->sessions_mutex_);
  if (batch->repeats > 0) {
    --batch->repeats;
    reader->given_back_.fetch_add(1, std::memory_order_release);
    if (reader->left_behind_ > 0) --reader->left_behind_;
    return;
  }
  if (!batch->held.exchange(false)) return;  // released before
  batch->on_device.reset();
  // Others may wait for a batch of a dynamic job to be given back.
  if (batch->copy != 0 && reader->dynamic_) {
    reader->device_->Await(batch->copy);
  }
  if (batch->copy != 0 && !reader->repeat_first_ &&
      !reader->device_->Passed(batch->copy)) {
    reader->leaving_.push_back(batch);
    return;
  }
  finished = reader->GiveBack(batch);
}

std::unique_ptr<RankReader> RankReader::GiveBack(Batch* batch) {
  given_back_.fetch_add(1, std::memory_order_release);
  batch->copy = 0;
  if (left_behind_ > 0) {
    return std::unique_ptr<RankReader>(--left_behind_ == 0 ? this : nullptr);
  }
  Session* session = batch->session;
  if (std::exchange(batch->writable, false)) {
    session->writable->Discard(batch->cell.slot_offset,
                               session->view->slot_bytes());
  }
  if (repeat_first_) return nullptr;
  if (penstock::Release(*session->ring, session->cursor.page(),
                        batch->cell.lease, batch->cell.generation)) {
    SendWake(session->wake.get());
  }
  ++session->given_back;
  if (session->Unused()) Retire(session);
  return nullptr;
}

StatusOr<std::byte*> RankReader::WritableData(Batch* batch, uint32_t feature) {
  RankReader* reader = batch->reader;
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

}  // namespace penstock
