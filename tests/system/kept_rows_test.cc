// Promise: a cache or a snapshot changes no byte of any batch, for any number
// of jobs and ranks, after a resume and after the broker's death; what it has
// is not read again; damage and outdated data are told and cost no row. Method:
// a real broker over a file of records, with a map of fixed and random steps,
// beside the same dataset without a cache.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::kept_rows_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uint64_t kRecords = 600;
constexpr uint64_t kRecordBytes = 8 * 8 * 3;
constexpr uint64_t kEpochs = 3;

// The folders of files, before there is a broker.
struct Folders {
  Folders() {
    std::string pattern = testing::TempDir() + "/penstock-kept-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path = pattern;
    setenv("PENSTOCK_SNAPSHOT_PATH", (path + "/snapshots").c_str(), 1);
  }
  ~Folders() {
    unsetenv("PENSTOCK_SNAPSHOT_PATH");
    fs::remove_all(path);
  }
  std::string path;
};

class KeptRowsTest : protected Folders, public DeliveryTest {
 protected:
  KeptRowsTest() { WriteRecords(1); }

  std::string Records() const { return path + "/records"; }
  std::string Snapshot() const { return path + "/snapshots/s"; }
  void WriteRecords(uint64_t seed) const {
    std::string bytes(kRecords * kRecordBytes, '\0');
    for (char& byte : bytes) {
      seed = seed * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<char>(seed >> 56);
    }
    std::ofstream(Records(), std::ios::binary) << bytes;
  }
  // The first step can be kept, the second draws, the third follows it.
  std::string Spec(const std::string& kept,
                   const std::string& more = "") const {
    return "dataset: pictures\nsource: {fixed_length_records: {files: " +
           Records() +
           ", features: {image: {dtype: uint8, shape: [8, 8, 3]}}}}\n"
           "shuffle: {seed: 3}\nmap:\n- resize: {size: [6, 7]}\n"
           "- flip: {horizontal: 0.5}\n"
           "- normalize: {mean: [0.4, 0.5, 0.6], std: [0.2, 0.3, 0.4], layout: "
           "chw}\nbatch: {size: 40}\nepochs: " +
           std::to_string(kEpochs) + "\n" + kept + more;
  }
  std::string SnapshotSpec(const std::string& more = "") const {
    return Spec("snapshot: {path: " + Snapshot() + "}\n", more);
  }

  using Rows = std::map<std::pair<uint64_t, int64_t>, std::string>;
  // All rows, by epoch and sample; of some ranks in turn.
  Rows TakeRows(const std::string& spec, const std::string& job, int ranks = 1,
                const std::string& state = "", uint64_t batches = UINT64_MAX,
                std::string* end = nullptr) {
    std::vector<std::unique_ptr<Reader>> readers;
    std::vector<std::thread> attaching;
    readers.resize(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      attaching.emplace_back([&, rank] {
        Options options = OptionsFor(spec, rank, ranks);
        options.job = job;
        options.state = state;
        readers[static_cast<size_t>(rank)] = std::make_unique<Reader>(options);
      });
    }
    for (std::thread& each : attaching) each.join();
    Rows rows;
    Batch batch;
    for (uint64_t taken = 0; taken < batches; ++taken) {
      bool any = false;
      for (const auto& reader : readers) {
        Reader::Result result;
        do {
          result = reader->next(&batch);
        } while (result == Reader::Result::kEndOfEpoch);
        if (result != Reader::Result::kBatch) continue;
        any = true;
        const auto values = batch.get<float>("image");
        const size_t row_values = 3 * 6 * 7;
        for (uint64_t row = 0; row < batch.rows(); ++row) {
          rows[{batch.epoch(), batch.ids()[row]}] = std::string(
              reinterpret_cast<const char*>(&values[row * row_values]),
              row_values * sizeof(float));
        }
      }
      if (!any) break;
    }
    batch = {};
    if (end != nullptr) *end = readers[0]->state();
    return rows;
  }
  const Rows& Plain() {
    if (plain_.empty()) plain_ = TakeRows(Spec(""), "plain");
    EXPECT_EQ(plain_.size(), kEpochs * kRecords);
    return plain_;
  }
  // What a job took, beside the same without a cache.
  void ExpectSame(const Rows& rows) {
    for (const auto& [which, bytes] : rows) {
      ASSERT_EQ(bytes == Plain().at(which), true)
          << "epoch " << which.first << " sample " << which.second;
    }
  }
  uint64_t Of(const std::string& job, const std::string& field) {
    return JobStatus(job).at(field).get<uint64_t>();
  }
  void AwaitSnapshot() {
    WaitUntil("the snapshot is complete", [&] {
      std::ifstream index(Snapshot() + "/index", std::ios::binary);
      uint64_t words[2] = {};
      index.read(reinterpret_cast<char*>(words), sizeof(words));
      return words[1] == 1;
    });
  }

 private:
  Rows plain_;
};

