#include "broker/control/producers.h"

#include <algorithm>
#include <utility>

#include "broker/base/log.h"
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

void Producers::Produce(uint64_t id, uid_t uid, int pidfd,
                        const nlohmann::json& request, std::vector<Fd>& fds) {
  Producer& producer = producers_[id];
  producer.uid = uid;
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
  joining.pidfd = pidfd;
  LetIn(id);
}

Producers::Producer* Producers::Find(uint64_t id) {
  const auto found = producers_.find(id);
  return found == producers_.end() ? nullptr : &found->second;
}

bool Producers::Feeds(uint64_t id) const {
  const auto found = producers_.find(id);
  return found != producers_.end() && found->second.job != nullptr;
}

std::vector<uint64_t> Producers::Ids() const {
  std::vector<uint64_t> ids;
  for (const auto& [id, producer] : producers_) ids.push_back(id);
  return ids;
}

std::map<uint64_t, std::pair<const Job*, uint32_t>> Producers::Numbers() const {
  std::map<uint64_t, std::pair<const Job*, uint32_t>> numbers;
  for (const auto& [id, producer] : producers_) {
    if (producer.job == nullptr) continue;
    numbers[id] = {producer.job.get(), producer.number};
  }
  return numbers;
}

StatusOr<std::shared_ptr<Job>> Producers::JobToFeed(
    const Producer& producer) const {
  const std::string& name = producer.job_name;
  const JobQuery query = {producer.uid, name, producer.dataset};
  std::vector<std::shared_ptr<Job>> jobs = jobs_->Find(query);
  if (jobs.empty()) {
    // A returning producer waits only for its own job, which may wait for
    // ranks.
    if (!producer.joining.back || jobs_->MayOpen(query)) {
      return std::shared_ptr<Job>();
    }
    if (journal_->KnowsAllJobs()) {
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
  return InvalidArgumentError(
      "job '{}' wants rows of {}, in this order; the producer has {:.200}",
      name, JoinText(wanted, ", ", &Feature::ToString),
      producer.features.dump());
}

Status Producers::Join(uint64_t id, const std::shared_ptr<Job>& job) {
  DropDead(job);
  Producer& producer = *Find(id);
  const auto joined = job->stream()->Join(producer.joining);
  if (!joined.ok()) {
    return joined.status().Prepend("job '" + producer.job_name + "'");
  }
  nlohmann::json answer = OkReply();
  if (joined->finished) {
    answer["finished"] = true;
    connections_->Tell(id, answer);
    Leave(id);
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
  connections_->Tell(id, answer, joined->fd);
  // Its memory may have been all that was missing.
  if (producer.joining.back) job->StreamChanged();
  return OkStatus();
}

void Producers::LetIn(uint64_t id) {
  const StatusOr<std::shared_ptr<Job>> job = JobToFeed(*Find(id));
  if (job.ok() && *job == nullptr) return;
  const Status status = job.ok() ? Join(id, *job) : job.status();
  if (status.ok()) return;
  connections_->RefuseProducer(id, status);
  Leave(id);
}

void Producers::LetIn() {
  for (const uint64_t id : Ids()) {
    if (Has(id) && !Feeds(id)) LetIn(id);
  }
}

Producers::Answer Producers::Put(uint64_t id, const nlohmann::json& request) {
  if (!Has(id)) {
    return FailedPreconditionError("this connection is not a producer's");
  }
  const Producer& producer = *Find(id);
  const std::shared_ptr<Job> job = producer.job;
  if (job->failed()) return OverError(*job);
  const auto ring_position = request.at("place").get<uint64_t>();
  const auto rows = request.at("rows").get<uint64_t>();
  const auto first = job->stream()->Put(producer.number, ring_position, rows);
  if (!first.ok()) {
    // Nothing it sent after that may count, least of all a finish.
    Leave(id);
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

Producers::Answer Producers::Finish(uint64_t id,
                                    const nlohmann::json& request) {
  if (!Has(id)) {
    return FailedPreconditionError("this connection is not a producer's");
  }
  const bool failed = request.contains("error");
  if (failed) {
    const Producer& producer = *Find(id);
    producer.job->Fail(AbortedError("job '{}': producer {} failed: {}",
                                    producer.job->key().name, producer.number,
                                    request.at("error").get<std::string>()));
  }
  Leave(id, !failed);
  return OkReply();
}

void Producers::DropDead(const std::shared_ptr<Job>& job) {
  for (const uint64_t id : Ids()) {
    const Producer* const producer = Find(id);
    if (producer == nullptr || producer->job != job) continue;
    if (IsDead(producer->joining.pidfd)) connections_->Drop(id);
  }
}

void Producers::Leave(uint64_t id, bool finished) {
  const auto found = producers_.extract(id);
  if (found.empty()) return;
  Producer& producer = found.mapped();
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

void Producers::Notify(const std::shared_ptr<Job>& job) {
  const bool over = job->failed();
  const std::vector<Stream::Freed> all = job->stream()->TakeFreed();
  for (const uint64_t id : Ids()) {
    const Producer* const producer = Find(id);
    if (producer == nullptr || producer->job != job) continue;
    if (over) {
      nlohmann::json event = ErrorReply(OverError(*job));
      event.erase("ok");
      event["event"] = "over";
      connections_->Tell(id, event);
      Leave(id);
      continue;
    }
    const auto freed =
        std::find_if(all.begin(), all.end(), [&](const Stream::Freed& each) {
          return each.producer == producer->number;
        });
    if (freed == all.end()) continue;
    connections_->Tell(id, {{"event", "freed"},
                            {"place", freed->ring_position},
                            {"end", freed->end}});
  }
}

}  // namespace penstock
