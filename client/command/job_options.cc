#include "client/command/job_options.h"

#include "common/message.h"

namespace penstock {

void AddSocketOption(Command command, std::string* socket) {
  command
      .AddOption("--socket", socket,
                 "Where the broker listens (default: PENSTOCK_SOCKET, else the "
                 "service's " +
                     std::string(kDefaultSocketPath) +
                     ", else that of your `penstock run`)")
      .Type("PATH");
}

void JobOptions::AddTo(Command command) {
  command.AddOption("--dataset", &dataset,
                    "Dataset of the job, where jobs of several have this name");
  command
      .AddOption("--uid", &uid,
                 "User of the job, where jobs of several have this name (for "
                 "root)")
      .Type("UID");
  AddSocketOption(command, &socket);
}

nlohmann::json JobOptions::Request(const char* op) const {
  nlohmann::json request = {{"op", op}, {"job", job}};
  if (!dataset.empty()) request["dataset"] = dataset;
  if (uid) request["uid"] = *uid;
  return request;
}

}  // namespace penstock
