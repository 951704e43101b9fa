// Question: what does handing a batch from one process to another cost, from
// "the slot is filled" to "the trainer has it", compared with the bare machine
// and with other mechanisms? Targets: with a peer that spins 1.5 x a raw ping
// of a cache line between the two cores; with one that sleeps 1.2 x a raw wake
// through a socket; within 10 % the same from 4 KiB to 256 MiB.
//
// Method: two processes, each pinned to a core of its own.
//   * Peer spins: half a round trip, p50 of round trips; each side hands its
//     batch over when it has taken the other's.
//   * Peer sleeps: from before the hand-over until it is taken, by the clock
//     that both share; p50. The giver waits until the kernel shows the taker
//     asleep, and 50 us more.
//   * Sizes: as "peer spins"; the bytes of batches that are not copied were
//     written before, the taker reads their first byte. What copies, copies.
// Penstock is measured from broker/delivery/feed.h's Publish (lease, cell,
// count, wake) to the return of penstock.h's penstock_next in the other
// process: the whole path in the rank, with the spinning or polling that
// penstockd chooses. The segment, its seals, the cursor page, the wake socket
// and the attach are the product's own; this benchmark only answers the attach
// instead of penstockd. Left out is the work of penstockd before a batch is
// ready (Delivery finds its rank, under the job's mutex) and after its release.
// Release and Reclaim are done by the side whose turn it is not. "ring.h alone"
// is Publish and TryTake in a loop, without the bookkeeping of a feed and a
// reader.
//
// Isolation: nothing else should run on the two cores; spinning p50 survives
// preemption (a round trip either has one or has not), waking does less. On
// a virtual machine the wake of an idle core goes through the host: its ratio
// holds, its microseconds are the host's. `nice -n -10` helps beside other
// work. Limits: iceoryx needs to run its own daemon (it is started here, and
// must not run already) and shared memory for its pools.
//
//   build/bench/handoff_benchmark [--runs N] [--cpus A,B] [--json]
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <array>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "bench/side_by_side.h"
#include "bench/two_processes.h"
#include "broker/delivery/feed.h"
#include "client/penstock.h"
#include "common/job_state.h"
#include "common/message.h"
#include "common/ring.h"
#include "common/segment.h"
#include "common/wake.h"

#ifdef PENSTOCK_WITH_ICEORYX
#include <iceoryx_hoofs/log/logmanager.hpp>
#include <iceoryx_posh/popo/untyped_publisher.hpp>
#include <iceoryx_posh/popo/untyped_subscriber.hpp>
#include <iceoryx_posh/popo/wait_set.hpp>
#include <iceoryx_posh/runtime/posh_runtime.hpp>
#endif

namespace penstock {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

enum class Waits { kSpinning, kAsleep };

template <typename T>
T Need(StatusOr<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return *std::move(result);
}
void NeedErrno(bool well, const char* what) {
  if (!well) {
    throw std::runtime_error(Format("{}: {}", what, strerror(errno)));
  }
}

void TouchFirstByte(const void* batch) {
  (void)*static_cast<const volatile char*>(batch);
}

std::string SizeName(uint64_t bytes) {
  return bytes < kMiB ? Format("{} KiB", bytes / kKiB)
                      : Format("{} MiB", bytes / kMiB);
}

// A mechanism that needs no tidying up.
struct Untidied {
  void Tidy() {}
};

// ---- the bare machine

// One word in one cache line that both write in turn.
class CacheLine : public Untidied {
 public:
  void Begin(int side) { side_ = static_cast<uint64_t>(side); }
  void Hand() {
    line_->word.store(2 * ++handed_ + side_, std::memory_order_release);
  }
  void Take() {
    ++taken_;
    while (line_->word.load(std::memory_order_acquire) !=
           2 * taken_ + (1 - side_)) {
    }
  }

 private:
  struct Line {
    alignas(128) std::atomic<uint64_t> word;
  };
  const Shared<Line> line_;
  uint64_t side_ = 0, handed_ = 0, taken_ = 0;
};

// A line for each direction: each has one writer, as a ring's count.
class TwoCacheLines : public Untidied {
 public:
  void Begin(int side) { side_ = side; }
  void Hand() {
    lines_->word[side_].value.store(++handed_, std::memory_order_release);
  }
  void Take() {
    ++taken_;
    while (lines_->word[1 - side_].value.load(std::memory_order_acquire) !=
           taken_) {
    }
  }

