// Promise: `select: [exclude: FILE]` leaves out exactly the records of a list,
// in a part too; a list of other data is refused, one without a header is
// taken; a mistake is told with its line; a changed list is another dataset.
// Method: lists as `penstock check --all` writes them, and as people do.
#include "common/record_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "broker/job/dataset.h"

namespace penstock::record_list_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RecordListTest : public testing::Test {
 protected:
  RecordListTest() {
    char name[] = "/tmp/record_list_XXXXXX";
    folder_ = mkdtemp(name);
    std::ofstream(folder_ + "/words.txt") << "a\nb\nc\nd\n";
  }
  ~RecordListTest() override { std::filesystem::remove_all(folder_); }

  // lines: of a spec; LIST stands for the path of the list.
  StatusOr<std::shared_ptr<const Dataset>> Open(std::string lines,
                                                DatasetSpec* spec) const {
    for (size_t at; (at = lines.find("LIST")) != lines.npos;) {
      lines.replace(at, 4, list());
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        *spec, ParseDatasetSpec("dataset: d\nbatch: {size: 1}\n" + lines + "\n",
                                "a.yaml", folder_));
    OpenProgress progress;
    return OpenDataset(*spec, {}, &progress);
  }
  std::vector<uint64_t> RecordsOf(const std::string& lines) const {
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
  std::string ErrorOf(const std::string& lines) const {
    DatasetSpec spec;
    const auto dataset = Open(lines, &spec);
    if (!dataset.ok()) return dataset.status().message();
    return PlanOf(spec, **dataset, 1, 1).status().message();
  }
  // The header of a list of these data.
  std::string HeaderOf(const std::string& lines) const {
    DatasetSpec spec;
    const auto dataset = Open(lines, &spec);
    EXPECT_TRUE(dataset.ok()) << dataset.status().message();
    const Source& source = *(*dataset)->source;
    return RecordListHeaderLine(
        {source.record_count(), DataDigest(spec.source, source.fingerprint())});
  }
  void Write(const std::string& text) const { std::ofstream(list()) << text; }
  std::string list() const { return folder_ + "/broken.txt"; }

  std::string folder_;
};

TEST_F(RecordListTest, LeavesOutWhatIsListed) {
  Write("# by hand\n\n3\tsample 3 in a\n 7 why not\r\n3\n0");
  EXPECT_THAT(RecordsOf("source: {range: 9}\nselect: [exclude: LIST]"),
              ElementsAre(1, 2, 4, 5, 6, 8));
  EXPECT_THAT(
      RecordsOf("source: {range: 9}\nselect: [exclude: {records: LIST}]"),
      ElementsAre(1, 2, 4, 5, 6, 8));
  // By number, not by position.
  EXPECT_THAT(
      RecordsOf(
          "source: {range: 9}\nselect: [skip: 2, exclude: LIST, take: 3]"),
      ElementsAre(2, 4, 5));
  EXPECT_THAT(
      RecordsOf("source: {range: 9}\nselect: [repeat: 2, exclude: LIST]"),
      ElementsAre(1, 2, 4, 5, 6, 8, 1, 2, 4, 5, 6, 8));
  // The list of a part numbers that part's records.
  EXPECT_THAT(
      RecordsOf("source: {concat: {parts: [{source: {range: 5}}, {source: "
                "{range: 9}, select: [exclude: LIST]}]}}"),
      ElementsAre(0, 1, 2, 3, 4, 6, 7, 9, 10, 11, 13));
  Write("");
  EXPECT_THAT(RecordsOf("source: {range: 3}\nselect: [exclude: LIST]"),
              ElementsAre(0, 1, 2));
  Write("0\n2\n1\n");
  EXPECT_THAT(ErrorOf("source: {range: 3}\nselect: [exclude: LIST]"),
              HasSubstr("select[0].exclude: none of 3 records is left"));
}

TEST_F(RecordListTest, AListOfOtherDataIsRefused) {
  const std::string lines =
      "source: {text_lines: {files: words.txt, max_bytes: 8}}";
  const std::string exclude = lines + "\nselect: [exclude: LIST]";
  Write(HeaderOf(lines) + "1\tb\n");
  EXPECT_THAT(RecordsOf(exclude), ElementsAre(0, 2, 3));
  const std::string again = "; run `penstock check --all` again";
  std::ofstream(folder_ + "/words.txt") << "a\nb\nc\ndd\n";
  EXPECT_THAT(ErrorOf(exclude),
              AllOf(HasSubstr("a.yaml:4:"),
                    HasSubstr("select[0].exclude: " + list() +
                              ": was made of other data, or of these before "
                              "they changed" +
                              again)));
  std::ofstream(folder_ + "/words.txt") << "a\nb\nc\n";
  EXPECT_THAT(ErrorOf(exclude),
              HasSubstr("was made of 4 records, and the source has 3: the data "
                        "have changed since" +
                        again));
  // Where a source has no files, the spec says what the data are.
  Write(HeaderOf("source: {range: 9}") + "1\n");
  EXPECT_THAT(RecordsOf("source: {range: 9}\nselect: [exclude: LIST]"),
              ElementsAre(0, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(
      ErrorOf("source: {range: {start: 1, stop: 10}}\nselect: [exclude: LIST]"),
      HasSubstr("was made of other data"));
}

TEST_F(RecordListTest, AMistakeIsToldWithItsLine) {
  const std::string lines = "source: {range: 9}\nselect: [exclude: LIST]";
  const struct {
    const char* text;
    const char* words;
  } kCases[] = {
      {"1\nabc\n",
       "line 2: wanted the number of a record, and a blank before "
       "anything else, found 'abc'"},
      {"1,2\n", "line 1: wanted the number of a record"},
      {"-1\n", "line 1: wanted the number of a record"},
      {"1.5\n", "line 1: wanted the number of a record"},
      {"9\n", "line 1: record 9: the source has 9 records, numbered from 0"},
      {"2147483648\n", "record 2147483648: the source has 9"},
      {"18446744073709551616\n", "record 18446744073709551616: the source"},
      {"# {\"penstock_records\": 2}\n",
       "is of version 2, and this Penstock reads version 1"},
      {"# {\"penstock_records\": -1}\n", "is a damaged header"},
      {"# {\"penstock_records\": 1", "is a damaged header: it is no JSON"},
      {"# {\"penstock_records\": 1, \"records\": 9}", "no text 'data'"},
      {"# {\"penstock_records\": 1, \"records\": -9}", "no number 'records'"},
  };
  for (const auto& [text, words] : kCases) {
    Write(text);
    EXPECT_THAT(ErrorOf(lines), AllOf(HasSubstr("select[0].exclude: " + list()),
                                      HasSubstr(words)))
        << text;
  }
  std::filesystem::resize_file(list(), uint64_t{kRecordListBytesMax} + 1);
  EXPECT_THAT(ErrorOf(lines), HasSubstr("a list has at most 268435456"));
  std::filesystem::remove(list());
  EXPECT_THAT(ErrorOf(lines), HasSubstr("there is no such file"));
}

TEST_F(RecordListTest, AChangedListIsAnotherDataset) {
  const std::string lines = "source: {range: 9}\nselect: [exclude: LIST]";
  Write("1\n");
  DatasetSpec spec;
  const auto first = Open(lines, &spec);
  ASSERT_TRUE(first.ok());
  const std::string selection = SelectionOf(spec, **first);
  EXPECT_FALSE((*first)->Changed());
  std::filesystem::remove(list());
  Write("2\n");
  EXPECT_TRUE((*first)->Changed());
  const auto second = Open(lines, &spec);
  EXPECT_NE((*second)->fingerprint(), (*first)->fingerprint());
  EXPECT_NE(SelectionOf(spec, **second), selection);
  // The same records, told in other words.
  Write("# as before\n1 this\n1\n");
  const auto third = Open(lines, &spec);
  EXPECT_EQ((*third)->fingerprint(), (*first)->fingerprint());
  EXPECT_EQ(SelectionOf(spec, **third), selection);
}

TEST_F(RecordListTest, MessagesCannotForgeLines) {
  std::vector<uint64_t> records;
  EXPECT_TRUE(ForEachListed(RecordListLine(7, "two\n8 lines\r\x1b[2J"), 9,
                            [&](uint64_t record) { records.push_back(record); })
                  .ok());
  EXPECT_THAT(records, ElementsAre(7));
}

}  // namespace penstock::record_list_test
