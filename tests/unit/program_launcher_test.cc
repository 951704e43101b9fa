// Promise: the launcher starts the programs that it was given, with the folders
// of its own configuration, whatever a request says; it marks only children of
// its own process for the kernel to kill first. Method: requests that a daemon
// taken over by a hostile file could make.
#include "broker/sandbox/program_launcher.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "broker/transform/row_function.h"
#include "broker/user_code/python_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::program_launcher_test {

using testing::HasSubstr;

class ProgramLauncherTest : public testing::Test {
 protected:
  // A process has one launcher.
  static void SetUpTestSuite() {
    folder_ =
        testing::TempDir() + "penstock-launcher-" + std::to_string(getpid());
    for (const char* const name : {"/allowed", "/evil", "/next"}) {
      std::filesystem::create_directories(folder_ + name);
    }
    Write("/allowed/good.py");
    Write("/evil/bad.py");
    Write("/next/later.py");
    FunctionOptions options;
    options.python = "/usr/bin/python3";  // the one with NumPy
    options.python_path = {folder_ + "/allowed"};
    options.writable_by = 0002;
    ASSERT_TRUE(PythonProcess::StartLauncher(
                    options, {PythonOp::Program()}, "", "",
                    [](FunctionOptions* options) {
                      if (!std::filesystem::exists(folder_ + "/reloads")) {
                        return InvalidArgumentError("a mistake in the file");
                      }
                      options->python_path = {folder_ + "/next"};
                      return OkStatus();
                    })
                    .ok());
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }
  static void Write(const std::string& name) {
    std::ofstream(folder_ + name) << "def f(row):\n    return row\n\n\nopen('"
                                  << folder_ << name << ".ran', 'w').close()\n";
  }
  static bool Ran(const std::string& name) {
    return std::filesystem::exists(folder_ + name + ".ran");
  }
  // What comes of a process for this function.
  static Status Start(const std::string& function,
                      const std::string& more = "") {
    GrowingMemory memory;
    EXPECT_TRUE(memory.Reserve(1).ok());
    return PythonProcess::Start({}, PythonOp::Program(),
                                "{\"function\": \"" + function +
                                    "\", \"inputs\": [], \"outputs\": []" +
                                    more + "}",
                                memory, {})
        .status();
  }

  static inline std::string folder_;
};

TEST_F(ProgramLauncherTest, FoldersAreThoseOfItsConfiguration) {
  const Status good = Start("good:f");
  EXPECT_TRUE(good.ok()) << good.message();
  EXPECT_TRUE(Ran("/allowed/good.py"));
  const std::string evil = ", \"python_path\": [\"" + folder_ + "/evil\"]";
  EXPECT_THAT(Start("bad:f", evil).message(), HasSubstr("no module 'bad'"));
  EXPECT_FALSE(Ran("/evil/bad.py"));
  EXPECT_THAT(Start("os:system").message(), HasSubstr("not in python_path"));
}

TEST_F(ProgramLauncherTest, OtherProgramsAreRefused) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const Fd one(ends[0]);
  const Fd two(ends[1]);
  const std::string text =
      "open('" + folder_ + "/evil/bad.py.ran', 'w').close()";
  for (const nlohmann::json& what : std::vector<nlohmann::json>{
           {{"program", text}, {"argument", "{}"}},
           {{"program", ""}, {"argument", "{}"}},
           {{"program", std::string(PythonOp::Program()) + text},
            {"argument", "{}"}},
           {{"program", 7}, {"argument", "{}"}},
           {{"argument", "{}"}},
           {{"program", PythonOp::Program()}, {"argument", 7}},
           nullptr,
           "run"}) {
    EXPECT_FALSE(ProgramLauncher::Get()->Run(what, {one.get(), two.get()}).ok())
        << what.dump().substr(0, 80);
  }
  EXPECT_FALSE(ProgramLauncher::Get()
                   ->Run({{"program", PythonOp::Program()}, {"argument", "{}"}},
                         {one.get()})
                   .ok());
  EXPECT_FALSE(Ran("/evil/bad.py"));
  EXPECT_TRUE(Start("good:f").ok());  // it goes on
}

TEST_F(ProgramLauncherTest, OnlyChildrenAreKilledFirst) {
  EXPECT_EQ(ProgramLauncher::Get()->KillFirst(1).code(),
            StatusCode::kPermissionDenied);
  EXPECT_EQ(ProgramLauncher::Get()->KillFirst(getppid()).code(),
            StatusCode::kPermissionDenied);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  EXPECT_TRUE(ProgramLauncher::Get()->KillFirst(child).ok());
  std::string score;
  std::getline(
      std::ifstream("/proc/" + std::to_string(child) + "/oom_score_adj"),
      score);
  EXPECT_EQ(score, "1000");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(ProgramLauncherTest, AReloadReadsTheConfigurationAgain) {
  EXPECT_EQ(ProgramLauncher::Get()->Reload().message(),
            "a mistake in the file");
  EXPECT_TRUE(Start("good:f").ok());
  std::ofstream(folder_ + "/reloads").put('x');
  EXPECT_TRUE(ProgramLauncher::Get()->Reload().ok());
  EXPECT_TRUE(Start("later:f").ok());
  EXPECT_THAT(Start("good:f").message(), HasSubstr("no module 'good'"));
}

TEST_F(ProgramLauncherTest, ReapTellsHowAProgramEnded) {
  EXPECT_EQ(ProgramLauncher::Get()->Reap(1), std::nullopt);
  EXPECT_EQ(ProgramLauncher::Get()->Reap(getpid()), std::nullopt);
}

}  // namespace penstock::program_launcher_test