TEST_F(KeptRowsTest, NoByteChangesAndNothingIsReadTwice) {
  for (const std::string kept :
       {"cache: {memory: 1G}\n", "cache: {memory: 1G, at: 0}\n",
        "cache: {disk: 1G}\n", "cache: {disk: 1G, zstd: 3, at: 0}\n"}) {
    SCOPED_TRACE(kept);
    const std::string job = "kept " + kept.substr(8, kept.size() - 10);
    Options options = OptionsFor(Spec(kept), 0, 1);
    options.job = "kept";
    Reader reader(options);  // the job's status stays
    const Rows rows = TakeRows(Spec(kept), "all");
    EXPECT_EQ(rows.size(), kEpochs * kRecords);
    ExpectSame(rows);
    const auto status = JobStatus("all");
    if (status.is_object()) {
      EXPECT_EQ(status.at("cache_entries"), kRecords);
      EXPECT_LE(status.at("cache_misses"), kRecords + 80);
    }
    EXPECT_EQ(Of("kept", "cache_entries"), kRecords);
  }
}

TEST_F(KeptRowsTest, JobsOfAnyRanksShareIt) {
  const std::string spec = Spec("cache: {memory: 1G}\n");
  Options options = OptionsFor(spec, 0, 1);
  options.job = "first";
  Reader first(options);
  Batch batch;
  for (uint64_t row = 0; row < kRecords;) {
    ASSERT_EQ(first.next(&batch), Reader::Result::kBatch);
    row += batch.rows();
  }
  options = OptionsFor(spec, 0, 3);
  ExpectSame(TakeRows(spec, "second", 3));
  // The second read nothing, as a third shows: its own ranks are gone.
  EXPECT_EQ(Of("first", "cache_entries"), kRecords);
  options = OptionsFor(spec, 0, 1);
  options.job = "third";
  Reader third(options);
  ASSERT_EQ(third.next(&batch), Reader::Result::kBatch);
  EXPECT_GE(Of("third", "cache_hits"), 40U);
  EXPECT_EQ(Of("third", "cache_misses"), 0U);
  EXPECT_EQ(Of("third", "reads"), 0U);
}

TEST_F(KeptRowsTest, HitsAreWhatFits) {
  // 6 x 7 x 3 bytes are 8 granules of 16.
  const std::string spec =
      Spec("cache: {memory: " + std::to_string(kRecords / 2 * 128) + "}\n");
  Options options = OptionsFor(spec, 0, 1);
  options.job = "half";
  Reader reader(options);
  Batch batch;
  uint64_t rows = 0;
  Reader::Result result;
  while ((result = reader.next(&batch)) != Reader::Result::kEndOfData) {
    if (result == Reader::Result::kBatch) rows += batch.rows();
    if (rows == kEpochs * kRecords) break;
  }
  const auto status = JobStatus("half");
  EXPECT_EQ(status.at("cache_entries"), kRecords / 2);
  EXPECT_EQ(status.at("cache"), "in memory, full");
  EXPECT_EQ(status.at("cache_hits").get<uint64_t>() +
                status.at("cache_misses").get<uint64_t>(),
            kEpochs * kRecords);
  // All of two epochs, and what a batch made ahead had of the first.
  EXPECT_GE(status.at("cache_hits"), kRecords);
  EXPECT_LE(status.at("cache_hits"), kRecords + 120);
}

TEST_F(KeptRowsTest, AResumeWithOtherRanksGivesTheSame) {
  const std::string spec = Spec("cache: {disk: 1G}\n");
  std::string state;
  Rows rows = TakeRows(spec, "begin", 2, "", 20, &state);
  EXPECT_EQ(rows.size(), 800U);
  for (const auto& [which, bytes] : TakeRows(spec, "resumed", 3, state)) {
    rows[which] = bytes;
  }
  EXPECT_EQ(rows.size(), kEpochs * kRecords);
  ExpectSame(rows);
}

TEST_F(KeptRowsTest, ItOutlivesABrokerThatIsKilled) {
  for (const std::string& spec :
       {Spec("cache: {disk: 1G}\n"), SnapshotSpec()}) {
    TakeRows(spec, "begin", 1, "", 5);
    broker_.Stop(SIGKILL);
    broker_.Start();
    Options options = OptionsFor(spec, 0, 1);
    options.job = "again";
    Reader reader(options);
    EXPECT_GE(Of("again", "cache_entries"), 200U);
    ExpectSame(TakeRows(spec, "all"));
  }
}

TEST_F(KeptRowsTest, DamagedEntriesAreMadeAgain) {
  const std::string spec = Spec("cache: {disk: 1G}\n");
  TakeRows(spec, "fill");
  broker_.Stop(SIGTERM);
  uint64_t damaged = 0;
  for (const auto& file : fs::directory_iterator(broker_.folder() / "cache")) {
    if (file.path().extension() != ".entries") continue;
    std::fstream entries(file.path(),
                         std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t at = 50; at < fs::file_size(file.path()); at += 1000) {
      entries.seekp(static_cast<std::streamoff>(at));
      entries.write("damage", 6);
      ++damaged;
    }
  }
  EXPECT_GT(damaged, 10U);
  broker_.Start();
  ExpectSame(TakeRows(spec, "damaged"));
  ExpectSame(TakeRows(spec, "replaced"));
}

