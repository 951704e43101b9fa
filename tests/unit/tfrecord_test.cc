// Promise: source tfrecord gives the values that TensorFlow wrote, checks every
// checksum, and names what does not fit. Method: golden/*.tfrecord, written by
// TensorFlow 2 (tf.io.TFRecordWriter, tf.train.Example; deterministic), and
// records made here that it would not write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "broker/declare/declaration.h"
#include "broker/io/read.h"
#include "broker/source/example.h"
#include "broker/source/kinds.h"
#include "common/crc32c.h"

namespace penstock::tfrecord_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kGolden[] = PENSTOCK_SOURCE_DIR "/tests/unit/golden/";

TEST(Crc32cTest, HasThePublishedValuesInBothWays) {
  // RFC 3720, B.4; every length around a word; blocks done in three parts.
  std::vector<std::byte> bytes(32, std::byte{0});
  EXPECT_EQ(Crc32c(bytes), 0x8a9136aa);
  bytes.assign(32, std::byte{0xff});
  EXPECT_EQ(Crc32c(bytes), 0x62a8ab43);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(bytes), 0x46dd794e);
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const auto part = std::span(bytes).first(size);
    EXPECT_EQ(Crc32c(part), Crc32cByTable(part)) << size;
  }
  bytes.clear();
  for (uint32_t i = 0; i < 5000; ++i) {
    bytes.push_back(static_cast<std::byte>((i * 2654435761u) >> 24));
  }
  for (size_t size = 1500; size <= bytes.size(); size += 7) {
    const auto part = std::span(bytes).first(size);
    EXPECT_EQ(Crc32c(part, 12345), Crc32cByTable(part, 12345)) << size;
  }
}

RecordFeatures FeaturesOf(const std::string& yaml) {
  const auto document = ReadYaml(yaml, "f");
  EXPECT_TRUE(document.ok()) << document.status().message();
  const YamlPlace place = {"f", "/"};
  RecordFeatures features;
  const Status status = RecordFeaturesType("key", {"default"})
                            .Read(YamlValue(*document, place), &features);
  EXPECT_TRUE(status.ok()) << status.message();
  return features;
}

class TfrecordTest : public testing::Test {
 protected:
  TfrecordTest() {
    std::string pattern = testing::TempDir() + "penstock-tfrecord-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    setenv("PENSTOCK_CACHE_DIR", (folder_ + "/cache").c_str(), 1);
  }
  ~TfrecordTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
    return folder_ + "/" + name;
  }

  static StatusOr<std::unique_ptr<Source>> Open(const std::string& file,
                                                const std::string& features) {
    TfrecordSource spec;
    spec.files = {{file}};
    if (!features.empty()) spec.features = FeaturesOf(features);
    return OpenSource(spec, nullptr);
  }
  static std::string OpenFails(const std::string& file,
                               const std::string& features = "") {
    return Open(file, features).status().message();
  }

  // Reads a record as a worker does. The status is of Unpack.
  static Status Read(const Source& source, uint64_t record,
                     std::vector<std::string>* features) {
    ReadRequest request;
    source.Locate(record, &request);
    EXPECT_EQ(request.kind, ReadRequest::Kind::kRange);
    auto reader = MakeStorageReader(ReadBackend::kPread, 1);
    (*reader)->Start(0, request, {}, kNotPinned);
    StorageReader::Done done;
    EXPECT_TRUE((*reader)->Next(kWaitForever, &done));
    PENSTOCK_RETURN_IF_ERROR(done.status);
    std::vector<std::byte> scratch;
    RawRecord raw;
    PENSTOCK_RETURN_IF_ERROR(
        source.Unpack(record, done.read(), &scratch, &raw));
    EXPECT_EQ(raw.size(), source.raw_spec().size());
    features->clear();
    for (const auto& bytes : raw) {
      features->emplace_back(reinterpret_cast<const char*>(bytes.data()),
                             bytes.size());
    }
    return OkStatus();
  }
  static std::string ErrorOf(const std::string& features, uint64_t record = 0) {
    const auto source =
        Open(std::string(kGolden) + "examples.tfrecord", features);
    EXPECT_TRUE(source.ok()) << source.status().message();
    std::vector<std::string> found;
    return Read(**source, record, &found).message();
  }

  std::string folder_;
};

