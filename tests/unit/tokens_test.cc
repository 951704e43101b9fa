// Promise: source tokens gives each sequence of its files once, with the token
// after each as its target, and no sequence crosses files. Method: files
// written here; tests/python/test_numpy_files.py compares with NumPy's memmap.
#include <gmock/gmock.h>

#include <numeric>

#include "tests/unit/file_source.h"
#include "tests/unit/numpy_file.h"

namespace penstock::tokens_test {

using testing::ElementsAre;
using testing::HasSubstr;

class TokensTest : public FileSourceTest {
 protected:
  template <typename T>
  static std::string Counting(size_t count, T first = 0) {
    std::vector<T> tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    return Bytes(tokens);
  }
};

TEST_F(TokensTest, SequencesAndTheirTargetsStayWithinAFile) {
  const auto source =
      Open(TokensSource{.files = {{Write("a", Counting<uint16_t>(10)),
                                   Write("b", Counting<uint16_t>(4, 65'532))}},
                        .sequence_length = 3});
  ASSERT_EQ(source->record_count(), 4u);
  const std::vector<std::vector<int64_t>> inputs = {
      {0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {65'532, 65'533, 65'534}};
  for (uint64_t i = 0; i < inputs.size(); ++i) {
    const auto record = Record(*source, i);
    EXPECT_EQ(Values<int64_t>(record[0]), inputs[i]);
    std::vector<int64_t> targets = inputs[i];
    for (int64_t& each : targets) ++each;
    EXPECT_EQ(Values<int64_t>(record[1]), targets);
  }
  EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "input int64 [3]");
  EXPECT_EQ(source->raw_spec()[1].feature.ToString(), "target int64 [3]");
  EXPECT_EQ(source->Describe(3), folder_ + "/b, offset 0");
  EXPECT_EQ(source->Describe(2), folder_ + "/a, offset 12");
  EXPECT_EQ(source->memory_bytes(), 0u);
  EXPECT_EQ(source->plain_feature(), std::nullopt);
}

TEST_F(TokensTest, AStrideMayOverlapOrLeaveOut) {
  TokensSource spec{.files = {{Write("a", Counting<uint16_t>(8))}},
                    .sequence_length = 4,
                    .targets = TokensSource::Targets::kNone};
  for (const auto& [stride, records] : std::vector<std::pair<int, uint64_t>>{
           {1, 5}, {2, 3}, {3, 2}, {4, 2}, {5, 1}, {100, 1}}) {
    spec.stride = stride;
    const auto source = Open(spec);
    ASSERT_EQ(source->record_count(), records) << stride;
    EXPECT_EQ(Values<int64_t>(Record(*source, records - 1)[0])[0],
              stride * static_cast<int64_t>(records - 1));
  }
}

TEST_F(TokensTest, TokensOfTheOutputsDTypeAreReadInPlace) {
  TokensSource spec{.files = {{Write("a", Counting<int32_t>(8, -4))}},
                    .dtype = TokensSource::Stored::kInt32,
                    .sequence_length = 4,
                    .targets = TokensSource::Targets::kNone,
                    .output_dtype = DType::kInt32};
  const auto source = Open(spec);
  EXPECT_EQ(source->plain_feature(), 0u);
  EXPECT_THAT(Values<int32_t>(Record(*source, 0)[0]),
              ElementsAre(-4, -3, -2, -1));
  spec.targets = TokensSource::Targets::kShifted;
  const auto shifted = Open(spec);
  EXPECT_EQ(shifted->plain_feature(), std::nullopt);
  EXPECT_EQ(shifted->record_count(), 1u);
  EXPECT_THAT(Values<int32_t>(Record(*shifted, 0)[1]),
              ElementsAre(-3, -2, -1, 0));
}

TEST_F(TokensTest, ATokenThatDoesNotFitIsNamed) {
  TokensSource spec{
      .files = {{Write("a", Bytes<uint32_t>({1, 2, 1u << 31, 4}))}},
      .dtype = TokensSource::Stored::kUint32,
      .sequence_length = 2,
      .targets = TokensSource::Targets::kNone,
      .output_dtype = DType::kInt32};
  const auto source = Open(spec);
  EXPECT_THAT(Values<int32_t>(Record(*source, 0)[0]), ElementsAre(1, 2));
  EXPECT_EQ(ReadFails(*source, 1),
            folder_ +
                "/a, offset 8: token 0 of the sequence does not fit into "
                "int32; use `output_dtype: int64`");
  spec.files = {{Write("b", Bytes<int64_t>({-1, -(int64_t{1} << 31) - 1}))}};
  spec.dtype = TokensSource::Stored::kInt64;
  EXPECT_THAT(ReadFails(*Open(spec), 0), HasSubstr("token 1 of the sequence"));
}

TEST_F(TokensTest, ANpyFileSaysItsDType) {
  const std::string npy =
      NpyOf(NpyHeaderText("<u4", "(5,)"), Counting<uint32_t>(5));
  // By its first bytes, whatever its name.
  TokensSource spec{.files = {{Write("a.npy", npy), Write("b.bin", npy)}},
                    .header_bytes = 2,
                    .sequence_length = 4};
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 2u);
  EXPECT_THAT(Values<int64_t>(Record(*source, 1)[1]), ElementsAre(1, 2, 3, 4));
  spec.dtype = TokensSource::Stored::kUint16;
  EXPECT_EQ(OpenFails(spec, StatusCode::kInvalidArgument),
            folder_ + "/a.npy: `dtype: uint16`, but it says uint32");
  spec.dtype.reset();
  spec.files.patterns.push_back(Write("c", Counting<uint16_t>(9)));
  EXPECT_EQ(OpenFails(spec, StatusCode::kInvalidArgument),
            folder_ + "/a.npy has tokens of uint32, but " + folder_ +
                "/c of uint16; make a dataset of each");
  spec.files = {{Write(
      "d.npy", NpyOf(NpyHeaderText("<u4", "(1, 5)"), Counting<uint32_t>(5)))}};
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("wanted one of uint16, uint32, int32, int64, of one "
                        "dimension, found uint32 [1, 5]"));
  spec.files = {{Write(
      "e.npy", NpyOf(NpyHeaderText("<f4", "(5,)"), std::string(20, 0)))}};
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("found float32 [5]"));
  spec.files = {{Write("f.npy", "123456789")}};
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("f.npy: not in NumPy's format"));
}

TEST_F(TokensTest, AFileOfLlmcSaysItsDTypeAndCount) {
  const auto shard = [](uint32_t magic, uint32_t version, uint32_t count,
                        const std::string& tokens) {
    std::vector<uint32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    return Bytes(header) + tokens;
  };
  TokensSource spec{
      .files = {{Write("a.bin", shard(20240520, 1, 9, Counting<uint16_t>(9)))}},
      .sequence_length = 4};
  EXPECT_THAT(Values<int64_t>(Record(*Open(spec), 1)[1]),
              ElementsAre(5, 6, 7, 8));
  spec.files = {{Write("b.bin", shard(20240801, 7, 9, Counting<uint32_t>(9)))}};
  EXPECT_THAT(Values<int64_t>(Record(*Open(spec), 1)[1]),
              ElementsAre(5, 6, 7, 8));
  spec.dtype = TokensSource::Stored::kUint16;
  EXPECT_EQ(OpenFails(spec, StatusCode::kInvalidArgument),
            folder_ +
                "/b.bin: `dtype: uint16`, but its header (magic 20240801) says "
                "uint32");
  spec.dtype.reset();
  spec.files = {{Write("c.bin", shard(20240520, 1, 9, Counting<uint16_t>(8)))}};
  EXPECT_EQ(OpenFails(spec, StatusCode::kDataLoss),
            folder_ +
                "/c.bin: 9 tokens (uint16) by its header (magic 20240520), but "
                "16 bytes follow; it was cut off: copy it again");
  // Another version may mean anything: tokens.
  spec.files = {{Write("d.bin", shard(20240520, 2, 9, ""))}};
  EXPECT_EQ(Open(spec)->record_count(), 127u);
}

TEST_F(TokensTest, ANpyFileWithoutAHeaderIsRawWhereItsDTypeIsGiven) {
  TokensSource spec{.files = {{Write("olmo.npy", Counting<uint32_t>(9))}},
                    .dtype = TokensSource::Stored::kUint32,
                    .sequence_length = 4};
  EXPECT_THAT(Values<int64_t>(Record(*Open(spec), 1)[1]),
              ElementsAre(5, 6, 7, 8));
}

TEST_F(TokensTest, DocumentsLieBetweenTheirToken) {
  TokensSource spec{
      .files = {{Write("a", Bytes<uint16_t>({1, 2, 9, 9, 3, 9})),
                 Write("b", Bytes<uint16_t>({4, 9, 5})), Write("c", "")}},
      .documents = TokenDocuments{.end = 9}};
  const auto rows = [&] {
    const auto source = Open(spec);
    std::vector<std::vector<int64_t>> rows;
    const Columns columns = source->columns(0);
    for (uint64_t i = 0; i < source->record_count(); ++i) {
      const auto record = Record(*source, i);
      rows.push_back(Values<int64_t>(record[0]));
      const int64_t length = Values<int64_t>(record[1])[0];
      for (size_t k = static_cast<size_t>(length); k < rows.back().size();
           ++k) {
        EXPECT_EQ(rows.back()[k], 0);
      }
      rows.back().resize(static_cast<size_t>(length));
      EXPECT_EQ(columns[1].value(i), ColumnValue(2 * length));
      EXPECT_EQ(columns[2].name, "tokens.length");
      EXPECT_EQ(columns[2].value(i), ColumnValue(length));
    }
    return rows;
  };
  using Rows = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(rows(), (Rows{{1, 2, 9}, {9}, {3, 9}, {4, 9}, {5}}));
  const auto source = Open(spec);
  EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "tokens int64 [3]");
  EXPECT_EQ(source->Describe(4), folder_ + "/b, document 1 (offset 4)");
  EXPECT_GE(source->memory_bytes(), 5 * 12u);
  spec.documents = TokenDocuments{.begin = 9};
  EXPECT_EQ(rows(), (Rows{{1, 2}, {9}, {9, 3}, {9}, {4}, {9, 5}}));
  EXPECT_NE(Open(spec)->fingerprint(), source->fingerprint());
  // Room, as the parts of a mix need it alike.
  spec.documents->max_length = 7;
  EXPECT_EQ(Open(spec)->raw_spec()[0].feature.ToString(), "tokens int64 [7]");
  EXPECT_EQ(rows(), (Rows{{1, 2}, {9}, {9, 3}, {9}, {4}, {9, 5}}));
  spec.documents = TokenDocuments{.begin = 1};
  EXPECT_EQ(rows(), (Rows{{1, 2, 9, 9, 3, 9}, {4, 9, 5}}));
}

TEST_F(TokensTest, DocumentsOfEveryForm) {
  // Behind a header, in blocks of the scan, one of which begins in a document.
  std::vector<uint32_t> header(256);
  header[0] = 20240801;
  header[1] = 7;
  header[2] = 600'000;
  std::vector<uint32_t> tokens(600'000, 70'000);
  tokens[0] = tokens[7] = tokens[262'144] = tokens[599'999] = 100'257;
  TokensSource spec{.files = {{Write("a.bin", Bytes(header) + Bytes(tokens))}},
                    .output_dtype = DType::kInt32,
                    .documents = TokenDocuments{.begin = 100'257}};
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 4u);
  EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "tokens int32 [337855]");
  const std::vector<int64_t> lengths = {7, 262'137, 337'855, 1};
  for (uint64_t i = 0; i < lengths.size(); ++i) {
    const auto record = Record(*source, i);
    EXPECT_EQ(Values<int64_t>(record[1])[0], lengths[i]);
    EXPECT_EQ(Values<int32_t>(record[0])[0], 100'257);
    EXPECT_EQ(Values<int32_t>(record[0])[1], lengths[i] > 1 ? 70'000 : 0);
  }
  const std::string npy =
      NpyOf(NpyHeaderText("<i8", "(5,)"),
            Bytes<int64_t>({1, 2, -3, int64_t{1} << 40, 2}));
  spec.files = {{Write("b.npy", npy)}};
  spec.documents = TokenDocuments{.end = 2};
  const auto wide = Open(spec);
  EXPECT_THAT(Values<int32_t>(Record(*wide, 0)[0]), ElementsAre(1, 2, 0));
  EXPECT_THAT(ReadFails(*wide, 1),
              HasSubstr("/b.npy, document 1 (offset 84): token 1 of the "
                        "document does not fit into int32"));
}

TEST_F(TokensTest, DocumentsThatCannotBeAreRefused) {
  TokensSource spec{.files = {{Write("a", Counting<uint16_t>(10))}},
                    .documents = TokenDocuments{.end = 65'536}};
  EXPECT_EQ(OpenFails(spec, StatusCode::kInvalidArgument),
            "`documents: {end: 65536}` is no token of uint16, as " + folder_ +
                "/a has");
  spec.documents = TokenDocuments{.begin = int64_t{1} << 31};
  spec.dtype = TokensSource::Stored::kInt32;
  spec.files = {{Write("b", Counting<int32_t>(10))}};
  EXPECT_THAT(
      OpenFails(spec, StatusCode::kInvalidArgument),
      HasSubstr("`documents: {begin: 2147483648}` is no token of int32"));
  const std::string path = Write("sparse", "");
  std::filesystem::resize_file(path, uint64_t{1} << 27);
  spec = {.files = {{path}}, .documents = TokenDocuments{.end = 50'256}};
  EXPECT_EQ(OpenFails(spec, StatusCode::kInvalidArgument),
            path +
                ", document 0 has 67108864 tokens; at most 33554431: is it "
                "the token of `documents: {end: 50256}` that is between "
                "documents?");
  spec.documents->max_length = 7;
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("at most 7 by max_length: is it"));
  spec.files = {{Write("empty", "")}};
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("/empty"));
}

TEST_F(TokensTest, WhatDoesNotFitIsSaidWithNumbers) {
  TokensSource spec{.files = {{Write("long", Counting<uint16_t>(99)),
                               Write("short", Counting<uint16_t>(4))}},
                    .sequence_length = 4};
  EXPECT_EQ(OpenFails(spec, StatusCode::kInvalidArgument),
            folder_ +
                "/short has 4 tokens, fewer than a sequence (5, the last "
                "target included); leave it out, or join short files");
  spec.files = {{Write("empty", "")}};
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("/empty has 0 tokens"));
  spec.files = {{Write("odd", "12345")}};
  EXPECT_EQ(OpenFails(spec, StatusCode::kDataLoss),
            folder_ +
                "/odd has 5 bytes, of which 1 are left over: a token (uint16) "
                "has 2: is the file cut off, is `dtype` another, or has it a "
                "head (`header_bytes`)?");
  spec.files = {{folder_ + "/missing"}};
  EXPECT_THAT(OpenFails(spec, StatusCode::kNotFound), HasSubstr("/missing"));
  spec.files = {{Write("header", "12345678")}};
  spec.header_bytes = 9;
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("0 tokens"));
}

TEST_F(TokensTest, AFileOfManyGigabytesTakesNoMemoryAndIsRead) {
  const std::string path = Write("sparse", "");
  const uint64_t bytes = uint64_t{10} << 30;
  std::filesystem::resize_file(path, bytes);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(bytes - 4));
    file << Bytes<uint16_t>({7, 8});
  }
  const auto source =
      Open(TokensSource{.files = {{path}}, .sequence_length = 1, .stride = 1});
  ASSERT_EQ(source->record_count(), bytes / 2 - 1);
  const auto record = Record(*source, source->record_count() - 1);
  EXPECT_THAT(Values<int64_t>(record[0]), ElementsAre(7));
  EXPECT_THAT(Values<int64_t>(record[1]), ElementsAre(8));
  // What is cut or deleted afterwards is an error of the sample, or read still.
  std::filesystem::resize_file(path, bytes / 2);
  EXPECT_TRUE(source->Changed());
  ReadFails(*source, source->record_count() - 1);
  Record(*source, 0);
  std::filesystem::remove(path);
  Record(*source, 0);
}

}  // namespace penstock::tokens_test
