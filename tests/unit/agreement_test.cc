// Promise: hosts that have the same files, spec and begin have the same
// fingerprint, whatever their folders and what they do for their own speed; of
// those that have not, a part differs that says what, and equal shares of the
// list of files lead to the first name or size that differs. Method: sources of
// files in two folders, and the descent that ranks do.
#include "broker/job/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <map>
#include <string>

#include "common/format.h"
#include "tests/unit/folder_fixture.h"

namespace penstock::agreement_test {

using nlohmann::json;

class AgreementTest : public FolderTest {
 protected:
  struct Host {
    JobOptions options;
    std::shared_ptr<const Dataset> dataset;
    std::vector<WeightsChange> weights = {};

    json Part(const std::string& name) const {
      const auto part =
          Agreement(options, *dataset, weights).Part(*dataset, name);
      EXPECT_TRUE(part.ok()) << part.status().message();
      return part.ok() ? *part : json();
    }
  };

  void WriteFiles(const std::string& host, int files) {
    for (int i = 0; i < files; ++i) {
      Write(Format("{}/{:05}.bin", host, i), "12345678");
    }
  }
  // more: further keys.
  Host Of(const std::string& source, const std::string& more = "") {
    Host host;
    const auto spec = ParseDatasetSpec(
        "dataset: train\nsource: " + source + "\nbatch: {size: 4}\n" + more,
        "train.yaml", "/");
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    host.options.spec = *spec;
    OpenProgress progress;
    const auto dataset = OpenDataset(*spec, {}, &progress);
    EXPECT_TRUE(dataset.ok()) << dataset.status().message();
    host.dataset = *dataset;
    return host;
  }
  Host OfFiles(const std::string& folder, const std::string& more = "") {
    return Of(Format("{{fixed_length_records: {{files: {}/{}/*.bin, "
                     "features: {{x: {{dtype: int32, shape: []}}}}}}}}",
                     folder_.string(), folder),
              more);
  }
  // Names of the parts that differ.
  static std::vector<std::string> Differing(const Host& a, const Host& b) {
    const json of_a = Agreement(a.options, *a.dataset, a.weights).Parts();
    std::map<std::string, json> of_b;
    for (const json& part :
         Agreement(b.options, *b.dataset, b.weights).Parts()) {
      of_b[part[0].get<std::string>()] = part[1];
    }
    std::vector<std::string> names;
    for (const json& part : of_a) {
      const auto name = part[0].get<std::string>();
      if (of_b[name] != part[1]) names.push_back(name);
    }
    return names;
  }
};

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(AgreementTest, TheSameFilesInOtherFoldersAgree) {
  WriteFiles("a", 3);
  WriteFiles("somewhere/else", 3);
  EXPECT_THAT(Differing(OfFiles("a"),
                        OfFiles("somewhere/else", "prefetch: 7\nhold: 2\n")),
              IsEmpty());
}

TEST_F(AgreementTest, APartSaysWhatDiffers) {
  WriteFiles("a", 3);
  WriteFiles("b", 3);
  const Host host = OfFiles("a");
  EXPECT_THAT(Differing(host, OfFiles("b", "seed: 4\n")), ElementsAre("seed"));
  EXPECT_THAT(Differing(host, OfFiles("b", "epochs: 2\n")),
              ElementsAre("epochs"));
  Host other = OfFiles("b");
  other.options.world_size = 2;
  EXPECT_THAT(Differing(host, other), ElementsAre("world_size"));
  other.options.world_size = 1;
  other.options.start = JobState{};
  EXPECT_THAT(Differing(host, other), IsEmpty());
  other.options.start->row = 4;
  EXPECT_THAT(Differing(host, other), ElementsAre("begin"));
  other.options.start->row = 0;
  other.weights.push_back({0, 8, {1, 2}});
  EXPECT_THAT(Differing(host, other), ElementsAre("weights"));
  Write("b/00001.bin", "1234567890abcdef");
  EXPECT_THAT(Differing(host, OfFiles("b")), ElementsAre("data", "records"));
}

TEST_F(AgreementTest, ALongValueIsADigestAndHasAPart) {
  const std::string map =
      "map: [{cast: {dtype: float32}}, {reshape: {shape: [1, 1]}}]\n";
  const Host host = Of("{range: 16}", map);
  const json parts =
      Agreement(host.options, *host.dataset, host.weights).Parts();
  for (const json& part : parts) {
    EXPECT_LE(part[1].get_ref<const std::string&>().size(),
              Agreement::kValueBytesMax);
    if (part[0] == "map") {
      EXPECT_EQ(part[1].get<std::string>()[0], '#');
    }
  }
  EXPECT_LT(parts.dump().size(), 2000);
  EXPECT_EQ(host.Part("map").at("text").get<std::string>().substr(0, 9),
            "[{\"cast\":");
  for (const char* const name :
       {"", "nothing", "files", "files 0", "files 0 0", "files 0 64 ",
        "files -1 64", "files 0 99999999999999999999"}) {
    EXPECT_EQ(Agreement(host.options, *host.dataset, {})
                  .Part(*host.dataset, name)
                  .status()
                  .code(),
              StatusCode::kInvalidArgument)
        << name;
  }
}

// What the first file is in which two hosts differ, as ranks find it.
std::string FirstDifference(const json& (*list)(const json&, uint64_t),
                            const std::function<json(const std::string&)>& a,
                            const std::function<json(const std::string&)>& b) {
  uint64_t first = 0;
  for (uint64_t count = uint64_t{1} << 30;; count /= Agreement::kFanOut) {
    const std::string name = Format("files {} {}", first, count);
    const json at_a = a(name);
    const json at_b = b(name);
    const json& of_a = list(at_a, count);
    const json& of_b = list(at_b, count);
    EXPECT_LE(of_a.size(), Agreement::kFanOut);
    size_t i = 0;
    while (i < of_a.size() && i < of_b.size() && of_a[i] == of_b[i]) ++i;
    if (i == of_a.size() && i == of_b.size()) return "";
    if (count <= Agreement::kFanOut) {
      return (i < of_a.size() ? of_a[i].dump() : "none") + " " +
             (i < of_b.size() ? of_b[i].dump() : "none");
    }
    first += i * (count / Agreement::kFanOut);
  }
}

TEST_F(AgreementTest, SharesOfTheFilesLeadToTheFirstThatDiffers) {
  constexpr int kFiles = 4200;  // more than 64 * 64
  // A dataset keeps its files open, of which 1,024 are usual at most.
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  WriteFiles("a", kFiles);
  WriteFiles("b", kFiles);
  const auto difference = [this] {
    const Host a = OfFiles("a");
    const Host b = OfFiles("b");
    return FirstDifference(
        [](const json& part, uint64_t count) -> const json& {
          return part.at(count <= Agreement::kFanOut ? "names" : "digests");
        },
        [&](const std::string& name) { return a.Part(name); },
        [&](const std::string& name) { return b.Part(name); });
  };
  EXPECT_EQ(difference(), "");
  std::filesystem::remove(folder_ / "b" / "04199.bin");
  EXPECT_EQ(difference(), R"(["04199.bin",8] none)");
  Write("b/04096.bin", "1234");
  EXPECT_EQ(difference(), R"(["04096.bin",8] ["04096.bin",4])");
  std::filesystem::remove(folder_ / "b" / "00063.bin");
  EXPECT_EQ(difference(), R"(["00063.bin",8] ["00064.bin",8])");
  std::filesystem::remove(folder_ / "a" / "00000.bin");
  EXPECT_EQ(difference(), R"(["00001.bin",8] ["00000.bin",8])");
}

// Kinds whose fingerprint says nothing of their files.
TEST_F(AgreementTest, EveryKindOfFileIsListed) {
  WriteFiles("a", 2);
  const std::string file = folder_.string() + "/a/*.bin";
  for (const std::string& source :
       {Format("{{tokens: {{files: {}, sequence_length: 1}}}}", file),
        Format("{{text_lines: {{files: {}, max_bytes: 64}}}}", file),
        Format("{{concat: {{parts: [{{source: {{text_lines: {{files: {}, "
               "max_bytes: 64}}}}}}]}}}}",
               file)}) {
    EXPECT_EQ(Of(source).Part("files 0 64"),
              json::parse(R"({"files": 2, "names": [["00000.bin", 8],
                              ["00001.bin", 8]]})"))
        << source;
  }
}

}  // namespace penstock::agreement_test
