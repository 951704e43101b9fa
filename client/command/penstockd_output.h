// Runs penstockd for what it writes to its standard output, such as --replay.
#ifndef CLIENT_COMMAND_PENSTOCKD_OUTPUT_H_
#define CLIENT_COMMAND_PENSTOCKD_OUTPUT_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/status.h"

namespace penstock {

// more: called with the number of bytes so far. What it says is said when it
// has ended. Errors: it failed, with why as it says; Cancelled after a signal.
StatusOr<std::vector<char>> PenstockdOutput(
    const std::vector<std::string>& arguments,
    const std::function<void(size_t bytes)>& more);

}  // namespace penstock
#endif  // CLIENT_COMMAND_PENSTOCKD_OUTPUT_H_
