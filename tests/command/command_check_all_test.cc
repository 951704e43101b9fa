// Promise: `check --all` reads every record once, counts those that are broken
// and lists them, and what it prints leaves them out; `peek --row` and
// `--record` show the rows and records that they name. Method: the commands
// against the penstockd of this build, lines of JSON some of which are none.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "common/format.h"
#include "tests/command/command_fixture.h"

namespace penstock::command_check_all_test {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kSource[] =
    "dataset: lines\nsource: {json_lines: {files: rows.jsonl, fields: {x: "
    "{dtype: int64}}}}\n";

class CommandCheckAllTest : public CommandTest {
 protected:
  // Lines {"x": 10 * i}, some of them broken.
  void Lines(int count, const std::vector<int>& broken) const {
    std::ofstream file(folder_ + "/rows.jsonl");
    for (int i = 0; i < count; ++i) {
      const bool is_broken =
          std::find(broken.begin(), broken.end(), i) != broken.end();
      file << (is_broken ? std::string("{\"x\": oh}")
                         : Format("{{\"x\": {}}}", 10 * i))
           << "\n";
    }
  }
  void Spec(const std::string& lines) const {
    std::ofstream(folder_ + "/train.yaml") << kSource << lines;
  }
};

TEST_F(CommandCheckAllTest, ListsWhatIsBrokenAndTheListLeavesItOut) {
  Lines(1000, {3, 500, 999});
  Spec("batch: {size: 64}\nshuffle: {seed: 1}\nepochs: 5\n");
  const Result result = Run({"check", "--all", "train.yaml"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out,
              HasSubstr("\nbroken.txt: 3 of 1,000 records are broken; leave "
                        "them out with this first step\n"
                        "  select: [exclude: broken.txt]\n"));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("lines: 3 records that could not be read or "
                              "made:\n"),
                    HasSubstr("sample 500: "), HasSubstr("rows.jsonl")));
  EXPECT_THAT(result.err, Not(HasSubstr("\r"))) << "a bar in no terminal";
  ExpectNothingLeft();
  const std::string list = Read("broken.txt");
  EXPECT_THAT(list, AllOf(testing::StartsWith("# {\"penstock_records\":1,"
                                              "\"records\":1000,\"data\":\""),
                          HasSubstr("\n3\tsample 3: "),
                          HasSubstr("\n500\tsample 500: "),
                          HasSubstr("\n999\tsample 999: ")));
  EXPECT_EQ(std::count(list.begin(), list.end(), '\n'), 4) << list;

  Spec("batch: {size: 64}\nselect: [exclude: broken.txt]\n");
  const Result bench =
      Run({"bench", "--dataset", "train.yaml", "--ranks", "1", "--json"});
  EXPECT_EQ(json::parse(bench.out, nullptr, false)["samples"], 997)
      << bench.err;
  // With its own list in the spec it still reads everything.
  const Result again = Run({"check", "--all", "--json", "train.yaml"});
  EXPECT_EQ(again.status, 1);
  const json all = json::parse(again.out, nullptr, false)["all"];
  EXPECT_EQ(all["records"], 1000);
  EXPECT_EQ(all["broken"]["count"], 3);
  EXPECT_EQ(all["broken"]["damaged"], 3);
  EXPECT_EQ(all["broken"]["first"].size(), 3u);
  EXPECT_EQ(all["list"], "broken.txt");
  EXPECT_EQ(Read("broken.txt"), list);
  // The data have changed: the list is refused, and made anew.
  Lines(1001, {500});
  EXPECT_THAT(Run({"check", "train.yaml"}).err,
              HasSubstr("the data have changed since; run `penstock check "
                        "--all` again"));
  EXPECT_EQ(Run({"check", "--all", "train.yaml"}).status, 1);
  EXPECT_EQ(Run({"check", "train.yaml"}).status, 0);
}

TEST_F(CommandCheckAllTest, ReadsWhatTheSelectionLeavesOnceEach) {
  Lines(100, {7, 90});
  Spec(
      "batch: {size: 8, last: drop}\nselect: [take: 50, repeat: 3, sample: "
      "{rows: 5}]\nsteps_per_epoch: 2\non_error: fail\n");
  const Result result =
      Run({"check", "--all", "--json", "--out", "list", "train.yaml"});
  EXPECT_EQ(result.status, 1) << result.err;
  const json all = json::parse(result.out, nullptr, false)["all"];
  EXPECT_EQ(all["records"], 50);
  EXPECT_EQ(all["broken"]["count"], 1);
  EXPECT_THAT(Read("list"), HasSubstr("\n7\t"));
  // None is broken: the list has none, and the former is gone.
  Lines(100, {});
  const Result sound = Run({"check", "--all", "--out", "list", "train.yaml"});
  EXPECT_EQ(sound.status, 0) << sound.err;
  EXPECT_THAT(sound.out, HasSubstr("\nall 50 records can be read and made\n"));
  EXPECT_THAT(Read("list"), Not(HasSubstr("\t")));
}

