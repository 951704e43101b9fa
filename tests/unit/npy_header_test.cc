// Promise: the header of a .npy file is read as NumPy reads it, and one that is
// damaged, hostile or of values that have no dtype is refused with the name and
// the way out. Method: headers written here, whole and cut at each byte;
// tests/python/test_numpy_files.py has NumPy as the judge.
#include "broker/source/npy_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/numpy_file.h"

namespace penstock::npy_header_test {

using testing::ElementsAre;
using testing::HasSubstr;

StatusOr<NpyHeader> Parse(const std::string& file) {
  return ParseNpyHeader("a.npy", std::as_bytes(std::span(file)), file.size());
}

std::string Refused(const std::string& file, StatusCode code) {
  const auto header = Parse(file);
  EXPECT_EQ(header.status().code(), code) << header.status().message();
  EXPECT_THAT(header.status().message(), testing::StartsWith("a.npy: "));
  return header.status().message();
}

TEST(NpyHeaderTest, EveryVersionIsRead) {
  for (const char version : {1, 2, 3}) {
    const auto header = Parse(NpyOf(NpyHeaderText("<f4", "(2, 3)"),
                                    std::string(2 * 3 * 4, 'x'), version));
    ASSERT_TRUE(header.ok()) << header.status().message();
    EXPECT_EQ(header->ToString(), "float32 [2, 3]");
    EXPECT_EQ(header->dtype(), DType::kFloat32);
    EXPECT_EQ(header->data_bytes, 24u);
    EXPECT_EQ(header->bytes, (version == 1 ? 10u : 12u) +
                                 NpyHeaderText("<f4", "(2, 3)").size());
  }
  EXPECT_THAT(Refused(NpyOf("", "", 4), StatusCode::kInvalidArgument),
              HasSubstr("version 4.0 of NumPy's format; known are 1 to 3"));
}

TEST(NpyHeaderTest, PythonsNotationMayVary) {
  const std::string values(6, 'x');
  for (const char* text : {
           "{'shape':(3,),'fortran_order':False,'descr':'<u2'}",
           "{\"descr\": \"<u2\", \"fortran_order\": False, \"shape\": (3,)}",
           "  { 'descr' : '<u2' ,\n 'fortran_order' : False , 'shape' : ( 3 , "
           ") , }   \n",
           "{'descr': '<u2', 'fortran_order': True, 'shape': (3L,), }",
           "{'descr': 'u2', 'fortran_order': False, 'shape': (3,), }",
           "{'descr': '=u2', 'fortran_order': False, 'shape': (3,), }",
       }) {
    const auto header = Parse(NpyOf(text, values));
    ASSERT_TRUE(header.ok()) << text << ": " << header.status().message();
    EXPECT_EQ(header->DTypeText(), "uint16");
    EXPECT_THAT(header->shape, ElementsAre(3u));
    EXPECT_EQ(header->dtype(), std::nullopt);
  }
}

TEST(NpyHeaderTest, WhatNumPyWouldNotReadIsDamaged) {
  for (const char* text : {
           "",
           "{}",
           "{'descr': '<u2', 'fortran_order': False}",
           "{'descr': '<u2', 'fortran_order': 0, 'shape': (3,)}",
           "{'descr': '<u2', 'fortran_order': False, 'shape': [3]}",
           "{'descr': '<u2', 'fortran_order': False, 'shape': (-3,)}",
           "{'descr': '<u2', 'fortran_order': False, 'shape': (3,}",
           "{'descr': '<u2', 'descr': '<u2', 'fortran_order': False}",
           "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), 'x': 1}",
           "{'descr': '<u2', 'fortran_order': False, 'shape': (3,)} x",
           "{'descr': '<u2, 'fortran_order': False, 'shape': (3,)}",
           "{'descr': '<u2', 'fortran_order': False, 'shape': "
           "(99999999999999999999,)}",
           "{'descr': '<u0', 'fortran_order': False, 'shape': (3,)}",
           "{'descr': '<u99', 'fortran_order': False, 'shape': (3,)}",
           "{'descr': '<u', 'fortran_order': False, 'shape': (3,)}",
       }) {
    Refused(NpyOf(text, "123456"), StatusCode::kDataLoss);
  }
  std::string deep = "(";
  for (int i = 0; i < 65; ++i) deep += "1,";
  Refused(NpyOf(NpyHeaderText("|u1", deep + ")"), "1"), StatusCode::kDataLoss);
}

TEST(NpyHeaderTest, ValuesThatAreNoNumbersAreRefusedWithTheWayOut) {
  for (const auto& [descr, way_out] :
       std::vector<std::pair<std::string, std::string>>{
           {"|O", "Python objects"},
           {"<U3", "text; save its bytes"},
           {"|S3", "text; save its bytes"},
           {"<c8", "a.view(np.float32)"},
           {"<M8[ns]", "a.astype(np.int64)"},
           {"|V2", "bytes of no known meaning"},
           {">f4", "a.astype(a.dtype.newbyteorder('<'))"},
           {"", "unknown"},
           {"<", "unknown"},
           {"\x1b[2J", "(dtype ?[2J) are unknown"}}) {
    EXPECT_THAT(Refused(NpyOf(NpyHeaderText(descr, "(1,)"), "12345678"),
                        StatusCode::kInvalidArgument),
                HasSubstr(way_out));
  }
  EXPECT_THAT(Refused(NpyOf("{'descr': [('a', '<i4')], 'fortran_order': False, "
                            "'shape': (1,)}",
                            "1234"),
                      StatusCode::kInvalidArgument),
              HasSubstr("np.save(path, a['field'])"));
  EXPECT_THAT(Refused(NpyOf(NpyHeaderText("|u1", "(2, 2)", "True"), "1234"),
                      StatusCode::kInvalidArgument),
              HasSubstr("np.ascontiguousarray"));
}

TEST(NpyHeaderTest, TheFileHasAsManyBytesAsTheHeaderSays) {
  const std::string whole =
      NpyOf(NpyHeaderText("<i8", "(2, 2)"), std::string(32, 'x'));
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t bytes = 6; bytes < whole.size(); ++bytes) {
    Refused(whole.substr(0, bytes), StatusCode::kDataLoss);
  }
  for (size_t bytes = 0; bytes < 6; ++bytes) {
    Refused(whole.substr(0, bytes), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(Refused(whole + "y", StatusCode::kDataLoss),
              HasSubstr("its header says int64 [2, 2], wanted 32 bytes"));
  Refused(NpyOf(NpyHeaderText("<i8", "(4294967296, 4294967296)"), ""),
          StatusCode::kDataLoss);
}

TEST(NpyHeaderTest, AHeaderIsNotLongerThanItsLimit) {
  const std::string text = NpyHeaderText("|u1", "(0,)");
  const size_t spaces = kNpyHeaderBytesMax - 12 - text.size();
  ASSERT_TRUE(Parse(NpyOf(text + std::string(spaces, ' '), "", 2)).ok());
  EXPECT_THAT(Refused(NpyOf(text + std::string(spaces + 1, ' '), "", 2),
                      StatusCode::kInvalidArgument),
              HasSubstr("a header of 65537 bytes, more than 65536"));
}

}  // namespace penstock::npy_header_test
