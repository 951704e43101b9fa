// What code of users a broker may run, and where it may come from: only folders
// that other users cannot write, which the configuration names.
#ifndef BROKER_USER_CODE_TRUSTED_CODE_H_
#define BROKER_USER_CODE_TRUSTED_CODE_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace penstock {

struct FunctionOptions {
  // Folders whose modules are allowed; empty: no Python functions.
  std::vector<std::string> python_path;
  std::string python = "python3";  // the interpreter, found by PATH
  // The folder of pickled datasets: that of a private broker's socket, where
  // only its user writes; "": none are loaded.
  std::string object_dir;
  // Limits of a call and of the start of a process, including its imports.
  uint64_t call_timeout_ns = uint64_t{60} * 1'000'000'000;
  uint64_t start_timeout_ns = uint64_t{300} * 1'000'000'000;
  // The folder of shared libraries; "": none.
  std::string plugin_dir;
  // Mode bits that files and folders of code must not have.
  mode_t writable_by = 0022;
};

// True if nobody waits for the result any more.
using Cancelled = std::function<bool()>;

// Checks that other users cannot write: folder and all its parents belong to
// root or this user and have no mode bit of writable_by. FailedPrecondition
// names the offending one. Returns the checked folder without symbolic links.
StatusOr<std::string> CheckTrusted(const std::string& folder,
                                   mode_t writable_by);
// The same check for a file in the folder.
Status CheckTrustedFile(const std::string& path, const struct stat& st,
                        mode_t writable_by);

// Words of letters, digits and underscores, with dots between them.
bool IsDottedName(std::string_view text);
// "package.module:name", both dotted names.
bool IsFunctionName(std::string_view text);

// FailedPrecondition, with the remedy: there is no python_path.
Status CheckRunsPython(const FunctionOptions& options);

}  // namespace penstock
#endif  // BROKER_USER_CODE_TRUSTED_CODE_H_
