// The input is what clients say to a broker: a list of small programs' steps
// (see Step), each a byte and what belongs to it. The broker is a real one, in
// this process and on threads of its own: control server, job table, one
// worker. It lives through all inputs, and after each nothing of that input is
// left in it: no connection, no job, no descriptor. Now and then an honest rank
// attaches and takes its data to the end.
//
// A client that goes without a word while it is attached is waited for until
// its process is dead; so those that do are processes of their own, forked for
// the occasion (Mortals).
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "broker/base/deferred_destruction.h"
#include "broker/base/event_loop.h"
#include "broker/base/log.h"
#include "broker/control/control_server.h"
#include "broker/memory/topology.h"
#include "broker/recovery/recovery_journal.h"
#include "broker/registry/job_table.h"
#include "broker/workers/worker_pool.h"
#include "common/job_state.h"
#include "common/message.h"
#include "common/ring.h"
#include "common/segment.h"
#include "common/wake.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/send_raw.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kStepsMax = 32;
constexpr size_t kClientsMax = 4;
constexpr uint64_t kHonestEvery = 256;
// What takes longer hangs.
constexpr std::chrono::seconds kPatience{20};
constexpr uint64_t kMemoryBytes = 8 << 20;

constexpr const char* kSpecs[] = {
    "dataset: a\nsource: {range: 32}\nbatch: {size: 4}\n",
    "dataset: b\nsource: {range: 9}\nbatch: {size: 2}\nshuffle: {seed: 1}\n"
    "epochs: forever\nprefetch: 1\nhold: 1\n",
    "dataset: c\nsource: {synthetic: {records: 10, features: {x: {dtype: "
    "uint8, shape: [3, 2]}}}}\nbatch: {per_rank: 2, last: drop}\n",
    "dataset: d\nsource: {tensors: {features: {x: [[1, 2], [3, 4]]}, repeat: "
    "5}}\nbatch: {size: 3, last: pad}\nepochs: 2\n",
    "dataset: e\nsource: {image_folder: {path: gone}}\nbatch: {size: 1}\n",
    "dataset: f\nsource: {range: 100000}\nbatch: {size: 16000000}\n",
    "dataset: g\n\tsource: [",
    "dataset: h\nsource: {mix: {parts: [{source: {range: 32}}, {source: "
    "{range: 16}}]}}\nbatch: {size: 4}\nepochs: 2\n",
};
constexpr const char* kJobs[] = {"j", "k", ""};
constexpr const char* kOps[] = {
    "ping",     "status", "jobs",   "datasets", "state",    "stop",  "evict",
    "shutdown", "index",  "attach", "detach",   "register", "parse", "weights"};
constexpr const char* kKeys[] = {
    "penstock",      "op",          "spec",
    "file",          "base",        "job",
    "rank",          "world_size",  "local_world_size",
    "delivery",      "lag",         "window",
    "on_rank_death", "consumers",   "named",
    "repeat_first",  "full_epoch",  "wait_s",
    "state",         "incarnation", "token",
    "position",      "phase",       "owed",
    "epochs_from",   "dataset",     "now",
    "weights",       "epoch",       "row"};

// A program of this size must not look for pictures on the whole machine, nor
// burn the processor for as long as a spec may ask for.
bool Costly(std::string_view text) {
  for (const char* word : {"image_folder", "idx", "cost_us"}) {
    if (text.find(word) != std::string_view::npos) return true;
  }
  return false;
}

// What is open, as the system names it: "/memfd:penstock segment", ...
std::multiset<std::string> OpenDescriptors() {
  std::multiset<std::string> open;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string name = std::filesystem::read_symlink(entry, gone).string();
    // Without the number of a socket or pipe.
    // The listing itself; the pipes to a symbolizer that the sanitizer starts.
    if (name.starts_with("/proc/") || name.starts_with("pipe:")) continue;
    open.insert(name.substr(0, name.find(":[")));
  }
  return open;
}

Fd ConnectTo(const sockaddr_un& address, socklen_t length) {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // The fuzzer's clock interrupts.
  const bool connected =
      fd &&
      TEMP_FAILURE_RETRY(connect(
          fd.get(), reinterpret_cast<const sockaddr*>(&address), length)) == 0;
  return connected ? std::move(fd) : Fd();
}