template <typename T>
std::vector<T> ValuesOf(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

TEST_F(TfrecordTest, EveryKindOfFeatureHasTheValuesThatWereWritten) {
  const auto source = Open(
      std::string(kGolden) + "examples.tfrecord",
      "{image: {key: image/encoded, encoded: true}, label: {key: "
      "image/class/label, dtype: int32, shape: []}, box: {dtype: float32, "
      "shape: [2, 2]}, wide: {key: box, dtype: float64, shape: [4]}, text: "
      "{max_bytes: 12}, tokens: {dtype: int64, shape: [4]}, raw: {dtype: "
      "int16, shape: [2, 2]}, maybe: {dtype: uint8, shape: [], default: 9}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 3u);
  EXPECT_EQ((*source)->fingerprint().size(), 32u);
  const RawSpec& spec = (*source)->raw_spec();
  ASSERT_EQ(spec.size(), 9u);
  EXPECT_TRUE(spec[0].encoded);
  EXPECT_EQ(spec[4].feature.ToString(), "text uint8 [12]");
  EXPECT_EQ(spec[5].feature.ToString(), "text_bytes int64 []");
  for (int i = 0; i < 3; ++i) {
    std::vector<std::string> found;
    const Status status = Read(**source, static_cast<uint64_t>(i), &found);
    ASSERT_TRUE(status.ok()) << status.message();
    std::string picture;
    for (int j = 0; j <= i; ++j)
      picture += Format("\xff\xd8\xff picture {}", i);
    EXPECT_EQ(found[0], picture);
    EXPECT_THAT(ValuesOf<int32_t>(found[1]), ElementsAre(i - 1));
    const auto f = static_cast<float>(i);
    EXPECT_THAT(ValuesOf<float>(found[2]),
                ElementsAre(0.5f * f, -1.25f, 3.0f, 4.5f));
    EXPECT_THAT(ValuesOf<double>(found[3]),
                ElementsAre(0.5 * i, -1.25, 3.0, 4.5));
    EXPECT_EQ(found[4], Format("caption {}", i) + std::string(3, '\0'));
    EXPECT_THAT(ValuesOf<int64_t>(found[5]), ElementsAre(9));
    EXPECT_THAT(ValuesOf<int64_t>(found[6]),
                ElementsAre(i, 200, i == 2 ? -1 : 70000, int64_t{1} << 40));
    EXPECT_THAT(ValuesOf<int16_t>(found[7]), ElementsAre(1, i, 3, 4));
    EXPECT_THAT(ValuesOf<uint8_t>(found[8]), ElementsAre(i == 1 ? 7 : 9));
  }
}

TEST_F(TfrecordTest, ListsDifferInLength) {
  const auto source = Open(
      std::string(kGolden) + "examples.tfrecord",
      "{tokens: {dtype: int64, max_length: 6}, box: {dtype: float32, shape: "
      "[2], max_length: 3}, raw: {dtype: int16, max_length: 5}, none: {dtype: "
      "int8, max_length: 1, default: []}, text: {max_bytes: 3, longer: cut}, "
      "few: {key: tokens, dtype: int64, max_length: 3, longer: cut}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  const RawSpec& spec = (*source)->raw_spec();
  ASSERT_EQ(spec.size(), 12u);
  EXPECT_EQ(spec[0].feature.ToString(), "tokens int64 [6]");
  EXPECT_EQ(spec[1].feature.ToString(), "tokens.length int64 []");
  EXPECT_EQ(spec[2].feature.ToString(), "box float32 [3, 2]");
  std::vector<std::string> fixed, lists;
  const auto whole =
      Open(std::string(kGolden) + "examples.tfrecord",
           "{tokens: {dtype: int64, shape: [4]}, box: {dtype: float32, shape: "
           "[4]}, raw: {dtype: int16, shape: [4]}}");
  EXPECT_EQ(Read(**whole, 0, &fixed).message(), "");
  ASSERT_EQ(Read(**source, 0, &lists).message(), "");
  EXPECT_EQ(lists[0], fixed[0] + std::string(16, '\0'));
  EXPECT_THAT(ValuesOf<int64_t>(lists[1]), ElementsAre(4));
  EXPECT_EQ(lists[2], fixed[1] + std::string(8, '\0'));
  EXPECT_THAT(ValuesOf<int64_t>(lists[3]), ElementsAre(2));
  EXPECT_EQ(lists[4], fixed[2] + std::string(2, '\0'));
  EXPECT_THAT(ValuesOf<int64_t>(lists[5]), ElementsAre(4));
  EXPECT_THAT(ValuesOf<int64_t>(lists[7]), ElementsAre(0));
  EXPECT_THAT(ValuesOf<int64_t>(lists[11]), ElementsAre(3));
  EXPECT_THAT(ErrorOf("{tokens: {dtype: int64, max_length: 3}}"),
              HasSubstr("feature 'tokens': a list of 4; at most 3 fit "
                        "(max_length, or `longer: cut`)"));
  EXPECT_THAT(ErrorOf("{box: {dtype: float32, shape: [3], max_length: 3}}"),
              HasSubstr("wanted a list of 3 times any of float32"));
  EXPECT_THAT(ErrorOf("{tokens: {dtype: float32, max_length: 9}}"),
              HasSubstr("wanted a list of float32, or their raw bytes"));
  EXPECT_THAT(ErrorOf("{none: {dtype: int8, max_length: 1}}"),
              HasSubstr("`default: []` makes it empty then"));
}

TEST_F(TfrecordTest, WhatDoesNotFitIsNamedWithBothSides) {
  const std::string where =
      std::string(kGolden) + "examples.tfrecord, record 0 at offset 0: ";
  EXPECT_EQ(ErrorOf("{x: {dtype: int64, shape: []}}"),
            where +
                "feature 'x': the record does not have it; `default` gives its "
                "values then");
  EXPECT_EQ(ErrorOf("{x: {encoded: true}}"),
            where + "feature 'x': the record does not have it");
  EXPECT_EQ(ErrorOf("{tokens: {dtype: int64, shape: [3]}}"),
            where +
                "feature 'tokens': wanted 3 of int64, or 24 raw bytes, found 4 "
                "int64");
  EXPECT_THAT(ErrorOf("{tokens: {dtype: float32, shape: [4]}}"),
              HasSubstr("wanted 4 of float32, or 16 raw bytes, found 4 int64"));
  EXPECT_THAT(ErrorOf("{box: {dtype: int64, shape: [4]}}"),
              HasSubstr("found 4 floats"));
  EXPECT_THAT(ErrorOf("{raw: {dtype: int16, shape: [3]}}"),
              HasSubstr("or 6 raw bytes, found 8 bytes"));
  EXPECT_THAT(
      ErrorOf("{tokens: {dtype: int16, shape: [4]}}"),
      HasSubstr("feature 'tokens': the value 70000 does not fit int16"));
  EXPECT_THAT(ErrorOf("{label: {key: image/class/label, dtype: uint8, shape: "
                      "[]}}"),
              HasSubstr("the value -1 does not fit uint8"));
  EXPECT_THAT(
      ErrorOf("{text: {max_bytes: 8}}"),
      HasSubstr(
          "a text of 9 bytes; at most 8 fit (max_bytes, or `longer: cut`)"));
  EXPECT_THAT(ErrorOf("{box: {encoded: true}}"),
              HasSubstr("wanted the bytes of a file, found 4 floats"));
}

TEST_F(TfrecordTest, WithoutFeaturesAnErrorProposesThem) {
  const std::string text =
      OpenFails(std::string(kGolden) + "examples.tfrecord");
  EXPECT_EQ(
      text,
      "tfrecord: say which features a row has; by 3 records: "
      "features: {box: {dtype: float32, shape: [4]}, image_class_label: "
      "{key: \"image/class/label\", dtype: int64, shape: []}, "
      "image_encoded: {key: \"image/encoded\", encoded: true}, maybe: "
      "{dtype: int64, shape: [], default: 0}, raw: {dtype: uint8, shape: [8]}, "
      "text: {max_bytes: 64}, tokens: {dtype: int64, shape: [4]}}");
  // It can be pasted.
  const std::string pasted = text.substr(text.find("features: ") + 10);
  EXPECT_EQ(FeaturesOf(pasted).size(), 7u);
}

TEST_F(TfrecordTest, OtherFilesAreRefusedWithTheWayOut) {
  const std::string features = "{x: {dtype: int64, shape: []}}";
  EXPECT_THAT(OpenFails(std::string(kGolden) + "zlib.tfrecord", features),
              AllOf(HasSubstr("zlib.tfrecord is compressed as a whole by zlib"),
                    HasSubstr("with GZIP or without compression")));
  const auto gzip = Open(std::string(kGolden) + "gzip.tfrecord", features);
  ASSERT_TRUE(gzip.ok()) << gzip.status().message();
  EXPECT_EQ((*gzip)->record_count(), 1u);
  EXPECT_THAT((*gzip)->Describe(0),
              HasSubstr("gzip.tfrecord, record 0 at offset 0"));
  EXPECT_THAT(OpenFails(Write("text", "this is no such file"), features),
              HasSubstr("text, record 0 at offset 0: the checksum of its "
                        "length is wrong; it is no TFRecord file"));
  EXPECT_THAT(OpenFails(Write("short", "12345"), features),
              HasSubstr("the file ends within it, 5 bytes where 12"));
  EXPECT_THAT(OpenFails(Write("empty", ""), features),
              HasSubstr("no record in"));
  const auto source =
      Open(std::string(kGolden) + "sequence.tfrecord", features);
  std::vector<std::string> found;
  EXPECT_THAT(Read(**source, 0, &found).message(),
              HasSubstr("SequenceExample"));
  EXPECT_THAT(OpenFails(std::string(kGolden) + "sequence.tfrecord"),
              HasSubstr("SequenceExample"));
}

TEST_F(TfrecordTest, ARecordOfManyGigabytesIsAnErrorOfItself) {
  constexpr uint64_t kBytes = uint64_t{10} << 30;
  const auto masked = [](uint32_t crc) {
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
  };
  std::string header(12, '\0');
  std::memcpy(header.data(), &kBytes, 8);
  const uint32_t crc =
      masked(Crc32c(std::as_bytes(std::span(header)).first(8)));
  std::memcpy(&header[8], &crc, 4);
  const std::string path = Write("huge", header);
  const std::string features = "{text: {max_bytes: 100}}";
  EXPECT_THAT(OpenFails(path, features),
              HasSubstr("huge, record 0 at offset 0: the file ends within it, "
                        "12 bytes where 10737418256 are wanted"));
  std::filesystem::resize_file(path, kBytes + 16);
  std::ifstream in(std::string(kGolden) + "examples.tfrecord",
                   std::ios::binary);
  std::ofstream(path, std::ios::binary | std::ios::app) << in.rdbuf();
  const auto source = Open(path, features);
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 4u);
  std::vector<std::string> found;
  EXPECT_THAT(Read(**source, 0, &found).message(),
              HasSubstr("huge, record 0 at offset 0: 4294967295 bytes or more; "
                        "a record has at most"));
  EXPECT_TRUE(Read(**source, 1, &found).ok());
}

TEST_F(TfrecordTest, EveryDamagedByteIsNoticed) {
  std::ifstream in(std::string(kGolden) + "examples.tfrecord",
                   std::ios::binary);
  const std::string sound((std::istreambuf_iterator<char>(in)), {});
  for (size_t i = 0; i < sound.size(); ++i) {
    std::string damaged = sound;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    const auto source =
        Open(Write("damaged", damaged), "{text: {max_bytes: 100}}");
    if (!source.ok()) {
      EXPECT_EQ(source.status().code(), StatusCode::kDataLoss) << i;
      continue;
    }
    int errors = 0;
    for (uint64_t record = 0; record < 3; ++record) {
      std::vector<std::string> found;
      const Status status = Read(**source, record, &found);
      errors += !status.ok();
      if (!status.ok()) {
        EXPECT_THAT(status.message(),
                    HasSubstr("the checksum of its data is wrong"));
      }
    }
    EXPECT_EQ(errors, 1) << i;
  }
  // Cut off anywhere but between records: the offset is that of the record.
  for (size_t bytes = 1; bytes < sound.size(); bytes += 5) {
    const Status status =
        Open(Write("cut", sound.substr(0, bytes)), "{text: {max_bytes: 100}}")
            .status();
    if (status.ok()) continue;
    EXPECT_THAT(status.message(), HasSubstr("the file ends within it"));
    const size_t at = std::stoul(
        status.message().substr(status.message().find("truncate -s ") + 12));
    EXPECT_TRUE(at == 0 || Open(Write("cut", sound.substr(0, at)),
                                "{text: {max_bytes: 100}}")
                               .ok());
  }
}

// ---- Examples that TensorFlow would not write

std::string Field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) +
         static_cast<char>(bytes.size()) + bytes;
}
std::string Entry(const std::string& key, const std::string& feature) {
  return Field(1, Field(1, key) + Field(2, feature));
}
std::string Unpacked(const std::string& yaml, const std::string& example) {
  const ExampleFeatures features(FeaturesOf(yaml));
  std::vector<std::byte> scratch;
  RawRecord raw;
  const Status status =
      features.Unpack(std::as_bytes(std::span(example)), &scratch, &raw);
  if (!status.ok()) return status.message();
  return {reinterpret_cast<const char*>(raw[0].data()), raw[0].size()};
}

