// Promise: source megatron gives the tokens of the documents that an index
// names, in the file's order and in Megatron's, and nothing that lies outside
// the files; an index that is damaged, or lies, is named with the field.
// Method: files written here; numbers of numpy.random.RandomState and of
// megatron-core 0.16.1. tests/python/test_megatron.py has the rules of orders
// and blends.
#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>
#include <set>

#include "broker/declare/declaration.h"
#include "broker/source/megatron_samples.h"
#include "tests/unit/file_source.h"

namespace penstock::megatron_test {

using testing::ElementsAre;
using testing::HasSubstr;

// An index as it is, or with what is wrong in it.
struct Idx {
  std::vector<int32_t> lengths;
  std::vector<int64_t> places;     // empty: one after the other
  std::vector<int64_t> documents;  // empty: one of each sequence
  uint8_t code = 8;                // uint16
  uint64_t version = 1;
  uint64_t sequences = UINT64_MAX;  // by the header; else as many as there are
  uint64_t indices = UINT64_MAX;
  std::string behind = {};
  std::string magic = std::string("MMIDIDX\0\0", 9);
};

class MegatronTest : public FileSourceTest {
 protected:
  static std::string ToBytes(Idx idx, size_t token_bytes = 2) {
    if (idx.places.empty()) {
      int64_t at = 0;
      for (const int32_t length : idx.lengths) {
        idx.places.push_back(at);
        at += int64_t{length} * static_cast<int64_t>(token_bytes);
      }
    }
    if (idx.documents.empty()) {
      idx.documents.resize(idx.lengths.size() + 1);
      std::iota(idx.documents.begin(), idx.documents.end(), 0);
    }
    const auto number = [](uint64_t stated, size_t real) {
      return stated == UINT64_MAX ? uint64_t{real} : stated;
    };
    return idx.magic + Bytes<uint64_t>({idx.version}) +
           static_cast<char>(idx.code) +
           Bytes<uint64_t>({number(idx.sequences, idx.lengths.size()),
                            number(idx.indices, idx.documents.size())}) +
           Bytes(idx.lengths) + Bytes(idx.places) + Bytes(idx.documents) +
           idx.behind;
  }

