// Reads small text files: specs, configurations, states.
#ifndef COMMON_TEXT_FILE_H_
#define COMMON_TEXT_FILE_H_

#include <cstddef>
#include <string>

#include "common/fd.h"
#include "common/status.h"

namespace penstock {

// Bound of the text of a spec or a configuration: any user of the host may send
// one.
inline constexpr size_t kSpecBytesMax = 64 * 1024;

// what: a noun such as "spec file" that precedes the name in messages.
// InvalidArgument: not a regular file, or larger than bytes_max; else the
// kernel's error.
StatusOr<std::string> ReadTextFile(const std::string& what,
                                   const std::string& name, size_t bytes_max);
// The text of a file that is open already.
StatusOr<std::string> ReadTextFile(const std::string& what,
                                   const std::string& name, const Fd& fd,
                                   size_t bytes_max);

}  // namespace penstock
#endif  // COMMON_TEXT_FILE_H_
