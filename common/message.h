// The control plane: JSON datagrams on a SOCK_SEQPACKET Unix socket, with
// descriptors beside them.
//
// A request is {"penstock": 1, "op": ..., ...}; "penstock" is the protocol's
// version. Its answer is {"ok": true, ...} or {"ok": false, "code": N,
// "error": "..."} (StatusCode's number). Long requests send any number of
// {"event": "progress", "stage": "indexing", "done": n, "total": m} before the
// answer (total 0: unknown).
//
// requests/ lists the requests, their fields and answers.
#ifndef COMMON_MESSAGE_H_
#define COMMON_MESSAGE_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/deadline.h"
#include "common/fd.h"
#include "common/status.h"

namespace penstock {

inline constexpr int kProtocolVersion = 1;
// One datagram; a larger message travels in a sealed memfd.
inline constexpr size_t kMessageBytesMax = 64 * 1024;
// In a memfd: for example the list of all jobs of a busy host.
inline constexpr size_t kLargeMessageBytesMax = 16 * 1024 * 1024;
inline constexpr int kMessageFdsMax = 4;

inline constexpr char kDefaultSocketPath[] = "/run/penstock/penstock.sock";

struct Message {
  nlohmann::json json;
  std::vector<Fd> fds;
};

// ---- one datagram on a connected socket ------------------------------------

// Sends without waiting. ResourceExhausted: the peer does not read (its buffer
// is full); Unavailable: the peer is gone.
// ResourceExhausted also: it needs a memfd of more than large_bytes_max.
// *large_bytes: of its memfd, if it has one.
Status SendMessage(int socket, const nlohmann::json& json,
                   const std::vector<int>& fds = {},
                   size_t large_bytes_max = kLargeMessageBytesMax,
                   size_t* large_bytes = nullptr);

// Receives without waiting; nullopt if nothing is there. Unavailable: the peer
// is gone; InvalidArgument: it broke the protocol (empty, too long, not JSON,
// too many descriptors). Never trusts the peer. Received descriptors are
// close-on-exec. large_bytes_max bounds a message in a memfd.
StatusOr<std::optional<Message>> ReceiveMessage(
    int socket, size_t large_bytes_max = kLargeMessageBytesMax);

// ---- the asking side -------------------------------------------------------

// options.socket, else PENSTOCK_SOCKET, else the default path.
std::string SocketPath(const std::string& given);

// Connects. Errors name the socket, the cause and a remedy. DeadlineExceeded:
// the peer did not accept in time.
StatusOr<Fd> ConnectControl(const std::string& path,
                            Deadline deadline = std::nullopt);

// Sends a request (op and fields; the version is added) and waits for its
// answer. on_event is called with every event before the answer, and with an
// empty object after each kPause without an event and after a signal. It
// returns false to give up (Cancelled). An answer with "ok": false becomes its
// Status.
StatusOr<Message> Request(
    int socket, nlohmann::json request, const std::vector<int>& fds = {},
    Deadline deadline = std::nullopt,
    const std::function<bool(const nlohmann::json&)>& on_event = nullptr);

// The status that an answer has. Internal: it does not follow the protocol.
Status StatusOfAnswer(const nlohmann::json& answer);

// ---- the answering side ----------------------------------------------------

nlohmann::json OkReply();
nlohmann::json ErrorReply(const Status& status);

}  // namespace penstock
#endif  // COMMON_MESSAGE_H_
