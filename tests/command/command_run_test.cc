// Promise: the penstock command has the documented exit statuses and messages,
// and leaves no process and no file behind, even if it is killed. Method: the
// command as a process; command_fake_penstockd.py stands in for penstockd, so
// that it can be made to misbehave.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/command/command_fixture.h"

namespace penstock::command_run_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

class CommandRunTest : public CommandTest {
 protected:
  CommandRunTest() {
    setenv("PENSTOCKD",
           PENSTOCK_SOURCE_DIR "/tests/command/command_fake_penstockd.py", 1);
    setenv("FAKE_PENSTOCKD", "", 1);
    setenv("FAKE_PENSTOCKD_INSTANCES", (folder_ + "/instances").c_str(), 1);
    fs::create_directory(folder_ + "/instances");
  }

  // The arguments and descriptors of penstockd in this start, from 1.
  nlohmann::json Instance(int number) {
    const std::string file = "instances/" + std::to_string(number);
    WaitForFile(file);
    return nlohmann::json::parse(Read(file));
  }
  // The only child of `penstock run`.
  static pid_t SupervisorOf(pid_t command) {
    const std::string number = std::to_string(command);
    std::ifstream file("/proc/" + number + "/task/" + number + "/children");
    pid_t child = 0;
    EXPECT_TRUE(file >> child);
    // Never 0, which is the test's own group.
    return child > 0 ? child : command;
  }
  void KillPenstockd(int instance, int signal = SIGKILL) {
    kill(Instance(instance)["pid"].get<pid_t>(), signal);
  }
};

TEST_F(CommandRunTest, UsageErrorsAreOneLineAndStatus2) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {},
           {"nope"},
           {"run", "--ranks", "2"},
           {"run", "--ranks", "-1", "--", "true"},
           {"run", "--ranks", "2", "true"},
           {"run", "--ranks", "2", "--nope", "--", "true"},
           {"run", "--ranks", "2", "--grace", "nan", "--", "true"},
           {"run", "--ranks", "2", "--memory-limit", "10X", "--", "true"},
           {"check", "--memory-limit", "0", "train.yaml"},
           {"evict", "job", "-1"},
           {"--nope"},
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

TEST_F(CommandRunTest, ACommandWithoutItsDashesIsToldWhereTheyGo) {
  EXPECT_THAT(Run({"run", "--ranks", "2", "./trainer", "--lr", "0.1"}).err,
              HasSubstr("write `--` before the command: `penstock run --ranks "
                        "N -- ./trainer ...`"));
  EXPECT_THAT(Run({"run", "--ranks", "2", "--lr", "0.1"}).err,
              HasSubstr("--lr"));
}

TEST_F(CommandRunTest, HelpHasExamplesAndVersionIsTold) {
  for (const char* command : {"run", "bench", "check", "index", "register",
                              "datasets", "jobs", "status", "peek"}) {
    const Result result = Run({command, "--help"});
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.out,
                HasSubstr("\n  penstock " + std::string(command) + " "));
  }
  EXPECT_THAT(Run({"--version"}).out, StartsWith("penstock "));
}

