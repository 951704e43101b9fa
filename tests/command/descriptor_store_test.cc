// Promise: a private broker keeps exactly the descriptors that systemd's
// protocol would keep, within its limits, and leaks none. Method: libsystemd's
// own messages, foreign senders, broken messages, more descriptors and names
// than are allowed.
#include "client/private_broker/descriptor_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "client/private_broker/process.h"

namespace penstock::descriptor_store_test {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    count += entry.exists() ? 1 : 0;
  }
  return count;
}

Fd MemFd(const std::string& text = "") {
  Fd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(write(fd.get(), text.data(), text.size()),
            static_cast<ssize_t>(text.size()));
  return fd;
}

class DescriptorStoreTest : public testing::Test {
 protected:
  DescriptorStoreTest() {
    std::string name = testing::TempDir() + "/penstock-store-XXXXXX";
    folder_ = mkdtemp(name.data());
    path_ = folder_ + "/notify";
    before_ = OpenDescriptors();
    EXPECT_TRUE(store_.Listen(path_).ok());
    store_.Expect(getpid());
  }
  ~DescriptorStoreTest() override {
    store_.Close();
    EXPECT_EQ(OpenDescriptors(), before_) << "a descriptor is left open";
    std::filesystem::remove_all(folder_);
  }

  void Send(const std::string& text, const std::vector<int>& fds = {}) {
    const Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    iovec part{const_cast<char*>(text.data()), text.size()};
    msghdr header{};
    header.msg_name = &address;
    header.msg_namelen = sizeof(address);
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
    if (!fds.empty()) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* const c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    }
    ASSERT_EQ(sendmsg(socket.get(), &header, MSG_DONTWAIT),
              static_cast<ssize_t>(text.size()))
        << strerror(errno);
  }
  // Sends a message and receives it.
  void Notify(const std::string& text, const std::vector<int>& fds = {}) {
    Send(text, fds);
    store_.Receive();
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const StoredDescriptor& stored : store_.descriptors()) {
      names.push_back(stored.name);
    }
    return names;
  }
  std::string Content(size_t i) {
    char text[100] = {};
    EXPECT_GE(
        pread(store_.descriptors()[i].fd.get(), text, sizeof(text) - 1, 0), 0);
    return text;
  }

  std::string folder_;
  std::string path_;
  size_t before_;
  DescriptorStore store_;
};

TEST_F(DescriptorStoreTest, WhatLibsystemdSendsIsUnderstood) {
  setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  const Fd first = MemFd("first"), second = MemFd("second");
  int fd = first.get();
  EXPECT_GT(sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDNAME=cursor-1\nFDPOLL=0",
                                   &fd, 1),
            0);
  fd = second.get();
  EXPECT_GT(sd_pid_notify_with_fds(0, 0, "FDSTORE=1", &fd, 1), 0);
  EXPECT_GT(sd_notify(0, "READY=1\nSTATUS=serving"), 0);
  unsetenv("NOTIFY_SOCKET");
  EXPECT_FALSE(store_.ready());
  store_.Receive();
  EXPECT_TRUE(store_.ready());
  EXPECT_FALSE(store_.stopping());
  EXPECT_THAT(Names(), ElementsAre("cursor-1", DescriptorStore::kNameless));
  EXPECT_EQ(Content(0), "first");
  EXPECT_EQ(Content(1), "second");
  for (const StoredDescriptor& stored : store_.descriptors()) {
    EXPECT_EQ(fcntl(stored.fd.get(), F_GETFD), FD_CLOEXEC);
  }
}

TEST_F(DescriptorStoreTest, RemovingTakesAllOfANameAndNoOther) {
  const Fd a = MemFd(), b = MemFd(), c = MemFd();
  Notify("FDSTORE=1\nFDNAME=x", {a.get(), b.get()});
  Notify("FDSTORE=1\nFDNAME=y", {c.get()});
  Notify("FDSTOREREMOVE=1");
  Notify("FDSTOREREMOVE=1\nFDNAME=z");
  EXPECT_THAT(Names(), ElementsAre("x", "x", "y"));
  Notify("FDSTOREREMOVE=1\nFDNAME=x");
  EXPECT_THAT(Names(), ElementsAre("y"));
}

