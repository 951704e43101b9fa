// A file system for a state directory that a test can freeze, thaw and fill:
// one flat folder of files and symbolic links in the memory of its server.
//
// FUSE without libfuse, as gated_file_system.h; it needs root. The server is a
// process: one that is killed while it waits for a file system that it serves
// itself never ends. A process that is killed while it waits for this one ends
// when the gate is opened.
#ifndef TESTS_SUPPORT_GATED_STATE_DIRECTORY_H_
#define TESTS_SUPPORT_GATED_STATE_DIRECTORY_H_

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

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace penstock {

class GatedStateDirectory {
 public:
  explicit GatedStateDirectory(std::string folder)
      : folder_(std::move(folder)) {
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
    close(fd_);
    fd_ = -1;
  }
  ~GatedStateDirectory() {
    if (mounted_) {
      umount2(folder_.c_str(), MNT_DETACH);
      kill(server_, SIGKILL);
      waitpid(server_, nullptr, 0);
    }
    if (fd_ >= 0) close(fd_);
    if (shared_ != MAP_FAILED) munmap(shared_, sizeof(Shared));
  }
  GatedStateDirectory(const GatedStateDirectory&) = delete;
  GatedStateDirectory& operator=(const GatedStateDirectory&) = delete;

  bool mounted() const { return mounted_; }
  // From now on no request is answered. Returns at once.
  void Close() { shared_->closed = true; }
  // Answers all requests that hang, and later ones.
  void Open() { shared_->closed = false; }
  // Waits until a request hangs.
  void WaitUntilSomethingHangs() const {
    while (shared_->hanging == 0) std::this_thread::yield();
  }
  // Whether writes fail for lack of space.
  void SetFull(bool full) { shared_->full = full; }

 private:
  struct Shared {
    std::atomic<bool> closed;     // written by the test
    std::atomic<bool> full;       // likewise
    std::atomic<size_t> hanging;  // written by the server
  };
  struct Node {
    uint32_t mode = 0;
    std::string bytes;  // of a link: its target
  };
  using Request = std::vector<char>;

  void Serve() {
    Request buffer(size_t{1} << 18);
    std::vector<Request> held;
    for (;;) {
      pollfd ready = {fd_, POLLIN, 0};
      if (!held.empty()) {
        if (!shared_->closed) {
          for (const Request& request : held) Answer(request);
          held.clear();
        }
        shared_->hanging = held.size();
        // There is no descriptor to poll for Open().
        if (poll(&ready, 1, 10) == 0) continue;
      }
      const ssize_t bytes = read(fd_, buffer.data(), buffer.size());
      if (bytes < 0 && (errno == EINTR || errno == ENOENT)) continue;
      if (bytes < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
      Request request(buffer.begin(), buffer.begin() + bytes);
      switch (HeaderOf(request).opcode) {
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT:
          continue;  // these requests take no answer
        default:
          break;
      }
      if (shared_->closed) {
        held.push_back(std::move(request));
        shared_->hanging = held.size();
      } else {
        Answer(request);
      }
    }
  }

  static fuse_in_header HeaderOf(const Request& request) {
    fuse_in_header header;
    std::memcpy(&header, request.data(), sizeof(header));
    return header;
  }
  template <typename T>
  static T ArgumentOf(const Request& request) {
    T argument;
    std::memcpy(&argument, request.data() + sizeof(fuse_in_header),
                sizeof(argument));
    return argument;
  }

  void Answer(const Request& request) {
    const fuse_in_header header = HeaderOf(request);
    const char* const argument = request.data() + sizeof(header);
    Node& node = nodes_[header.nodeid];
    switch (header.opcode) {
      case FUSE_INIT: {
        fuse_init_out out = {};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = 31;
        out.flags = FUSE_BIG_WRITES;
        out.max_write = 1 << 17;
        return Reply(header, 0, &out, sizeof(out));
      }
      case FUSE_LOOKUP: {
        const auto found = names_.find(argument);
        if (found == names_.end()) return Reply(header, -ENOENT);
        return ReplyEntry(header, found->second);
      }
      case FUSE_GETATTR:
      case FUSE_SETATTR: {
        if (header.opcode == FUSE_SETATTR) {
          const auto wanted = ArgumentOf<fuse_setattr_in>(request);
          if ((wanted.valid & FATTR_SIZE) != 0) node.bytes.resize(wanted.size);
        }
        fuse_attr_out out = {};
        out.attr = Attributes(header.nodeid);
        return Reply(header, 0, &out, sizeof(out));
      }
      case FUSE_READLINK:
        return Reply(header, 0, node.bytes.data(), node.bytes.size());
      case FUSE_SYMLINK: {
        const std::string name = argument;
        if (names_.count(name) > 0) return Reply(header, -EEXIST);
        return ReplyEntry(
            header, Make(name, S_IFLNK | 0777, argument + name.size() + 1));
      }
      case FUSE_CREATE: {
        const std::string name = argument + sizeof(fuse_create_in);
        struct {
          fuse_entry_out entry = {};
          fuse_open_out open = {};
        } out;
        out.entry.nodeid = Make(name, S_IFREG | 0600, "");
        out.entry.attr = Attributes(out.entry.nodeid);
        out.open.open_flags = FOPEN_DIRECT_IO;
        return Reply(header, 0, &out, sizeof(out));
      }
      case FUSE_UNLINK:
        return Reply(header, names_.erase(argument) == 1 ? 0 : -ENOENT);
      case FUSE_RENAME:
      case FUSE_RENAME2: {
        const std::string from =
            argument + (header.opcode == FUSE_RENAME ? sizeof(fuse_rename_in)
                                                     : sizeof(fuse_rename2_in));
        const char* const to =
            argument +
            (header.opcode == FUSE_RENAME ? sizeof(fuse_rename_in)
                                          : sizeof(fuse_rename2_in)) +
            from.size() + 1;
        const auto found = names_.find(from);
        if (found == names_.end()) return Reply(header, -ENOENT);
        names_[to] = found->second;
        names_.erase(from);
        return Reply(header, 0);
      }
      case FUSE_OPEN:
      case FUSE_OPENDIR: {
        fuse_open_out out = {};
        if (header.opcode == FUSE_OPEN) out.open_flags = FOPEN_DIRECT_IO;
        return Reply(header, 0, &out, sizeof(out));
      }
      case FUSE_READ: {
        const auto wanted = ArgumentOf<fuse_read_in>(request);
        const std::string text =
            wanted.offset >= node.bytes.size()
                ? ""
                : node.bytes.substr(wanted.offset, wanted.size);
        return Reply(header, 0, text.data(), text.size());
      }
      case FUSE_WRITE: {
        if (shared_->full) return Reply(header, -ENOSPC);
        const auto wanted = ArgumentOf<fuse_write_in>(request);
        if (node.bytes.size() < wanted.offset + wanted.size) {
          node.bytes.resize(wanted.offset + wanted.size);
        }
        std::memcpy(node.bytes.data() + wanted.offset,
                    argument + sizeof(wanted), wanted.size);
        fuse_write_out out = {};
        out.size = wanted.size;
        return Reply(header, 0, &out, sizeof(out));
      }
      case FUSE_STATFS: {
        const fuse_statfs_out out = {};
        return Reply(header, 0, &out, sizeof(out));
      }
      case FUSE_RELEASE:
      case FUSE_RELEASEDIR:
      case FUSE_FLUSH:
      case FUSE_FSYNC:
      case FUSE_FSYNCDIR:
        return Reply(header, 0);
      default:
        return Reply(header, -ENOSYS);
    }
  }

  uint64_t Make(const std::string& name, uint32_t mode,
                const std::string& bytes) {
    const uint64_t node = ++last_node_;
    names_[name] = node;
    nodes_[node] = {mode, bytes};
    return node;
  }

  fuse_attr Attributes(uint64_t id) {
    const Node& node = nodes_[id];
    fuse_attr attributes = {};
    attributes.ino = id;
    attributes.nlink = 1;
    attributes.mode = id == FUSE_ROOT_ID ? S_IFDIR | 0700 : node.mode;
    attributes.uid = getuid();
    attributes.gid = getgid();
    attributes.size = node.bytes.size();
    attributes.blksize = 4096;
    return attributes;
  }

  void ReplyEntry(const fuse_in_header& header, uint64_t node) {
    fuse_entry_out out = {};
    out.nodeid = node;
    out.attr = Attributes(node);
    Reply(header, 0, &out, sizeof(out));
  }

  void Reply(const fuse_in_header& request, int error,
             const void* data = nullptr, size_t bytes = 0) {
    fuse_out_header header = {};
    header.len = static_cast<uint32_t>(sizeof(header) + bytes);
    header.error = error;
    header.unique = request.unique;
    const iovec parts[2] = {{&header, sizeof(header)},
                            {const_cast<void*>(data), bytes}};
    (void)!writev(fd_, parts, bytes == 0 ? 1 : 2);
  }

  const std::string folder_;
  int fd_ = -1;
  bool mounted_ = false;
  pid_t server_ = -1;
  Shared* shared_;
  // In the server:
  uint64_t last_node_ = FUSE_ROOT_ID;
  std::map<uint64_t, Node> nodes_;
  std::map<std::string, uint64_t> names_;
};

}  // namespace penstock
#endif  // TESTS_SUPPORT_GATED_STATE_DIRECTORY_H_
