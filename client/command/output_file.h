// Files that a command replaces by rename.
#ifndef CLIENT_COMMAND_OUTPUT_FILE_H_
#define CLIENT_COMMAND_OUTPUT_FILE_H_

#include <string>
#include <string_view>

#include "common/status.h"

namespace penstock {

// InvalidArgument: an address, which is no file of this host.
Status CheckLocal(const std::string& path);

// The file that path names, links followed, to be replaced by rename.
// InvalidArgument: something other than a file is there, such as a device or a
// pipe, which rename would remove.
StatusOr<std::string> OutputFile(const std::string& path);

// Before the work: PermissionDenied and others, if it could not be written.
Status CheckCanWrite(const std::string& path);

// Before the work, too. FailedPrecondition: a file is there, not an empty one,
// and does not begin as those that this command writes: it is something else
// that nobody wants to lose. what: "file of `penstock analyze`".
Status CheckReplaces(const std::string& path, std::string_view begins,
                     std::string_view what);

// Writes such a file whole or not at all: no reader sees a part of it.
Status WriteWhole(const std::string& path, const std::string& text);

}  // namespace penstock
#endif  // CLIENT_COMMAND_OUTPUT_FILE_H_