TEST_F(TfrecordTest, AProposalIsOfAllThatWasLookedAt) {
  const auto feature = [](const std::string& name, uint64_t kind,
                          const std::string& list) {
    return Entry(name, Field(kind, list));
  };
  const auto proposed = [](const std::vector<std::string>& examples) {
    FeatureProposal proposal;
    for (const std::string& each : examples) {
      const std::string example = Field(1, each);
      EXPECT_TRUE(proposal.Add(std::as_bytes(std::span(example))).ok());
    }
    return proposal.Features() + " without " + proposal.LeftOut();
  };
  const std::string ints = Field(1, "\1\2");
  EXPECT_EQ(proposed({feature("text", 1, Field(1, ""))}),
            "text: {max_bytes: 64} without ");
  EXPECT_EQ(proposed({feature("text", 1, Field(1, "")),
                      feature("text", 1, Field(1, std::string(100, 'x')))}),
            "text: {max_bytes: 256} without ");
  EXPECT_EQ(proposed({feature("raw", 1, Field(1, "\1\2")),
                      feature("raw", 1, Field(1, "ab"))}),
            "raw: {dtype: uint8, shape: [2]} without ");
  EXPECT_EQ(proposed({feature("raw", 1, Field(1, "\xff")),
                      feature("raw", 1, Field(1, "ab"))}),
            "raw: {max_bytes: 64} without ");
  EXPECT_EQ(proposed({feature("image", 1, Field(1, "\x89PNG")),
                      feature("image", 1, Field(1, "\xff\xd8\xff"))}),
            "image: {encoded: true} without ");
  EXPECT_EQ(proposed({feature("image", 1, Field(1, "\x89PNG")),
                      feature("image", 1, Field(1, ""))}),
            "image: {max_bytes: 64} without ");
  EXPECT_EQ(proposed({feature("a", 3, ints), feature("b", 3, ints)}),
            "a: {dtype: int64, shape: [2], default: 0}, b: {dtype: int64, "
            "shape: [2], default: 0} without ");
  EXPECT_EQ(proposed({feature("a", 3, ints), feature("a", 3, "")}),
            "a: {dtype: int64, max_length: 4} without ");
  EXPECT_EQ(proposed({feature("a", 3, ints), feature("a", 3, ""),
                      feature("b", 3, "")}),
            "a: {dtype: int64, max_length: 4, default: []} without b (0 "
            "int64)");
  EXPECT_EQ(proposed({feature("a", 3, "")}), " without a (0 int64)");
  EXPECT_EQ(proposed({feature("a", 1, Field(1, "x") + Field(1, "y"))}),
            " without a (2 values of bytes)");
  EXPECT_THAT(proposed({feature("a", 3, ints), feature("a", 1, Field(1, "x"))}),
              HasSubstr("without a (1 to 2 values of several kinds)"));
}

