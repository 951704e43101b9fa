// Promise: a selection goes by any number or text of the records; the column is
// read once, and what is in the cache folder is never a wrong value. Method:
// files of comma-separated values, and of JSON, whose records the test knows;
// caches that are damaged byte by byte, or of a file that was replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "broker/job/dataset.h"
#include "broker/source/selection.h"
#include "tests/unit/file_source.h"

namespace penstock::read_columns_test {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kRecords = 40'000;  // several turns of the threads

class ReadColumnsTest : public FileSourceTest {
 protected:
  ReadColumnsTest() { WriteTable(); }

  // Record i: label i % 5 - 1, weight i / 2, kind "a", "b,c" or "" in turn.
  void WriteTable(int offset = 0) {
    const std::vector<std::string> kinds = {"a", "\"b,c\"", ""};
    std::string text = "label,weight,kind\n";
    for (int i = offset; i < kRecords + offset; ++i) {
      text += std::to_string(i % 5 - 1) + "," + std::to_string(i / 2) +
              (i % 2 == 0 ? ".0," : ".5,") + kinds[i % 3] + "\n";
    }
    Write("a.csv", text);
  }
  std::string Csv() const {
    return "source: {csv: {files: " + folder_ +
           "/a.csv, columns: {label: {dtype: int64}, weight: {dtype: float32}, "
           "kind: {max_bytes: 8}}}}\n";
  }

  StatusOr<std::vector<uint64_t>> Select(const std::string& source,
                                         const std::string& step) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const DatasetSpec spec,
        ParseDatasetSpec("dataset: d\nbatch: {size: 1}\n" + source +
                             "select: [" + step + "]\n",
                         "a.yaml", "/"));
    OpenProgress progress;
    progress.reserve = [this](uint64_t bytes) {
      promised_ += bytes;
      return promised_ > promise_most_
                 ? ResourceExhaustedError("no more memory")
                 : OkStatus();
    };
    PENSTOCK_ASSIGN_OR_RETURN(const auto dataset,
                              OpenDataset(spec, {}, &progress));
    digests_ = dataset->FilesOfSelection();
    kept_bytes_ = dataset->selection.memory_bytes();
    warning_ = dataset->warning();
    PENSTOCK_ASSIGN_OR_RETURN(const Plan plan, PlanOf(spec, *dataset, 1, 1));
    std::vector<Plan::Row> rows(plan.rows_per_epoch());
    plan.Rows(0, 0, rows.size(), rows.data());
    std::vector<uint64_t> records;
    for (const Plan::Row& row : rows) records.push_back(row.record);
    return records;
  }
  std::vector<uint64_t> Selected(const std::string& step) {
    auto records = Select(Csv(), step);
    EXPECT_TRUE(records.ok()) << records.status().message();
    return records.ok() ? *records : std::vector<uint64_t>();
  }
  // Records for which the function is true.
  template <typename Keep>
  static std::vector<uint64_t> Where(Keep keep) {
    std::vector<uint64_t> records;
    for (uint64_t i = 0; i < kRecords; ++i) {
      if (keep(i)) records.push_back(i);
    }
    return records;
  }
  std::vector<std::string> Caches() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_ + "/cache")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("column-")) files.push_back(entry.path());
    }
    return files;
  }

  uint64_t promised_ = 0;
  uint64_t promise_most_ = UINT64_MAX;
  uint64_t kept_bytes_ = 0;
  FileDigests digests_;
  std::string warning_;
};

const auto kIsOfKind = [](uint64_t i) { return i % 3 == 1; };

TEST_F(ReadColumnsTest, WholeNumbersRealNumbersAndTexts) {
  EXPECT_EQ(Selected("filter: {column: label, in: [-1, 3]}"),
            Where([](uint64_t i) { return i % 5 == 0 || i % 5 == 4; }));
  EXPECT_EQ(Selected("filter: {column: weight, min: 9.5, max: 100}"),
            Where([](uint64_t i) { return i >= 19 && i <= 200; }));
  EXPECT_EQ(Selected("filter: {column: kind, in: ['b,c']}"), Where(kIsOfKind));
  EXPECT_EQ(Selected("filter: {column: kind, except: [a, 'b,c']}"),
            Where([](uint64_t i) { return i % 3 == 2; }));
}

