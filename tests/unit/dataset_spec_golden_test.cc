// Promise: the canonical JSON of a spec and the message for a wrong one stay as
// they are. Journals hold that JSON, and its bytes are hashed (sample
// quarantine, agreement of ranks). Method: dataset_spec_golden.txt, which has a
// spec of one line and the result below it; written once by the parser of that
// time, with every notation of every kind, and a mistake of each sort. SOURCES
// and OPERATIONS stand for the names of all kinds.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "broker/declare/declaration.h"
#include "broker/spec/dataset_spec.h"

namespace penstock::dataset_spec_golden_test {

std::string ResultOf(const std::string& text) {
  const auto spec = ParseDatasetSpec(text, "a.yaml", "/base");
  return spec.ok() ? DatasetSpecToJson(*spec).dump() : spec.status().message();
}

template <typename Variant>
void NameKinds(std::string_view placeholder, std::string* text) {
  const size_t at = text->find(placeholder);
  if (at == text->npos) return;
  text->replace(at, placeholder.size(),
                JoinText(NamesOf(KindsOf<Variant>()), ", "));
}

TEST(DatasetSpecGoldenTest, TextsReadAsTheyDid) {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/tests/unit/dataset_spec_golden.txt");
  size_t cases = 0;
  size_t specs = 0;
  for (std::string text; std::getline(file, text); ++cases) {
    std::string wanted;
    std::string blank;
    std::getline(file, wanted);
    std::getline(file, blank);
    ASSERT_EQ(blank, "") << "after: " << wanted;
    NameKinds<SourceSpec>("SOURCES", &wanted);
    NameKinds<TransformSpec>("OPERATIONS", &wanted);
    EXPECT_EQ(ResultOf(text), wanted) << text;
    if (wanted.front() != '{') continue;
    ++specs;
    // It has only a digest of inline values.
    if (text.find("tensors") != text.npos) continue;
    EXPECT_EQ(ResultOf(wanted), wanted);
  }
  EXPECT_GT(specs, 50u);
  EXPECT_GT(cases, 4 * specs);
}

}  // namespace penstock::dataset_spec_golden_test
