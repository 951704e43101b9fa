// Promise: source webdataset gives the samples and members that webdataset
// would, of tar files in every format, and refuses what it cannot read by
// itself. Method: golden/samples.tar, written by webdataset's TarWriter, and
// golden/{ustar,gnu,pax}.tar, written by Python's tarfile, with long names,
// links, folders and members that are no neighbours; headers made here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "broker/declare/declaration.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"

namespace penstock::webdataset_test {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kGolden[] = PENSTOCK_SOURCE_DIR "/tests/unit/golden/";
constexpr char kPictureAndLabel[] =
    "{image: {member: jpg;png, encoded: true}, label: {member: cls, dtype: "
    "int64, shape: []}}";

// ---- tar files made here

std::string Header(const std::string& name, uint64_t bytes, char type = '0') {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  block.replace(100, 8, std::string("0000644\0", 8));
  block.replace(124, 12, Format("{:011o}", bytes) + std::string(1, '\0'));
  block[156] = type;
  block.replace(257, 8,
                std::string("ustar\000"
                            "00",
                            8));
  block.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  block.replace(148, 8, Format("{:06o}", sum) + std::string("\0 ", 2));
  return block;
}
std::string Member(const std::string& name, const std::string& content,
                   char type = '0') {
  std::string member = Header(name, content.size(), type) + content;
  member.resize((member.size() + 511) / 512 * 512);
  return member;
}

class WebdatasetTest : public testing::Test {
 protected:
  WebdatasetTest() {
    std::string pattern = testing::TempDir() + "penstock-webdataset-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    setenv("PENSTOCK_CACHE_DIR", (folder_ + "/cache").c_str(), 1);
  }
  ~WebdatasetTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& content) {
    std::ofstream(folder_ + "/t.tar", std::ios::binary) << content;
    return folder_ + "/t.tar";
  }

  StatusOr<std::unique_ptr<Source>> Open(
      const std::string& file, const std::string& features = kPictureAndLabel,
      OnMissing on_missing = OnMissing::kError) {
    WebdatasetSource spec;
    spec.files.patterns = {file};
    if (!features.empty()) {
      const auto document = ReadYaml(features, "f");
      EXPECT_TRUE(document.ok()) << document.status().message();
      const YamlPlace place = {"f", "/"};
      const Status status =
          RecordFeaturesType("member", {"default", "pointer"})
              .Read(YamlValue(*document, place), &spec.features);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    spec.on_missing = on_missing;
    spec.extension = extension_;
    return OpenSource(spec, nullptr);
  }

  // The features of a record, read by a reader as a worker does; its error.
  std::vector<std::string> Record(const Source& source, uint64_t record) {
    auto reader = MakeStorageReader(ReadBackend::kPread, 1);
    ReadRequest request;
    source.Locate(record, &request);
    parts_ = 1 + request.more.size();
    (*reader)->Start(0, request, {}, kNotPinned);
    StorageReader::Done done;
    EXPECT_TRUE((*reader)->Next(kWaitForever, &done));
    if (!done.status.ok()) return {done.status.message()};
    std::vector<std::byte> scratch;
    RawRecord raw;
    const Status status = source.Unpack(record, done.read(), &scratch, &raw);
    if (!status.ok()) return {status.message()};
    EXPECT_EQ(raw.size(), source.raw_spec().size());
    std::vector<std::string> features;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (!source.raw_spec()[i].encoded) {
        EXPECT_EQ(raw[i].size(), source.raw_spec()[i].feature.RowBytes());
      }
      features.emplace_back(reinterpret_cast<const char*>(raw[i].data()),
                            raw[i].size());
    }
    return features;
  }

  WebdatasetSource::Extension extension_ =
      WebdatasetSource::Extension::kFirstDot;
  std::string folder_;
  size_t parts_ = 0;  // of the last read
};

