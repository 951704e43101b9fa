// penstock workers: how many worker threads a running broker has.
#include <cstdint>
#include <string>

#include "client/command/job_options.h"
#include "client/command/subcommand.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/json_field.h"
#include "common/command_line.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr uint32_t kWorkersMost = 4096;  // the broker's own limit

struct WorkersOptions {
  std::string socket;
  std::string count;  // "auto", a number
};

StatusOr<int> SetWorkers(const WorkersOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint32_t count,
                            ParseCountOrAuto(options.count, kWorkersMost));
  PENSTOCK_ASSIGN_OR_RETURN(
      const nlohmann::json answer,
      CallBroker(options.socket, {{"op", "workers"}, {"workers", count}}));
  Print(stdout, "{} {}\n",
        Counted(CountField(answer, "workers").value_or(0), "worker"),
        Printable(TextField(answer, "workers_chosen")));
  return 0;
}

}  // namespace

Subcommand AddWorkers(Command parent) {
  Command workers = parent.AddCommand(
      "workers", "Set the number of workers of a running broker");
  const auto options = std::make_shared<WorkersOptions>();
  workers
      .AddOption("COUNT", &options->count,
                 "Number of workers, or auto: one per processor")
      .Required()
      .Check([](const std::string& text) {
        return ParseCountOrAuto(text, kWorkersMost).status().message();
      });
  AddSocketOption(workers, &options->socket);
  workers.SetFooter(R"(
Jobs continue. `penstock status` shows how busy the workers are. The
number holds until the broker ends; `workers:` in its configuration
applies from its next start. Only root and the broker's own user may
set it.

Examples:
  penstock workers 6
  penstock workers auto)");
  return {workers, [options] { return SetWorkers(*options); }};
}

}  // namespace penstock
