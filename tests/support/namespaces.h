// What a container runtime does to a process: namespaces of its own, system
// calls that are denied, capabilities that are gone. Each function changes the
// calling process, which a test has forked, and ends it if that fails.
#ifndef TESTS_SUPPORT_NAMESPACES_H_
#define TESTS_SUPPORT_NAMESPACES_H_

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace penstock {

inline void Must(bool done, const char* what) {
  if (done) return;
  std::fprintf(stderr, "%s: %s\n", what, strerror(errno));
  _exit(99);
}

inline bool MayEnterNamespaces() {
  const pid_t child = fork();
  if (child == 0) _exit(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

// A user namespace with this map (user_namespaces(7)), of users and of groups;
// the process is its user `id` afterwards. As root.
inline void EnterUserNamespace(const std::string& map, uid_t id) {
  int ready[2];
  Must(pipe2(ready, O_CLOEXEC) == 0, "pipe");
  const pid_t self = getpid();
  const pid_t helper = fork();  // has the rights to write any map
  if (helper == 0) {
    char byte;
    Must(read(ready[0], &byte, 1) == 1, "read");
    const std::string folder = "/proc/" + std::to_string(self);
    for (const char* const file : {"/uid_map", "/gid_map"}) {
      std::ofstream out(folder + file);
      Must((out << map).flush().good(), file);
    }
    _exit(0);
  }
  Must(unshare(CLONE_NEWUSER) == 0, "unshare a user namespace");
  Must(write(ready[1], "", 1) == 1, "write");
  int status = 0;
  Must(waitpid(helper, &status, 0) == helper && status == 0, "map users");
  close(ready[0]);
  close(ready[1]);
  Must(setgroups(0, nullptr) == 0 && setresgid(id, id, id) == 0 &&
           setresuid(id, id, id) == 0,
       "become a user of the namespace");
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // another identity has cleared it
}

// The namespaces (unshare(2)). With CLONE_NEWPID the caller goes on as process
// 1 of the new one, which dies with the process that it was; mounts are private
// with CLONE_NEWNS.
inline void EnterNamespaces(int flags) {
  Must(unshare(flags) == 0, "unshare");
  if ((flags & CLONE_NEWPID) != 0) {
    const pid_t inner = fork();
    Must(inner >= 0, "fork");
    if (inner > 0) {
      int status = 0;
      while (waitpid(inner, &status, 0) < 0 && errno == EINTR) {
      }
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  if ((flags & CLONE_NEWNS) == 0) return;
  Must(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "mount");
  if ((flags & CLONE_NEWPID) == 0) return;
  Must(mount("proc", "/proc", "proc", 0, nullptr) == 0, "mount /proc");
}

// An empty folder in memory; what was there is not seen any more.
inline void HideFolder(const std::string& folder) {
  Must(mount("none", folder.c_str(), "tmpfs", 0, "mode=0755") == 0,
       folder.c_str());
}

// folder, seen as another one, which is made.
inline void BindFolder(const std::string& folder, const std::string& as) {
  Must(mkdir(as.c_str(), 0755) == 0 || errno == EEXIST, as.c_str());
  Must(mount(folder.c_str(), as.c_str(), nullptr, MS_BIND | MS_REC, nullptr) ==
           0,
       as.c_str());
}

// Mounts nothing can write to, as of a container with a read-only root.
inline void MakeReadOnly(const std::string& folder) {
  Must(mount("none", folder.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY,
             nullptr) == 0,
       folder.c_str());
}

// All of them, for good.
inline void DropCapabilities() {
  for (unsigned long number = 0; number <= CAP_LAST_CAP; ++number) {
    prctl(PR_CAPBSET_DROP, number, 0, 0, 0);
  }
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2] = {};
  Must(syscall(SYS_capset, &header, none) == 0, "capset");
}

inline void Filter(std::vector<sock_filter> program) {
  sock_fprog all = {static_cast<unsigned short>(program.size()),
                    program.data()};
  Must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  Must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0, "seccomp");
}

// These fail with EPERM from now on.
inline void DenySystemCalls(const std::vector<long>& numbers) {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long number : numbers) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                               static_cast<uint32_t>(number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  Filter(std::move(program));
}

// As a kernel that has no such option of getsockopt(2).
inline void DenySocketOption(int option) {
  Filter(
      {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
       BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(option), 0, 1),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)});
}

}  // namespace penstock
#endif  // TESTS_SUPPORT_NAMESPACES_H_
