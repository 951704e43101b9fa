// One request to a broker in the foreground: a progress bar shows the broker's
// events, Ctrl-C ends the wait.
#ifndef CLIENT_PRIVATE_BROKER_CONTROL_CALL_H_
#define CLIENT_PRIVATE_BROKER_CONTROL_CALL_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/status.h"

namespace penstock {

// Waits until the socket can be read; an error ends the call with it.
using SocketWait = std::function<Status(int socket)>;

// The socket of the broker that a command asks: given, if not empty; else
// PENSTOCK_SOCKET; else the service's, where it takes this user's connections;
// else that of this user's one `penstock run` or `penstock broker`, which
// standard error tells once. FailedPrecondition: several of those run. For one
// thread.
StatusOr<std::string> RunningBroker(const std::string& given);

// Returns the fields of the answer of the broker that listens there; "": where
// RunningBroker says. Errors: those of RunningBroker, ConnectControl, Request
// and wait; Cancelled after a signal. wait is for a caller that has other work
// meanwhile; the default polls, and returns DeadlineExceeded after 10 s of
// silence.
StatusOr<nlohmann::json> CallBroker(const std::string& socket_path,
                                    const nlohmann::json& request,
                                    const SocketWait& wait = nullptr);

// CallBroker bound to a socket: a private broker's or a running one's.
using BrokerCall =
    std::function<StatusOr<nlohmann::json>(const nlohmann::json& request)>;

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_CONTROL_CALL_H_
