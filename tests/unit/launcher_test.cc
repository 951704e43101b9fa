// Promise: rank, world size, job and GPU node come from the launcher's
// variables as documented, and a wrong variable is named. Method: DetectLaunch
// and FindGpuNode on made-up environments and sysfs folders; a real mpirun.
#include "client/attach/launcher.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "client/attach/gpu_node.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::launcher_test {

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

// The variables of mpirun 5.0.7.
TEST(LauncherTest, OpenMpi5) {
  ExpectLaunch({{"OMPI_COMM_WORLD_RANK", "2"},
                {"OMPI_COMM_WORLD_SIZE", "4"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                {"PMIX_NAMESPACE", "prterun-host-29549@1"},
                {"PMIX_RANK", "2"}},
               "OpenMPI", 2, 4, 4, "prterun-host-29549@1");
}

// With the installed version of mpirun.
TEST(LauncherTest, TheRanksOfARealMpirunAreOneJob) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      ("penstock-launcher-test-mpirun-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string command = std::string("mpirun --oversubscribe -np 2 ") +
                              (geteuid() == 0 ? "--allow-run-as-root " : "") +
                              "sh -c 'env -0 > " + folder.string() + "/$$'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::set<int64_t> ranks;
  std::set<std::string> jobs;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    Variables variables;
    std::ifstream stream(file.path());
    for (std::string line; std::getline(stream, line, '\0');) {
      const size_t equals = line.find('=');
      variables[line.substr(0, equals)] = line.substr(equals + 1);
    }
    const auto info = Detect(variables);
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_EQ(info->launcher, "OpenMPI");
    EXPECT_EQ(info->world_size, 2);
    EXPECT_EQ(info->local_world_size, 2);
    EXPECT_EQ(info->local_rank, info->rank);
    ranks.insert(info->rank);
    jobs.insert(info->job);
  }
  std::filesystem::remove_all(folder);
  EXPECT_THAT(ranks, testing::ElementsAre(0, 1));
  EXPECT_THAT(jobs, testing::ElementsAre(testing::Not("")));
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
  EXPECT_THAT(Detect({{"PENSTOCK_WORLD_SIZE", "3"}}).status().message(),
              HasSubstr("PENSTOCK_WORLD_SIZE is set, PENSTOCK_RANK is not"));
  EXPECT_TRUE(Detect({{"WORLD_SIZE", "3"}}).ok());
  EXPECT_THAT(Detect({{"TF_CONFIG", "{"}}).status().message(),
              HasSubstr("TF_CONFIG"));
  EXPECT_FALSE(
      Detect(
          {{"TF_CONFIG",
            R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}})"}})
          .ok());
}

// ---- its GPU

// A host in sysfs: a console's display, a network card, and GPUs.
class GpuNodeTest : public testing::Test {
 protected:
  GpuNodeTest() {
    Add("0000:02:00.0", "0x1a03", "0x030000", "0x2000", 0);
    Add("0000:04:00.0", "0x15b3", "0x020000", "0x1017", 0);
    Add("0000:d8:00.0", "0x10de", "0x030200", kModel, 1);
    Add("0000:3b:00.0", "0x10de", "0x030200", kModel, 0);
    Add("0000:3c:00.0", "0x10de", "0x030200", kModel, 0);
    Add("0000:d9:00.0", "0x10de", "0x030200", kModel, 1);
  }
  ~GpuNodeTest() override { std::filesystem::remove_all(devices_); }
  void Add(const std::string& address, const std::string& vendor,
           const std::string& pci_class, const std::string& model, int node) {
    const std::filesystem::path folder = devices_ / address;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "vendor") << vendor << "\n";
    std::ofstream(folder / "class") << pci_class << "\n";
    std::ofstream(folder / "device") << model << "\n";
    std::ofstream(folder / "numa_node") << node << "\n";
  }
  std::string Of(int64_t local_rank, const Variables& variables = {}) {
    LaunchInfo launch;
    launch.local_rank = local_rank;
    const auto gpu = FindGpuNode(
        [&](const std::string& name) -> std::optional<std::string> {
          const auto found = variables.find(name);
          if (found == variables.end()) return std::nullopt;
          return found->second;
        },
        launch, devices_);
    return gpu ? gpu->gpu + " on " + std::to_string(gpu->node) : "";
  }
  static constexpr const char* kModel = "0x2330";
  const std::filesystem::path devices_ =
      std::filesystem::temp_directory_path() /
      ("penstock-launcher-test-" + std::to_string(getpid()));
};

TEST_F(GpuNodeTest, LocalRanksCountGpusByTheirPciAddress) {
  EXPECT_EQ(Of(0), "0000:3b:00.0 on 0");
  EXPECT_EQ(Of(2), "0000:d8:00.0 on 1");
  EXPECT_EQ(Of(4), "");
  EXPECT_EQ(Of(-1), "");
}

TEST_F(GpuNodeTest, WhatIsVisibleIsAllThatIsCounted) {
  EXPECT_EQ(Of(1, {{"CUDA_VISIBLE_DEVICES", "2,3"}}), "0000:d9:00.0 on 1");
  EXPECT_EQ(Of(5, {{"CUDA_VISIBLE_DEVICES", "1"}}), "0000:3c:00.0 on 0");
  EXPECT_EQ(Of(2, {{"CUDA_VISIBLE_DEVICES", "2,3"}}), "");
  EXPECT_EQ(Of(0, {{"CUDA_VISIBLE_DEVICES", "GPU-8932f937"}}), "");
  EXPECT_EQ(Of(0, {{"CUDA_VISIBLE_DEVICES", "7"}}), "");
  EXPECT_EQ(Of(0, {{"ROCR_VISIBLE_DEVICES", "3"}}), "0000:d9:00.0 on 1");
}

