#include "broker/recovery/memory_folder.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "common/memory_folder.h"

namespace penstock {
namespace {

// linux/magic.h.
constexpr long kTmpfsMagic = 0x01021994;
constexpr long kRamfsMagic = 0x858458f6;

bool IsInMemory(const std::string& path) {
  struct statfs info;
  return statfs(path.c_str(), &info) == 0 &&
         (info.f_type == kTmpfsMagic || info.f_type == kRamfsMagic);
}

// Any user may create a folder of this name once ours is gone. Only a folder
// that this user owns and no other may enter is accepted.
bool IsOurs(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
         info.st_uid == geteuid() && (info.st_mode & 077) == 0;
}

}  // namespace

StatusOr<std::string> OpenMemoryFolder(const std::string& state_directory) {
  if (IsInMemory(state_directory)) return state_directory;
  if (std::string found = LinkedMemoryFolder(state_directory); IsOurs(found)) {
    return found;
  }
  const std::string link = state_directory + "/" + kMemoryFolderLink;
  std::string made = MemoryFolderPrefix(state_directory);
  if (made.empty()) return ErrnoError(errno, "look at " + state_directory);
  made += "XXXXXX";
  if (mkdtemp(made.data()) == nullptr) {  // mode 0700
    return ErrnoError(errno, "make a folder in /dev/shm");
  }
  const auto failed = [&made](const Status& status) {
    rmdir(made.c_str());
    return status;
  };
  if (!IsInMemory(made)) {
    return failed(FailedPreconditionError(
        "/dev/shm is not in memory: mount a tmpfs there"));
  }
  // The new link replaces the old one atomically.
  const std::string fresh = link + ".new";
  unlink(fresh.c_str());
  if (symlink(made.c_str(), fresh.c_str()) != 0 ||
      rename(fresh.c_str(), link.c_str()) != 0) {
    return failed(ErrnoError(errno, "link " + link + " to " + made));
  }
  return made;
}

}  // namespace penstock
