// The input as a file, for what reads files.
#ifndef TESTS_FUZZ_FILE_OF_H_
#define TESTS_FUZZ_FILE_OF_H_

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "common/format.h"
#include "tests/fuzz/require.h"

namespace penstock {

// A path to a file in memory that has these bytes. Each call of a thread
// replaces the file of the one before.
inline const std::string& FileOf(std::string_view bytes) {
  static thread_local const int fd = memfd_create("input", MFD_CLOEXEC);
  static thread_local const std::string path = Format("/proc/self/fd/{}", fd);
  Require(ftruncate(fd, 0) == 0 && pwrite(fd, bytes.data(), bytes.size(), 0) ==
                                       static_cast<ssize_t>(bytes.size()),
          "a file in memory takes the input");
  return path;
}

}  // namespace penstock
#endif  // TESTS_FUZZ_FILE_OF_H_
