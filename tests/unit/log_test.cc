// Promise: a message is one entry of systemd's journal with its fields, however
// large, or a line on standard error; of one cause only so many are written,
// whatever a client does, and what was left out is counted; each message has
// what an administrator needs. Method: a socket of ours takes the entries;
// times are made up.
#include "broker/base/log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "broker/base/journald.h"
#include "broker/base/log_limiter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::log_test {

using testing::HasSubstr;

// The receiving end of the journal's protocol.
class FakeJournal {
 public:
  FakeJournal() {
    char folder[] = "/tmp/penstock-log-XXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ + "/socket";
    Listen();
  }
  ~FakeJournal() {
    close(socket_);
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }

  void Listen() {
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    unlink(path_.c_str());
    EXPECT_EQ(
        bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
        0);
  }
  void Restart() {
    close(socket_);
    Listen();
  }

  // The next entry; empty: there is none. *in_memory: it came as a file.
  std::map<std::string, std::string> Take(bool* in_memory = nullptr) {
    std::string text(1 << 16, '\0');
    iovec part = {text.data(), text.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t bytes = recvmsg(socket_, &message, MSG_DONTWAIT);
    if (bytes < 0) return {};
    text.resize(static_cast<size_t>(bytes));
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (in_memory != nullptr) *in_memory = header != nullptr;
    if (header != nullptr) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
      EXPECT_EQ(text, "");
      EXPECT_EQ(fcntl(fd, F_GET_SEALS),
                F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
      struct stat found {};
      fstat(fd, &found);
      text.resize(static_cast<size_t>(found.st_size));
      EXPECT_EQ(pread(fd, text.data(), text.size(), 0), found.st_size);
      close(fd);
    }
    return Parsed(text);
  }

  const std::string& path() const { return path_; }

 private:
  static std::map<std::string, std::string> Parsed(const std::string& text) {
    std::map<std::string, std::string> fields;
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find_first_of("=\n", at);
      const std::string name = text.substr(at, end - at);
      uint64_t bytes = 0;
      size_t begin = end + 1;
      if (text[end] == '=') {
        bytes = text.find('\n', begin) - begin;
      } else {
        std::memcpy(&bytes, &text[begin], sizeof(bytes));
        begin += sizeof(bytes);
      }
      EXPECT_TRUE(fields.emplace(name, text.substr(begin, bytes)).second)
          << name;
      EXPECT_EQ(text[begin + bytes], '\n');
      at = begin + bytes + 1;
    }
    return fields;
  }

  std::string folder_;
  std::string path_;
  int socket_ = -1;
};

TEST(LogTest, AMessageIsOneEntryWithItsFields) {
  FakeJournal journal;
  LogToJournalAt(journal.path());
  Log<"rank-died">(LogJob{"train", "images", 7, 3}, 12u);
  EXPECT_THAT(journal.Take(),
              testing::UnorderedElementsAre(
                  testing::Pair("MESSAGE", "job 'train': rank 12 died"),
                  testing::Pair("PRIORITY", "6"),
                  testing::Pair("SYSLOG_IDENTIFIER", "penstockd"),
                  testing::Pair("MESSAGE_ID", MessageNamed("rank-died")->id),
                  testing::Pair("PENSTOCK_MESSAGE", "rank-died"),
                  testing::Pair("PENSTOCK_JOB", "train"),
                  testing::Pair("PENSTOCK_DATASET", "images"),
                  testing::Pair("PENSTOCK_UID", "7"),
                  testing::Pair("PENSTOCK_CONSUMER", "3"),
                  testing::Pair("PENSTOCK_RANK", "12")));
  // Text of others forges neither a field nor a line.
  Log<"function-ended">("f", "one\nPRIORITY=0\n\x1b[2J");
  auto entry = journal.Take();
  EXPECT_EQ(entry["PRIORITY"], "4");
  EXPECT_EQ(entry["PENSTOCK_ERROR"], "one\nPRIORITY=0\n\x1b[2J");
  EXPECT_THAT(entry["MESSAGE"], testing::StartsWith("python f: one\n"));
  EXPECT_THAT(entry["MESSAGE"], Not(HasSubstr("\x1b")));
  EXPECT_TRUE(journal.Take().empty());
  SetLogLevel(LogLevel::kWarning);
  Log<"rank-died">(LogJob{"train", "images", 7, {}}, 12u);
  EXPECT_TRUE(journal.Take().empty());
  SetLogLevel(LogLevel::kInfo);
}

