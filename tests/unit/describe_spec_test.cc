// Promise: what people are told of a spec is what the parser does: the pages
// of common/spec/ have what is declared, every example parses, every key is
// explained. Method: the declarations beside the pages and the parser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "broker/declare/declaration.h"
#include "broker/declare/describe.h"
#include "broker/spec/dataset_spec.h"
#include "broker/spec/describe.h"

namespace penstock::describe_spec_test {

using testing::HasSubstr;

// All pages of common/spec/, one after another.
std::string Pages() {
  std::stringstream text;
  for (const auto& page : std::filesystem::directory_iterator(
           PENSTOCK_SOURCE_DIR "/common/spec")) {
    text << "\n" << std::ifstream(page.path()).rdbuf() << "\n";
  }
  return text.str();
}

TEST(DescribeSpecTest, TheSectionsOfThePagesAreThoseOfTheDeclarations) {
  const std::string pages = Pages();
  std::vector<std::string> sections = {"## Keys\n\n" +
                                       KeyListOf(DatasetSpec::Declared())};
  for (const Described& each : AllDescribed()) {
    sections.push_back(MarkdownOf(each));
  }
  for (const std::string& section : sections) {
    EXPECT_NE(pages.find("\n" + section + "\n"), pages.npos)
        << "a page of common/spec/ must have:\n\n"
        << section;
  }
  size_t headings = 0;
  for (size_t at = 0; (at = pages.find("\n## ", at)) != pages.npos; ++at) {
    ++headings;
  }
  EXPECT_EQ(headings, sections.size())
      << "common/spec/ has a section twice, or one that is not declared";
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
            "  boxes: a name of a feature, or a list of them\n"
            "      boxes in it (xyxy): moved alike\n"
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

TEST(DescribeSpecTest, AKeyOfAPartIsExplainedOnceForAllThatHaveIt) {
  EXPECT_THAT(*DescribeSpec("by_part"),
              testing::StartsWith("A key of batch:\n  by_part: a list of "));
  EXPECT_EQ(*DescribeSpec("layout"),
            "A key of normalize, cast, rescale:\n"
            "  layout: one of hwc, chw; default hwc\n"
            "      channels last, or first\n");
}

TEST(DescribeSpecTest, SeveralNamesHaveTheirPages) {
  EXPECT_EQ(*DescribeSpec("mix,flip"),
            *DescribeSpec("mix") + "\n" + *DescribeSpec("flip"));
  EXPECT_FALSE(DescribeSpec("mix,rnage").ok());
}

TEST(DescribeSpecTest, AnUnknownNameIsAnErrorThatKnowsTheNearest) {
  const StatusOr<std::string> page = DescribeSpec("rnage");
  EXPECT_EQ(page.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(page.status().message(),
            "nothing of a spec is named 'rnage'; did you mean 'range'?");
}

}  // namespace penstock::describe_spec_test
