// Promise: source lmdb gives the values that liblmdb would, samples by the keys
// that a spec names, and refuses a file that is damaged, cut off, written to or
// of another format with its page. Method: golden/pairs.mdb, written by
// python-lmdb (liblmdb 0.9), and files made here, page by page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "broker/declare/declaration.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"

namespace penstock::lmdb_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

constexpr char kGolden[] = PENSTOCK_SOURCE_DIR "/tests/unit/golden/";
constexpr char kValue[] = "{value: {max_bytes: 16}}";
constexpr char kPairs[] =
    "{image: {key: image-*, encoded: true}, word: {key: label-*, max_bytes: "
    "8}}";

// ---- LMDB files made here

constexpr uint64_t kPage = 256;

template <typename T>
std::string Bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
template <typename T>
void Put(std::string* file, uint64_t at, T value) {
  file->replace(at, sizeof(value), Bytes(value));
}

struct Entry {
  std::string key;
  std::string value;
  uint16_t flags = 0;
  std::optional<uint64_t> first_page = std::nullopt;  // of an overflow
};

std::string Header(uint64_t root, uint64_t entries, uint16_t flags = 0) {
  return Bytes(uint32_t{0}) + Bytes(flags) + Bytes(uint16_t{1}) +
         std::string(24, '\0') + Bytes(entries) + Bytes(root);
}

// Two meta pages, and others behind them.
class MadeFile {
 public:
  MadeFile() : bytes_(2 * kPage, '\0') {}

  uint64_t pages() const { return bytes_.size() / kPage; }
  uint64_t Leaf(const std::vector<Entry>& entries) {
    std::vector<std::string> nodes;
    for (const Entry& each : entries) {
      const auto size = static_cast<uint32_t>(each.value.size());
      nodes.push_back(
          Bytes(size) +
          Bytes(static_cast<uint16_t>(each.flags | (each.first_page ? 1 : 0))) +
          Bytes(static_cast<uint16_t>(each.key.size())) + each.key +
          (each.first_page ? Bytes(*each.first_page) : each.value));
    }
    return Page(2, nodes);
  }
  uint64_t Branch(
      const std::vector<std::pair<std::string, uint64_t>>& children) {
    std::vector<std::string> nodes;
    for (const auto& [key, child] : children) {
      nodes.push_back(Bytes(child).substr(0, 6) +
                      Bytes(static_cast<uint16_t>(key.size())) + key);
    }
    return Page(1, nodes);
  }
  uint64_t Overflow(const std::string& value) {
    const uint64_t first = pages();
    bytes_ += Bytes(first) + std::string(8, '\4') + value;
    bytes_.resize((bytes_.size() + kPage - 1) / kPage * kPage);
    return first;
  }
  std::string Finish(uint64_t root, uint64_t entries, uint16_t flags = 0) {
    for (const uint64_t i : {0, 1}) {
      std::string meta = Bytes(i) + Bytes(uint16_t{0}) + Bytes(uint16_t{8}) +
                         Bytes(uint32_t{0});
      meta += Bytes(uint32_t{0xbeefc0de}) + Bytes(uint32_t{1}) +
              std::string(16, '\0') + Bytes(static_cast<uint32_t>(kPage)) +
              Header(UINT64_MAX, 0).substr(4) +
              (i == 1 ? Header(root, entries, flags) : Header(UINT64_MAX, 0)) +
              Bytes(pages() - 1) + Bytes(i);
      bytes_.replace(i * kPage, meta.size(), meta);
    }
    return bytes_;
  }

 private:
  uint64_t Page(uint16_t flags, const std::vector<std::string>& nodes) {
    const uint64_t number = pages();
    std::string page(kPage, '\0');
    Put(&page, 0, number);
    Put(&page, 10, flags);
    Put(&page, 12, static_cast<uint16_t>(16 + 2 * nodes.size()));
    uint64_t at = kPage;
    for (size_t i = 0; i < nodes.size(); ++i) {
      at -= nodes[i].size();
      page.replace(at, nodes[i].size(), nodes[i]);
      Put(&page, 16 + 2 * i, static_cast<uint16_t>(at));
    }
    bytes_ += page;
    return number;
  }

