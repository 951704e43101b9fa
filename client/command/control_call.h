// One question to a broker, waited for in the foreground: a progress bar shows
// the broker's events, Ctrl-C ends the wait.
#ifndef CLIENT_COMMAND_CONTROL_CALL_H_
#define CLIENT_COMMAND_CONTROL_CALL_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/status.h"

namespace penstock {

// The fields of the answer. Errors: those of ConnectControl and Request;
// Cancelled when a signal came.
StatusOr<nlohmann::json> CallBroker(const std::string& socket_path,
                                    const nlohmann::json& request);

// CallBroker with the socket known: a private broker's or a running one's.
using BrokerCall =
    std::function<StatusOr<nlohmann::json>(const nlohmann::json& request)>;

}  // namespace penstock
#endif  // CLIENT_COMMAND_CONTROL_CALL_H_
