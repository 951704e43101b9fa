#include "client/command/job_options.h"

#include <CLI/CLI.hpp>

#include "common/message.h"

namespace penstock {

void AddSocketOption(CLI::App* app, std::string* socket) {
  app->add_option("--socket", *socket,
                  "Where the broker listens (default: PENSTOCK_SOCKET, else " +
                      std::string(kDefaultSocketPath) + ")")
      ->type_name("PATH");
}

void JobOptions::AddTo(CLI::App* app) {
  app->add_option("--dataset", dataset,
                  "Dataset of the job, where jobs of several have this name");
  app->add_option("--uid", uid,
                  "User of the job, where jobs of several have this name (for "
                  "root)")
      ->type_name("UID");
  AddSocketOption(app, &socket);
}

nlohmann::json JobOptions::Request(const char* op) const {
  nlohmann::json request = {{"op", op}, {"job", job}};
  if (!dataset.empty()) request["dataset"] = dataset;
  if (uid) request["uid"] = *uid;
  return request;
}

}  // namespace penstock
