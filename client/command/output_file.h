// Where a command may put a file that it writes whole.
#ifndef CLIENT_COMMAND_OUTPUT_FILE_H_
#define CLIENT_COMMAND_OUTPUT_FILE_H_

#include <string>

#include "common/status.h"

namespace penstock {

// The file that path names, links followed, to be replaced by rename.
// InvalidArgument: there is something else than a file, a device or a pipe,
// which rename would do away with.
StatusOr<std::string> OutputFile(const std::string& path);

}  // namespace penstock
#endif  // CLIENT_COMMAND_OUTPUT_FILE_H_
