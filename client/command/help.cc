// penstock help spec, help config: the broker knows what these files may hold;
// its program prints it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "client/command/private_broker.h"
#include "client/command/subcommand.h"

namespace penstock {
namespace {

struct HelpOptions {
  std::string topic;
  std::string name;
  bool json = false;
};

StatusOr<int> Help(const HelpOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string program, FindPenstockd());
  std::vector<std::string> words = {program};
  if (options.topic == "config") {
    if (!options.name.empty() || options.json) {
      PrintError("`penstock help config` takes nothing more");
      return kExitUsage;
    }
    words.push_back("--describe-config");
  } else {
    words.push_back("--describe-spec=" + options.name);
  }
  if (options.json) words.push_back("--json");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return ErrnoError(errno, "run '" + program + "'");
}

}  // namespace

Subcommand AddHelp(CLI::App& app) {
  CLI::App* const help = app.add_subcommand(
      "help",
      "Explain the keys of a spec, its sources and operations, or those of "
      "penstockd's configuration");
  const auto options = std::make_shared<HelpOptions>();
  help->add_option("TOPIC", options->topic, "spec or config")
      ->required()
      ->check(CLI::IsMember({"spec", "config"}));
  help->add_option("NAME", options->name,
                   "Of spec: a source, an operation, shuffle, batch or a crop");
  help->add_flag("--json", options->json,
                 "Of spec: all declarations, for programs");
  help->footer(
      "Examples:\n"
      "  penstock help spec\n"
      "  penstock help spec image_folder\n"
      "  penstock help config");
  return {help, [options] { return Help(*options); }};
}

}  // namespace penstock
