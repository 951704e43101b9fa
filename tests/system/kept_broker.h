// A penstockd that is restarted when it dies, with a descriptor store and a
// state directory, as systemd and `penstock run` keep one.
#ifndef TESTS_SYSTEM_KEPT_BROKER_H_
#define TESTS_SYSTEM_KEPT_BROKER_H_

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/private_broker/private_broker.h"
#include "common/message.h"

namespace penstock {

class KeptBroker {
 public:
  // program: what is started in place of penstockd, and becomes it.
  explicit KeptBroker(std::vector<std::string> arguments = {},
                      const std::string& program = PENSTOCK_BUILD_DIR
                      "/broker/penstockd")
      : stop_(eventfd(0, EFD_CLOEXEC)) {
    std::promise<std::string> socket;
    std::future<std::string> ready = socket.get_future();
    // The broker is used by one thread only.
    keeper_ = std::thread([this, program, arguments = std::move(arguments),
                           socket = std::move(socket)]() mutable {
      setenv("PENSTOCKD", program.c_str(), 1);
      PrivateBrokerOptions options;
      options.arguments = std::move(arguments);
      auto broker = PrivateBroker::Start(options);
      if (!broker.ok()) {
        socket.set_exception(std::make_exception_ptr(
            std::runtime_error(broker.status().message())));
        return;
      }
      socket.set_value((*broker)->socket());
      (void)(*broker)->TendUntil(stop_.get(), [](const std::string&) {});
    });
    try {
      socket_ = ready.get();
    } catch (...) {
      keeper_.join();
      throw;
    }
  }
  ~KeptBroker() {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof(one));
    keeper_.join();
  }
  KeptBroker(const KeptBroker&) = delete;

  const std::string& socket() const { return socket_; }

  nlohmann::json Ask(nlohmann::json request) const {
    for (;;) {
      const StatusOr<Fd> socket = ConnectControl(socket_);
      if (!socket.ok()) throw std::runtime_error(socket.status().message());
      StatusOr<Message> answer = Request(socket->get(), request);
      if (answer.ok()) return std::move(answer->json);
      // It died during the request; the next instance answers.
      if (answer.status().code() != StatusCode::kUnavailable) {
        throw std::runtime_error(answer.status().message());
      }
    }
  }
  pid_t pid() const { return Ask({{"op", "ping"}}).at("pid").get<pid_t>(); }
  // Returns when the next instance answers.
  void Kill(int signal = SIGKILL) {
    const pid_t former = pid();
    kill(former, signal);
    while (pid() == former) std::this_thread::yield();
  }

 private:
  Fd stop_;
  std::string socket_;
  std::thread keeper_;
};

}  // namespace penstock
#endif  // TESTS_SYSTEM_KEPT_BROKER_H_