// ---- snapshots

TEST_F(KeptRowsTest, ASnapshotIsUsedByLaterBrokers) {
  ExpectSame(TakeRows(SnapshotSpec(), "fill"));
  AwaitSnapshot();
  broker_.Stop(SIGTERM);
  broker_.Start();
  Options options = OptionsFor(SnapshotSpec(), 0, 1);
  options.job = "watch";
  Reader watch(options);
  ExpectSame(TakeRows(SnapshotSpec(), "use", 2));
  const auto status = JobStatus("watch");
  EXPECT_THAT(status.at("cache").get<std::string>(), HasSubstr(", complete"));
  EXPECT_EQ(status.at("cache_misses"), 0);
}

TEST_F(KeptRowsTest, AnOutdatedSnapshotIsRefused) {
  TakeRows(SnapshotSpec(), "fill");
  AwaitSnapshot();
  broker_.Stop(SIGTERM);
  broker_.Start();
  const auto refused = [&](const std::string& spec) {
    int code = 0;
    const std::string error = AttachError(OptionsFor(spec, 0, 1), &code);
    EXPECT_EQ(code, PENSTOCK_FAILED_PRECONDITION);
    EXPECT_THAT(error, HasSubstr("remove it to have it made anew"));
    return error;
  };
  WriteRecords(2);
  EXPECT_THAT(refused(SnapshotSpec()), HasSubstr("have changed since"));
  std::ofstream(Records(), std::ios::binary | std::ios::app)
      << std::string(kRecordBytes, 'x');
  EXPECT_THAT(refused(SnapshotSpec()), HasSubstr("other files or records"));
  std::string other = SnapshotSpec();
  other.replace(other.find("[6, 7]"), 6, "[7, 6]");
  refused(other);
  fs::remove_all(Snapshot());
  Options options = OptionsFor(SnapshotSpec(), 0, 1);
  EXPECT_EQ(AttachError(options), "");
}

TEST_F(KeptRowsTest, ACacheOfChangedDataBeginsAnew) {
  const std::string spec = Spec("cache: {disk: 1G}\n");
  TakeRows(spec, "fill");
  WriteRecords(2);
  ExpectSame(TakeRows(spec, "changed"));
}

// As `tar --mtime` and `cp -p` leave them.
TEST_F(KeptRowsTest, AFileReplacedByOneOfTheSameSizeAndTimeIsNoticed) {
  TakeRows(Spec("cache: {disk: 1G}\n"), "fill");
  TakeRows(SnapshotSpec(), "fill snapshot");
  AwaitSnapshot();
  const fs::file_time_type time = fs::last_write_time(Records());
  const std::string replaced = Records() + ".replaced";
  fs::rename(Records(), replaced);  // its inode is not free for the new one
  WriteRecords(2);
  fs::last_write_time(Records(), time);
  ExpectSame(TakeRows(Spec("cache: {disk: 1G}\n"), "changed"));
  EXPECT_THAT(AttachError(OptionsFor(SnapshotSpec(), 0, 1)),
              HasSubstr("have changed since"));
  fs::remove(replaced);
}

// Beside it a job reads its source, and says so.
TEST_F(KeptRowsTest, OneBrokerWritesASnapshot) {
  Options options = OptionsFor(SnapshotSpec(), 0, 1);
  options.job = "writes";
  Reader writer(options);
  BrokerProcess other;
  options.socket = other.socket();
  Reader reader(options);
  Batch batch;
  EXPECT_EQ(reader.next(&batch), Reader::Result::kBatch);
  EXPECT_THAT(reader.warning(), HasSubstr("another broker or job writes it"));
}

TEST_F(KeptRowsTest, ASnapshotThatMayOnlyBeReadSaysWhyItIsNot) {
  TakeRows(SnapshotSpec(), "fill");
  AwaitSnapshot();
  broker_.Stop(SIGTERM);
  unsetenv("PENSTOCK_SNAPSHOT_PATH");
  broker_.Start();
  const std::string spec = SnapshotSpec();
  EXPECT_EQ(AttachError(OptionsFor(spec, 0, 1)), "");
  WriteRecords(2);
  const std::string outdated = AttachError(OptionsFor(spec, 0, 1));
  fs::remove_all(Snapshot());
  fs::create_directories(Snapshot());
  EXPECT_THAT(outdated, HasSubstr("have changed since"));
}

TEST_F(KeptRowsTest, ASnapshotElsewhereNamesTheWayOut) {
  std::string spec = SnapshotSpec();
  spec.replace(spec.find(Snapshot()), Snapshot().size(), path + "/elsewhere");
  const std::string error = AttachError(OptionsFor(spec, 0, 1));
  // A kernel without Landlock lets it be written.
  if (error.empty()) return;
  EXPECT_THAT(error,
              HasSubstr("set PENSTOCK_SNAPSHOT_PATH=" +
                        fs::path(path).lexically_normal().string() + ","));
}

}  // namespace penstock::kept_rows_test