std::string Int64(int64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

TEST_F(WebdatasetTest, EveryKindOfMemberHasTheValueThatWasWritten) {
  const auto source = Open(
      std::string(kGolden) + "samples.tar",
      "{image: {member: jpeg;jpg, encoded: true}, cls: {dtype: int8, shape: "
      "[]}, txt: {max_bytes: 12}, npy: {dtype: float32, shape: [2, 3]}, raw: "
      "{member: txt, dtype: uint8, shape: [9]}, mask: {member: seg.png, dtype: "
      "uint8, shape: [6], default: 7}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 3u);
  for (int i = 0; i < 3; ++i) {
    const float values[] = {static_cast<float>(i), 1, 2, 3, 4, 5};
    EXPECT_THAT(
        Record(**source, static_cast<uint64_t>(i)),
        ElementsAre(
            Format("\xff\xd8\xff picture {}", i),
            std::string(1, static_cast<char>(i * 7 - 3)),
            Format("caption {}", i) + std::string(3, '\0'), Int64(9),
            std::string(reinterpret_cast<const char*>(values), sizeof(values)),
            Format("caption {}", i),
            i == 1 ? std::string(6, '\7') : Format("mask {}", i)));
    EXPECT_EQ(parts_, 1u);
  }
}

TEST_F(WebdatasetTest, NumbersMayBeTextWhateverTheirMemberIsCalled) {
  const auto source =
      Open(Write(Member("a.label", " 3\n") + Member("a.wav.score", "-0.5") +
                 Member("a.raw", Int64(7)) + Member("a.cls", "2.0") +
                 Member("a.byte", "1")),
           "{label: {dtype: int64, shape: []}, s: {member: wav.score, dtype: "
           "float32, shape: []}, raw: {dtype: int64, shape: []}, cls: {dtype: "
           "int64, shape: []}, byte: {dtype: uint8, shape: []}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  const float half = -0.5;
  EXPECT_THAT(Record(**source, 0),
              ElementsAre(Int64(3),
                          std::string(reinterpret_cast<const char*>(&half), 4),
                          Int64(7), Int64(2), "1"));
}

TEST_F(WebdatasetTest, AClassNameIsToldHowToBecomeANumber) {
  const auto source =
      Open(Write(Member("a.cls", "cat")), "{cls: {dtype: int64, shape: []}}");
  EXPECT_THAT(Record(**source, 0),
              ElementsAre(AllOf(HasSubstr("found 'cat'"), HasSubstr("lookup"),
                                HasSubstr("max_bytes"))));
}

TEST_F(WebdatasetTest, AnExtensionMayBeginAtTheLastDot) {
  const std::string file =
      Write(Member("./22.05 (x).jpg", "one") + Member("./22.05 (x).cls", "1") +
            Member("./22.06.jpg", "two") + Member("./22.06.cls", "2") +
            std::string(1024, '\0'));
  EXPECT_THAT(Open(file).status().message(),
              HasSubstr("no sample has the member jpg;png: the first one, "
                        "'./22', has 05 (x).jpg, 05 (x).cls, 06.jpg, 06.cls; "
                        "`extension: last_dot`"));
  extension_ = WebdatasetSource::Extension::kLastDot;
  const auto source = Open(file);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->record_count(), 2u);
  EXPECT_THAT(Record(**source, 1), ElementsAre("two", Int64(2)));
}

TEST_F(WebdatasetTest, AMemberMayBeAPattern) {
  const auto source =
      Open(Write(Member("s.input.jpg", "picture") + Member("s.out.txt", "a b")),
           "{image: {member: \"*.jpg\", encoded: true}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT(Record(**source, 0), ElementsAre("picture"));
  EXPECT_THAT(Open(Write(Member("s.a.jpg", "1") + Member("s.b.jpg", "2")),
                   "{image: {member: \"*.jpg\", encoded: true}}")
                  .status()
                  .message(),
              HasSubstr("'s.b.jpg' comes twice, as *.jpg"));
}

TEST_F(WebdatasetTest, ValuesOfAJsonMemberAreTakenByPointer) {
  const auto source = Open(
      Write(Member("0.json",
                   "{\n \"label\": 5,\n \"meta\": {\"caption\": \"a cat\", "
                   "\"box\": [1, 2.5]}}") +
            Member("1.json", "{\"label\": \"x\"}")),
      "{y: {member: json, pointer: /label, dtype: int64, shape: []}, t: "
      "{member: json, pointer: /meta/caption, max_bytes: 8}, box: {member: "
      "json, pointer: /meta/box, dtype: float64, shape: [2]}, none: {member: "
      "json, pointer: /none, dtype: int64, shape: [2], default: -1}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  const double box[] = {1, 2.5};
  EXPECT_THAT(Record(**source, 0),
              ElementsAre(Int64(5), std::string("a cat\0\0\0", 8), Int64(5),
                          std::string(reinterpret_cast<const char*>(box), 16),
                          Int64(-1) + Int64(-1)));
  EXPECT_THAT(
      Record(**source, 1),
      ElementsAre(HasSubstr("sample 1 at offset 1536: member json: field "
                            "'y': wanted a number, found text")));
}

TEST_F(WebdatasetTest, WithoutFeaturesAnErrorProposesThem) {
  const auto error = Open(std::string(kGolden) + "samples.tar", "");
  ASSERT_FALSE(error.ok());
  const std::string text(error.status().message());
  EXPECT_EQ(text,
            "webdataset: say which members a row has; by the first 3 samples "
            "of a file: features: {image: {member: \"jpg\", encoded: true}, "
            "label: {member: \"cls\", dtype: int64, shape: []}, npy: {dtype: "
            "float32, shape: [2, 3]}, seg.png: {max_bytes: 64}, txt: "
            "{max_bytes: 64}}; some samples lack a member: `on_missing: skip` "
            "leaves them out");
  // It can be pasted.
  const size_t at = text.find("features: ") + 10;
  const auto source =
      Open(std::string(kGolden) + "samples.tar",
           text.substr(at, text.find("}}") + 2 - at), OnMissing::kSkip);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT(Record(**source, 0), Contains(Int64(-3)));

  const auto none = Open(Write(Member("README", "text")), "");
  EXPECT_THAT(none.status().message(),
              HasSubstr("no member is named as a part of a sample"));
}

TEST_F(WebdatasetTest, ArraysThatDifferInLengthAreProposedAsLists) {
  const auto npy = [](const std::string& shape, size_t values) {
    const std::string head =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + ")}";
    return std::string("\x93NUMPY\1\0", 8) + static_cast<char>(head.size()) +
           '\0' + head + std::string(4 * values, '\0');
  };
  const std::string file = Write(
      Member("0.empty.npy", npy("0,", 0)) + Member("0.x.npy", npy("0,", 0)) +
      Member("0.box.npy", npy("3, 2", 6)) + Member("0.odd.npy", npy("3,", 3)) +
      Member("0.one.npy", npy("", 1)) + Member("1.empty.npy", npy("0,", 0)) +
      Member("1.x.npy", npy("5,", 5)) + Member("1.box.npy", npy("1, 2", 2)) +
      Member("1.odd.npy", npy("1, 2", 2)) + Member("1.one.npy", npy("0,", 0)));
  EXPECT_THAT(Open(file, "").status().message(),
              HasSubstr("without empty.npy (65 to 65 bytes), odd.npy (75 to 77 "
                        "bytes), one.npy (65 to 67 bytes): features: {box.npy: "
                        "{dtype: float32, "
                        "max_length: 8, shape: [2]}, x.npy: {dtype: float32, "
                        "max_length: 16}}"));
  const auto source = Open(file, "{box.npy: {dtype: float32, max_length: 4}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT(Record(**source, 0)[0],
              HasSubstr("wanted box.npy float32 [at most 4], found float32 [3, "
                        "2]"));
}

TEST_F(WebdatasetTest, EveryFormatOfTarHasTheSameSamples) {
  for (const char* format : {"ustar", "gnu", "pax"}) {
    const auto source = Open(std::string(kGolden) + format + ".tar");
    ASSERT_TRUE(source.ok()) << source.status().message();
    ASSERT_EQ((*source)->record_count(), 3u) << format;
    std::string picture;
    for (int i = 0; i < 100; ++i) picture += "picture b";
    EXPECT_THAT(Record(**source, 0), ElementsAre(picture, Int64(1)));
    EXPECT_THAT(Record(**source, 1), ElementsAre("picture a", Int64(22)));
    EXPECT_THAT(Record(**source, 2), ElementsAre("picture c", Int64(3)));
  }
}

TEST_F(WebdatasetTest, MembersFarFromEachOtherAreReadByThemselves) {
  const auto source = Open(Write(
      Member("a.cls", "4") + Member("other.bin", std::string(70'000, 'x')) +
      Member("b.cls", "5") + Member("a.jpg", "picture a") +
      Member("b.jpg", "picture b")));
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT(Record(**source, 0), ElementsAre("picture a", Int64(4)));
  EXPECT_EQ(parts_, 2u);
  EXPECT_THAT(Record(**source, 2), ElementsAre("picture b", Int64(5)));
  EXPECT_EQ(parts_, 1u);
}

TEST_F(WebdatasetTest, ASampleWithoutAMemberIsAnErrorOrLeftOut) {
  const std::string file =
      Write(Member("a.jpg", "a") + Member("b.jpg", "b") + Member("b.cls", "2") +
            Member("c.cls", "3") + Member("d.txt", "x"));
  const auto source = Open(file);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->record_count(), 4u);
  EXPECT_THAT(Record(**source, 0)[0],
              AllOf(HasSubstr(file + ", sample 0 at offset 512: member cls: "),
                    HasSubstr("does not have it; `on_missing: skip`")));
  EXPECT_THAT(Record(**source, 1), ElementsAre("b", Int64(2)));
  EXPECT_THAT(Record(**source, 3)[0], HasSubstr("member jpg;png: the sample"));
  const auto skipped = Open(file, kPictureAndLabel, OnMissing::kSkip);
  ASSERT_TRUE(skipped.ok()) << skipped.status().message();
  EXPECT_EQ((*skipped)->record_count(), 1u);
  EXPECT_EQ((*skipped)->left_out(), "3 samples that lack a member");
  EXPECT_THAT(Record(**skipped, 0), ElementsAre("b", Int64(2)));
  const auto defaults =
      Open(file,
           "{cls: {dtype: int64, shape: [], default: -1}, jpg: {encoded: "
           "true}}",
           OnMissing::kSkip);
  EXPECT_EQ((*defaults)->record_count(), 2u);
  EXPECT_THAT(Record(**defaults, 0), ElementsAre(Int64(-1), "a"));
}

TEST_F(WebdatasetTest, ASampleHasItsName) {
  constexpr char kNamed[] =
      "{image: {member: jpg;png, encoded: true}, name: {member: __key__, "
      "max_bytes: 250}}";
  const std::string longest = std::string(120, 'n') + "/1";
  const auto pax = [](const std::string& key, const std::string& value) {
    const std::string record = " " + key + "=" + value + "\n";
    return std::to_string(record.size() + 3) + record;
  };
  std::string split = Header("1.jpg", 1);
  split.replace(345, 3, "dir");
  split.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : split) sum += static_cast<unsigned char>(c);
  split.replace(148, 8, Format("{:06o}", sum) + std::string("\0 ", 2));
  const std::string file = Write(Member("a/b.jpg", "a") +
                                 Member("x",
                                        pax("comment", std::string(90, '-')) +
                                            pax("path", longest + ".jpg"),
                                        'x') +
                                 Member("short.jpg", "b") +
                                 Member("L", "gnu" + longest + ".jpg\0", 'L') +
                                 Member("short.jpg", "c"));
  const auto source = Open(file, kNamed);
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 3u);
  const std::string names[] = {"a/b", std::string(120, 'n') + "/1",
                               "gnu" + std::string(120, 'n') + "/1"};
  for (size_t i = 0; i < 3; ++i) {
    std::string room = names[i];
    room.resize(250);
    EXPECT_THAT(Record(**source, i),
                ElementsAre(std::string(1, static_cast<char>('a' + i)), room,
                            Int64(static_cast<int64_t>(names[i].size()))));
  }
  // A selection by the name reads no picture.
  const std::vector<std::string> wanted = {"name"};
  const auto alone = (*source)->OfFeatures(wanted);
  ASSERT_NE(alone, nullptr);
  ReadRequest request;
  alone->Locate(1, &request);
  EXPECT_EQ(request.bytes, names[1].size());
  EXPECT_EQ(Record(*alone, 1)[0].substr(0, names[1].size()), names[1]);
  EXPECT_THAT(
      Open(Write(split + std::string(512, 'x')), kNamed).status().message(),
      AllOf(HasSubstr("the name 'dir/1.jpg' is in two pieces (ustar)"),
            HasSubstr("tar --format=posix")));
  EXPECT_TRUE(
      Open(std::string(kGolden) + "gnu.tar", "{__key__: {max_bytes: 250}}")
          .ok());
  EXPECT_THAT(Open(std::string(kGolden) + "gnu.tar",
                   "{key: {member: __key__, dtype: int64, shape: []}}")
                  .status()
                  .message(),
              HasSubstr("__key__ is a text, the name of a sample"));
}

TEST_F(WebdatasetTest, ListsDifferInLength) {
  const std::string file =
      Write(Member("a.json", "{\"boxes\": [[1, 2], [3, 4]], \"n\": []}") +
            Member("a.raw", std::string("\1\0\2\0\3\0", 6)));
  const std::string features =
      "{boxes: {member: json, pointer: /boxes, dtype: int8, shape: [2], "
      "max_length: 3}, n: {member: json, pointer: /n, dtype: int8, max_length: "
      "1}, no: {member: json, pointer: /no, dtype: int8, max_length: 1, "
      "default: []}, raw: {dtype: int16, max_length: 4}, gone: {dtype: int8, "
      "max_length: 2, default: []}}";
  const auto source = Open(file, features);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT(Record(**source, 0),
              ElementsAre(std::string("\1\2\3\4\0\0", 6), Int64(2),
                          std::string(1, '\0'), Int64(0), std::string(1, '\0'),
                          Int64(0), std::string("\1\0\2\0\3\0\0\0", 8),
                          Int64(3), std::string(2, '\0'), Int64(0)));
  const auto npy = Open(std::string(kGolden) + "samples.tar",
                        "{npy: {dtype: float32, shape: [3], max_length: 4}}");
  const auto whole = Open(std::string(kGolden) + "samples.tar",
                          "{npy: {dtype: float32, shape: [2, 3]}}");
  EXPECT_THAT(
      Record(**npy, 0),
      ElementsAre(Record(**whole, 0)[0] + std::string(24, '\0'), Int64(2)));
  const auto error = [&](const std::string& wanted) {
    const auto opened = Open(file, wanted);
    if (!opened.ok()) return opened.status().message();
    return Record(**opened, 0)[0];
  };
  EXPECT_THAT(
      error("{raw: {dtype: int32, max_length: 4}}"),
      HasSubstr("wanted any number of 4 bytes, raw int32 [at most 4], or "
                "a .npy file, found 6 bytes"));
  EXPECT_THAT(error("{raw: {dtype: int16, max_length: 2}}"),
              HasSubstr("a list of 3; at most 2 fit"));
  EXPECT_THAT(error("{boxes: {member: json, pointer: /boxes, dtype: int8, "
                    "max_length: 2}}"),
              HasSubstr("field 'boxes': wanted a number, found a list"));
  EXPECT_THAT(error("{json: {dtype: int8, max_length: 90}}"),
              HasSubstr("wanted a list, found an object"));
}

TEST_F(WebdatasetTest, AJsonMemberMayBeTheListItself) {
  const auto source = Open(Write(Member("a.json", "[7, 8]")),
                           "{json: {dtype: int8, max_length: 3}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_THAT(Record(**source, 0),
              ElementsAre(std::string("\7\10\0", 3), Int64(2)));
}

TEST_F(WebdatasetTest, ValuesThatDoNotFitAreNamed) {
  const std::string file =
      Write(Member("a.cls", "x7") + Member("a.txt", "too long") +
            Member("a.raw", "12345") + Member("a.npy", "\x93NUMPY\1") +
            Member("a.jpg", "") + Member("a.id", "300"));
  const auto error = [&](const std::string& features) {
    const auto source = Open(file, features);
    if (!source.ok()) return source.status().message();
    return Record(**source, 0)[0];
  };
  EXPECT_THAT(error("{cls: {dtype: int64, shape: []}}"),
              HasSubstr("member cls: wanted a number that fits int64, "
                        "found 'x7'"));
  EXPECT_THAT(error("{id: {dtype: uint8, shape: []}}"),
              HasSubstr("that fits uint8, found '300'"));
  EXPECT_THAT(error("{cls: {dtype: int64, shape: [2]}}"),
              HasSubstr("write `shape: []`"));
  EXPECT_THAT(error("{txt: {max_bytes: 7}}"),
              HasSubstr("a text of 8 bytes; at most 7 fit (max_bytes"));
  EXPECT_THAT(error("{raw: {dtype: int16, shape: [3]}}"),
              HasSubstr("wanted 6 bytes of raw int16 [3], or a .npy file, "
                        "found 5"));
  EXPECT_THAT(error("{npy: {dtype: int16, shape: [3]}}"),
              HasSubstr("member npy: as .npy: it ends within its header"));
  EXPECT_THAT(error("{jpg: {encoded: true}}"), HasSubstr("it is empty"));
  const auto npy = Open(std::string(kGolden) + "samples.tar",
                        "{npy: {dtype: float32, shape: [3, 2]}}");
  EXPECT_THAT(Record(**npy, 0)[0],
              HasSubstr("wanted npy float32 [3, 2], found float32 [2, 3]"));
}

TEST_F(WebdatasetTest, OtherFilesAreRefusedWithTheWayOut) {
  const auto error = [this](const std::string& content) {
    return Open(Write(content)).status().message();
  };
  EXPECT_EQ(error(Member("BZh.jpg", "x")), "");
  EXPECT_THAT(error(std::string(600, 'x')), HasSubstr("not a tar file"));
  EXPECT_THAT(error("short"), HasSubstr("the file ends within a member's"));
  EXPECT_THAT(error(""), HasSubstr("no record in"));
  EXPECT_THAT(error(std::string(1024, '\0')), HasSubstr("no record in"));
  EXPECT_THAT(error(Member("a.jpg", "x", 'S')),
              HasSubstr("member 'a.jpg' is sparse"));
  EXPECT_THAT(error(Member("pax", "22 GNU.sparse.major=1\n", 'x') +
                    Member("a.jpg", "x")),
              HasSubstr("member 'a.jpg' is sparse"));
  EXPECT_THAT(error(Member("a.jpg", "x") + Member("a.jpg", "y")),
              HasSubstr("member 'a.jpg' comes twice"));
  EXPECT_THAT(error(Header("a.jpg", uint64_t{8} << 30) + "x"),
              HasSubstr("the file ends within a member's data"));
  EXPECT_THAT(error(Header("long", uint64_t{8} << 30, 'L') + "x"),
              HasSubstr("the file ends within a member's data"));
  EXPECT_THAT(error(Member("pax", "9 path=a", 'x')),
              HasSubstr("a malformed pax header"));
  EXPECT_THAT(error(Member("pax", "99999999999999999999 a=b\n", 'x')),
              HasSubstr("a malformed pax header"));
  std::string damaged = Member("a.jpg", "x") + Member("b.jpg", "x");
  damaged[1024 + 3] = 'X';
  EXPECT_THAT(error(damaged), HasSubstr("offset 1024: the checksum"));
  // GNU's binary sizes: one that no file has.
  std::string huge = Header("a.jpg", 0);
  huge.replace(124, 12, "\x80" + std::string(11, '\xff'));
  EXPECT_FALSE(Open(Write(huge)).ok());
}

TEST_F(WebdatasetTest, APaxHeaderAndALongNameCountForOneMember) {
  const auto source =
      Open(Write(Member("long", std::string("one.jpg\0", 8), 'L') +
                 Member("x.jpg", "1") + Member("one.cls", "1") +
                 Member("pax",
                        "16 path=two.jpg\n"
                        "9 size=3\n",
                        'x') +
                 Member("y.jpg", "abc") + Member("two.cls", "2")));
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 2u);
  EXPECT_THAT(Record(**source, 0), ElementsAre("1", Int64(1)));
  EXPECT_THAT(Record(**source, 1), ElementsAre("abc", Int64(2)));
}

TEST_F(WebdatasetTest, AMemberOfManyGigabytesIsAnErrorOfItsSample) {
  constexpr uint64_t kBytes = uint64_t{10} << 30;
  const std::string pax = "20 size=" + std::to_string(kBytes) + "\n";
  const std::string before = Member("pax", pax, 'x') + Header("a.jpg", 0);
  const std::string path = Write(before);
  std::filesystem::resize_file(path, before.size() + kBytes);
  std::ofstream(path, std::ios::binary | std::ios::app)
      << Member("a.cls", "1") << Member("b.jpg", "x") << Member("b.cls", "2")
      << std::string(1024, '\0');
  const auto source = Open(path);
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 2u);
  EXPECT_THAT(Record(**source, 0)[0],
              AllOf(HasSubstr("t.tar, sample 0 at offset 1536: member "
                              "jpg;png: 4294967295 bytes or more"),
                    HasSubstr("a record has at most")));
  EXPECT_THAT(Record(**source, 1), ElementsAre("x", Int64(2)));
}

TEST_F(WebdatasetTest, APathOfAMemberIsOnlyAName) {
  const auto source = Open(
      Write(Member("../../etc/a.jpg", "1") + Member("/etc/passwd.jpg", "2") +
            Member("../../etc/a.cls", "1") + Member("/etc/passwd.cls", "2") +
            Member("b", "", '5') + Member("b/../c.jpg", "3") +
            Member("b/../c.cls", "3") + Header("d.jpg", 0, '2')));
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 3u);
  EXPECT_THAT(Record(**source, 0), ElementsAre("1", Int64(1)));
  EXPECT_THAT(Record(**source, 1), ElementsAre("2", Int64(2)));
  EXPECT_THAT(Record(**source, 2), ElementsAre("3", Int64(3)));
}

