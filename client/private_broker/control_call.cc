#include "client/private_broker/control_call.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "client/private_broker/interrupt.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_folder.h"
#include "client/private_broker/progress_bar.h"
#include "common/message.h"

namespace penstock {
namespace {

// The broker reports every second on longer work.
constexpr int kSilence_s = 10;

Status WaitForSocket(int socket) {
  pollfd entry{socket, POLLIN, 0};
  for (;;) {
    const int ready = poll(&entry, 1, kSilence_s * 1000);
    if (ready > 0) return OkStatus();
    if (ready == 0) {
      return DeadlineExceededError(
          "the broker has not answered for {} s: it is stopped, or its machine "
          "is overloaded (systemctl status penstockd)",
          kSilence_s);
    }
    if (errno != EINTR) return ErrnoError(errno, "poll");
  }
}

// A folder of a broker that has ended may be another user's by now.
bool IsOfThisUser(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == geteuid();
}

class Progress {
 public:
  void Show(const nlohmann::json& event) {
    if (TextField(event, "event") != "progress") return;
    if (const std::string next = TextField(event, "stage"); next != stage_) {
      stage_ = next;
      bar_.emplace(stage_, "");
    }
    if (bar_) {
      bar_->Update(CountField(event, "done").value_or(0),
                   CountField(event, "total").value_or(0));
    }
  }

 private:
  std::optional<ProgressBar> bar_;
  std::string stage_;
};

}  // namespace

StatusOr<std::string> RunningBroker(const std::string& given) {
  const std::string path = SocketPath(given);
  if (!given.empty() || path != kDefaultSocketPath ||
      ConnectControl(path).ok()) {
    return path;
  }
  const std::vector<std::string> sockets = PrivateFolder::AnnouncedSockets();
  if (sockets.empty()) return path;
  if (sockets.size() > 1) {
    return FailedPreconditionError(
        "{} brokers of yours are running; name one of them: --socket {}",
        sockets.size(), JoinText(sockets, ", --socket "));
  }
  static bool told = false;
  if (!std::exchange(told, true)) {
    std::cerr << "penstock: asking your own broker, " << sockets[0] << "\n";
  }
  return sockets[0];
}

// Not Request of common/message.h, which can only wait for this socket.
StatusOr<nlohmann::json> CallBroker(const std::string& socket_path,
                                    const nlohmann::json& request,
                                    const SocketWait& wait) {
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string path, RunningBroker(socket_path));
  PENSTOCK_ASSIGN_OR_RETURN(const Fd socket, ConnectControl(path));
  if (socket_path.empty() && path != SocketPath("") &&
      !IsOfThisUser(socket.get())) {
    return UnavailableError("{}: your broker has ended", path);
  }
  const InterruptEndsSocket ends(socket.get());
  nlohmann::json versioned = request;
  versioned["penstock"] = kProtocolVersion;
  const Status sent = SendMessage(socket.get(), versioned);
  // A peer that has closed may have sent the reason, which is read below.
  if (!sent.ok() && sent.code() != StatusCode::kUnavailable) return sent;
  Progress progress;
  for (;;) {
    PENSTOCK_RETURN_IF_ERROR(wait ? wait(socket.get())
                                  : WaitForSocket(socket.get()));
    PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<Message> message,
                              ReceiveMessage(socket.get()));
    if (!message) continue;
    if (FieldOf(message->json, "event").is_null()) {
      PENSTOCK_RETURN_IF_ERROR(StatusOfAnswer(message->json));
      return std::move(message->json);
    }
    progress.Show(message->json);
  }
}

}  // namespace penstock
