/* A step that does what the code of a hostile picture would try, in the thread
 * that decodes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/penstock_plugin.h"
#include "tests/support/hostile_attempts.h"

PENSTOCK_PLUGIN_EXPORTS_ABI

/* The path of a name in the test's folder. */
static const char* in_folder(const char* name) {
  static _Thread_local char path[4096];
  snprintf(path, sizeof(path), "%s/%s", getenv(HOSTILE_FOLDER), name);
  return path;
}

static int closed(int fd) {
  if (fd < 0) return -1;
  close(fd);
  return 0;
}

static int tcp_socket(void) { return closed(socket(AF_INET, SOCK_STREAM, 0)); }
static int udp_socket(void) { return closed(socket(AF_INET6, SOCK_DGRAM, 0)); }

/* The result of one request, or -1 and errno. */
static int by_io_uring(void (*prepare)(struct io_uring_sqe*)) {
  struct io_uring ring;
  int result = io_uring_queue_init(1, &ring, 0);
  if (result == 0) {
    struct io_uring_cqe* cqe = NULL;
    prepare(io_uring_get_sqe(&ring));
    result = io_uring_submit_and_wait(&ring, 1);
    if (result == 1 && io_uring_peek_cqe(&ring, &cqe) == 0) result = cqe->res;
    io_uring_queue_exit(&ring);
  }
  if (result >= 0) return result;
  errno = -result;
  return -1;
}

static void prepare_socket(struct io_uring_sqe* sqe) {
  enum { kSocket = 45 }; /* IORING_OP_SOCKET, Linux 5.19 */
  io_uring_prep_rw(kSocket, sqe, AF_INET, NULL, 0, SOCK_STREAM);
}
static int connect_by_io_uring(void) {
  const int fd = by_io_uring(prepare_socket);
  if (fd < 0) return -1;
  struct sockaddr_in to = {.sin_family = AF_INET,
                           .sin_port = htons(atoi(getenv(HOSTILE_PORT)))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int result = connect(fd, (struct sockaddr*)&to, sizeof(to));
  const int error = errno;
  close(fd);
  errno = error;
  return result;
}

static int socket_by_io_uring(void) {
  return closed(by_io_uring(prepare_socket));
}

static int connect_to_unix(const char* name, int abstract) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  const size_t bytes = strlen(name);
  memcpy(to.sun_path + abstract, name, bytes);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  const int result =
      connect(fd, (struct sockaddr*)&to,
              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + abstract +
                          bytes));
  const int error = errno;
  close(fd);
  errno = error;
  return result;
}
static int connect_to_a_unix_socket(void) {
  return connect_to_unix(in_folder("listens"), 0);
}
static int connect_to_an_abstract_socket(void) {
  return connect_to_unix(in_folder("listens"), 1);
}

static int signal_a_process(void) { return kill(getppid(), SIGCONT); }
static int limit_a_process(void) {
  struct rlimit limit;
  return prlimit(getppid(), RLIMIT_NOFILE, NULL, &limit);
}
static int shared_code(void) {
  const int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0700);
  void* const page = shmat(id, NULL, SHM_EXEC);
  const int error = errno;
  shmctl(id, IPC_RMID, NULL);
  errno = error;
  return page == (void*)-1 ? -1 : shmdt(page);
}

static int start_a_program(void) {
  char* words[] = {"true", NULL};
  pid_t pid;
  const int error = posix_spawnp(&pid, "true", NULL, NULL, words, environ);
  if (error == 0) return waitpid(pid, NULL, 0) == pid ? 0 : -1;
  errno = error;
  return -1;
}

static int replace_this_program(void) {
  const pid_t pid = fork();
  if (pid == 0) {
    char* words[] = {"true", NULL};
    execvp("true", words);
    _exit(errno);
  }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return -1;
  errno = WEXITSTATUS(status);
  return errno == 0 ? 0 : -1;
}

static int make_a_file(void) {
  return closed(open(in_folder("made"), O_WRONLY | O_CREAT, 0600));
}
static void prepare_open(struct io_uring_sqe* sqe) {
  io_uring_prep_openat(sqe, AT_FDCWD, in_folder("made by io_uring"),
                       O_WRONLY | O_CREAT, 0600);
}
static int make_a_file_by_io_uring(void) {
  return closed(by_io_uring(prepare_open));
}
static int make_a_folder(void) { return mkdir(in_folder("folder"), 0700); }
static int overwrite_a_file(void) {
  return closed(open(in_folder("victim"), O_WRONLY));
}
static int truncate_a_file(void) { return truncate(in_folder("victim"), 0); }
static int rename_a_file(void) {
  char from[4096];
  strcpy(from, in_folder("victim"));
  if (rename(from, in_folder("renamed")) != 0) return -1;
  char renamed[4096];
  strcpy(renamed, in_folder("renamed"));
  return rename(renamed, from);
}
static int link_a_file(void) { return symlink("victim", in_folder("link")); }
static int change_a_mode(void) { return chmod(in_folder("victim"), 0666); }
static int write_to_proc(void) {
  return closed(open("/proc/self/oom_score_adj", O_WRONLY));
}
static int remove_a_file(void) { return unlink(in_folder("victim")); }

static int write_code(void) {
  void* const page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? -1 : munmap(page, 4096);
}
static int make_data_code(void) {
  void* const page = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int result = mprotect(page, 4096, PROT_READ | PROT_EXEC);
  const int error = errno;
  munmap(page, 4096);
  errno = error;
  return result;
}

static int trace_a_process(void) {
  if (ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) != 0) return -1;
  return (int)ptrace(PTRACE_DETACH, getppid(), NULL, NULL) * 0;
}
static int read_a_process(void) {
  char byte;
  const struct iovec here = {&byte, 1};
  const struct iovec there = {(void*)&environ, 1};
  return process_vm_readv(getppid(), &here, 1, &there, 1, 0) < 0 &&
                 errno != EFAULT
             ? -1
             : 0;
}
static int a_user_namespace(void) {
  const pid_t pid = fork();
  if (pid == 0) _exit(unshare(CLONE_NEWUSER) == 0 ? 0 : errno);
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return -1;
  errno = WEXITSTATUS(status);
  return errno == 0 ? 0 : -1;
}

#define FUNCTION_OF(name) name,
static int (*const attempts[])(void) = {HOSTILE_ATTEMPTS(FUNCTION_OF)};

/* value int64 [], the number of an attempt -> its errno; 0: it succeeded. */
PENSTOCK_PLUGIN_FUNCTION(attempts) {
  (void)error, (void)error_bytes;
  int64_t number;
  memcpy(&number, row->inputs[0].data, sizeof(number));
  errno = 0;
  const int64_t result = attempts[number]() < 0 ? errno : 0;
  memcpy(row->outputs[0].data, &result, sizeof(result));
  return 0;
}
