// Who may read what: the configuration's `data`, or what the asking user could
// read without the broker.
#ifndef BROKER_REGISTRY_DATA_POLICY_H_
#define BROKER_REGISTRY_DATA_POLICY_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/io/file_access.h"
#include "common/status.h"

namespace penstock {

// An entry of `data`.
struct DataRule {
  std::string path;
  std::vector<std::string> as;      // further paths of it
  std::vector<std::string> users;   // and
  std::vector<std::string> groups;  // both empty: all users
  bool functions = false;
  bool operator==(const DataRule&) const = default;
};
ValueType<std::vector<DataRule>> DataRules();

// A list of names or numbers of users.
ValueType<std::vector<std::string>> UserNames();
// NotFound: there is no such user.
StatusOr<uid_t> UserNumber(const std::string& name);

// Immutable: any thread may use it.
class DataPolicy {
 public:
  // For a private broker, which reads as its user: everything.
  DataPolicy() = default;
  // For a service; without rules each user's own rights. Opens the folders.
  // NotFound names a folder, user or group that is not there; InvalidArgument
  // two folders of which one is below the other. Each begins with "data[0]: ".
  static StatusOr<DataPolicy> Open(const std::vector<DataRule>& rules);

  // runs_functions: the dataset runs functions of users, which may do with its
  // files what the broker may.
  std::shared_ptr<const FileAccess> AccessOf(uid_t uid,
                                             bool runs_functions) const;

 private:
  Status Add(const DataRule& rule);

  struct Rule {
    std::vector<std::shared_ptr<const DataRoot>> roots;  // one for each path
    bool everybody = false;
    std::vector<uid_t> users;
    std::vector<gid_t> groups;
    bool functions = false;
  };
  bool everything_ = true;
  std::vector<Rule> rules_;
};

}  // namespace penstock
#endif  // BROKER_REGISTRY_DATA_POLICY_H_
