// Runs the penstock command in a folder of its own and checks what it leaves
// behind.
#ifndef TESTS_COMMAND_COMMAND_FIXTURE_H_
#define TESTS_COMMAND_COMMAND_FIXTURE_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"

namespace penstock {

// train.yaml in the folder.
inline constexpr char kSpec[] =
    "dataset: numbers\n"
    "source:\n"
    "  range: {stop: 1003}\n"
    "batch: {size: 64}\n"
    "epochs: 2\n";

struct Result {
  int status;  // as a shell has it
  std::string out;
  std::string err;
};

class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    std::string name = testing::TempDir() + "/penstock-command-XXXXXX";
    folder_ = mkdtemp(name.data());
    // The private broker creates its folder in here, so a leftover is found.
    runtime_ = folder_ + "/run";
    std::filesystem::create_directory(runtime_);
    std::ofstream(folder_ + "/train.yaml") << kSpec;
    setenv("XDG_RUNTIME_DIR", runtime_.c_str(), 1);
    unsetenv("PENSTOCKD");
    unsetenv("PENSTOCK_JOB");
    unsetenv("PENSTOCK_SOCKET");
    // A process that outlives the command becomes our child and is found too.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~CommandTest() override { std::filesystem::remove_all(folder_); }

  // Standard output goes into the file out, or into a FIFO of this name, which
  // is made here and has to be opened for reading.
  pid_t Start(std::vector<std::string> arguments,
              const std::string& fifo = "") {
    const std::string path = folder_ + "/" + fifo;
    if (!fifo.empty()) mkfifo(path.c_str(), 0600);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    if (chdir(folder_.c_str()) != 0) _exit(126);
    const std::pair<int, const char*> files[] = {{1, "out"}, {2, "err"}};
    for (const auto& [fd, file] : files) {
      dup2(open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600), fd);
    }
    if (!fifo.empty()) dup2(open(path.c_str(), O_WRONLY), 1);
    dup2(open("/dev/null", O_RDONLY), 0);
    std::vector<char*> argv;
    arguments.insert(arguments.begin(), "penstock");
    for (std::string& word : arguments) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(PENSTOCK_BUILD_DIR "/client/command/penstock", argv.data());
    _exit(127);
  }

  Result Wait(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            Read("out"), Read("err")};
  }

  Result Run(std::vector<std::string> arguments) {
    return Wait(Start(std::move(arguments)));
  }

  // `run` with these options, and this shell script as the command.
  Result RunScript(std::vector<std::string> options,
                   const std::string& script) {
    return Wait(StartScript(std::move(options), script));
  }
  pid_t StartScript(std::vector<std::string> options, const std::string& script,
                    const std::string& fifo = "") {
    options.insert(options.begin(), {"run", "--dataset", "train.yaml"});
    options.insert(options.end(), {"--", "sh", "-c", script});
    return Start(std::move(options), fifo);
  }

  std::string Read(const std::string& name) {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // Waits until the command's child has created this file.
  void WaitForFile(const std::string& name) {
    const std::filesystem::path path = folder_ + "/" + name;
    const Fd news(inotify_init1(IN_CLOEXEC));
    ASSERT_GE(inotify_add_watch(news.get(), path.parent_path().c_str(),
                                IN_CREATE | IN_MOVED_TO),
              0);
    while (!std::filesystem::exists(path)) {
      pollfd entry{news.get(), POLLIN, 0};
      ASSERT_EQ(poll(&entry, 1, 30'000), 1) << name;
      char events[4096];
      ASSERT_GT(read(news.get(), events, sizeof(events)), 0);
    }
  }

  void ExpectNothingLeft() {
    EXPECT_TRUE(std::filesystem::is_empty(runtime_)) << "a folder is left";
    errno = 0;
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
    EXPECT_EQ(errno, ECHILD);
  }

  std::string folder_;
  std::string runtime_;
};

}  // namespace penstock
#endif  // TESTS_COMMAND_COMMAND_FIXTURE_H_
