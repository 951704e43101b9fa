// Promise: penstockd takes the descriptors that libsystemd would take, by the
// same names, and tells a service manager what libsystemd would tell it.
// Method: children with the same descriptors and variables ask either; a socket
// receives the messages of both.
#include "broker/base/service_protocol.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::service_protocol_test {

using Variables = std::vector<std::pair<std::string, std::string>>;

std::string OfLibsystemd() {
  std::string found;
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(1, &names);
  for (int i = 0; i < count; ++i) {
    const int fd = SD_LISTEN_FDS_START + i;
    found += std::to_string(fd) + names[i];
    if (sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) > 0) found += " listens";
    found += std::to_string(fcntl(fd, F_GETFD)) + ";";
  }
  return found;
}

std::string OfOurs() {
  std::string found;
  for (const PassedFd& passed : TakePassedFds()) {
    const int fd = passed.fd.get();
    found += std::to_string(fd) + passed.name;
    if (IsListening(fd, AF_UNIX, SOCK_SEQPACKET)) found += " listens";
    found += std::to_string(fcntl(fd, F_GETFD)) + ";";
  }
  return found;
}

// What `ask` says in a child that has a memfd, a listening socket and one that
// does not listen as descriptors 3 to 5, and these variables ("self": its pid).
std::string InChild(const Variables& variables,
                    const std::function<std::string()>& ask) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const int out = fcntl(ends[1], F_DUPFD, 100);
    const int listening = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const sockaddr_un unnamed = {AF_UNIX, {}};
    bind(listening, reinterpret_cast<const sockaddr*>(&unnamed),
         sizeof(sa_family_t));
    listen(listening, 1);
    int fds[] = {memfd_create("m", 0), listening,
                 socket(AF_UNIX, SOCK_SEQPACKET, 0)};
    for (int& fd : fds) fd = fcntl(fd, F_DUPFD, 100);
    for (int i = 0; i < 3; ++i) dup2(fds[i], SD_LISTEN_FDS_START + i);
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(),
             value == "self" ? std::to_string(getpid()).c_str() : value.c_str(),
             1);
    }
    std::string answer = ask();
    for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) {
      if (getenv(name) != nullptr) answer += std::string(name) + " is left";
    }
    const ssize_t written = write(out, answer.data(), answer.size());
    _exit(written == static_cast<ssize_t>(answer.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string answer(1000, '\0');
  answer.resize(static_cast<size_t>(
      std::max<ssize_t>(read(ends[0], answer.data(), answer.size()), 0)));
  close(ends[0]);
  int status;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return answer;
}

TEST(ServiceProtocolTest, PassedDescriptorsAreThoseOfLibsystemd) {
  const std::string self = "self";
  for (const Variables& variables : {
           Variables{{"LISTEN_PID", self}, {"LISTEN_FDS", "3"}},
           Variables{{"LISTEN_PID", self},
                     {"LISTEN_FDS", "3"},
                     {"LISTEN_FDNAMES", "owner:a.socket:cursor-1-2"}},
           Variables{{"LISTEN_PID", self},
                     {"LISTEN_FDS", "1"},
                     {"LISTEN_FDNAMES", "stored"}},
           Variables{{"LISTEN_PID", self}, {"LISTEN_FDS", "0"}},
           Variables{{"LISTEN_PID", "1"}, {"LISTEN_FDS", "2"}},
           Variables{{"LISTEN_FDS", "2"}},
           Variables{{"LISTEN_PID", self}, {"LISTEN_FDS", "many"}},
           Variables{},
       }) {
    EXPECT_EQ(InChild(variables, &OfOurs), InChild(variables, &OfLibsystemd));
  }
  EXPECT_EQ(InChild({{"LISTEN_PID", self},
                     {"LISTEN_FDS", "2"},
                     {"LISTEN_FDNAMES", "x:y"}},
                    &OfOurs),
            "3x1;4y listens1;");
}

class Supervisor {
 public:
  explicit Supervisor(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                          path.size())),
              0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Supervisor() { unsetenv("NOTIFY_SOCKET"); }

  // The next message, and the size of the file that came with it.
  std::string Receive() {
    char text[100], control[CMSG_SPACE(sizeof(int))];
    iovec io = {text, sizeof(text)};
    msghdr message = {};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t bytes = recvmsg(socket_.get(), &message, 0);
    if (bytes < 0) return "nothing";
    std::string received(text, static_cast<size_t>(bytes));
    if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) {
      int number;
      std::memcpy(&number, CMSG_DATA(header), sizeof(number));
      const Fd fd(number);
      received += " +" + std::to_string(lseek(fd.get(), 0, SEEK_END));
    }
    return received;
  }

 private:
  const Fd socket_;
};

TEST(ServiceProtocolTest, MessagesAreThoseOfLibsystemd) {
  const Fd file(memfd_create("m", 0));
  ASSERT_EQ(ftruncate(file.get(), 12345), 0);
  std::string folder = testing::TempDir() + "/notify-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  for (const std::string& path :
       {folder + "/socket", "@" + folder + "/abstract"}) {
    Supervisor supervisor(path);
    ConnectServiceManager();
    NotifyServiceManager("READY=1\nSTATUS=serving");
    sd_notify(0, "READY=1\nSTATUS=serving");
    const std::string ours = supervisor.Receive();
    EXPECT_EQ(ours, "READY=1\nSTATUS=serving");
    EXPECT_EQ(ours, supervisor.Receive());

    NotifyServiceManager("FDSTORE=1", file.get());
    const int fd = file.get();
    sd_pid_notify_with_fds(0, 0, "FDSTORE=1", &fd, 1);
    EXPECT_EQ(supervisor.Receive(), "FDSTORE=1 +12345");
    EXPECT_EQ(supervisor.Receive(), "FDSTORE=1 +12345");
  }
  NotifyServiceManager("READY=1");  // to one that has ended
  ConnectServiceManager();
  NotifyServiceManager("READY=1");  // to nobody
  unlink((folder + "/socket").c_str());
  rmdir(folder.c_str());
}

}  // namespace penstock::service_protocol_test