// Processes that connect and hand their connection over. Each lives as long as
// the descriptor that comes with it. They are forked by one process that was
// forked before there were threads.
class Mortals {
 public:
  struct Process {
    Fd connection;
    Fd alive;  // the process ends when this is closed
  };
  Mortals(const sockaddr_un& address, socklen_t length)
      : address_(address), length_(length) {
    int fds[2];
    Require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0,
            "there are sockets");
    asking_ = Fd(fds[0]);
    if (const pid_t pid = fork(); pid != 0) {
      Require(pid > 0, "a process can be forked");
      close(fds[1]);
      return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGCHLD, SIG_IGN);
    close(fds[0]);
    char byte;
    while (recv(fds[1], &byte, 1, 0) == 1) {
      if (fork() == 0) Live(fds[1]);
    }
    _exit(0);
  }
  Process Make() {
    (void)SendRaw(asking_.get(), "+", {});
    char byte;
    iovec iov{&byte, 1};
    msghdr header{};
    header.msg_iov = &iov;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)] = {};
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    Require(TEMP_FAILURE_RETRY(
                recvmsg(asking_.get(), &header, MSG_CMSG_CLOEXEC)) == 1 &&
                CMSG_FIRSTHDR(&header) != nullptr,
            "a process connects");
    int fds[2];
    std::memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(fds));
    return {Fd(fds[0]), Fd(fds[1])};
  }

 private:
  [[noreturn]] void Live(int asking) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int alive[2];
    if (pipe2(alive, O_CLOEXEC) != 0) _exit(1);
    {
      const Fd connection = ConnectTo(address_, length_);
      (void)SendRaw(asking, "-", {connection.get(), alive[1]});
    }
    close(alive[1]);
    char byte;
    (void)!read(alive[0], &byte, 1);  // until the other end is closed
    _exit(0);
  }

  const sockaddr_un address_;
  const socklen_t length_;
  Fd asking_;
};

class Broker {
 public:
  Broker() {
    SetLogLevel(LogLevel::kCritical);
    Fd listener(
        socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // An abstract address that the kernel chooses.
    address_.sun_family = AF_UNIX;
    Require(bind(listener.get(), reinterpret_cast<sockaddr*>(&address_),
                 sizeof(sa_family_t)) == 0 &&
                listen(listener.get(), 64) == 0,
            "it listens");
    length_ = sizeof(address_);
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address_),
                &length_);
    mortals_ = std::make_unique<Mortals>(address_, length_);
    topology_ = *Topology::Load({});
    recovery_journal_ = *RecoveryJournal::Open("", {});
    loop_ = *EventLoop::Make();
    WorkerOptions options;
    options.workers = 1;
    workers_ = *WorkerPool::Start(*topology_, options);
    JobTable::Limits limits;
    limits.memory.bytes = kMemoryBytes;
    jobs_ = std::make_unique<JobTable>(loop_.get(), workers_.get(), &deferred_,
                                       recovery_journal_.get(), limits);
    server_ = std::make_unique<ControlServer>(
        loop_.get(), jobs_.get(), workers_.get(), topology_.get(), &deferred_,
        recovery_journal_.get(), ControlServer::Options{false, "fuzz"});
    loop_->SetTick(
        milliseconds(2), [this] { return server_->WantsTick(); },
        [this] { server_->Tick(); });
    Require(server_->Listen(std::move(listener)).ok(), "it accepts");
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~Broker() {
    loop_->Post([this] { loop_->Stop(); });
    thread_.join();
    jobs_->Shutdown();
  }

  Fd Connect() { return ConnectTo(address_, length_); }
  Mortals::Process ConnectMortal() { return mortals_->Make(); }
  // Runs what on the control thread, after what is under way there.
  bool Ask(const std::function<bool()>& what) {
    std::promise<bool> answer;
    loop_->Post([&] { answer.set_value(what()); });
    return answer.get_future().get();
  }
  bool HasJobs() {
    return Ask([this] { return jobs_->busy(); });
  }

 private:
  sockaddr_un address_{};
  socklen_t length_ = 0;
  std::unique_ptr<Mortals> mortals_;
  std::unique_ptr<Topology> topology_;
  std::unique_ptr<RecoveryJournal> recovery_journal_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<WorkerPool> workers_;
  DeferredDestruction deferred_;
  std::unique_ptr<JobTable> jobs_;
  std::unique_ptr<ControlServer> server_;
  std::thread thread_;
};

Broker& TheBroker() {
  static Broker broker;
  return broker;
}

