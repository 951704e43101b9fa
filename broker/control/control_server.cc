#include "broker/control/control_server.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/io/file_access.h"
#include "broker/io/stores.h"
#include "broker/request/requests.h"
#include "common/message.h"
#include "common/wake.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace penstock {
namespace {

constexpr int kAcceptsPerTurn = 16;
// From a hang-up to the report of a death, which comes at once if it died.
constexpr std::chrono::milliseconds kLostGrace{500};
// A request is a spec of 64 KiB, escaped, plus a few words.
constexpr size_t kRequestBytesMax = 512 * 1024;
// More than a socket holds: a peer that goes on sending is not dead.
constexpr int kHeardOutMax = 1024;

// A descriptor that becomes readable when the peer's process ends, even if a
// child it forked keeps the socket open. None: errno is ESRCH if it has ended
// already; otherwise it is in another pid namespace and the kernel is older
// than 6.5.
Fd PidfdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    return Fd(fd);
  }
  return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// The progress of a job that waits for object stores; null: of none.
nlohmann::json StoresProgress() {
  const Stores* const stores = FileAccess::stores();
  if (stores == nullptr) return nullptr;
  const nlohmann::json use = stores->UseJson();
  const auto count = [&use](const char* key) -> uint64_t {
    const auto found = use.find(key);
    return found == use.end() || !found->is_number_unsigned()
               ? 0
               : found->get<uint64_t>();
  };
  if (const auto silent = use.find("silent");
      silent != use.end() && silent->is_string()) {
    return {{"stage",
             Format("waiting for {}, seconds", silent->get<std::string>())},
            {"done", count("silent_s")},
            {"total", count("silent_max_s")}};
  }
  const uint64_t listed = count("listing");
  if (listed == 0) return nullptr;
  return {{"stage", "listing"}, {"done", listed}, {"total", 0}};
}

}  // namespace

ControlServer::ControlServer(EventLoop* loop, JobTable* jobs,
                             WorkerPool* workers, const Topology* topology,
                             DeferredDestruction* deferred,
                             RecoveryJournal* recovery_journal, Options options)
    : loop_(loop),
      jobs_(jobs),
      workers_(workers),
      topology_(topology),
      deferred_(deferred),
      recovery_journal_(recovery_journal),
      options_(std::move(options)),
      producers_(jobs, recovery_journal, deferred, this),
      links_(jobs, options_.links,
             [this](uint64_t id, const nlohmann::json& json, int fd) {
               Tell(id, json, fd);
             }),
      tracing_(loop, &workers->trace()) {
  jobs->SetOnHungry([this](const auto& job) { links_.Ask(job); });
  jobs->SetOnProducers([this](const auto& job) { producers_.Notify(job); });
  for (const RecoveryJournal::Dataset& dataset :
       recovery_journal->TakeDatasets()) {
    auto spec = ParseJournaledSpec(dataset.spec);
    if (spec.ok()) {
      datasets_[{dataset.uid, dataset.name}] = *std::move(spec);
    } else {
      Log<"dataset-lost">(dataset.name, LogUser{dataset.uid},
                          spec.status().message());
    }
  }
}

ControlServer::~ControlServer() {
  // Workers publish until the pool is gone and must not wake a closed socket.
  for (auto& [id, connection] : connections_) {
    if (connection.job != nullptr) {
      connection.job->Locked(&Delivery::Mute, connection.seat);
    }
  }
}

Status ControlServer::Listen(Fd listener) {
  listener_ = std::move(listener);
  return StartAccepting();
}

Status ControlServer::StartAccepting() {
  accepting_ = true;
  return loop_->Watch(listener_.get(), [this](uint32_t) { Accept(); });
}