TEST_F(WebdatasetTest, EveryCutIsAnErrorOrHasWholeMembersOnly) {
  const std::string sound = Member("a.jpg", "picture") + Member("a.cls", "1") +
                            Member("b.jpg", "picture") + Member("b.cls", "2");
  for (size_t bytes = 1; bytes < sound.size(); bytes += 13) {
    const auto source = Open(Write(sound.substr(0, bytes)));
    if (!source.ok()) {
      EXPECT_THAT(source.status().message(), HasSubstr("the file ends within"));
      continue;
    }
    for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
      Record(**source, i);
    }
    EXPECT_THAT((*source)->warning(),
                HasSubstr(Format("t.tar, offset {}: the file ends without the "
                                 "zeros",
                                 bytes)));
  }
}

TEST_F(WebdatasetTest, AnArchiveThatEndsOddlyIsWarnedOf) {
  const std::string zeros(1024, '\0');
  const std::string one = Member("a.jpg", "x") + Member("a.cls", "1");
  const auto warning = [this](const std::string& content) {
    const auto source = Open(Write(content));
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? (*source)->warning() : "";
  };
  EXPECT_EQ(warning(one + zeros), "");
  EXPECT_EQ(warning(one + std::string(512, '\0')), "");
  EXPECT_EQ(warning(one + std::string(200'000, '\0')), "");
  EXPECT_EQ(warning(one + zeros + std::string(600, 'x')), "");
  EXPECT_THAT(warning(one), HasSubstr("t.tar, offset 2048: the file ends "
                                      "without the zeros"));
  EXPECT_THAT(warning(one + zeros + std::string(10240 - 3072, '\0') + one),
              HasSubstr("t.tar, offset 10240: another archive begins behind "
                        "the first one, and is not read"));
  // From the cache too.
  std::filesystem::last_write_time(
      folder_ + "/t.tar",
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT((*Open(folder_ + "/t.tar"))->warning(),
                HasSubstr("offset 10240: another archive"));
  }
}

}  // namespace penstock::webdataset_test