  // Tokens 0, 1, 2, ... in the .bin file.
  MegatronSource Spec(const Idx& idx, size_t tokens) {
    Write("a.idx", ToBytes(idx));
    std::vector<uint16_t> bin(tokens);
    std::iota(bin.begin(), bin.end(), uint16_t{0});
    Write("a.bin", Bytes(bin));
    MegatronSource spec;
    spec.prefix = folder_ + "/a";
    spec.sequence_length = 4;
    spec.order = MegatronSource::Order::kPenstock;
    return spec;
  }
  std::vector<int64_t> Tokens(const Source& source, uint64_t record) {
    return Values<int64_t>(Record(source, record)[0]);
  }
  std::string IdxFails(const Idx& idx, StatusCode code, size_t tokens = 12) {
    const std::string message = OpenFails(Spec(idx, tokens), code);
    EXPECT_THAT(message, HasSubstr(folder_ + "/a."));
    return message;
  }
};

TEST_F(MegatronTest, WindowsOfTheFileCrossDocuments) {
  const auto source = Open(Spec({.lengths = {3, 0, 5, 4, 1}}, 13));
  ASSERT_EQ(source->record_count(), 3u);
  EXPECT_THAT(Tokens(*source, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Tokens(*source, 2), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(Values<int64_t>(Record(*source, 2)[1]),
              ElementsAre(9, 10, 11, 12));
  EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "tokens int64 [4]");
  EXPECT_EQ(source->raw_spec()[1].feature.ToString(), "labels int64 [4]");
  EXPECT_EQ(source->Describe(1), folder_ + "/a.bin, sample 1 (offset 8)");
  EXPECT_EQ(source->memory_bytes(), 0u);
  EXPECT_EQ(source->FileOf(0), folder_ + "/a.bin");
}

TEST_F(MegatronTest, WithoutALengthRowsAreDocuments) {
  MegatronSource spec =
      Spec({.lengths = {3, 0, 4, 2}, .places = {10, 0, 0, 22}}, 13);
  spec.sequence_length = 0;
  spec.order = MegatronSource::Order::kMegatron;
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 4u);
  EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "tokens int64 [4]");
  EXPECT_EQ(source->raw_spec()[1].feature.ToString(), "tokens.length int64 []");
  EXPECT_THAT(Tokens(*source, 0), ElementsAre(5, 6, 7, 0));
  EXPECT_THAT(Tokens(*source, 1), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Tokens(*source, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Tokens(*source, 3), ElementsAre(11, 12, 0, 0));
  const Columns columns = source->columns(0);
  const auto length = std::find_if(
      columns.begin(), columns.end(),
      [](const Column& each) { return each.name == "tokens.length"; });
  ASSERT_NE(length, columns.end());
  for (const auto& [record, items] :
       {std::pair(0, 3), {1, 0}, {2, 4}, {3, 2}}) {
    EXPECT_EQ(length->value(static_cast<uint64_t>(record)),
              ColumnValue(int64_t{items}));
    EXPECT_THAT(
        Values<int64_t>(Record(*source, static_cast<uint64_t>(record))[1]),
        ElementsAre(items));
  }
  EXPECT_EQ(source->Describe(3), folder_ + "/a.bin, document 3 (offset 22)");
  spec.split = "1,3,0";
  spec.use = MegatronSource::Use::kValid;
  EXPECT_EQ(Open(spec)->Describe(2),
            folder_ + "/a.bin, document 3 (offset 22)");
  EXPECT_NE(Open(spec)->fingerprint(), source->fingerprint());
}

TEST_F(MegatronTest, ASplitIsARangeOfDocuments) {
  MegatronSource spec = Spec({.lengths = {4, 4, 4, 4}}, 16);
  spec.split = "1,2,1";
  spec.use = MegatronSource::Use::kValid;
  spec.extra_token = false;
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 2u);
  EXPECT_THAT(Tokens(*source, 0), ElementsAre(4, 5, 6, 7));
  // The last label is a padded one.
  EXPECT_THAT(Values<int64_t>(Record(*source, 1)[1]),
              ElementsAre(9, 10, 11, 0));
  spec.split = "1,0,1";
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("`split: 1,0,1` gives `use: valid` none of the 4"));
  spec.split = "1,2,1";
  spec.sequence_length = 9;
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("sequences 1 to 3 have 8 tokens together, fewer than a "
                        "sample (9)"));
}

TEST_F(MegatronTest, DocumentsMayLieAnywhereInTheFile) {
  MegatronSource spec =
      Spec({.lengths = {3, 0, 4, 2}, .places = {10, 0, 0, 22}}, 13);
  spec.last_partial = MegatronSource::LastPartial::kPad;
  spec.features = {MegatronSource::Feature::kTokens,
                   MegatronSource::Feature::kLossMask};
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 2u);
  EXPECT_THAT(Tokens(*source, 0), ElementsAre(5, 6, 7, 0));
  EXPECT_THAT(Tokens(*source, 1), ElementsAre(1, 2, 3, 11));
  EXPECT_THAT(Values<float>(Record(*source, 1)[1]), ElementsAre(1, 1, 1, 1));
  spec.sequence_length = 5;
  const auto padded = Open(spec);
  ASSERT_EQ(padded->record_count(), 2u);
  EXPECT_THAT(Tokens(*padded, 1), ElementsAre(2, 3, 11, 12, 0));
  EXPECT_THAT(Values<float>(Record(*padded, 1)[1]), ElementsAre(1, 1, 1, 0, 0));
  EXPECT_GT(padded->memory_bytes(), 0u);
}

