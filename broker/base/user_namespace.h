// Users of the machine that this process cannot tell apart: in a user namespace
// (a rootless container), the kernel shows every id that the namespace does not
// map as one and the same, usually 65534.
#ifndef BROKER_BASE_USER_NAMESPACE_H_
#define BROKER_BASE_USER_NAMESPACE_H_

#include <sys/types.h>

#include <optional>

namespace penstock {

// What the kernel shows of users and groups that are not known here; nullopt:
// all are known, and an account may have this number.
std::optional<uid_t> UnknownUser();
std::optional<gid_t> UnknownGroup();

}  // namespace penstock
#endif  // BROKER_BASE_USER_NAMESPACE_H_
