#include "client/rank/producer.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "client/attach/attach_request.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Most unanswered puts; a socket buffers some 270.
constexpr uint64_t kUnansweredMax = 32;
// One put of so many asks for an answer, which also covers those before it:
// each answer wakes the broker and this process.
constexpr uint64_t kPutsPerAnswer = 16;

Status StatusOf(const nlohmann::json& answer) {
  return Status(static_cast<StatusCode>(answer.value("code", 13)),
                answer.value("error", "the broker gave no reason"));
}

// Identifies this producer to a restarted broker.
uint64_t NewToken() {
  uint64_t token = 0;
  while (token == 0 && getrandom(&token, sizeof(token), 0) != sizeof(token)) {
  }
  return token;
}

}  // namespace

StatusOr<std::unique_ptr<Producer>> Producer::Open(
    const ProduceOptions& options) {
  if (options.rows == 0) {
    return InvalidArgumentError(
        "a producer with puts of 0 rows: wanted at least 1");
  }
  if (options.features.empty()) {
    return InvalidArgumentError("a producer of rows without features");
  }
  std::unique_ptr<Producer> producer(new Producer());
  producer->fork_generation_ = ForkGeneration();
  producer->timeout_s_ = options.timeout_s;
  producer->reconnect_s_ = options.reconnect_s;
  producer->cancelled_ = options.cancelled;
  producer->features_ = options.features;
  producer->put_rows_ = options.rows;
  producer->job_ = JobName(options.job, ProcessEnvironment());
  producer->socket_ = SocketPath(options.socket);
  producer->request_ = {{"op", "produce"},
                        {"job", producer->job_},
                        {"features", ElementSpecToJson(options.features)},
                        {"rows", options.rows},
                        {"token", NewToken()}};
  if (!options.dataset.empty()) {
    producer->request_["dataset"] = options.dataset;
  }
  const Deadline deadline = DeadlineOf(options.timeout_s);
  PENSTOCK_ASSIGN_OR_RETURN(Fd control,
                            ConnectControl(producer->socket_, deadline));
  Status status = producer->Join(std::move(control), deadline);
  if (status.code() == StatusCode::kUnavailable) {
    status = producer->Reconnect(deadline);
  }
  if (status.code() == StatusCode::kDeadlineExceeded) {
    return DeadlineExceededError("no rank has attached to job '{}' within {} s",
                                 producer->job_, options.timeout_s);
  }
  if (!status.ok()) return status;
  return producer;
}

Producer::~Producer() = default;

Status Producer::Check() const {
  if (ForkGeneration() != fork_generation_) {
    return FailedPreconditionError(
        "this producer belongs to the parent process: create one after fork");
  }
  return over_;
}

// ---- a connection

Status Producer::Join(Fd control, const Deadline& deadline) {
  nlohmann::json request = request_;
  std::vector<int> fds;
  if (memory_) {
    request["back"] = true;
    fds.push_back(memory_fd_.get());
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      Message answer, Request(control.get(), std::move(request), fds, deadline,
                              [this](const nlohmann::json&) {
                                return !cancelled_ || !cancelled_();
                              }));
  PENSTOCK_RETURN_IF_ERROR(ReadAnswer(std::move(answer)));
  control_ = std::move(control);
  sent_ = 0;
  return OkStatus();
}

Status Producer::ReadAnswer(Message answer) {
  const nlohmann::json& json = answer.json;
  uint64_t end = 0;
  uint64_t freed = 0;
  try {
    if (json.value("finished", false)) {
      // Only the finish request can be unanswered.
      unanswered_.clear();
      return OkStatus();
    }
    const auto rows = json.at("ring_rows").get<uint64_t>();
    end = json.at("end").get<uint64_t>();
    freed = json.at("freed").get<uint64_t>();
    if (!memory_) {
      dataset_ = json.at("dataset").get<std::string>();
      request_["dataset"] = dataset_;
      next_row_ = json.at("next").get<uint64_t>();
      PENSTOCK_ASSIGN_OR_RETURN(layout_, PlanProducerMemory(features_, rows));
      if (answer.fds.size() != 1) {
        return InternalError("the broker's answer has {} descriptors, wanted 1",
                             answer.fds.size());
      }
      PENSTOCK_ASSIGN_OR_RETURN(
          memory_, Mapping::Map(answer.fds[0].get(), layout_.bytes, true));
      memory_fd_ = std::move(answer.fds[0]);
      guard_.emplace(memory_->data(), memory_->bytes());
    }
  } catch (const nlohmann::json::exception&) {
    return InternalError("the broker's answer does not follow the protocol");
  }
  if (end > end_ || freed < freed_) {
    return DataLossError(
        "job '{}': the restarted broker has rows up to {} of this producer, "
        "freed up to {}, but the producer has put up to {}, freed up to {}: "
        "the journal is damaged; begin ranks and producers at a state",
        job_, end, freed, end_, freed_);
  }
  freed_ = freed;
  // Drop the puts it has recorded.
  while (!unanswered_.empty() && unanswered_.front().contains("place") &&
         unanswered_.front()["place"].get<uint64_t>() < end) {
    unanswered_.pop_front();
  }
  uint64_t next = end_;
  bool at_start = false;  // the put wrapped to ring row 0, skipping the rest
  if (!unanswered_.empty() && unanswered_.front().contains("place")) {
    next = unanswered_.front()["place"].get<uint64_t>();
    at_start =
        next > end && next - end < layout_.rows && next % layout_.rows == 0;
  }
  // Otherwise it had answered puts that it has not recorded.
  const bool follows = next == end || at_start;
  if (!follows) {
    return DataLossError(
        "job '{}': the restarted broker has rows up to {} of this producer, "
        "but had confirmed rows up to {}: the journal is damaged; begin ranks "
        "and producers at a state",
        job_, end, next);
  }
  return OkStatus();
}

