// Promise: the event loop runs tasks in the order in which they were posted,
// and a callback may unwatch its own descriptor. Method: another thread that
// posts; a pipe.
#include "broker/base/event_loop.h"

#include <fcntl.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "common/fd.h"
#include "gtest/gtest.h"

namespace penstock::event_loop_test {

TEST(EventLoopTest, PostedTasksRunOnTheLoopInOrder) {
  auto loop = EventLoop::Make();
  ASSERT_TRUE(loop.ok());
  std::vector<int> ran;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) {
      (*loop)->Post([&ran, i] { ran.push_back(i); });
    }
    (*loop)->Post([&] { (*loop)->Stop(); });
  });
  (*loop)->Run();
  other.join();
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[i], i);
}

TEST(EventLoopTest, WhatEventsAskForComesAfterAllOfThem) {
  auto loop = EventLoop::Make();
  ASSERT_TRUE(loop.ok());
  std::vector<int> ran;
  (*loop)->Post([&] {
    ran.push_back(1);
    (*loop)->AfterEvents([&] {
      ran.push_back(3);
      (*loop)->Stop();
    });
  });
  (*loop)->Post([&] { ran.push_back(2); });
  (*loop)->Run();
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
}

TEST(EventLoopTest, CallbackMayUnwatchItself) {
  auto loop = EventLoop::Make();
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const Fd read_end(fds[0]);
  const Fd write_end(fds[1]);
  int calls = 0;
  ASSERT_TRUE((*loop)
                  ->Watch(read_end.get(),
                          [&](uint32_t) {
                            ++calls;
                            (*loop)->Unwatch(read_end.get());
                            (*loop)->Post([&] { (*loop)->Stop(); });
                          })
                  .ok());
  ASSERT_EQ(write(write_end.get(), "x", 1), 1);
  (*loop)->Run();
  EXPECT_EQ(calls, 1);
}

}  // namespace penstock::event_loop_test