TEST_F(TfrecordTest, ValuesNeedNotBePacked) {
  const std::string x = "{x: {dtype: uint8, shape: [3]}}";
  const std::string ints = Field(3, "\x08\x01\x08\x02" + Field(1, "\x03"));
  EXPECT_EQ(Unpacked(x, Field(1, Entry("x", ints))), "\1\2\3");
  const std::string one("\x0d\0\0\x80\x3f", 5);  // 1.0f, unpacked
  EXPECT_EQ(Unpacked("{x: {dtype: float32, shape: [2]}}",
                     Field(1, Entry("x", Field(2, one + one)))),
            std::string("\0\0\x80\x3f\0\0\x80\x3f", 8));
  EXPECT_EQ(Unpacked("{x: {dtype: bfloat16, shape: [2]}}",
                     Field(1, Entry("x", Field(2, one + one)))),
            std::string("\x80\x3f\x80\x3f", 4));
}

TEST_F(TfrecordTest, TheLastOfSeveralCountsAndUnknownFieldsDoNot) {
  const std::string x = "{x: {dtype: uint8, shape: []}}";
  const auto value = [](const char* byte) { return Field(3, Field(1, byte)); };
  EXPECT_EQ(
      Unpacked(x, Field(1, Entry("x", value("\1")) + Entry("x", value("\2")))),
      "\2");
  EXPECT_EQ(Unpacked(x, Field(1, Entry("x", value("\1"))) +
                            Field(1, Entry("x", value("\2")))),
            "\2");
  EXPECT_EQ(Unpacked(x, Field(7, "junk") + "\x48\x05" +
                            Field(1, Field(9, "") + Entry("x", value("\1")))),
            "\1");
  EXPECT_THAT(Unpacked(x, ""), HasSubstr("does not have it"));
  EXPECT_THAT(Unpacked(x, Field(1, Entry("x", ""))),
              HasSubstr("does not have it"));
}