TEST_F(CommandRunTest, AMissingSpecIsNamedBeforeAnythingIsStarted) {
  setenv("PENSTOCKD", "/nonexistent", 1);
  const Result result =
      Run({"run", "--dataset", "nope.yaml", "--ranks", "1", "--", "true"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("nope.yaml"));
}

TEST_F(CommandRunTest, CheckShowsWhatTheBrokerFound) {
  const Result table = Run({"check", "--no-row", "train.yaml"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("1,003"), HasSubstr("8 x 8 x 3"),
                               HasSubstr("2 other files, like boot/4.png")));
  const Result json = Run({"check", "--no-row", "--json", "train.yaml"});
  EXPECT_THAT(json.out, AllOf(StartsWith("{"), HasSubstr("\"records\":1003")));
  EXPECT_THAT(table.err, IsEmpty()) << "no progress bar in a pipe";
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, WhatIsAStreamIsSaidInsteadOfWaitedFor) {
  std::ofstream(folder_ + "/stream.yaml")
      << "dataset: s\nbatch: {size: 2}\n"
         "source: {stream: {features: {x: {dtype: int64, shape: []}}}}\n";
  const Result table = Run({"check", "stream.yaml"});
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("as many as its producers put"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"peek", "stream.yaml", "--out", "a.png"},
        {"bench", "--dataset", "stream.yaml", "--ranks", "1"}}) {
    const Result result = Run(words);
    EXPECT_EQ(result.status, 1) << words[0];
    EXPECT_THAT(result.err, HasSubstr("'stream.yaml' is a stream"));
  }
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, RanksGetTheirVariables) {
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

TEST_F(CommandRunTest, WithRanks0TheCommandStartsOnceWithoutARank) {
  unsetenv("RANK");
  setenv("PENSTOCK_JOB", "mine", 1);
  const Result result = RunScript(
      {"--ranks", "0"}, "echo job=$PENSTOCK_JOB rank=$PENSTOCK_RANK$RANK.");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "job=mine rank=.\n");
}

