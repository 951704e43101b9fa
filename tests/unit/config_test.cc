// Promise: penstockd's configuration is read in full, and a wrong one is
// refused by line and column; the installed file and the help are those of the
// declaration. Method: files of every key and of every kind of mistake.
#include "broker/config.h"

#include <sys/stat.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "broker/declare/declaration.h"
#include "common/text_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/folder_fixture.h"

namespace penstock::config_test {

using testing::HasSubstr;

class ConfigTest : public FolderTest {};

TEST_F(ConfigTest, EveryKeyIsRead) {
  const auto config =
      LoadConfig(Write("c.yaml",
                       "socket: /x/sock\ncpus: 0-1\nreserve_cores: 1\n"
                       "workers: 3\nread_depth: 8\nread_backend: coop_taskrun\n"
                       "memory_limit: 2G\nstate_dir: /s\ncache_dir: /c\n"
                       "decode_timeout: 5m\nread_timeout: 500ms\n"
                       "python_path: /p:/q/r\npython: /bin/python\n"
                       "python_timeout: 2s\nplugin_dir: /l\n"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->socket, "/x/sock");
  EXPECT_EQ(config->cpus, "0-1");
  EXPECT_EQ(config->reserve_cores, 1u);
  EXPECT_THAT(config->position_of.at("reserve_cores"), HasSubstr("c.yaml:3:1"));
  EXPECT_EQ(config->workers, 3u);
  EXPECT_EQ(config->read_depth, 8u);
  EXPECT_EQ(config->read_backend, ReadBackend::kCoopTaskrun);
  EXPECT_EQ(*config->memory_limit, uint64_t{2} << 30);
  EXPECT_EQ(config->decode_timeout_ns, uint64_t{300} * 1'000'000'000);
  EXPECT_EQ(config->read_timeout_ns, uint64_t{500} * 1'000'000);
  EXPECT_EQ(config->functions.python_path,
            (std::vector<std::string>{"/p", "/q/r"}));
  EXPECT_EQ(config->functions.python, "/bin/python");
  EXPECT_EQ(config->functions.call_timeout_ns, uint64_t{2} * 1'000'000'000);
  EXPECT_EQ(config->functions.plugin_dir, "/l");
}

TEST_F(ConfigTest, KeyGivenTwiceIsRefusedWithBothPlaces) {
  const auto config = LoadConfig(Write("c.yaml", "workers: 3\nworkers: 4\n"));
  EXPECT_THAT(config.status().message(), HasSubstr("c.yaml:2:1"));
  EXPECT_THAT(config.status().message(), HasSubstr("first in line 1"));
}

TEST_F(ConfigTest, TheInstalledFileIsThatOfTheDeclaration) {
  const std::string path = PENSTOCK_SOURCE_DIR "/systemd/penstockd.yaml";
  EXPECT_EQ(*ReadTextFile("file", path, kSpecBytesMax), CommentedConfig())
      << "systemd/penstockd.yaml has to be this:\n"
      << CommentedConfig();
  const auto config = LoadConfig(path);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->state_dir, "/var/lib/penstock");
}

TEST_F(ConfigTest, WhatTheInstalledFileCommentsOutIsTheDefaultOrMaySet) {
  std::istringstream lines(CommentedConfig());
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    std::smatch key;
    if (std::regex_match(line, key, std::regex("(?:# )?([a-z_]+: \\S.*)")) &&
        line.find("Value: ") == line.npos) {
      all += key.str(1) + "\n";
    }
  }
  const auto config = LoadConfig(Write("c.yaml", all));
  ASSERT_TRUE(config.ok()) << config.status().message() << "\n" << all;
  const auto keys = std::count_if(
      config->position_of.begin(), config->position_of.end(),
      [](const auto& of) { return of.first.find('[') == of.first.npos; });
  EXPECT_EQ(static_cast<size_t>(keys), Config::Declared().fields().size());
  EXPECT_EQ(ChangedKeys(Config(), *config),
            (std::vector<std::string>{
                "socket", "cpus", "memory_limit", "memory_limit_per_user",
                "data", "python_path", "plugin_dir", "state_dir", "cache_dir",
                "snapshot_path", "fetcher"}));
}

TEST_F(ConfigTest, HelpExplainsEveryKeyAndWhenItIsTaken) {
  const std::string help = DescribeConfig();
  for (const auto& field : Config::Declared().fields()) {
    EXPECT_THAT(help, HasSubstr("\n  " + field.key + ": "));
    EXPECT_EQ(field.text.back(), '.') << field.key;
  }
  EXPECT_TRUE(IsReloadable("memory_limit"));
  EXPECT_FALSE(IsReloadable("state_dir"));
  EXPECT_FALSE(IsReloadable("memory"));
}

TEST_F(ConfigTest, ChangesAreFoundByValue) {
  const auto load = [&](const char* text) {
    return *LoadConfig(Write("c.yaml", text));
  };
  EXPECT_EQ(ChangedKeys(load("memory_limit: 1G\nread_timeout: 60s\n"),
                        load("memory_limit: 1024M\n")),
            std::vector<std::string>());
  EXPECT_EQ(
      ChangedKeys(load("memory_limit: 1G\npython: python3\n"),
                  load("python_path: /a\nworkers: 2\n")),
      (std::vector<std::string>{"workers", "memory_limit", "python_path"}));
}

TEST_F(ConfigTest, ErrorsNameLineAndColumn) {
  EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: 2\nwrokers: 3\n"))
                  .status()
                  .message(),
              testing::AllOf(HasSubstr("c.yaml:2:1"),
                             HasSubstr("did you mean 'workers'?")));
  EXPECT_THAT(
      LoadConfig(Write("c.yaml", "memory_limit: lots\n")).status().message(),
      HasSubstr("'lots' is not a size"));
  EXPECT_FALSE(LoadConfig(Write("c.yaml", "workers: [1]\n")).ok());
  EXPECT_FALSE(LoadConfig(Write("c.yaml", "a: {\n")).ok());
  EXPECT_FALSE(LoadConfig(folder_ / "none").ok());
}

TEST_F(ConfigTest, WhatIsNoConfigurationIsRefusedAndNotWaitedFor) {
  EXPECT_THAT(LoadConfig(folder_).status().message(), HasSubstr("a folder"));
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(LoadConfig(fifo).status().message(),
              HasSubstr("not a regular file"));
  EXPECT_THAT(LoadConfig("/dev/zero").status().message(),
              HasSubstr("not a regular file"));
  EXPECT_THAT(LoadConfig(Write("large.yaml", std::string(1 << 20, '#')))
                  .status()
                  .message(),
              HasSubstr("larger than 64 KiB"));
}

TEST_F(ConfigTest, OneDocumentOfPlainValues) {
  for (const char* empty : {"", "# nothing\n", "---\n"}) {
    EXPECT_TRUE(LoadConfig(Write("c.yaml", empty)).ok()) << empty;
  }
  EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: 1\n---\nworkers: 2\n"))
                  .status()
                  .message(),
              HasSubstr("c.yaml:2:1: a second document"));
  EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: &n 1\nread_depth: *n\n"))
                  .status()
                  .message(),
              HasSubstr("c.yaml:1:10: anchors"));
}

