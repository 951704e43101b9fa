// Producers: processes that put rows for a job whose source is a stream, each
// over a connection of its own. A producer may come before its job.
//
// Runs on the control thread.
#ifndef BROKER_CONTROL_PRODUCERS_H_
#define BROKER_CONTROL_PRODUCERS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "broker/base/deferred_destruction.h"
#include "broker/recovery/recovery_journal.h"
#include "broker/registry/job_table.h"
#include "broker/stream/stream.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class Producers {
 public:
  // The connections of producers, by numbers.
  class Connections {
   public:
    virtual ~Connections() = default;
    // Tells the producer of something, the answer to its request for example.
    virtual void Tell(uint64_t id, const nlohmann::json& json, int fd = -1) = 0;
    virtual void RefuseProducer(uint64_t id, const Status& status) = 0;
    // Its process is dead. Calls Leave.
    virtual void Drop(uint64_t id) = 0;
  };
  Producers(const JobTable* jobs, RecoveryJournal* journal,
            DeferredDestruction* deferred, Connections* connections)
      : jobs_(jobs),
        journal_(journal),
        deferred_(deferred),
        connections_(connections) {}

  // Requests of a connection, whose process has this pidfd. That to produce is
  // answered now, or when its job has begun. fds: those that came with it.
  void Produce(uint64_t id, uid_t uid, int pidfd, const nlohmann::json& request,
               std::vector<Fd>& fds);
  using Answer = StatusOr<nlohmann::json>;  // null: there is none
  Answer Put(uint64_t id, const nlohmann::json& request);
  Answer Finish(uint64_t id, const nlohmann::json& request);

  bool Has(uint64_t id) const { return producers_.contains(id); }
  // It was let in.
  bool Feeds(uint64_t id) const;
  // The connection is none of a producer any more.
  void Leave(uint64_t id) { Leave(id, false); }
  // Answers those whose job has begun, or cannot begin any more.
  void LetIn();
  // Tells producers of free room, or that nobody takes their rows any more.
  void Notify(const std::shared_ptr<Job>& job);
  // Those that were let in: jobs and numbers in their streams, by connection.
  std::map<uint64_t, std::pair<const Job*, uint32_t>> Numbers() const;

 private:
  struct Producer {
    uid_t uid = 0;
    std::string job_name;
    std::string dataset;  // "": any
    nlohmann::json features;
    Stream::Joining joining;
    Fd memory;                 // of joining
    std::shared_ptr<Job> job;  // nullptr: waits for it
    uint32_t number = 0;       // in the stream
  };
  // The connections of all producers: the map changes when one leaves.
  std::vector<uint64_t> Ids() const;
  Producer* Find(uint64_t id);
  // The job that a waiting producer feeds; nullptr: it has not begun.
  StatusOr<std::shared_ptr<Job>> JobToFeed(const Producer& producer) const;
  Status Join(uint64_t id, const std::shared_ptr<Job>& job);
  // Answers a waiting producer, unless its job has not begun.
  void LetIn(uint64_t id);
  // Drops the job's dead producers, whichever death is reported first: the next
  // row is known once all they put was read.
  void DropDead(const std::shared_ptr<Job>& job);
  void Leave(uint64_t id, bool finished);

  const JobTable* const jobs_;
  RecoveryJournal* const journal_;
  DeferredDestruction* const deferred_;
  Connections* const connections_;
  std::map<uint64_t, Producer> producers_;  // by connection
};

}  // namespace penstock
#endif  // BROKER_CONTROL_PRODUCERS_H_