TEST(LogTest, WhatDoesNotFitIntoADatagramGoesAsAFile) {
  FakeJournal journal;
  LogToJournalAt(journal.path());
  const std::string large(10'000'000, 'x');
  bool in_memory = false;
  Log<"failed">(large);
  EXPECT_EQ(journal.Take(&in_memory)["MESSAGE"], large);
  EXPECT_TRUE(in_memory);
  Log<"failed">("small");
  EXPECT_EQ(journal.Take(&in_memory)["MESSAGE"], "small");
  EXPECT_FALSE(in_memory);
}

TEST(LogTest, AJournalThatDoesNotReadLosesMessagesAndIsToldHowMany) {
  FakeJournal journal;
  LogToJournalAt(journal.path());
  // The kernel keeps a few: net.unix.max_dgram_qlen.
  int sent = 0;
  while (!LogHoldsBack()) {
    Log<"job-failed">(LogJob{Format("job {}", sent), "", 7, {}}, "-");
    // A user may no more at once.
    if (++sent == 95) GTEST_SKIP() << "net.unix.max_dgram_qlen is large";
  }
  const int taken = sent - 1;
  Log<"state-well">("a");  // lost too, without a wait
  for (int i = 0; i < taken; ++i) EXPECT_FALSE(journal.Take().empty());
  EXPECT_TRUE(journal.Take().empty());
  FlushLog();
  EXPECT_EQ(journal.Take()["PENSTOCK_COUNT"], "2");
  EXPECT_FALSE(LogHoldsBack());
  // One that is started again.
  journal.Restart();
  Log<"state-well">("b");
  EXPECT_EQ(journal.Take()["PENSTOCK_DIRECTORY"], "b");
}

TEST(LogTest, AMessageThatIsLeftOutIsNotWritten) {
  FakeJournal journal;
  LogToJournalAt(journal.path());
  EXPECT_FALSE(LeaveOutOfLog("no-such-message"));
  EXPECT_TRUE(LeaveOutOfLog("job-warning"));
  Log<"job-warning">(LogJob{"train", "images", 7, {}}, "of lines");
  EXPECT_TRUE(journal.Take().empty());
  Log<"job-failed">(LogJob{"train", "images", 7, {}}, "of files");
  EXPECT_FALSE(journal.Take().empty());
}

TEST(LogTest, WithoutAJournalAMessageIsALine) {
  LogToJournalAt("/nonexistent/socket");
  testing::internal::CaptureStderr();
  Log<"state-well">("/var/lib\x1b");
  EXPECT_EQ(
      testing::internal::GetCapturedStderr(),
      "penstockd: the state directory /var/lib? is written again, nothing "
      "is missing\n");
}

TEST(LogTest, StandardErrorIsTheJournalIfTheServiceManagerSaysSo) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  struct stat found {};
  ASSERT_EQ(fstat(ends[1], &found), 0);
  unsetenv("JOURNAL_STREAM");
  EXPECT_FALSE(IsJournal(ends[1]));
  const std::string stream = Format("{}:{}", found.st_dev, found.st_ino);
  setenv("JOURNAL_STREAM", stream.c_str(), 1);
  EXPECT_TRUE(IsJournal(ends[1]));
  EXPECT_FALSE(IsJournal(STDERR_FILENO));  // redirected since
  setenv("JOURNAL_STREAM", (stream + "0").c_str(), 1);
  EXPECT_FALSE(IsJournal(ends[1]));
  EXPECT_FALSE(IsJournal(-1));
  unsetenv("JOURNAL_STREAM");
}

class LimiterTest : public testing::Test {
 protected:
  // How many of so many are written at that second.
  int Admitted(int tries, const LogCause& cause, int second,
               const LogMessage& message) {
    int admitted = 0;
    for (int i = 0; i < tries; ++i) {
      admitted += limiter_.Admit(message, cause, At(second), &told_) ? 1 : 0;
    }
    return admitted;
  }
  int Admitted(int tries, const LogCause& cause, int second) {
    constexpr const LogMessage* kDied = MessageNamed("rank-died");
    return Admitted(tries, cause, second, *kDied);
  }
  LogLimiter::Time At(int second) const {
    return start_ + std::chrono::seconds(second);
  }