TEST_F(CommandRunTest, TheFirstFailingRankStopsTheOthersAndGivesTheStatus) {
  const Result result =
      RunScript({"--ranks", "3"}, "test $RANK = 1 && exit 7; exec sleep 1000");
  EXPECT_EQ(result.status, 7);
  EXPECT_THAT(result.err, AllOf(StartsWith("penstock: rank 1 (pid "),
                                HasSubstr("ended with status 7")));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, ARankKilledByASignalIsToldBySignal) {
  const Result result =
      RunScript({"--ranks", "2"}, "test $RANK = 1 && kill -9 $$; sleep 1000");
  EXPECT_EQ(result.status, 137);
  EXPECT_THAT(result.err, HasSubstr("was killed by signal 9 (Killed)"));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, RanksThatIgnoreSigtermAreKilledAfterTheGrace) {
  const Result result = RunScript(
      {"--ranks", "2", "--grace", "0.2"},
      "trap '' TERM; test $RANK = 1 && exit 3; while :; do sleep 1; done");
  EXPECT_EQ(result.status, 3);
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, WhatRanksLeaveBehindIsKilled) {
  const Result result =
      RunScript({"--ranks", "2"},
                "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; "
                "exit 0");
  EXPECT_EQ(result.status, 0);
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, SignalsEndTheRunWithTheirStatus) {
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

TEST_F(CommandRunTest, ASignalReachesTheRankSoThatItCanSaveItsWork) {
  const pid_t pid = StartScript({"--ranks", "1"},
                                "trap 'echo saved; exit 0' INT; touch started; "
                                "while :; do sleep 0.05; done");
  WaitForFile("started");
  kill(pid, SIGINT);
  const Result result = Wait(pid);
  EXPECT_EQ(result.status, 130);
  EXPECT_EQ(result.out, "saved\n");
}

TEST_F(CommandRunTest, ASecondSignalDoesNotWaitForTheGrace) {
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

TEST_F(CommandRunTest, ASignalEndsAWaitForTheBroker) {
  setenv("FAKE_PENSTOCKD", "hang", 1);
  const pid_t pid = Start({"check", "train.yaml"});
  // Its folder exists: the signal comes before, during or after the wait.
  while (fs::is_empty(runtime_)) std::this_thread::yield();
  kill(pid, SIGINT);
  EXPECT_EQ(Wait(pid).status, 130);
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, AKilledCommandLeavesNothingWhateverItsRanksDo) {
  const pid_t pid = StartScript(
      {"--ranks", "2", "--grace", "0.2"},
      "trap ': >asked$RANK' TERM; setsid sleep 1000 & : >started$RANK; "
      "while :; do sleep 0.05; done");
  WaitForFile("started0");
  WaitForFile("started1");
  kill(pid, SIGKILL);
  EXPECT_EQ(Wait(pid).status, 137);
  // This process adopts what it left behind: one process, which ends all others
  // and then itself.
  int status = 0;
  ASSERT_GT(waitpid(-1, &status, 0), 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
  EXPECT_TRUE(fs::exists(folder_ + "/asked0"));
  EXPECT_TRUE(fs::exists(folder_ + "/asked1"));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, AKilledSupervisorLeavesNothingEither) {
  const pid_t pid = StartScript({"--ranks", "2"},
                                "trap '' TERM; setsid sleep 1000 & : "
                                ">started$RANK; while :; do sleep 1; done");
  WaitForFile("started0");
  WaitForFile("started1");
  kill(SupervisorOf(pid), SIGKILL);
  const Result result = Wait(pid);
  EXPECT_EQ(result.status, 137);
  EXPECT_THAT(result.err, HasSubstr("was killed by signal 9 (Killed); they and "
                                    "their broker were killed"));
  ExpectNothingLeft();
}

// As Slurm and systemd send signals.
TEST_F(CommandRunTest, ASignalToEveryProcessOfTheCommandIsOneSignal) {
  // A second signal would not wait for the grace.
  const pid_t pid = StartScript(
      {"--ranks", "2", "--grace", "1000"},
      "trap ': >asked$RANK; sleep 0.3; : >saved$RANK; exit 0' TERM; : "
      ">started$RANK; while :; do sleep 0.05; done");
  WaitForFile("started0");
  WaitForFile("started1");
  // The supervisor first: the signal that the guard hands on is its second.
  kill(SupervisorOf(pid), SIGTERM);
  WaitForFile("asked0");
  kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid).status, 128 + SIGTERM);
  EXPECT_TRUE(fs::exists(folder_ + "/saved0"));
  EXPECT_TRUE(fs::exists(folder_ + "/saved1"));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, ABrokerThatDoesNotStartIsToldByItsStatus) {
  setenv("FAKE_PENSTOCKD", "die", 1);
  const Result result = RunScript({"--ranks", "2"}, "true");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("penstockd (pid "),
                                HasSubstr("ended with status 7")));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, RanksGoOnWhenTheBrokerDies) {
  // The ranks end once a restarted penstockd answers at its socket.
  const std::string penstock = PENSTOCK_BUILD_DIR "/client/command/penstock ";
  const pid_t pid = StartScript(
      {"--ranks", "2"},
      "touch started$RANK; while ! test -e instances/3; do sleep 0.05; "
      "done; exec " +
          penstock + "status");
  WaitForFile("started0");
  WaitForFile("started1");
  const nlohmann::json first = Instance(1);
  KillPenstockd(1);
  KillPenstockd(2, SIGSEGV);
  const nlohmann::json last = Instance(3);
  const Result result = Wait(pid);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err,
              MatchesRegex("penstock: the private broker, penstockd \\(pid "
                           "[0-9]+\\), was killed by signal 9 \\(Killed\\); "
                           "restart 1 of 5\n"
                           ".*was killed by signal 11 .*; restart 2 of 5 in "
                           "0.2 s\n"));
  EXPECT_EQ(first["state"], nlohmann::json::array());
  EXPECT_EQ(last["state"], nlohmann::json({"of-instance-1", "of-instance-2"}));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, StoredDescriptorsReachTheNextInstanceByNameAndInOrder) {
  setenv("FAKE_PENSTOCKD", "keep", 1);
  const pid_t pid =
      StartScript({"--ranks", "1"}, "touch started; exec sleep 1000");
  WaitForFile("started");
  KillPenstockd(1);
  KillPenstockd(2);
  const nlohmann::json instance = Instance(3);
  EXPECT_EQ(instance["names"], nlohmann::json({"penstockd.socket", "cursor-b",
                                               "cursor-a", "cursor-c"}));
  EXPECT_EQ(instance["contents"],
            nlohmann::json({"cursor-b", "cursor-a", "cursor-c"}));
  EXPECT_EQ(instance["listening"], 1);
  kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid).status, 128 + SIGTERM);
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, ABrokerThatKeepsDyingIsGivenUpAndTheRanksAreStopped) {
  setenv("FAKE_PENSTOCKD", "die-again", 1);
  const pid_t pid =
      StartScript({"--ranks", "2"},
                  "exec 2>/dev/null; trap 'test -e $PENSTOCK_SOCKET || touch "
                  "refused$RANK; exit' TERM; touch "
                  "started$RANK; while :; do sleep 0.05; done");
  WaitForFile("started0");
  WaitForFile("started1");
  KillPenstockd(1);
  const Result result = Wait(pid);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err,
              HasSubstr("ended with status 9; given up after 5 restarts within "
                        "60 s, in which no rank took a batch; stopping\n"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 6)
      << result.err;
  EXPECT_TRUE(fs::exists(folder_ + "/refused0"));
  EXPECT_TRUE(fs::exists(folder_ + "/refused1"));
  EXPECT_TRUE(fs::exists(folder_ + "/instances/6"));
  EXPECT_FALSE(fs::exists(folder_ + "/instances/7"));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, ABrokerThatWasAskedToStopIsNotRestarted) {
  const pid_t pid =
      StartScript({"--ranks", "2"}, "touch started$RANK; exec sleep 1000");
  WaitForFile("started0");
  WaitForFile("started1");
  KillPenstockd(1, SIGTERM);
  const Result result = Wait(pid);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("ended with status 0; stopping\n"));
  EXPECT_FALSE(fs::exists(folder_ + "/instances/2"));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, AnAnswerThatNeverComesIsNotWaitedFor) {
  setenv("FAKE_PENSTOCKD", "hang", 1);
  const pid_t pid = Start({"check", "train.yaml"});
  KillPenstockd(1);
  const Result result = Wait(pid);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("was killed by signal 9"),
                                Not(HasSubstr("penstock run"))));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, TaggedOutputThatNobodyReadsStopsTheRanksAsSigpipe) {
  const pid_t pid = StartScript(
      {"--ranks", "2", "--prefix"},
      "while ! test -e closed; do sleep 0.05; done; echo text; exec sleep "
      "1000",
      "fifo");
  const int reader = open((folder_ + "/fifo").c_str(), O_RDONLY);
  close(reader);
  std::ofstream(folder_ + "/closed");
  const Result result = Wait(pid);
  EXPECT_EQ(result.status, 128 + SIGPIPE);
  EXPECT_EQ(result.err, "");
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, ABrokerThatCannotBeFoundIsAMessageWithTheWayOut) {
  setenv("PENSTOCKD", "/nonexistent/penstockd", 1);
  const Result result = RunScript({"--ranks", "1"}, "true");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("/nonexistent/penstockd"),
                                HasSubstr("set it to penstockd's path")));
  ExpectNothingLeft();
}