TEST_F(ReadColumnsTest, EveryStepMayGoByThem) {
  std::vector<int> rows(5);
  for (const uint64_t record : Selected("balance: {by: label}")) {
    ++rows[record % 5];
  }
  EXPECT_THAT(rows, testing::Each(kRecords / 5));
  for (const uint64_t record :
       Selected("sample: {by: kind, weights: {a: 0, 'b,c': 0}, rows: 100}")) {
    EXPECT_EQ(record % 3, 2U);
  }
  EXPECT_THAT(Selected("sample: {weight: weight, rows: 5}"),
              testing::SizeIs(5));
  EXPECT_EQ(Selected("shard: {index: 1, of: 3, by: kind}"), Where(kIsOfKind));
  const auto train =
      Selected("split: {of: {a: 0.5, b: 0.5}, part: a, by: weight, seed: 1}");
  const auto rest =
      Selected("split: {of: {a: 0.5, b: 0.5}, part: b, by: weight, seed: 1}");
  EXPECT_EQ(train.size() + rest.size(), size_t{kRecords});
}

TEST_F(ReadColumnsTest, OfPartsAndOfAZip) {
  const std::string table = Csv().substr(0, Csv().size() - 1);
  const auto mix = Select(
      "source: {concat: {parts: [{" + table +
          ", select: [filter: {column: label, in: [0]}]}, {" + table + "}]}}\n",
      "take: 3");
  ASSERT_TRUE(mix.ok()) << mix.status().message();
  EXPECT_THAT(*mix, ElementsAre(1, 6, 11));
  const auto zip = Select(
      "source: {zip: {parts: [{" + table + "}, {source: {range: 9}}]}}\n",
      "filter: {column: kind, in: [a]}");
  ASSERT_TRUE(zip.ok()) << zip.status().message();
  EXPECT_THAT(*zip, ElementsAre(0, 3, 6));
}

TEST_F(ReadColumnsTest, AZipJoinsByOne) {
  const auto lines = [this](const std::string& name,
                            const std::vector<std::string>& keys) {
    std::string text;
    for (const std::string& key : keys)
      text += Format("{{\"k\": \"{}\"}}\n", key);
    return "{source: {json_lines: {files: " + Write(name, text) +
           ", fields: {k: {max_bytes: 4}}}}";
  };
  // The records of each part.
  const auto joined = [&](const std::string& right, const std::string& more) {
    const auto spec = ParseDatasetSpec(
        "dataset: d\nbatch: {size: 1}\nsource: {zip: {by: k, parts: [" +
            lines("a", {"x", "y", "é", "z"}) + "}, " + right +
            ", prefix: b_}]" + more + "}}\n",
        "a.yaml", "/");
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    const auto source = OpenSource(spec->source, nullptr);
    if (!source.ok()) return source.status().message();
    std::string records;
    for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
      const std::string both = (*source)->Describe(i);
      records += both.substr(both.rfind("line")) + ", ";
    }
    return records + (*source)->left_out() + " " + (*source)->fingerprint();
  };
  const std::string whole = joined(lines("b", {"z", "u", "é", "x", "y"}), "");
  EXPECT_THAT(whole, testing::StartsWith("line 4, line 5, line 3, line 1,  "));
  EXPECT_EQ(whole, joined(lines("b", {"z", "u", "é", "x", "y"}), ""));
  const std::string some = lines("b", {"z", "y", "w"});
  EXPECT_THAT(joined(some, ""),
              HasSubstr("2 records of parts[0] have no record of the same k in "
                        "another part: 'x' (not in parts[1]), 'é' (not in "
                        "parts[1]); `on_missing: skip` leaves them out"));
  EXPECT_THAT(joined(some, ", on_missing: skip"),
              testing::StartsWith("line 2, line 1, 2 records of parts[0] "
                                  "without one in each other part "));
  EXPECT_THAT(joined(lines("b", {"w"}), ", on_missing: skip"),
              HasSubstr("4 records of parts[0] have no record"));
  EXPECT_THAT(joined(lines("b", {"x", "y", "x"}), ""),
              HasSubstr("parts[1]: two of its records have k 'x': 0 and 2"));
  EXPECT_THAT(joined("{source: {range: 9}", ""),
              HasSubstr("has no column 'k' to join by"));
}

TEST_F(ReadColumnsTest, OfLinesOfJson) {
  const std::string path =
      Write("a.jsonl", "{\"s\": \"x\"}\n{\"s\": \"y\"}\n{\"s\": \"x\"}\n");
  const auto selected = Select("source: {json_lines: {files: " + path +
                                   ", fields: {s: {max_bytes: 4}}}}\n",
                               "filter: {column: s, in: [x]}");
  ASSERT_TRUE(selected.ok()) << selected.status().message();
  EXPECT_THAT(*selected, ElementsAre(0, 2));
}

