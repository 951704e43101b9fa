#include "broker/io/file_access.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>

#include "broker/base/user_namespace.h"
#include "broker/io/file_error.h"
#include "broker/io/stores.h"

namespace penstock {
namespace {

constexpr unsigned kMayRead = 4;
constexpr unsigned kMayEnter = 1;
constexpr int kLinksMax = 40;  // as the kernel's
// File systems whose modes and ACLs are all that decides.
constexpr long kXfsMagic = 0x58465342;
constexpr long kZfsMagic = 0x2fc12fc1;
constexpr std::array<long, 11> kByModes = {
    EXT4_SUPER_MAGIC,     kXfsMagic,        BTRFS_SUPER_MAGIC,
    TMPFS_MAGIC,          RAMFS_MAGIC,      OVERLAYFS_SUPER_MAGIC,
    F2FS_SUPER_MAGIC,     SQUASHFS_MAGIC,   kZfsMagic,
    EROFS_SUPER_MAGIC_V1, ISOFS_SUPER_MAGIC};

// O_PATH goes with few other flags.
int AllFlags(int flags) {
  return flags | O_CLOEXEC | ((flags & O_PATH) != 0 ? 0 : O_RDONLY | O_NOCTTY);
}

int OpenAt2(int folder, const char* name, int flags, uint64_t resolve) {
  // Tools and sandboxes that know no openat2 run private brokers too.
  if (resolve == 0) return openat(folder, name, flags);
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags);
  how.resolve = resolve;
  return static_cast<int>(
      syscall(SYS_openat2, folder, name, &how, sizeof(how)));
}

// ---- POSIX ACLs: linux/posix_acl_xattr.h, acl(5)

struct AclEntry {
  uint16_t tag;
  uint16_t perm;
  uint32_t id;
};
constexpr uint16_t kAclUser = 0x02;
constexpr uint16_t kAclGroupObj = 0x04;
constexpr uint16_t kAclGroup = 0x08;
constexpr uint16_t kAclMask = 0x10;

// nullopt: there is none, the mode says all. Empty: it cannot be read, nobody
// gets in by it.
std::optional<std::vector<AclEntry>> AclOf(int fd) {
  constexpr uint32_t kVersion = 2;
  std::array<char, 4 + 256 * sizeof(AclEntry)> value;
  // An O_PATH descriptor has no fgetxattr.
  const ssize_t bytes =
      getxattr(Format("/proc/self/fd/{}", fd).c_str(),
               "system.posix_acl_access", value.data(), value.size());
  if (bytes < 0) {
    if (errno == ENODATA || errno == EOPNOTSUPP) return std::nullopt;
    return std::vector<AclEntry>();
  }
  uint32_t version = 0;
  std::vector<AclEntry> entries;
  if (bytes < static_cast<ssize_t>(sizeof(version))) return entries;
  std::memcpy(&version, value.data(), sizeof(version));
  if (version != kVersion) return entries;
  entries.resize((static_cast<size_t>(bytes) - sizeof(version)) /
                 sizeof(AclEntry));
  std::memcpy(entries.data(), value.data() + sizeof(version),
              entries.size() * sizeof(AclEntry));
  return entries;
}

// The components of a path, before the others.
void Prepend(std::string_view path, std::deque<std::string>* names) {
  std::deque<std::string> first;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    if (end > at) first.emplace_back(path.substr(at, end - at));
    at = end + 1;
  }
  names->insert(names->begin(), first.begin(), first.end());
}

}  // namespace

std::vector<gid_t> GroupsOf(uid_t uid) {
  std::vector<char> text(64 * 1024);
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, text.data(), text.size(), &found) != 0 ||
      found == nullptr) {
    return {};  // of no group
  }
  std::vector<gid_t> groups(256);
  for (;;) {
    auto count = static_cast<int>(groups.size());
    if (getgrouplist(found->pw_name, found->pw_gid, groups.data(), &count) >=
        0) {
      groups.resize(static_cast<size_t>(count));
      break;
    }
    groups.resize(std::max(static_cast<size_t>(count), groups.size() * 2));
  }
  // Files of all unknown groups look as if they were this one's.
  if (const auto unknown = UnknownGroup()) std::erase(groups, *unknown);
  std::sort(groups.begin(), groups.end());
  return groups;
}

std::shared_ptr<const FileAccess> FileAccess::OfBroker() {
  static const std::shared_ptr<const FileAccess> access(new FileAccess());
  return access;
}