TEST_F(ConfigTest, ProcessorsAndWorkersThatCannotBeAreRefusedWithTheirPlace) {
  for (const char* cpus : {"0-", "-1", "a", "0,,1", "3-1", "0-1,", "0 1",
                           "99999", "18446744073709551616"}) {
    EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: auto\ncpus: '" +
                                               std::string(cpus) + "'\n"))
                    .status()
                    .message(),
                testing::AllOf(HasSubstr("c.yaml:2:7: cpus: '"),
                               HasSubstr("such as 0-7,16")))
        << cpus;
  }
  EXPECT_TRUE(LoadConfig(Write("c.yaml", "cpus: 0-7,16,3\n")).ok());
  EXPECT_EQ(LoadConfig(Write("c.yaml", "workers: auto\n"))->workers, 0u);
  EXPECT_EQ(LoadConfig(Write("c.yaml", "reserve_cores: 0\n"))->reserve_cores,
            0u);
  EXPECT_THAT(
      LoadConfig(Write("c.yaml", "\nreserve_cores: -1\n")).status().message(),
      HasSubstr("c.yaml:2:16: reserve_cores: '-1' is not a number from 0"));
  EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: 0\n")).status().message(),
              HasSubstr("c.yaml:1:10: workers: '0' is not a number from 1"));
}

}  // namespace penstock::config_test
