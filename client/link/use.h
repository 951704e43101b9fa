// `penstock link use`: brings rows that other hosts make to the broker of this
// host. It answers the broker's asks (common/requests/link.md) by requests to
// makers, whose rows are received straight into the memory that the broker has
// given for them.
//
// One thread. Makers come and go; so does the broker. Rows that a
// maker does not return in time are reported as not made, and the broker makes
// them.
#ifndef CLIENT_LINK_USE_H_
#define CLIENT_LINK_USE_H_

#include <cstdint>
#include <string>

#include "client/link/connection.h"
#include "client/link/remotes.h"
#include "common/status.h"

namespace penstock {

struct UseOptions {
  std::string socket;  // of the broker
  Remotes remotes;
  uint32_t connections = 4;  // to each maker
  LinkSecurity security;
};

// Until a signal comes. InvalidArgument: LinkIdentity::Read.
Status UseLinks(const UseOptions& options);

}  // namespace penstock
#endif  // CLIENT_LINK_USE_H_
