// Promise: `select: [filter: {records: FILE}]` has exactly the records whose
// bits are set, in the source's order, and in a part too; a file is refused if
// the data or the steps before it are others than those that were judged, or if
// a byte of it is wrong; a changed file is another dataset. Method: files as
// `penstock filter` writes them, of made up answers.
#include "common/kept_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "broker/job/dataset.h"

namespace penstock::kept_records_test {

using testing::ElementsAre;
using testing::HasSubstr;

class KeptRecordsTest : public testing::Test {
 protected:
  KeptRecordsTest() {
    char name[] = "/tmp/kept_records_XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~KeptRecordsTest() override { std::filesystem::remove_all(folder_); }

  static StatusOr<std::shared_ptr<const Dataset>> Open(const std::string& lines,
                                                       DatasetSpec* spec) {
    auto parsed = ParseDatasetSpec(
        "dataset: d\nbatch: {size: 1}\n" + lines + "\n", "a.yaml", "/");
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    *spec = *std::move(parsed);
    OpenProgress progress;
    return OpenDataset(*spec, {}, &progress);
  }

  // Writes the file that `penstock filter` would, of a function that keeps
  // these, for what the lines select.
  std::string Judge(const std::string& name, const std::string& lines,
                    const std::vector<uint64_t>& kept) {
    DatasetSpec spec;
    const auto dataset = Open(lines, &spec);
    EXPECT_TRUE(dataset.ok()) << dataset.status().message();
    KeptRecordsHeader header;
    header.records = (*dataset)->source->record_count();
    header.data = (*dataset)->source->fingerprint();
    header.selection = SelectionDigest(spec.source, header.data, spec.select,
                                       (*dataset)->FilesOfSelection());
    std::string bits(header.BitBytes(), '\0');
    for (const uint64_t record : kept) {
      bits[record / 8] = static_cast<char>(bits[record / 8] | 1 << record % 8);
    }
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << KeptRecordsText(&header, bits);
    return path;
  }

  std::vector<uint64_t> RecordsOf(const std::string& lines) {
    DatasetSpec spec;
    const auto dataset = Open(lines, &spec);
    EXPECT_TRUE(dataset.ok()) << dataset.status().message();
    if (!dataset.ok()) return {};
    const auto plan = PlanOf(spec, **dataset, 1, 1);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (!plan.ok()) return {};
    std::vector<Plan::Row> rows(plan->rows_per_epoch());
    plan->Rows(0, 0, rows.size(), rows.data());
    std::vector<uint64_t> records;
    for (const Plan::Row& row : rows) records.push_back(row.record);
    return records;
  }
  std::string ErrorOf(const std::string& lines) {
    DatasetSpec spec;
    const auto dataset = Open(lines, &spec);
    return dataset.ok() ? "" : dataset.status().message();
  }

  std::string folder_;
};

std::string Filter(const std::string& path) {
  return "filter: {records: " + path + "}";
}

TEST_F(KeptRecordsTest, HasTheRecordsWhoseBitsAreSet) {
  const std::string path = Judge("k", "source: {range: 20}", {0, 7, 8, 19});
  EXPECT_THAT(RecordsOf("source: {range: 20}\nselect: [" + Filter(path) + "]"),
              ElementsAre(0, 7, 8, 19));
  EXPECT_THAT(RecordsOf("source: {range: 20}\nselect: [" + Filter(path) +
                        ", skip: 1, repeat: 2]"),
              ElementsAre(7, 8, 19, 7, 8, 19));
}

TEST_F(KeptRecordsTest, GoesByTheRecordsThatTheStepsBeforeLeave) {
  const std::string before = "source: {range: 20}\nselect: [skip: 5";
  const std::string path = Judge("k", before + "]", {5, 6, 12});
  const std::string lines = before + ", " + Filter(path);
  EXPECT_THAT(RecordsOf(lines + "]"), ElementsAre(5, 6, 12));
  // A second one is judged of what the first has kept.
  const std::string next = Judge("l", lines + "]", {6, 12});
  EXPECT_THAT(RecordsOf(lines + ", " + Filter(next) + "]"), ElementsAre(6, 12));
  // Records that nobody has judged.
  EXPECT_THAT(
      ErrorOf("source: {range: 20}\nselect: [skip: 4, " + Filter(path) + "]"),
      testing::AllOf(HasSubstr("a.yaml:4:"),
                     HasSubstr("select[1].filter.records: " + path +
                               ": was made with another `source` or with other "
                               "steps of `select` before it"),
                     HasSubstr("run `penstock filter` again")));
  EXPECT_THAT(ErrorOf("source: {range: {start: 1, stop: 21}}\nselect: [skip: "
                      "5, " +
                      Filter(path) + "]"),
              HasSubstr("was made with another `source`"));
  Judge("k", before + "]", {5, 6});
  EXPECT_THAT(ErrorOf(lines + ", " + Filter(next) + "]"),
              HasSubstr("select[2].filter.records: " + next));
}

TEST_F(KeptRecordsTest, APartHasItsOwn) {
  const std::string path = Judge("k", "source: {range: 10}", {3, 4, 9});
  const std::string part =
      "{source: {range: 10}, select: [" + Filter(path) + "]}";
  const std::string both =
      "source: {concat: {parts: [{source: {range: 5}}, " + part + "]}}";
  EXPECT_THAT(RecordsOf(both), ElementsAre(0, 1, 2, 3, 4, 8, 9, 14));
  EXPECT_THAT(RecordsOf("source: {zip: {parts: [" + part + "]}}"),
              ElementsAre(0, 1, 2));
  const std::string all = Judge("all", both, {1, 4, 14});
  EXPECT_THAT(RecordsOf(both + "\nselect: [" + Filter(all) + "]"),
              ElementsAre(1, 4, 14));
  // The part has others now.
  Judge("k", "source: {range: 10}", {3, 9});
  EXPECT_THAT(ErrorOf(both + "\nselect: [" + Filter(all) + "]"),
              HasSubstr("other steps of `select` before it"));
  EXPECT_THAT(
      ErrorOf("source: {mix: {parts: [{source: {range: 9}, select: [" +
              Filter(path) + "]}]}}"),
      HasSubstr("source.mix.parts[0].select[0].filter.records: " + path +
                ": was made of 10 records, and the source has 9"));
}

TEST_F(KeptRecordsTest, AChangedFileIsAnotherDataset) {
  const std::string source = "source: {range: 10}";
  const std::string path = Judge("k", source, {3, 4});
  DatasetSpec spec;
  const std::string lines = source + "\nselect: [" + Filter(path) + "]";
  const auto first = Open(lines, &spec);
  ASSERT_TRUE(first.ok());
  const std::string selection = SelectionOf(spec, **first);
  EXPECT_FALSE((*first)->Changed());
  std::filesystem::remove(path);
  Judge("k", source, {3, 5});
  EXPECT_TRUE((*first)->Changed());
  const auto second = Open(lines, &spec);
  EXPECT_NE((*second)->fingerprint(), (*first)->fingerprint());
  EXPECT_NE(SelectionOf(spec, **second), selection);
  // The same answers in another file, as on another host.
  const std::string copy = Judge("copy", source, {3, 4});
  const auto other = Open(source + "\nselect: [" + Filter(copy) + "]", &spec);
  EXPECT_EQ((*other)->fingerprint(), (*first)->fingerprint());
  EXPECT_EQ(SelectionOf(spec, **other), selection);
  EXPECT_NE(DatasetKey(spec),
            DatasetKey(*ParseDatasetSpec(
                "dataset: d\nbatch: {size: 1}\n" + source, "", "/")));
}

TEST_F(KeptRecordsTest, EachByteOfTheFileIsChecked) {
  const std::string source = "source: {range: 100}";
  const std::string path = Judge("k", source, {3, 40, 99});
  std::ifstream file(path);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const std::string lines = source + "\nselect: [" + Filter(path) + "]";
  const auto error = [&](const std::string& text) {
    std::ofstream(path) << text;
    return ErrorOf(lines);
  };
  // `function` and `predicate` of the header are for people.
  for (size_t i = whole.find('\n'); i < whole.size(); ++i) {
    for (const char bit : {1, 64}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ bit);
      EXPECT_NE(error(damaged), "") << i;
    }
  }
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_NE(error(whole.substr(0, bytes)), "") << bytes;
  }
  EXPECT_THAT(error(whole + " "), HasSubstr("it is not whole"));
  EXPECT_EQ(error(whole), "");
}

}  // namespace penstock::kept_records_test
