#include "common/message.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "common/packet.h"

namespace penstock {
namespace {

// Marks a message whose JSON travels in a memfd, the first of the fds.
constexpr char kLargeKey[] = "large_bytes";
constexpr int kSealsOfMessage =
    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

StatusOr<Fd> TextInMemfd(const std::string& text) {
  Fd fd(memfd_create("penstock message", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoError(errno, "memfd_create");
  if (!WriteWholly(fd.get(), text)) {
    return ErrnoError(errno, "write to a memfd");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSealsOfMessage) != 0) {
    return ErrnoError(errno, "seal a memfd");
  }
  return fd;
}

StatusOr<std::string> TextFromMemfd(int fd, uint64_t bytes, size_t bytes_max) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat info;
  if (seals < 0 || (seals & kSealsOfMessage) != kSealsOfMessage ||
      fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes ||
      bytes > bytes_max) {
    return InvalidArgumentError(
        "a large message is not a sealed memfd of {} "
        "bytes",
        bytes);
  }
  std::string text(bytes, '\0');
  if (!ReadWholly(fd, text.data(), bytes)) {
    return InvalidArgumentError("a large message cannot be read");
  }
  return text;
}

// Parses JSON of another process; bounds its depth before the recursive parser
// runs.
StatusOr<nlohmann::json> ParseForeignJson(const std::string& text) {
  constexpr int kDepthMax = 32;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDepthMax) {
        return InvalidArgumentError("a message is nested deeper than {}",
                                    kDepthMax);
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    return InvalidArgumentError("a message is not a JSON object");
  }
  return json;
}

Status SendDatagram(int socket, const std::string& text,
                    const std::vector<int>& fds) {
  iovec iov{const_cast<char*>(text.data()), text.size()};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMessageFdsMax)] = {};
  if (!fds.empty()) {
    assert(fds.size() <= static_cast<size_t>(kMessageFdsMax));
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* cmsg = CMSG_FIRSTHDR(&header);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(cmsg), fds.data(), sizeof(int) * fds.size());
  }
  while (sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    switch (errno) {
      case EINTR:
        continue;
      case EAGAIN:
        return ResourceExhaustedError("the peer does not read its messages");
      case ECONNRESET:
      case EPIPE:
      case ENOTCONN:
        return UnavailableError("the peer has closed the connection");
      default:
        return ErrnoError(errno, "send a message");
    }
  }
  return OkStatus();
}

// Describes what is missing when a socket is not found.
std::string MissingOf(const std::string& socket) {
  const auto folder = std::filesystem::path(socket).parent_path();
  std::error_code error;
  return folder.empty() || std::filesystem::exists(folder, error)
             ? "such socket"
             : Format("folder '{}'", folder.string());
}

// True also if that is not known.
bool IsSocket(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  return type == std::filesystem::file_type::socket ||
         type == std::filesystem::file_type::none ||
         type == std::filesystem::file_type::not_found;
}

}  // namespace

Status SendMessage(int socket, const nlohmann::json& json,
                   const std::vector<int>& fds, size_t large_bytes_max,
                   size_t* large_bytes) {
  // Replaces bytes that are not UTF-8 (file names) instead of throwing.
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() <= kMessageBytesMax) return SendDatagram(socket, text, fds);
  if (text.size() > kLargeMessageBytesMax ||
      fds.size() + 1 > static_cast<size_t>(kMessageFdsMax)) {
    return InternalError("a message of {} bytes is too large", text.size());
  }
  if (text.size() > large_bytes_max) {
    return ResourceExhaustedError("a message has {} bytes, {} are left",
                                  text.size(), large_bytes_max);
  }
  if (large_bytes != nullptr) *large_bytes = text.size();
  PENSTOCK_ASSIGN_OR_RETURN(const Fd memfd, TextInMemfd(text));
  std::vector<int> all = {memfd.get()};
  all.insert(all.end(), fds.begin(), fds.end());
  return SendDatagram(socket, nlohmann::json{{kLargeKey, text.size()}}.dump(),
                      all);
}