 private:
  struct alignas(128) Word {
    std::atomic<uint64_t> value;
  };
  struct Lines {
    Word word[2];
  };
  const Shared<Lines> lines_;
  int side_ = 0;
  uint64_t handed_ = 0, taken_ = 0;
};

// A byte through a socket pair, waited for with poll.
class SocketWake : public Untidied {
 public:
  SocketWake() {
    NeedErrno(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds_) == 0,
              "socketpair");
  }
  ~SocketWake() {
    close(fds_[0]);
    close(fds_[1]);
  }
  void Begin(int side) { fd_ = fds_[side]; }
  void Hand() {
    const char byte = 1;
    NeedErrno(send(fd_, &byte, 1, MSG_NOSIGNAL) == 1, "send");
  }
  void Take() {
    pollfd entry{fd_, POLLIN, 0};
    NeedErrno(poll(&entry, 1, -1) == 1, "poll");
    char byte;
    NeedErrno(recv(fd_, &byte, 1, 0) == 1, "recv");
  }

 private:
  int fds_[2];
  int fd_ = -1;
};

class FutexWake : public Untidied {
 public:
  void Begin(int side) { side_ = side; }
  void Hand() {
    std::atomic<uint32_t>& word = words_->word[side_].value;
    word.store(++handed_, std::memory_order_release);
    syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  void Take() {
    std::atomic<uint32_t>& word = words_->word[1 - side_].value;
    while (word.load(std::memory_order_acquire) == taken_) {
      syscall(SYS_futex, &word, FUTEX_WAIT, taken_, nullptr, nullptr, 0);
    }
    ++taken_;
  }

 private:
  struct alignas(128) Word {
    std::atomic<uint32_t> value;
  };
  struct Words {
    Word word[2];
  };
  const Shared<Words> words_;
  int side_ = 0;
  uint32_t handed_ = 0, taken_ = 0;
};

// ---- Penstock

// Publish and TryTake, as Feed and Reader call them, and nothing around them.
class RingAlone : public Untidied {
 public:
  void Begin(int side) {
    out_ = &memory_->end[side];
    in_ = &memory_->end[1 - side];
  }
  void Hand() {
    Cell cell{};
    cell.generation = published_ + 1;
    (void)Publish(out_->ring, out_->cursor, published_++, cell);
  }
  void Take() {
    Cell cell;
    while (TryTake(in_->ring, in_->cursor, &cell) != TakeResult::kTaken) {
    }
  }

 private:
  struct End {
    Ring ring;
    CursorPage cursor;
  };
  struct Memory {
    End end[2];
  };
  const Shared<Memory> memory_;
  End* out_ = nullptr;
  End* in_ = nullptr;
  uint64_t published_ = 0;
};

// The broker's side of one attached rank; answers its attach as penstockd does.
class OneRankBroker {
 public:
  // As a spec with prefetch: 2 and hold: 2 has it.
  static constexpr uint32_t kHold = 2;
  static constexpr uint32_t kLeases = 2 + kHold;
  // As ControlServer does, for the cases that every rank and worker has a
  // processor or not.
  static constexpr int64_t kSpinNs = 50'000;

  OneRankBroker(uint64_t batch_bytes, Waits waits)
      : spec_{{"batch", DType::kUint8, {static_cast<int64_t>(batch_bytes)}}},
        spin_ns_(waits == Waits::kSpinning ? kSpinNs : 0),
        segment_(Need(Segment::Create(
            Need(PlanSegment(spec_, /*rows_max=*/1, kLeases, /*seats=*/1)),
            /*broker_instance_id=*/1, /*job_id=*/1))) {
    for (uint32_t slot = 0; slot < kLeases; ++slot) {
      std::memset(segment_->feature(slot, 0), 1, batch_bytes);
      free_.push_back(slot);
    }
  }

