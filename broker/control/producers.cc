// Requests of producers, which feed a job whose source is a stream.
#include <poll.h>

#include <algorithm>

#include "broker/base/log.h"
#include "broker/control/control_server.h"
#include "broker/request/requests.h"
#include "common/message.h"

namespace penstock {
namespace {

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

ControlServer::Answer ControlServer::Produce(const Call& call) {
  const auto& [connection, request, fds] = call;
  if (connection->job != nullptr || connection->producer) {
    return FailedPreconditionError(
        "this connection already belongs to a rank or a producer");
  }
  PENSTOCK_RETURN_IF_ERROR(CheckWatched(*connection));
  connection->producer = Connection::Producer{};
  Connection::Producer& producer = *connection->producer;
  producer.job_name = request.at("job");
  producer.dataset = request.value("dataset", "");
  producer.features = request.at("features");
  Stream::Joining& joining = producer.joining;
  joining.put_rows = request.at("rows");
  joining.token = request.value("token", joining.token);
  joining.back = request.value("back", false);
  // Only a memory file is kept: closing anything else may take long.
  if (joining.back && !fds.empty() && Stream::MayBeMemory(fds[0].get())) {
    producer.memory = std::move(fds[0]);
    joining.memory = producer.memory.get();
  }
  joining.pidfd = connection->pidfd.get();
  connection->waiting = true;
  LetInProducer(connection);
  return nlohmann::json();
}

StatusOr<std::shared_ptr<Job>> ControlServer::JobToFeed(
    const Connection& connection) const {
  const Connection::Producer& producer = *connection.producer;
  const std::string& name = producer.job_name;
  const JobQuery query = {connection.uid, name, producer.dataset};
  std::vector<std::shared_ptr<Job>> jobs = jobs_->Find(query);
  if (jobs.empty()) {
    // A returning producer waits only for its own job, which may wait for
    // ranks.
    if (!producer.joining.back || jobs_->MayOpen(query)) {
      return std::shared_ptr<Job>();
    }
    if (recovery_journal_->KnowsAllJobs()) {
      return AbortedError(
          "job '{}' is over: it ended while this producer was away", name);
    }
    return DataLossError(
        "the broker was restarted and has no record of job '{}', nor of its "
        "rows that no rank had taken: it has no state directory (--state-dir), "
        "or its journal there is damaged; begin ranks and producers at a state",
        name);
  }
  std::erase_if(jobs, [](const std::shared_ptr<Job>& job) {
    return job->stream() == nullptr;
  });
  if (jobs.empty()) {
    return FailedPreconditionError(
        "job '{}' takes no rows from producers: the source of its dataset is "
        "not a `stream`",
        name);
  }
  if (jobs.size() > 1) {
    return InvalidArgumentError(
        "{} jobs named '{}' take rows from producers: name the dataset too",
        jobs.size(), name);
  }
  if (jobs[0]->failed()) return OverError(*jobs[0]);
  const ElementSpec& wanted = StreamOf(*jobs[0])->features;
  if (producer.features == ElementSpecToJson(wanted)) return jobs[0];
  std::string text;
  for (const Feature& feature : wanted) {
    text += (text.empty() ? "" : ", ") + feature.ToString();
  }
  return InvalidArgumentError(
      "job '{}' wants rows of {}, in this order; the producer has {:.200}",
      name, text, producer.features.dump());
}

Status ControlServer::JoinStream(Connection* connection,
                                 const std::shared_ptr<Job>& job) {
  DropDeadProducers(job);
  Connection::Producer& producer = *connection->producer;
  const auto joined = job->stream()->Join(producer.joining);
  if (!joined.ok()) {
    return joined.status().Prepend("job '" + producer.job_name + "'");
  }
  nlohmann::json answer = OkReply();
  if (joined->finished) {
    answer["finished"] = true;
    Reply(connection, answer);
    LeaveStream(connection, false);
    return OkStatus();
  }
  producer.job = job;
  producer.number = joined->producer;
  Log<"producer-joined">(job->key(), producer.number,
                         producer.joining.back ? "back" : "at work");
  answer["dataset"] = job->key().dataset;
  answer["ring_rows"] = joined->rows;
  answer["next"] = joined->next;
  answer["end"] = joined->end;
  answer["freed"] = joined->freed;
  Reply(connection, answer, {joined->fd});
  // Its memory may have been all that was missing.
  if (producer.joining.back) job->StreamChanged();
  return OkStatus();
}

void ControlServer::LetInProducer(Connection* connection) {
  const StatusOr<std::shared_ptr<Job>> job = JobToFeed(*connection);
  if (job.ok() && *job == nullptr) return;
  connection->waiting = false;
  const Status status = job.ok() ? JoinStream(connection, *job) : job.status();
  if (status.ok()) return;
  Refuse(connection, "produce", status);
  LeaveStream(connection, false);
}

void ControlServer::LetInProducers() {
  for (auto& [id, connection] : connections_) {
    if (connection.producer && connection.producer->job == nullptr) {
      LetInProducer(&connection);
    }
  }
}

ControlServer::Answer ControlServer::Put(const Call& call) {
  const auto& [connection, request, fds] = call;
  if (!connection->producer) {
    return FailedPreconditionError("this connection is not a producer's");
  }
  const Connection::Producer& producer = *connection->producer;
  const std::shared_ptr<Job> job = producer.job;
  if (job->failed()) return OverError(*job);
  const auto ring_position = request.at("place").get<uint64_t>();
  const auto rows = request.at("rows").get<uint64_t>();
  const auto first = job->stream()->Put(producer.number, ring_position, rows);
  if (!first.ok()) {
    // Nothing it sent after that may count, least of all a finish.
    LeaveStream(connection, false);
    return first.status();
  }
  job->StreamChanged();
  // An answer would wake the producer, which does not wait for it.
  if (request.value("quiet", false)) return nlohmann::json();
  nlohmann::json answer = OkReply();
  answer["first"] = *first;
  answer["end"] = ring_position + rows;
  return answer;
}

ControlServer::Answer ControlServer::FinishProducer(const Call& call) {
  const auto& [connection, request, fds] = call;
  if (!connection->producer) {
    return FailedPreconditionError("this connection is not a producer's");
  }
  const bool failed = request.contains("error");
  if (failed) {
    const std::shared_ptr<Job> job = connection->producer->job;
    job->Fail(AbortedError("job '{}': producer {} failed: {}", job->key().name,
                           connection->producer->number,
                           request.at("error").get<std::string>()));
  }
  LeaveStream(connection, !failed);
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

void ControlServer::LeaveStream(Connection* connection, bool finished) {
  Connection::Producer producer =
      *std::exchange(connection->producer, std::nullopt);
  if (producer.memory) {
    std::vector<Fd> fds;
    fds.push_back(std::move(producer.memory));
    deferred_->Close(std::move(fds));
  }
  if (producer.job == nullptr) return;
  Log<"producer-left">(producer.job->key(), producer.number,
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
