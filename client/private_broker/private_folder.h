// The folder of a private broker, for its socket and its state: mode 0700,
// removed with its owner. If the owner is killed with SIGKILL, the next start
// of any private broker of the same user removes it.
//
// The owner holds a lock (flock) on a file in the folder, which the kernel
// releases with the process; this works also where process numbers mean nothing
// (containers that share /tmp).
//
//   maker    mkdtemp, create the lock file, lock it. If it is still linked:
//            done, else a sweeper was faster: try another folder
//   sweeper  lock the lock file without waiting; remove the folder's content,
//            the lock file last, so that after a kill the next sweeper can
//            continue
//
// A fork of the owner that does not exec holds the lock too.
#ifndef CLIENT_PRIVATE_BROKER_PRIVATE_FOLDER_H_
#define CLIENT_PRIVATE_BROKER_PRIVATE_FOLDER_H_

#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class PrivateFolder {
 public:
  // Makes one in $XDG_RUNTIME_DIR, else in /dev/shm, else in /tmp. Removes
  // folders of dead owners in all three.
  static StatusOr<PrivateFolder> Make();
  // Removes the folders of this user's dead owners. Touches nothing of other
  // users, nothing that no PrivateFolder made, and follows no link.
  static void RemoveAbandoned();
  // The sockets in the announced folders of this user's living owners.
  static std::vector<std::string> AnnouncedSockets();

  PrivateFolder() = default;
  PrivateFolder(PrivateFolder&&) = default;
  PrivateFolder& operator=(PrivateFolder&&) = default;

  const std::string& path() const { return path_; }  // "": none
  std::string socket() const { return path_ + "/penstock.sock"; }
  // Its broker is for ranks: commands such as `penstock status` find it. Those
  // that commands start for their own work stay unknown.
  void Announce() const;
  // Removes it with its content. No effect the second time.
  void Remove();

 private:
  std::string path_;
  Fd lock_;
};

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_PRIVATE_FOLDER_H_
