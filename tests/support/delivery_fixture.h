// Shared by the whole-system tests of delivery: a broker, ranks in this
// process, ranks in processes that can be killed, and queries of the broker's
// status.
#ifndef TESTS_SUPPORT_DELIVERY_FIXTURE_H_
#define TESTS_SUPPORT_DELIVERY_FIXTURE_H_

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/penstock.hpp"
#include "common/message.h"
#include "gtest/gtest.h"
#include "tests/support/broker_process.h"

namespace penstock {

using Rows = std::vector<int64_t>;
using SampleSteps = std::vector<Rows>;   // of one rank
using Ranks = std::vector<SampleSteps>;  // by rank

// A batch of a `range` source as a rank saw it.
struct Taken {
  Rows rows;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t global_rows = 0;
  uint64_t skipped = 0;
  bool redelivered = false;
  int world_size = 0;  // the reader's, once it had the batch
};

inline Taken TakenOf(const Reader& reader, const Batch& batch) {
  const auto values = batch.get<int64_t>("value");
  return {{values.begin(), values.end()},
          batch.epoch(),
          batch.step(),
          batch.global_rows(),
          batch.skipped(),
          batch.redelivered(),
          reader.world_size()};
}

// The batches of a rank, to the end of the data or to an error.
struct Course {
  std::vector<Taken> taken;
  uint64_t epoch_ends = 0;
  int code = 0;
  std::string error;
};

inline SampleSteps StepsOf(const std::vector<Taken>& taken) {
  SampleSteps steps;
  for (const Taken& each : taken) steps.push_back(each.rows);
  return steps;
}

inline void Append(const std::vector<Taken>& taken, Rows* rows) {
  for (const Taken& each : taken) {
    rows->insert(rows->end(), each.rows.begin(), each.rows.end());
  }
}

inline Rows Sorted(Rows rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

// 0 to count - 1, `times` times each.
inline Rows Numbers(int64_t count, int times = 1) {
  Rows rows;
  for (int64_t i = 0; i < count; ++i) rows.insert(rows.end(), times, i);
  return rows;
}

// Takes batches to the end. Holds up to `hold` batches while it waits for
// another, and calls each with every batch while it is held.
inline Course RunToTheEnd(
    Reader& reader, size_t hold = 1,
    const std::function<void(const Taken&)>& each = [](const Taken&) {}) {
  Course course;
  std::deque<Batch> held;
  try {
    for (;;) {
      Batch batch;
      if (held.size() >= hold) held.pop_front();
      const Reader::Result result = reader.next(&batch);
      if (result == Reader::Result::kEndOfData) break;
      if (result == Reader::Result::kEndOfEpoch) {
        ++course.epoch_ends;
        continue;
      }
      course.taken.push_back(TakenOf(reader, batch));
      each(course.taken.back());
      held.push_back(std::move(batch));
    }
  } catch (const Error& error) {
    course.code = error.code();
    course.error = error.what();
  }
  return course;
}

// Those of a rank of the test's job.
inline Options OptionsFor(const std::string& spec, int rank, int world_size,
                          const std::string& socket) {
  Options options;
  options.spec = spec;
  options.rank = rank;
  options.world_size = world_size;
  options.socket = socket;
  options.job = testing::UnitTest::GetInstance()->current_test_info()->name();
  options.timeout_s = 60;
  return options;
}

class DeliveryTest : public testing::Test {
 protected:
  Options OptionsFor(const std::string& spec, int rank, int world_size) {
    return penstock::OptionsFor(spec, rank, world_size, broker_.socket());
  }

  static std::string RangeSpec(const std::string& range,
                               const std::string& rest) {
    return "dataset: numbers\nsource: {range: " + range + "}\n" + rest;
  }

  // Every rank to the end, each on a thread of its own.
  static std::vector<Course> RunAll(const std::vector<Options>& ranks,
                                    size_t hold = 1) {
    std::vector<Course> courses(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          Reader reader(ranks[i]);
          courses[i] = RunToTheEnd(reader, hold);
        } catch (const Error& error) {
          courses[i].code = error.code();
          courses[i].error = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return courses;
  }

  // Every rank's steps of all epochs, one after the other.
  Ranks TakeAll(const std::string& spec, int world_size,
                std::vector<int>* epochs_seen = nullptr) {
    std::vector<Options> options;
    for (int rank = 0; rank < world_size; ++rank) {
      options.push_back(OptionsFor(spec, rank, world_size));
    }
    Ranks ranks;
    for (const Course& course : RunAll(options)) {
      EXPECT_EQ(course.code, 0) << course.error;
      ranks.push_back(StepsOf(course.taken));
      if (epochs_seen != nullptr) {
        epochs_seen->push_back(static_cast<int>(course.epoch_ends));
      }
    }
    return ranks;
  }

  // The error of an attach; "" if it succeeds.
  static std::string AttachError(const Options& options, int* code = nullptr) {
    try {
      Reader reader(options);
      return "";
    } catch (const Error& error) {
      if (code != nullptr) *code = error.code();
      return error.what();
    }
  }

  // ---- queries of the broker

  // Sends the request on a new connection.
  nlohmann::json Ask(nlohmann::json request) {
    const StatusOr<Fd> socket = ConnectControl(broker_.socket());
    if (!socket.ok()) throw std::runtime_error(socket.status().message());
    StatusOr<Message> answer = Request(socket->get(), std::move(request));
    if (!answer.ok()) throw std::runtime_error(answer.status().message());
    return std::move(answer->json);
  }
  nlohmann::json Jobs() { return Ask({{"op", "status"}}).at("jobs"); }
  // The newest job of this name; null if there is none.
  nlohmann::json JobStatus(const std::string& name) {
    nlohmann::json found;
    for (nlohmann::json& job : Jobs()) {
      if (job.at("job") == name) found = std::move(job);
    }
    return found;
  }
  // Null if it has no such rank.
  static nlohmann::json RankOf(const nlohmann::json& job, int rank) {
    if (!job.contains("ranks")) return {};
    for (const nlohmann::json& each : job.at("ranks")) {
      if (each.at("rank") == rank) return each;
    }
    return {};
  }
  // Polls until the condition holds, for changes without an event.
  static void WaitUntil(const char* what, const std::function<bool()>& so) {
    const auto give_up =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!so()) {
      if (std::chrono::steady_clock::now() > give_up) {
        throw std::runtime_error(std::string("never: ") + what);
      }
      std::this_thread::yield();
    }
  }
  // Waits until this many batches are ready for the rank.
  void WaitUntilReady(const std::string& job, int rank, uint32_t ready) {
    WaitUntil("batches ready", [&] {
      const nlohmann::json status = RankOf(JobStatus(job), rank);
      return status.is_object() && status.at("ready") >= ready;
    });
  }

  BrokerProcess broker_;
};

// A rank in a process of its own that executes one command at a time. It forks,
// so create it before the test starts a thread.
class RankProcess {
 public:
  enum class What { kBatch, kEndOfEpoch, kEndOfData, kError };
  struct Event {
    What what = What::kError;
    Taken taken;
    int code = 0;
    std::string error;
  };

  // Starts to attach at once; Attached() waits for the result. enter: called in
  // its process before that (namespaces.h).
  explicit RankProcess(const Options& options,
                       const std::function<void()>& enter = nullptr) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      throw std::runtime_error("socketpair");
    }
    socket_ = pair[0];
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(pair[0]);
      if (enter) enter();
      Serve(pair[1], options);
      _exit(0);
    }
    close(pair[1]);
  }
  RankProcess(RankProcess&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        pid_(std::exchange(other.pid_, -1)) {}
  ~RankProcess() {
    Kill();
    if (socket_ >= 0) close(socket_);
  }

  pid_t pid() const { return pid_; }
  // Kills the process and waits for its end.
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    Join();
  }
  void Join() {
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

  // {"rank", "world_size", "incarnation", "epoch"} or {"code", "error"}.
  nlohmann::json Attached() { return Receive(); }
  // Takes a batch and holds it together with those it already holds.
  Event Next() {
    SendNext();
    return ReceiveNext();
  }
  void SendNext() { Send({{"do", "next"}}); }
  Event ReceiveNext() { return EventOf(Receive()); }
  // Releases the oldest it holds.
  void Release(int count) { Tell({{"do", "release"}, {"count", count}}); }
  // The newest.
  void ReleaseLast() { Tell({{"do", "release"}, {"count", -1}}); }
  std::string State() { return Tell({{"do", "state"}}).at("state"); }
  // Detaches with the batches it holds; its process ends.
  void Detach() {
    Tell({{"do", "detach"}});
    Join();
  }
  // Forks a child that inherits all its descriptors and lives as long as this
  // object.
  void ForkChild() { Tell({{"do", "fork"}}); }

  // Takes and releases batches to the end of the data or to an error, for which
  // Finished() waits. Several ranks may run at once.
  void Run() { Send({{"do", "run"}}); }
  Course Finished() {
    Course course;
    for (;;) {
      const Event event = EventOf(Receive());
      switch (event.what) {
        case What::kBatch:
          course.taken.push_back(event.taken);
          break;
        case What::kEndOfEpoch:
          ++course.epoch_ends;
          break;
        case What::kError:
          course.code = event.code;
          course.error = event.error;
          return course;
        case What::kEndOfData:
          return course;
      }
    }
  }

  nlohmann::json Tell(const nlohmann::json& order) {
    Send(order);
    return Receive();
  }
  void Send(const nlohmann::json& json) { Write(socket_, json); }
  nlohmann::json Receive() {
    pollfd entry{socket_, POLLIN, 0};
    if (poll(&entry, 1, 100'000) != 1) {
      throw std::runtime_error("the rank's process sent nothing");
    }
    return Read(socket_);
  }

 private:
  static void Write(int socket, const nlohmann::json& json) {
    const std::string text = json.dump();
    if (send(socket, text.data(), text.size(), MSG_NOSIGNAL) < 0) {
      throw std::runtime_error("the other process is gone");
    }
  }
  static nlohmann::json Read(int socket) {
    std::string text(128 * 1024, '\0');
    const ssize_t size = recv(socket, text.data(), text.size(), 0);
    if (size <= 0) throw std::runtime_error("the other process is gone");
    text.resize(static_cast<size_t>(size));
    return nlohmann::json::parse(text);
  }

  static Event EventOf(const nlohmann::json& json) {
    Event event;
    event.what = static_cast<What>(json.at("what").get<int>());
    if (event.what == What::kError) {
      event.code = json.at("code");
      event.error = json.at("error");
    }
    if (event.what != What::kBatch) return event;
    Taken& taken = event.taken;
    taken.rows = json.at("rows").get<Rows>();
    taken.epoch = json.at("epoch");
    taken.step = json.at("step");
    taken.global_rows = json.at("global_rows");
    taken.skipped = json.at("skipped");
    taken.redelivered = json.at("redelivered");
    taken.world_size = json.at("world_size");
    return event;
  }

  // In the child.
  static nlohmann::json ErrorOf(const Error& error) {
    return {{"what", static_cast<int>(What::kError)},
            {"code", error.code()},
            {"error", error.what()}};
  }
  static nlohmann::json NextOf(Reader& reader, std::deque<Batch>* held) {
    try {
      Batch batch;
      switch (reader.next(&batch)) {
        case Reader::Result::kEndOfEpoch:
          return {{"what", static_cast<int>(What::kEndOfEpoch)}};
        case Reader::Result::kEndOfData:
          return {{"what", static_cast<int>(What::kEndOfData)}};
        case Reader::Result::kBatch:
          break;
      }
      const Taken taken = TakenOf(reader, batch);
      held->push_back(std::move(batch));
      return {{"what", static_cast<int>(What::kBatch)},
              {"rows", taken.rows},
              {"epoch", taken.epoch},
              {"step", taken.step},
              {"global_rows", taken.global_rows},
              {"skipped", taken.skipped},
              {"redelivered", taken.redelivered},
              {"world_size", taken.world_size}};
    } catch (const Error& error) {
      return ErrorOf(error);
    }
  }
  static void Serve(int socket, const Options& options) {
    // Never destroyed: a rank that detaches with batches does not release them.
    std::deque<Batch>& held = *new std::deque<Batch>;
    try {
      Reader reader(options);
      Write(socket, {{"rank", reader.rank()},
                     {"world_size", reader.world_size()},
                     {"incarnation", reader.incarnation()},
                     {"epoch", reader.epoch()}});
      for (;;) {
        const nlohmann::json order = Read(socket);
        const std::string what = order.at("do");
        if (what == "next") {
          Write(socket, NextOf(reader, &held));
        } else if (what == "release") {
          const int count = order.at("count");
          if (count < 0) held.pop_back();
          for (int i = 0; i < count; ++i) held.pop_front();
          Write(socket, nlohmann::json::object());
        } else if (what == "state") {
          Write(socket, {{"state", reader.state()}});
        } else if (what == "run") {
          for (bool more = true; more;) {
            held.clear();
            const nlohmann::json event = NextOf(reader, &held);
            more = event.at("what") == static_cast<int>(What::kBatch) ||
                   event.at("what") == static_cast<int>(What::kEndOfEpoch);
            Write(socket, event);
          }
        } else if (what == "fork") {
          const pid_t child = fork();
          if (child == 0) {
            pollfd entry{socket, 0, 0};  // until the test is over
            poll(&entry, 1, -1);
            _exit(0);
          }
          Write(socket, nlohmann::json::object());
        } else {
          break;  // detach
        }
      }
    } catch (const Error& error) {
      Write(socket, ErrorOf(error));
      return;
    } catch (const std::exception&) {
      return;  // the test is over
    }
    Write(socket, nlohmann::json::object());
  }

  int socket_ = -1;
  pid_t pid_ = -1;
};

}  // namespace penstock
#endif  // TESTS_SUPPORT_DELIVERY_FIXTURE_H_