void ControlServer::Accept() {
  // Bounded: a peer that connects in a loop takes turns with everything else.
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd socket(accept4(listener_.get(), nullptr, nullptr,
                      SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        // EMFILE and the like: new connections wait in the backlog until the
        // next tick.
        Log<"accept-failed">(strerror(errno));
        loop_->Unwatch(listener_.get());
        accepting_ = false;
      }
      return;
    }
    ucred peer{};
    socklen_t length = sizeof(peer);
    getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
    const auto inbox = inboxes_.find(peer.uid);
    Status refusal;
    if (connections_.size() >= kConnectionsMax) {
      refusal = ResourceExhaustedError(
          "the broker has reached its limit of {} connections: it accepts more "
          "when processes that hold some end",
          kConnectionsMax);
    } else if (inbox != inboxes_.end() &&
               inbox->second.connections >= kConnectionsPerUidMax) {
      refusal = ResourceExhaustedError(
          "user {} has reached the limit of {} connections per user: end "
          "processes that hold some (`penstock status` shows the ranks)",
          peer.uid, kConnectionsPerUidMax);
    } else if (!options_.private_broker && unknown_user_ == peer.uid) {
      refusal = PermissionDeniedError(
          "the broker runs in a user namespace (a rootless container) that "
          "does not know your user, and cannot tell you from others: map your "
          "user into it, or run the broker outside");
    } else if (options_.private_broker && peer.uid != geteuid() &&
               peer.uid != 0) {
      refusal =
          PermissionDeniedError("this broker is private to user {}", geteuid());
    }
    if (!refusal.ok()) {
      Log<"connection-refused">(LogUser{peer.uid}, peer.pid, refusal.message());
      (void)SendMessage(socket.get(), ErrorReply(refusal));
      continue;
    }
    Fd pidfd = PidfdOf(socket.get(), peer.pid);
    // Requests of a dead process would be kept for one that nobody can see die.
    if (!pidfd && errno == ESRCH) continue;
    const StatusOr<Inbox*> user = InboxOf(peer.uid);
    if (!user.ok()) {
      Log<"connection-unwatched">(user.status().message());
      continue;
    }
    ++(*user)->connections;
    const uint64_t id = next_id_++;
    Connection& connection = connections_[id];
    connection.id = id;
    connection.pidfd = std::move(pidfd);
    connection.socket = std::move(socket);
    connection.uid = peer.uid;
    connection.pid = peer.pid;
    connection.opened = std::chrono::steady_clock::now();
    epoll_event readable{};
    readable.events = EPOLLIN;
    readable.data.u64 = id;
    Status status;
    if (epoll_ctl((*user)->epoll.get(), EPOLL_CTL_ADD, connection.socket.get(),
                  &readable) != 0) {
      status = ErrnoError(errno, "epoll_ctl");
    }
    if (status.ok() && connection.pidfd) {
      status = loop_->Watch(connection.pidfd.get(),
                            [this, id](uint32_t) { Drop(id); });
    }
    if (!status.ok()) {
      Log<"connection-unwatched">(status.message());
      Drop(id);
    }
  }
}

Status ControlServer::CheckWatched(const Connection& connection) {
  if (connection.pidfd) return OkStatus();
  return FailedPreconditionError(
      "the broker cannot see your process, and would not notice its end: it is "
      "in a PID namespace beside the broker's, and this kernel is older than "
      "Linux 6.5 (SO_PEERPIDFD). Run the broker on the host, or in the host's "
      "PID namespace (hostPID, --pid=host)");
}

ControlServer::Connection* ControlServer::Find(uint64_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second;
}

StatusOr<ControlServer::Inbox*> ControlServer::InboxOf(uid_t uid) {
  Inbox& inbox = inboxes_[uid];
  if (inbox.epoll) return &inbox;
  inbox.epoll = Fd(epoll_create1(EPOLL_CLOEXEC));
  Status status;
  if (!inbox.epoll) status = ErrnoError(errno, "epoll_create1");
  if (status.ok()) {
    status = loop_->Watch(inbox.epoll.get(),
                          [this, uid](uint32_t) { OnInbox(uid); });
  }
  if (status.ok()) return &inbox;
  inboxes_.erase(uid);
  return status;
}

void ControlServer::OnInbox(uid_t uid) {
  epoll_event readable;
  // The kernel moves a socket that stays readable behind the others.
  if (epoll_wait(inboxes_.at(uid).epoll.get(), &readable, 1, 0) != 1) return;
  const uint64_t id = readable.data.u64;
  OnReadable(Find(id));
}

void ControlServer::StopReading(const Connection& connection) {
  epoll_ctl(inboxes_.at(connection.uid).epoll.get(), EPOLL_CTL_DEL,
            connection.socket.get(), nullptr);
}

