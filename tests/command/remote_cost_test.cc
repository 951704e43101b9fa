// Promise: `penstock explain` and `check` say what the epochs of a dataset in
// object stores download, as python_fetcher.py and the look-ahead do it, and
// which window of files makes that less. Method: the arithmetic on given
// numbers. python/test_store_tools.py compares it with what a server sent.
#include "client/command/remote_cost.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::remote_cost_test {

using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;

// 100 files of 1 GiB, a million rows each, for which a tenth of the room is.
RemoteData Small() {
  RemoteData data;
  data.files = 100;
  data.bytes = 100 * kGiB;
  data.rows = 100 << 20;
  data.row_bytes = 1024;
  data.row_block_bytes = 5120;
  data.room_bytes = 12 * kGiB;
  data.kept_bytes = 10 * kGiB;
  data.ahead_bytes = kGiB;
  data.ahead_rows = 65'536;
  data.free_bytes = 50 * kGiB;
  data.shuffled = true;
  return data;
}

// The same of 10,000 files of 100 rows of 105 KiB.
RemoteData Large() {
  RemoteData data = Small();
  data.files = 10'000;
  data.rows = 1 << 20;
  data.row_bytes = 100 * 1024;
  data.row_block_bytes = 104 * 1024;
  return data;
}

TEST(RemoteCostTest, WhereAllIsKeptEachByteComesOnce) {
  RemoteData data = Small();
  data.kept_bytes = 100 * kGiB;
  const Downloads found = DownloadsOf(data);
  EXPECT_TRUE(found.all_kept);
  EXPECT_EQ(found.first_bytes, 100 * kGiB);
  EXPECT_EQ(found.later_bytes, 0u);
  EXPECT_EQ(found.least_bytes, 0u);
  EXPECT_THAT(RemoteText(data, 100 * kMiB, 1000),
              HasSubstr("100.0 GiB in the first epoch, 17 min"));
  EXPECT_THAT(RemoteText(data, 100 * kMiB, 1000),
              Not(HasSubstr("window_files")));
}

TEST(RemoteCostTest, WhatIsKeptIsNotDownloadedAgain) {
  RemoteData data = Small();
  data.shuffled = false;
  const Downloads found = DownloadsOf(data);
  EXPECT_FALSE(found.all_kept);
  EXPECT_EQ(found.times, 1);
  EXPECT_EQ(found.first_bytes, 100 * kGiB);
  EXPECT_EQ(found.later_bytes, 90 * kGiB);
  EXPECT_EQ(found.least_bytes, 88 * kGiB);
  // 100 GiB of 12 / 10 of them.
  EXPECT_THAT(DownloadsText(data, 0), HasSubstr("`cache: {files: 122881M}`"));
}

TEST(RemoteCostTest, SmallRowsFarApartFetchTheirBlocksAgain) {
  const Downloads found = DownloadsOf(Small());
  EXPECT_EQ(found.times, 5);
  EXPECT_EQ(found.later_bytes, 450 * kGiB);
  EXPECT_EQ(found.first_bytes, 460 * kGiB);
  EXPECT_EQ(WindowOf(Small()), 0u);
  EXPECT_THAT(RemoteText(Small(), 0, 0),
              HasSubstr("No window of files helps: a file has 1,048,576 rows, "
                        "and 65,536 are looked ahead"));
}

TEST(RemoteCostTest, AWindowThatIsLookedAheadWhollyFetchesEachByteOnce) {
  RemoteData data = Small();
  data.files = 100'000;  // of 1,048 rows
  EXPECT_EQ(WindowOf(data), 62u);
  EXPECT_THAT(RemoteText(data, 0, 0),
              HasSubstr("downloads what is not kept 5.0 times in a pass"));
  EXPECT_THAT(RemoteText(data, 0, 0),
              HasSubstr("`shuffle: {window_files: 62}` downloads each byte "
                        "once, 90.0 GiB in a later epoch"));
  data.window_files = 62;
  EXPECT_EQ(DownloadsOf(data).times, 1);
  EXPECT_EQ(WindowBytes(data, 62), 62 * kGiB / 1000);
  EXPECT_THAT(RemoteText(data, 0, 0),
              HasSubstr("Windows of 62 files download each byte once"));
  data.window_files = 63;
  EXPECT_EQ(DownloadsOf(data).times, 5);
  EXPECT_THAT(RemoteText(data, 0, 0), HasSubstr("A window of 63 files"));
}