  void Serve(int listener) {
    connection_ = Fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    NeedErrno(static_cast<bool>(connection_), "accept");
    pollfd entry{connection_.get(), POLLIN, 0};
    poll(&entry, 1, -1);
    const auto request = Need(ReceiveMessage(connection_.get()));
    if (!request) throw std::runtime_error("no attach request arrived");
    auto cursor =
        std::make_shared<Mapping>(Need(OpenCursor(request->fds.at(0).get())));
    WakePair wakes = Need(MakeWakePair());
    wake_ = std::move(wakes.broker);
    feed_.emplace(&segment_->ring(0),
                  std::shared_ptr<const CursorPage>(
                      cursor, reinterpret_cast<CursorPage*>(cursor->data())),
                  kLeases, wake_.get());
    constexpr uint64_t kRecords = uint64_t{1} << 40;  // it never ends
    nlohmann::json answer = OkReply();
    answer.update({{"dataset", "batches"},
                   {"job", "handoff"},
                   {"rank", 0},
                   {"seat", 0},
                   {"incarnation", 1},
                   {"token", 1},
                   {"hold", kHold},
                   {"records", kRecords},
                   {"steps_per_epoch", kRecords},
                   {"rows_per_epoch", kRecords},
                   {"epochs", 1},
                   {"position", 0},
                   {"handed_over", 0},
                   {"replaces", false},
                   {"phase", 0},
                   {"spin_ns", spin_ns_},
                   {"owed", nlohmann::json::array()},
                   {"owed_steps", nlohmann::json::array()},
                   {"element_spec", ElementSpecToJson(spec_)}});
    JobState state;
    state.dataset = "batches";
    state.records = kRecords;
    answer["state"] = JobStateToJson(state);
    const Status sent = SendMessage(connection_.get(), answer,
                                    {segment_->fd(), wakes.rank.get()});
    if (!sent.ok()) throw std::runtime_error(sent.message());
  }

  void Publish() {
    while (free_.empty()) Reclaim();
    const uint32_t slot = free_.back();
    free_.pop_back();
    Cell cell{};
    cell.slot_offset = segment_->slot_offset(slot);
    cell.rows = cell.valid_rows = cell.global_rows = 1;
    cell.step_in_epoch = cell.position = position_++;
    feed_->Publish(slot, /*redelivered=*/false, cell);
  }

  void Reclaim() {
    released_.clear();
    feed_->Reclaim(&released_);
    for (const Feed::Batch& each : released_) free_.push_back(each.slot);
  }

 private:
  const ElementSpec spec_;
  const int64_t spin_ns_;
  const std::unique_ptr<Segment> segment_;
  Fd connection_;
  Fd wake_;
  std::optional<Feed> feed_;
  std::vector<uint32_t> free_;
  std::vector<Feed::Batch> released_;
  uint64_t position_ = 0;
};

// Each process is the broker of one direction and the rank of the other.
class Penstock {
 public:
  Penstock(const std::string& folder, uint64_t bytes, Waits waits)
      : bytes_(bytes), waits_(waits) {
    for (int side = 0; side < 2; ++side) {
      paths_[side] = Format("{}/{}.sock", folder, side);
      unlink(paths_[side].c_str());
      listeners_[side] = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      sockaddr_un address{AF_UNIX, {}};
      paths_[side].copy(address.sun_path, sizeof(address.sun_path) - 1);
      NeedErrno(bind(listeners_[side].get(),
                     reinterpret_cast<const sockaddr*>(&address),
                     sizeof(address)) == 0 &&
                    listen(listeners_[side].get(), 1) == 0,
                "listen");
    }
  }

  void Begin(int side) {
    broker_.emplace(bytes_, waits_);
    if (side == 0) broker_->Serve(listeners_[0].get());
    penstock_options options = PENSTOCK_OPTIONS_INIT;
    options.dataset = "batches";
    options.job = "handoff";
    options.socket = paths_[1 - side].c_str();
    options.rank = 0;
    options.world_size = options.local_world_size = 1;
    NeedOk(penstock_attach(&options, &reader_));
    if (side == 1) broker_->Serve(listeners_[1].get());
  }