TEST_F(TfrecordTest, MalformedExamplesAreErrors) {
  const std::string x = "{x: {dtype: uint8, shape: []}}";
  for (const std::string& bad :
       {std::string("\xff"), std::string("\x0a\x7f"), std::string("\x0b"),
        std::string("\x02\x01"), Field(1, "\x0a\x05"),
        Field(1, Field(1, "\x0a\x05")), Field(1, Entry("x", "\x1a\x09")),
        Field(1, Entry("x", Field(3, Field(1, "\xff")))),
        Field(1, Entry("x", Field(2, Field(1, "abc")))),
        Field(1, Entry("x", Field(1, "\x08\x01"))), std::string(11, '\xff')}) {
    EXPECT_THAT(Unpacked(x, bad), HasSubstr("not a tf.train.Example"));
  }
}

TEST_F(TfrecordTest, ASpecSaysWhatItWants) {
  const auto error = [](const std::string& yaml) -> std::string {
    const auto document = ReadYaml(yaml, "f");
    if (!document.ok()) return document.status().message();
    const YamlPlace place = {"f", "/"};
    RecordFeatures features;
    return RecordFeaturesType("key", {"default"})
        .Read(YamlValue(*document, place), &features)
        .message();
  };
  EXPECT_THAT(error("{x: {}}"), HasSubstr("needs one of encoded, dtype, max"));
  EXPECT_THAT(error("{x: {dtype: int8, encoded: true}}"),
              HasSubstr("exclude each other"));
  EXPECT_THAT(error("{x: {dtype: int8}}"), HasSubstr("shape is missing"));
  EXPECT_THAT(error("{x: {encoded: false}}"), HasSubstr("wanted true"));
  EXPECT_THAT(error("{x: {encoded: true, shape: [2]}}"),
              HasSubstr("is only for a dtype"));
  EXPECT_THAT(error("{x: {dtype: uint8, shape: [], default: 256}}"),
              HasSubstr("wanted a number that fits uint8, found '256'"));
  EXPECT_THAT(error("{x: {dtype: uint8, shape: [70000, 70000]}}"),
              HasSubstr("more than"));
  EXPECT_THAT(error("{x: {max_bytes: 1}, x_bytes: {encoded: true}}"),
              HasSubstr("'x_bytes' is the length of 'x'"));
  EXPECT_EQ(error("{x: {dtype: float32, shape: [], default: 0}}"), "");
  EXPECT_EQ(error("{x: {dtype: bool, shape: [], default: 1}}"), "");
}

}  // namespace penstock::tfrecord_test