namespace {
std::unique_ptr<Stores>& StoresOfBroker() {
  static std::unique_ptr<Stores> stores;
  return stores;
}

// A '.' or '..' among the names of an address, also as '%2e'.
bool LeadsElsewhere(const std::string& url) {
  for (size_t at = 0; at != url.npos;) {
    const size_t end = url.find('/', at);
    std::string_view name(url);
    name = name.substr(at, end == url.npos ? end : end - at);
    int dots = 0;
    while (!name.empty()) {
      const bool encoded = name.size() >= 3 && name[0] == '%' &&
                           name[1] == '2' && (name[2] == 'e' || name[2] == 'E');
      if (!encoded && name[0] != '.') break;
      name.remove_prefix(encoded ? 3 : 1);
      ++dots;
    }
    if (name.empty() && (dots == 1 || dots == 2)) return true;
    at = end == url.npos ? end : end + 1;
  }
  return false;
}
}  // namespace

void FileAccess::UseStores(std::unique_ptr<Stores> stores) {
  StoresOfBroker() = std::move(stores);
}

Stores* FileAccess::stores() { return StoresOfBroker().get(); }

StatusOr<Stores*> FileAccess::StoresOf(const std::string& url) const {
  if (stores() == nullptr) return NoStoresError(url);
  if (kind_ == Kind::kBroker) return stores();
  // Clients of the web remove the steps of a path.
  if (RootOf(url) == nullptr || LeadsElsewhere(url)) {
    return PermissionDeniedError(
        "{}: not below an address that the broker's configuration (`data`) "
        "lets you read",
        url);
  }
  return stores();
}

std::shared_ptr<const FileAccess> FileAccess::OfRoots(
    std::vector<std::shared_ptr<const DataRoot>> roots) {
  std::shared_ptr<FileAccess> access(new FileAccess());
  access->kind_ = Kind::kRoots;
  access->roots_ = std::move(roots);
  for (const auto& root : access->roots_) {
    access->key_ += root->path + '\n' + root->real + '\n';
  }
  return access;
}

std::shared_ptr<const FileAccess> FileAccess::OfUser(
    uid_t uid, std::vector<gid_t> groups) {
  if (uid == 0 || uid == geteuid()) return OfBroker();
  std::shared_ptr<FileAccess> access(new FileAccess());
  access->kind_ = Kind::kUser;
  access->uid_ = uid;
  access->groups_ = std::move(groups);
  access->key_ = Format("uid {}", uid);
  for (const gid_t group : access->groups_)
    access->key_ += Format(" {}", group);
  return access;
}

const DataRoot* FileAccess::RootOf(const std::string& path) const {
  const DataRoot* found = nullptr;
  for (const auto& root : roots_) {
    const std::string& folder = root->path;
    const bool below = path.starts_with(folder) &&
                       (path.size() == folder.size() ||
                        path[folder.size()] == '/' || folder == "/");
    if (below && (found == nullptr || folder.size() > found->path.size())) {
      found = root.get();
    }
  }
  return found;
}