TEST_F(ReadColumnsTest, TheCacheGivesTheSame) {
  const std::string step = "filter: {column: kind, in: ['b,c']}";
  Selected(step);
  const FileDigests read = digests_;
  ASSERT_EQ(read.size(), 1U);
  ASSERT_EQ(Caches().size(), 1U);
  const auto written = fs::last_write_time(Caches()[0]);
  EXPECT_EQ(Selected(step), Where(kIsOfKind));
  EXPECT_EQ(digests_, read);
  EXPECT_EQ(fs::last_write_time(Caches()[0]), written);
}

TEST_F(ReadColumnsTest, ADamagedCacheIsNoValue) {
  const std::string step = "filter: {column: kind, in: ['b,c']}";
  Selected(step);
  const std::string path = Caches()[0];
  std::ifstream file(path, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(file), {});
  // The header and the key whole, of the values some, the texts.
  for (size_t at = 0; at < whole.size();
       at += at < 600 || at + 60 > whole.size() ? 23 : 40'009) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x11);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_EQ(Selected(step).size(), Where(kIsOfKind).size()) << at;
  }
  for (const size_t bytes : {size_t{0}, size_t{30}, whole.size() - 1}) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, bytes);
    EXPECT_EQ(Selected(step), Where(kIsOfKind)) << bytes;
  }
}

TEST_F(ReadColumnsTest, AFileReplacedByOneOfTheSameSizeAndTimeIsReadAgain) {
  const std::string step = "filter: {column: label, in: [-1]}";
  EXPECT_EQ(Selected(step).front(), 0U);
  const std::string path = folder_ + "/a.csv";
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const auto time = fs::last_write_time(path);
  fs::rename(path, folder_ + "/before.csv");
  const std::string first = "-1,0.0,a\n";
  const std::string second = "0,0.5,\"b,c\"\n";
  text.replace(text.find(first), first.size() + second.size(), second + first);
  Write("a.csv", text);
  fs::last_write_time(path, time);
  EXPECT_EQ(Selected(step).front(), 1U);
}

TEST_F(ReadColumnsTest, ItsMemoryIsPromised) {
  Selected("filter: {column: label, in: [-1]}");
  const uint64_t needed = promised_;
  EXPECT_GE(kept_bytes_, kRecords * sizeof(uint64_t));
  EXPECT_GE(needed, kept_bytes_);
  promised_ = 0;
  promise_most_ = needed - 1;
  EXPECT_EQ(Select(Csv(), "filter: {column: label, in: [-1]}").status().code(),
            StatusCode::kResourceExhausted);
}

TEST_F(ReadColumnsTest, ARecordThatCannotBeReadIsNamed) {
  Write("a.csv", "label,weight,kind\n1,2,a\nx,2,a\n");
  const Status status =
      Select(Csv(), "filter: {column: label, in: [1]}").status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              HasSubstr("select[0]: column 'label': " + folder_ +
                        "/a.csv, row 2 (offset 24): field 'label': wanted "
                        "int64, found 'x'; mend it, or begin `select` with "
                        "`exclude` and the list of `penstock check --all`, or "
                        "leave it out by `on_error: skip`"));
}

TEST_F(ReadColumnsTest, ANumberThatCannotBeReadIsZeroWhereOnErrorGoesOn) {
  Write("a.csv", "label,weight,kind\n1,2,a\nx,2,a\n3,2,a\ny,2,a\n");
  const std::string skips = Csv() + "on_error: skip\n";
  for (int i = 0; i < 2; ++i) {  // the second time from the cache
    const auto all = Select(skips, "filter: {column: label, min: 0}");
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_THAT(*all, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(warning_, HasSubstr("2 of 4 records have no 'label', the first "
                                    "of them " +
                                    folder_ +
                                    "/a.csv, row 2 (offset 24): it "
                                    "counts as 0"));
    EXPECT_THAT(Caches(), testing::SizeIs(1));
  }
  EXPECT_THAT(*Select(skips, "filter: {column: label, min: 1}"),
              ElementsAre(0, 2));
  // Nor are these values those of a spec that stops at an error.
  const Status fails =
      Select(Csv(), "filter: {column: label, min: 0}").status();
  EXPECT_EQ(fails.code(), StatusCode::kDataLoss);
  // A text is no number.
  Write("a.csv", "label,weight,kind\n1,2,a\nx,2,123456789\n");
  EXPECT_THAT(
      Select(skips, "filter: {column: kind, in: [a]}").status().message(),
      HasSubstr("list of `penstock check --all`"));
}

TEST_F(ReadColumnsTest, AnUnknownColumnNamesThoseThatThereAre) {
  EXPECT_THAT(
      Select(Csv(), "balance: {by: labl}").status().message(),
      HasSubstr("no column 'labl'; it has bytes, file, kind, kind_bytes, "
                "label, weight"));
}

}  // namespace penstock::read_columns_test