TEST(RemoteCostTest, HostsThatShareRowsDownloadTheUnitsThatHaveSome) {
  RemoteData data = Small();
  data.hosts = data.sharing = 2;
  EXPECT_EQ(DownloadsOf(data).later_bytes, 225 * kGiB);
  EXPECT_EQ(WindowOf(data), 0u);
  data.kept_bytes = 100 * kGiB;  // in units, with 512 rows each
  EXPECT_EQ(DownloadsOf(data).first_bytes, 100 * kGiB);
  EXPECT_EQ(DownloadsOf(data).later_bytes, 0u);
  EXPECT_THAT(DownloadsText(data, 0),
              HasSubstr("all 2 hosts 200.0 GiB in the first epoch, 2.0 x the "
                        "least (100.0 GiB); `shard: file` downloads each"));
  data.rows = 100 << 10;
  data.row_bytes = kMiB;
  EXPECT_EQ(DownloadsOf(data).first_bytes, 50 * kGiB);
  EXPECT_EQ(DownloadsOf(data).later_bytes, 25 * kGiB);
  EXPECT_EQ(DownloadsOf(data).all_hosts_bytes, 100 * kGiB);
  EXPECT_THAT(DownloadsText(data, 0), Not(HasSubstr("shard: file")));
  data.same_order = true;
  EXPECT_EQ(DownloadsOf(data).later_bytes, 0u);
  data.shuffled = false;  // stretches of 4 rows of 1 KiB
  data.rows = 100 << 20;
  data.row_bytes = 1024;
  data.global_batch = 8;
  EXPECT_EQ(DownloadsOf(data).first_bytes, 100 * kGiB);
  data.global_batch = 1 << 20;
  EXPECT_NEAR(static_cast<double>(DownloadsOf(data).first_bytes), 50.0 * kGiB,
              0.1 * kGiB);
}

TEST(RemoteCostTest, WithShardsOfFilesAHostDownloadsItsOwn) {
  DatasetIndex index;
  index.spec = {{"shard", "file"},
                {"shuffle", {{"seed", 1}, {"window_files", 2}}}};
  index.answer = {{"remote",
                   {{"files", 40},
                    {"bytes", 40 * kGiB},
                    {"rows", 40 << 20},
                    {"row_bytes", 1024},
                    {"kept_bytes", 20 * kGiB},
                    {"room_bytes", 30 * kGiB}}}};
  const RemoteData data = *RemoteDataOf(index, 2, 8);
  const Downloads found = DownloadsOf(data);
  EXPECT_TRUE(found.all_kept);
  EXPECT_EQ(found.first_bytes, 20 * kGiB);
  EXPECT_EQ(found.all_hosts_bytes, 40 * kGiB);
  EXPECT_EQ(found.all_hosts_least_bytes, 40 * kGiB);
  EXPECT_EQ(WindowBytes(data, 2), 8 * kGiB);  // of each of 4 ranks
  EXPECT_THAT(RemoteText(data, 0, 0),
              HasSubstr("Of 40 files in object stores (40.0 GiB) each of 2 "
                        "hosts downloads 20.0 GiB in the first epoch, then "
                        "nothing"));
  EXPECT_EQ(HostsJson(data)["host_first_epoch_bytes"], 20 * kGiB);
  EXPECT_TRUE(HostsJson(*RemoteDataOf(index)).empty());
}

TEST(RemoteCostTest, LargeRowsNeedNoWindow) {
  EXPECT_LT(DownloadsOf(Large()).times, 1.05);
  EXPECT_THAT(RemoteText(Large(), 0, 0),
              HasSubstr("a window of files would save nothing"));
}

TEST(RemoteCostTest, TheNetworkIsComparedWithWhatIsMade) {
  EXPECT_THAT(RemoteText(Large(), 100 * kMiB, 2000),
              HasSubstr("less than the 2,000 that can be made"));
  EXPECT_THAT(RemoteText(Large(), 1000 * kMiB, 2000),
              HasSubstr("enough for the 2,000 that can be made"));
}

TEST(RemoteCostTest, AnAnswerOfNothingIsNoDivisionByZero) {
  DatasetIndex index;
  EXPECT_FALSE(RemoteDataOf(index));
  index.answer = {{"remote", nlohmann::json::object()}};
  const auto data = RemoteDataOf(index);
  ASSERT_TRUE(data);
  EXPECT_EQ(DownloadsOf(*data).first_bytes, 0u);
  EXPECT_THAT(RemoteText(*data, 1, 1), HasSubstr("0 B"));
  RemoteData odd;
  odd.bytes = 1;
  odd.shuffled = true;
  EXPECT_EQ(DownloadsOf(odd).later_bytes, 0u);
  EXPECT_EQ(WindowBytes(odd, WindowOf(odd)), 0u);
}

TEST(RemoteCostTest, WhereIndexesAreFromIsTold) {
  DatasetIndex index;
  index.answer = {{"remote",
                   {{"index_beside", 3},
                    {"index_scanned", 1},
                    {"index_scanned_bytes", 2 * kGiB}}}};
  EXPECT_THAT(IndexText(index),
              testing::StartsWith("3 files' beside the files, 1 file's by "
                                  "reading them once (2.0 GiB)"));
  index.answer = {{"remote", nlohmann::json::object()}};
  EXPECT_EQ(IndexText(index), "none is needed, or the format has its own");
}

}  // namespace penstock::remote_cost_test
