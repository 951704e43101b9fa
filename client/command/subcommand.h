// A subcommand of `penstock`: its command line and its function.
//
// Exit statuses: 0 success, 1 failure, 2 wrong command line, 128 + N ended by
// signal N; `run` also passes on its command's own.
#ifndef CLIENT_COMMAND_SUBCOMMAND_H_
#define CLIENT_COMMAND_SUBCOMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "common/status.h"

namespace penstock {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kRanksMax = 4096;

struct Subcommand {
  Command command;
  // The exit status, or an error for main to print. Cancelled means that a
  // signal ended it.
  std::function<StatusOr<int>()> run;
};

// "penstock: MESSAGE" on stderr, one line.
void PrintError(const std::string& message);

// The exit status for the result of a subcommand; prints its error.
int ExitStatus(const StatusOr<int>& result);

// Declares the whole command line, of which penstock(1) is made too. words:
// those after `--` on the command line.
std::vector<Subcommand> DeclareCommand(CommandLine& line,
                                       const std::vector<std::string>& words);

Subcommand AddRun(Command parent, const std::vector<std::string>& words);
Subcommand AddBroker(Command parent);
Subcommand AddBench(Command parent);
Subcommand AddCheck(Command parent);
Subcommand AddIndex(Command parent);
Subcommand AddHelp(Command parent);
Subcommand AddRegister(Command parent);
Subcommand AddUnregister(Command parent);
Subcommand AddDatasets(Command parent);
Subcommand AddJobs(Command parent);
Subcommand AddStatus(Command parent);
Subcommand AddTop(Command parent);
Subcommand AddView(Command parent);
Subcommand AddTrace(Command parent);
Subcommand AddDoctor(Command parent);
Subcommand AddExplain(Command parent);
Subcommand AddMetrics(Command parent);
Subcommand AddState(Command parent);
Subcommand AddEvict(Command parent);
Subcommand AddStop(Command parent);
Subcommand AddJob(Command parent);
Subcommand AddLink(Command parent);
Subcommand AddWorkers(Command parent);
Subcommand AddPeek(Command parent);
Subcommand AddAnalyze(Command parent);
Subcommand AddFilter(Command parent);
Subcommand AddConvert(Command parent);
Subcommand AddRecipe(Command parent);

}  // namespace penstock
#endif  // CLIENT_COMMAND_SUBCOMMAND_H_
