// penstock help spec: the broker knows what a spec may hold; its program prints
// it.
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
  std::vector<std::string> words = {program, "--describe-spec=" + options.name};
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
      "help", "Explain the keys of a spec, its sources and operations");
  const auto options = std::make_shared<HelpOptions>();
  help->add_option("TOPIC", options->topic, "spec")
      ->required()
      ->check(CLI::IsMember({"spec"}));
  help->add_option("NAME", options->name,
                   "A source, an operation, shuffle, batch or a crop");
  help->add_flag("--json", options->json, "All declarations, for programs");
  help->footer(
      "Examples:\n"
      "  penstock help spec\n"
      "  penstock help spec image_folder");
  return {help, [options] { return Help(*options); }};
}

}  // namespace penstock