void ControlServer::OnReadable(Connection* connection) {
  StatusOr<std::optional<Message>> message =
      ReceiveMessage(connection->socket.get(), kRequestBytesMax);
  if (!message.ok()) {
    if (message.status().code() != StatusCode::kUnavailable) {
      Break(connection, message.status());
    } else {
      Lose(connection->id);
    }
    return;
  }
  if (!*message) return;
  std::vector<Fd> fds = std::move((*message)->fds);
  Handle(connection, (*message)->json, fds);
  deferred_->Close(std::move(fds));
}

void ControlServer::OnWake(uint64_t id) {
  Connection* connection = Find(id);
  if (!DrainWakes(connection->wake.get())) {
    // The rank closed its end because it is leaving; its control socket tells
    // so too.
    loop_->Unwatch(connection->wake.get());
    connection->job->Locked(&Delivery::Mute, connection->seat);
  }
  AdvanceSoon(*connection);
}

// Ranks that keep step send wakes together: the job's mutex is taken once.
void ControlServer::AdvanceSoon(const Connection& connection) {
  if (to_advance_.empty()) {
    loop_->AfterEvents([this] {
      for (const auto& [job, seats] : std::exchange(to_advance_, {})) {
        job->Advance(seats);
      }
    });
  }
  to_advance_[connection.job].push_back(connection.seat);
}

void ControlServer::Reply(Connection* connection, const nlohmann::json& json,
                          const std::vector<int>& fds) {
  if (!connection->socket) return;  // it hung up
  Status status = SendMessage(connection->socket.get(), json, fds, 0);
  if (status.code() == StatusCode::kResourceExhausted) {
    // It stays in memory until it is read.
    size_t unread = 0;
    for (const auto& [id, other] : connections_) {
      if (other.uid == connection->uid) unread += UnreadBytes(other);
    }
    const size_t left =
        UnreadBytes(*connection) > 0
            ? 0
            : kUnreadBytesPerUidMax - std::min(unread, kUnreadBytesPerUidMax);
    status = SendMessage(connection->socket.get(), json, fds, left,
                         &connection->large_bytes);
    if (status.code() == StatusCode::kResourceExhausted) {
      status = SendMessage(
          connection->socket.get(),
          ErrorReply(ResourceExhaustedError(
              "read the answers that came before: processes of user {} have "
              "not read {} bytes of them",
              connection->uid, unread)));
    }
  }
  if (status.ok()) return;
  loop_->Post([this, id = connection->id] { Lose(id); });
}

void ControlServer::Break(Connection* connection, const Status& status) {
  Log<"broken-request">(LogUser{connection->uid}, connection->pid,
                        status.message());
  Reply(connection, ErrorReply(status));
  Lose(connection->id);
}

void ControlServer::Refuse(Connection* connection, std::string_view request,
                           const Status& status) {
  Log<"request-refused">(LogUser{connection->uid}, connection->pid, request,
                         status.message());
  Reply(connection, ErrorReply(status));
}

size_t ControlServer::UnreadBytes(const Connection& connection) {
  int queued = 0;  // in the peer's queue
  return connection.large_bytes > 0 && connection.socket &&
                 ioctl(connection.socket.get(), SIOCOUTQ, &queued) == 0 &&
                 queued > 0
             ? connection.large_bytes
             : 0;
}

void ControlServer::Lose(uint64_t id) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  // What it has not read counts until its process ends.
  if (connection->pidfd && UnreadBytes(*connection) > 0) {
    StopReading(*connection);
    return;
  }
  // Only a process that has mapped batches is waited for.
  if (connection->job == nullptr || !connection->pidfd) {
    Drop(id);
    return;
  }
  if (connection->lost) return;
  connection->lost = std::chrono::steady_clock::now();
  StopReading(*connection);
  connection->socket.Reset();
}

void ControlServer::Tell(uint64_t id, const nlohmann::json& json, int fd) {
  Connection* const connection = Find(id);
  connection->waiting = false;
  Reply(connection, json, fd < 0 ? std::vector<int>() : std::vector<int>{fd});
}

void ControlServer::RefuseProducer(uint64_t id, const Status& status) {
  Connection* const connection = Find(id);
  connection->waiting = false;
  Refuse(connection, "produce", status);
}

