#include "client/private_broker/descriptor_store.h"

#include <linux/kcmp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "common/message.h"
#include "common/packet.h"

namespace penstock {
namespace {

// systemd's limit of one message; a longer one is dropped.
constexpr size_t kNotifyBytesMax = 4096;
// More than a queue holds (systemd sets it to 512): one Receive takes all
// messages of a process that has ended.
constexpr int kMessagesPerTurn = 1024;

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= DescriptorStore::kNameBytesMax &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return c >= ' ' && c < 127 && c != ':'; });
}

// Some containers refuse kcmp; then fstat decides, but not for pidfds, which
// share one inode before Linux 6.9.
bool IsSameFile(int a, int b) {
  const pid_t self = getpid();
  const long order = syscall(SYS_kcmp, self, self, KCMP_FILE, a, b);
  if (order == 0) return true;
  struct stat one, other;
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 && S_ISREG(one.st_mode) &&
         S_ISREG(other.st_mode) && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

}  // namespace

Status DescriptorStore::Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError("notify socket '{}' is longer than {} bytes",
                                path, sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError(errno, "socket");
  // Before the bind: messages sent earlier would carry no credentials.
  const int on = 1;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ||
      bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) !=
          0) {
    return ErrnoError(errno, "cannot receive at '" + path + "'");
  }
  socket_ = std::move(fd);
  return OkStatus();
}

void DescriptorStore::Expect(pid_t pid) {
  expected_ = pid;
  ready_ = false;
  stopping_ = false;
  explained_ = false;
  status_.clear();
}

void DescriptorStore::Receive() {
  if (!socket_) return;
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    char text[kNotifyBytesMax];
    std::optional<Packet> datagram = ReceivePacket(socket_.get(), text);
    if (!datagram) return;
    // MSG_CTRUNC: this process ran out of descriptors.
    if ((datagram->flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
        !datagram->sender || datagram->sender->pid != expected_ ||
        datagram->sender->uid != geteuid()) {
      continue;
    }
    Obey(std::string(text, datagram->bytes), std::move(datagram->fds));
  }
}

void DescriptorStore::Obey(const std::string& text, std::vector<Fd> fds) {
  if (text.find('\0') != std::string::npos) return;
  bool keep = false, remove = false;
  std::optional<std::string> name;
  for (const std::string& line : SplitText(text, '\n')) {
    // FDPOLL=0 needs no action: stored descriptors are never polled.
    if (line == "READY=1") {
      ready_ = true;
    } else if (line == "STOPPING=1") {
      stopping_ = true;
    } else if (line == "X_PENSTOCK_EXPLAINED=1") {
      explained_ = true;
    } else if (line == "FDSTORE=1") {
      keep = true;
    } else if (line == "FDSTOREREMOVE=1") {
      remove = true;
    } else if (line.starts_with("FDNAME=") && !name) {
      name = line.substr(std::strlen("FDNAME="));
    } else if (line.starts_with("STATUS=")) {
      status_ = line.substr(std::strlen("STATUS="));
    }
  }
  // In this order, as systemd does: one message can replace a descriptor.
  if (remove && name) Remove(*name);
  if (!keep) return;
  for (Fd& fd : fds) Keep(name.value_or(kNameless), std::move(fd));
}

void DescriptorStore::Keep(const std::string& name, Fd fd) {
  if (!IsName(name) || descriptors_.size() >= kDescriptorsMax ||
      name_bytes_ + name.size() + 1 > kAllNamesBytesMax) {
    return;
  }
  for (const StoredDescriptor& stored : descriptors_) {
    if (stored.name == name && IsSameFile(stored.fd.get(), fd.get())) return;
  }
  name_bytes_ += name.size() + 1;
  descriptors_.push_back({name, std::move(fd)});
}

void DescriptorStore::Remove(const std::string& name) {
  name_bytes_ -=
      (name.size() + 1) *
      std::erase_if(descriptors_, [&](const StoredDescriptor& stored) {
        if (stored.name != name) return false;
        if (before_removal_) before_removal_(stored.fd.get());
        return true;
      });
}

void DescriptorStore::Close() {
  socket_.Reset();
  descriptors_.clear();
  name_bytes_ = 0;
}

}  // namespace penstock
