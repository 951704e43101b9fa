// Promise: source mds gives the values of every encoding as they were written,
// from the bytes of a shard alone; what is missing, damaged or of another kind
// is told with the file and the way out. Method: shards made here.
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

namespace penstock::mds_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

template <typename... T>
std::string Bytes(T... values) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&values), sizeof(values)), ...);
  return bytes;
}

struct TestColumn {
  std::string name;
  std::string encoding;
  std::optional<uint64_t> bytes;
  std::vector<std::string> values;  // of the samples
};
using TestColumns = std::vector<TestColumn>;

std::string ShardOf(const TestColumns& columns) {
  const size_t samples = columns[0].values.size();
  const std::string config = "{\"format\": \"mds\"}";
  std::string offsets, data;
  const size_t head = 4 * (samples + 2) + config.size();
  for (size_t i = 0; i < samples; ++i) {
    offsets += Bytes(static_cast<uint32_t>(head + data.size()));
    for (const TestColumn& each : columns) {
      if (!each.bytes) {
        data += Bytes(static_cast<uint32_t>(each.values[i].size()));
      }
    }
    for (const TestColumn& each : columns) data += each.values[i];
  }
  offsets += Bytes(static_cast<uint32_t>(head + data.size()));
  return Bytes(static_cast<uint32_t>(samples)) + offsets + config + data;
}

std::string ShardJson(const TestColumns& columns, const std::string& name,
                      uint64_t bytes, const std::string& more = "") {
  std::string names, encodings, sizes;
  for (const TestColumn& each : columns) {
    const std::string comma = names.empty() ? "" : ", ";
    names += comma + '"' + each.name + '"';
    encodings += comma + '"' + each.encoding + '"';
    sizes += comma + (each.bytes ? Format("{}", *each.bytes) : "null");
  }
  return Format(
      "{{\"version\": 2, \"format\": \"mds\", \"samples\": {}, "
      "\"column_names\": [{}], \"column_encodings\": [{}], \"column_sizes\": "
      "[{}]{}, \"raw_data\": {{\"basename\": \"{}\", \"bytes\": {}, "
      "\"hashes\": {{\"sha1\": \"a\", \"xxh64\": \"ef46db3751d8e999\"}}}}}}",
      columns[0].values.size(), names, encodings, sizes, more, name, bytes);
}

TestColumn Texts(std::vector<std::string> values = {"a", "", "ccc"}) {
  return {"text", "str", std::nullopt, std::move(values)};
}
TestColumn Numbers() {
  return {"n",
          "int",
          8,
          {Bytes(int64_t{-5}), Bytes(int64_t{6}), Bytes(int64_t{7})}};
}

template <typename T>
std::vector<T> ValuesOf(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

class MdsTest : public testing::Test {
 protected:
  MdsTest() {
    std::string pattern = testing::TempDir() + "penstock-mds-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    setenv("PENSTOCK_CACHE_DIR", (folder_ + "/cache").c_str(), 1);
  }
  ~MdsTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }
  void WriteIndex(const std::string& shards) {
    Write("index.json", "{\"version\": 2, \"shards\": [" + shards + "]}");
  }
  // One shard.
  void Write(const TestColumns& columns) { Write(columns, ShardOf(columns)); }
  void Write(const TestColumns& columns, const std::string& shard) {
    Write("shard.00000.mds", shard);
    WriteIndex(ShardJson(columns, "shard.00000.mds", shard.size()));
  }

  StatusOr<std::unique_ptr<Source>> Open(const std::string& features = "",
                                         bool verify = false) {
    MdsSource spec;
    spec.path = folder_;
    spec.verify = verify;
    if (!features.empty()) {
      const auto document = ReadYaml(features, "f");
      EXPECT_TRUE(document.ok()) << document.status().message();
      const YamlPlace place = {"f", "/"};
      const Status status =
          RecordFeaturesType("column", {"item"}, true)
              .Read(YamlValue(*document, place), &spec.features);
      if (!status.ok()) return status;
    }
    return OpenSource(spec, nullptr);
  }
  std::string OpenFails(const std::string& features = "") {
    return Open(features).status().message();
  }

  // The features of a record, or its error alone.
  static std::vector<std::string> Read(const Source& source, uint64_t record) {
    ReadRequest request;
    source.Locate(record, &request);
    EXPECT_EQ(request.kind, ReadRequest::Kind::kRange);
    auto reader = MakeStorageReader(ReadBackend::kPread, 1);
    (*reader)->Start(0, request, {}, kNotPinned);
    StorageReader::Done done;
    EXPECT_TRUE((*reader)->Next(kWaitForever, &done));
    if (!done.status.ok()) return {done.status.message()};
    std::vector<std::byte> scratch;
    RawRecord raw;
    const Status status = source.Unpack(record, done.read(), &scratch, &raw);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      return {status.message()};
    }
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
  // The error of sample 0 of one column.
  std::string ErrorOf(const std::string& encoding, const std::string& value,
                      const std::string& feature) {
    Write(TestColumns{{"x", encoding, std::nullopt, {value}}});
    const auto source = Open("{x: {" + feature + "}}");
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? Read(**source, 0)[0] : "";
  }

  std::string folder_;
};

