#include "client/private_broker/private_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/memory_folder.h"

namespace penstock {
namespace {

constexpr char kLockName[] = "owner.lock";
constexpr char kAnnouncedName[] = "announced";
constexpr std::string_view kPrefix = "penstock-";
constexpr size_t kRandomChars = 6;  // mkdtemp's
// The longest path in it is a socket's.
constexpr size_t kLongestInside = 40;
// A sweeper may take a new folder for an abandoned one before it is locked.
constexpr int kTries = 100;

std::vector<std::string> Parents() {
  // In memory where possible: the broker's journal then never waits for a disk.
  std::vector<std::string> parents = {"/dev/shm", "/tmp"};
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR");
      runtime != nullptr && *runtime != '\0' &&
      std::string_view(runtime).size() + kLongestInside <
          sizeof(sockaddr_un{}.sun_path)) {
    parents.insert(parents.begin(), runtime);
  }
  return parents;
}

bool MayBeOurs(std::string_view name) {
  return name.starts_with(kPrefix) &&
         name.size() == kPrefix.size() + kRandomChars &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0; });
}

bool IsOwn(int fd, mode_t type) {
  struct stat info;
  return fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) == type &&
         info.st_uid == geteuid() && (info.st_mode & 077) == 0;
}

// Removes the memory folder of a killed broker whose state is on a disk
// (broker/recovery/memory_folder.h).
void RemoveMemoryOf(const std::string& folder) {
  std::error_code ignored;
  const std::string memory = LinkedMemoryFolder(folder + "/state");
  if (!memory.empty()) std::filesystem::remove_all(memory, ignored);
}

// Removes the folder's content but the lock file.
void Empty(int folder) {
  RemoveMemoryOf("/proc/self/fd/" + std::to_string(folder));
  std::error_code error;
  // By descriptor, whatever the path names by now.
  std::filesystem::directory_iterator entry(
      "/proc/self/fd/" + std::to_string(folder), error);
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().filename() == kLockName) continue;
    std::filesystem::remove_all(entry->path(), ignored);
  }
}

// A folder that a PrivateFolder of this user made, and its lock file.
struct Made {
  Fd folder;
  Fd lock;
};

std::optional<Made> OpenMade(int parent, const char* name) {
  Made made;
  made.folder =
      Fd(openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!made.folder || !IsOwn(made.folder.get(), S_IFDIR)) return std::nullopt;
  // NONBLOCK: opening a FIFO would block.
  made.lock = Fd(openat(made.folder.get(), kLockName,
                        O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!made.lock || !IsOwn(made.lock.get(), S_IFREG)) return std::nullopt;
  return made;
}

void RemoveIfAbandoned(int parent, const char* name) {
  const std::optional<Made> made = OpenMade(parent, name);
  if (!made) return;
  if (flock(made->lock.get(), LOCK_EX | LOCK_NB) != 0) return;  // owner lives
  Empty(made->folder.get());
  unlinkat(made->folder.get(), kLockName, 0);
  unlinkat(parent, name, AT_REMOVEDIR);
}

bool IsAnnounced(int parent, const char* name) {
  const std::optional<Made> made = OpenMade(parent, name);
  // LOCK_SH: commands that look at the same time do not take each other for
  // the owner.
  return made && flock(made->lock.get(), LOCK_SH | LOCK_NB) != 0 &&
         errno == EWOULDBLOCK &&
         faccessat(made->folder.get(), kAnnouncedName, F_OK, 0) == 0;
}

// Calls visit(descriptor of the parent, parent, name) for each folder that may
// be a PrivateFolder.
template <typename Visit>
void ForEachFolder(const Visit& visit) {
  for (const std::string& parent : Parents()) {
    DIR* const folder = opendir(parent.c_str());
    if (folder == nullptr) continue;
    std::vector<std::string> names;
    while (const dirent* entry = readdir(folder)) {
      if (MayBeOurs(entry->d_name)) names.emplace_back(entry->d_name);
    }
    for (const std::string& name : names) visit(dirfd(folder), parent, name);
    closedir(folder);
  }
}

}  // namespace

void PrivateFolder::RemoveAbandoned() {
  ForEachFolder([](int parent, const std::string&, const std::string& name) {
    RemoveIfAbandoned(parent, name.c_str());
  });
}

std::vector<std::string> PrivateFolder::AnnouncedSockets() {
  // By the folder's one true path: XDG_RUNTIME_DIR may be one of the others.
  std::map<std::string, std::string> found;
  ForEachFolder(
      [&](int parent, const std::string& path, const std::string& name) {
        if (!IsAnnounced(parent, name.c_str())) return;
        PrivateFolder folder;
        folder.path_ = path + "/" + name;
        std::error_code gone;
        found.emplace(std::filesystem::canonical(folder.path_, gone),
                      folder.socket());
      });
  std::vector<std::string> sockets;
  for (const auto& [folder, socket] : found) sockets.push_back(socket);
  return sockets;
}

StatusOr<PrivateFolder> PrivateFolder::Make() {
  RemoveAbandoned();
  int error = 0;
  for (const std::string& parent : Parents()) {
    for (int i = 0; i < kTries; ++i) {
      PrivateFolder made;
      std::string path = parent + "/" + std::string(kPrefix) + "XXXXXX";
      if (mkdtemp(path.data()) == nullptr) {  // mode 0700
        error = errno;
        break;
      }
      made.path_ = path;
      made.lock_ = Fd(open((path + "/" + kLockName).c_str(),
                           O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      struct stat info;
      if (made.lock_ && flock(made.lock_.get(), LOCK_EX | LOCK_NB) == 0 &&
          fstat(made.lock_.get(), &info) == 0 && info.st_nlink > 0) {
        return made;
      }
      error = errno;
      // Without the lock file no sweeper would remove it.
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  }
  return ErrnoError(error,
                    "cannot make a folder for the private broker's socket in "
                    "$XDG_RUNTIME_DIR, /dev/shm or /tmp");
}

void PrivateFolder::Announce() const {
  // Where it cannot be made, the socket is still to be named.
  Fd(open((path_ + "/" + kAnnouncedName).c_str(),
          O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

void PrivateFolder::Remove() {
  if (path_.empty()) return;
  RemoveMemoryOf(path_);
  // Removes links, does not follow them.
  std::error_code ignored;
  std::filesystem::remove_all(std::exchange(path_, std::string()), ignored);
  lock_.Reset();
}

}  // namespace penstock
