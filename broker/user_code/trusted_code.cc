#include "broker/user_code/trusted_code.h"

#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace penstock {

bool IsDottedName(std::string_view text) {
  constexpr size_t kNameBytesMax = 256;
  bool in_word = false;
  for (const char c : text) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) || c == '_';
    const bool digit = c >= '0' && c <= '9';
    if (c == '.' ? !in_word : !letter && !(digit && in_word)) return false;
    in_word = c != '.';
  }
  return in_word && text.size() <= kNameBytesMax;
}

bool IsFunctionName(std::string_view text) {
  const size_t colon = text.find(':');
  return colon != text.npos && IsDottedName(text.substr(0, colon)) &&
         IsDottedName(text.substr(colon + 1));
}

Status CheckRunsPython(const FunctionOptions& options) {
  if (!options.python_path.empty()) return OkStatus();
  return FailedPreconditionError(
      "this broker runs no Python functions: `python_path` in its "
      "configuration, or PENSTOCK_PYTHON_PATH, names the folders of modules "
      "that it may run; in Python, penstock.broker(python_path=[...])");
}

Status CheckTrustedFile(const std::string& path, const struct stat& st,
                        mode_t writable_by) {
  if ((st.st_mode & writable_by) == 0 &&
      (st.st_uid == 0 || st.st_uid == geteuid())) {
    return OkStatus();
  }
  return FailedPreconditionError(
      "others can write '{}' (mode {:04o}, user {}): code is only taken from "
      "where root or the broker's user alone writes",
      path, st.st_mode & 07777, st.st_uid);
}

StatusOr<std::string> CheckTrusted(const std::string& folder,
                                   mode_t writable_by) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::canonical(folder, error);
  if (error) return ErrnoError(error.value(), Format("'{}'", folder));
  for (std::filesystem::path path = found;; path = path.parent_path()) {
    struct stat st;
    if (stat(path.c_str(), &st) != 0) {
      return ErrnoError(errno, Format("'{}'", path.string()));
    }
    if (path == found && !S_ISDIR(st.st_mode)) {
      return InvalidArgumentError("'{}' is not a folder", folder);
    }
    // In a sticky parent folder (/tmp) other users cannot replace files that
    // are not theirs.
    const bool sticky = path != found && (st.st_mode & S_ISVTX) != 0;
    PENSTOCK_RETURN_IF_ERROR(
        CheckTrustedFile(path, st, sticky ? 0 : writable_by));
    if (path == path.root_path()) return found.string();
  }
}

}  // namespace penstock
