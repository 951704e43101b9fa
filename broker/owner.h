// The process that a private broker works for (`penstock run`, or a trainer
// with a broker of its own). When it ends, however that happens, the broker and
// the folder it was given go as well.
//
// The owner passes a pidfd of itself as an inherited descriptor with the name
// below. It thereby gives away the folder of the socket, which is removed with
// all its contents.
#ifndef BROKER_OWNER_H_
#define BROKER_OWNER_H_

#include <string>

#include "common/fd.h"

namespace penstock {

inline constexpr char kOwnerName[] = "penstock.owner";

class Owner {
 public:
  // An empty pidfd means that there is no owner. When the owner dies, this
  // process gets SIGTERM; if it has not ended 5 s later, the thread started
  // here ends it, whatever holds it up.
  Owner(Fd pidfd, std::string folder);

  bool known() const { return pidfd_ >= 0; }
  // Removes the folder if the owner is dead; a living owner does that itself.
  void RemoveFolderOfDead() const;

 private:
  // Copied by the thread, which may outlive this object.
  const int pidfd_;  // never closed; -1: there is no owner
  const std::string folder_;
};

}  // namespace penstock
#endif  // BROKER_OWNER_H_
