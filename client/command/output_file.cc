#include "client/command/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "common/fd.h"

namespace penstock {

namespace fs = std::filesystem;

Status CheckLocal(const std::string& path) {
  if (path.find("://") == path.npos) return OkStatus();
  return InvalidArgumentError(
      "'{}' is an address: object stores have data and indexes (`penstock "
      "index "
      "--out`), everything else lies on a local disk; name a path, and copy "
      "from "
      "or to the store with a tool of its own",
      path);
}

StatusOr<std::string> OutputFile(const std::string& path) {
  PENSTOCK_RETURN_IF_ERROR(CheckLocal(path));
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

Status CheckCanWrite(const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string path, OutputFile(name));
  const std::string folder = fs::path(path).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) {
    return OkStatus();
  }
  return ErrnoError(errno, "cannot write '" + name + "'");
}

Status CheckReplaces(const std::string& name, std::string_view begins,
                     std::string_view what) {
  PENSTOCK_RETURN_IF_ERROR(CheckCanWrite(name));
  std::ifstream file(name, std::ios::binary);
  std::string there(begins.size(), '\0');
  file.read(there.data(), static_cast<std::streamsize>(there.size()));
  there.resize(static_cast<size_t>(file.gcount()));
  if (there.empty() || there == begins) return OkStatus();
  return FailedPreconditionError(
      "'{}' is there and is no {}: name another output, or remove it", name,
      what);
}

Status WriteWhole(const std::string& name, const std::string& text) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string path, OutputFile(name));
  const std::string part = path + ".part";
  const Fd fd(
      open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return ErrnoError(errno, "write '" + part + "'");
  if (!WriteWholly(fd.get(), text)) {
    return ErrnoError(errno, "write '" + part + "'");
  }
  if (fsync(fd.get()) != 0 || rename(part.c_str(), path.c_str()) != 0) {
    return ErrnoError(errno, "write '" + path + "'");
  }
  return OkStatus();
}

}  // namespace penstock