  std::string bytes_;
};

// Page 2 has a and b, 3 c and d, whose value is from page 4 on; 6 is the root.
std::string TwoLeaves() {
  MadeFile file;
  const uint64_t left = file.Leaf({{"a", "1"}, {"b", ""}});
  const std::string large(300, 'x');
  const uint64_t right =
      file.Leaf({{"c", "three"}, {"d", large, 0, file.pages() + 1}});
  file.Overflow(large);
  return file.Finish(file.Branch({{"", left}, {"c", right}}), 4);
}
constexpr uint64_t kRoot = 6 * kPage;
constexpr uint64_t kLeft = 2 * kPage;
constexpr uint64_t kRight = 3 * kPage;
constexpr uint64_t kNewMeta = kPage + 16;

std::string OneLeaf(const std::vector<Entry>& entries, uint16_t flags = 0) {
  MadeFile file;
  const uint64_t root = file.Leaf(entries);
  return file.Finish(root, entries.size(), flags);
}

class LmdbTest : public testing::Test {
 protected:
  LmdbTest() {
    std::string pattern = testing::TempDir() + "penstock-lmdb-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    setenv("PENSTOCK_CACHE_DIR", (folder_ + "/cache").c_str(), 1);
  }
  ~LmdbTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& content) {
    std::ofstream(folder_ + "/data.mdb", std::ios::binary) << content;
    return folder_ + "/data.mdb";
  }

  StatusOr<std::unique_ptr<Source>> Open(const std::string& file,
                                         const std::string& features = kValue,
                                         const std::string& database = "") {
    LmdbSource spec;
    spec.files.patterns = {file};
    if (!features.empty()) {
      const auto document = ReadYaml(features, "f");
      EXPECT_TRUE(document.ok()) << document.status().message();
      const YamlPlace place = {"f", "/"};
      const Status status =
          RecordFeaturesType("key", {"default", "pointer"})
              .Read(YamlValue(*document, place), &spec.features);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    if (!database.empty()) spec.database = database;
    spec.on_missing = on_missing_;
    return OpenSource(spec, nullptr);
  }
  // "CODE: message"
  std::string Error(const std::string& content,
                    const std::string& features = kValue,
                    const std::string& database = "") {
    const Status status = Open(Write(content), features, database).status();
    return Format("{}: {}", static_cast<int>(status.code()), status.message());
  }

  // The features of a record, read by a reader as a worker does; its error.
  static std::vector<std::string> Record(const Source& source,
                                         uint64_t record) {
    auto reader = MakeStorageReader(ReadBackend::kPread, 1);
    ReadRequest request;
    source.Locate(record, &request);
    (*reader)->Start(0, request, {}, kNotPinned);
    StorageReader::Done done;
    EXPECT_TRUE((*reader)->Next(kWaitForever, &done));
    if (!done.status.ok()) return {done.status.message()};
    std::vector<std::byte> scratch;
    RawRecord raw;
    const Status status = source.Unpack(record, done.read(), &scratch, &raw);
    if (!status.ok()) return {status.message()};
    std::vector<std::string> features;
    for (const auto& bytes : raw) {
      features.emplace_back(reinterpret_cast<const char*>(bytes.data()),
                            bytes.size());
    }
    return features;
  }
  // The texts of all records, whose one feature is one.
  std::vector<std::string> Texts(const std::string& content,
                                 const std::string& features = kValue,
                                 const std::string& database = "") {
    const auto source = Open(Write(content), features, database);
    if (!source.ok()) return {source.status().message()};
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
      const std::vector<std::string> found = Record(**source, i);
      texts.push_back(found.size() == 2
                          ? found[0].substr(0, static_cast<size_t>(found[1][0]))
                          : found[0]);
    }
    return texts;
  }

  OnMissing on_missing_ = OnMissing::kError;
  std::string folder_;
};

