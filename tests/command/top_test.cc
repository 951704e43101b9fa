// Promise: the screen of `penstock top` has the size of its terminal whatever
// the broker answers, and its rates are those between two answers. Method: the
// pure functions. top_terminal_test.py has a terminal.
#include "client/command/top.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/private_broker/table.h"
#include "common/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::top_test {

using testing::HasSubstr;
using Json = nlohmann::json;

Json Status(int looks) {
  return Json::parse(R"({
    "broker": {"version": "1.2.3", "pid": 5, "uptime_s": 61, "workers": 2,
               "memory_bytes": 1048576, "memory_limit_bytes": 2097152,
               "resident_bytes": 1048576, "cpu_s": 1},
    "late_reads": [{}],
    "jobs": [{"job": "tra\u001bin", "dataset": "d", "uid": 7, "world_size": 2,
              "state": "running", "epoch": 1, "epochs": 3, "step": 4,
              "rows": )" +
                     std::to_string(1000 * looks) + R"(,
              "decode_s": )" +
                     std::to_string(looks) + R"(,
              "reads": 10, "bytes_read": 0, "incarnation": 1,
              "bottleneck": {"text": "rank 1 is the bottleneck: it takes 41 ms a batch, the others 12 ms, and so on"},
              "ranks": [{"rank": 0, "pid": 10, "state": "attached", "taken": )" +
                     std::to_string(8 * looks) + R"(, "wait_s": )" +
                     std::to_string(0.25 * looks) + R"(, "ready": 2,
                         "batch_s": 0.0411, "lag": 0, "held": 1}]}]
  })");
}

TEST(TopTest, RatesAreOfTheTimeBetweenTwoAnswers) {
  TopSettings settings;
  settings.clock = "12:00:00";
  const auto lines = TopScreen({Status(1), 100}, {Status(3), 102}, &settings);
  ASSERT_EQ(lines.size(), 24u);
  EXPECT_THAT(lines[0],
              testing::StartsWith("penstockd 1.2.3 (pid 5), up 1 min"));
  EXPECT_THAT(lines[0], testing::EndsWith(" 12:00:00"));
  EXPECT_EQ(
      lines[1],
      "workers  2: 1.0 make rows, 0.0 wait for reads; 0.0 processors used");
  EXPECT_EQ(lines[2],
            "disk     0 B/s, 0 reads/s, - from the page cache; 1 LATE");
  EXPECT_EQ(lines[3], "memory   1.0 MiB promised of 2.0 MiB, 1.0 MiB resident");
  EXPECT_EQ(lines[5],
            "JOB     DATASET  UID  RANKS  SAMPLES/S  EPOCH  STEP  STATE");
  EXPECT_EQ(lines[6],
            "tra?in  d          7      2      1,000    1/3     4  running");
  EXPECT_EQ(lines[7],
            "  rank 1 is the bottleneck: it takes 41 ms a batch, the others 12 "
            "ms, and so on");
  EXPECT_EQ(
      lines[9],
      "     0   10        8.0  41.1 ms   25 %      2     1    0  attached");
  EXPECT_THAT(lines[23], testing::StartsWith("q quit  j/k"));
  EXPECT_THAT(
      TopLines({Status(1), 100}, {Status(3), 102}, "12:00:00")[0],
      testing::StartsWith(
          "12:00:00 tra?in: 1,000 samples/s, epoch 1/3, step 4, running; "
          "rank 1 is the bottleneck"));
}

TEST(TopTest, MakersAreBelowTheJobsThatTheyHelp) {
  const auto status = [](int looks) {
    Json status = Status(looks);
    status["makers"] = {{{"maker", "cpu-1:7000"},
                         {"state", "connected"},
                         {"rows", 300 * looks},
                         {"bytes_per_s", 3 << 20},
                         {"error", ""}}};
    status["jobs"][0]["remote_rows"] = {{"rows_made", 260 * looks},
                                        {"rows_used", 250 * looks},
                                        {"answer_s", 0.0712}};
    return status;
  };
  TopSettings settings;
  settings.columns = 120;
  const auto lines = TopScreen({status(1), 100}, {status(3), 102}, &settings);
  EXPECT_THAT(lines, testing::Contains(
                         "  250 rows/s of other hosts; 780 made and 750 used "
                         "since the job began; an answer takes 71 ms"));
  const auto head = std::find_if(
      lines.begin(), lines.end(),
      [](const std::string& line) { return line.starts_with("MAKER"); });
  ASSERT_NE(head, lines.end());
  EXPECT_EQ(*head, "MAKER       STATE      ROWS/S  ROWS  A SECOND  ERROR");
  EXPECT_EQ(head[1], "cpu-1:7000  connected     300   900   3.0 MiB");
}