  void Hand() { broker_->Publish(); }
  void Take() {
    NeedOk(penstock_next(reader_, &batch_));
    TouchFirstByte(penstock_batch_data(batch_, 0));
  }
  void Tidy() {
    if (batch_ != nullptr) penstock_release(std::exchange(batch_, nullptr));
    broker_->Reclaim();
  }

 private:
  static void NeedOk(int code) {
    if (code != PENSTOCK_OK) throw std::runtime_error(penstock_error());
  }

  const uint64_t bytes_;
  const Waits waits_;
  std::array<std::string, 2> paths_;
  std::array<Fd, 2> listeners_;
  std::optional<OneRankBroker> broker_;
  penstock_reader* reader_ = nullptr;
  penstock_batch* batch_ = nullptr;
};

// ---- beside it

class BoostMessageQueue : public Untidied {
 public:
  BoostMessageQueue(uint64_t bytes, Waits waits) : waits_(waits), out_(bytes) {
    for (int side = 0; side < 2; ++side) {
      names_[side] = Format("penstock-handoff-{}-{}", getpid(), side);
      Queue::remove(names_[side].c_str());
      queues_[side] = std::make_unique<Queue>(boost::interprocess::create_only,
                                              names_[side].c_str(),
                                              /*max_num_msg=*/2, bytes);
    }
  }
  ~BoostMessageQueue() {
    for (const std::string& name : names_) Queue::remove(name.c_str());
  }
  void Begin(int side) {
    side_ = side;
    std::fill(out_.begin(), out_.end(), std::byte{1});
    in_.resize(out_.size());
  }
  void Hand() { queues_[side_]->send(out_.data(), out_.size(), 0); }
  void Take() {
    Queue& queue = *queues_[1 - side_];
    Queue::size_type got;
    unsigned priority;
    if (waits_ == Waits::kSpinning) {
      while (!queue.try_receive(in_.data(), in_.size(), got, priority)) {
      }
    } else {
      queue.receive(in_.data(), in_.size(), got, priority);
    }
    TouchFirstByte(in_.data());
  }

 private:
  using Queue = boost::interprocess::message_queue;
  const Waits waits_;
  std::array<std::string, 2> names_;
  std::array<std::unique_ptr<Queue>, 2> queues_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  int side_ = 0;
};

class Pipe : public Untidied {
 public:
  Pipe(uint64_t bytes, Waits waits) : waits_(waits), out_(bytes) {
    for (auto& ends : pipes_) {
      NeedErrno(pipe2(ends, O_CLOEXEC) == 0, "pipe");
      // As much as an unprivileged user gets: fewer turns for large batches.
      (void)fcntl(ends[1], F_SETPIPE_SZ, static_cast<int>(kMiB));
    }
  }
  ~Pipe() {
    for (const auto& ends : pipes_) {
      close(ends[0]);
      close(ends[1]);
    }
  }
  void Begin(int side) {
    write_ = pipes_[side][1];
    read_ = pipes_[1 - side][0];
    if (waits_ == Waits::kSpinning) {
      NeedErrno(fcntl(read_, F_SETFL, O_NONBLOCK) == 0, "fcntl");
    }
    std::fill(out_.begin(), out_.end(), std::byte{1});
    in_.resize(out_.size());
  }
  void Hand() {
    for (size_t sent = 0; sent < out_.size();) {
      const ssize_t n = write(write_, out_.data() + sent, out_.size() - sent);
      NeedErrno(n > 0, "write");
      sent += static_cast<size_t>(n);
    }
  }
  void Take() {
    for (size_t got = 0; got < in_.size();) {
      const ssize_t n = read(read_, in_.data() + got, in_.size() - got);
      if (n < 0 && errno == EAGAIN) continue;
      NeedErrno(n > 0, "read");
      got += static_cast<size_t>(n);
    }
    TouchFirstByte(in_.data());
  }

 private:
  const Waits waits_;
  int pipes_[2][2];
  int write_ = -1, read_ = -1;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

#ifdef PENSTOCK_WITH_ICEORYX
class Iceoryx {
 public:
  Iceoryx(uint64_t bytes, Waits waits)
      : bytes_(static_cast<uint32_t>(bytes)), waits_(waits) {}

