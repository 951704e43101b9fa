// Promise: what people are told of a spec is what the parser does: the tables
// of common/README.md are those of the declarations, every example parses,
// every key is explained. Method: the declarations beside the README and the
// parser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "broker/declare/declaration.h"
#include "broker/spec/dataset_spec.h"
#include "broker/spec/describe.h"

namespace penstock {
namespace {

using testing::HasSubstr;

std::string Readme() {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/common/README.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The rows below this head of a table.
std::string TableOf(const std::string& readme, const std::string& head) {
  const size_t begin = readme.find(head + "\n");
  if (begin == readme.npos) return "no table " + head;
  const size_t rows = readme.find('\n', begin + head.size() + 1) + 1;
  return readme.substr(rows, readme.find("\n\n", rows) + 1 - rows);
}

TEST(DescribeSpecTest, TheTablesOfTheReadmeAreThoseOfTheDeclarations) {
  const std::string readme = Readme();
  for (const auto& [key, head] : std::map<std::string, std::string>{
           {"", "| key | value | default | meaning |"},
           {"source", "| source | what, keys (default) | features |"},
           {"map", "| operation | what, keys (default) | from → to |"},
           {"others", "| mapping | what, keys (default) | value of |"}}) {
    EXPECT_EQ(TableOf(readme, head), SpecTable(key))
        << "put this below `" << head << "` of common/README.md:\n"
        << SpecTable(key);
  }
}

TEST(DescribeSpecTest, EveryExampleParses) {
  const std::vector<std::string> examples = SpecExamples();
  EXPECT_GT(examples.size(), std::variant_size_v<SourceSpec> +
                                 std::variant_size_v<TransformSpec>);
  for (const std::string& text : examples) {
    const auto spec = ParseDatasetSpec(text, "", "/");
    ASSERT_TRUE(spec.ok()) << spec.status().message() << "\n" << text;
    // What the journal has of it is the same spec.
    const auto again =
        ParseDatasetSpec(DatasetSpecToJson(*spec).dump(), "", "/");
    ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << text;
    EXPECT_EQ(*again, *spec) << text;
  }
}

TEST(DescribeSpecTest, APickledDatasetIsReadFromTheJournal) {
  const auto spec = ParseDatasetSpec(
      "{dataset: a, source: {python: {object: /a/b.pickle, args: {n: 1}}}, "
      "batch: {size: 1}}",
      "", "/");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const auto again = ParseDatasetSpec(DatasetSpecToJson(*spec).dump(), "", "/");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, *spec);
}

TEST(DescribeSpecTest, EveryPageHasItsKeysAndItsExample) {
  const nlohmann::ordered_json declarations = SpecDeclarations();
  EXPECT_EQ(declarations["source"].size(), std::variant_size_v<SourceSpec>);
  EXPECT_EQ(declarations["map"].size(), std::variant_size_v<TransformSpec>);
  for (const auto& [key, names] : declarations.items()) {
    for (const auto& [name, declared] : names.items()) {
      SCOPED_TRACE(name);
      const StatusOr<std::string> page = DescribeSpec(name);
      ASSERT_TRUE(page.ok());
      EXPECT_THAT(*page, testing::StartsWith(name + ": "));
      EXPECT_THAT(*page, HasSubstr("\nExample:\n  " + key));
      for (const auto& [each, of_key] : declared["keys"].items()) {
        EXPECT_THAT(*page, HasSubstr("\n  " + each + ": "));
      }
      std::istringstream lines(*page);
      int count = 0;
      for (std::string line; std::getline(lines, line); ++count) {
        EXPECT_LE(line.size(), 84u) << line;  // characters of two bytes too
        EXPECT_TRUE(line.empty() || line.back() != ' ') << "a key without text";
      }
      EXPECT_LE(count, 40) << "more than a screen";
      if (key == "source" || key == "map") {
        EXPECT_NE(declared["gives"], "");
      }
    }
  }
}

TEST(DescribeSpecTest, APageIsWhatPeopleSee) {
  EXPECT_EQ(*DescribeSpec("flip"),
            "flip: Mirrors a picture left to right, or top to bottom.\n"
            "Gives: a picture of any dtype → the same\n"
            "\n"
            "Keys:\n"
            "  feature: a name of a feature, or a list of them; default image\n"
            "      the feature it changes, or a list\n"
            "  mask: a name of a feature, or a list of them\n"
            "      masks of it: moved alike, values kept\n"
            "  horizontal: a number from 0 to 1; default 0.5\n"
            "      the probability of left to right\n"
            "  vertical: a number from 0 to 1\n"
            "      that of top to bottom, by default 0\n"
            "\n"
            "Example:\n"
            "  map: [{flip: {horizontal: 0.5}}]\n");
}

TEST(DescribeSpecTest, TheOverviewNamesAll) {
  const std::string text = *DescribeSpec("");
  const nlohmann::ordered_json declarations = SpecDeclarations();
  for (const auto& [key, names] : declarations.items()) {
    EXPECT_THAT(text, HasSubstr("\nOf " + key + ":\n"));
    for (const auto& [name, declared] : names.items()) {
      EXPECT_THAT(text, HasSubstr("\n  " + name + ": "));
    }
  }
}

TEST(DescribeSpecTest, AnUnknownNameIsAnErrorThatKnowsTheNearest) {
  const StatusOr<std::string> page = DescribeSpec("rnage");
  EXPECT_EQ(page.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(page.status().message(),
            "nothing of a spec is named 'rnage'; did you mean 'range'?");
}

}  // namespace
}  // namespace penstock