TEST(TopTest, ObjectStoresHaveALineWhereThereAreAny) {
  const auto status = [](int looks) {
    Json status = Status(looks);
    status["stores"] = {{"bytes", looks << 20},
                        {"requests", 10 * looks},
                        {"retries", 0},
                        {"in_flight", 16},
                        {"queued", 3},
                        {"copies_bytes", 1 << 20},
                        {"copies_room_bytes", 4 << 20}};
    status["jobs"][0]["remote"] = {{"bytes", looks << 21},
                                   {"hit_rate", 0.5},
                                   {"hit_rate_all", 0.25},
                                   {"rows_ahead", 2'000},
                                   {"ahead_s", 2.0}};
    return status;
  };
  TopSettings settings;
  settings.columns = 120;
  const auto lines = TopScreen({status(1), 100}, {status(3), 102}, &settings);
  EXPECT_EQ(
      lines[4],
      "network  1.0 MiB/s fetched, 10 requests/s, 16 in flight, 3 queued; "
      "0 retries/s; copies 1.0 MiB of 4.0 MiB");
  EXPECT_THAT(
      lines,
      testing::Contains("  2.0 MiB/s needed of object stores, 50 % of it in "
                        "copies (25 % since the job began), 2,000 rows (2.0 s) "
                        "ahead"));
}

// A refresh of the largest answer costs what a screen does, not jobs squared.
TEST(TopTest, ManyJobsAndRanksScrollInAScreen) {
  for (const auto& [jobs, ranks] : {std::pair{256, 4}, std::pair{1, 1024}}) {
    Json many = Status(1);
    Json job = many["jobs"][0];
    const Json rank = job["ranks"][0];
    many["jobs"].clear();
    for (int i = 0; i < jobs; ++i) {
      job["job"] = Format("job {}", i);
      job["ranks"].clear();
      for (int k = 0; k < ranks; ++k) {
        job["ranks"].push_back(rank);
        job["ranks"].back()["rank"] = k;
      }
      many["jobs"].push_back(job);
    }
    TopSettings settings;
    const TopSample before = {many, 1}, now = {many, 2};
    const std::clock_t begin = std::clock();
    auto lines = TopScreen(before, now, &settings);
    const double cpu_s =
        static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    Print(stdout, "{} jobs of {} ranks: {:.1f} ms of CPU time\n", jobs, ranks,
          1000 * cpu_s);
    EXPECT_LT(cpu_s, 1.0);  // with a sanitizer too
    ASSERT_EQ(lines.size(), 24u);
    EXPECT_THAT(lines[23], testing::HasSubstr(" more lines"));
    for (const std::string& line : lines) EXPECT_LE(line.size(), 80u);
    settings.first = 1'000'000;
    lines = TopScreen(before, now, &settings);
    EXPECT_THAT(lines[22], testing::Eq(""));  // behind the last job
    EXPECT_THAT(
        lines[21],
        testing::StartsWith(Format(
            "{:>6}",
            Format("{}", FormatCount(static_cast<uint64_t>(ranks - 1))))));
    EXPECT_THAT(lines[23], Not(testing::HasSubstr("more lines")));
  }
}

TEST(TopTest, AnyAnswerFitsAnySize) {
  const std::vector<Json> answers = {
      Json(), Json::array(), Status(2),
      Json::parse(R"({"broker": [], "jobs": [1, {}, {"ranks": [{}, null]}]})"),
      Json::parse(R"({"jobs": [{"job": "ééééééééééééééééééééééééééééééééééé",
                    "state": "a very long state, longer than any screen is wide, that does not end before the last column of it is reached and passed"}]})")};
  for (const Json& answer : answers) {
    for (size_t columns = 1; columns < 100; columns += 7) {
      for (size_t rows = 1; rows < 30; ++rows) {
        TopSettings settings;
        settings.columns = columns;
        settings.rows = rows;
        settings.first = 1000;
        settings.trouble = rows % 2 == 0 ? "gone" : "";
        const auto lines = TopScreen({answer, 1}, {answer, 1}, &settings);
        ASSERT_EQ(lines.size(), rows);
        for (const std::string& line : lines) {
          const auto shown =
              std::count_if(line.begin(), line.end(),
                            [](char c) { return (c & 0xC0) != 0x80; });
          ASSERT_LE(static_cast<size_t>(shown), columns) << line;
        }
        EXPECT_LT(settings.first, 1000u);
      }
    }
    EXPECT_FALSE(TopLines({answer, 1}, {answer, 2}, "12:00:00").empty());
  }
}

}  // namespace penstock::top_test
