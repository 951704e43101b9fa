// The `penstock` command: turns the results of subcommands into one line on
// stderr and an exit status.

#include "client/command/subcommand.h"
#include "client/private_broker/interrupt.h"
#include "common/command_line.h"

namespace penstock {
namespace {

int Main(int argc, char** argv) {
  // All words after the `--` of `run` belong to the command that it starts;
  // the parser does not see them.
  std::vector<std::string> words;
  int own = 0;
  while (own < argc && std::string(argv[own]) != "--") ++own;
  for (int i = own + 1; i < argc; ++i) words.push_back(argv[i]);
  // Words after the `--` of other commands are not options: `stop -- -job`.
  const bool is_run = argc > 1 && std::string(argv[1]) == "run";

  CommandLine line("penstock");
  const std::vector<Subcommand> subcommands = DeclareCommand(line, words);
  const StatusOr<bool> parsed = line.Parse(is_run ? own : argc, argv);
  if (!parsed.ok()) {
    const std::vector<Command> given = line.given();
    const std::vector<std::string> unknown = line.unknown();
    if (given.empty() && own > 1) {
      PrintError(Format("there is no {} '{}'; `penstock --help` lists them",
                        argv[1][0] == '-' ? "option" : "command", argv[1]));
    } else if (is_run && !unknown.empty() && unknown.front()[0] != '-') {
      // In the order of the command line; the first that is not an option was
      // meant to be run.
      PrintError(Format(
          "write `--` before the command: `penstock run --ranks N -- {} ...`",
          unknown.front()));
    } else if (!is_run && own < argc && !unknown.empty()) {
      PrintError(
          Format("`penstock {}` takes no command after `--`; `penstock run` "
                 "does",
                 argv[1]));
    } else {
      PrintError(
          Format("{}; see `{} --help`", parsed.status().message(),
                 given.empty() ? line.name() : given.front().full_name()));
    }
    return kExitUsage;
  }
  if (!*parsed) return 0;

  for (const Subcommand& subcommand : subcommands) {
    if (!subcommand.command.parsed()) continue;
    CatchInterrupts();
    return ExitStatus(subcommand.run());
  }
  return kExitUsage;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
