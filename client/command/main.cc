// The `penstock` command: turns the results of subcommands into one line on
// stderr and an exit status.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "client/command/interrupt.h"
#include "client/command/subcommand.h"

namespace penstock {
namespace {

int Main(int argc, char** argv) {
  // All words after the `--` of `run` belong to the command that it starts;
  // CLI11 does not see them.
  std::vector<std::string> words;
  int own = 0;
  while (own < argc && std::string(argv[own]) != "--") ++own;
  for (int i = own + 1; i < argc; ++i) words.push_back(argv[i]);
  // Words after the `--` of other commands are not options: `stop -- -job`.
  const bool is_run = argc > 1 && std::string(argv[1]) == "run";

  CLI::App app;
  const std::vector<Subcommand> subcommands = DeclareCommand(app, words);
  try {
    app.parse(is_run ? own : argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    if (chosen.empty() && own > 1) {
      PrintError(Format("there is no {} '{}'; `penstock --help` lists them",
                        argv[1][0] == '-' ? "option" : "command", argv[1]));
      return kExitUsage;
    }
    if (!chosen.empty() && chosen.front()->get_name() == "run") {
      // In the order of the command line; the first that is not an option was
      // meant to be run.
      const std::vector<std::string> unknown = chosen.front()->remaining();
      if (!unknown.empty() && unknown.front()[0] != '-') {
        PrintError(Format(
            "write `--` before the command: `penstock run --ranks N -- {} ...`",
            unknown.front()));
        return kExitUsage;
      }
    }
    if (!is_run && own < argc && !app.remaining(true).empty()) {
      PrintError(
          Format("`penstock {}` takes no command after `--`; `penstock run` "
                 "does",
                 argv[1]));
      return kExitUsage;
    }
    PrintError(
        Format("{}; see `penstock{}{} --help`", error.what(),
               chosen.empty() ? "" : " ",
               chosen.empty() ? std::string() : chosen.front()->get_name()));
    return kExitUsage;
  }

  for (const Subcommand& subcommand : subcommands) {
    if (!subcommand.app->parsed()) continue;
    CatchInterrupts();
    return ExitStatus(subcommand.run());
  }
  return kExitUsage;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
