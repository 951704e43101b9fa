// A subcommand of `penstock`: its command line and its function.
//
// Exit statuses: 0 success, 1 failure, 2 wrong command line, 128 + N ended by
// signal N; `run` also passes on its command's own.
#ifndef CLIENT_COMMAND_SUBCOMMAND_H_
#define CLIENT_COMMAND_SUBCOMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "common/status.h"

namespace CLI {
class App;
}

namespace penstock {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

struct Subcommand {
  CLI::App* app;
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
std::vector<Subcommand> DeclareCommand(CLI::App& app,
                                       const std::vector<std::string>& words);

Subcommand AddRun(CLI::App& app, const std::vector<std::string>& words);
Subcommand AddBroker(CLI::App& app);
Subcommand AddBench(CLI::App& app);
Subcommand AddCheck(CLI::App& app);
Subcommand AddIndex(CLI::App& app);
Subcommand AddHelp(CLI::App& app);
Subcommand AddRegister(CLI::App& app);
Subcommand AddUnregister(CLI::App& app);
Subcommand AddDatasets(CLI::App& app);
Subcommand AddJobs(CLI::App& app);
Subcommand AddStatus(CLI::App& app);
Subcommand AddTop(CLI::App& app);
Subcommand AddView(CLI::App& app);
Subcommand AddTrace(CLI::App& app);
Subcommand AddDoctor(CLI::App& app);
Subcommand AddExplain(CLI::App& app);
Subcommand AddMetrics(CLI::App& app);
Subcommand AddState(CLI::App& app);
Subcommand AddEvict(CLI::App& app);
Subcommand AddStop(CLI::App& app);
Subcommand AddJob(CLI::App& app);
Subcommand AddWorkers(CLI::App& app);
Subcommand AddPeek(CLI::App& app);
Subcommand AddAnalyze(CLI::App& app);
Subcommand AddFilter(CLI::App& app);
Subcommand AddRecipe(CLI::App& app);

}  // namespace penstock
#endif  // CLIENT_COMMAND_SUBCOMMAND_H_