TEST_F(MdsTest, EveryColumnOfKnownSizeNeedsNoFeatures) {
  Write({{"a8", "uint8", 1, {"\x07"}},
         {"b16", "uint16", 2, {Bytes(uint16_t{65535})}},
         {"c32", "uint32", 4, {Bytes(uint32_t{4294967295})}},
         {"d64", "uint64", 8, {Bytes(uint64_t{5})}},
         {"e16", "float16", 2, {Bytes(uint16_t{0x3c00})}},
         {"f64", "float64", 8, {Bytes(0.25)}},
         {"g", "int", 8, {Bytes(int64_t{-9})}},
         {"h", "str_int", std::nullopt, {"-12"}},
         {"i", "str_float", std::nullopt, {"1e-05"}},
         {"j", "ndarray:int16:2,2", 8, {Bytes(int64_t{0x4000300020001})}},
         {"k",
          "ndarray:uint16:3",
          6,
          {Bytes(uint16_t{1}, uint16_t{40000}, uint16_t{2})}},
         {"l", "png", std::nullopt, {"picture"}}});
  const auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status().message();
  const RawSpec& spec = (*source)->raw_spec();
  ASSERT_EQ(spec.size(), 12u);
  EXPECT_EQ(spec[1].feature.ToString(), "b16 int32 []");
  EXPECT_EQ(spec[3].feature.ToString(), "d64 int64 []");
  EXPECT_EQ(spec[9].feature.ToString(), "j int16 [2, 2]");
  EXPECT_TRUE(spec[11].encoded);
  const auto found = Read(**source, 0);
  ASSERT_EQ(found.size(), 12u) << found[0];
  EXPECT_EQ(found[0], "\x07");
  EXPECT_THAT(ValuesOf<int32_t>(found[1]), ElementsAre(65535));
  EXPECT_THAT(ValuesOf<int64_t>(found[2]), ElementsAre(4294967295));
  EXPECT_THAT(ValuesOf<int64_t>(found[3]), ElementsAre(5));
  EXPECT_THAT(ValuesOf<uint16_t>(found[4]), ElementsAre(0x3c00));
  EXPECT_THAT(ValuesOf<double>(found[5]), ElementsAre(0.25));
  EXPECT_THAT(ValuesOf<int64_t>(found[6]), ElementsAre(-9));
  EXPECT_THAT(ValuesOf<int64_t>(found[7]), ElementsAre(-12));
  EXPECT_THAT(ValuesOf<double>(found[8]), ElementsAre(1e-05));
  EXPECT_THAT(ValuesOf<int16_t>(found[9]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ValuesOf<int32_t>(found[10]), ElementsAre(1, 40000, 2));
  EXPECT_EQ(found[11], "picture");
}

// The three ways to store [[1, 2]] of uint16.
TEST_F(MdsTest, ValuesOfAnySizeAreListsAndTexts) {
  const std::string two = Bytes(uint16_t{1}, uint16_t{50000});
  const std::string shape = {'\x04', '\x02'};  // one dimension, of a byte
  const std::string pictures =
      Bytes(uint32_t{2}, uint32_t{3}, uint32_t{1}) + "abcd";
  Write({{"any", "ndarray", std::nullopt, {'\x10' + shape + two}},
         {"fixed",
          "ndarray:uint16",
          std::nullopt,
          {std::string({'\x08', '\x01', '\x02'}) + two}},
         {"json", "json", std::nullopt, {"{\"a\": 1}"}},
         {"list", "list[png]", std::nullopt, {Bytes(uint32_t{0}) + pictures}},
         {"pictures", "jpeg_array", std::nullopt, {pictures}},
         {"pickled", "pkl", std::nullopt, {"x"}},
         {"raw", "bytes", std::nullopt, {two}},
         {"text", "str", std::nullopt, {"h\xc3\xa9"}}});
  const auto source = Open(
      "{any: {dtype: int32, max_length: 3}, fixed: {dtype: int64, shape: [1, "
      "2]}, json: {max_bytes: 9}, second: {column: pictures, item: 1}, "
      "listed: {column: list, item: 0}, raw: {dtype: int16, max_length: 3}, "
      "text: {max_bytes: 2, longer: cut}, values: {column: any, dtype: "
      "float32, shape: [2]}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto found = Read(**source, 0);
  ASSERT_EQ(found.size(), 12u) << found[0];
  EXPECT_THAT(ValuesOf<int32_t>(found[0]), ElementsAre(1, 50000, 0));
  EXPECT_THAT(ValuesOf<int64_t>(found[1]), ElementsAre(2));
  EXPECT_THAT(ValuesOf<int64_t>(found[2]), ElementsAre(1, 50000));
  EXPECT_EQ(found[3], std::string("{\"a\": 1}\0", 9));
  EXPECT_EQ(found[5], "d");
  EXPECT_EQ(found[6], "abc");
  EXPECT_THAT(ValuesOf<int16_t>(found[7]), ElementsAre(1, -15536, 0));
  EXPECT_EQ(found[9], std::string("h\0", 2));
  EXPECT_THAT(ValuesOf<float>(found[11]), ElementsAre(1, 50000));
  EXPECT_THAT(
      OpenFails(),
      AllOf(
          HasSubstr("(ndarray) has values of any size"),
          HasSubstr("by 1 sample: features: {any: {dtype: int32, shape: [2]}, "
                    "fixed: {dtype: int32, shape: [1, 2]}, json: {max_bytes: "
                    "64}, list.0: {column: \"list\", item: 0}, list.1: "),
          HasSubstr("not column 'pickled' (pkl): to unpickle it would run")));
  EXPECT_THAT(OpenFails("{pickled: {max_bytes: 3}}"),
              HasSubstr("write it as ndarray, json or bytes"));
  EXPECT_THAT(OpenFails("{pictures: {encoded: true}}"),
              HasSubstr("`item: 0` is the first"));
}

TEST_F(MdsTest, OfColumnsOfOneSizeOnlyThoseWantedAreRead) {
  Write({{"a", "int", 8, {Bytes(int64_t{1})}},
         {"b", "ndarray:float32:2", 8, {Bytes(1.5f, 2.5f)}},
         {"c", "int32", 4, {Bytes(3)}}});
  auto source = Open("{b: {}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->plain_feature(), 0u);
  ReadRequest request;
  (*source)->Locate(0, &request);
  EXPECT_EQ(request.bytes, 8u);
  EXPECT_EQ(Read(**source, 0)[0], Bytes(1.5f, 2.5f));
  source = Open("{c: {}, b: {dtype: float64, shape: [2]}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->plain_feature(), std::nullopt);
  const auto found = Read(**source, 0);
  EXPECT_THAT(ValuesOf<int32_t>(found[0]), ElementsAre(3));
  EXPECT_THAT(ValuesOf<double>(found[1]), ElementsAre(1.5, 2.5));
}

TEST_F(MdsTest, ShardsFollowOneAnotherAndTheIndexTellsOfChanges) {
  const TestColumns columns = {Numbers(), Texts()};
  const std::string shard = ShardOf(columns);
  std::filesystem::create_directories(folder_ + "/sub");
  Write("a.mds", shard);
  Write("sub/b.mds", shard);
  const std::string index = ShardJson(columns, "a.mds", shard.size()) + "," +
                            ShardJson(columns, "sub/b.mds", shard.size());
  WriteIndex(index);
  const auto source = Open("{text: {max_bytes: 4}, n: {}}");
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_EQ((*source)->record_count(), 6u);
  EXPECT_THAT((*source)->Describe(4),
              StartsWith(folder_ + "/sub/b.mds, sample 1 at offset "));
  EXPECT_THAT(ValuesOf<int64_t>(Read(**source, 5)[2]), ElementsAre(7));
  const Columns known = (*source)->columns(0);
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(std::get<std::string>(known[0].value(3)), folder_ + "/sub/b.mds");
  EXPECT_EQ(std::get<int64_t>(known[1].value(2)), 15);
  EXPECT_FALSE((*source)->Changed());
  WriteIndex(index + " ");
  EXPECT_TRUE((*source)->Changed());
}

TEST_F(MdsTest, AnIndexThatIsNoneIsTold) {
  EXPECT_THAT(OpenFails(), HasSubstr("index.json"));
  const TestColumns columns = {Texts()};
  const std::string shard = ShardOf(columns);
  const std::string json = ShardJson(columns, "a.mds", shard.size());
  Write("a.mds", shard);
  Write("index.json", "{\"version\": 2,");
  EXPECT_THAT(OpenFails(), HasSubstr("index.json: not JSON: "));
  Write("index.json", "[2]");
  EXPECT_THAT(OpenFails(), HasSubstr("no `version`"));
  Write("index.json", "{\"version\": 3, \"shards\": []}");
  EXPECT_THAT(OpenFails(), HasSubstr("version 3 of the format; version 2"));
  WriteIndex("");
  EXPECT_THAT(OpenFails(), HasSubstr("no sample in its 0 shards"));
  const auto with = [&](const std::string& old, const std::string& now) {
    std::string changed = json;
    changed.replace(changed.find(old), old.size(), now);
    WriteIndex(changed);
    return OpenFails();
  };
  EXPECT_THAT(with("\"mds\"", "\"csv\""), HasSubstr("its format is csv"));
  EXPECT_THAT(with("\"a.mds\"", "\"../a.mds\""),
              HasSubstr("no path within the folder"));
  EXPECT_THAT(with("\"a.mds\"", "\"/a.mds\""),
              HasSubstr("no path within the folder"));
  EXPECT_THAT(with("\"a.mds\"", "\"b*.mds\""),
              HasSubstr("b*.mds is not there, which index.json names as shard "
                        "0"));
  EXPECT_THAT(with("[null]", "[null, 4]"), HasSubstr("as many of each"));
  EXPECT_THAT(with("[null]", "[-1]"), HasSubstr("a number of bytes or null"));
  EXPECT_THAT(with("\"str\"", "\"int\""),
              HasSubstr("its column_sizes say null; a value has 8 bytes"));
  EXPECT_THAT(with("\"str\"", "\"ndarray:int8:0\""),
              HasSubstr("wanted ndarray, ndarray:DTYPE or"));
  EXPECT_THAT(with("\"samples\": 3", "\"samples\": 4"),
              HasSubstr("a.mds has 3 samples, by index.json 4"));
  EXPECT_THAT(with("\"samples\": 3", "\"samples\": -3"),
              HasSubstr("`samples` is -3"));
  EXPECT_THAT(with("\"bytes\": ", "\"bytes\": 1"),
              HasSubstr(Format("a.mds has {} bytes, by index.json 1{}",
                               shard.size(), shard.size())));
  TestColumns others = columns;
  others[0].encoding = "bytes";
  WriteIndex(json + "," + ShardJson(others, "a.mds", shard.size()));
  EXPECT_THAT(OpenFails(),
              HasSubstr("index.json, shard 1: column 'text' (bytes) is its "
                        "column 0, where shard 0 has column 'text' (str)"));
}

TEST_F(MdsTest, ACompressedShardIsReadBesideItsFileOrRefused) {
  const TestColumns columns = {Texts()};
  const std::string shard = ShardOf(columns);
  WriteIndex(ShardJson(columns, "a.mds", shard.size(),
                       ", \"compression\": \"br:7\", \"zip_data\": "
                       "{\"basename\": \"a.mds.br\", \"bytes\": 9}"));
  EXPECT_THAT(OpenFails("{text: {max_bytes: 3}}"),
              HasSubstr("a.mds is not there"));
  Write("a.mds.br", "compressed");
  EXPECT_THAT(
      OpenFails("{text: {max_bytes: 3}}"),
      HasSubstr(Format("{0}/a.mds.br is compressed as a whole (br), so no "
                       "sample of it can be read by itself; unpack it and all "
                       "other shards: brotli -d {0}/a.mds.br -o {0}/a.mds",
                       folder_)));
  Write("a.mds", shard);
  EXPECT_EQ(OpenFails("{text: {max_bytes: 3}}"), "");
}

TEST_F(MdsTest, AShardThatLiesIsTold) {
  const TestColumns columns = {Texts()};
  const std::string shard = ShardOf(columns);
  const auto with = [&](size_t word, uint32_t value) {
    std::string changed = shard;
    changed.replace(4 * word, 4, Bytes(value));
    Write(columns, changed);
    return OpenFails("{text: {max_bytes: 3}}");
  };
  EXPECT_THAT(with(0, 0x80000000),
              HasSubstr("it says that it has 2147483648 samples"));
  EXPECT_THAT(with(0, 0xffffffff), HasSubstr("4294967295 samples"));
  EXPECT_THAT(with(0, 2), HasSubstr("has 2 samples, by index.json 3"));
  EXPECT_THAT(with(1, 19), HasSubstr("sample 0 begins at 19, within the "
                                     "offsets"));
  EXPECT_THAT(with(3, 21), HasSubstr("sample 1 begins at "));
  EXPECT_THAT(with(4, 0x80000000), HasSubstr("ends at 2147483648"));
  Write(columns, "abc");
  EXPECT_THAT(OpenFails("{text: {max_bytes: 3}}"), HasSubstr("3 bytes"));
  const TestColumns fixed = {Numbers()};
  std::string changed = ShardOf(fixed);
  changed.replace(8, 4, Bytes(ValuesOf<uint32_t>(changed.substr(8, 4))[0] + 1));
  Write(fixed, changed);
  EXPECT_THAT(OpenFails(), HasSubstr("9 bytes; its columns have 8"));
}

TEST_F(MdsTest, ASampleThatLiesIsAnErrorOfItself) {
  const TestColumns columns = {Texts()};
  std::string shard = ShardOf(columns);
  const uint32_t first = ValuesOf<uint32_t>(shard.substr(4, 4))[0];
  for (const uint32_t lie : {2u, 0x80000000u, 0xffffffffu}) {
    shard.replace(first, 4, Bytes(lie));
    Write(columns, shard);
    const auto source = Open("{text: {max_bytes: 3}}");
    ASSERT_TRUE(source.ok()) << source.status().message();
    EXPECT_THAT(
        Read(**source, 0)[0],
        AllOf(HasSubstr("shard.00000.mds, sample 0 at offset "),
              HasSubstr(Format("{} bytes by its size; 1 are left", lie))));
    EXPECT_EQ(Read(**source, 2)[0], "ccc");
  }
  shard.replace(first, 4, Bytes(0));
  Write(columns, shard);
  EXPECT_THAT(Read(**Open("{text: {max_bytes: 3}}"), 0)[0],
              HasSubstr("5 bytes; its columns have 4 by their sizes"));
  const std::string values = "dtype: int32, max_length: 4";
  const std::string head = {'\x21', '\x04'};  // int32, one dimension
  EXPECT_THAT(ErrorOf("ndarray", "", values), HasSubstr("an empty value"));
  EXPECT_THAT(ErrorOf("ndarray", "\x01", values),
              HasSubstr("1 is the number of no dtype"));
  EXPECT_THAT(ErrorOf("ndarray", "\x21", values),
              HasSubstr("ends before its shape"));
  EXPECT_THAT(ErrorOf("ndarray", "\x21\xff", values),
              HasSubstr("an array of 63 dimensions"));
  EXPECT_THAT(ErrorOf("ndarray", head, values),
              HasSubstr("ends within its shape"));
  EXPECT_THAT(ErrorOf("ndarray", "\x21\x07" + Bytes(~uint64_t{0}), values),
              HasSubstr("0 bytes of values"));
  EXPECT_THAT(ErrorOf("ndarray", head + '\x01' + "abc", values),
              HasSubstr("3 bytes of values; int32 [1] wants 4"));
  EXPECT_THAT(ErrorOf("ndarray", "\x22\x04\x01" + Bytes(1.0f), values),
              HasSubstr("wanted int32, found float32"));
  EXPECT_THAT(
      ErrorOf("ndarray", head + '\x05' + std::string(20, '\1'), values),
      HasSubstr("a list of 5; at most 4 fit (max_length, or `longer: cut`)"));
  EXPECT_THAT(ErrorOf("ndarray", head + '\x01' + Bytes(300),
                      "dtype: uint8, max_length: 4"),
              HasSubstr("the value 300 does not fit uint8"));
  EXPECT_THAT(ErrorOf("jpeg_array", Bytes(uint32_t{0xffffffff}), "item: 0"),
              HasSubstr("ends within the sizes of 4294967295 pictures"));
  EXPECT_THAT(
      ErrorOf("jpeg_array", Bytes(uint32_t{1}, uint32_t{9}) + "a", "item: 0"),
      HasSubstr("have 1 bytes; by their sizes 9"));
  EXPECT_THAT(ErrorOf("jpeg_array", Bytes(uint32_t{0}), "item: 0"),
              HasSubstr("picture 0 of 0"));
  EXPECT_THAT(ErrorOf("str_int", "99999999999999999999", ""),
              HasSubstr("wanted a number that fits int64"));
  EXPECT_THAT(ErrorOf("str", "a\xff", "max_bytes: 4"),
              HasSubstr("byte 1 of it is not UTF-8"));
  EXPECT_THAT(ErrorOf("bytes", "abc", "dtype: int16, shape: [2]"),
              HasSubstr("wanted 4 bytes of x int16 [2], found 3"));
  Write({{"x", "uint64", 8, {Bytes(~uint64_t{0})}}});
  EXPECT_THAT(Read(**Open(), 0)[0],
              HasSubstr("the value 18446744073709551615 does not fit int64"));
}

TEST_F(MdsTest, AFeatureThatNoSampleHasIsRefused) {
  Write({Numbers(), Texts()});
  EXPECT_THAT(OpenFails("{m: {}}"),
              HasSubstr("feature 'm': no column 'm'; there are n, text"));
  EXPECT_THAT(OpenFails("{n: {max_bytes: 8}}"), HasSubstr("it has numbers"));
  EXPECT_THAT(OpenFails("{n: {dtype: int64, shape: [1]}}"),
              HasSubstr("wanted n int64 [1], found int64 []"));
  EXPECT_THAT(OpenFails("{n: {encoded: true}}"), HasSubstr("no pictures"));
  EXPECT_THAT(OpenFails("{n: {item: 0}}"), HasSubstr("several pictures"));
  EXPECT_THAT(OpenFails("{n: {max_length: 3}}"),
              HasSubstr("is only for a dtype"));
  EXPECT_THAT(OpenFails("{text: {dtype: int8, shape: []}}"),
              HasSubstr("it has text: `max_bytes`"));
  EXPECT_THAT(OpenFails("{text: {}}"),
              HasSubstr("features: {n: {}, text: {max_bytes: 64}}"));
  Write({{"x", "ndarray:float64:2", 16, {std::string(16, '\0')}}});
  EXPECT_THAT(OpenFails("{x: {dtype: int64, shape: [2]}}"),
              HasSubstr("wanted int64, found float64"));
}

TEST_F(MdsTest, HashesAreComparedOnRequest) {
  const TestColumns columns = {Texts()};
  Write(columns);
  EXPECT_EQ(OpenFails("{text: {max_bytes: 3}}"), "");
  EXPECT_THAT(Open("{text: {max_bytes: 3}}", true).status().message(),
              HasSubstr("by index.json ef46db3751d8e999; the file is damaged"));
  const std::string shard = ShardOf(columns);
  std::string json = ShardJson(columns, "shard.00000.mds", shard.size());
  json.replace(json.find("xxh64"), 5, "md5");
  WriteIndex(json);
  EXPECT_THAT(Open("{text: {max_bytes: 3}}", true).status().message(),
              HasSubstr("index.json has sha1, md5: leave `verify` out"));
}

}  // namespace penstock::mds_test
