// Runs code as another user. Needs root.
#ifndef TESTS_SUPPORT_OTHER_USER_H_
#define TESTS_SUPPORT_OTHER_USER_H_

#include <fcntl.h>
#include <grp.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <string>

#include "common/fd.h"

namespace penstock {

// Returns the child that does the work. *said is where its result can be read:
// what work returned, or the text of the exception that it threw.
inline pid_t StartAs(uid_t user, const std::function<std::string()>& work,
                     Fd* said) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  *said = Fd(ends[0]);
  const Fd result(ends[1]);
  const pid_t child = fork();
  if (child != 0) return child;
  std::string text = "cannot become the user";
  if (setgroups(0, nullptr) == 0 && setgid(user) == 0 && setuid(user) == 0) {
    try {
      text = work();
    } catch (const std::exception& error) {
      text = error.what();
    }
  }
  (void)!write(result.get(), text.data(), text.size());
  _exit(0);
}

// What it says.
inline std::string RunAs(uid_t user, const std::function<std::string()>& work) {
  Fd result;
  const pid_t child = StartAs(user, work, &result);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = read(result.get(), buffer, sizeof(buffer))) > 0;) {
    said.append(buffer, static_cast<size_t>(n));
  }
  waitpid(child, nullptr, 0);
  return said;
}

}  // namespace penstock
#endif  // TESTS_SUPPORT_OTHER_USER_H_
