// Promise: whatever the process that fetches answers, and whenever it ends, the
// broker goes on, and who waits for a range has it from the next process.
// Method: a double of that process at the other end of the socket.
#include "broker/fetch/fetcher.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/folder_fixture.h"

namespace penstock::fetcher_test {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// A packet of numbers: kind, copy, offset, bytes.
using Range = std::array<uint64_t, 4>;

class FetcherTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    const std::string path = folder_ / "fetch";
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    listener_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    LimitWaits(listener_.get());
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)),
              0);
    ASSERT_EQ(listen(listener_.get(), 1), 0);
    data_ = Fd(memfd_create("copy", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(data_.get(), 4096), 0);
    fetcher_ = *Fetcher::Connect(path);
  }
  void TearDown() override {
    link_ = Fd();
    fetcher_.reset();
    FolderTest::TearDown();
  }

  // The process that fetches: the next one, which is told its first copy.
  void Begin() {
    link_ = Fd();
    link_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(link_);
    LimitWaits(link_.get());
    copy_ = Asked().value("first", uint64_t{0});
    ASSERT_GT(copy_, 0);
  }
  std::string Packet() {
    std::string packet(64 << 10, '\0');
    const ssize_t bytes = recv(link_.get(), packet.data(), packet.size(), 0);
    EXPECT_GT(bytes, 0) << std::strerror(errno);
    packet.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    return packet;
  }
  // The next call: ranges are passed over.
  json Asked() {
    json asked;
    while (!asked.is_object() && !HasFailure()) {
      asked = json::parse(Packet(), nullptr, false);
    }
    return asked;
  }
  // The first that is asked of this process's copies.
  Range AskedRange() {
    Range range = {};
    while (!HasFailure()) {
      const std::string packet = Packet();
      for (size_t at = 0; at + sizeof(range) <= packet.size();
           at += sizeof(range)) {
        std::memcpy(range.data(), packet.data() + at, sizeof(range));
        if (range[1] == copy_) return range;
      }
    }
    return range;
  }
  void Answer(const std::string& packet, int fd = -1) {
    iovec data = {const_cast<char*>(packet.data()), packet.size()};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
    }
    EXPECT_EQ(sendmsg(link_.get(), &message, MSG_NOSIGNAL),
              static_cast<ssize_t>(packet.size()));
  }
  void AnswerOpened(const json& asked, uint64_t bytes = 4096) {
    Answer(json{{"call", asked["call"]},
                {"copy", copy_},
                {"bytes", bytes},
                {"version", "1"}}
               .dump(),
           data_.get());
  }

  auto List() {
    return std::async(std::launch::async,
                      [this] { return fetcher_->List("s3://a/*", cancel_); });
  }
  auto Open() {
    return std::async(std::launch::async, [this] {
      return fetcher_->Open("s3://a/b", std::nullopt, cancel_);
    });
  }

  static void LimitWaits(int fd) {
    const timeval limit = {.tv_sec = 30, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }

  Fd listener_;
  Fd link_;
  Fd data_;
  uint64_t copy_ = 0;
  std::atomic<bool> cancel_{false};
  std::unique_ptr<Fetcher> fetcher_;
};

TEST_F(FetcherTest, AnswersThatAreMalformedAreErrors) {
  auto listed = List();
  Begin();
  json asked = Asked();
  for (const char* const odd :
       {R"({"use":7})", R"({"use":{"bytes":"7"}})", R"({"span":[7]})",
        R"({"call":"7"})", R"({"copy":{},"error":7})", R"({"more":{}})"}) {
    Answer(odd);
  }
  const std::string deep(30'000, '[');
  Answer(R"({"use":{"a":)" + deep + std::string(deep.size(), ']') + "}}");
  Answer(json{{"call", asked["call"]}, {"more", 1}}.dump());
  EXPECT_THAT(listed.get().status().message(), HasSubstr("s3://a/*: "));
  EXPECT_LT(fetcher_->UseJson().dump().size(), 1000);

  for (const json& urls : {json("s3://a/b"), json::array({7})}) {
    listed = List();
    Answer(json{{"call", Asked()["call"]}, {"urls", urls}}.dump());
    EXPECT_EQ(listed.get().status().code(), StatusCode::kUnavailable);
  }
  auto opened = Open();
  AnswerOpened(Asked(), ~uint64_t{0});
  EXPECT_EQ(opened.get().status().code(), StatusCode::kUnavailable);

  listed = List();
  asked = Asked();
  for (const bool more : {true, false}) {
    Answer(json{{"call", asked["call"]}, {"urls", {"s3://a/b"}}, {"more", more}}
               .dump());
  }
  EXPECT_THAT(*listed.get(), ElementsAre("s3://a/b", "s3://a/b"));
}

// The process may have ended, and another one may serve, before the thread that
// opened the file has it.
TEST_F(FetcherTest, AFileOfAProcessThatEndsAtOnceIsOpenedAgain) {
  for (int i = 0; i < 200; ++i) {
    auto opened = Open();
    if (i == 0) Begin();
    json asked = Asked();
    AnswerOpened(asked);
    Begin();
    const std::shared_ptr<RemoteFile> file = *opened.get();
    asked = Asked();
    ASSERT_TRUE(asked.contains("inode")) << asked << " in round " << i;
    AnswerOpened(asked);
    const auto signal = std::make_shared<FetchSignal>();
    const auto wait = std::make_shared<FetchWait>(signal);
    HeldRanges held(file.get(), {{0, 4096}}, wait, RemoteFile::Ask::kHurry);
    Range range = AskedRange();
    range[0] = 1;  // kept
    Answer({reinterpret_cast<const char*>(range.data()), sizeof(range)});
    signal->Wait(30'000'000'000);
    ASSERT_TRUE(wait->over());
  }
}

TEST_F(FetcherTest, TheProcessIsToldThatNobodyWaits) {
  auto listed = List();
  Begin();
  const json asked = Asked();
  cancel_.store(true);
  EXPECT_EQ(listed.get().status().code(), StatusCode::kCancelled);
  EXPECT_EQ(Asked(), json({{"cancel", asked["call"]}}));
}

}  // namespace penstock::fetcher_test
