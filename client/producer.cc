#include "client/producer.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "client/attach_request.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Puts that the broker has not answered. It drops who does not read its
// answers, and a socket holds some 270 of them.
constexpr uint64_t kUnansweredMax = 32;

Status StatusOf(const nlohmann::json& answer) {
  return Status(static_cast<StatusCode>(answer.value("code", 13)),
                answer.value("error", "the broker gave no reason"));
}

}  // namespace

StatusOr<std::unique_ptr<Producer>> Producer::Open(
    const ProduceOptions& options) {
  if (options.rows == 0) {
    return InvalidArgumentError("a producer of puts of 0 rows: at least 1");
  }
  if (options.features.empty()) {
    return InvalidArgumentError("a producer of rows without features");
  }
  std::unique_ptr<Producer> producer(new Producer());
  producer->fork_generation_ = ForkGeneration();
  producer->timeout_s_ = options.timeout_s;
  producer->cancelled_ = options.cancelled;
  producer->put_rows_ = options.rows;
  producer->job_ = JobName(options.job, ProcessEnvironment());
  const Deadline deadline = DeadlineOf(options.timeout_s);
  PENSTOCK_ASSIGN_OR_RETURN(
      producer->control_, ConnectControl(SocketPath(options.socket), deadline));
  nlohmann::json request = {{"op", "produce"},
                            {"job", producer->job_},
                            {"features", ElementSpecToJson(options.features)},
                            {"rows", options.rows}};
  if (!options.dataset.empty()) request["dataset"] = options.dataset;
  auto answer = Request(producer->control_.get(), std::move(request), {},
                        deadline, [&options](const nlohmann::json&) {
                          return !options.cancelled || !options.cancelled();
                        });
  if (answer.status().code() == StatusCode::kDeadlineExceeded) {
    return DeadlineExceededError("no rank has attached to job '{}' within {} s",
                                 producer->job_, options.timeout_s);
  }
  if (!answer.ok()) return answer.status();
  try {
    producer->dataset_ = answer->json.at("dataset").get<std::string>();
    producer->next_row_ = answer->json.at("next").get<uint64_t>();
    PENSTOCK_ASSIGN_OR_RETURN(
        producer->layout_,
        PlanProducerMemory(options.features,
                           answer->json.at("ring_rows").get<uint64_t>()));
  } catch (const nlohmann::json::exception& error) {
    return InternalError("the broker's answer is not of this protocol: {}",
                         error.what());
  }
  if (answer->fds.size() != 1) {
    return InternalError("the broker's answer has {} descriptors, wanted 1",
                         answer->fds.size());
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      producer->memory_,
      Mapping::Map(answer->fds[0].get(), producer->layout_.bytes, true));
  producer->guard_.emplace(producer->memory_->data(),
                           producer->memory_->bytes());
  return producer;
}

Producer::~Producer() = default;

Status Producer::Check() const {
  if (ForkGeneration() != fork_generation_) {
    return FailedPreconditionError(
        "this producer belongs to the parent process: make one after fork");
  }
  return over_;
}

Status Producer::Listen() {
  for (;;) {
    auto message = ReceiveMessage(control_.get());
    if (!message.ok()) {
      over_ = UnavailableError(
          "the broker is gone while a producer of job '{}' was at work: {}",
          job_, message.status().message());
      return over_;
    }
    if (!*message) return OkStatus();
    const nlohmann::json& json = (*message)->json;
    const std::string event = json.value("event", "");
    if (event == "freed") {
      freed_ = json.value("place", freed_);
    } else if (event == "over") {
      over_ = StatusOf(json);
      return over_;
    } else if (event.empty()) {
      if (unanswered_ > 0) --unanswered_;
      if (!json.value("ok", false)) {
        over_ = StatusOf(json);
        return over_;
      }
    }
  }
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

Status Producer::Reserve(uint64_t rows) {
  PENSTOCK_RETURN_IF_ERROR(Check());
  if (rows == 0 || rows > put_rows_) {
    return InvalidArgumentError(
        "{} rows in one put: wanted 1 to {}, as the producer was opened for",
        rows, put_rows_);
  }
  const Deadline deadline = DeadlineOf(timeout_s_);
  reserved_ = 0;
  const uint64_t place = PlaceOfPut(end_, rows, layout_.rows);
  PENSTOCK_RETURN_IF_ERROR(Listen());
  while (place + rows - freed_ > layout_.rows) {
    PENSTOCK_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    PENSTOCK_RETURN_IF_ERROR(Listen());
  }
  place_ = place;
  reserved_ = rows;
  return OkStatus();
}

std::byte* Producer::data(size_t feature) const {
  if (reserved_ == 0 || feature >= layout_.offsets.size()) return nullptr;
  return memory_->data() + layout_.offsets[feature] +
         place_ % layout_.rows * layout_.row_bytes[feature];
}

Status Producer::Send(const nlohmann::json& request) {
  const Deadline deadline = DeadlineOf(timeout_s_);
  nlohmann::json message = request;
  message["penstock"] = kProtocolVersion;
  for (;;) {
    const Status status = SendMessage(control_.get(), message);
    if (status.code() == StatusCode::kUnavailable) {
      // Why it closed may stand there.
      PENSTOCK_RETURN_IF_ERROR(Listen());
      over_ = status;
    }
    if (status.code() != StatusCode::kResourceExhausted) return status;
    // It has not read those before.
    PENSTOCK_RETURN_IF_ERROR(Wait(POLLIN | POLLOUT, deadline));
    PENSTOCK_RETURN_IF_ERROR(Listen());
  }
}

Status Producer::Put(uint64_t rows) {
  PENSTOCK_RETURN_IF_ERROR(Check());
  if (rows == 0 || rows > reserved_) {
    return InvalidArgumentError("a put of {} rows: {} are reserved", rows,
                                reserved_);
  }
  const Deadline deadline = DeadlineOf(timeout_s_);
  PENSTOCK_RETURN_IF_ERROR(Listen());
  while (unanswered_ >= kUnansweredMax) {
    PENSTOCK_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    PENSTOCK_RETURN_IF_ERROR(Listen());
  }
  PENSTOCK_RETURN_IF_ERROR(
      Send({{"op", "put"}, {"place", place_}, {"rows", rows}}));
  ++unanswered_;
  end_ = place_ + rows;
  reserved_ = 0;
  return OkStatus();
}

Status Producer::EndWith(nlohmann::json request) {
  PENSTOCK_RETURN_IF_ERROR(Check());
  reserved_ = 0;
  PENSTOCK_RETURN_IF_ERROR(Send(request));
  ++unanswered_;
  const Deadline deadline = DeadlineOf(timeout_s_);
  PENSTOCK_RETURN_IF_ERROR(Listen());
  while (unanswered_ > 0) {
    PENSTOCK_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    PENSTOCK_RETURN_IF_ERROR(Listen());
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
