// A file system whose reads wait for each other: it answers none before `gate`
// of them are waiting (or half a second has passed). So it tells reads that
// overlap from reads that are done one after the other, as NFS would, without
// a clock. It has no asynchronous reads of its own, also like NFS.
//
// FUSE without libfuse: one thread that talks to /dev/fuse. Needs root; where
// it cannot be mounted, mounted() is false. Every name exists, and is a file of
// kFileBytes times 'x'.
#ifndef TESTS_GATED_FILE_SYSTEM_H_
#define TESTS_GATED_FILE_SYSTEM_H_

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace penstock {

class GatedFileSystem {
 public:
  static constexpr size_t kFileBytes = 1000;

  GatedFileSystem(std::string folder, size_t gate)
      : folder_(std::move(folder)), gate_(gate) {
    fd_ = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd_ < 0) return;
    const std::string options =
        "fd=" + std::to_string(fd_) +
        ",rootmode=40000,user_id=" + std::to_string(getuid()) +
        ",group_id=" + std::to_string(getgid());
    mounted_ = mount("gated", folder_.c_str(), "fuse", MS_NOSUID | MS_NODEV,
                     options.c_str()) == 0;
    if (mounted_) server_ = std::thread([this] { Serve(); });
  }
  ~GatedFileSystem() {
    // The last unmount makes the read of /dev/fuse fail, which ends the thread.
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
    if (server_.joinable()) server_.join();
    if (fd_ >= 0) close(fd_);
  }
  GatedFileSystem(const GatedFileSystem&) = delete;
  GatedFileSystem& operator=(const GatedFileSystem&) = delete;

  bool mounted() const { return mounted_; }
  // The most reads that ever waited at once.
  size_t waiting_max() const { return waiting_max_.load(); }

 private:
  void Serve() {
    std::vector<char> buffer(1 << 17);
    std::vector<uint64_t> waiting;  // READ requests without an answer
    for (;;) {
      pollfd ready = {fd_, POLLIN, 0};
      if (waiting.size() >= gate_ ||
          poll(&ready, 1, waiting.empty() ? -1 : 500) == 0) {
        const std::string content(kFileBytes, 'x');
        for (const uint64_t unique : waiting) {
          Reply(unique, 0, content.data(), content.size());
        }
        waiting.clear();
        continue;
      }
      const ssize_t bytes = read(fd_, buffer.data(), buffer.size());
      if (bytes < 0 && (errno == EINTR || errno == ENOENT)) continue;
      if (bytes < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
      fuse_in_header request;
      std::memcpy(&request, buffer.data(), sizeof(request));
      if (request.opcode == FUSE_READ) {
        fuse_read_in read_in;
        std::memcpy(&read_in, buffer.data() + sizeof(request), sizeof(read_in));
        if (read_in.offset != 0) {
          Reply(request.unique, 0, nullptr, 0);
          continue;
        }
        waiting.push_back(request.unique);
        waiting_max_.store(std::max(waiting_max_.load(), waiting.size()));
        continue;
      }
      Answer(request);
    }
  }

  void Answer(const fuse_in_header& request) {
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
      case FUSE_OPEN: {
        fuse_open_out out = {};
        return Reply(request.unique, 0, &out, sizeof(out));
      }
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT:
        return;  // they take no answer
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
  uint64_t last_node_ = FUSE_ROOT_ID;
  std::atomic<size_t> waiting_max_{0};
  std::thread server_;
};

}  // namespace penstock
#endif  // TESTS_GATED_FILE_SYSTEM_H_