  LogLimiter limiter_;
  LogLimiter::Time start_ = std::chrono::steady_clock::now();
  std::vector<HeldBack> told_;
};

TEST_F(LimiterTest, ACauseWritesTwentyThenOneInHalfAMinute) {
  const LogCause train = {7, "train"};
  EXPECT_EQ(Admitted(1000, train, 0), 20);
  EXPECT_TRUE(limiter_.holds_back());
  EXPECT_TRUE(limiter_.TakeHeldBack(At(29), false).empty());
  EXPECT_EQ(Admitted(10, train, 31), 1);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].count, 980u);
  EXPECT_EQ(told_[0].seconds, 31);
  EXPECT_EQ(told_[0].cause.ToString(), "job 'train' of user 7");
  // Told without another one.
  const auto told = limiter_.TakeHeldBack(At(61), false);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].count, 9u);
  EXPECT_FALSE(limiter_.holds_back());
  EXPECT_EQ(Admitted(100, train, 10'000), 20);
  EXPECT_EQ(limiter_.TakeHeldBack(At(10'000), true)[0].count, 80u);
}

TEST_F(LimiterTest, OtherCausesAndMessagesAreNotHeldBack) {
  EXPECT_EQ(Admitted(100, {7, "train"}, 0), 20);
  EXPECT_EQ(Admitted(100, {7, "other"}, 0), 20);
  EXPECT_EQ(Admitted(100, {8, "train"}, 0), 20);
  EXPECT_EQ(Admitted(100, {7, "train"}, 0, *MessageNamed("job-failed")), 20);
  EXPECT_EQ(Admitted(100, {}, 0), 20);
}

TEST_F(LimiterTest, NamesOfJobsGiveAUserNoMore) {
  int admitted = 0;
  for (int i = 0; i < 100'000; ++i) {
    admitted += Admitted(1, {7, Format("job {}", i)}, 0);
  }
  EXPECT_EQ(admitted, 100);
  EXPECT_LE(limiter_.buckets(), 101u);
  EXPECT_EQ(Admitted(1, {8, "train"}, 0), 1);
  const auto held_back = limiter_.TakeHeldBack(At(0), true);
  ASSERT_EQ(held_back.size(), 1u);
  EXPECT_EQ(held_back[0].cause.ToString(), "user 7");
  EXPECT_EQ(held_back[0].count, 99'900u);
}

TEST_F(LimiterTest, BucketsAreBounded) {
  int admitted = 0;
  for (uint32_t uid = 0; uid < 5000; ++uid) {
    admitted += Admitted(1, {uid, ""}, 0);
  }
  // What each of the known causes may, and what the others may together.
  EXPECT_EQ(admitted, static_cast<int>(LogLimiter::kBucketsMax) + 100);
  EXPECT_LE(limiter_.buckets(), LogLimiter::kBucketsMax + 1);
  EXPECT_EQ(Admitted(1, {100'001, "train"}, 86'400), 1);
  EXPECT_LE(limiter_.buckets(), 10u);
}

TEST(MessagesTest, EachHasAllThatAnAdministratorNeeds) {
  std::set<std::string_view> names, ids;
  for (const LogMessage& message : kLogMessages) {
    SCOPED_TRACE(message.name);
    EXPECT_TRUE(names.insert(message.name).second);
    EXPECT_TRUE(ids.insert(message.id).second);
    EXPECT_EQ(message.id.size(), 32u);
    EXPECT_EQ(message.id.find_first_not_of("0123456789abcdef"),
              message.id.npos);
    EXPECT_THAT(std::string(message.advice), testing::EndsWith("."));
    // {name} only, each once.
    std::set<std::string_view> values = {"message"};  // the name's field
    std::string_view rest = message.text;
    while (rest.find('{') != rest.npos) {
      rest.remove_prefix(rest.find('{') + 1);
      const std::string_view value = rest.substr(0, rest.find('}'));
      EXPECT_FALSE(value.empty());
      EXPECT_TRUE(values.insert(value).second) << value;
      for (const char c : value) {
        EXPECT_TRUE(std::islower(static_cast<unsigned char>(c)) || c == '_');
      }
    }
  }
}

}  // namespace penstock::log_test