TEST_F(LmdbTest, ReadsWhatLiblmdbWrote) {
  // 100 samples: image-%09d, mostly of 3 * i bytes, label-%09d, num-samples;
  // database "other" of one key.
  const auto source = Open(std::string(kGolden) + "pairs.mdb", kPairs);
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 100u);
  EXPECT_EQ((*source)->fingerprint().size(), 32u);
  for (uint64_t i = 0; i < 100; ++i) {
    const std::vector<std::string> found = Record(**source, i);
    ASSERT_EQ(found.size(), 3u) << found[0];
    EXPECT_EQ(found[0],
              std::string(i % 25 == 0 ? 5000 : 3 * i, static_cast<char>(i)));
    EXPECT_THAT(found[1], testing::StartsWith(Format("word{}", i + 1)));
  }
  const auto other = Open(std::string(kGolden) + "pairs.mdb", kValue, "other");
  ASSERT_TRUE(other.ok()) << other.status().message();
  ASSERT_EQ((*other)->record_count(), 1u);
  EXPECT_THAT(Record(**other, 0)[0], testing::StartsWith("of another"));
}

TEST_F(LmdbTest, ValuesComeInTheOrderOfKeysFromEveryPage) {
  EXPECT_THAT(Texts(TwoLeaves(), "{value: {max_bytes: 16, longer: cut}}"),
              ElementsAre("1", "", "three", std::string(16, 'x')));
  // The other features of a sample may be anywhere, or the same value.
  const auto source = Open(
      Write(OneLeaf(
          {{"1", "7"}, {"1.txt", "one"}, {"2", "8"}, {"2.txt", "two"}})),
      "{text: {key: '*.txt', max_bytes: 4}, n: {key: '*.txt', dtype: uint8, "
      "shape: [3]}, key: {dtype: int32, shape: [], key: '*', default: 0}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 2u);
  EXPECT_THAT(Record(**source, 1),
              ElementsAre(std::string("two\0", 4), Bytes(int64_t{3}), "two",
                          Bytes(int32_t{8})));
}

TEST_F(LmdbTest, AFolderIsItsFile) {
  Write(OneLeaf({{"a", "1"}}));
  const auto source = Open(folder_);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->record_count(), 1u);
  EXPECT_THAT(Open(folder_ + "/cache").status().message(), HasSubstr("/cache"));
}

TEST_F(LmdbTest, KeysOfAllSamplesAreNone) {
  EXPECT_THAT(Texts(OneLeaf({{"__keys__", "k"},
                             {"__len__", "3"},
                             {"a", "1"},
                             {"length", "3"},
                             {"num-samples", "3"}})),
              ElementsAre("1"));
}

TEST_F(LmdbTest, ASampleHasItsName) {
  const std::string file = OneLeaf({{"image-0017", "i"},
                                    {"image-22", "j"},
                                    {"label-0017", "one"},
                                    {"label-22", ""}});
  const auto source = Open(Write(file),
                           "{__key__: {max_bytes: 4}, number: {key: "
                           "__key__, dtype: int64, shape: []}, image: {key: "
                           "image-*, encoded: true}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT(Record(**source, 0),
              ElementsAre("0017", Bytes(int64_t{4}), Bytes(int64_t{17}), "i"));
  EXPECT_THAT(Error(file, "{name: {key: __key__, max_bytes: 4}}"),
              HasSubstr("whose keys another feature has"));
}