TEST_F(CommandRunTest, ABrokersErrorIsPassedOn) {
  setenv("FAKE_PENSTOCKD", "error", 1);
  const Result result = Run({"check", "train.yaml"});
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err, "penstock: no such folder\n");
}

TEST_F(CommandRunTest, RunningBrokersAreAskedAndOddAnswersDoNoHarm) {
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

TEST_F(CommandRunTest, StatusTellsJobsOfOneNameAndSeveralDatasetsApart) {
  const std::string status = PENSTOCK_BUILD_DIR
      "/client/command/penstock "
      "status";
  EXPECT_THAT(RunScript({"--ranks", "0"}, status).out,
              HasSubstr("\nJOB    RANK "));
  setenv("FAKE_PENSTOCKD", "datasets", 1);
  EXPECT_THAT(RunScript({"--ranks", "0"}, status).out,
              AllOf(HasSubstr("\nJOB    DATASET  RANK "),
                    HasSubstr("\ntrain  e "), HasSubstr("\ntrain  d ")));
}

TEST_F(CommandRunTest, NoBrokerIsAMessageWithTheWayOut) {
  const Result result = Run({"status", "--socket", folder_ + "/none.sock"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("none.sock"), HasSubstr("penstock run")));
}

}  // namespace penstock::command_run_test
