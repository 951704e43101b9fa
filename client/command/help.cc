// penstock help spec, config, messages: the broker knows what these files may
// hold and what it says itself; its program prints it.
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "client/command/subcommand.h"
#include "client/private_broker/private_broker.h"
#include "common/command_line.h"

namespace penstock {
namespace {

struct HelpOptions {
  std::string topic;
  std::vector<std::string> names;
  bool json = false;
};

StatusOr<int> Help(const Command& command, const HelpOptions& options) {
  if (options.topic.empty()) {
    if (options.json) {
      PrintError("`penstock help` has no JSON; `penstock help spec` has");
      return kExitUsage;
    }
    Print(stdout, "{}", command.Help());
    return 0;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string program, FindPenstockd());
  std::vector<std::string> words = {program};
  const bool own = options.topic == "config" || options.topic == "messages";
  if (own) {
    if (!options.names.empty() || options.json) {
      PrintError(
          Format("`penstock help {}` takes nothing more", options.topic));
      return kExitUsage;
    }
    words.push_back("--describe-" + options.topic);
  } else {
    // `penstock help pack` is `penstock help spec pack`.
    std::vector<std::string> names = options.names;
    if (options.topic != "spec") names.insert(names.begin(), options.topic);
    words.push_back("--describe-spec=" + JoinText(names, ","));
  }
  if (options.json) words.push_back("--json");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return ErrnoError(errno, "run '" + program + "'");
}

}  // namespace

Subcommand AddHelp(Command parent) {
  Command help = parent.AddCommand(
      "help",
      "Explain the keys of a spec, its sources and operations, those of "
      "penstockd's configuration, or the messages of its log");
  const auto options = std::make_shared<HelpOptions>();
  help.AddOption("TOPIC", &options->topic,
                 "spec, config or messages, or a NAME of spec; none: the list "
                 "of commands");
  help.AddOption("NAME", &options->names,
                 "Of spec: sources, operations, or keys");
  help.AddFlag("--json", &options->json,
               "Of spec: all declarations, for programs");
  help.SetFooter(R"(
Examples:
  penstock help spec
  penstock help spec image_folder
  penstock help pack
  penstock help config
  penstock help messages)");
  return {help, [parent, options] { return Help(parent, *options); }};
}

}  // namespace penstock
