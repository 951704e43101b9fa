#include "client/command/subcommand.h"

#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "client/command/interrupt.h"
#include "client/penstock.h"
#include "common/printable.h"

namespace penstock {

void PrintError(const std::string& message) {
  // One write, because ranks and the broker share stderr.
  const std::string line = "penstock: " + PrintableLines(message) + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int ExitStatus(const StatusOr<int>& result) {
  if (!result.ok()) {
    PrintError(result.status().message());
    const int signal = InterruptSignal();
    return result.status().code() == StatusCode::kCancelled && signal != 0
               ? 128 + signal
               : kExitFailure;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    // The reader, such as `head`, has closed the pipe: as if SIGPIPE ended it.
    pollfd out{STDOUT_FILENO, 0, 0};
    if (poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0) {
      return 128 + SIGPIPE;
    }
    PrintError("cannot write to standard output");
    return kExitFailure;
  }
  return *result;
}

std::vector<Subcommand> DeclareCommand(CLI::App& app,
                                       const std::vector<std::string>& words) {
  app.name("penstock");
  app.description("Penstock: one data loader per host, many trainer ranks.");
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
  return {
      AddRun(app, words), AddBroker(app),   AddBench(app),
      AddCheck(app),      AddIndex(app),    AddRegister(app),
      AddUnregister(app), AddDatasets(app), AddJobs(app),
      AddStatus(app),     AddTop(app),      AddView(app),
      AddMetrics(app),    AddDoctor(app),   AddExplain(app),
      AddTrace(app),      AddState(app),    AddEvict(app),
      AddStop(app),       AddJob(app),      AddWorkers(app),
      AddPeek(app),       AddAnalyze(app),  AddFilter(app),
      AddRecipe(app),     AddHelp(app),
  };
}

}  // namespace penstock
