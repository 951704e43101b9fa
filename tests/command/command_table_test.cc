// Promise: tables, numbers and progress lines are readable and cannot harm a
// terminal, and odd answers of a broker cause no crash. Method: the functions
// on chosen texts, numbers and JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/command/spec_file.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/progress_bar.h"
#include "client/private_broker/table.h"

namespace penstock::command_table_test {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

TEST(TableTest, AlignsTextLeftAndNumbersRight) {
  Table table({"name", ">rows", "state"});
  table.AddRow({"a", "1", "running"});
  table.AddRow({"größer", "1,000", ""});
  EXPECT_EQ(table.ToString(),
            "name     rows  state\n"
            "a           1  running\n"
            "größer  1,000\n");
}

TEST(TableTest, ANameFromElsewhereCannotCommandTheTerminal) {
  Table table({"name"});
  table.AddRow({"\x1b[2Jgone\n"});
  EXPECT_EQ(table.ToString(), "name\n?[2Jgone?\n");
}

TEST(FormatTest, ALongLineIsBrokenBetweenWords) {
  EXPECT_EQ(WrapText("größer ist besser", 10), "größer ist\nbesser");
  EXPECT_EQ(WrapText("größer ist besser", 9), "größer\nist\nbesser");
  EXPECT_EQ(WrapText("unbreakable, a", 5), "unbreakable,\na");
  EXPECT_EQ(WrapText("no terminal", 0), "no terminal");
}

TEST(FormatTest, NumbersHaveTheirUnits) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
  EXPECT_EQ(FormatSeconds(0.0123), "0.012 s");
  EXPECT_EQ(FormatSeconds(59.94), "59.9 s");
  EXPECT_EQ(FormatSeconds(723), "12 min 3 s");
  EXPECT_EQ(FormatSeconds(3725), "1 h 2 min");
  EXPECT_EQ(FormatSeconds(-1), "?");
  EXPECT_EQ(FormatSeconds(1e300), "?");
}

TEST(ProgressLineTest, SaysHowFarHowFastAndHowLong) {
  EXPECT_EQ(ProgressLine("indexing", "files", 500, 2000, 2, 200),
            "indexing [####............] 25% 500/2,000 files, 250 "
            "files/s, 6.0 s left");
  EXPECT_EQ(ProgressLine("indexing", "", 500, 0, 0.5, 200), "indexing 500");
}

TEST(ProgressLineTest, NeverWrapsNorOverflowsItsBar) {
  EXPECT_THAT(ProgressLine("draining", "samples", 5000, 2000, 2, 40),
              SizeIs(39));
  EXPECT_THAT(ProgressLine("x", "", 5000, 2000, 0, 200), HasSubstr("100%"));
  EXPECT_THAT(ProgressLine("x", "", 0, 2000, 5, 200), Not(HasSubstr("left")));
}

TEST(ProgressBarTest, DrawsNothingInAPipe) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar("indexing", "files");
    bar.Update(1, 2);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(JsonFieldTest, AFieldOfAnotherTypeIsAsGoodAsAbsent) {
  const nlohmann::json odd = nlohmann::json::parse(
      R"({"text": 5, "count": -1, "number": "1", "array": {}})");
  EXPECT_EQ(TextField(odd, "text", "-"), "-");
  EXPECT_EQ(CountField(odd, "count"), std::nullopt);
  EXPECT_EQ(NumberField(odd, "number"), std::nullopt);
  EXPECT_TRUE(ArrayField(odd, "array").empty());
  EXPECT_TRUE(FieldOf(nlohmann::json::array(), "x").is_null());
  EXPECT_EQ(CountField({{"count", 7}}, "count"), 7u);
}

TEST(DatasetIndexTest, AnOddAnswerIsAnErrorAndNamesTheField) {
  const nlohmann::json good = nlohmann::json::parse(R"({
      "records": 10, "global_batch": 4, "steps_per_epoch": 3,
      "rows_per_epoch": 10, "dataset": "d",
      "spec": "{\"epochs\": \"forever\", \"source\": {\"stream\": {}}}",
      "memory_bytes": 100, "class_names": ["a", 5],
      "element_spec": [{"name": "x", "dtype": "uint8", "shape": [2]}]})");
  const StatusOr<DatasetIndex> index = DatasetIndexFromJson(good);
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_EQ(index->records, 10u);
  EXPECT_EQ(index->class_names, (std::vector<std::string>{"a", ""}));
  EXPECT_TRUE(index->IsStream());
  EXPECT_EQ(index->epochs, std::nullopt);
  for (const char* key : {"records", "global_batch", "steps_per_epoch",
                          "rows_per_epoch", "spec"}) {
    nlohmann::json odd = good;
    odd[key] = "many";
    const StatusOr<DatasetIndex> refused = DatasetIndexFromJson(odd);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(), HasSubstr(key));
  }
  nlohmann::json odd = good;
  odd["element_spec"] = 3;
  EXPECT_FALSE(DatasetIndexFromJson(odd).ok());
}

}  // namespace penstock::command_table_test
