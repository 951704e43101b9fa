// Promise: a peer of a control socket can neither block nor crash the other
// end, and messages arrive whole, with their descriptors. Method: socket pairs
// with messages of every size, foreign and damaged ones, and peers that close
// or do not read.
#include "common/message.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "common/wake.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::message_test {

using testing::HasSubstr;

class MessageTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    here_ = Fd(fds[0]);
    there_ = Fd(fds[1]);
  }
  void SendRaw(const std::string& text) {
    ASSERT_EQ(send(here_.get(), text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
  }
  StatusCode ReceivedCode() {
    return ReceiveMessage(there_.get()).status().code();
  }
  Fd here_;
  Fd there_;
};

TEST_F(MessageTest, JsonAndDescriptorsArriveTogether) {
  int pipe_fds[2];
  ASSERT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  const Fd read_end(pipe_fds[0]);
  Fd write_end(pipe_fds[1]);
  ASSERT_TRUE(
      SendMessage(here_.get(), {{"op", "x"}, {"n", 3}}, {write_end.get()})
          .ok());
  auto message = ReceiveMessage(there_.get());
  ASSERT_TRUE(message.ok() && message->has_value());
  EXPECT_EQ((**message).json["n"], 3);
  ASSERT_EQ((**message).fds.size(), 1u);
  EXPECT_EQ(write((**message).fds[0].get(), "y", 1), 1);
  char got;
  EXPECT_EQ(read(read_end.get(), &got, 1), 1);
  EXPECT_EQ(fcntl((**message).fds[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(MessageTest, NothingThereIsNotAnError) {
  const auto message = ReceiveMessage(there_.get());
  ASSERT_TRUE(message.ok());
  EXPECT_FALSE(message->has_value());
}

TEST_F(MessageTest, LargeMessageTravelsInAMemfd) {
  const std::string text(300'000, 'z');
  ASSERT_TRUE(SendMessage(here_.get(), {{"text", text}}).ok());
  auto message = ReceiveMessage(there_.get());
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ((**message).json["text"], text);
  EXPECT_TRUE((**message).fds.empty());
}

TEST_F(MessageTest, WhatIsNotOfTheProtocolIsRefused) {
  const std::string cases[] = {"no json",
                               "[1, 2]",
                               "{\"a\":",
                               "\xff\xfe",
                               std::string(40, '['),
                               std::string(60'000, '['),
                               "{\"large_bytes\": 5}",
                               "{\"large_bytes\": \"x\"}"};
  for (const std::string& text : cases) {
    SendRaw(text);
    EXPECT_EQ(ReceivedCode(), StatusCode::kInvalidArgument)
        << text.substr(0, 9);
  }
}

TEST_F(MessageTest, ClosedPeerIsUnavailable) {
  here_.Reset();
  EXPECT_EQ(ReceivedCode(), StatusCode::kUnavailable);
  EXPECT_EQ(SendMessage(there_.get(), {}).code(), StatusCode::kUnavailable);
}

TEST_F(MessageTest, PeerThatDoesNotReadIsNotWaitedFor) {
  Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) {
    status = SendMessage(here_.get(), {{"text", std::string(1000, 'x')}});
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST_F(MessageTest, UnsealedLargeMessageIsRefused) {
  const Fd memfd(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(write(memfd.get(), "{}", 2), 2);
  ASSERT_TRUE(
      SendMessage(here_.get(), {{"large_bytes", 2}}, {memfd.get()}).ok());
  EXPECT_EQ(ReceivedCode(), StatusCode::kInvalidArgument);
}

TEST_F(MessageTest, RequestGivesEventsThenTheAnswer) {
  std::thread broker([&] {
    std::optional<Message> request;
    while (!request) {
      auto received = ReceiveMessage(there_.get());
      ASSERT_TRUE(received.ok());
      request = std::move(*received);
      if (!request) std::this_thread::yield();
    }
    EXPECT_EQ(request->json["penstock"], kProtocolVersion);
    EXPECT_TRUE(
        SendMessage(there_.get(), {{"event", "progress"}, {"done", 1}}).ok());
    EXPECT_TRUE(
        SendMessage(there_.get(), ErrorReply(NotFoundError("no {}", "x")))
            .ok());
  });
  int events = 0;
  const auto answer = Request(here_.get(), {{"op", "index"}}, {}, std::nullopt,
                              [&](const nlohmann::json&) {
                                ++events;
                                return true;
                              });
  broker.join();
  EXPECT_EQ(events, 1);
  EXPECT_EQ(answer.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(answer.status().message(), "no x");
}

TEST_F(MessageTest, RequestKeepsItsDeadline) {
  const auto answer =
      Request(here_.get(), {{"op", "x"}}, {},
              std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  EXPECT_EQ(answer.status().code(), StatusCode::kDeadlineExceeded);
}

TEST(WakeTest, WakesAreEatenAndAGonePeerIsSeen) {
  auto pair = MakeWakePair();
  ASSERT_TRUE(pair.ok());
  for (int i = 0; i < 100'000; ++i)
    SendWake(pair->broker.get());  // never blocks
  while (true) {
    char byte;
    EXPECT_TRUE(DrainWakes(pair->rank.get()));
    if (recv(pair->rank.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0) break;
  }
  pair->broker.Reset();
  EXPECT_FALSE(DrainWakes(pair->rank.get()));
  SendWake(pair->rank.get());  // no SIGPIPE
}

}  // namespace penstock::message_test