TEST_F(DescriptorStoreTest, OneMessageReplacesADescriptor) {
  const Fd former = MemFd("former"), next = MemFd("next");
  Notify("FDSTORE=1\nFDNAME=x", {former.get()});
  Notify("FDSTOREREMOVE=1\nFDSTORE=1\nFDNAME=x", {next.get()});
  EXPECT_THAT(Names(), ElementsAre("x"));
  EXPECT_EQ(Content(0), "next");
}

TEST_F(DescriptorStoreTest, TheSameFileUnderTheSameNameIsStoredOnce) {
  const Fd a = MemFd();
  // Another open file of the same inode, as /proc gives it.
  const std::string again = "/proc/self/fd/" + std::to_string(a.get());
  const Fd reopened(open(again.c_str(), O_RDONLY | O_CLOEXEC));
  Notify("FDSTORE=1\nFDNAME=x", {a.get(), a.get(), reopened.get()});
  Notify("FDSTORE=1\nFDNAME=x", {a.get()});
  EXPECT_THAT(Names(), ElementsAre("x"));
  Notify("FDSTORE=1\nFDNAME=y", {a.get()});
  EXPECT_THAT(Names(), ElementsAre("x", "y"));
}

TEST_F(DescriptorStoreTest, PidfdsOfTwoProcessesAreTwoFiles) {
  // All pidfds share one inode before Linux 6.9.
  const Fd own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const Fd other(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
  Notify("FDSTORE=1\nFDNAME=x", {own.get(), other.get()});
  EXPECT_THAT(Names(), ElementsAre("x", "x"));
}

TEST_F(DescriptorStoreTest, OnlyTheExpectedProcessIsListenedTo) {
  const Fd fd = MemFd();
  const pid_t pid = fork();
  if (pid == 0) {
    Send("READY=1\nFDSTORE=1\nFDNAME=foreign", {fd.get()});
    _exit(0);
  }
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  Send("FDSTORE=1\nFDNAME=own", {fd.get()});
  store_.Receive();
  EXPECT_FALSE(store_.ready());
  EXPECT_THAT(Names(), ElementsAre("own"));
  // The next instance is another process.
  store_.Expect(pid);
  Notify("READY=1\nSTOPPING=1\nFDSTOREREMOVE=1\nFDNAME=own");
  EXPECT_FALSE(store_.ready());
  EXPECT_FALSE(store_.stopping());
  EXPECT_THAT(Names(), ElementsAre("own"));
}

TEST_F(DescriptorStoreTest, ANewInstanceHasNotNotified) {
  Notify("READY=1");
  Notify("STOPPING=1");
  EXPECT_TRUE(store_.ready());
  EXPECT_TRUE(store_.stopping());
  store_.Expect(getpid());
  EXPECT_FALSE(store_.ready());
  EXPECT_FALSE(store_.stopping());
}

TEST_F(DescriptorStoreTest, BrokenMessagesStoreNothingAndLeaveNothingOpen) {
  const Fd fd = MemFd();
  const std::string long_name(DescriptorStore::kNameBytesMax + 1, 'n');
  for (const std::string& text :
       std::vector<std::string>{"x",
                                "\n\n",
                                "FDNAME=x",
                                "FDSTORE",
                                "FDSTORE=",
                                "FDSTORE=0\nFDNAME=x",
                                "FDSTORE=11\nFDNAME=x",
                                " FDSTORE=1\nFDNAME=x",
                                "FDSTORE=1 FDNAME=x",
                                "FDSTORE=1\nFDNAME=",
                                "FDSTORE=1\nFDNAME=a:b",
                                "FDSTORE=1\nFDNAME=tab\t",
                                "FDSTORE=1\nFDNAME=\x7f",
                                "FDSTORE=1\nFDNAME=n\xc3\xa4me",
                                "FDSTORE=1\nFDNAME=" + long_name,
                                "FDSTORE=1\nFDNAME=a:b\nFDNAME=x",
                                std::string("FDSTORE=1\nFDNAME=x\0y", 20),
                                "READY",
                                "READY=",
                                "READY=1" + std::string(5000, '\n'),
                                "STOPPING=10"}) {
    Notify(text, {fd.get(), fd.get()});
    EXPECT_THAT(store_.descriptors(), IsEmpty()) << text;
  }
  Notify("FDSTORE=1\nFDNAME=x");
  EXPECT_THAT(store_.descriptors(), IsEmpty());
  EXPECT_FALSE(store_.ready());
  EXPECT_FALSE(store_.stopping());
  EXPECT_EQ(OpenDescriptors(), before_ + 2);  // the store's socket and fd
  Notify("FDSTORE=1\nFDNAME=" + long_name.substr(1), {fd.get()});
  EXPECT_THAT(store_.descriptors(), SizeIs(1));
}

TEST_F(DescriptorStoreTest, ADatagramWithoutTextDoesNoHarm) {
  const Fd fd = MemFd();
  Send("");
  Notify("READY=1");
  EXPECT_TRUE(store_.ready());
}

TEST_F(DescriptorStoreTest, NoMoreDescriptorsThanTheLimitAreKept) {
  RaiseDescriptorLimit();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < DescriptorStore::kDescriptorsMax + 500) {
    GTEST_SKIP() << "only " << limit.rlim_cur << " descriptors are allowed";
  }
  constexpr size_t kAtOnce = 250;
  for (size_t i = 0; i * kAtOnce <= DescriptorStore::kDescriptorsMax; ++i) {
    std::vector<Fd> fds;
    std::vector<int> numbers;
    for (size_t j = 0; j < kAtOnce; ++j) {
      fds.push_back(MemFd());
      numbers.push_back(fds.back().get());
    }
    Notify("FDSTORE=1\nFDNAME=" + std::to_string(i), numbers);
  }
  EXPECT_THAT(store_.descriptors(), SizeIs(DescriptorStore::kDescriptorsMax));
  EXPECT_EQ(OpenDescriptors(), before_ + 1 + DescriptorStore::kDescriptorsMax);
  // A removal frees a place.
  const Fd fd = MemFd();
  Notify("FDSTOREREMOVE=1\nFDNAME=0");
  Notify("FDSTORE=1\nFDNAME=new", {fd.get()});
  EXPECT_EQ(Names().back(), "new");
}