// ---- a client ---------------------------------------------------------------

class Client {
 public:
  explicit Client(bool mortal) : mortal_(mortal) {
    if (mortal) {
      Mortals::Process made = TheBroker().ConnectMortal();
      socket_ = std::move(made.connection);
      process_alive_ = std::move(made.alive);
    } else {
      socket_ = TheBroker().Connect();
    }
    Require(static_cast<bool>(socket_), "it connects");
  }

  bool connected() const { return static_cast<bool>(socket_); }
  bool attached() const { return view_ != nullptr; }
  // Its answer is not there yet.
  bool waiting() const { return waiting_; }
  // It may break the protocol: its process can be ended.
  bool MayMisbehave() const { return mortal_ || !(attached() || waiting_); }
  const nlohmann::json& answer() const { return answer_; }

  void SendText(std::string_view text, const std::vector<int>& fds) {
    if (!socket_) return;
    (void)SendRaw(socket_.get(), text, fds);
    const auto json = nlohmann::json::parse(text, nullptr, false);
    // Everything else ends the connection.
    if (json.is_object() && json.value("penstock", nlohmann::json()) == 1 &&
        json.value("op", nlohmann::json()) != "detach") {
      waiting_ = true;
    }
  }
  void Ask(const nlohmann::json& request, const std::vector<int>& fds) {
    SendText(
        request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
        fds);
  }
  void SetPage(OwnedCursor page) { page_ = std::move(page); }
  // To write anything into it; nullptr: there is none.
  CursorPage* Tamper() {
    tampered_ = true;
    return page_ ? &page_->page() : nullptr;
  }
  int page_fd() const { return page_->fd.get(); }

  // Reads what is there.
  void Drain() {
    while (socket_) {
      auto message = ReceiveMessage(socket_.get());
      if (!message.ok()) {
        Require(message.status().code() == StatusCode::kUnavailable,
                "the broker keeps to the protocol");
        socket_.Reset();
        waiting_ = false;
        return;
      }
      if (!*message) return;
      nlohmann::json& json = (*message)->json;
      if (json.contains("event")) continue;
      Require(json.contains("ok") && json["ok"].is_boolean(),
              "an answer has a result");
      waiting_ = false;
      answer_ = std::move(json);
      if ((*message)->fds.size() == 2) Attached((*message)->fds);
    }
  }
  // Until it is answered or the connection is lost.
  void AwaitAnswer() {
    const Clock::time_point end = Clock::now() + kPatience;
    for (Drain(); waiting_ && socket_; Drain()) {
      Require(Clock::now() < end, "a request is answered");
      pollfd entry{socket_.get(), POLLIN, 0};
      poll(&entry, 1, 1000);
    }
  }
  void HangUp() {
    socket_.Reset();
    waiting_ = false;
  }
  // Orderly where it has to be.
  void Leave() {
    if (!mortal_ && socket_) {
      AwaitAnswer();
      if (attached()) SendText(R"({"penstock":1,"op":"detach"})", {});
    }
    HangUp();
    process_alive_.Reset();
    view_.reset();
  }

  // As a rank's process does it. True: it has one more.
  bool Take(Cell* cell) {
    if (!attached()) return false;
    if (TryTake(ring(), page_->page(), cell) != TakeResult::kTaken) {
      return false;
    }
    Require(tampered_ || view_->Valid(*cell),
            "a cell names a slot of the segment");
    held_.push_back(*cell);
    if (BrokerWaitsForTakes(ring())) SendWake(wake_.get());
    return true;
  }
  void Release() {
    if (!attached() || held_.empty()) return;
    const Cell cell = held_.front();
    held_.pop_front();
    if (penstock::Release(ring(), page_->page(), cell.lease, cell.generation)) {
      SendWake(wake_.get());
    }
  }
  void Wake() {
    if (attached()) SendWake(wake_.get());
  }
  // Until there may be something to take; false: nothing will come.
  bool AwaitBatch() {
    const Clock::time_point end = Clock::now() + kPatience;
    for (;;) {
      DisarmWait(page_->page());
      if (AnyUntaken(ring(), page_->page())) return true;
      if (ring().closed.load() != 0) return false;
      if (!ArmWait(ring(), page_->page())) continue;
      if (BrokerWaitsForTakes(ring())) SendWake(wake_.get());
      Require(Clock::now() < end, "a rank gets its batches");
      pollfd entry{wake_.get(), POLLIN, 0};
      poll(&entry, 1, 100);
      DrainWakes(wake_.get());
    }
  }
  const Ring& ring() const { return view_->ring(seat_); }
  const SegmentView& view() const { return *view_; }
  size_t held() const { return held_.size(); }

