// Promise: sources npy and npz give the rows of NumPy's arrays, those of
// several features side by side, and refuse arrays that do not belong together.
// Method: files written here; tests/python/test_numpy_files.py compares with
// NumPy.
#include <gmock/gmock.h>

#include "tests/unit/file_source.h"
#include "tests/unit/numpy_file.h"
#include "tests/unit/zip_file.h"

namespace penstock::npy_test {

using testing::ElementsAre;
using testing::HasSubstr;

class NpyTest : public FileSourceTest {
 protected:
  // uint8 rows of two bytes each.
  static std::string Pairs(const std::string& values) {
    return NpyOf(NpyHeaderText("|u1", Format("({}, 2)", values.size() / 2)),
                 values);
  }
  static std::string Singles(const std::string& values) {
    return NpyOf(NpyHeaderText("|u1", Format("({},)", values.size())), values);
  }
};

TEST_F(NpyTest, ArraysOfAListFollowOneAnother) {
  const auto source = Open(
      NpySource{{{"x",
                  {{Write("a.npy", Pairs("aabb")), Write("none.npy", Pairs("")),
                    Write("b.npy", Pairs("ccddee"))}}}}});
  ASSERT_EQ(source->record_count(), 5u);
  EXPECT_THAT(Record(*source, 1), ElementsAre("bb"));
  EXPECT_THAT(Record(*source, 2), ElementsAre("cc"));
  EXPECT_THAT(Record(*source, 4), ElementsAre("ee"));
  EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "x uint8 [2]");
  EXPECT_EQ(source->plain_feature(), 0u);
  EXPECT_EQ(source->memory_bytes(), 0u);
  EXPECT_THAT(source->Describe(3), HasSubstr("/b.npy, row 1 (offset "));
  EXPECT_FALSE(source->Changed());
  Write("none.npy", Pairs("xx"));
  EXPECT_TRUE(source->Changed());
}

TEST_F(NpyTest, FilesThatNewlyMatchAreAChange) {
  Write("b.npy", Pairs("cc"));
  Write("a.npy", Pairs("aabb"));
  const NpySource spec{{{"x", {{folder_ + "/*.npy"}}}}};
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 3u);
  EXPECT_THAT(Record(*source, 2), ElementsAre("cc"));
  EXPECT_FALSE(source->Changed());
  Write("c.npy", Pairs("dd"));
  EXPECT_TRUE(source->Changed());
  EXPECT_NE(source->fingerprint(), Open(spec)->fingerprint());
}

TEST_F(NpyTest, RowsOfFeaturesAreSideBySide) {
  const NpySource spec{
      {{"label", {{Write("l0", Singles("12")), Write("l1", Singles("3"))}}},
       {"x", {{Write("x", Pairs("aabbcc"))}}}}};
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 3u);
  EXPECT_THAT(Record(*source, 0), ElementsAre("1", "aa"));
  EXPECT_THAT(Record(*source, 2), ElementsAre("3", "cc"));
  // The largest rows are read, the others are kept.
  EXPECT_EQ(source->plain_feature(), 1u);
  EXPECT_EQ(source->memory_bytes(), 3u);
  EXPECT_THAT(source->Describe(1), HasSubstr("/x, row 1"));

  OpenProgress progress;
  progress.reserve = [](uint64_t bytes) {
    return bytes > 2 ? ResourceExhaustedError("full") : OkStatus();
  };
  const Status full = OpenSource(spec, &progress).status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("feature 'label', whose rows are kept "
                                        "in memory (3 bytes): full"));
  OpenProgress cancelled;
  cancelled.cancel = true;
  EXPECT_EQ(OpenSource(spec, &cancelled).status().code(),
            StatusCode::kCancelled);
}

TEST_F(NpyTest, LargeRowsOfSeveralFeaturesAreAllRead) {
  // Files of 96 MB and more: holes, but for the last row.
  constexpr uint64_t kRows = 3'000'000;
  const auto sparse = [&](const std::string& name, uint64_t row_bytes,
                          char value) {
    const std::string head =
        NpyOf(NpyHeaderText("|u1", Format("({}, {})", kRows, row_bytes)), "");
    const std::string path = Write(name, head);
    const uint64_t bytes = head.size() + kRows * row_bytes;
    std::filesystem::resize_file(path, bytes - row_bytes);
    std::ofstream(path, std::ios::binary | std::ios::app)
        << std::string(row_bytes, value);
    return path;
  };
  const NpySource spec{{{"label", {{sparse("label", 1, 'l')}}},
                        {"mask", {{sparse("mask", 32, 'm')}}},
                        {"x", {{sparse("x", 48, 'x')}}}}};
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), kRows);
  EXPECT_EQ(source->plain_feature(), std::nullopt);
  EXPECT_EQ(source->memory_bytes(), kRows);  // the labels
  EXPECT_THAT(source->Describe(1), HasSubstr("/x, row 1"));
  EXPECT_THAT(Record(*source, kRows - 1),
              ElementsAre("l", std::string(32, 'm'), std::string(48, 'x')));
  EXPECT_THAT(Record(*source, 0)[1], std::string(32, '\0'));
}

TEST_F(NpyTest, ArraysThatDoNotBelongTogetherAreNamed) {
  const std::string a = Write("a", Pairs("aabb"));
  const std::string b = Write("b", Singles("abc"));
  EXPECT_EQ(
      OpenFails(NpySource{{{"x", {{a, b}}}}}, StatusCode::kInvalidArgument),
      "feature 'x' has rows of uint8 [2] in " + a + ", but of uint8 [] in " +
          b);
  EXPECT_EQ(OpenFails(NpySource{{{"x", {{a}}}, {"y", {{b}}}}},
                      StatusCode::kInvalidArgument),
            a + " has 2 rows of 'x', but " + b +
                " has 3 of 'y'; do they belong together?");
  EXPECT_EQ(OpenFails(NpySource{{{"x", {{Write("none", Pairs(""))}}}}},
                      StatusCode::kInvalidArgument),
            folder_ + "/none: no row");
}

