// What `penstock doctor` looks at: the machine, the data's file systems, object
// stores and a running broker, for what holds up or endangers jobs.
//
// Examine is a pure function of Machine: files are read below `root`, anything
// else is in a field, so that tests can make up a machine. A file that is
// missing or unreadable yields no finding.
#ifndef CLIENT_COMMAND_DOCTOR_H_
#define CLIENT_COMMAND_DOCTOR_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace penstock {

enum class Severity {
  kFine,
  kAdvice,   // it works; the change gains something
  kProblem,  // something does not work, or will not
};

struct Finding {
  std::string subject;  // "huge pages"
  Severity severity = Severity::kFine;
  std::string found;
  std::string change;  // what to do; "" if kFine
  std::string gain;    // what for; "" if kFine
};

struct Machine {
  std::string root;        // of /proc, /sys and the rest; "": this machine's
  std::string release;     // of the kernel: "6.1.0-18-amd64"
  int io_uring_error = 0;  // errno of io_uring_setup; 0: it works
  std::string version;     // of this command
  std::string user;        // for messages
  std::string socket;      // where the broker should listen
  Status answered;         // of the request for its status
  nlohmann::json status;   // the answer; null: none
  std::vector<std::string> paths;  // of data, absolute
  // What `penstockd --try-store` found of each address.
  std::vector<nlohmann::json> stores;
  // Why this user cannot read a path; "": it can.
  std::function<std::string(const std::string&)> unreadable;
  struct Space {
    uint64_t free_bytes = 0;
    uint64_t bytes = 0;
  };
  std::function<std::optional<Space>(const std::string&)> space;
};

// This machine. paths: of files, as the user wrote them.
Machine ThisMachine(const std::string& socket,
                    const std::vector<std::string>& paths);

std::vector<Finding> Examine(const Machine& machine);

}  // namespace penstock
#endif  // CLIENT_COMMAND_DOCTOR_H_