Status Producer::Reconnect(const Deadline& deadline) {
  control_.Reset();
  if (!lost_) lost_ = Clock::now();
  const Clock::duration limit = DurationOf(reconnect_s_);
  const auto gone = [&](const std::string& last) {
    over_ = BrokerGoneError(Format("a producer of job '{}' was at work", job_),
                            *lost_, reconnect_s_, last);
    return over_;
  };
  if (reconnect_s_ <= 0) return gone("");
  std::chrono::milliseconds delay{0};
  for (;;) {
    const Clock::time_point give_up = *lost_ + limit;
    const Deadline until = deadline ? std::min(*deadline, give_up) : give_up;
    auto control = ConnectControl(socket_, until);
    Status status = control.status();
    if (control.ok()) {
      // It is back; the job may still wait for ranks.
      status = Join(*std::move(control), deadline);
      if (status.code() == StatusCode::kUnavailable) lost_ = Clock::now();
    }
    if (status.ok()) {
      lost_.reset();
      return status;
    }
    if (status.code() == StatusCode::kCancelled) return status;
    if (!MayComeBack(status.code())) {
      over_ = status;
      return status;
    }
    const auto now = Clock::now();
    const bool no_socket = status.code() == StatusCode::kNotFound &&
                           now - *lost_ > kNoSocketTimeout;
    if (no_socket || now >= *lost_ + limit) return gone(status.message());
    if (deadline && now >= *deadline) {
      return DeadlineExceededError(
          "the broker of job '{}' is gone and did not come back within {} s: "
          "{}",
          job_, timeout_s_, status.message());
    }
    delay = NextRetryDelay(delay);
    for (auto left = delay; left.count() > 0; left -= std::min(left, kPause)) {
      if (cancelled_ && cancelled_()) return CancelledError("cancelled");
      poll(nullptr, 0, static_cast<int>(std::min(left, kPause).count()));
    }
  }
}

Status Producer::Listen(const Deadline& deadline) {
  for (;;) {
    if (!control_) PENSTOCK_RETURN_IF_ERROR(Reconnect(deadline));
    auto message = ReceiveMessage(control_.get());
    if (message.status().code() == StatusCode::kUnavailable) {
      control_.Reset();
      continue;
    }
    if (!message.ok()) {
      over_ = message.status();
      return over_;
    }
    if (!*message) return OkStatus();
    const nlohmann::json& json = (*message)->json;
    const std::string event = json.value("event", "");
    if (event == "freed") {
      freed_ = json.value("place", freed_);
      Heard(json.value("end", uint64_t{0}));
    } else if (event == "over") {
      over_ = StatusOf(json);
      return over_;
    } else if (event.empty()) {
      if (!json.value("ok", false)) {
        over_ = StatusOf(json);
        return over_;
      }
      if (json.contains("end")) {
        Heard(json.value("end", uint64_t{0}));
      } else {  // the answer to finish
        unanswered_.clear();
        sent_ = 0;
      }
    }
  }
}

void Producer::Heard(uint64_t end) {
  while (sent_ > 0 && unanswered_.front().contains("place") &&
         unanswered_.front()["place"].get<uint64_t>() < end) {
    unanswered_.pop_front();
    --sent_;
  }
}

Status Producer::Exchange(const Deadline& deadline) {
  PENSTOCK_RETURN_IF_ERROR(Listen(deadline));
  while (sent_ < unanswered_.size()) {
    const Status status = SendMessage(control_.get(), unanswered_[sent_]);
    if (status.ok()) {
      ++sent_;
      continue;
    }
    if (status.code() == StatusCode::kResourceExhausted) {
      // The socket is full.
      PENSTOCK_RETURN_IF_ERROR(Wait(POLLIN | POLLOUT, deadline));
    } else if (status.code() != StatusCode::kUnavailable) {
      return status;
    }
    // The reason of a close may be unread.
    PENSTOCK_RETURN_IF_ERROR(Listen(deadline));
  }
  return OkStatus();
}