TEST_F(GpuNodeTest, UnlikeGpusAreCountedOnlyWhereTheirOrderIsKnown) {
  Add("0000:10:00.0", "0x10de", "0x030000", "0x1234", 0);
  EXPECT_EQ(Of(0), "");
  EXPECT_EQ(Of(0, {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}), "0000:10:00.0 on 0");
}

TEST_F(GpuNodeTest, AMachineThatDoesNotSayItsNodesTellsNothing) {
  Add("0000:3b:00.0", "0x10de", "0x030200", kModel, -1);
  EXPECT_EQ(Of(0), "");
}

int64_t StrideOf(const std::string& launcher, const Variables& order,
                 const std::string& rank = "3",
                 const std::string& local_rank = "1",
                 const std::string& processes = "6") {
  Variables variables =
      launcher == "Slurm"
          ? Variables{{"SLURM_PROCID", rank},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_NTASKS", processes},
                      {"SLURM_LOCALID", local_rank},
                      {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"}}
          : Variables{{"OMPI_COMM_WORLD_RANK", rank},
                      {"OMPI_COMM_WORLD_SIZE", processes},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", local_rank}};
  variables.insert(order.begin(), order.end());
  const auto info = Detect(variables);
  EXPECT_TRUE(info.ok()) << info.status().message();
  return info.ok() ? info->stride : -1;
}

// What mpirun 4.1.4 sets for each option, on two hosts.
TEST(StrideTest, OpenMpiSaysHowItDealsRanksOut) {
  const auto mapping = [](const char* policy) {
    return Variables{{"OMPI_MCA_rmaps_base_mapping_policy", policy}};
  };
  EXPECT_EQ(StrideOf("mpirun", {}), 1);
  EXPECT_EQ(StrideOf("mpirun", mapping("node")), 2);
  EXPECT_EQ(StrideOf("mpirun", mapping("node:PE=1")), 2);
  EXPECT_EQ(StrideOf("mpirun", mapping("ppr:3:node")), 1);
  EXPECT_EQ(StrideOf("mpirun", mapping("slot")), 1);
  EXPECT_EQ(StrideOf("mpirun", {{"OMPI_MCA_rmaps_base_bynode", "1"}}), 2);
  Variables both = mapping("node");
  both["OMPI_MCA_rmaps_base_ranking_policy"] = "slot";
  EXPECT_EQ(StrideOf("mpirun", both), 1);
  EXPECT_EQ(
      StrideOf("mpirun", {{"OMPI_MCA_rmaps_base_ranking_policy", "node"}}), 2);
  // All are on this host.
  EXPECT_EQ(StrideOf("mpirun", mapping("node"), "1", "1", "3"), 1);
}

TEST(StrideTest, SlurmSaysHowItDealsTasksOut) {
  EXPECT_EQ(StrideOf("Slurm", {}), 1);
  EXPECT_EQ(StrideOf("Slurm", {{"SLURM_DISTRIBUTION", "block:cyclic"}}), 1);
  EXPECT_EQ(StrideOf("Slurm", {{"SLURM_DISTRIBUTION", "cyclic:block"}}), 2);
  EXPECT_EQ(StrideOf("Slurm", {{"SLURM_DISTRIBUTION", "cyclic,NoPack"}}), 2);
  EXPECT_EQ(StrideOf("Slurm", {{"SLURM_DISTRIBUTION", "plane=2"}}), 0);
  EXPECT_EQ(StrideOf("Slurm", {{"SLURM_DISTRIBUTION", "arbitrary"}}), 0);
}

TEST(StrideTest, HostsOfUnequalSizesAreNotGuessed) {
  const Variables by_node{{"OMPI_MCA_rmaps_base_mapping_policy", "node"}};
  EXPECT_EQ(StrideOf("mpirun", by_node, "3", "1", "5"), 0);
  EXPECT_EQ(StrideOf("mpirun", by_node, "3", "2"), 0);
}

TEST(LocalRankTest, IsTheLaunchersNumber) {
  EXPECT_EQ(Detect({{"RANK", "5"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "4"}})
                ->local_rank,
            1);
  EXPECT_EQ(Detect({{"HOROVOD_RANK", "5"}, {"HOROVOD_SIZE", "8"}})->local_rank,
            5);
  EXPECT_EQ(Detect({{"OMPI_COMM_WORLD_RANK", "5"},
                    {"OMPI_COMM_WORLD_SIZE", "8"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}})
                ->local_rank,
            -1);
  EXPECT_EQ(Detect({{"SLURM_PROCID", "5"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_NTASKS", "8"},
                    {"SLURM_LOCALID", "1"},
                    {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}})
                ->local_rank,
            1);
  EXPECT_EQ(Detect({{"TF_CONFIG",
                     R"({"cluster": {"worker": ["a:1", "b:1", "a:2"]},
                         "task": {"type": "worker", "index": 2}})"}})
                ->local_rank,
            1);
}

}  // namespace penstock::launcher_test
