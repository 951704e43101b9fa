// penstockd's command line: the declaration of its options, from which
// penstockd(8) is made too.
#ifndef BROKER_ARGUMENTS_H_
#define BROKER_ARGUMENTS_H_

#include <optional>
#include <string>
#include <vector>

#include "broker/workers/replay.h"
#include "common/command_line.h"

namespace penstock {

struct Arguments {
  std::string config;
  std::string socket;
  std::string workers;
  std::string memory_limit;
  std::string state_dir;
  bool check = false;
  std::optional<std::string> describe_spec;  // "": all keys
  bool describe_config = false;
  bool describe_messages = false;
  bool json = false;
  bool private_broker = false;
  std::vector<std::string> without_message;
  std::string replay;
  ReplayOptions replay_options;
  std::string replay_weights;
  std::string measure_reads;
  std::string write_indexes;
  std::string try_store;
  std::string out;
  double seconds = 3;
};

// *arguments outlives line.
void DeclareArguments(CommandLine& line, Arguments* arguments);

}  // namespace penstock
#endif  // BROKER_ARGUMENTS_H_