 private:
  void Attached(std::vector<Fd>& fds) {
    Require(answer_["ok"].get<bool>() && answer_.contains("seat"),
            "descriptors come with a seat");
    Require(page_.has_value(), "an attached rank has a page");
    auto view = SegmentView::Open(
        fds[0].get(), static_cast<uint32_t>(answer_["element_spec"].size()));
    Require(view.ok(), "the segment is one");
    view_ = *std::move(view);
    wake_ = std::move(fds[1]);
    seat_ = answer_["seat"].get<uint32_t>();
    Require(seat_ < view_->seats(), "the seat exists");
    Require(JobStateFromJson(answer_["state"]).ok(), "the state is one");
  }

  const bool mortal_;
  Fd socket_;
  Fd process_alive_;
  bool waiting_ = false;
  nlohmann::json answer_;
  std::optional<OwnedCursor> page_;
  bool tampered_ = false;
  std::unique_ptr<SegmentView> view_;
  Fd wake_;
  uint32_t seat_ = 0;
  std::deque<Cell> held_;
};

nlohmann::json RequestOf(const char* op) {
  return {{"penstock", 1}, {"op", op}};
}

// ---- an honest rank ---------------------------------------------------------

void CheckHonestRank() {
  Client rank(false);
  auto page = CreateCursor();
  Require(page.ok(), "there is a page");
  rank.SetPage(*std::move(page));
  nlohmann::json attach = RequestOf("attach");
  attach.update({{"spec", kSpecs[0]},
                 {"file", "a.yaml"},
                 {"base", "/"},
                 {"job", "honest"},
                 {"rank", 0},
                 {"world_size", 1},
                 {"local_world_size", 1}});
  rank.Ask(attach, {rank.page_fd()});
  rank.AwaitAnswer();
  Require(rank.attached(), "an honest rank attaches");
  int64_t next = 0;
  while (rank.AwaitBatch()) {
    Cell cell;
    while (rank.Take(&cell)) {
      const auto* values =
          reinterpret_cast<const int64_t*>(rank.view().feature(cell, 0));
      for (uint32_t row = 0; row < cell.valid_rows; ++row) {
        Require(values[row] == next++, "an honest rank gets its data");
      }
      rank.Release();
    }
  }
  Require(rank.ring().closed.load() == static_cast<uint32_t>(Closed::kFinished),
          "to their end");
  Require(next == 32, "all of them");
  // Processes that were ended a moment ago may still be there.
  for (const Clock::time_point end = Clock::now() + kPatience;;) {
    rank.Ask(RequestOf("status"), {});
    rank.AwaitAnswer();
    Require(rank.answer()["jobs"].size() == 1, "there is no other job");
    if (rank.answer()["broker"]["connections"] == 1) break;
    Require(Clock::now() < end, "no other process stays connected");
    std::this_thread::sleep_for(milliseconds(1));
  }
  rank.Leave();
}

// ---- an input ---------------------------------------------------------------

class Course {
 public:
  explicit Course(Input input) : input_(input) {}
  void Run() {
    for (size_t i = 0; i < kStepsMax && !input_.empty(); ++i) Step();
    for (const auto& client : clients_) {
      if (client != nullptr) client->Leave();
    }
  }

 private:
  nlohmann::json Template(const char* op);
  nlohmann::json Value();
  std::vector<int> Descriptors(Client* client);
  void Step();

  Input input_;
  std::array<std::unique_ptr<Client>, kClientsMax> clients_;
  std::vector<Fd> fds_;  // that were sent
  nlohmann::json state_;
};

