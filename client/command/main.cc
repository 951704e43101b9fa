// The `penstock` command: registers the subcommands, and turns their results
// into one line on stderr and an exit status.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "client/command/interrupt.h"
#include "client/command/subcommand.h"
#include "client/penstock.h"

namespace penstock {
namespace {

int Main(int argc, char** argv) {
  // All words after `--` belong to the command that `run` starts; CLI11 does
  // not see them.
  std::vector<std::string> words;
  int own = 0;
  while (own < argc && std::string(argv[own]) != "--") ++own;
  for (int i = own + 1; i < argc; ++i) words.push_back(argv[i]);

  CLI::App app("Penstock: one data loader per host, many trainer ranks.",
               "penstock");
  app.set_version_flag("--version",
                       std::string("penstock ") + penstock_version());
  app.require_subcommand(1);
  app.footer(
      "Begin with:\n"
      "  penstock check train.yaml\n"
      "  penstock bench --dataset train.yaml --ranks 4 --verify\n"
      "  penstock run --dataset train.yaml --ranks 4 -- ./trainer\n\n"
      "`penstock COMMAND --help` has each command's options and examples;\n"
      "`penstock help spec` the keys of a spec.");
  const Subcommand subcommands[] = {
      AddRun(app, words), AddBroker(app),   AddBench(app),
      AddCheck(app),      AddIndex(app),    AddRegister(app),
      AddUnregister(app), AddDatasets(app), AddJobs(app),
      AddStatus(app),     AddTop(app),      AddView(app),
      AddMetrics(app),    AddDoctor(app),   AddTrace(app),
      AddState(app),      AddEvict(app),    AddStop(app),
      AddWorkers(app),    AddPeek(app),     AddHelp(app),
  };
  try {
    app.parse(own, argv);
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
    PrintError(
        Format("{}; see `penstock{}{} --help`", error.what(),
               chosen.empty() ? "" : " ",
               chosen.empty() ? std::string() : chosen.front()->get_name()));
    return kExitUsage;
  }

  for (const Subcommand& subcommand : subcommands) {
    if (!subcommand.app->parsed()) continue;
    if (own < argc && subcommand.app->get_name() != "run") {
      PrintError(
          Format("`penstock {}` takes no command after `--`; `penstock "
                 "run` does",
                 subcommand.app->get_name()));
      return kExitUsage;
    }
    CatchInterrupts();
    return ExitStatus(subcommand.run());
  }
  return kExitUsage;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
