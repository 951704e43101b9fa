#include "client/command/output_file.h"

#include <filesystem>

namespace penstock {

namespace fs = std::filesystem;

StatusOr<std::string> OutputFile(const std::string& path) {
  std::error_code error;
  const fs::file_status there = fs::symlink_status(path, error);
  if (there.type() == fs::file_type::not_found) return path;
  const fs::path file = fs::canonical(path, error);
  if (error) {
    return InvalidArgumentError("cannot write '{}': {}", path, error.message());
  }
  if (!fs::is_regular_file(file, error)) {
    return InvalidArgumentError(
        "'{}' is not a regular file; name another output", path);
  }
  return file.string();
}

}  // namespace penstock