nlohmann::json Course::Template(const char* op) {
  nlohmann::json request = RequestOf(op);
  const std::string_view name = op;
  if (name == "attach" || name == "index" || name == "register" ||
      name == "parse") {
    const uint8_t spec = input_.Byte();
    if (spec % 16 < std::size(kSpecs)) {
      request["spec"] = kSpecs[spec % 16];
      request["file"] = "a.yaml";
      request["base"] = "/nonexistent";
    } else if (spec % 16 < 15) {
      request["dataset"] = std::string(1, static_cast<char>('a' + spec % 8));
    } else {
      const std::string text(input_.Text(input_.Byte()));
      request["spec"] = Costly(text) ? "" : text;
      request["file"] = "a.yaml";
      request["base"] = "/nonexistent";
    }
  }
  if (name == "attach") {
    const uint8_t world = input_.Byte();
    const uint8_t flags = input_.Byte();
    request["job"] = kJobs[world >> 6 & 1];
    request["rank"] = world & 3;
    request["world_size"] = 1 + (world >> 2 & 3);
    request["local_world_size"] = 1 + (world >> 4 & 3);
    request["delivery"] = kDeliveryModeNames[flags & 3];
    request["on_rank_death"] = kOnRankDeathNames[(flags >> 2 & 3) % 3];
    if ((flags & 16) != 0) request["lag"] = kLagNames[world % 3];
    if ((flags & 32) != 0) request["named"] = true;
    if ((flags & 64) != 0 && !state_.is_null()) request["state"] = state_;
    if ((flags & 128) != 0) {
      request["incarnation"] = 1 + input_.Byte() % 4;
      request["position"] = input_.Number(2);
      request["owed_done"] = input_.Byte();
    }
  } else if (name == "state" || name == "stop" || name == "evict" ||
             name == "weights") {
    const uint8_t which = input_.Byte();
    if (which % 4 != 3) request["job"] = kJobs[which % 4];
    if ((which & 4) != 0) request["now"] = true;
    if (name == "evict") request["rank"] = which >> 4;
    if (name == "weights" && (which & 8) != 0) {
      request["weights"] = {which >> 4, which >> 6};
    }
    if (name == "weights" && (which & 16) != 0) {
      request["epoch"] = which >> 5;
      request["row"] = which;
    }
  }
  return request;
}

// Text that is JSON, or a string.
nlohmann::json Course::Value() {
  const std::string text(input_.Text(input_.Byte()));
  if (Costly(text)) return nullptr;
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  return value.is_discarded() ? nlohmann::json(text) : value;
}

// What goes along with a request: a good page and things that are none.
std::vector<int> Course::Descriptors(Client* client) {
  std::vector<int> fds;
  const auto keep = [&](int fd) { fds.push_back(fds_.emplace_back(fd).get()); };
  const auto memory = [&](off_t bytes, int seals) {
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    (void)!ftruncate(fd, bytes);
    fcntl(fd, F_ADD_SEALS, seals);
    keep(fd);
  };
  constexpr int kSeals =
      F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  const uint8_t kind = input_.Byte();
  // A page is one process's for good: a rank that is attached keeps its own.
  if ((kind & 15) < 9 && !client->attached() && !client->waiting()) {
    auto page = CreateCursor();
    if (page.ok()) {
      client->SetPage(*std::move(page));
      fds.push_back(client->page_fd());
      // And that of a former broker instance.
      if ((kind & 15) == 8) fds.push_back(client->page_fd());
    }
    return fds;
  }
  switch (kind & 15) {
    case 9:
      memory(kCursorBytes, 0);
      break;
    case 10:
      memory(kCursorBytes + (kind >> 4), kSeals);
      break;
    case 11:
      memory(kCursorBytes, kSeals);
      break;
    case 12: {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) == 0) {
        keep(ends[0]);
        keep(ends[1]);
      }
      break;
    }
    case 13:
      keep(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      break;
    case 14:
      // More than a message may have end the connection.
      for (int i = 0; i < kind >> 5; ++i) {
        if (i < kMessageFdsMax || client->MayMisbehave()) {
          keep(dup(STDERR_FILENO));
        }
      }
      break;
    default:
      break;
  }
  return fds;
}