TEST_F(LmdbTest, ASampleWithoutAKeyIsAnErrorOrLeftOut) {
  const std::string file =
      OneLeaf({{"image-1", "i"}, {"image-2", "j"}, {"label-2", "two"}});
  auto source = Open(Write(file), kPairs);
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 2u);
  EXPECT_THAT(
      Record(**source, 0)[0],
      MatchesRegex(".*data.mdb, sample 0 at offset .*: key label-\\*: "
                   "the sample does not have it; `on_missing: skip`.*"));
  EXPECT_EQ(Record(**source, 1)[0], "j");
  on_missing_ = OnMissing::kSkip;
  source = Open(Write(file), kPairs);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->record_count(), 1u);
  EXPECT_EQ((*source)->left_out(), "1 sample that lacks a key");
}

TEST_F(LmdbTest, KeysThatNoSampleHasAreToldWithThoseItHas) {
  const std::string file = OneLeaf({{"image-1", "i"}, {"word-1", "one"}});
  EXPECT_THAT(Error(file, kPairs),
              AllOf(HasSubstr("no sample has the key 'label-*'"),
                    HasSubstr("'image-1', but no 'label-1'")));
  EXPECT_THAT(Error(file, "{a: {key: 'a-*', encoded: true}}"),
              HasSubstr("no key is 'a-*'; one is 'image-1'"));
  EXPECT_THAT(Error(file, "{a: {key: label, encoded: true}}"),
              HasSubstr("feature 'a': key 'label' wants one *"));
  EXPECT_THAT(Error(file, "{a: {key: '*-*', encoded: true}}"),
              HasSubstr("wants one *"));
}

TEST_F(LmdbTest, WithoutFeaturesTheyAreProposed) {
  const std::string jpeg = "\xff\xd8\xff";
  EXPECT_THAT(Error(OneLeaf({{"image-1", jpeg},
                             {"image-2", jpeg + "x"},
                             {"label-1", "one"},
                             {"label-2", "two"},
                             {"num-samples", "2"}}),
                    ""),
              HasSubstr("features: {image: {key: \"image-*\", encoded: true}, "
                        "label: {key: \"label-*\", max_bytes: 64}}"));
  EXPECT_THAT(Error(OneLeaf({{"n01_1", jpeg}, {"n02_1", jpeg}}), ""),
              HasSubstr("features: {image: {encoded: true}}"));
  EXPECT_THAT(
      Error(OneLeaf({{"a-1", "\x01"}, {"b-1", "\x01"}, {"b-2", "\x01\x02"}}),
            ""),
      AllOf(HasSubstr("without b-* (1 to 2 bytes)"),
            HasSubstr("{a: {key: \"a-*\", dtype: uint8, shape: [1]}}")));
}

TEST_F(LmdbTest, PicklesAreRefusedWithTheWayOut) {
  const std::string file = OneLeaf({{"a", "\x80\x04\x95 a pickle."}});
  for (const char* features : {"", kValue, "{a: {encoded: true}}"}) {
    EXPECT_THAT(Error(file, features),
                AllOf(HasSubstr("pickled objects of Python"),
                      HasSubstr("`source: {python: ...}`")))
        << features;
  }
  // Numbers may begin so.
  EXPECT_TRUE(Open(Write(file), "{a: {dtype: uint8, shape: [13]}}").ok());
}

TEST_F(LmdbTest, DatabasesWithANameAreToldApart) {
  MadeFile made;
  const uint64_t train = made.Leaf({{"a", "1"}});
  const uint64_t several = made.Leaf({{"b", "2"}});
  const uint64_t root =
      made.Leaf({{"several", Header(several, 1, /*MDB_DUPSORT*/ 4), 2},
                 {"train", Header(train, 1), 2}});
  const std::string file = made.Finish(root, 2);
  EXPECT_THAT(Texts(file, kValue, "train"), ElementsAre("1"));
  EXPECT_THAT(Error(file),
              HasSubstr("say which one with `database`: 'several', 'train'"));
  EXPECT_THAT(Error(file, kValue, "val"),
              HasSubstr("has no database 'val'; it has 'several', 'train'"));
  EXPECT_THAT(Error(file, kValue, "several"),
              AllOf(HasSubstr("a key of database 'several' may have several "
                              "values (MDB_DUPSORT)"),
                    HasSubstr("copy it into a database without")));
  EXPECT_THAT(Error(OneLeaf({{"a", "1"}}), kValue, "val"),
              testing::EndsWith("has no database 'val'"));
}

