// Requests of producers, which feed a job whose source is a stream.
#include <poll.h>

#include <algorithm>

#include "broker/base/log.h"
#include "broker/control/control_server.h"
#include "broker/control/request_fields.h"
#include "common/message.h"

namespace penstock {
namespace {

constexpr size_t kNameCharsMax = 256;
constexpr size_t kMessageCharsMax = 512;
// More than a socket holds: a peer that goes on sending is not dead.
constexpr int kHeardOutMax = 1024;

const StreamSource* StreamOf(const Job& job) {
  return std::get_if<StreamSource>(&job.options().spec.source);
}

// The job is over; nobody takes rows any more.
Status OverError(const Job& job) {
  const Status failure = job.failure();
  return Status(failure.ok() ? StatusCode::kAborted : failure.code(),
                Format("job '{}' is over: {}", job.key().name,
                       failure.ok() ? "its ranks left" : failure.message()));
}

}  // namespace

Status ControlServer::StartProduce(Connection* connection,
                                   const nlohmann::json& request,
                                   std::vector<Fd>& fds) {
  if (connection->job != nullptr || connection->producer) {
    return FailedPreconditionError(
        "this connection already belongs to a rank or a producer");
  }
  Connection::Producer producer;
  PENSTOCK_ASSIGN_OR_RETURN(producer.job_name,
                            TextField(request, "job", kNameCharsMax));
  if (request.contains("dataset")) {
    PENSTOCK_ASSIGN_OR_RETURN(producer.dataset,
                              TextField(request, "dataset", kNameCharsMax));
  }
  Stream::Joining& joining = producer.joining;
  PENSTOCK_ASSIGN_OR_RETURN(joining.put_rows,
                            NumberField(request, "rows", 1, UINT32_MAX));
  if (request.contains("token")) {
    PENSTOCK_ASSIGN_OR_RETURN(joining.token,
                              NumberField(request, "token", 1, UINT64_MAX));
  }
  // A former broker instance answered it before.
  const auto back = request.find("back");
  joining.back = back != request.end() && *back == true;
  // Only a memory file is kept: closing anything else may take long.
  if (joining.back && !fds.empty() && Stream::MayBeMemory(fds[0].get())) {
    producer.memory = std::move(fds[0]);
    joining.memory = producer.memory.get();
  }
  joining.pidfd = connection->pidfd.get();
  producer.features = request.value("features", nlohmann::json());
  connection->producer = std::move(producer);
  if (!LetInProducer(connection)) connection->waiting = true;
  return OkStatus();
}

bool ControlServer::LetInProducer(Connection* connection) {
  Connection::Producer& producer = *connection->producer;
  std::vector<std::shared_ptr<Job>> jobs =
      jobs_->Find(connection->uid, producer.job_name, producer.dataset);
  std::erase_if(jobs, [&](const std::shared_ptr<Job>& job) {
    return job->key().uid != connection->uid;
  });
  const auto refuse = [&](const Status& status) {
    connection->waiting = false;
    Reply(connection, ErrorReply(status));
    LeaveStream(connection, false);
    return true;
  };
  if (jobs.empty()) {
    // A returning producer waits only for its own job, which may wait for
    // ranks.
    if (!producer.joining.back ||
        jobs_->MayOpen(connection->uid, producer.job_name, producer.dataset)) {
      return false;
    }
    return refuse(
        recovery_journal_->KnowsAllJobs()
            ? AbortedError("job '{}' is over: it ended while this producer was "
                           "away",
                           producer.job_name)
            : DataLossError(
                  "the broker was restarted and has no record of job '{}', nor "
                  "of its rows that no rank had taken: it has no state "
                  "directory (--state-dir), or its journal there is damaged; "
                  "begin ranks and producers at a state",
                  producer.job_name));
  }
  const bool any = std::erase_if(jobs, [](const std::shared_ptr<Job>& job) {
                     return job->stream() == nullptr;
                   }) > 0;
  connection->waiting = false;
  if (jobs.empty() && any) {
    return refuse(
        FailedPreconditionError("job '{}' takes no rows from producers: the "
                                "source of its dataset is not a `stream`",
                                producer.job_name));
  }
  if (jobs.size() > 1) {
    return refuse(InvalidArgumentError(
        "{} jobs named '{}' take rows from producers: name the dataset too",
        jobs.size(), producer.job_name));
  }
  const std::shared_ptr<Job>& job = jobs[0];
  if (job->failed()) return refuse(OverError(*job));
  const ElementSpec& wanted = StreamOf(*job)->features;
  if (producer.features != ElementSpecToJson(wanted)) {
    std::string text;
    for (const Feature& feature : wanted) {
      text += (text.empty() ? "" : ", ") + feature.ToString();
    }
    return refuse(InvalidArgumentError(
        "job '{}' wants rows of {}, in this order; the producer has {:.200}",
        producer.job_name, text, producer.features.dump()));
  }
  DropDeadProducers(job);
  const bool back = producer.joining.back;
  const auto joined = job->stream()->Join(producer.joining);
  if (!joined.ok()) {
    return refuse(joined.status().Prepend("job '" + producer.job_name + "'"));
  }
  nlohmann::json answer = OkReply();
  if (joined->finished) {
    answer["finished"] = true;
    Reply(connection, answer);
    LeaveStream(connection, false);
    return true;
  }
  producer.job = job;
  producer.number = joined->producer;
  LogInfo("job '{}': producer {} is {}", producer.job_name, producer.number,
          back ? "back" : "at work");
  answer["dataset"] = job->key().dataset;
  answer["ring_rows"] = joined->rows;
  answer["next"] = joined->next;
  answer["end"] = joined->end;
  answer["freed"] = joined->freed;
  Reply(connection, answer, {joined->fd});
  // Its memory may have been all that was missing.
  if (back) job->StreamChanged();
  return true;
}

void ControlServer::LetInProducers() {
  for (auto& [id, connection] : connections_) {
    if (connection.producer && connection.producer->job == nullptr) {
      LetInProducer(&connection);
    }
  }
}

StatusOr<nlohmann::json> ControlServer::Put(Connection* connection,
                                            const nlohmann::json& request) {
  if (!connection->producer) {
    return FailedPreconditionError("this connection is not a producer's");
  }
  const Connection::Producer& producer = *connection->producer;
  if (producer.job->failed()) return OverError(*producer.job);
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t ring_position,
                            NumberField(request, "place", 0, UINT64_MAX / 2));
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t rows,
                            NumberField(request, "rows", 1, UINT32_MAX));
  const auto first =
      producer.job->stream()->Put(producer.number, ring_position, rows);
  if (!first.ok()) {
    // Nothing it sent after that may count, least of all a finish.
    LeaveStream(connection, false);
    return first.status();
  }
  nlohmann::json answer = OkReply();
  answer["first"] = *first;
  answer["end"] = ring_position + rows;
  return answer;
}