TEST_F(MegatronTest, OrdersAreThoseOfMegatron) {
  MegatronSource spec = Spec({.lengths = {5, 3, 7, 2, 6, 4}}, 27);
  spec.order = MegatronSource::Order::kMegatron;
  const auto firsts = [&] {
    const auto source = Open(spec);
    std::vector<int64_t> all;
    for (uint64_t i = 0; i < source->record_count(); ++i) {
      all.push_back(Tokens(*source, i)[0]);
    }
    return all;
  };
  // megatron-core 0.16.1: dataset[i]["tokens"][0].
  EXPECT_THAT(firsts(), ElementsAre(8, 2, 25, 6, 18, 12));
  spec.samples = 14;
  EXPECT_THAT(firsts(), ElementsAre(22, 10, 9, 20, 25, 4, 13, 1, 18, 24, 14, 5,
                                    0, 24, 7, 15, 12, 8, 3, 18));
  spec.samples = 19;
  EXPECT_THAT(firsts(), ElementsAre(9, 2, 8, 15, 5, 3, 12, 5, 13, 23, 2, 19, 19,
                                    13, 25, 9, 6, 22, 25, 18));
}

TEST_F(MegatronTest, OrdersTakeFewBytes) {
  // 4 bytes a document and pass, and 4 of its beginning; 4 a sample, of which
  // few keep where they begin.
  MegatronSource spec =
      Spec({.lengths = std::vector<int32_t>(1000, 50)}, 50'000);
  spec.order = MegatronSource::Order::kMegatron;
  const auto source = Open(spec);
  EXPECT_EQ(source->record_count(), 12'499u);
  EXPECT_LE(source->memory_bytes(), 4 * 1001 + 4 * 1000 + 4 * 12'499 + 1024u);
  std::set<int64_t> firsts;
  for (uint64_t i = 0; i < source->record_count(); ++i) {
    firsts.insert(Tokens(*source, i)[0]);
  }
  EXPECT_EQ(firsts.size(), source->record_count());
}

TEST_F(MegatronTest, DocumentsBehindFourBillionTokens) {
  const std::vector<int32_t> lengths = {INT32_MAX, 0, INT32_MAX, 1,        0, 1,
                                        INT32_MAX, 7, INT32_MAX, INT32_MAX};
  Write("a.idx", ToBytes({.lengths = lengths, .code = 1}, 1));
  Write("a.bin", "");
  std::filesystem::resize_file(folder_ + "/a.bin", 5 * uint64_t{INT32_MAX} + 9);
  OpenProgress progress;
  StatusOr<MegatronIndex> index =
      MegatronIndex::Open(folder_ + "/a", &progress);
  ASSERT_TRUE(index.ok()) << index.status().message();
  ASSERT_TRUE(index->Keep(&progress).ok());
  uint64_t begin = 0;
  for (uint64_t i = 0; i < lengths.size(); ++i) {
    const auto length = static_cast<uint64_t>(lengths[i]);
    EXPECT_EQ(index->BeginOf(i), begin) << i;
    EXPECT_EQ(index->ByteOf(i), begin) << i;
    EXPECT_EQ(index->LengthOf(i), length) << i;
    if (length > 0) {
      EXPECT_EQ(index->DocumentAt(begin), i);
      EXPECT_EQ(index->DocumentAt(begin + length - 1), i);
    }
    begin += length;
  }
  EXPECT_EQ(index->BeginOf(lengths.size()), begin);
}

// Megatron counts them in single precision.
TEST_F(MegatronTest, ASampleBehindTheLastTokenHasThatToken) {
  constexpr int32_t kTokens = 31 * 1082402 + 1;
  Write("a.idx", ToBytes({.lengths = {kTokens}, .code = 1}, 1));
  Write("a.bin", "");
  std::filesystem::resize_file(folder_ + "/a.bin", kTokens);
  MegatronSource spec;
  spec.prefix = folder_ + "/a";
  spec.sequence_length = 31;
  spec.use = MegatronSource::Use::kValid;
  spec.last_partial = MegatronSource::LastPartial::kPad;
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 1082403u);
  uint64_t short_ones = 0;
  for (uint64_t i = 0; i < source->record_count(); ++i) {
    ReadRequest request;
    source->Locate(i, &request);
    if (request.bytes == 32) continue;
    ++short_ones;
    EXPECT_EQ(request.bytes, 1u);
    EXPECT_EQ(request.offset, uint64_t{kTokens} - 1);
  }
  EXPECT_EQ(short_ones, 1u);
}

TEST_F(MegatronTest, EachPartOfABlendIsCounted) {
  OpenProgress progress;
  for (const size_t parts : {1u, 3u, 100u}) {
    std::vector<double> weights;
    for (size_t i = 0; i < parts; ++i)
      weights.push_back(1.0 / (1.0 + static_cast<double>(i)));
    const auto blend = MegatronBlend::InProportion(weights, 5000, &progress);
    ASSERT_TRUE(blend.ok());
    std::vector<uint64_t> taken(parts);
    for (uint64_t row = 0; row < 5000; ++row) {
      ASSERT_EQ(blend->SampleOf(row), taken[blend->PartOf(row)]++) << row;
    }
    EXPECT_EQ(blend->taken(), taken);
    EXPECT_LE(blend->memory_bytes(), 3 * 5000 + 4 * parts);
  }
}

TEST_F(MegatronTest, PartsOfABlendAreShuffledApart) {
  EXPECT_THAT(NormalizedAsMegatron(std::vector<double>{30, 50, 70.5}),
              ElementsAre(30 / 150.5, 50 / 150.5, 70.5 / 150.5));
  EXPECT_EQ(MegatronShare(0.7, 1000, 0), 700u);
  EXPECT_EQ(MegatronShare(0.7, 1000, 0.005), 704u);
  OpenProgress progress;
  const auto blend = MegatronBlend::InProportion(
      std::vector<double>{0.5, 0.3, 0.2}, 8, &progress);
  ASSERT_TRUE(blend.ok());
  std::vector<int> parts;
  for (uint64_t i = 0; i < 8; ++i)
    parts.push_back(static_cast<int>(blend->PartOf(i)));
  EXPECT_THAT(parts, ElementsAre(0, 1, 2, 0, 1, 0, 2, 0));
  MegatronSource spec = Spec({.lengths = {40}}, 40);
  spec.order = MegatronSource::Order::kMegatron;
  spec.blend = {{0.99, spec.prefix}, {0.01, spec.prefix}};
  spec.prefix.clear();
  spec.samples = 30;
  const auto source = Open(spec);
  EXPECT_EQ(source->record_count(), 31u);
}

TEST_F(MegatronTest, AnIndexThatLiesIsNamedWithTheField) {
  constexpr auto kWrong = StatusCode::kInvalidArgument;
  constexpr auto kDamaged = StatusCode::kDataLoss;
  const std::vector<int32_t> three = {4, 4, 4};
  EXPECT_THAT(IdxFails({.lengths = three, .magic = "MMIDIDX\1\1"}, kWrong),
              HasSubstr("does not begin with MMIDIDX"));
  EXPECT_THAT(IdxFails({.lengths = three, .version = 2}, kWrong),
              HasSubstr("version 2; version 1 is read"));
  EXPECT_THAT(IdxFails({.lengths = three, .code = 9}, kDamaged),
              HasSubstr("dtype code 9; known are 1 to 8"));
  EXPECT_THAT(IdxFails({.lengths = three, .code = 6}, kWrong),
              HasSubstr("values of float64 are no tokens"));
  EXPECT_THAT(
      IdxFails({.lengths = three, .sequences = uint64_t{1} << 63}, kDamaged),
      HasSubstr("9223372036854775808 sequences by its header"));
  EXPECT_THAT(IdxFails({.lengths = three, .indices = UINT64_MAX - 1}, kDamaged),
              HasSubstr("18446744073709551614 document indices by its header"));
  EXPECT_THAT(IdxFails({.lengths = three, .documents = {0, 1, 2, 4}}, kDamaged),
              HasSubstr("the last of its 4 document indices is 4, but it has "
                        "3 sequences"));
  EXPECT_THAT(IdxFails({.lengths = three, .behind = "12"}, kDamaged),
              HasSubstr("2 bytes behind its document indices"));
  EXPECT_THAT(IdxFails({.lengths = {}}, kWrong), HasSubstr("no sequence"));
  EXPECT_THAT(IdxFails({.lengths = {4, -5, 4}}, kDamaged),
              HasSubstr("the length of sequence 1 is -5"));
  EXPECT_THAT(IdxFails({.lengths = {4, INT32_MAX, 4}}, kDamaged),
              HasSubstr("sequence 1 has 2147483647 tokens of 2 bytes at 8"));
  EXPECT_THAT(
      IdxFails({.lengths = three, .places = {0, -2, 16}}, kDamaged),
      HasSubstr("sequence 1 has 4 tokens of 2 bytes at -2, by " + folder_));
  EXPECT_THAT(
      IdxFails({.lengths = three, .places = {0, INT64_MAX, 16}}, kDamaged),
      HasSubstr("at 9223372036854775807"));
  EXPECT_THAT(IdxFails({.lengths = three}, kDamaged, 11),
              HasSubstr("sequence 2 has 4 tokens of 2 bytes at 16, by " +
                        folder_ + "/a.idx; the file has 22 bytes: it was cut"));
  Write("a.idx", ToBytes({.lengths = three}).substr(0, 33));
  EXPECT_THAT(OpenFails(
                  [&] {
                    MegatronSource spec;
                    spec.prefix = folder_ + "/a";
                    spec.sequence_length = 4;
                    return spec;
                  }(),
                  kDamaged),
              HasSubstr("has 33 bytes; a header alone has 34"));
}

TEST_F(MegatronTest, EveryCutOfAnIndexIsRefused) {
  MegatronSource spec = Spec({.lengths = {4, 4, 4}}, 12);
  const std::string whole = ToBytes({.lengths = {4, 4, 4}});
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    Write("a.idx", whole.substr(0, bytes));
    EXPECT_EQ(OpenSource(spec, nullptr).status().code(), StatusCode::kDataLoss)
        << bytes;
  }
}

TEST_F(MegatronTest, WhatIsMissingOrTooMuchIsSaid) {
  MegatronSource spec = Spec({.lengths = {4, 4, 4}}, 12);
  spec.vocab_size = 8;
  const auto source = Open(spec);
  EXPECT_EQ(ReadFails(*source, 1),
            folder_ +
                "/a.bin, sample 1 (offset 8): token 4 of the sample is 8; "
                "vocab_size is 8");
  spec.prefix += ".bin";
  EXPECT_THAT(OpenFails(spec, StatusCode::kNotFound),
              HasSubstr("the prefix is without .bin"));
  // 2^31 - 1 passes over one token.
  spec = Spec({.lengths = {1}}, 1);
  spec.order = MegatronSource::Order::kMegatron;
  spec.sequence_length = 1 << 24;
  spec.samples = 1 << 20;
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("passes over 1 sequences are more than"));
  spec = Spec({.lengths = std::vector<int32_t>(70'000, 1)}, 70'000);
  spec.order = MegatronSource::Order::kMegatron;
  spec.sequence_length = 69'999;
  EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
              HasSubstr("sample 0 lies in 70000 documents; at most 65536"));
  spec.order = MegatronSource::Order::kPenstock;
  EXPECT_EQ(Open(spec)->record_count(), 1u);
}

TEST_F(MegatronTest, NoMemoryIsTakenThatWasNotPromised) {
  MegatronSource spec = Spec({.lengths = {4, 4, 4}}, 12);
  spec.order = MegatronSource::Order::kMegatron;
  OpenProgress progress;
  uint64_t promised = 0;
  progress.reserve = [&](uint64_t bytes) {
    promised += bytes;
    return OkStatus();
  };
  const auto source = OpenSource(spec, &progress);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->memory_bytes(), promised);
  progress.reserve = [](uint64_t) { return ResourceExhaustedError("enough"); };
  EXPECT_THAT(OpenSource(spec, &progress).status().message(),
              HasSubstr("a.idx: enough"));
}

}  // namespace penstock::megatron_test