TEST_F(LmdbTest, OtherFilesAndFormatsAreRefused) {
  EXPECT_THAT(Error("a text"), HasSubstr("is no LMDB file (data.mdb): it has "
                                         "6 bytes"));
  EXPECT_THAT(Error(std::string(8192, 'x')), HasSubstr("is no LMDB file"));
  std::string file = TwoLeaves();
  Put(&file, 20, uint32_t{2});
  EXPECT_THAT(Error(file), HasSubstr("version 2 of LMDB's format, wanted 1"));
  file = TwoLeaves();
  Put(&file, 16, uint32_t{0xdec0efbe});
  EXPECT_THAT(Error(file), HasSubstr("a machine of the other byte order"));
  file = TwoLeaves();
  Put(&file, 16, uint32_t{0});
  Put(&file, 12, uint32_t{0xbeefc0de});
  EXPECT_THAT(Error(file),
              AllOf(HasSubstr("a 32-bit machine"), HasSubstr("mdb_dump")));
  EXPECT_THAT(Error(OneLeaf({{"a", "1"}}, /*MDB_DUPSORT*/ 4)),
              HasSubstr("MDB_DUPSORT"));
  EXPECT_THAT(Error(OneLeaf({{"a", "1"}}, 0x100)),
              HasSubstr("its flags are 0x100"));
  MadeFile empty;
  EXPECT_THAT(Error(empty.Finish(UINT64_MAX, 0)),
              HasSubstr("lmdb: no record in"));
}

struct Damage {
  const char* what;
  uint64_t at;
  std::string bytes;
  const char* message;
};

TEST_F(LmdbTest, EveryDamageIsToldWithItsPage) {
  const auto word = [](auto value) { return Bytes(value); };
  const uint64_t node = kLeft + kPage - 10;  // of a: 8 bytes, a, 1
  const uint64_t last = kRight + kPage - (8 + 1 + 5) - (8 + 1 + 8);  // of d
  const std::vector<Damage> damages = {
      {"page size", kNewMeta + 24, word(uint32_t{4095}), "second page"},
      {"other page size", kNewMeta + 24, word(uint32_t{512}), "second page"},
      {"old magic", kPage + 16, word(uint32_t{1}), "second page"},
      {"flags of a meta page", 10, word(uint16_t{1}), "first page"},
      {"root", kNewMeta + 112, word(uint64_t{1} << 60),
       "page 1152921504606846976 is wanted, and there are 7"},
      {"root is a meta page", kNewMeta + 112, word(uint64_t{1}),
       "page 1 at offset 256: its flags are 0x8"},
      {"root is in a value", kNewMeta + 112, word(uint64_t{5}),
       "page 5 at offset 1280: it says that it is page"},
      {"entries", kNewMeta + 104, word(uint64_t{5}),
       "has 4 entries, and 5 by its header"},
      {"last page", kNewMeta + 120, word(uint64_t{4}),
       "page 6 is wanted, and there are 5"},
      {"loop", kRoot + kPage - 8, word(uint32_t{6}), "pages lead in a circle"},
      {"same leaf twice", kRoot + kPage - 8 - 9, word(uint32_t{2}),
       "key 'a' comes behind 'b'"},
      {"page number", kLeft, word(uint64_t{3}), "it says that it is page 3"},
      {"page flags", kLeft + 10, word(uint16_t{0x22}), "its flags are 0x22"},
      {"table before", kLeft + 12, word(uint16_t{16}), "its table ends at 16"},
      {"table behind", kLeft + 12, word(uint16_t{300}),
       "its table ends at 300"},
      {"node in the table", kLeft + 16, word(uint16_t{18}),
       "entry 0 lies at 18"},
      {"node behind", kLeft + 16, word(uint16_t{250}), "entry 0 lies at 250"},
      {"value behind", node, word(uint16_t{9}), "entry 0 ends behind the page"},
      {"value of 4 GB", node, word(UINT32_MAX), "entry 0 ends behind the page"},
      {"key behind", node + 6, word(uint16_t{0xffff}),
       "entry 0 ends behind the page"},
      {"node flags", node + 4, word(uint16_t{4}), "entry 0 has flags 0x4"},
      {"no database", node + 4, word(uint16_t{2}), "entry 0 has flags 0x2"},
      {"overflow page", last + 9, word(uint64_t{7}), "from page 7 on"},
      {"overflow wraps", last + 9, word(UINT64_MAX), "from page 18446744"},
      {"overflow of 4 GB", last, word(UINT32_MAX),
       "4294967295 bytes from page 4"},
  };
  for (const Damage& each : damages) {
    std::string file = TwoLeaves();
    file.replace(each.at, each.bytes.size(), each.bytes);
    const std::string error = Error(file);
    EXPECT_THAT(
        error, AllOf(testing::StartsWith("15: "),
                     HasSubstr(folder_ + "/data.mdb"), HasSubstr(each.message)))
        << each.what;
  }
}

