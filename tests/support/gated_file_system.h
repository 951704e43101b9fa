// A file system that answers no read before `gate` reads are waiting (or half a
// second has passed). So it distinguishes overlapping reads from sequential
// ones without a clock. Like a network file system it has no asynchronous reads
// of its own.
//
// It also simulates storage that hangs: a file whose name begins with
// "hung_read" or "hung_open" exists, but its reads or its open are not answered
// before Recover().
//
// FUSE without libfuse. It needs root; where it cannot be mounted, mounted() is
// false. Every name exists, and is a file of kFileBytes times 'x'. The server
// is a process, not a thread: a process that is killed while it waits for a
// file system that it serves itself never ends.
#ifndef TESTS_SUPPORT_GATED_FILE_SYSTEM_H_
#define TESTS_SUPPORT_GATED_FILE_SYSTEM_H_

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace penstock {

class GatedFileSystem {
 public:
  static constexpr size_t kFileBytes = 1000;

  GatedFileSystem(std::string folder, size_t gate)
      : folder_(std::move(folder)), gate_(gate) {
    shared_ = static_cast<Shared*>(mmap(nullptr, sizeof(Shared),
                                        PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    fd_ = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd_ < 0 || shared_ == MAP_FAILED) return;
    const std::string options =
        "fd=" + std::to_string(fd_) +
        ",rootmode=40000,user_id=" + std::to_string(getuid()) +
        ",group_id=" + std::to_string(getgid());
    mounted_ = mount("gated", folder_.c_str(), "fuse", MS_NOSUID | MS_NODEV,
                     options.c_str()) == 0;
    if (!mounted_) return;
    server_ = fork();
    if (server_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Serve();
      _exit(0);
    }
    // Only the server holds this descriptor: its end also ends the processes
    // that wait for it.
    close(fd_);
    fd_ = -1;
  }
  ~GatedFileSystem() {
    if (mounted_) {
      umount2(folder_.c_str(), MNT_DETACH);
      kill(server_, SIGKILL);
      waitpid(server_, nullptr, 0);
    }
    if (fd_ >= 0) close(fd_);
    if (shared_ != MAP_FAILED) munmap(shared_, sizeof(Shared));
  }
  GatedFileSystem(const GatedFileSystem&) = delete;
  GatedFileSystem& operator=(const GatedFileSystem&) = delete;

  bool mounted() const { return mounted_; }
  // The largest number of reads that waited at once.
  size_t waiting_max() const { return shared_->waiting_max; }
  // Number of requests that hang now.
  size_t hanging() const { return shared_->hanging; }
  // From now on all requests are answered.
  void Recover() { shared_->recovered = true; }

 private:
  struct Read {
    uint64_t unique;
    size_t bytes;  // of the answer
  };
  struct Shared {
    std::atomic<size_t> waiting_max;  // written by the server
    std::atomic<size_t> hanging;      // likewise
    std::atomic<bool> recovered;      // written by the test
  };

  void Serve() {
    std::vector<char> buffer(1 << 17);
    std::vector<Read> waiting;
    const std::string content(kFileBytes, 'x');
    for (;;) {
      pollfd ready = {fd_, POLLIN, 0};
      if (!hung_.empty()) {
        if (shared_->recovered) {
          for (const Read& one : hung_) {
            if (one.bytes == 0) {
              ReplyOpened(one.unique);
            } else {
              Reply(one.unique, 0, content.data(), one.bytes);
            }
          }
          hung_.clear();
        }
        shared_->hanging = hung_.size();
        // There is no descriptor to poll for Recover().
        if (waiting.empty() && poll(&ready, 1, 10) == 0) continue;
      }
      if (waiting.size() >= gate_ ||
          poll(&ready, 1, waiting.empty() ? -1 : 500) == 0) {
        for (const Read& one : waiting) {
          Reply(one.unique, 0, content.data(), one.bytes);
        }
        waiting.clear();
        continue;
      }
      const ssize_t bytes = read(fd_, buffer.data(), buffer.size());
      if (bytes < 0 && (errno == EINTR || errno == ENOENT)) continue;
      if (bytes < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
      fuse_in_header request;
      std::memcpy(&request, buffer.data(), sizeof(request));
      if (request.opcode != FUSE_READ) {
        Answer(request, buffer.data() + sizeof(request));
        continue;
      }
      fuse_read_in wanted;
      std::memcpy(&wanted, buffer.data() + sizeof(request), sizeof(wanted));
      const Read one = {
          request.unique,
          wanted.offset >= kFileBytes
              ? 0
              : std::min<size_t>(wanted.size, kFileBytes - wanted.offset)};
      if (Hangs(request.nodeid, "hung_read")) {
        hung_.push_back(one);
        continue;
      }
      waiting.push_back(one);
      shared_->waiting_max =
          std::max<size_t>(shared_->waiting_max, waiting.size());
    }
  }

  bool Hangs(uint64_t node, const std::string& kind) const {
    const auto found = name_of_.find(node);
    return !shared_->recovered && found != name_of_.end() &&
           found->second.rfind(kind, 0) == 0;
  }

  void ReplyOpened(uint64_t unique) {
    fuse_open_out out = {};
    out.open_flags = FOPEN_DIRECT_IO;  // every read comes here
    Reply(unique, 0, &out, sizeof(out));
  }

  void Answer(const fuse_in_header& request, const char* argument) {
    switch (request.opcode) {
      case FUSE_INIT: {
        fuse_init_out out = {};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = 31;
        out.max_background = 64;
        out.congestion_threshold = 64;
        out.flags = FUSE_ASYNC_READ;
        out.max_write = 4096;
        return Reply(request.unique, 0, &out, sizeof(out));
      }
      case FUSE_LOOKUP: {
        fuse_entry_out out = {};
        out.nodeid = ++last_node_;
        name_of_[out.nodeid] = argument;
        out.attr_valid = out.entry_valid = 3600;
        out.attr = Attributes(out.nodeid);
        return Reply(request.unique, 0, &out, sizeof(out));
      }
      case FUSE_GETATTR: {
        fuse_attr_out out = {};
        out.attr_valid = 3600;
        out.attr = Attributes(request.nodeid);
        return Reply(request.unique, 0, &out, sizeof(out));
      }
      case FUSE_OPEN:
        if (Hangs(request.nodeid, "hung_open")) {
          hung_.push_back({request.unique, 0});
          return;
        }
        return ReplyOpened(request.unique);
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT:
        return;  // these requests take no answer
      case FUSE_RELEASE:
      case FUSE_FLUSH:
        return Reply(request.unique, 0, nullptr, 0);
      default:
        return Reply(request.unique, -ENOSYS, nullptr, 0);
    }
  }

  static fuse_attr Attributes(uint64_t node) {
    fuse_attr attributes = {};
    attributes.ino = node;
    attributes.nlink = 1;
    attributes.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
    attributes.size = node == FUSE_ROOT_ID ? 0 : kFileBytes;
    attributes.blksize = 4096;
    return attributes;
  }

  void Reply(uint64_t unique, int error, const void* data, size_t bytes) {
    fuse_out_header header = {};
    header.len = static_cast<uint32_t>(sizeof(header) + bytes);
    header.error = error;
    header.unique = unique;
    const iovec parts[2] = {{&header, sizeof(header)},
                            {const_cast<void*>(data), bytes}};
    (void)!writev(fd_, parts, bytes == 0 ? 1 : 2);
  }

  const std::string folder_;
  const size_t gate_;
  int fd_ = -1;
  bool mounted_ = false;
  pid_t server_ = -1;
  Shared* shared_;
  // In the server:
  uint64_t last_node_ = FUSE_ROOT_ID;
  std::map<uint64_t, std::string> name_of_;
  std::vector<Read> hung_;  // bytes 0: an open
};

}  // namespace penstock
#endif  // TESTS_SUPPORT_GATED_FILE_SYSTEM_H_
