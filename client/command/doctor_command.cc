// penstock doctor: what holds up or endangers jobs on this machine.
#include <pwd.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/command/doctor.h"
#include "client/command/job_options.h"
#include "client/command/penstockd_output.h"
#include "client/command/subcommand.h"
#include "client/penstock.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/progress_bar.h"
#include "common/command_line.h"
#include "common/message.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr const char* kSeverityNames[] = {"fine", "advice", "problem"};

struct DoctorOptions {
  std::string socket;
  std::vector<std::string> data;
  double seconds = 5;
  bool json = false;
};

// Through penstockd, whose process fetches: with its Python and credentials.
StatusOr<nlohmann::json> TryStore(const std::string& url, double seconds) {
  ProgressBar bar("trying " + url, "");
  uint64_t rounds = 0;
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::vector<char> output,
      PenstockdOutput({"--try-store", url, "--seconds", Format("{}", seconds)},
                      [&](size_t) { bar.Update(++rounds, 0); }));
  nlohmann::json found = nlohmann::json::parse(output, nullptr, false);
  if (!found.is_object()) return InternalError("penstockd told nothing");
  return found;
}

// The errno of making a ring; 0: it works. An invalid flag is refused after
// all questions of permission.
int ProbeIoUring() {
  errno = 0;
  // No parameters: EFAULT where io_uring may be used.
  syscall(SYS_io_uring_setup, 1, nullptr);
  return errno == EFAULT || errno == EINVAL ? 0 : errno;
}

std::string UserName() {
  const passwd* const user = getpwuid(geteuid());
  return user == nullptr ? std::to_string(geteuid()) : user->pw_name;
}

StatusOr<int> Diagnose(const DoctorOptions& options) {
  std::vector<std::string> paths;
  std::vector<nlohmann::json> stores;
  for (const std::string& each : options.data) {
    if (each.find("://") == std::string::npos) {
      paths.push_back(each);
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(nlohmann::json found,
                              TryStore(each, options.seconds));
    stores.push_back(std::move(found));
  }
  Machine machine = ThisMachine(options.socket, paths);
  machine.stores = stores;
  const std::vector<Finding> findings = Examine(machine);
  const auto of = [&](Severity severity) {
    return static_cast<uint64_t>(std::count_if(
        findings.begin(), findings.end(),
        [severity](const Finding& each) { return each.severity == severity; }));
  };
  const uint64_t problems = of(Severity::kProblem);
  const uint64_t advice = of(Severity::kAdvice);
  if (options.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const Finding& each : findings) {
      list.push_back(
          {{"subject", each.subject},
           {"severity", kSeverityNames[static_cast<size_t>(each.severity)]},
           {"found", each.found},
           {"change", each.change},
           {"gain", each.gain}});
    }
    nlohmann::json json = {
        {"findings", list}, {"problems", problems}, {"advice", advice}};
    if (!stores.empty()) json["stores"] = stores;
    PrintJson(json);
  } else {
    for (const Finding& each : findings) {
      Print(stdout, "{:<8} {}: {}\n",
            kSeverityNames[static_cast<size_t>(each.severity)],
            Printable(each.subject), Printable(each.found));
      if (each.severity == Severity::kFine) continue;
      Print(stdout, "         change: {}\n         for: {}\n",
            Printable(each.change), Printable(each.gain));
    }
    Print(stdout, "{}, {}\n", Counted(problems, "problem"),
          Counted(advice, "piece of advice", "pieces of advice"));
  }
  return problems > 0 ? kExitFailure : 0;
}

}  // namespace

Machine ThisMachine(const std::string& socket,
                    const std::vector<std::string>& paths) {
  Machine machine;
  utsname name{};
  if (uname(&name) == 0) machine.release = name.release;
  machine.io_uring_error = ProbeIoUring();
  machine.version = penstock_version();
  machine.user = UserName();
  const StatusOr<std::string> running = RunningBroker(socket);
  machine.socket = running.ok() ? *running : SocketPath(socket);
  StatusOr<nlohmann::json> status = CallBroker(socket, {{"op", "status"}});
  if (status.ok()) {
    machine.status = *std::move(status);
  } else {
    machine.answered = status.status();
  }
  for (const std::string& path : paths) {
    std::error_code error;
    const std::filesystem::path real =
        std::filesystem::weakly_canonical(path, error);
    machine.paths.push_back(error ? path : real.string());
  }
  machine.unreadable = [](const std::string& path) -> std::string {
    std::error_code error;
    const bool folder = std::filesystem::is_directory(path, error);
    if (access(path.c_str(), folder ? R_OK | X_OK : R_OK) == 0) return "";
    return strerror(errno);
  };
  machine.space = [](const std::string& path) -> std::optional<Machine::Space> {
    struct statvfs found {};
    if (statvfs(path.c_str(), &found) != 0) return std::nullopt;
    return Machine::Space{uint64_t{found.f_bavail} * found.f_frsize,
                          uint64_t{found.f_blocks} * found.f_frsize};
  };
  return machine;
}

Subcommand AddDoctor(Command parent) {
  Command doctor = parent.AddCommand(
      "doctor", "Look at this machine, and say what to change for what gain");
  const auto options = std::make_shared<DoctorOptions>();
  doctor.AddOption("DATA", &options->data,
                   "Files or folders of data, whose file systems are looked "
                   "at; addresses of object stores, which are read from");
  AddSocketOption(doctor, &options->socket);
  doctor
      .AddOption("--seconds", &options->seconds,
                 "For how long a store is read from (default: 5)")
      .Type("N")
      .InRange(0.5, 600.0);
  doctor.AddFlag("--json", &options->json, "Print one JSON object");
  doctor.SetFooter(R"(
Changes nothing. The exit status is 1 if there is a problem: something
does not work, or will not; advice alone is 0.

Examples:
  penstock doctor
  penstock doctor /data/imagenet --json
  penstock doctor s3://bucket/train)");
  return {doctor, [options] { return Diagnose(*options); }};
}

}  // namespace penstock
