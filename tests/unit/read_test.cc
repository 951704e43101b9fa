// Promise: a reader delivers the bytes of a file or an error with its path,
// writes nothing after its end, and one hung read holds up no other. Method:
// every test on every backend (pread, io_uring) and every io_uring feature
// level.
#include "broker/io/read.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "broker/index/data_file.h"
#include "broker/io/read_backend.h"
#include "tests/support/gated_file_system.h"

namespace penstock::read_test {

using testing::HasSubstr;

constexpr uint32_t kDepth = 8;

std::string NameOf(ReadBackend backend) {
  return kReadBackendNames[static_cast<size_t>(backend)];
}

// System call `number` fails with EPERM from here on, as under Docker's seccomp
// filter. For a child: a filter cannot be removed.
bool Forbid(uint32_t number) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

class ReadTest : public testing::TestWithParam<ReadBackend> {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "penstock-read-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    Open(kDepth);
  }
  void TearDown() override {
    reader_.reset();
    std::filesystem::remove_all(folder_);
  }

  // Skips where this kernel or container lacks the backend.
  void Open(uint32_t depth) {
    auto reader = MakeStorageReader(GetParam(), depth);
    if (!reader.ok()) GTEST_SKIP() << reader.status().message();
    reader_ = *std::move(reader);
  }

  std::string Path(const std::string& name) { return folder_ + "/" + name; }

  // Bytes that differ at every offset of interest and between files.
  static std::string Content(size_t bytes, uint32_t seed = 1) {
    std::string text(bytes, '\0');
    uint64_t state = seed * 0x9e3779b97f4a7c15;
    for (char& c : text) {
      state = state * 6364136223846793005 + 1442695040888963407;
      c = static_cast<char>(state >> 56);
    }
    return text;
  }

  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(Path(name), std::ios::binary) << content;
    return Path(name);
  }

  void StartFile(uint32_t ticket, const std::string& path) {
    ReadRequest request;
    request.kind = ReadRequest::Kind::kFile;
    request.path = path;
    request.nowait = nowait_;
    reader_->Start(ticket, request, {}, kNotPinned);
  }

  ReadRequest File(const std::string& path) const {
    ReadRequest request;
    request.kind = ReadRequest::Kind::kFile;
    request.path = path;
    request.nowait = nowait_;
    return request;
  }
  ReadRequest Range(int fd, uint64_t offset, uint64_t bytes) const {
    ReadRequest request;
    request.kind = ReadRequest::Kind::kRange;
    request.fd = fd;
    request.offset = offset;
    request.bytes = bytes;
    request.nowait = nowait_;
    return request;
  }

  void StartRange(uint32_t ticket, int fd, uint64_t offset, uint64_t bytes,
                  std::span<std::byte> into = {}, uint32_t align = 0,
                  uint32_t pinned = kNotPinned) {
    ReadRequest request;
    request.align = align;
    request.kind = ReadRequest::Kind::kRange;
    request.fd = fd;
    request.offset = offset;
    request.bytes = bytes;
    request.nowait = nowait_;
    reader_->Start(ticket, request, into, pinned);
  }

  // Bytes that this process has pinned.
  static uint64_t Pinned() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmPin:")) return std::stoull(line.substr(6)) << 10;
    }
    return 0;
  }

  StorageReader::Done Next() {
    reader_->Submit();
    StorageReader::Done done;
    EXPECT_TRUE(reader_->Next(kWaitForever, &done));
    return done;
  }

  // Returns the content of path through the reader, or the error's message.
  std::string Read(const std::string& path, StatusCode* code = nullptr) {
    StartFile(0, path);
    const StorageReader::Done done = Next();
    std::string result = done.status.ok() ? Text(done) : done.status.message();
    if (code != nullptr) *code = done.status.code();
    reader_->Release(done.ticket);
    return result;
  }

  static std::string Text(const StorageReader::Done& done) {
    return std::string(reinterpret_cast<const char*>(done.bytes.data()),
                       done.bytes.size());
  }

  std::string folder_;
  std::unique_ptr<StorageReader> reader_;
  bool nowait_ = true;  // what StartFile is told of the file system
};

INSTANTIATE_TEST_SUITE_P(Backends, ReadTest,
                         testing::Values(ReadBackend::kPread,
                                         ReadBackend::kDeferTaskrun,
                                         ReadBackend::kCoopTaskrun,
                                         ReadBackend::kPlain),
                         [](const auto& info) { return NameOf(info.param); });

// ---- several parts