  void Begin(int side) {
    iox::log::LogManager::GetLogManager().SetDefaultLogLevel(
        iox::log::LogLevel::kOff, iox::log::LogLevelOutput::kHideLogLevel);
    const auto string = [](const std::string& text) {
      return iox::capro::IdString_t(iox::cxx::TruncateToCapacity, text);
    };
    iox::runtime::PoshRuntime::initRuntime(
        string(Format("penstock-handoff-{}", getpid())));
    const auto topic = [&](int giver) -> iox::capro::ServiceDescription {
      return {string("Penstock"), string(std::to_string(getppid())),
              string(std::to_string(giver))};
    };
    publisher_.emplace(topic(side), iox::popo::PublisherOptions{});
    iox::popo::SubscriberOptions options;
    options.queueCapacity = 2;
    subscriber_.emplace(topic(1 - side), options);
    if (waits_ == Waits::kAsleep) {
      wait_set_.emplace();
      if (wait_set_
              ->attachState(*subscriber_, iox::popo::SubscriberState::HAS_DATA)
              .has_error()) {
        throw std::runtime_error("iceoryx: attachState");
      }
    }
    while (!publisher_->hasSubscribers() ||
           subscriber_->getSubscriptionState() !=
               iox::SubscribeState::SUBSCRIBED) {
      usleep(1000);
    }
  }

  void Hand() {
    auto loaned = publisher_->loan(bytes_);
    if (loaned.has_error()) throw std::runtime_error("iceoryx: no chunk");
    publisher_->publish(loaned.value());
  }
  void Take() {
    for (bool taken = false; !taken;) {
      if (wait_set_) wait_set_->wait();
      auto payload = subscriber_->take();
      taken = !payload.has_error();
      if (!taken) continue;
      payload_ = payload.value();
      TouchFirstByte(payload_);
    }
  }
  void Tidy() {
    if (payload_ != nullptr) {
      subscriber_->release(std::exchange(payload_, nullptr));
    }
  }

 private:
  const uint32_t bytes_;
  const Waits waits_;
  std::optional<iox::popo::UntypedPublisher> publisher_;
  std::optional<iox::popo::UntypedSubscriber> subscriber_;
  std::optional<iox::popo::WaitSet<>> wait_set_;
  const void* payload_ = nullptr;
};

// iceoryx's daemon, with pools for batches of the sizes.
class RouDi {
 public:
  static constexpr int kChunks = 6;  // two publishers: loaned, queued, read