StatusOr<nlohmann::json> ControlServer::FinishProducer(
    Connection* connection, const nlohmann::json& request) {
  if (!connection->producer) {
    return FailedPreconditionError("this connection is not a producer's");
  }
  const std::shared_ptr<Job> job = connection->producer->job;
  if (request.contains("error")) {
    PENSTOCK_ASSIGN_OR_RETURN(std::string text,
                              TextField(request, "error", kMessageCharsMax));
    job->Fail(AbortedError("job '{}': producer {} failed: {}", job->key().name,
                           connection->producer->number, text));
    LeaveStream(connection, false);
  } else {
    LeaveStream(connection, true);
  }
  return OkReply();
}

void ControlServer::DropDeadProducers(const std::shared_ptr<Job>& job) {
  std::vector<uint64_t> dead;
  for (const auto& [id, connection] : connections_) {
    if (!connection.producer || connection.producer->job != job) continue;
    pollfd entry{connection.pidfd.get(), POLLIN, 0};
    if (poll(&entry, 1, 0) == 1) dead.push_back(id);
  }
  for (const uint64_t id : dead) Drop(id);
}

void ControlServer::HearOut(Connection* connection) {
  if (!connection->socket) return;
  for (int i = 0; i < kHeardOutMax; ++i) {
    if (!connection->producer || connection->producer->job == nullptr) return;
    auto message = ReceiveMessage(connection->socket.get());
    if (!message.ok() || !*message) return;
    deferred_->Close(std::move((*message)->fds));
    const nlohmann::json& json = (*message)->json;
    const auto op = json.find("op");
    if (op != json.end() && *op == "put") {
      (void)Put(connection, json);
    } else if (op != json.end() && *op == "finish") {
      (void)FinishProducer(connection, json);
    }
  }
}

void ControlServer::LeaveStream(Connection* connection, bool finished) {
  Connection::Producer producer =
      *std::exchange(connection->producer, std::nullopt);
  if (producer.memory) {
    std::vector<Fd> fds;
    fds.push_back(std::move(producer.memory));
    deferred_->Close(std::move(fds));
  }
  if (producer.job == nullptr) return;
  LogInfo("job '{}': producer {} {}", producer.job_name, producer.number,
          finished ? "has finished" : "is gone");
  producer.job->stream()->Leave(producer.number, finished);
  producer.job->StreamChanged();
}

void ControlServer::NotifyProducers(const std::shared_ptr<Job>& job) {
  const bool over = job->failed();
  const std::vector<Stream::Freed> all = job->stream()->TakeFreed();
  for (auto& [id, connection] : connections_) {
    if (!connection.producer || connection.producer->job != job) continue;
    if (over) {
      nlohmann::json event = ErrorReply(OverError(*job));
      event.erase("ok");
      event["event"] = "over";
      Reply(&connection, event);
      LeaveStream(&connection, false);
      continue;
    }
    const auto freed = std::find_if(
        all.begin(), all.end(),
        [number = connection.producer->number](const Stream::Freed& each) {
          return each.producer == number;
        });
    if (freed == all.end()) continue;
    Reply(&connection, {{"event", "freed"},
                        {"place", freed->ring_position},
                        {"end", freed->end}});
  }
}

}  // namespace penstock