bool FileAccess::Find(const std::string& path, Place* place) const {
  *place = {AT_FDCWD, path.c_str(), 0};
  if (kind_ == Kind::kBroker) return true;
  if (kind_ == Kind::kUser) return false;
  const DataRoot* const root = RootOf(path);
  if (root == nullptr) return false;
  const char* name = path.c_str() + root->path.size();
  while (*name == '/') ++name;
  *place = {root->folder.get(), *name == '\0' ? "." : name,
            RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
  return true;
}

std::string FileAccess::RealPath(const std::string& path) const {
  const DataRoot* const root = RootOf(path);
  if (root == nullptr || root->real == root->path) return path;
  std::string rest = path.substr(root->path.size());
  return root->real + (rest.empty() || rest[0] == '/' ? "" : "/") + rest;
}

Status FileAccess::Check(const std::string& path) const {
  if (!IsAddress(path)) return Open(path, O_PATH).status();
  PENSTOCK_ASSIGN_OR_RETURN(Stores* const stores, StoresOf(path));
  return stores->Version(path).status();
}

StatusOr<Fd> FileAccess::Open(const std::string& path, int flags) const {
  if (kind_ == Kind::kUser) return OpenAsUser(path, flags);
  Place place;
  if (!Find(path, &place)) {
    const std::string roots =
        JoinText(roots_, ", ", [](const auto& root) { return root->path; });
    return PermissionDeniedError(
        "{}: not below a folder that the broker's configuration (`data`) lets "
        "you read{}",
        path, roots.empty() ? "" : Format(", which are {}", roots));
  }
  Fd fd(OpenAt2(place.folder, place.name, AllFlags(flags), place.resolve));
  if (fd) return fd;
  const int error = errno;
  const std::string real = RealPath(path);
  const Status status =
      error == EXDEV
          ? PermissionDeniedError(
                "{}: a symbolic link or '..' leads out of {}, which the "
                "broker's configuration (`data`) lets you read",
                real, RootOf(path)->real)
          : OpenError(error, real);
  return real == path ? status : status.Prepend(path);
}

bool FileAccess::UserMay(int fd, const struct stat& st, unsigned wanted) const {
  const auto has = [wanted](unsigned perm) {
    return (perm & wanted) == wanted;
  };
  const auto in_group = [this](gid_t group) {
    return std::binary_search(groups_.begin(), groups_.end(), group);
  };
  if (st.st_uid == uid_) return has(st.st_mode >> 6);
  // As Linux does: without any bit for the group, which is an ACL's mask, the
  // ACL is not looked at.
  const auto acl = (st.st_mode & S_IRWXG) == 0 ? std::nullopt : AclOf(fd);
  if (!acl) {
    return has(in_group(st.st_gid) ? st.st_mode >> 3 : st.st_mode);
  }
  unsigned mask = 7;
  for (const AclEntry& entry : *acl) {
    if (entry.tag == kAclMask) mask = entry.perm;
  }
  for (const AclEntry& entry : *acl) {
    if (entry.tag == kAclUser && entry.id == uid_)
      return has(entry.perm & mask);
  }
  bool of_group = false;
  for (const AclEntry& entry : *acl) {
    if (!(entry.tag == kAclGroupObj && in_group(st.st_gid)) &&
        !(entry.tag == kAclGroup && in_group(entry.id))) {
      continue;
    }
    if (has(entry.perm & mask)) return true;
    of_group = true;
  }
  return !of_group && !acl->empty() && has(st.st_mode);
}

// Walks as the kernel would for the user. Each step is checked on the opened
// folder itself, so nothing is to be gained by renaming folders meanwhile.
StatusOr<Fd> FileAccess::OpenAsUser(const std::string& path, int flags) const {
  const auto denied = [&](const std::string& what) {
    return PermissionDeniedError(
        "{}: user {} may not {}; the broker reads for you what you may read",
        path, uid_, what);
  };
  std::deque<std::string> names;
  Prepend(path, &names);
  struct Folder {
    Fd fd;
    struct stat st;
    std::string path;
  };
  std::vector<Folder> folders(1);
  folders[0].fd = Fd(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folders[0].fd || fstat(folders[0].fd.get(), &folders[0].st) != 0) {
    return OpenError(errno, path);
  }
  int links = 0;
  dev_t known = 0;  // of a file system where modes decide
  for (;;) {
    std::string name = ".";
    if (!names.empty()) {
      name = std::move(names.front());
      names.pop_front();
    }
    Folder& at = folders.back();
    if (!UserMay(at.fd.get(), at.st, kMayEnter)) {
      return denied("enter " + (at.path.empty() ? "/" : at.path));
    }
    if (name == "..") {
      if (folders.size() > 1) folders.pop_back();
      continue;
    }
    if (name == "." && !names.empty()) continue;
    Folder next;
    next.path = name == "." ? at.path : at.path + "/" + name;
    next.fd =
        Fd(openat(at.fd.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!next.fd || fstat(next.fd.get(), &next.st) != 0) {
      return OpenError(errno, path);
    }
    const bool kept =
        names.empty() && (flags & O_PATH) != 0 && (flags & O_NOFOLLOW) != 0;
    if (S_ISLNK(next.st.st_mode) && !kept) {
      std::array<char, PATH_MAX> target;
      const ssize_t bytes =
          readlinkat(next.fd.get(), "", target.data(), target.size());
      if (bytes <= 0) return OpenError(errno, path);
      if (++links > kLinksMax) return OpenError(ELOOP, path);
      if (target[0] == '/') folders.resize(1);
      Prepend({target.data(), static_cast<size_t>(bytes)}, &names);
      continue;
    }
    if (next.st.st_dev != known) {
      struct statfs fs;
      const int folder = next.fd.get();
      if (fstatfs(folder, &fs) != 0) return OpenError(errno, path);
      if (std::find(kByModes.begin(), kByModes.end(), fs.f_type) ==
          kByModes.end()) {
        return PermissionDeniedError(
            "{}: the file system of {} decides itself who may read, and the "
            "broker cannot tell whether user {} may: the administrator can "
            "name the folder in the configuration (`data`)",
            path, next.path, uid_);
      }
      known = next.st.st_dev;
    }
    if (!names.empty()) {
      if (!S_ISDIR(next.st.st_mode)) return OpenError(ENOTDIR, path);
      folders.push_back(std::move(next));
      continue;
    }
    if ((flags & O_PATH) != 0) return std::move(next.fd);
    if (!S_ISREG(next.st.st_mode) && !S_ISDIR(next.st.st_mode)) {
      return NotRegularError(next.st.st_mode, path);
    }
    if (!UserMay(next.fd.get(), next.st, kMayRead)) {
      return denied("read " + next.path);
    }
    Fd fd(openat(at.fd.get(), name.c_str(), AllFlags(flags | O_NOFOLLOW)));
    if (!fd) return OpenError(errno, path);
    struct stat st;
    if (fstat(fd.get(), &st) != 0) return ReadError(errno, path, 0);
    if (st.st_dev != next.st.st_dev || st.st_ino != next.st.st_ino) {
      return OpenError(ESTALE, path);  // replaced meanwhile
    }
    return fd;
  }
}

}  // namespace penstock
