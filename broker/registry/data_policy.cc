#include "broker/registry/data_policy.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "broker/declare/declaration.h"
#include "broker/io/file_error.h"
#include "broker/io/stores.h"

namespace penstock {
namespace {

constexpr size_t kRulesMax = 1024;
constexpr size_t kNamesMax = 4096;
constexpr size_t kNamesOfFolderMax = 64;

bool IsBelow(const std::string& path, const std::string& folder) {
  return path == folder || folder == "/" || path.starts_with(folder + "/");
}

Status CheckBeside(const std::string& one, const std::string& other) {
  if (!IsBelow(one, other) && !IsBelow(other, one)) return OkStatus();
  return InvalidArgumentError(
      "{} and {}: one is below the other; name folders beside each other", one,
      other);
}

bool IsAccountName(std::string_view text) {
  return !text.empty() && text.find('\0') == text.npos;
}

// The number in text, or that of the account with this name.
template <typename Id>
std::optional<Id> IdOf(const std::string& text,
                       std::optional<Id> (*named)(const std::string&)) {
  Id id = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), id);
  if (error == std::errc() && end == text.data() + text.size()) return id;
  return named(text);
}

std::optional<uid_t> UserNamed(const std::string& name) {
  const passwd* const found = getpwnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional(found->pw_uid);
}

std::optional<gid_t> GroupNamed(const std::string& name) {
  const group* const found = getgrnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional(found->gr_gid);
}

const Declaration<DataRule>& Declared() {
  static const auto declared =
      Declaration<DataRule>("data",
                            "A folder or address, and who may read in it.")
          .Example("{path: /data/imagenet, groups: [vision]}")
          .Required("path", &DataRule::path, PathOrAddress(),
                    "the folder, or s3://bucket/prefix")
          .Optional("as", &DataRule::as,
                    OneOrList(Path(), "a path", kNamesOfFolderMax),
                    "further paths by which datasets may name it: where "
                    "containers mount it")
          .Optional("users", &DataRule::users, UserNames(),
                    "who may read there; without users and groups, everybody "
                    "who may connect")
          .Optional("groups", &DataRule::groups,
                    List(Text("a group's name or number", IsAccountName), 0,
                         kNamesMax, "a list of groups"),
                    "likewise, all users in them")
          .Optional("functions", &DataRule::functions, Bool(),
                    "datasets that read there may run functions (python_path, "
                    "plugin_dir)");
  return declared;
}

}  // namespace

ValueType<std::vector<std::string>> UserNames() {
  return List(Text("a user's name or number", IsAccountName), 0, kNamesMax,
              "a list of users");
}

StatusOr<uid_t> UserNumber(const std::string& name) {
  const auto uid = IdOf<uid_t>(name, UserNamed);
  if (!uid) return NotFoundError("no user '{}'", name);
  return *uid;
}

ValueType<std::vector<DataRule>> DataRules() {
  return List(MappingOf(Declared()), 0, kRulesMax,
              Format("a list of at most {} folders and addresses", kRulesMax));
}

StatusOr<DataPolicy> DataPolicy::Open(const std::vector<DataRule>& rules) {
  DataPolicy policy;
  policy.everything_ = false;
  for (size_t i = 0; i < rules.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(
        policy.Add(rules[i]).Prepend(Format("data[{}]", i)));
  }
  return policy;
}

Status DataPolicy::Add(const DataRule& each) {
  Rule rule;
  std::vector<std::string> paths = {each.path};
  paths.insert(paths.end(), each.as.begin(), each.as.end());
  const bool remote = IsAddress(each.path);
  if (remote) {
    while (paths[0].ends_with('/')) paths[0].pop_back();
    if (!each.as.empty()) {
      return InvalidArgumentError("{}: an address has no other paths (`as`)",
                                  each.path);
    }
  }
  for (const std::string& path : paths) {
    auto root = std::make_shared<DataRoot>();
    root->path = path;
    root->real = remote ? path : each.path;
    if (!remote) {
      root->folder =
          Fd(open(each.path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      if (!root->folder) return OpenError(errno, each.path);
    }
    // Where the outer one leads, its users would read what the inner one
    // keeps from them.
    for (const Rule& other : rules_) {
      for (const auto& taken : other.roots) {
        PENSTOCK_RETURN_IF_ERROR(CheckBeside(taken->path, path));
        PENSTOCK_RETURN_IF_ERROR(CheckBeside(taken->real, root->real));
      }
    }
    for (const auto& taken : rule.roots) {
      PENSTOCK_RETURN_IF_ERROR(CheckBeside(taken->path, path));
    }
    rule.roots.push_back(std::move(root));
  }
  rule.everybody = each.users.empty() && each.groups.empty();
  rule.functions = each.functions;
  for (const std::string& name : each.users) {
    const StatusOr<uid_t> uid = UserNumber(name);
    if (!uid.ok()) return uid.status().Prepend(each.path);
    rule.users.push_back(*uid);
  }
  for (const std::string& name : each.groups) {
    const auto gid = IdOf<gid_t>(name, GroupNamed);
    if (!gid) return NotFoundError("{}: no group '{}'", each.path, name);
    rule.groups.push_back(*gid);
  }
  rules_.push_back(std::move(rule));
  return OkStatus();
}

std::shared_ptr<const FileAccess> DataPolicy::AccessOf(
    uid_t uid, bool runs_functions) const {
  if (everything_) return FileAccess::OfBroker();
  if (rules_.empty()) return FileAccess::OfUser(uid);
  const std::vector<gid_t> groups = GroupsOf(uid);
  std::vector<std::shared_ptr<const DataRoot>> roots;
  for (const Rule& rule : rules_) {
    const bool may =
        rule.everybody ||
        std::find(rule.users.begin(), rule.users.end(), uid) !=
            rule.users.end() ||
        std::any_of(rule.groups.begin(), rule.groups.end(), [&](gid_t group) {
          return std::binary_search(groups.begin(), groups.end(), group);
        });
    if (may && (rule.functions || !runs_functions)) {
      roots.insert(roots.end(), rule.roots.begin(), rule.roots.end());
    }
  }
  return FileAccess::OfRoots(std::move(roots));
}

}  // namespace penstock
