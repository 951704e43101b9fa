// The penstock command as a process: exit statuses, messages, and that nothing
// is left behind. penstockd is played by command_fake_penstockd.py, so that it
// can be made to misbehave.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr char kSpec[] =
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
    // The private broker's folder is made in here: what is left is seen.
    runtime_ = folder_ + "/run";
    fs::create_directory(runtime_);
    std::ofstream(folder_ + "/train.yaml") << kSpec;
    setenv("XDG_RUNTIME_DIR", runtime_.c_str(), 1);
    setenv("PENSTOCKD", PENSTOCK_SOURCE_DIR "/tests/command_fake_penstockd.py",
           1);
    setenv("FAKE_PENSTOCKD", "", 1);
    unsetenv("PENSTOCK_JOB");
    unsetenv("PENSTOCK_SOCKET");
    // What outlives the command becomes our child, and is seen too.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~CommandTest() override { fs::remove_all(folder_); }

  pid_t Start(std::vector<std::string> arguments) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    if (chdir(folder_.c_str()) != 0) _exit(126);
    const std::pair<int, const char*> files[] = {{1, "out"}, {2, "err"}};
    for (const auto& [fd, file] : files) {
      dup2(open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600), fd);
    }
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
  pid_t StartScript(std::vector<std::string> options,
                    const std::string& script) {
    options.insert(options.begin(), {"run", "--dataset", "train.yaml"});
    options.insert(options.end(), {"--", "sh", "-c", script});
    return Start(std::move(options));
  }

  std::string Read(const std::string& name) {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // Until the command's child has made this file.
  void WaitForFile(const std::string& name) {
    for (int i = 0; i < 3000 && !fs::exists(folder_ + "/" + name); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(fs::exists(folder_ + "/" + name)) << name;
  }

  void ExpectNothingLeft() {
    EXPECT_TRUE(fs::is_empty(runtime_)) << "a folder is left";
    errno = 0;
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
    EXPECT_EQ(errno, ECHILD);
  }

  std::string folder_;
  std::string runtime_;
};

TEST_F(CommandTest, UsageErrorsAreOneLineAndStatus2) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {},
           {"nope"},
           {"run", "--ranks", "2"},
           {"run", "--ranks", "-1", "--", "true"},
           {"bench", "--dataset", "train.yaml"},
           {"bench", "--dataset", "train.yaml", "--ranks", "2", "--epochs",
            "3"},
           {"check", "train.yaml", "--", "true"},
           {"status", "--frobnicate"}}) {
    const Result result = Run(arguments);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_THAT(result.err, StartsWith("penstock: "));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
    EXPECT_THAT(result.out, IsEmpty());
  }
  ExpectNothingLeft();
}

TEST_F(CommandTest, HelpHasExamplesAndVersionIsTold) {
  for (const char* command : {"run", "bench", "check", "index", "register",
                              "datasets", "jobs", "status", "peek"}) {
    const Result result = Run({command, "--help"});
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.out,
                HasSubstr("\n  penstock " + std::string(command) + " "));
  }
  EXPECT_THAT(Run({"--version"}).out, StartsWith("penstock "));
}

TEST_F(CommandTest, AMissingSpecIsNamedBeforeAnythingIsStarted) {
  setenv("PENSTOCKD", "/nonexistent", 1);
  const Result result =
      Run({"run", "--dataset", "nope.yaml", "--ranks", "1", "--", "true"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("nope.yaml"));
}

TEST_F(CommandTest, ASpecWithAMistakeIsToldByLineAndColumn) {
  std::ofstream(folder_ + "/wrong.yaml") << kSpec << "shufle: none\n";
  const Result result = Run({"check", "--syntax", "wrong.yaml"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, StartsWith("penstock: wrong.yaml:6:"));
}

TEST_F(CommandTest, CheckShowsWhatTheBrokerFound) {
  const Result table = Run({"check", "train.yaml"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("1,003"), HasSubstr("8 x 8 x 3")));
  const Result json = Run({"check", "--json", "train.yaml"});
  EXPECT_THAT(json.out, AllOf(StartsWith("{"), HasSubstr("\"records\":1003")));
  EXPECT_THAT(table.err, IsEmpty()) << "no progress bar in a pipe";
  ExpectNothingLeft();
}

TEST_F(CommandTest, RanksGetTheirVariables) {
  const Result result = RunScript(
      {"--ranks", "2", "--prefix"},
      "echo $PENSTOCK_RANK/$PENSTOCK_WORLD_SIZE $RANK/$WORLD_SIZE "
      "$LOCAL_RANK/$LOCAL_WORLD_SIZE $PENSTOCK_DATASET $MASTER_ADDR; "
      "test -S $PENSTOCK_SOCKET && test -n \"$PENSTOCK_JOB$MASTER_PORT\"");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("[rank 0] 0/2 0/2 0/2 registered-name 127.0.0.1"),
                    HasSubstr("[rank 1] 1/2 1/2 1/2 registered-name")));
  ExpectNothingLeft();
}

TEST_F(CommandTest, WithRanks0TheCommandStartsOnceWithoutARank) {
  unsetenv("RANK");
  setenv("PENSTOCK_JOB", "mine", 1);
  const Result result = RunScript(
      {"--ranks", "0"}, "echo job=$PENSTOCK_JOB rank=$PENSTOCK_RANK$RANK.");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "job=mine rank=.\n");
}

TEST_F(CommandTest, TheFirstFailingRankStopsTheOthersAndGivesTheStatus) {
  const Result result =
      RunScript({"--ranks", "3"}, "test $RANK = 1 && exit 7; exec sleep 1000");
  EXPECT_EQ(result.status, 7);
  EXPECT_THAT(result.err, AllOf(StartsWith("penstock: rank 1 (pid "),
                                HasSubstr("ended with status 7")));
  ExpectNothingLeft();
}

