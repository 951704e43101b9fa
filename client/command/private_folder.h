// The folder of a private broker, for its socket and its state: mode 0700, and
// gone with its owner. What an owner that was killed with SIGKILL could not
// remove, the next start of any private broker of the same user removes.
//
// Whether an owner lives is told by the kernel: the owner holds a lock (flock)
// on a file in the folder, which ends with the process, also where numbers of
// processes mean nothing (containers that share /tmp).
//
//   maker    mkdtemp, create the lock file, lock it; it is linked still: done,
//            else a sweeper was faster: another folder
//   sweeper  lock the lock file without waiting; remove what is in the folder,
//            the lock file last, so that the next one goes on where this one
//            is killed
//
// A fork of the owner that does not exec holds the lock too.
#ifndef CLIENT_COMMAND_PRIVATE_FOLDER_H_
#define CLIENT_COMMAND_PRIVATE_FOLDER_H_

#include <string>

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

class PrivateFolder {
 public:
  // In $XDG_RUNTIME_DIR, else in /dev/shm, else in /tmp. Removes those of dead
  // owners in all of them.
  static StatusOr<PrivateFolder> Make();
  // Removes the folders of dead owners of this user. Touches nothing of
  // others, nothing that no PrivateFolder made, and follows no link.
  static void RemoveAbandoned();

  PrivateFolder() = default;
  PrivateFolder(PrivateFolder&&) = default;
  PrivateFolder& operator=(PrivateFolder&&) = default;

  const std::string& path() const { return path_; }  // "": none
  // With all that is in it. Again: nothing.
  void Remove();

 private:
  std::string path_;
  Fd lock_;
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_PRIVATE_FOLDER_H_
