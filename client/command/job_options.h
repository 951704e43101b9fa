// Options of the subcommands that ask a running broker.
#ifndef CLIENT_COMMAND_JOB_OPTIONS_H_
#define CLIENT_COMMAND_JOB_OPTIONS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/command_line.h"

namespace penstock {

// --socket: an empty one is for RunningBroker() to find. *socket outlives the
// parse.
void AddSocketOption(Command command, std::string* socket);

// One job of a running broker.
struct JobOptions {
  std::string socket;
  std::string job;
  std::string dataset;          // empty: the name is of one dataset's jobs
  std::optional<uint32_t> uid;  // nothing: the name is of one user's jobs

  // --dataset, --uid and --socket; the caller adds the argument of the name.
  // *this outlives the parse.
  void AddTo(Command command);

  nlohmann::json Request(const char* op) const;
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_JOB_OPTIONS_H_
