#include "broker/io/file_error.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace penstock {
namespace {

std::string ErrorText(int error) {
  char text[128];
  return strerror_r(error, text, sizeof(text));
}

// Calls visit("/a"), visit("/a/b"), ... up to path itself, until it returns
// false.
template <typename Visit>
void ForEachPrefix(const std::string& path, Visit visit) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    if (!visit(path.substr(0, end)) || end == std::string::npos) return;
  }
}

Status NotFoundAt(const std::string& path) {
  std::string missing;
  ForEachPrefix(path, [&](const std::string& prefix) {
    struct stat st;
    if (stat(prefix.c_str(), &st) == 0) return true;
    missing = prefix;
    return false;
  });
  if (missing.empty() || missing == path) {
    struct stat st;
    if (lstat(path.c_str(), &st) == 0 && S_ISLNK(st.st_mode)) {
      return NotFoundError("{}: the symbolic link points to nothing", path);
    }
    return NotFoundError("{}: there is no such file or folder", path);
  }
  return NotFoundError("{}: there is no such file or folder; {} is missing",
                       path, missing);
}

Status PermissionDeniedAt(int error, const std::string& path) {
  std::string folder;
  ForEachPrefix(path, [&](const std::string& prefix) {
    struct stat st;
    if (stat(prefix.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) return false;
    if (faccessat(AT_FDCWD, prefix.c_str(), X_OK, AT_EACCESS) == 0) return true;
    folder = prefix;
    return false;
  });
  // EPERM comes from a security module or a mount, not from mode bits.
  const std::string where = folder.empty()
                                ? Format("it may not read {}", path)
                                : Format("it may not enter {}", folder);
  return PermissionDeniedError(
      "{}: {}; the broker runs as user {} and {}. Run the trainer under "
      "`penstock run`, which reads as you, or give that user access "
      "(setfacl -m u:{}:rX {})",
      path, ErrorText(error), BrokerUser(), where, geteuid(),
      folder.empty() ? path : folder);
}

}  // namespace

std::string BrokerUser() {
  const uid_t uid = geteuid();
  std::vector<char> text(16 * 1024);
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, text.data(), text.size(), &found) == 0 && found) {
    return Format("{} (uid {})", found->pw_name, uid);
  }
  return Format("uid {}", uid);
}

Status OpenError(int error, const std::string& path) {
  switch (error) {
    case ENOENT:  // never existed, or removed since indexing
      return NotFoundAt(path);
    case ELOOP:
      return NotFoundError("{}: the symbolic links form a loop", path);
    case ENOTDIR:  // a component, or path itself under O_DIRECTORY, is a file
    case ENAMETOOLONG:  // over PATH_MAX in total or NAME_MAX in a component
    case ESTALE:        // NFS: removed on the server
      return NotFoundError("{}: {}", path, ErrorText(error));
    case EACCES:
    case EPERM:
      return PermissionDeniedAt(error, path);
    case EISDIR:
      return DataLossError("{} is a folder, wanted a regular file", path);
    case ENXIO:   // a socket, or a device without a driver
    case ENODEV:  // likewise
      return DataLossError("{} is a socket or device, wanted a regular file",
                           path);
    case ETIMEDOUT:  // a network file system's server does not answer
    case EHOSTDOWN:
    case EHOSTUNREACH:
      return UnavailableError("{}: {}", path, ErrorText(error));
    case EUCLEAN:  // the file system is corrupt
    case EBADMSG:  // a checksum is wrong
      return DataLossError("{}: {}", path, ErrorText(error));
    default:
      return ErrnoError(error, path);
  }
}

Status ReadError(int error, const std::string& what, uint64_t offset) {
  const std::string where = Format("{}: read at offset {}", what, offset);
  switch (error) {
    case EISDIR:  // open(2) accepts a folder, only read(2) refuses it
      return DataLossError("{} is a folder, wanted a regular file", what);
    case EIO:        // the medium
    case EREMOTEIO:  // the medium, behind a network
    case EBADMSG:    // a checksum of the file system
    case EUCLEAN:    // its own structures
    case ENODATA:    // md and dm: the sector is lost
    case ESPIPE:     // a FIFO or socket has no offsets
    case EINVAL:     // not a file that can be read
      return DataLossError("{}: {}", where, ErrorText(error));
    case ESTALE:  // NFS: removed on the server while open
      return NotFoundError("{}: {}", where, ErrorText(error));
    case ETIMEDOUT:
    case EHOSTDOWN:
    case EHOSTUNREACH:
      return UnavailableError("{}: {}", where, ErrorText(error));
    case EAGAIN:  // given up after several tries: the kernel has no memory
      return ResourceExhaustedError("{}: {}", where, ErrorText(error));
    default:
      return ErrnoError(error, where);
  }
}

Status NotRegularError(unsigned mode, const std::string& path) {
  const char* kind = S_ISDIR(mode)    ? "folder"
                     : S_ISFIFO(mode) ? "FIFO"
                     : S_ISSOCK(mode) ? "socket"
                                      : "device";
  return DataLossError("{} is a {}, wanted a regular file", path, kind);
}

}  // namespace penstock
