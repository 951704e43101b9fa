#include "client/launcher.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

StatusOr<LaunchInfo> Detect(const Variables& variables) {
  return DetectLaunch(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      });
}

void ExpectLaunch(const Variables& variables, const std::string& launcher,
                  int64_t rank, int64_t world, int64_t local,
                  const std::string& job = "") {
  const auto info = Detect(variables);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->launcher, launcher);
  EXPECT_EQ(info->rank, rank);
  EXPECT_EQ(info->world_size, world);
  EXPECT_EQ(info->local_world_size, local);
  EXPECT_EQ(info->job, job);
}

TEST(LauncherTest, WithoutALauncherItIsRankZeroOfOne) {
  ExpectLaunch({}, "none", 0, 1, 1);
}

TEST(LauncherTest, Horovod) {
  ExpectLaunch({{"HOROVOD_RANK", "3"},
                {"HOROVOD_SIZE", "8"},
                {"HOROVOD_LOCAL_SIZE", "4"}},
               "Horovod", 3, 8, 4);
}

TEST(LauncherTest, Torchrun) {
  ExpectLaunch({{"RANK", "1"},
                {"WORLD_SIZE", "4"},
                {"LOCAL_WORLD_SIZE", "2"},
                {"TORCHELASTIC_RUN_ID", "abc"}},
               "torchrun", 1, 4, 2, "abc");
}

TEST(LauncherTest, OpenMpi) {
  ExpectLaunch({{"OMPI_COMM_WORLD_RANK", "2"},
                {"OMPI_COMM_WORLD_SIZE", "4"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                {"PMIX_NAMESPACE", "123@1"}},
               "OpenMPI", 2, 4, 4, "123@1");
}

TEST(LauncherTest, SlurmStepWithUnevenNodes) {
  ExpectLaunch({{"SLURM_PROCID", "5"},
                {"SLURM_NTASKS", "7"},
                {"SLURM_NODEID", "2"},
                {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"},
                {"SLURM_JOB_ID", "77"},
                {"SLURM_STEP_ID", "1"}},
               "Slurm", 5, 7, 3, "slurm-77.1");
}

TEST(LauncherTest, SlurmBatchScriptIsNotALaunch) {
  ExpectLaunch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}, "none", 0, 1, 1);
}

TEST(LauncherTest, MpiInsideSlurmIsMpi) {
  ExpectLaunch({{"OMPI_COMM_WORLD_RANK", "0"},
                {"OMPI_COMM_WORLD_SIZE", "2"},
                {"SLURM_PROCID", "0"},
                {"SLURM_STEP_ID", "0"},
                {"SLURM_NTASKS", "1"}},
               "OpenMPI", 0, 2, 2);
}

TEST(LauncherTest, TfConfigChiefIsRankZeroAndHostsAreCounted) {
  const std::string cluster =
      R"("cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1"], "ps": ["c:1"]})";
  ExpectLaunch(
      {{"TF_CONFIG",
        "{" + cluster + R"(, "task": {"type": "worker", "index": 0}})"}},
      "TF_CONFIG", 1, 3, 2);
  ExpectLaunch(
      {{"TF_CONFIG",
        "{" + cluster + R"(, "task": {"type": "worker", "index": 1}})"}},
      "TF_CONFIG", 2, 3, 1);
}

TEST(LauncherTest, WrongValuesNameTheVariable) {
  EXPECT_THAT(Detect({{"RANK", "one"}, {"WORLD_SIZE", "2"}}).status().message(),
              HasSubstr("RANK='one'"));
  EXPECT_THAT(Detect({{"HOROVOD_RANK", "1"}}).status().message(),
              HasSubstr("HOROVOD_SIZE is not"));
  EXPECT_THAT(Detect({{"TF_CONFIG", "{"}}).status().message(),
              HasSubstr("TF_CONFIG"));
  EXPECT_FALSE(
      Detect(
          {{"TF_CONFIG",
            R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}})"}})
          .ok());
}

}  // namespace
}  // namespace penstock
