// Which files a job may read: what the broker reads for a user must be nothing
// that this user could not read.
//
// Immutable: any thread may use it.
#ifndef BROKER_IO_FILE_ACCESS_H_
#define BROKER_IO_FILE_ACCESS_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class Stores;

// A folder or address that the configuration lets users read (`data`), under
// one of the paths by which datasets name it.
struct DataRoot {
  std::string path;  // as datasets name it; absolute
  std::string real;  // as the broker does; differs where a container mounts it
  Fd folder;         // none of an address
};

// The groups that the system lists for a user, sorted; none of one unknown.
std::vector<gid_t> GroupsOf(uid_t uid);

class FileAccess {
 public:
  // What the broker may read itself: of a private broker, of root, and of the
  // broker's own user.
  static std::shared_ptr<const FileAccess> OfBroker();
  // Files below these folders, wherever symbolic links within them lead, but
  // not out of them. Modes of files decide nothing more: the administrator has.
  static std::shared_ptr<const FileAccess> OfRoots(
      std::vector<std::shared_ptr<const DataRoot>> roots);
  // What a process of this user, with the groups that the system lists for it,
  // could open. The modes and POSIX ACLs of the file and of each folder on its
  // way decide, so file systems that decide otherwise (NFS, FUSE) are refused,
  // and /proc.
  static std::shared_ptr<const FileAccess> OfUser(uid_t uid) {
    return OfUser(uid, GroupsOf(uid));
  }
  // groups: sorted.
  static std::shared_ptr<const FileAccess> OfUser(uid_t uid,
                                                  std::vector<gid_t> groups);

  // Before any dataset is opened; without it no address is read.
  static void UseStores(std::unique_ptr<Stores> stores);
  static Stores* stores();  // nullptr: none
  // What reads an address, a pattern of them or a folder. InvalidArgument: no
  // addresses are read; PermissionDenied: not this one.
  StatusOr<Stores*> StoresOf(const std::string& url) const;

  // Datasets are shared by those whose access has one key; "": OfBroker's.
  const std::string& key() const { return key_; }

  // Opens an absolute path for reading, with more flags of open(2); with O_PATH
  // it need not be readable. Errors: as OpenError. They tell of nothing that
  // the user could not find out.
  StatusOr<Fd> Open(const std::string& path, int flags) const;

  // Whether there is such a file, or object. Errors: as of Open and Stores.
  Status Check(const std::string& path) const;

  // How a reader opens a path by itself, with openat2: by name from folder.
  struct Place {
    int folder = -1;
    const char* name = nullptr;  // in path, or a literal
    uint64_t resolve = 0;
  };
  // False: only Open may open it.
  bool Find(const std::string& path, Place* place) const;

  // The broker's own path of the file.
  std::string RealPath(const std::string& path) const;

 private:
  enum class Kind { kBroker, kRoots, kUser };

  FileAccess() = default;
  const DataRoot* RootOf(const std::string& path) const;
  StatusOr<Fd> OpenAsUser(const std::string& path, int flags) const;
  bool UserMay(int fd, const struct stat& st, unsigned wanted) const;

  Kind kind_ = Kind::kBroker;
  std::string key_;
  std::vector<std::shared_ptr<const DataRoot>> roots_;
  uid_t uid_ = 0;
  std::vector<gid_t> groups_;
};

}  // namespace penstock
#endif  // BROKER_IO_FILE_ACCESS_H_