TEST_F(DescriptorStoreTest, AllNamesFitIntoOneEnvironmentString) {
  const Fd fd = MemFd();
  const std::string filler(DescriptorStore::kNameBytesMax - 5, 'n');
  for (int i = 10000; i < 10600; ++i) {
    Notify("FDSTORE=1\nFDNAME=" + std::to_string(i) + filler, {fd.get()});
  }
  EXPECT_THAT(store_.descriptors(),
              SizeIs(DescriptorStore::kAllNamesBytesMax /
                     (DescriptorStore::kNameBytesMax + 1)));
  ProcessSpec spec;
  spec.argv = {"true"};
  for (const StoredDescriptor& stored : store_.descriptors()) {
    spec.listen_fds.push_back({stored.fd.get(), stored.name});
  }
  StatusOr<Process> process = Process::Start(spec);
  ASSERT_TRUE(process.ok()) << process.status().message();
  EXPECT_TRUE(process->WaitFor(60).has_value());
  process->Reap();
}

TEST_F(DescriptorStoreTest, WithoutDescriptorsLeftAMessageIsDroppedAsAWhole) {
  std::vector<Fd> fds;
  std::vector<int> numbers;
  for (int i = 0; i < 5; ++i) {
    fds.push_back(MemFd());
    numbers.push_back(fds.back().get());
  }
  Send("FDSTORE=1\nFDNAME=x", numbers);
  const size_t open = OpenDescriptors();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlimit low = limit;
  low.rlim_cur = static_cast<rlim_t>(numbers.back()) + 3;  // for two of five
  setrlimit(RLIMIT_NOFILE, &low);
  store_.Receive();
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_THAT(store_.descriptors(), IsEmpty());
  EXPECT_EQ(OpenDescriptors(), open);
}

}  // namespace penstock::descriptor_store_test