TEST_F(CommandCheckAllTest, AllRecordsMayBeBroken) {
  std::vector<int> every(9000);
  for (int i = 0; i < 9000; ++i) every[i] = i;
  Lines(9000, every);
  Spec("batch: {size: 64}\n");
  const Result result = Run({"check", "--all", "--json", "train.yaml"});
  EXPECT_EQ(result.status, 1);
  const json all = json::parse(result.out, nullptr, false)["all"];
  EXPECT_EQ(all["broken"]["count"], 9000) << result.err;
  EXPECT_EQ(all["broken"]["first"].size(), 5u);
  EXPECT_THAT(Read("broken.txt"), HasSubstr("\n8999\tsample 8999: "));
}

TEST_F(CommandCheckAllTest, RefusesWhatItCannotDo) {
  Lines(9, {});
  Spec("batch: {size: 4}\n");
  EXPECT_EQ(Run({"check", "--all", "--syntax", "train.yaml"}).status, 2);
  EXPECT_EQ(Run({"check", "--out", "list", "train.yaml"}).status, 2);
  EXPECT_THAT(Run({"check", "--all", "train.yaml", "train.yaml"}).err,
              HasSubstr("give one spec at a time"));
  std::ofstream(folder_ + "/notes.txt") << "mine";
  EXPECT_THAT(
      Run({"check", "--all", "--out", "notes.txt", "train.yaml"}).err,
      HasSubstr("'notes.txt' is there and is no list of `penstock check "
                "--all`"));
  EXPECT_EQ(Read("notes.txt"), "mine");
  std::ofstream(folder_ + "/train.yaml")
      << "dataset: m\nsource: {mix: {parts: [{source: {range: 9}}, {source: "
         "{range: 9}}]}}\nbatch: {size: 4}\n";
  EXPECT_THAT(Run({"check", "--all", "train.yaml"}).err,
              HasSubstr("'train.yaml' is a mix, of which no record is left out "
                        "by its number: check each part"));
  std::ofstream(folder_ + "/train.yaml")
      << "dataset: s\nsource: {stream: {features: {x: {dtype: int64, shape: "
         "[]}}}}\nbatch: {size: 4}\n";
  EXPECT_THAT(Run({"check", "--all", "train.yaml"}).err,
              HasSubstr("is a stream"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/broken.txt"));
}

TEST_F(CommandCheckAllTest, PeekShowsTheRowAndTheRecordThatAreNamed) {
  Lines(100, {42});
  Spec("batch: {size: 8, last: drop}\nepochs: 3\n");
  const Result row =
      Run({"peek", "train.yaml", "--epoch", "2", "--row", "17", "--npz", "r"});
  EXPECT_EQ(row.status, 0) << row.err;
  EXPECT_THAT(row.out, AllOf(HasSubstr("row 17 of epoch 2, row 1 of step 2\n"
                                       "sample 17 in "),
                             HasSubstr("rows.jsonl"),
                             HasSubstr("r: 1 array, as they are delivered\n"),
                             HasSubstr("x        int64  []     170\n")));
  const Result record = Run({"peek", "train.yaml", "--record", "99"});
  EXPECT_THAT(record.out, AllOf(HasSubstr("record 99, as epoch 0 has it\n"),
                                HasSubstr("x        int64  []     990\n")));
  const Result epoch = Run({"peek", "train.yaml", "--epoch", "1"});
  EXPECT_THAT(epoch.out, HasSubstr("row  sample  x\n  0       0  0\n"));

  const struct {
    std::vector<std::string> arguments;
    const char* words;
  } kCases[] = {
      {{"--epoch", "3"}, "there is no epoch 3: the dataset has 3 epochs"},
      {{"--row", "96"}, "there is no row 96: an epoch has 96 rows"},
      {{"--record", "100"}, "the source of 'train.yaml' has 100 records"},
      {{"--npz", "r"}, "--npz writes one row: name it with --row or --record"},
      {{"--row", "1", "--npz", "rows.jsonl"}, "is no .npz file"},
      {{"--row", "1", "--out", "a.png"}, "no feature is a picture"},
      {{"--row", "42"}, "sample 42: "},
      {{"--record", "42"}, "sample 42: "},
  };
  for (const auto& [arguments, words] : kCases) {
    std::vector<std::string> all = {"peek", "train.yaml"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Result result = Run(all);
    EXPECT_EQ(result.status, 1) << words;
    EXPECT_THAT(result.err, HasSubstr(words));
  }
  EXPECT_EQ(Run({"peek", "train.yaml", "--record", "1", "--row", "1"}).status,
            2);
  // Left out, or replaced.
  Spec("batch: {size: 8}\non_error: skip\n");
  const Result skipped = Run({"peek", "train.yaml", "--row", "42"});
  EXPECT_EQ(skipped.status, 1);
  EXPECT_THAT(skipped.err,
              AllOf(HasSubstr("row 42 of epoch 0, row 2 of step 5: is left out "
                              "(on_error: skip): "),
                    HasSubstr("sample 42: ")));
  Spec("batch: {size: 8}\non_error: substitute\n");
  EXPECT_THAT(Run({"peek", "train.yaml", "--row", "42"}).out,
              AllOf(HasSubstr("in its place: sample 43 (on_error: "
                              "substitute): "),
                    HasSubstr("x        int64  []     430\n")));
  ExpectNothingLeft();
}

}  // namespace penstock::command_check_all_test