TEST_P(ReadTest, PartsFollowOneAnotherInOneBuffer) {
  const std::string content = Content(300'000, 1);
  const std::string other = Content(700'000, 2);
  const int fd = open(Write("a", content).c_str(), O_RDONLY);
  const std::string path = Write("b", other);
  for (const bool nowait : {true, false}) {
    nowait_ = nowait;
    for (uint32_t round = 0; round < 3 * kDepth; ++round) {
      ReadRequest request = Range(fd, 5, 100'000);
      request.more = {File(path), Range(fd, 299'999, 1), Range(fd, 7, 0),
                      Range(fd, 0, 300'000), File(path)};
      const uint32_t ticket = round % kDepth;
      reader_->Start(ticket, request, {}, kNotPinned);
      const StorageReader::Done done = Next();
      ASSERT_TRUE(done.status.ok()) << done.status.message();
      EXPECT_EQ(done.ticket, ticket);
      EXPECT_TRUE(Text(done) == content.substr(5, 100'000) + other +
                                    content.substr(299'999) + content + other);
      ASSERT_EQ(done.ends.size(), 6u);
      const ReadBytes read = done.read();
      EXPECT_EQ(read.Part(0).size(), 100'000u);
      EXPECT_EQ(read.Part(1).size(), 700'000u);
      EXPECT_EQ(read.Part(3).size(), 0u);
      EXPECT_EQ(read.Part(5).data() + 700'000,
                read.bytes.data() + read.bytes.size());
      reader_->Release(ticket);
    }
  }
  // A request of one part on the same ticket afterwards.
  StartRange(0, fd, 1, 10);
  const StorageReader::Done done = Next();
  EXPECT_EQ(Text(done), content.substr(1, 10));
  EXPECT_TRUE(done.ends.empty());
  close(fd);
}

TEST_P(ReadTest, ManyRequestsOfSeveralPartsAreInFlightTogether) {
  const std::string content = Content(1 << 20, 1);
  const int fd = open(Write("a", content).c_str(), O_RDONLY);
  for (uint32_t ticket = 0; ticket < kDepth; ++ticket) {
    ReadRequest request = Range(fd, ticket * 1000, 1000);
    for (uint64_t part = 1; part < 64; ++part) {
      request.more.push_back(Range(fd, ticket * 1000 + part * 10'000, part));
    }
    reader_->Start(ticket, request, {}, kNotPinned);
  }
  std::set<uint32_t> seen;
  for (uint32_t i = 0; i < kDepth; ++i) {
    const StorageReader::Done done = Next();
    ASSERT_TRUE(done.status.ok()) << done.status.message();
    ASSERT_EQ(done.ends.size(), 64u);
    std::string wanted = content.substr(done.ticket * 1000, 1000);
    for (uint64_t part = 1; part < 64; ++part) {
      wanted += content.substr(done.ticket * 1000 + part * 10'000, part);
    }
    EXPECT_TRUE(Text(done) == wanted);
    seen.insert(done.ticket);
    reader_->Release(done.ticket);
  }
  EXPECT_EQ(seen.size(), kDepth);
  EXPECT_EQ(reader_->in_flight(), 0u);
  close(fd);
}

TEST_P(ReadTest, DirectPartsAreCutOutOfTheirBlocks) {
  const std::string content = Content(100'000, 1);
  const std::string path = Write("a", content);
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECT);
  if (fd < 0) GTEST_SKIP() << "no direct reads here";
  ReadRequest request = Range(fd, 4095, 2);
  request.more = {Range(fd, 8192, 4096), Range(fd, 99'000, 1000)};
  request.align = request.more[0].align = request.more[1].align = 4096;
  reader_->Start(0, request, {}, kNotPinned);
  const StorageReader::Done done = Next();
  ASSERT_TRUE(done.status.ok()) << done.status.message();
  EXPECT_TRUE(Text(done) == content.substr(4095, 2) +
                                content.substr(8192, 4096) +
                                content.substr(99'000));
  close(fd);
}

TEST_P(ReadTest, AnErrorNamesThePartAndEndsTheRead) {
  const std::string content = Content(1000, 1);
  const int fd = open(Write("a", content).c_str(), O_RDONLY);
  const auto error = [&](ReadRequest first, std::vector<ReadPart> more) {
    first.more = std::move(more);
    reader_->Start(3, first, {}, kNotPinned);
    const StorageReader::Done done = Next();
    reader_->Release(3);
    return done.status.message();
  };
  EXPECT_THAT(error(Range(fd, 0, 10), {Range(fd, 995, 10), Range(fd, 0, 1)}),
              testing::AllOf(testing::StartsWith("part 2 of 3: "),
                             HasSubstr("wanted 10 bytes at offset 995, found "
                                       "5")));
  EXPECT_THAT(error(Range(fd, 0, 10), {Range(fd, 0, 1), File(Path("none"))}),
              testing::StartsWith("part 3 of 3: " + Path("none")));
  EXPECT_THAT(error(File(Path("none")), {Range(fd, 0, 1)}),
              testing::StartsWith("part 1 of 2: "));
  EXPECT_THAT(error(Range(fd, 0, 1000), {Range(fd, 0, kRecordBytesMax - 999)}),
              HasSubstr("part 2 of 2: 268434457 bytes, after 1000 in the parts "
                        "before it; a record has at most 268435456 (256 MiB)"));
  EXPECT_THAT(error(Range(fd, 0, 1), {Range(fd, 0, UINT64_MAX)}),
              testing::StartsWith("part 2 of 2: "));
  EXPECT_EQ(reader_->in_flight(), 0u);
  close(fd);
}

TEST_P(ReadTest, FilesOfEverySizeArriveBytewise) {
  for (const bool nowait : {true, false}) {
    nowait_ = nowait;
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, kBufferBytesMin - 1,
          kBufferBytesMin, kBufferBytesMin + 1, size_t{3} << 20,
          kBufferBytesKept + 1, size_t{1}}) {
      const std::string content = Content(bytes);
      const std::string path = Write("file", content);
      EXPECT_TRUE(Read(path) == content) << bytes << " bytes";
      EXPECT_EQ(reader_->in_flight(), 0u);
    }
  }
}

TEST_P(ReadTest, ManyFilesInFlightKeepTheirTickets) {
  constexpr uint32_t kFiles = 200;
  std::vector<std::string> contents;
  for (uint32_t i = 0; i < kFiles; ++i) {
    contents.push_back(Content(i * 997 % 300'000, i));
    Write(std::to_string(i), contents.back());
  }
  std::vector<uint32_t> file_of(kDepth);
  uint32_t started = 0;
  for (uint32_t ticket = 0; ticket < kDepth; ++ticket) {
    file_of[ticket] = started;
    StartFile(ticket, Path(std::to_string(started++)));
  }
  EXPECT_EQ(reader_->in_flight(), kDepth);
  std::set<uint32_t> seen;
  while (reader_->in_flight() > 0) {
    const StorageReader::Done done = Next();
    ASSERT_TRUE(done.status.ok()) << done.status.message();
    const uint32_t file = file_of[done.ticket];
    EXPECT_TRUE(Text(done) == contents[file]) << file;
    EXPECT_TRUE(seen.insert(file).second);
    reader_->Release(done.ticket);
    if (started < kFiles) {
      file_of[done.ticket] = started;
      StartFile(done.ticket, Path(std::to_string(started++)));
    }
  }
  EXPECT_EQ(seen.size(), kFiles);
  StorageReader::Done none;
  EXPECT_FALSE(reader_->Next(kWaitForever, &none));
}

TEST_P(ReadTest, PollingWithoutWaitingEndsToo) {
  const std::string content = Content(5000);
  StartFile(3, Write("file", content));
  reader_->Submit();
  StorageReader::Done done;
  while (!reader_->Next(kNoWait, &done)) std::this_thread::yield();
  EXPECT_EQ(done.ticket, 3u);
  EXPECT_EQ(Text(done), content);
}

TEST_P(ReadTest, ErrorsHaveCodeAndPath) {
  Write("file", "x");
  ASSERT_EQ(symlink("loop", Path("loop").c_str()), 0);
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  for (const bool nowait : {true, false}) {
    nowait_ = nowait;
    StatusCode code;
    EXPECT_THAT(Read(Path("missing"), &code), HasSubstr(Path("missing")));
    EXPECT_EQ(code, StatusCode::kNotFound);

    EXPECT_THAT(Read(Path("file/below"), &code), HasSubstr("Not a directory"));
    EXPECT_EQ(code, StatusCode::kNotFound);

    EXPECT_THAT(Read(Path("loop"), &code), HasSubstr("symbolic links"));
    EXPECT_EQ(code, StatusCode::kNotFound);

    EXPECT_THAT(Read(folder_, &code), HasSubstr(folder_ + " is a folder"));
    EXPECT_EQ(code, StatusCode::kDataLoss);

    EXPECT_THAT(Read("/dev/zero", &code), HasSubstr("/dev/zero is a device"));
    EXPECT_EQ(code, StatusCode::kDataLoss);

    EXPECT_THAT(Read(Path("fifo"), &code), HasSubstr("is a FIFO"));
    EXPECT_EQ(code, StatusCode::kDataLoss);

    EXPECT_EQ(Read(Path("file"), &code), "x");
    EXPECT_EQ(code, StatusCode::kOk);
  }
}

TEST_P(ReadTest, PathTooLongHarmsOnlyItself) {
  const std::string content = Content(100);
  const std::string path = Write("file", content);
  StartFile(0, path);
  StartFile(1, "/" + std::string(5000, 'x'));
  StartFile(2, path);
  for (int i = 0; i < 3; ++i) {
    const StorageReader::Done done = Next();
    EXPECT_EQ(done.status.ok(), done.ticket != 1);
    if (done.ticket != 1) {
      EXPECT_EQ(Text(done), content);
    }
    reader_->Release(done.ticket);
  }
}

TEST_P(ReadTest, FileOverTheLimitIsRefused) {
  const std::string path = Write("file", "");
  ASSERT_EQ(truncate(path.c_str(), kRecordBytesMax + 1), 0);
  StatusCode code;
  EXPECT_THAT(Read(path, &code),
              HasSubstr("has 268435457 bytes; a record has at most 268435456"));
  EXPECT_EQ(code, StatusCode::kDataLoss);
}

// Such a file has size 0.
TEST_P(ReadTest, ProcfsFileIsReadToItsEnd) {
  for (const bool nowait : {true, false}) {
    nowait_ = nowait;
    EXPECT_THAT(Read("/proc/self/status"), HasSubstr("VmSize"));
    EXPECT_EQ(Read(Write("file", "after")), "after");
  }
}

TEST_P(ReadTest, UnreadableFileNamesFolderUserAndWayOut) {
  const std::string path = Write("file", "x");
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    // root can read everything
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(2);
    Open(1);
    StatusCode code = StatusCode::kOk;
    std::string message = reader_ == nullptr ? "" : Read(path, &code);
    if (code != StatusCode::kPermissionDenied) message = "wrong code";
    (void)!write(pipe_fds[1], message.data(), message.size());
    _exit(0);
  }
  close(pipe_fds[1]);
  std::string message(4096, '\0');
  message.resize(
      std::max<ssize_t>(0, read(pipe_fds[0], message.data(), message.size())));
  close(pipe_fds[0]);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  if (geteuid() != 0) GTEST_SKIP() << "needs a second user";
  EXPECT_THAT(message, HasSubstr(path + ": Permission denied"));
  EXPECT_THAT(message, HasSubstr("may not enter " + folder_ + "."));
  EXPECT_THAT(message, HasSubstr("uid 65534"));
  EXPECT_THAT(message, HasSubstr("penstock run"));
}

TEST_P(ReadTest, RangesLandInBufferOrTarget) {
  const std::string content = Content(1 << 20);
  const int fd = open(Write("file", content).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  StartRange(0, fd, 0, 784);
  StartRange(1, fd, 12345, 1);
  StartRange(2, fd, content.size() - 10, 10);
  StartRange(3, fd, 0, content.size());
  StartRange(4, fd, 77, 0);
  std::vector<std::byte> target(1000, std::byte{0xEE});
  StartRange(5, fd, 4000, 500, std::span(target).subspan(100, 500));
  for (int i = 0; i < 6; ++i) {
    const StorageReader::Done done = Next();
    ASSERT_TRUE(done.status.ok()) << done.status.message();
    const std::string text = Text(done);
    switch (done.ticket) {
      case 0:
        EXPECT_EQ(text, content.substr(0, 784));
        break;
      case 1:
        EXPECT_EQ(text, content.substr(12345, 1));
        break;
      case 2:
        EXPECT_EQ(text, content.substr(content.size() - 10));
        break;
      case 3:
        EXPECT_TRUE(text == content);
        break;
      case 4:
        EXPECT_EQ(text, "");
        break;
      case 5:
        EXPECT_EQ(done.bytes.data(), target.data() + 100);
        EXPECT_EQ(text, content.substr(4000, 500));
        break;
    }
    reader_->Release(done.ticket);
  }
  EXPECT_EQ(target[99], std::byte{0xEE});
  EXPECT_EQ(target[600], std::byte{0xEE});
  close(fd);
}

TEST_P(ReadTest, NothingOfARecordIsInTheNextOfItsTicket) {
  const std::string longer = Write("longer", std::string(300'000, 'a'));
  const std::string shorter = Write("shorter", "bb");
  const std::string empty = Write("empty", "");
  const int fd = open(longer.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const auto again = [&] {
    StorageReader::Done done = Next();
    reader_->Release(0);
    return done;
  };
  for (const bool nowait : {true, false}) {
    nowait_ = nowait;
    EXPECT_EQ(Read(longer).size(), 300'000u);
    EXPECT_EQ(Read(shorter), "bb");
    EXPECT_EQ(Read(longer).size(), 300'000u);
    EXPECT_EQ(Read(empty), "");
    // A failed read has no bytes, neither its own nor those before it.
    EXPECT_EQ(Read(longer).size(), 300'000u);
    StartFile(0, Path("none"));
    EXPECT_TRUE(again().bytes.empty());
    StartRange(0, fd, 0, 300'000);
    EXPECT_EQ(again().bytes.size(), 300'000u);
    StartRange(0, fd, 299'990, 20);
    EXPECT_TRUE(again().bytes.empty());
    StartRange(0, fd, 0, 0);
    EXPECT_TRUE(again().bytes.empty());
  }
  close(fd);
}

TEST_P(ReadTest, RangePastTheEndIsDataLoss) {
  const int fd = open(Write("file", Content(1000)).c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  StartRange(0, fd, 900, 200);
  const StorageReader::Done done = Next();
  EXPECT_EQ(done.status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(done.status.message(),
            "file is shorter than it was when it was opened, or than its "
            "header says (truncated?): wanted 200 bytes at offset 900, found "
            "100");
  close(fd);
}

TEST_P(ReadTest, DirectRangesOfEveryAlignmentArriveBytewise) {
  const std::string content = Content((1 << 20) + 1234);
  const std::string path = Write("file", content);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  const uint32_t align = fd < 0 ? 0 : DirectAlignment(fd);
  if (align == 0) GTEST_SKIP() << "no direct reads in " << folder_;
  // Memory that is aligned, and memory that is not.
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(align, 16 * align)),
      &std::free);
  const uint64_t whole = 8 * uint64_t{align};
  for (const uint64_t offset : {uint64_t{0}, uint64_t{align}, uint64_t{1},
                                uint64_t{align} - 1, uint64_t{5000}}) {
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{align}, whole, whole - 1,
                                 uint64_t{align} + 2}) {
      for (const int64_t buffer_offset : {-1, 0, 64}) {
        std::span<std::byte> into;
        if (buffer_offset >= 0) into = {memory.get() + buffer_offset, bytes};
        StartRange(0, fd, offset, bytes, into, align);
        const StorageReader::Done done = Next();
        ASSERT_TRUE(done.status.ok()) << done.status.message();
        EXPECT_TRUE(Text(done) == content.substr(offset, bytes))
            << bytes << " at " << offset << ", buffer offset " << buffer_offset;
        if (buffer_offset >= 0) {
          EXPECT_EQ(done.bytes.data(), into.data());
        }
        EXPECT_FALSE(done.cached);
        reader_->Release(0);
      }
    }
  }
  // The file ends inside a block.
  StartRange(0, fd, content.size() - 2000, 2000, {}, align);
  StorageReader::Done done = Next();
  ASSERT_TRUE(done.status.ok()) << done.status.message();
  EXPECT_TRUE(Text(done) == content.substr(content.size() - 2000));
  reader_->Release(0);
  StartRange(0, fd, content.size() - 1000, 1001, {}, align);
  done = Next();
  EXPECT_EQ(done.status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(done.status.message(), HasSubstr("wanted 1001"));
  EXPECT_THAT(done.status.message(), HasSubstr("found 1000"));
  close(fd);

  for (const uint64_t bytes : {1u, 4096u, 300'000u}) {
    const std::string file = Write("whole", Content(bytes, 2));
    ReadRequest request;
    request.kind = ReadRequest::Kind::kFile;
    request.path = file;
    request.align = align;
    reader_->Start(0, request, {}, kNotPinned);
    done = Next();
    ASSERT_TRUE(done.status.ok()) << done.status.message();
    EXPECT_TRUE(Text(done) == Content(bytes, 2)) << bytes;
    reader_->Release(0);
  }
}

TEST_P(ReadTest, DirectReadsIntoPinnedMemoryArriveBytewise) {
  const std::string content = Content(1 << 20);
  const int fd =
      open(Write("file", content).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  const uint32_t align = fd < 0 ? 0 : DirectAlignment(fd);
  if (align == 0) GTEST_SKIP() << "no direct reads in " << folder_;
  // Shared memory, as a slot is; the pinned part does not begin with a page.
  constexpr uint64_t kBytes = 64 << 10;
  const int memory_fd = memfd_create("pinned", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(memory_fd, 2 * kBytes), 0);
  const auto map = [&] {
    return static_cast<std::byte*>(mmap(
        nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0));
  };
  std::byte* const memory = map();
  const uint64_t before = Pinned();
  const uint32_t pinned = reader_->Pin({memory + align, kBytes});
  if (GetParam() == ReadBackend::kPread) {
    EXPECT_EQ(pinned, kNotPinned);
  } else {
    ASSERT_NE(pinned, kNotPinned);
    EXPECT_GE(Pinned(), before + kBytes);
  }
  for (const uint64_t offset : {uint64_t{0}, uint64_t{align}, uint64_t{77}}) {
    // Straight to its target, through the ticket's buffer, and with another
    // number of bytes.
    for (const uint64_t bytes : {kBytes, kBytes - 1, uint64_t{align}}) {
      std::memset(memory, 0xEE, 2 * kBytes);
      StartRange(0, fd, offset, bytes, {memory + align, bytes}, align, pinned);
      const StorageReader::Done done = Next();
      ASSERT_TRUE(done.status.ok()) << done.status.message();
      EXPECT_EQ(done.bytes.data(), memory + align);
      EXPECT_TRUE(Text(done) == content.substr(offset, bytes))
          << bytes << " at " << offset;
      EXPECT_EQ(memory[align - 1], std::byte{0xEE});
      EXPECT_EQ(memory[align + bytes], std::byte{0xEE});
      reader_->Release(0);
    }
  }
  if (pinned != kNotPinned) {
    reader_->Unpin(pinned);
    // Older kernels release it a second later.
    for (int i = 0; i < 500 && Pinned() > before; ++i) usleep(10'000);
    EXPECT_EQ(Pinned(), before);
    // The index is reused for other memory.
    std::byte* const other = map();
    const uint32_t again = reader_->Pin({other, kBytes});
    EXPECT_EQ(again, pinned);
    StartRange(0, fd, 0, kBytes, {other, kBytes}, align, again);
    const StorageReader::Done done = Next();
    EXPECT_TRUE(done.status.ok() && Text(done) == content.substr(0, kBytes));
    reader_->Release(0);
  }
  reader_.reset();
  // The kernel frees a ring a moment later.
  for (int i = 0; i < 500 && Pinned() > before; ++i) usleep(10'000);
  EXPECT_EQ(Pinned(), before);
  close(memory_fd);
  close(fd);
}

// Reads into memory that cannot be pinned work too.
TEST_P(ReadTest, MemoryThatCannotBePinnedIsRefused) {
  EXPECT_EQ(reader_->Pin({}), kNotPinned);
  std::vector<std::byte> memory(1 << 20);
  EXPECT_EQ(reader_->Pin({memory.data(), kPinBytesMax + 1}), kNotPinned);
  // RLIMIT_MEMLOCK applies without CAP_IPC_LOCK.
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {64 << 10, 64 << 10};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(3);
    if (geteuid() == 0 && setuid(65534) != 0) _exit(4);
    auto reader = MakeStorageReader(GetParam(), kDepth);
    if (!reader.ok()) _exit(77);
    if ((*reader)->Pin(memory) != kNotPinned) _exit(5);
    const int fd = open("/proc/self/exe", O_RDONLY);
    ReadRequest request;
    request.kind = ReadRequest::Kind::kRange;
    request.fd = fd;
    request.bytes = 4096;
    (*reader)->Start(0, request, {memory.data(), 4096}, kNotPinned);
    (*reader)->Submit();
    StorageReader::Done done;
    _exit((*reader)->Next(kWaitForever, &done) && done.status.ok() ? 0 : 6);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no such ring for nobody";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The reader asks the page cache while it hits, then only at times.
TEST_P(ReadTest, WhatIsCachedIsToldApart) {
  if (GetParam() == ReadBackend::kPread) GTEST_SKIP() << "pread does not know";
  const std::string path = Write("file", Content(300'000));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  char byte;
  if (const iovec one = {&byte, 1}; preadv2(fd, &one, 1, 0, RWF_NOWAIT) < 0) {
    GTEST_SKIP() << "no RWF_NOWAIT in " << folder_;
  }
  for (int i = 0; i < 3; ++i) {
    StartFile(0, path);
    EXPECT_TRUE(Next().cached);
    reader_->Release(0);
    StartRange(0, fd, 5, 290'000);
    EXPECT_TRUE(Next().cached);
    reader_->Release(0);
  }
  // A file that the kernel never reports as cached. (Dropped pages will not do:
  // the query makes the kernel read them, and on a busy machine they are cached
  // before it is answered.)
  const char* const kernels = "/proc/version";
  std::string version;
  std::getline(std::ifstream(kernels), version);
  const int other = open(kernels, O_RDONLY | O_CLOEXEC);
  ASSERT_GE(other, 0);
  for (int i = 0; i < 300; ++i) {
    StartRange(0, other, 0, version.size());
    const StorageReader::Done done = Next();
    ASSERT_TRUE(done.status.ok());
    EXPECT_EQ(Text(done), version);
    EXPECT_FALSE(done.cached);
    reader_->Release(0);
  }
  close(other);
  // Dropped: whether or not found in the cache, the bytes are right.
  ASSERT_EQ(fsync(fd), 0);
  for (int i = 0; i < 32; ++i) {
    ASSERT_EQ(posix_fadvise(fd, 0, 150'000, POSIX_FADV_DONTNEED), 0);
    StartRange(0, fd, 100'000, 100'000);
    EXPECT_TRUE(Text(Next()) == Content(300'000).substr(100'000, 100'000));
    reader_->Release(0);
  }
  // It notices that pages are cached again.
  int cached = 0;
  for (int i = 0; i < 32 * 64; ++i) {
    StartFile(0, path);
    cached += Next().cached;
    reader_->Release(0);
  }
  EXPECT_GT(cached, 1000);
  close(fd);
}

// Only direct reads are still written by the device after a cancel.
TEST_P(ReadTest, NothingLandsAfterTheDestructor) {
  constexpr size_t kBytes = 1 << 20;
  const std::string path = Write("file", Content(kDepth * kBytes));
  int fd = open(path.c_str(), O_RDONLY | O_DIRECT);
  if (fd < 0) fd = open(path.c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  fsync(fd);
  std::unique_ptr<std::byte, decltype(&free)> memory(
      static_cast<std::byte*>(aligned_alloc(4096, kDepth * kBytes)), &free);
  const std::span<std::byte> target(memory.get(), kDepth * kBytes);
  for (int round = 0; round < 20; ++round) {
    Open(kDepth);
    for (uint32_t i = 0; i < kDepth; ++i) {
      StartRange(i, fd, i * kBytes, kBytes, target.subspan(i * kBytes, kBytes));
    }
    reader_->Submit();
    reader_.reset();
    std::fill(target.begin(), target.end(), std::byte{0xEE});
    // Repeating the same reads takes as long as any of those could.
    Open(1);
    std::unique_ptr<std::byte, decltype(&free)> other(
        static_cast<std::byte*>(aligned_alloc(4096, kBytes)), &free);
    for (uint32_t i = 0; i < kDepth; ++i) {
      StartRange(0, fd, i * kBytes, kBytes, {other.get(), kBytes});
      ASSERT_TRUE(Next().status.ok());
    }
    ASSERT_TRUE(std::all_of(target.begin(), target.end(),
                            [](std::byte b) { return b == std::byte{0xEE}; }))
        << "round " << round;
  }
  close(fd);
}

TEST_P(ReadTest, DestructorEndsWithFilesInFlightAndUnsubmitted) {
  const std::string path = Write("file", Content(3 << 20));
  for (uint32_t i = 0; i < kDepth / 2; ++i) StartFile(i, path);
  reader_->Submit();
  for (uint32_t i = kDepth / 2; i < kDepth; ++i) StartFile(i, path);
  reader_.reset();
}

// A FIFO with a silent writer acts as storage that hangs.
TEST_P(ReadTest, DestructorDoesNotWaitForThePeerOfAFifo) {
  if (GetParam() == ReadBackend::kPread)
    GTEST_SKIP() << "pread looks at the type first";
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  const int writer = open(Path("fifo").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(writer, 0);
  StartFile(0, Path("fifo"));
  reader_->Submit();
  reader_.reset();
  close(writer);
}

TEST_P(ReadTest, NoDescriptorsAreLeft) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         {});
  };
  const std::string path = Write("file", Content(300'000));
  const auto before = open_files();
  for (int i = 0; i < 50; ++i) {
    Read(path);
    Read(Path("missing"));
    Read(folder_);
  }
  EXPECT_EQ(open_files(), before);
}

// Plain system calls are the slow fallback of every operation. Here they fail,
// so the ring must have done the work.
TEST_P(ReadTest, UringNeedsNoPlainOpen) {
  if (GetParam() == ReadBackend::kPread)
    GTEST_SKIP() << "pread is nothing else";
  const std::string content = Content(300'000);
  const std::string path = Write("file", content);
  const pid_t child = fork();
  if (child == 0) {
    Open(kDepth);  // a ring belongs to the process that made it
    if (reader_ == nullptr || !Forbid(SYS_openat)) _exit(77);
    const bool right =
        Read(path) == content && Read(path) == content &&
        Read("/proc/self/status").find("VmSize") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
}

// Also with the names in the kernel's cache, as from the second epoch on.
TEST_P(ReadTest, FilesOfANetworkFileSystemAreReadAtTheSameTime) {
  if (GetParam() == ReadBackend::kPread)
    GTEST_SKIP() << "pread has one read at a time";
  const GatedFileSystem files(folder_, kDepth);
  if (!files.mounted()) GTEST_SKIP() << "no FUSE here: " << strerror(errno);
  nowait_ = false;
  for (uint32_t i = 0; i < kDepth; ++i) {
    struct stat st;
    ASSERT_EQ(stat(Path(std::to_string(i)).c_str(), &st), 0);
    StartFile(i, Path(std::to_string(i)));
  }
  for (uint32_t i = 0; i < kDepth; ++i) {
    const StorageReader::Done done = Next();
    EXPECT_TRUE(done.status.ok()) << done.status.message();
    EXPECT_EQ(done.bytes.size(), GatedFileSystem::kFileBytes);
    reader_->Release(done.ticket);
  }
  EXPECT_EQ(files.waiting_max(), kDepth);
  reader_.reset();
}

// Storage that hangs delays only its own reads; they end in their own buffers
// when it answers.
TEST_P(ReadTest, HungReadsHoldUpNoOther) {
  if (GetParam() == ReadBackend::kPread)
    GTEST_SKIP() << "pread has one read at a time";
  ASSERT_EQ(mkdir(Path("mount").c_str(), 0700), 0);
  GatedFileSystem files(Path("mount"), 1);
  if (!files.mounted()) GTEST_SKIP() << "no FUSE here: " << strerror(errno);
  const std::string content = Content(1000);
  const std::string path = Write("file", content);
  const int fd = open(Path("mount/hung_read").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  nowait_ = false;
  StartFile(0, Path("mount/hung_read"));
  // The kernel has its name cached, and would open it on this thread.
  struct stat st;
  ASSERT_EQ(stat(Path("mount/hung_open").c_str(), &st), 0);
  StartFile(1, Path("mount/hung_open"));
  StartRange(2, fd, 0, 500);
  StartFile(3, Path("mount/answers"));
  EXPECT_EQ(Next().ticket, 3u);
  reader_->Release(3);
  // The kernel may not start a third worker for them (seen on 6.18 with busy
  // processors) before the next request needs one too.
  while (files.hanging() < 3) {
    StartFile(4, Path("mount/answers"));
    EXPECT_EQ(Next().ticket, 4u);
    reader_->Release(4);
  }
  for (int round = 0; round < 20; ++round) {
    StartFile(4, path);
    const StorageReader::Done done = Next();
    ASSERT_EQ(done.ticket, 4u);
    EXPECT_EQ(Text(done), content);
    reader_->Release(4);
  }
  StorageReader::Done done;
  EXPECT_FALSE(reader_->Next(20'000'000, &done));
  EXPECT_EQ(reader_->in_flight(), 3u);
  for (uint32_t ticket = 0; ticket < 3; ++ticket) {
    EXPECT_FALSE(reader_->Arrived(ticket));
  }
  // It has finished, its data still in its buffer, when the others land.
  StartFile(4, path);
  const StorageReader::Done kept = Next();
  files.Recover();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader_->Next(kWaitForever, &done));
    ASSERT_TRUE(done.status.ok()) << done.status.message();
    EXPECT_LT(done.ticket, 3u);
    EXPECT_EQ(Text(done), std::string(done.ticket == 2 ? 500 : 1000, 'x'));
    reader_->Release(done.ticket);
  }
  EXPECT_EQ(Text(kept), content);
  close(fd);
  reader_.reset();
}

// No wait for it can have a limit, but another thread can observe it.
TEST(PreadTest, ReadThatBlocksIsReported) {
  std::string folder = testing::TempDir() + "penstock-read-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    GatedFileSystem files(folder, 1);
    if (!files.mounted()) GTEST_SKIP() << "no FUSE here: " << strerror(errno);
    std::atomic<uint32_t> blocked_on{7};
    std::thread worker([&] {
      const auto reader = MakePreadReader(2, "");
      reader->ReportBlocking(&blocked_on, 100);
      ReadRequest request;
      request.kind = ReadRequest::Kind::kFile;
      request.path = folder + "/hung_read";
      reader->Start(1, request, {}, kNotPinned);
      StorageReader::Done done;
      EXPECT_TRUE(reader->Next(kNoWait, &done));
      EXPECT_EQ(done.bytes.size(), GatedFileSystem::kFileBytes);
    });
    while (blocked_on != 101) std::this_thread::yield();
    files.Recover();
    worker.join();
    EXPECT_EQ(blocked_on, 7u);
  }
  std::filesystem::remove_all(folder);
}

// A file left in the ring's table has no descriptor but is open: a write lease
// is refused while any process has the file open.
TEST_P(ReadTest, FilesAreClosedWhenTheyAreDone) {
  const std::string path = Write("file", Content(10));
  Read(path);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(fcntl(fd, F_SETLEASE, F_WRLCK), 0) << strerror(errno);
  close(fd);
}

TEST(MakeReaderTest, DepthIsBounded) {
  EXPECT_EQ(MakeStorageReader(ReadBackend::kAuto, 0).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      MakeStorageReader(ReadBackend::kAuto, kDepthMax + 1).status().code(),
      StatusCode::kInvalidArgument);
  const auto reader = MakeStorageReader(ReadBackend::kAuto, 1);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->depth(), 1u);
}

TEST(MakeReaderTest, LargestDepthWorks) {
  const auto reader = MakeStorageReader(ReadBackend::kAuto, kDepthMax);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->depth(), kDepthMax);
}

TEST(MakeReaderTest, PreadIsNamed) {
  const auto reader = MakeStorageReader(ReadBackend::kPread, 4);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->backend(), "pread");
}

TEST(MakeReaderTest, ForbiddenIoUringFallsBackAndSaysWhy) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (!Forbid(SYS_io_uring_setup)) _exit(2);
    const auto fallback = MakeStorageReader(ReadBackend::kAuto, 4);
    const auto forced = MakeStorageReader(ReadBackend::kPlain, 4);
    const std::string text =
        (fallback.ok() ? (*fallback)->backend() : "no reader") + "|" +
        (forced.ok() ? "a reader" : forced.status().message());
    (void)!write(pipe_fds[1], text.data(), text.size());
    _exit(0);
  }
  close(pipe_fds[1]);
  char text[256] = {};
  (void)!read(pipe_fds[0], text, sizeof(text) - 1);
  close(pipe_fds[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no seccomp here";
  EXPECT_STREQ(text,
               "pread (io_uring: Operation not permitted)|"
               "io_uring: Operation not permitted");
}

}  // namespace penstock::read_test
