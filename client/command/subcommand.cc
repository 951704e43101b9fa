#include "client/command/subcommand.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "client/penstock.h"
#include "client/private_broker/interrupt.h"
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

std::vector<Subcommand> DeclareCommand(CommandLine& line,
                                       const std::vector<std::string>& words) {
  line.SetText("Penstock: one data loader per host, many trainer ranks.");
  line.SetVersion(std::string("penstock ") + penstock_version());
  line.RequireCommand();
  line.SetFooter(
      "Begin with:\n"
      "  penstock check train.yaml\n"
      "  penstock bench --dataset train.yaml --ranks 4 --verify\n"
      "  penstock run --dataset train.yaml --ranks 4 -- ./trainer\n\n"
      "`penstock COMMAND --help` has each command's options and examples;\n"
      "`penstock help spec` the keys of a spec.");
  return {
      AddRun(line, words), AddBroker(line),   AddBench(line),
      AddCheck(line),      AddIndex(line),    AddRegister(line),
      AddUnregister(line), AddDatasets(line), AddJobs(line),
      AddStatus(line),     AddTop(line),      AddView(line),
      AddMetrics(line),    AddDoctor(line),   AddExplain(line),
      AddTrace(line),      AddState(line),    AddEvict(line),
      AddStop(line),       AddJob(line),      AddWorkers(line),
      AddPeek(line),       AddAnalyze(line),  AddFilter(line),
      AddConvert(line),    AddRecipe(line),   AddLink(line),
      AddHelp(line),
  };
}

}  // namespace penstock