  RouDi(const std::string& folder, const std::vector<uint64_t>& sizes) {
    const std::string path = folder + "/roudi.toml";
    {
      std::ofstream config(path);
      config << "[general]\nversion = 1\n[[segment]]\n";
      for (const uint64_t bytes : sizes) {
        config << "[[segment.mempool]]\nsize = " << bytes
               << "\ncount = " << kChunks << "\n";
      }
    }
    int ends[2];
    NeedErrno(pipe2(says, O_CLOEXEC) == 0, "pipe");
    pid_ = fork();
    NeedErrno(pid_ >= 0, "fork");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execl(PENSTOCK_ROUDI, "iox-roudi", "-c", path.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    output_ = Fd(ends[0]);
    char text[4096];
    for (ssize_t n; (n = read(output_.get(), text, sizeof(text))) > 0;) {
      log_.append(text, static_cast<size_t>(n));
      if ((ready_ = log_.find("RouDi is ready") != std::string::npos)) return;
    }
  }
  ~RouDi() {
    if (pid_ <= 0) return;
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  RouDi(const RouDi&) = delete;
  RouDi& operator=(const RouDi&) = delete;
  bool ready() const { return ready_; }
  const std::string& log() const { return log_; }

 private:
  pid_t pid_ = -1;
  Fd output_;  // open as long as it may write
  bool ready_ = false;
  std::string log_;
};
#endif  // PENSTOCK_WITH_ICEORYX

// Python's multiprocessing.Queue; its script measures as two_processes.h does.
double MultiprocessingQueueNs(Cores cores, uint64_t bytes, Waits waits,
                              int count) {
  const std::string command = Format(
      "/usr/bin/python3 {}/handoff_multiprocessing_queue.py --cpus {},{} "
      "--bytes {} --count {}{}",
      PENSTOCK_BENCH_SOURCE_DIR, cores.first, cores.second, bytes, count,
      waits == Waits::kAsleep ? " --asleep" : "");
  FILE* const script = popen(command.c_str(), "re");
  NeedErrno(script != nullptr, "popen");
  double ns = 0;
  const int got = std::fscanf(script, "%lf", &ns);
  if (pclose(script) != 0 || got != 1) {
    throw std::runtime_error("failed: " + command);
  }
  return ns;
}

// ---- the tables

// The first processors this process may use, of two different cores.
std::optional<Cores> TwoCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  const auto core_of = [](int cpu) {
    std::ifstream siblings(Format(
        "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string text;
    return std::getline(siblings, text) ? text : std::to_string(cpu);
  };
  std::optional<int> first;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    if (!first) {
      first = cpu;
    } else if (core_of(cpu) != core_of(*first)) {
      return Cores{*first, cpu};
    }
  }
  return std::nullopt;
}

uint64_t AvailableBytes() {
  std::ifstream info("/proc/meminfo");
  std::string key;
  for (uint64_t kib; info >> key >> kib; info.ignore(64, '\n')) {
    if (key == "MemAvailable:") return kib * kKiB;
  }
  return 0;
}

struct HandoffOptions : SideBySideOptions {
  Cores cores;
  std::chrono::milliseconds budget() const {
    return std::chrono::milliseconds(tiny ? 2 : 200);
  }
  int wakes() const { return tiny ? 3 : 1000; }
};

class HandoffTables {
 public:
  HandoffTables(const HandoffOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {
    sizes_ = {4 * kKiB, 64 * kKiB};
    if (!options.tiny) {
      sizes_.insert(sizes_.end(), {kMiB, 16 * kMiB, 256 * kMiB});
    }
    // Both directions' slots here, and as much again in iceoryx's pools.
    while (4 * OneRankBroker::kLeases * sizes_.back() > AvailableBytes()) {
      too_large_.push_back(sizes_.back());
      sizes_.pop_back();
    }
    StartIceoryx();
  }

  void Run() {
    SideBySide spinning("peer spins, one way, p50", "ns");
    AddRoundTrips<CacheLine>(&spinning, "one cache line");
    AddRoundTrips<TwoCacheLines>(&spinning, "two cache lines, a writer each");
    AddRoundTrips<RingAlone>(&spinning, "ring.h alone");
    AddPenstock(&spinning, "Penstock", kSmall);
    AddPeers(&spinning, kSmall, Waits::kSpinning);

    SideBySide asleep("peer sleeps, publish to taken, p50", "ns");
    AddWakes<SocketWake>(&asleep, "socket, poll");
    AddWakes<FutexWake>(&asleep, "futex");
    AddWakes<Penstock>(&asleep, "Penstock", folder_, kSmall, Waits::kAsleep);
    AddPeers(&asleep, kSmall, Waits::kAsleep);

    SideBySide sizes("by size of the batch, peer spins, one way, p50", "ns");
    for (const uint64_t bytes : sizes_) {
      AddPenstock(&sizes, "Penstock " + SizeName(bytes), bytes);
    }
    for (const uint64_t bytes : too_large_) {
      sizes.Absent("Penstock " + SizeName(bytes), "too little memory is free");
    }
    for (const uint64_t bytes : sizes_) {
      AddPeers(&sizes, bytes, Waits::kSpinning);
    }
    RunSideBySide({&spinning, &asleep, &sizes}, options_);
  }

 private:
  static constexpr uint64_t kSmall = 4 * kKiB;
  static constexpr uint64_t kCopiedMax = 16 * kMiB;

  void StartIceoryx() {
#ifdef PENSTOCK_WITH_ICEORYX
    roudi_ = std::make_unique<RouDi>(folder_, sizes_);
    if (!roudi_->ready()) {
      why_no_iceoryx_ = "iox-roudi did not start: " + roudi_->log();
      std::replace(why_no_iceoryx_.begin(), why_no_iceoryx_.end(), '\n', ' ');
    }
#else
    why_no_iceoryx_ = "not installed (apt install libiceoryx-posh-dev iceoryx)";
#endif
  }

  // A new Mechanism(arguments...) for each run.
  template <typename Mechanism, typename... Arguments>
  void AddRoundTrips(SideBySide* table, std::string name,
                     Arguments... arguments) {
    table->Add(std::move(name), [=, this] {
      Mechanism mechanism(arguments...);
      return HalfRoundTripNs(options_.cores, mechanism, options_.budget());
    });
  }
  template <typename Mechanism, typename... Arguments>
  void AddWakes(SideBySide* table, std::string name, Arguments... arguments) {
    table->Add(std::move(name), [=, this] {
      Mechanism mechanism(arguments...);
      return WakeNs(options_.cores, mechanism, options_.wakes());
    });
  }
  template <typename Mechanism>
  void AddPeer(SideBySide* table, std::string name, uint64_t bytes,
               Waits waits) {
    if (waits == Waits::kSpinning) {
      AddRoundTrips<Mechanism>(table, std::move(name), bytes, waits);
    } else {
      AddWakes<Mechanism>(table, std::move(name), bytes, waits);
    }
  }

  void AddPenstock(SideBySide* table, std::string name, uint64_t bytes) {
    AddRoundTrips<Penstock>(table, std::move(name), folder_, bytes,
                            Waits::kSpinning);
  }

  void AddPeers(SideBySide* table, uint64_t bytes, Waits waits) {
    const auto named = [&](const char* name) {
      return Format("{} {}", name, SizeName(bytes));
    };
#ifdef PENSTOCK_WITH_ICEORYX
    if (why_no_iceoryx_.empty()) {
      AddPeer<Iceoryx>(table, named("iceoryx"), bytes, waits);
    }
#endif
    if (!why_no_iceoryx_.empty()) {
      table->Absent(named("iceoryx"), why_no_iceoryx_);
    }
    if (bytes > kCopiedMax) {
      table->Absent(named("message_queue, pipe, mp.Queue"),
                    Format("copy: not run above {}", SizeName(kCopiedMax)));
      return;
    }
    AddPeer<BoostMessageQueue>(table, named("Boost message_queue"), bytes,
                               waits);
    AddPeer<Pipe>(table, named("pipe"), bytes, waits);
    const int count = options_.tiny             ? 3
                      : waits == Waits::kAsleep ? options_.wakes()
                      : bytes > kMiB            ? 20
                                                : 500;
    table->Add(named("multiprocessing.Queue"), [=, this] {
      return MultiprocessingQueueNs(options_.cores, bytes, waits, count);
    });
  }

  const HandoffOptions options_;
  const std::string folder_;
  std::vector<uint64_t> sizes_;
  std::vector<uint64_t> too_large_;
  std::string why_no_iceoryx_;  // "": it is available
#ifdef PENSTOCK_WITH_ICEORYX
  std::unique_ptr<RouDi> roudi_;
#endif
};

int Run(int argc, char** argv) {
  CommandLine line("handoff_benchmark",
                   "The cost of handing a batch to another process");
  HandoffOptions options;
  AddSideBySideOptions(line, &options);
  std::string cpus;
  line.AddOption("--cpus", &cpus, "The two processors: A,B");
  line.ParseOrExit(argc, argv);
  std::optional<Cores> cores = TwoCores();
  if (Cores given;
      std::sscanf(cpus.c_str(), "%d,%d", &given.first, &given.second) == 2) {
    cores = given;
  }
  if (!cores) {
    Print(stdout, "skipped: needs two cores, this process may use only one\n");
    return 0;
  }
  options.cores = *cores;

  std::string folder =
      (std::filesystem::temp_directory_path() / "handoff-XXXXXX").string();
  NeedErrno(mkdtemp(folder.data()) != nullptr, "mkdtemp");
  HandoffTables(options, folder).Run();
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  try {
    return penstock::Run(argc, argv);
  } catch (const std::exception& error) {
    penstock::Print(stderr, "{}\n", error.what());
    return 1;
  }
}
