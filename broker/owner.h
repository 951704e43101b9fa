// The process that a private broker works for (`penstock run`, a trainer with a
// broker of its own): when it is gone, however it ended, so is the broker, and
// so is the folder it was given.
//
// The owner hands over a pidfd of itself as an inherited descriptor of this
// name. Who does that gives the socket's folder away with it: the folder is
// removed with all that is in it.
#ifndef BROKER_OWNER_H_
#define BROKER_OWNER_H_

#include <string>

#include "common/fd.h"

namespace penstock {

inline constexpr char kOwnerName[] = "penstock.owner";

class Owner {
 public:
  // pidfd: none: there is no owner. Once it has died, this process gets
  // SIGTERM; a process that has not ended some seconds later is ended by the
  // thread that is started here, whatever holds it up.
  Owner(Fd pidfd, std::string folder);

  bool known() const { return pidfd_ >= 0; }
  // Removes the folder if the owner is dead: while it lives it does that
  // itself.
  void RemoveFolderOfDead() const;

 private:
  // Copies: the thread goes on while this object is destroyed.
  const int pidfd_;  // never closed; -1: there is no owner
  const std::string folder_;
};

}  // namespace penstock
#endif  // BROKER_OWNER_H_