void Course::Step() {
  const uint8_t step = input_.Byte();
  std::unique_ptr<Client>& client = clients_[(step >> 4) % kClientsMax];
  const int kind = step & 15;
  // Bits 6 and 7, where they mean nothing else: what comes next does not wait.
  const bool hasty = step >> 6 == 3;
  if (kind == 0 || client == nullptr || !client->connected()) {
    // A rank whose connection was taken from it goes by its death.
    if (client != nullptr) client->Leave();
    client = std::make_unique<Client>((step >> 6 & 1) != 0);
    if (kind == 0) return;
  }
  // While a request is under way another one breaks the protocol.
  if (client->waiting() && !client->MayMisbehave()) client->AwaitAnswer();
  switch (kind) {
    case 1:
    case 2:
    case 3: {
      const nlohmann::json request = Template("attach");
      client->Ask(request, Descriptors(client.get()));
      break;
    }
    case 4:
      client->Ask(Template("index"), {});
      break;
    case 5:
      client->Ask(Template("register"), {});
      break;
    case 6:
      client->Ask(Template(kOps[input_.Byte() % 8]), {});
      break;
    case 7: {
      // A request of which some fields are something else.
      nlohmann::json request = Template(kOps[input_.Byte() % std::size(kOps)]);
      for (int changes = 1 + input_.Byte() % 3; changes > 0; --changes) {
        const char* key = kKeys[input_.Byte() % std::size(kKeys)];
        request[key] = Value();
      }
      const std::vector<int> fds = Descriptors(client.get());
      if (!client->MayMisbehave()) break;
      client->Ask(request, fds);
      break;
    }
    case 8: {
      const std::string text(input_.Text(input_.Byte()));
      const std::vector<int> fds = Descriptors(client.get());
      if (client->MayMisbehave() && !Costly(text)) client->SendText(text, fds);
      break;
    }
    case 9:
      client->SendText(R"({"penstock":1,"op":"detach"})", {});
      break;
    case 10:
      if (client->MayMisbehave()) client->HangUp();
      break;
    case 11:
      client->Leave();
      break;
    case 12: {
      Cell cell;
      for (int i = step >> 6; i >= 0; --i) {
        if (client->held() < 2) (void)client->Take(&cell);
      }
      break;
    }
    case 13:
      client->Release();
      client->Wake();
      break;
    case 14:
      if (CursorPage* page = client->Tamper()) {
        const uint32_t number = input_.Byte() % kLeasesMax;
        LeaseRecord& lease = page->leases[number];
        Atomic<uint64_t>* const words[] = {&page->taken, &page->position,
                                           &page->released[number],
                                           &lease.generation, &lease.step};
        words[input_.Byte() % std::size(words)]->store(
            input_.Number(1 + input_.Byte() % 8));
        client->Wake();
      }
      break;
    case 15:
      client->AwaitAnswer();
      if (client->answer().is_object() && client->answer().contains("state")) {
        state_ = client->answer()["state"];
      }
      break;
  }
  if (client == nullptr || !client->connected()) return;
  if (!hasty && client->waiting()) {
    client->AwaitAnswer();
    return;
  }
  // The broker has seen it.
  TheBroker().Ask([] { return true; });
  client->Drain();
}

// A job that has a name waits for ranks that come in the place of dead ones.
void StopJobs() {
  Client client(false);
  client.Ask(RequestOf("jobs"), {});
  client.AwaitAnswer();
  const nlohmann::json jobs = client.answer()["jobs"];
  for (const nlohmann::json& job : jobs) {
    nlohmann::json stop = RequestOf("stop");
    stop.update({{"job", job["job"]}, {"now", true}});
    client.Ask(stop, {});
    client.AwaitAnswer();
  }
  client.Leave();
}

void AwaitQuiet() {
  const Clock::time_point begin = Clock::now();
  bool stopped = false;
  while (TheBroker().HasJobs()) {
    Require(Clock::now() < begin + kPatience, "a job ends with its ranks");
    if (!stopped && Clock::now() > begin + milliseconds(5)) {
      StopJobs();
      stopped = true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Check(Input input) {
  static uint64_t inputs = 0;
  static std::multiset<std::string> before;
  Course(input).Run();
  AwaitQuiet();
  if (inputs++ % kHonestEvery != 0) return;
  CheckHonestRank();
  AwaitQuiet();
  if (before.empty()) {
    std::this_thread::sleep_for(milliseconds(100));
    before = OpenDescriptors();
  }
  // Closed by another thread, soon.
  const Clock::time_point end = Clock::now() + kPatience;
  std::vector<std::string> more;
  for (;;) {
    const std::multiset<std::string> now = OpenDescriptors();
    more.clear();
    std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                        std::back_inserter(more));
    if (more.empty()) return;
    if (Clock::now() > end) break;
    std::this_thread::sleep_for(milliseconds(1));
  }
  for (const std::string& each : more) {
    std::fprintf(stderr, "open: %s\n", each.c_str());
  }
  Require(false, "no descriptor stays open");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(penstock::Input(data, size));
  return 0;
}