Status Producer::Wait(short events, const Deadline& deadline) {
  pollfd entry{control_.get(), events, 0};
  const int ready = poll(
      &entry, 1, static_cast<int>(std::chrono::milliseconds(kPause).count()));
  if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
  if (ready > 0) return OkStatus();
  if (cancelled_ && cancelled_()) return CancelledError("cancelled");
  if (deadline && Clock::now() >= *deadline) {
    return DeadlineExceededError(
        "no room for more rows of job '{}' within {} s: its ranks take no "
        "batches, or the broker hangs (`penstock status` says why)",
        job_, timeout_s_);
  }
  return OkStatus();
}

// ---- rows

Status Producer::Reserve(uint64_t rows) {
  PENSTOCK_RETURN_IF_ERROR(Check());
  if (rows == 0 || rows > put_rows_) {
    return InvalidArgumentError(
        "{} rows in one put: wanted 1 to {}, the size that the producer was "
        "opened with",
        rows, put_rows_);
  }
  const Deadline deadline = DeadlineOf(timeout_s_);
  reserved_ = 0;
  const uint64_t ring_position = RingPositionOfPut(end_, rows, layout_.rows);
  PENSTOCK_RETURN_IF_ERROR(Exchange(deadline));
  while (ring_position + rows - freed_ > layout_.rows) {
    PENSTOCK_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    PENSTOCK_RETURN_IF_ERROR(Exchange(deadline));
  }
  ring_position_ = ring_position;
  reserved_ = rows;
  return OkStatus();
}

std::byte* Producer::data(size_t feature) const {
  if (reserved_ == 0 || feature >= layout_.offsets.size()) return nullptr;
  return memory_->data() +
         layout_.Place(ring_position_ % layout_.rows, feature);
}

Status Producer::CheckBools(uint64_t rows) const {
  for (size_t i = 0; i < features_.size(); ++i) {
    if (features_[i].dtype != DType::kBool) continue;
    const uint64_t row_bytes = features_[i].RowBytes();
    const std::span<const std::byte> bytes(data(i), rows * row_bytes);
    const std::optional<size_t> wrong = FirstNotBool(bytes);
    if (!wrong) continue;
    return InvalidArgumentError(
        "feature '{}': byte {} of row {} of this put is {}; a bool is 0 or 1",
        features_[i].name, *wrong % row_bytes, *wrong / row_bytes,
        std::to_integer<int>(bytes[*wrong]));
  }
  return OkStatus();
}

Status Producer::Put(uint64_t rows) {
  PENSTOCK_RETURN_IF_ERROR(Check());
  if (rows == 0 || rows > reserved_) {
    return InvalidArgumentError("a put of {} rows: {} are reserved", rows,
                                reserved_);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckBools(rows));
  const Deadline deadline = DeadlineOf(timeout_s_);
  PENSTOCK_RETURN_IF_ERROR(Exchange(deadline));
  while (unanswered_.size() >= kUnansweredMax) {
    PENSTOCK_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    PENSTOCK_RETURN_IF_ERROR(Exchange(deadline));
  }
  unanswered_.push_back({{"penstock", kProtocolVersion},
                         {"op", "put"},
                         {"place", ring_position_},
                         {"rows", rows}});
  if (unanswered_.size() % kPutsPerAnswer != 0) {
    unanswered_.back()["quiet"] = true;
  }
  end_ = ring_position_ + rows;
  reserved_ = 0;
  // The rows now count as put, so no error may be returned: a failed send is
  // repeated by the next call, to a restarted broker if need be.
  if (SendMessage(control_.get(), unanswered_.back()).ok()) ++sent_;
  return OkStatus();
}

Status Producer::EndWith(nlohmann::json request) {
  PENSTOCK_RETURN_IF_ERROR(Check());
  reserved_ = 0;
  request["penstock"] = kProtocolVersion;
  if (unanswered_.empty() || unanswered_.back().contains("place")) {
    unanswered_.push_back(std::move(request));
  } else if (unanswered_.back() != request) {
    // An earlier call timed out.
    return FailedPreconditionError("the producer has finished or failed");
  }
  const Deadline deadline = DeadlineOf(timeout_s_);
  PENSTOCK_RETURN_IF_ERROR(Exchange(deadline));
  while (!unanswered_.empty()) {
    PENSTOCK_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    PENSTOCK_RETURN_IF_ERROR(Exchange(deadline));
  }
  over_ = FailedPreconditionError("the producer has finished");
  return OkStatus();
}

Status Producer::Finish() { return EndWith({{"op", "finish"}}); }

Status Producer::Fail(const std::string& why) {
  constexpr size_t kCharsMax = 500;  // the broker takes no more
  return EndWith({{"op", "finish"}, {"error", why.substr(0, kCharsMax)}});
}

}  // namespace penstock