StatusOr<std::optional<Message>> ReceiveMessage(int socket,
                                                size_t large_bytes_max) {
  std::string text(kMessageBytesMax, '\0');
  std::optional<Packet> packet = ReceivePacket(socket, text, kMessageFdsMax);
  // Reported once if the peer closed while messages of ours were unread; what
  // it sent before (why it closed) can still be read.
  if (!packet && errno == ECONNRESET)
    packet = ReceivePacket(socket, text, kMessageFdsMax);
  if (!packet) {
    switch (errno) {
      case EAGAIN:
        return std::optional<Message>();
      case ECONNRESET:
      case ENOTCONN:
        return UnavailableError("the peer has closed the connection");
      default:
        return ErrnoError(errno, "receive a message");
    }
  }
  Message message;
  message.fds = std::move(packet->fds);
  // A closed SEQPACKET peer and an empty datagram look alike; neither is a
  // message.
  if (packet->bytes == 0) {
    return UnavailableError("the peer has closed the connection");
  }
  if ((packet->flags & MSG_CTRUNC) != 0 &&
      message.fds.size() < kMessageFdsMax) {
    return ErrnoError(EMFILE, "receive a message with descriptors");
  }
  if ((packet->flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      message.fds.size() > kMessageFdsMax) {
    return InvalidArgumentError(
        "a message is longer than {} bytes or has more than {} descriptors",
        kMessageBytesMax, kMessageFdsMax);
  }
  text.resize(packet->bytes);
  PENSTOCK_ASSIGN_OR_RETURN(message.json, ParseForeignJson(text));
  if (message.json.contains(kLargeKey)) {
    const nlohmann::json& size = message.json[kLargeKey];
    if (!size.is_number_unsigned() || message.fds.empty()) {
      return InvalidArgumentError("a large message without its memfd");
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::string large,
        TextFromMemfd(message.fds[0].get(), size.get<uint64_t>(),
                      large_bytes_max));
    message.fds.erase(message.fds.begin());
    PENSTOCK_ASSIGN_OR_RETURN(message.json, ParseForeignJson(large));
  }
  return std::optional<Message>(std::move(message));
}

std::string SocketPath(const std::string& given) {
  if (!given.empty()) return given;
  const char* path = std::getenv("PENSTOCK_SOCKET");
  return path != nullptr && *path != '\0' ? path : kDefaultSocketPath;
}

StatusOr<Fd> ConnectControl(const std::string& path, Deadline deadline) {
  constexpr char kWayOut[] =
      "start the trainer by `penstock run`, or in Python pass "
      "`autostart=True`; or start the service (systemctl start "
      "penstockd.socket), or set PENSTOCK_SOCKET to the socket of another "
      "broker";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError(
        "socket path '{}' is longer than the {} bytes a Unix socket may have",
        path, sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError(errno, "socket");
  if (deadline) {
    // Also bounds connect, which waits while the backlog is full.
    const auto left = std::max<std::chrono::microseconds>(
        std::chrono::duration_cast<std::chrono::microseconds>(
            *deadline - std::chrono::steady_clock::now()),
        std::chrono::milliseconds(1));
    timeval timeout{};
    timeout.tv_sec = static_cast<time_t>(left.count() / 1'000'000);
    timeout.tv_usec = static_cast<suseconds_t>(left.count() % 1'000'000);
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  }
  while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                 sizeof(address)) != 0) {
    switch (errno) {
      case EINTR:
        continue;
      case ENOENT:
        return NotFoundError("no broker at '{}': there is no {}; {}", path,
                             MissingOf(path), kWayOut);
      case ECONNREFUSED:
        if (!IsSocket(path)) {
          return InvalidArgumentError(
              "'{}' is not a socket: name the one at which the broker listens "
              "(--socket, PENSTOCK_SOCKET)",
              path);
        }
        return UnavailableError("no broker listens at '{}'; {}", path, kWayOut);
      case EAGAIN:
        return DeadlineExceededError(
            "the broker at '{}' did not accept the connection in time", path);
      case EACCES:
        return PermissionDeniedError(
            "this user may not use socket '{}'; join its group (usually "
            "'penstock') and log in again, or use `penstock run`",
            path);
      default:
        return ErrnoError(errno, "connect to '" + path + "'");
    }
  }
  return fd;
}

StatusOr<Message> Request(
    int socket, nlohmann::json request, const std::vector<int>& fds,
    Deadline deadline,
    const std::function<bool(const nlohmann::json&)>& on_event) {
  request["penstock"] = kProtocolVersion;
  const Status sent = SendMessage(socket, request, fds);
  // A peer that closed may have sent the reason, which is read below.
  if (!sent.ok() && sent.code() != StatusCode::kUnavailable) return sent;
  for (;;) {
    pollfd entry{socket, POLLIN, 0};
    int64_t timeout_ms = on_event ? kPause.count() : -1;
    if (deadline) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          *deadline - std::chrono::steady_clock::now());
      timeout_ms = std::clamp<int64_t>(
          left.count(), 0, on_event ? timeout_ms : 24 * 3600 * 1000);
    }
    const int ready = poll(&entry, 1, static_cast<int>(timeout_ms));
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll");
    if (ready <= 0) {
      if (deadline && std::chrono::steady_clock::now() >= *deadline) {
        return DeadlineExceededError("the broker did not answer '{}' in time",
                                     request.value("op", ""));
      }
      // The caller decides about a signal (Ctrl-C).
      if (on_event && !on_event(nlohmann::json::object())) {
        return CancelledError("interrupted");
      }
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<Message> message,
                              ReceiveMessage(socket));
    if (!message) continue;
    const nlohmann::json& json = message->json;
    if (json.contains("event")) {
      if (on_event && !on_event(json)) return CancelledError("interrupted");
      continue;
    }
    PENSTOCK_RETURN_IF_ERROR(StatusOfAnswer(json));
    return std::move(*message);
  }
}

Status StatusOfAnswer(const nlohmann::json& answer) {
  if (answer.value("ok", nlohmann::json()) == true) return OkStatus();
  const nlohmann::json code = answer.value("code", nlohmann::json());
  const nlohmann::json text = answer.value("error", nlohmann::json());
  if (!code.is_number_integer() || code.get<int>() == 0 || !text.is_string()) {
    return InternalError("the broker's answer does not follow the protocol");
  }
  return Status(static_cast<StatusCode>(code.get<int>()),
                text.get<std::string>());
}

nlohmann::json OkReply() { return {{"ok", true}}; }

nlohmann::json ErrorReply(const Status& status) {
  return {{"ok", false},
          {"code", static_cast<int>(status.code())},
          {"error", status.message()}};
}

}  // namespace penstock
