#include "broker/sandbox/sandbox.h"

#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "common/fd.h"

// AddressSanitizer's search for leaks traces its own process.
#if defined(__SANITIZE_ADDRESS__)
#define PENSTOCK_TRACES_ITSELF
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PENSTOCK_TRACES_ITSELF
#endif
#endif

namespace penstock {
namespace {

// ---- Landlock (linux/landlock.h; Debian 12's knows ABI 2 only) --------------

#ifndef SYS_landlock_create_ruleset  // the same on all architectures
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

struct Ruleset {
  uint64_t files = 0;
  uint64_t network = 0;  // ABI 4
  uint64_t scoped = 0;   // ABI 6
};
struct [[gnu::packed]] PathRule {
  uint64_t allowed = 0;
  int32_t folder = -1;
};
constexpr uint32_t kAskVersion = 1;  // flag
constexpr int kPathBeneath = 1;      // type of a rule

constexpr uint64_t kExecute = 1 << 0;
constexpr uint64_t kWriteFile = 1 << 1;
constexpr uint64_t kRemoveFolder = 1 << 4;
constexpr uint64_t kRemoveFile = 1 << 5;
constexpr uint64_t kMakeFolder = 1 << 7;
constexpr uint64_t kMakeFile = 1 << 8;
constexpr uint64_t kMakeSocket = 1 << 9;
constexpr uint64_t kMakeOthers = (1 << 6) | (1 << 10) | (1 << 11);
constexpr uint64_t kMakeLink = 1 << 12;
constexpr uint64_t kRefer = 1 << 13;     // ABI 2
constexpr uint64_t kTruncate = 1 << 14;  // ABI 3
constexpr uint64_t kBindTcp = 1 << 0;    // ABI 4
constexpr uint64_t kConnectTcp = 1 << 1;
// ABI 6: abstract Unix sockets and signals of processes outside.
constexpr uint64_t kScoped = (1 << 0) | (1 << 1);

constexpr uint64_t kWritten = kWriteFile | kRemoveFolder | kRemoveFile |
                              kMakeFolder | kMakeFile | kMakeLink | kRefer |
                              kTruncate;
constexpr uint64_t kHandled = kWritten | kExecute | kMakeSocket | kMakeOthers;

Status Allow(int ruleset, const std::string& path, uint64_t allowed) {
  const Fd folder(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!folder) {
    if (errno == ENOENT) return OkStatus();
    return ErrnoError(errno, Format("sandbox: '{}'", path));
  }
  const PathRule rule = {allowed, folder.get()};
  if (syscall(SYS_landlock_add_rule, ruleset, kPathBeneath, &rule, 0) != 0) {
    return ErrnoError(errno, Format("sandbox: Landlock's rule of '{}'", path));
  }
  return OkStatus();
}

// The version that is in force; Unimplemented, and why.
StatusOr<int> RestrictFiles(const SandboxOptions& options) {
  const auto version = static_cast<int>(
      syscall(SYS_landlock_create_ruleset, nullptr, 0, kAskVersion));
  if (version < 1) {
    return UnimplementedError(
        "this kernel has no Landlock ({}): lsm= of its command line may leave "
        "it out",
        std::strerror(errno));
  }
  Ruleset rules;
  rules.files = kHandled;
  if (version < 2) rules.files &= ~kRefer;
  if (version < 3) rules.files &= ~kTruncate;
  if (version >= 4) rules.network = kBindTcp | kConnectTcp;
  if (version >= 6) rules.scoped = kScoped;
  const size_t bytes = version < 4   ? sizeof(rules.files)
                       : version < 6 ? offsetof(Ruleset, scoped)
                                     : sizeof(rules);
  const Fd ruleset(
      static_cast<int>(syscall(SYS_landlock_create_ruleset, &rules, bytes, 0)));
  if (!ruleset) return ErrnoError(errno, "sandbox: Landlock");
  const struct {
    const std::vector<std::string>& folders;
    uint64_t allowed;
  } all[] = {{options.written, kWritten},
             {options.sockets, kMakeSocket},
             {options.emptied, kRemoveFile | kRemoveFolder},
             {options.parents, kRemoveFolder}};
  for (const auto& [paths, allowed] : all) {
    for (const std::string& path : paths) {
      PENSTOCK_RETURN_IF_ERROR(
          Allow(ruleset.get(), path, allowed & rules.files));
    }
  }
  // Libraries discard output there.
  PENSTOCK_RETURN_IF_ERROR(
      Allow(ruleset.get(), "/dev/null", kWriteFile & rules.files));
  if (syscall(SYS_landlock_restrict_self, ruleset.get(), 0) != 0) {
    return ErrnoError(errno, "sandbox: Landlock");
  }
  return version;
}

// ---- seccomp ---------------------------------------------------------------

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;

// EPERM for these calls with these arguments; calls that libseccomp does not
// know are left out.
int Deny(const Filter& filter, int call,
         std::initializer_list<scmp_arg_cmp> arguments = {}) {
  const int result = seccomp_rule_add_array(
      filter.get(), SCMP_ACT_ERRNO(EPERM), call,
      static_cast<unsigned>(arguments.size()), arguments.begin());
  return result == -EDOM ? 0 : result;
}

// What neither the daemon nor its libraries use: programs, other processes, the
// kernel's own settings. By the manual pages, section 2.
constexpr int kDenied[] = {SCMP_SYS(execve),
                           SCMP_SYS(execveat),
#ifndef PENSTOCK_TRACES_ITSELF
                           SCMP_SYS(ptrace),
#endif
                           SCMP_SYS(process_vm_readv),
                           SCMP_SYS(process_vm_writev),
                           SCMP_SYS(pidfd_getfd),
                           SCMP_SYS(kcmp),
                           SCMP_SYS(unshare),
                           SCMP_SYS(setns),
                           SCMP_SYS(mount),
                           SCMP_SYS(umount2),
                           SCMP_SYS(pivot_root),
                           SCMP_SYS(chroot),
                           SCMP_SYS(open_tree),
                           SCMP_SYS(move_mount),
                           SCMP_SYS(fsopen),
                           SCMP_SYS(fsconfig),
                           SCMP_SYS(fsmount),
                           SCMP_SYS(fspick),
                           SCMP_SYS(mount_setattr),
                           SCMP_SYS(bpf),
                           SCMP_SYS(perf_event_open),
                           SCMP_SYS(userfaultfd),
                           SCMP_SYS(keyctl),
                           SCMP_SYS(add_key),
                           SCMP_SYS(request_key),
                           SCMP_SYS(init_module),
                           SCMP_SYS(finit_module),
                           SCMP_SYS(delete_module),
                           SCMP_SYS(kexec_load),
                           SCMP_SYS(kexec_file_load),
                           SCMP_SYS(reboot),
                           SCMP_SYS(swapon),
                           SCMP_SYS(swapoff),
                           SCMP_SYS(acct),
                           SCMP_SYS(quotactl),
                           SCMP_SYS(sethostname),
                           SCMP_SYS(setdomainname),
                           SCMP_SYS(settimeofday),
                           SCMP_SYS(clock_settime),
                           SCMP_SYS(clock_adjtime),
                           SCMP_SYS(adjtimex),
                           SCMP_SYS(ioperm),
                           SCMP_SYS(iopl),
                           SCMP_SYS(syslog),
                           SCMP_SYS(name_to_handle_at),
                           SCMP_SYS(open_by_handle_at),
                           SCMP_SYS(personality),
                           SCMP_SYS(chmod),
                           SCMP_SYS(fchmod),
                           SCMP_SYS(fchmodat),
                           SCMP_SYS(chown),
                           SCMP_SYS(fchown),
                           SCMP_SYS(lchown),
                           SCMP_SYS(fchownat),
                           SCMP_SYS(setxattr),
                           SCMP_SYS(lsetxattr),
                           SCMP_SYS(fsetxattr),
                           SCMP_SYS(removexattr),
                           SCMP_SYS(lremovexattr),
                           SCMP_SYS(fremovexattr),
                           SCMP_SYS(utimensat),
                           SCMP_SYS(mknod),
                           SCMP_SYS(mknodat)};

// New namespaces. clone3 has its flags in memory, which a filter cannot read:
// glibc uses clone where it answers ENOSYS.
constexpr uint64_t kNamespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET |
                                 CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                                 CLONE_NEWCGROUP;

// 0, or a negative errno.
int FilterCalls(const SandboxOptions& options) {
  const Filter filter(seccomp_init(SCMP_ACT_ALLOW), seccomp_release);
  if (!filter) return -ENOMEM;
  // Mitigations that kernels before 5.16 would put in force cost time, and
  // protect from code that runs in this process anyway.
  seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_SSB, 1);
  seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1);
  int result = 0;
  for (const int call : kDenied) {
    if (result == 0) result = Deny(filter, call);
  }
  const auto deny = [&](int call, scmp_arg_cmp argument) {
    if (result == 0) result = Deny(filter, call, {argument});
  };
  deny(SCMP_SYS(socket), SCMP_A0(SCMP_CMP_NE, AF_UNIX));
  if (!options.connects) {
    for (const int call : {SCMP_SYS(connect), SCMP_SYS(socket)}) {
      if (result == 0) result = Deny(filter, call);
    }
  }
  if (!options.io_uring && result == 0) {
    result = Deny(filter, SCMP_SYS(io_uring_setup));
  }
  deny(SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_NE, 0));
  deny(SCMP_SYS(shmat), SCMP_A2(SCMP_CMP_MASKED_EQ, SHM_EXEC, SHM_EXEC));
  // Typed into the terminal that a private broker may have.
  deny(SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, TIOCSTI));
  deny(SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, TIOCLINUX));
  // Memory that is code stays what it was when it was mapped from its file.
  deny(SCMP_SYS(mprotect), SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
  deny(SCMP_SYS(pkey_mprotect),
       SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
  deny(SCMP_SYS(mmap), SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC | PROT_WRITE,
                               PROT_EXEC | PROT_WRITE));
  for (uint64_t flag = 1; flag <= kNamespaces; flag <<= 1) {
    if ((kNamespaces & flag) != 0) {
      deny(SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, flag, flag));
    }
  }
  if (result == 0) {
    result = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOSYS),
                              SCMP_SYS(clone3), 0);
  }
  return result == 0 ? seccomp_load(filter.get()) : result;
}

}  // namespace

StatusOr<Sandbox> EnterSandbox(SandboxMode mode,
                               const SandboxOptions& options) {
  Sandbox sandbox;
  if (mode == SandboxMode::kOff) return sandbox;
  std::vector<std::string> in_force;
  std::vector<std::string> lacking;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    lacking.emplace_back(
        Format("no_new_privs cannot be set: {}", std::strerror(errno)));
  }
  const StatusOr<int> version = RestrictFiles(options);
  if (version.ok()) {
    in_force.push_back(Format("landlock {}", *version));
  } else if (version.status().code() == StatusCode::kUnimplemented) {
    lacking.push_back(version.status().message());
  } else {
    return version.status();
  }
  if (const int result = FilterCalls(options); result == 0) {
    in_force.emplace_back("seccomp");
  } else {
    lacking.push_back(Format("this kernel has no seccomp filters ({})",
                             std::strerror(-result)));
  }
  sandbox.in_force = JoinText(in_force, ", ");
  sandbox.lacking = JoinText(lacking, "; ");
  if (mode == SandboxMode::kRequired && !sandbox.lacking.empty()) {
    return FailedPreconditionError("sandbox: {}", sandbox.lacking);
  }
  return sandbox;
}

}  // namespace penstock
