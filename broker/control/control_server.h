// The control plane: accepts connections, reads requests (message.h), answers.
//
// Runs on the control thread. All input is untrusted: sizes, types and
// descriptors are checked. A peer that breaks the protocol or does not read its
// answers loses its connection and harms nobody else.
//
// Each turn of the loop handles one message of each user: whoever sends many
// delays only processes of the same user.
//
// Bounds: kConnectionsMax in all, kConnectionsPerUidMax per user, one request
// under way per connection, kHelloSeconds until the first request.
#ifndef BROKER_CONTROL_CONTROL_SERVER_H_
#define BROKER_CONTROL_CONTROL_SERVER_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/base/deferred_destruction.h"
#include "broker/base/event_loop.h"
#include "broker/base/user_namespace.h"
#include "broker/control/links.h"
#include "broker/control/producers.h"
#include "broker/control/tracing.h"
#include "broker/memory/topology.h"
#include "broker/recovery/recovery_journal.h"
#include "broker/registry/job_table.h"
#include "broker/spec/dataset_spec.h"
#include "broker/workers/worker_pool.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class ControlServer : private Producers::Connections {
 public:
  static constexpr size_t kConnectionsMax = 4096;
  static constexpr size_t kConnectionsPerUidMax = 1088;  // ranks and more
  static constexpr size_t kDatasetsPerUidMax = 1024;
  // The bytes of answers in memfds that a user's processes have not read.
  static constexpr size_t kUnreadBytesPerUidMax = 64 << 20;
  static constexpr int kHelloSeconds = 10;

  struct Options {
    bool private_broker = false;   // serves one user, may be told to stop
    std::string socket_path;       // for status, as is
    std::string sandbox;           // what of it is in force
    std::vector<uid_t> observers;  // see the jobs of all users
    std::vector<uid_t> links;      // bring rows for them
  };

  // listener is a listening SOCK_SEQPACKET socket.
  ControlServer(EventLoop* loop, JobTable* jobs, WorkerPool* workers,
                const Topology* topology, DeferredDestruction* deferred,
                RecoveryJournal* recovery_journal, Options options);
  ~ControlServer() override;
  Status Listen(Fd listener);

  bool WantsTick() const;
  // Sends progress, drops connections that send no request.
  void Tick();

 private:
  struct Connection {
    uint64_t id = 0;
    Fd socket;
    Fd pidfd;
    uid_t uid = 0;
    pid_t pid = 0;
    std::chrono::steady_clock::time_point opened;
    bool greeted = false;
    // Set when it hung up without a detach. The process may live on and read
    // its batches: the connection is kept until its death is reported (pidfd),
    // and evicted if it is not.
    std::optional<std::chrono::steady_clock::time_point> lost;
    bool waiting = false;    // its request is not answered yet
    size_t large_bytes = 0;  // of its last answer in a memfd, perhaps read
    uint64_t attach = 0;     // number, for progress and cancelling
    uint64_t inspect = 0;
    // Attached:
    Fd wake;
    Fd wake_of_rank;  // until the answer is sent
    std::shared_ptr<Job> job;
    uint32_t seat = 0;
    std::shared_ptr<void> former_memory;  // which it may still map
    bool traces = false;                  // waits for a trace
  };

  // A user's connections.
  struct Inbox {
    Fd epoll;  // which of their sockets can be read
    size_t connections = 0;
  };

  void Accept();
  Status StartAccepting();
  StatusOr<Inbox*> InboxOf(uid_t uid);
  // Reads a message of one of the user's connections, each in turn.
  void OnInbox(uid_t uid);
  void OnReadable(Connection* connection);
  // Reads nothing more of it.
  void StopReading(const Connection& connection);
  void Handle(Connection* connection, const nlohmann::json& request,
              std::vector<Fd>& fds);

  // A request that CheckRequest has passed.
  struct Call {
    Connection* connection;
    const nlohmann::json& request;
    std::vector<Fd>& fds;
  };
  // Its answer. null: there is none, or it comes later; the connection may be
  // gone.
  using Answer = StatusOr<nlohmann::json>;
  using Handler = Answer (ControlServer::*)(const Call&);
  static Handler HandlerOf(std::string_view op);
  Answer Ping(const Call&);
  Answer ListJobs(const Call&);
  Answer ListDatasets(const Call&);
  Answer ShowStatus(const Call&);
  Answer SetWorkers(const Call& call);
  Answer Shutdown(const Call&);
  Answer Parse(const Call& call);
  Answer Index(const Call& call);
  Answer Register(const Call& call);
  Answer Unregister(const Call& call);
  Answer Attach(const Call& call);
  Answer Detach(const Call& call);
  Answer Unmapped(const Call& call);
  Answer Fingerprint(const Call& call);
  Answer JobStateOf(const Call& call);
  Answer Weights(const Call& call);
  Answer Evict(const Call& call);
  Answer StopJob(const Call& call);
  Answer Produce(const Call& call);
  Answer Put(const Call& call);
  Answer Finish(const Call& call);
  Answer StartTrace(const Call& call);
  Answer Measure(const Call& call);
  Answer TakeFailures(const Call& call);
  Answer Ask(const Call& call);
  Answer Link(const Call& call);
  Answer Made(const Call& call);
  Answer Makers(const Call& call);

  // Fails if the end of the process would go unnoticed.
  static Status CheckWatched(const Connection& connection);
  // Whether a user may know of what another owns: of her own, as root and the
  // broker's own user of all, as observers.
  bool MaySee(uid_t user, uid_t owner) const;
  StatusOr<DatasetSpec> SpecOf(const Call& call) const;
  // The jobs that a request names, at least one.
  // Those that it names and its user may act upon: its own; root's: all.
  static JobQuery QueryOf(const Call& call);
  StatusOr<std::vector<std::shared_ptr<Job>>> JobsOf(const Call& call) const;
  // One, or the consumers of one that is independent.
  StatusOr<std::vector<std::shared_ptr<Job>>> OneJobOf(const Call& call) const;
  StatusOr<std::shared_ptr<Job>> OnlyJobOf(const Call& call) const;
  nlohmann::json NodesJson() const;
  // "one node", "2 nodes, bound and verified", "off: why".
  std::string NumaText() const;
  // Reads what it sent before it ended: what a producer put counts. True: it
  // has left, in order.
  bool HearOut(Connection* connection);
  void Tell(uint64_t id, const nlohmann::json& json, int fd) override;
  void RefuseProducer(uint64_t id, const Status& status) override;
  void OnAttached(uint64_t id, StatusOr<JobTable::Attached> result);
  // Tells ranks that the set of ranks changes at some batch.
  void SendRanksChanged(const std::shared_ptr<Job>& job);
  void OnWake(uint64_t id);
  // Advances the job soon, once for all its ranks that sent a wake.
  void AdvanceSoon(const Connection& connection);
  // A peer that cannot be sent to is dropped soon.
  void Reply(Connection* connection, const nlohmann::json& json,
             const std::vector<int>& fds = {});
  // An error, which the log has too.
  void Refuse(Connection* connection, std::string_view request,
              const Status& status);
  // A peer that does not follow the protocol is told so; then as Lose.
  void Break(Connection* connection, const Status& status);
  // The bytes of such an answer that it has not read; 0: it has.
  static size_t UnreadBytes(const Connection& connection);
  Connection* Find(uint64_t id);
  // The process is dead, or there is nobody to wait for. Takes its rank off;
  // the connection must not be used afterwards.
  void Drop(uint64_t id) override { End(id, false); }
  void End(uint64_t id, bool orderly);
  // The peer hung up or broke the protocol.
  void Lose(uint64_t id);

  EventLoop* const loop_;
  JobTable* const jobs_;
  WorkerPool* const workers_;
  const Topology* const topology_;
  DeferredDestruction* const deferred_;
  RecoveryJournal* const recovery_journal_;
  const Options options_;
  const std::chrono::steady_clock::time_point started_ =
      std::chrono::steady_clock::now();
  // Who cannot be told from others (user_namespace.h).
  const std::optional<uid_t> unknown_user_ = UnknownUser();
  Fd listener_;
  bool accepting_ = false;  // false while descriptors are short
  std::map<uint64_t, Connection> connections_;
  std::map<uid_t, Inbox> inboxes_;
  uint64_t next_id_ = 1;
  // Seats that sent a wake, by job.
  std::map<std::shared_ptr<Job>, std::vector<uint32_t>> to_advance_;
  Producers producers_;
  Links links_;
  Tracing tracing_;
  // By user and name: users cannot replace each other's datasets.
  std::map<std::pair<uid_t, std::string>, DatasetSpec> datasets_;
};

}  // namespace penstock
#endif  // BROKER_CONTROL_CONTROL_SERVER_H_