TEST_F(LmdbTest, AFileThatIsCutAnywhereIsRefused) {
  const std::string file = TwoLeaves();
  for (size_t bytes = 0; bytes < file.size(); bytes += 8) {
    EXPECT_NE(Error(file.substr(0, bytes)).substr(0, 2), "0:") << bytes;
  }
  // A file may be as large as it may become.
  EXPECT_TRUE(Open(Write(file + std::string(40 * kPage, '\0')),
                   "{value: {max_bytes: 300}}")
                  .ok());
}

TEST_F(LmdbTest, KeysInAnotherOrderAreTakenOneASample) {
  const std::vector<Entry> entries = {{std::string("\2\0\0\0", 4), "2"},
                                      {std::string("\1\1\0\0", 4), "257"}};
  const std::string file = OneLeaf(entries, /*MDB_INTEGERKEY*/ 8);
  EXPECT_THAT(Texts(file), ElementsAre("2", "257"));
  EXPECT_THAT(Error(file, "{a: {max_bytes: 4}, b: {key: 'b*', max_bytes: 4}}"),
              HasSubstr("only one key a sample can be taken"));
  EXPECT_THAT(Error(OneLeaf(entries)), HasSubstr("in an order of its own"));
}

TEST_F(LmdbTest, AFileThatIsWrittenToMeanwhileIsTold) {
  std::filesystem::copy(std::string(kGolden) + "pairs.mdb",
                        folder_ + "/data.mdb");
  OpenProgress progress;
  progress.reserve = [this](uint64_t) {  // in the middle of the scan
    std::fstream file(folder_ + "/data.mdb",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(16 + 128);
    file << Bytes(uint64_t{9});
    return OkStatus();
  };
  LmdbSource spec;
  spec.files.patterns = {folder_};
  spec.features.emplace_back().feature = {"a", DType::kUint8, {9}};
  const Status status = OpenSource(spec, &progress).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              MatchesRegex(".*data.mdb was written to while it was read "
                           "\\(transaction [1-8], then 9\\).*mdb_copy.*"));
}

TEST_F(LmdbTest, TheNewerOfTwoStatesCounts) {
  std::string file = OneLeaf({{"a", "new"}});
  EXPECT_THAT(Texts(file), ElementsAre("new"));
  Put(&file, 16 + 128, uint64_t{9});
  EXPECT_THAT(Error(file), HasSubstr("no record in"));  // that one is empty
}

}  // namespace penstock::lmdb_test