TEST_F(NpyTest, RowsThatPenstockCannotHaveAreRefused) {
  const auto refused = [&](const std::string& descr, const std::string& shape,
                           size_t bytes) {
    const std::string path =
        Write("a", NpyOf(NpyHeaderText(descr, shape), std::string(bytes, 0)));
    return OpenFails(NpySource{{{"x", {{path}}}}},
                     StatusCode::kInvalidArgument);
  };
  EXPECT_EQ(refused("<u2", "(2,)", 4),
            folder_ +
                "/a: dtype uint16 is none of Penstock's; save it as one that "
                "is, such as a.astype(np.int64) or np.float32");
  EXPECT_THAT(refused("<f4", "()", 4), HasSubstr("a single value"));
  EXPECT_THAT(refused("<f4", "(0, 4294967296)", 0),
              HasSubstr("float32 [0, 4294967296]; wanted rows of 1 to "
                        "268435456 bytes and at most 8 dimensions"));
  EXPECT_THAT(refused("|u1", "(1, 0)", 0), HasSubstr("wanted rows of 1 to"));
  EXPECT_THAT(refused("|u1", "(1,1,1,1,1,1,1,1,1,1)", 1),
              HasSubstr("at most 8 dimensions"));
}

TEST_F(NpyTest, ANpzIsReadByTheNamesOfItsArrays) {
  ZipFile zip;
  zip.Add("x.npy", Pairs("aabbcc"));
  zip.Add("y.npy", Singles("123"));
  zip.Add("bare", Singles("456"));
  const std::string path = Write("a.npz", zip.Bytes());
  const auto source =
      Open(NpzSource{path, {{"label", "y"}, {"x", "x.npy"}, {"z", "bare"}}});
  ASSERT_EQ(source->record_count(), 3u);
  EXPECT_THAT(Record(*source, 1), ElementsAre("2", "bb", "5"));
  EXPECT_THAT(source->Describe(1),
              HasSubstr("/a.npz, array 'x.npy', row 1 (offset "));
  EXPECT_EQ(OpenFails(NpzSource{path, {{"x", "w"}}}, StatusCode::kNotFound),
            path + ": no array 'w'; it has 'x.npy', 'y.npy', 'bare'");
}

TEST_F(NpyTest, MembersThatHaveNoPlainBytesAreRefused) {
  ZipFile zip;
  zip.Add("packed.npy", "x", {.method = 12});
  zip.Add("secret.npy", "x", {.flags = 1});
  zip.Add("text.npy", "hello");
  const std::string path = Write("a.npz", zip.Bytes());
  const auto refused = [&](const std::string& array) {
    return OpenFails(NpzSource{path, {{"x", array}}},
                     StatusCode::kInvalidArgument);
  };
  EXPECT_EQ(refused("packed"),
            path +
                ", array 'packed' is compressed (method 12); write it with "
                "np.savez or np.savez_compressed");
  EXPECT_THAT(refused("secret"), HasSubstr("is encrypted"));
  EXPECT_THAT(refused("text"),
              HasSubstr("array 'text': not in NumPy's format"));
}

TEST_F(NpyTest, ANpzThatIsCutOrDamagedIsRefused) {
  ZipFile zip;
  zip.Add("x.npy", Pairs("aabbcc"));
  zip.Add("y.npy", Singles("123"));
  const std::string whole = zip.Bytes();
  const auto open = [&](const std::string& bytes) {
    return OpenSource(NpzSource{Write("a.npz", bytes), {{"x", "x"}}}, nullptr);
  };
  ASSERT_TRUE(open(whole).ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Status cut = open(whole.substr(0, bytes)).status();
    EXPECT_EQ(cut.code(), StatusCode::kDataLoss) << bytes;
    EXPECT_THAT(cut.message(), HasSubstr("a.npz"));
  }
  // Each byte of the directory, changed: refused, or the same rows.
  for (size_t at = zip.directory_at(); at < whole.size(); ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ change);
      const auto source = open(changed);
      if (source.ok()) {
        EXPECT_THAT(Record(**source, 1), ElementsAre("bb")) << at;
      }
    }
  }
}

TEST_F(NpyTest, Zip64IsRead) {
  ZipFile zip;
  zip.Add("x.npy", Pairs("aabbcc"), {.zip64 = true});
  zip.Add("y.npy", Singles("123"));
  const std::string path = Write("a.npz", zip.Bytes(/*zip64=*/true));
  const auto source = Open(NpzSource{path, {{"x", "x"}, {"y", "y"}}});
  EXPECT_THAT(Record(*source, 2), ElementsAre("cc", "3"));
  const std::string commented =
      Write("b.npz", zip.Bytes(true, "a comment PK\x05\x06 with a signature"));
  EXPECT_EQ(Open(NpzSource{commented, {{"x", "x"}}})->record_count(), 3u);
}

TEST_F(NpyTest, TwoMembersOfOneNameAreRefused) {
  ZipFile zip;
  zip.Add("x.npy", Pairs("aa"));
  zip.Add("x.npy", Pairs("bb"));
  EXPECT_THAT(OpenFails(NpzSource{Write("a.npz", zip.Bytes()), {{"x", "x"}}},
                        StatusCode::kDataLoss),
              HasSubstr("two members have the same name"));
}

}  // namespace penstock::npy_test