TEST_F(CommandTest, ARankKilledByASignalIsToldBySignal) {
  const Result result =
      RunScript({"--ranks", "2"}, "test $RANK = 1 && kill -9 $$; sleep 1000");
  EXPECT_EQ(result.status, 137);
  EXPECT_THAT(result.err, HasSubstr("was killed by signal 9 (Killed)"));
  ExpectNothingLeft();
}

TEST_F(CommandTest, RanksThatIgnoreSigtermAreKilledAfterTheGrace) {
  const Result result = RunScript(
      {"--ranks", "2", "--grace", "0.2"},
      "trap '' TERM; test $RANK = 1 && exit 3; while :; do sleep 1; done");
  EXPECT_EQ(result.status, 3);
  ExpectNothingLeft();
}

TEST_F(CommandTest, WhatRanksLeaveBehindIsKilled) {
  const Result result =
      RunScript({"--ranks", "2"},
                "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; "
                "exit 0");
  EXPECT_EQ(result.status, 0);
  ExpectNothingLeft();
}

TEST_F(CommandTest, SignalsEndTheRunWithTheirStatus) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t pid =
        StartScript({"--ranks", "2"}, "touch started$RANK; exec sleep 1000");
    WaitForFile("started0");
    WaitForFile("started1");
    kill(pid, signal);
    EXPECT_EQ(Wait(pid).status, 128 + signal);
    ExpectNothingLeft();
    fs::remove(folder_ + "/started0");
    fs::remove(folder_ + "/started1");
  }
}

TEST_F(CommandTest, ASignalReachesTheRankSoThatItCanSaveItsWork) {
  const pid_t pid = StartScript({"--ranks", "1"},
                                "trap 'echo saved; exit 0' INT; touch started; "
                                "while :; do sleep 0.05; done");
  WaitForFile("started");
  kill(pid, SIGINT);
  const Result result = Wait(pid);
  EXPECT_EQ(result.status, 130);
  EXPECT_EQ(result.out, "saved\n");
}

TEST_F(CommandTest, ASecondSignalDoesNotWaitForTheGrace) {
  const pid_t pid = StartScript(
      {"--ranks", "1", "--grace", "1000"},
      "trap 'touch asked' INT; touch started; while :; do sleep 0.05; done");
  WaitForFile("started");
  kill(pid, SIGINT);
  WaitForFile("asked");
  kill(pid, SIGINT);
  EXPECT_EQ(Wait(pid).status, 130);
  ExpectNothingLeft();
}

TEST_F(CommandTest, ASignalEndsAWaitForTheBroker) {
  setenv("FAKE_PENSTOCKD", "hang", 1);
  const pid_t pid = Start({"check", "train.yaml"});
  // Its folder is there: the signal comes before, in or after the wait.
  while (fs::is_empty(runtime_)) std::this_thread::yield();
  kill(pid, SIGINT);
  EXPECT_EQ(Wait(pid).status, 130);
  ExpectNothingLeft();
}

TEST_F(CommandTest, AKilledCommandTakesItsRanksAndBrokerWithIt) {
  const pid_t pid =
      StartScript({"--ranks", "2"}, "touch started$RANK; exec sleep 1000");
  WaitForFile("started0");
  WaitForFile("started1");
  kill(pid, SIGKILL);
  EXPECT_EQ(Wait(pid).status, 137);
  // Two ranks and penstockd are our children now, and end by themselves.
  int ended = 0;
  while (waitpid(-1, nullptr, 0) > 0) ++ended;
  EXPECT_EQ(ended, 3);
}

TEST_F(CommandTest, ABrokerThatDoesNotStartIsToldByItsStatus) {
  setenv("FAKE_PENSTOCKD", "die", 1);
  const Result result = RunScript({"--ranks", "2"}, "true");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("penstockd (pid "),
                                HasSubstr("ended with status 7")));
  ExpectNothingLeft();
}

TEST_F(CommandTest, ABrokerThatDiesEndsTheRun) {
  setenv("FAKE_PENSTOCKD", "die-soon", 1);
  const Result result = RunScript({"--ranks", "2"}, "exec sleep 1000");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("was killed by signal 6"));
  ExpectNothingLeft();
}

TEST_F(CommandTest, ABrokerThatCannotBeFoundIsAMessageWithTheWayOut) {
  setenv("PENSTOCKD", "/nonexistent/penstockd", 1);
  const Result result = RunScript({"--ranks", "1"}, "true");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("/nonexistent/penstockd"),
                                HasSubstr("set it to penstockd's path")));
  ExpectNothingLeft();
}

TEST_F(CommandTest, ABrokersErrorIsPassedOn) {
  setenv("FAKE_PENSTOCKD", "error", 1);
  const Result result = Run({"check", "train.yaml"});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err, "penstock: no such folder\n");
}

TEST_F(CommandTest, RunningBrokersAreAskedAndOddAnswersDoNoHarm) {
  const std::string penstock = PENSTOCK_BUILD_DIR "/client/command/penstock ";
  for (const char* mode : {"", "odd"}) {
    setenv("FAKE_PENSTOCKD", mode, 1);
    for (const char* question : {"status", "jobs", "datasets",
                                 "register train.yaml", "status --json"}) {
      const Result result = RunScript({"--ranks", "0"}, penstock + question);
      EXPECT_EQ(result.status, 0) << question << ": " << result.err;
      EXPECT_NE(result.out, "") << question;
    }
  }
}

TEST_F(CommandTest, NoBrokerIsAMessageWithTheWayOut) {
  const Result result = Run({"status", "--socket", folder_ + "/none.sock"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("none.sock"), HasSubstr("penstock run")));
}

}  // namespace
}  // namespace penstock
