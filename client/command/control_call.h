// One question to a broker, waited for in the foreground: a progress bar shows
// the broker's events, Ctrl-C ends the wait.
#ifndef CLIENT_COMMAND_CONTROL_CALL_H_
#define CLIENT_COMMAND_CONTROL_CALL_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/status.h"

namespace penstock {

// Waits until the socket can be read from; an error ends the call with it.
using SocketWait = std::function<Status(int socket)>;

// The fields of the answer. Errors: those of ConnectControl, Request and wait;
// Cancelled when a signal came. wait is for a caller that has other things to
// do meanwhile; without one it is a poll, and DeadlineExceeded after 10 s
// without a word.
StatusOr<nlohmann::json> CallBroker(const std::string& socket_path,
                                    const nlohmann::json& request,
                                    const SocketWait& wait = nullptr);

// CallBroker with the socket known: a private broker's or a running one's.
using BrokerCall =
    std::function<StatusOr<nlohmann::json>(const nlohmann::json& request)>;

}  // namespace penstock
#endif  // CLIENT_COMMAND_CONTROL_CALL_H_