bool ControlServer::HearOut(Connection* connection) {
  if (!connection->socket) return false;
  for (int i = 0; i < kHeardOutMax; ++i) {
    const bool feeds = producers_.Feeds(connection->id);
    if (connection->job == nullptr && !feeds) return false;
    // What counts is small.
    auto message = ReceiveMessage(connection->socket.get(), 0);
    if (!message.ok() || !*message) return false;
    const Call call = {connection, (*message)->json, (*message)->fds};
    const std::string op = CheckRequest(call.request).ok()
                               ? call.request.at("op").get<std::string>()
                               : "";
    if (feeds && op == "put") (void)Put(call);
    if (feeds && op == "finish") (void)Finish(call);
    deferred_->Close(std::move(call.fds));
    if (op == "detach") return true;
    if (op != "put" && op != "finish" && op != "unmapped") return false;
  }
  return false;
}

void ControlServer::End(uint64_t id, bool orderly) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  // The end of a process may be reported before what it sent is read.
  if (!orderly) orderly = HearOut(connection);
  if (connection->traces) tracing_.Stop();
  if (connection->attach != 0) jobs_->CancelAttach(connection->attach);
  if (connection->inspect != 0) jobs_->CancelInspect(connection->inspect);
  if (connection->socket) StopReading(*connection);
  for (const Fd* fd : {&connection->pidfd, &connection->wake}) {
    if (*fd) loop_->Unwatch(fd->get());
  }
  producers_.Leave(id);
  links_.Leave(id);
  if (const std::shared_ptr<Job> job = std::move(connection->job)) {
    // Before the wake socket closes: a worker may be about to use it.
    job->Locked(&Delivery::Mute, connection->seat);
    jobs_->Leave(job, connection->seat, orderly);
    SendRanksChanged(job);
  }
  const auto inbox = inboxes_.find(connection->uid);
  connections_.erase(id);
  if (--inbox->second.connections > 0) return;
  loop_->Unwatch(inbox->second.epoll.get());
  inboxes_.erase(inbox);
}

bool ControlServer::WantsTick() const {
  return jobs_->busy() || links_.WantsTick() || !accepting_ ||
         std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& item) {
                       return !item.second.greeted || item.second.lost;
                     });
}

void ControlServer::Tick() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<uint64_t> silent;
  for (auto& [id, connection] : connections_) {
    if (!connection.greeted &&
        now - connection.opened > std::chrono::seconds(kHelloSeconds)) {
      silent.push_back(id);
    }
    uint64_t done = 0;
    uint64_t total = 0;
    uint64_t fetches = 0;
    if (connection.waiting &&
        jobs_->Progress(std::max(connection.attach, connection.inspect), &done,
                        &total, &fetches)) {
      nlohmann::json event = {
          {"stage", fetches == 0 ? "indexing"
                                 : Format("indexing, fetches up to {} once",
                                          BytesText(fetches))},
          {"done", done},
          {"total", total}};
      if (done == 0) {
        if (auto stores = StoresProgress(); stores.is_object()) {
          event = std::move(stores);
        }
      }
      event["event"] = "progress";
      Reply(&connection, event);
    }
  }
  for (const uint64_t id : silent) Drop(id);
  for (auto& [id, connection] : connections_) {
    if (!connection.lost || now - *connection.lost < kLostGrace ||
        connection.job == nullptr || !connection.wake) {
      continue;
    }
    // It lives on: its batches are quarantined until it is gone.
    Log<"rank-closed-connection">(connection.job->key(), connection.pid);
    connection.job->Locked(&Delivery::Mute, connection.seat);
    loop_->Unwatch(connection.wake.get());
    connection.wake.Reset();
    connection.job->EvictSeat(connection.seat,
                              "its connection to the broker is closed");
    jobs_->NoteEvicted(connection.job);
    SendRanksChanged(connection.job);
  }
  if (!accepting_) {
    if (const Status status = StartAccepting(); !status.ok()) {
      accepting_ = false;
      Log<"accept-failed">(status.message());
    }
  }
  jobs_->CheckTimeouts();
  jobs_->Sweep();
  // The job that a returning producer waits for may be over.
  producers_.LetIn();
  links_.Tick();
  // A worker may have evicted a rank that wrote impossible values, or a job may
  // have found a rank from before a restart dead.
  std::set<std::shared_ptr<Job>> jobs;
  for (auto& [id, connection] : connections_) {
    if (connection.job != nullptr) jobs.insert(connection.job);
  }
  for (const std::shared_ptr<Job>& job : jobs) SendRanksChanged(job);
}

}  // namespace penstock
