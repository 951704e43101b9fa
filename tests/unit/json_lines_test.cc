// Promise: source json_lines gives the named values of each line, and an error
// that names file, line and field where one is not as it should be. Method:
// files written here; tests/python/test_lines.py compares with Python's json.
#include "broker/source/json_lines.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/unit/file_source.h"

namespace penstock::json_lines_test {

using testing::ElementsAre;
using testing::HasSubstr;

using JsonLinesTest = FileSourceTest;

std::string Text(const std::vector<std::string>& record, size_t feature) {
  int64_t bytes = 0;
  std::memcpy(&bytes, record[feature + 1].data(), sizeof(bytes));
  const auto size = static_cast<size_t>(bytes);
  EXPECT_EQ(record[feature].find_first_not_of('\0', size), std::string::npos);
  return record[feature].substr(0, size);
}

TEST_F(JsonLinesTest, ValuesAreTakenByNameOrPointer) {
  const auto source = Open(JsonLinesSource{
      .files = {{Write("a",
                       "{\"label\": 3, \"m\": {\"w\": [[1, 2.5], [-3, 4e1]]}, "
                       "\"a/b\": \"hi\"}\r\n"
                       "{\"m\": {\"w\": [[0,0],[0,0]]}, \"a/b\": "
                       "\"\\u00e4\\n\", \"label\": -1}\n")}},
      .fields = {
          {"label", {.dtype = DType::kInt16}},
          {"w", {.from = "/m/w", .dtype = DType::kFloat32, .shape = {2, 2}}},
          {"one", {.from = "/m/w/0/1", .dtype = DType::kFloat64}},
          {"t", {.from = "/a~1b", .max_bytes = 4}}}});
  ASSERT_EQ(source->record_count(), 2u);
  const auto record = Record(*source, 0);
  EXPECT_THAT(Values<int16_t>(record[0]), ElementsAre(3));
  EXPECT_THAT(Values<float>(record[1]), ElementsAre(1, 2.5, -3, 40));
  EXPECT_THAT(Values<double>(record[2]), ElementsAre(2.5));
  EXPECT_EQ(Text(record, 3), "hi");
  EXPECT_EQ(Text(Record(*source, 1), 3), "\xc3\xa4\n");
  EXPECT_EQ(source->raw_spec()[3].feature.ToString(), "t uint8 [4]");
  EXPECT_EQ(source->raw_spec()[4].feature.ToString(), "t_bytes int64 []");
  EXPECT_EQ(source->Describe(1), folder_ + "/a, line 2");
}

TEST_F(JsonLinesTest, EmptyLinesAreLeftOut) {
  const auto source = Open(JsonLinesSource{
      .files = {{Write("a", "\xef\xbb\xbf{\"x\":1}\n\n{\"x\":2}\n\r\n\n"),
                 Write("none", "\n\n"), Write("b", "{\"x\":3}\n\n  ")}},
      .fields = {{"x", {.dtype = DType::kInt64}}}});
  ASSERT_EQ(source->record_count(), 4u);
  EXPECT_THAT(Values<int64_t>(Record(*source, 0)[0]), ElementsAre(1));
  EXPECT_THAT(Values<int64_t>(Record(*source, 1)[0]), ElementsAre(2));
  EXPECT_THAT(Values<int64_t>(Record(*source, 2)[0]), ElementsAre(3));
  EXPECT_EQ(ReadFails(*source, 3),
            folder_ + "/b, row 2 (offset 9): an empty line");
}

TEST_F(JsonLinesTest, NumbersAreTakenAsOthersWriteThem) {
  const auto read = [&](const std::string& value, DType dtype) {
    const auto source = Open(JsonLinesSource{
        .files = {{Write("a",
                         "{\"s\": \"\\\" NaN\", \"x\": " + value + "}\n")}},
        .fields = {{"x", {.dtype = dtype}}, {"s", {.max_bytes = 9}}}});
    const auto record = Record(*source, 0);
    EXPECT_EQ(Text(record, 1), "\" NaN");
    return record[0];
  };
  EXPECT_THAT(Values<int8_t>(read("2.0", DType::kInt8)), ElementsAre(2));
  EXPECT_THAT(Values<int64_t>(read("true", DType::kInt64)), ElementsAre(1));
  EXPECT_THAT(Values<float>(read("false", DType::kFloat32)), ElementsAre(0));
  EXPECT_THAT(Values<uint8_t>(read("1", DType::kBool)), ElementsAre(1));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(Values<double>(read("Infinity", DType::kFloat64)),
              ElementsAre(kInfinity));
  EXPECT_THAT(Values<double>(read("-Infinity", DType::kFloat64)),
              ElementsAre(-kInfinity));
  EXPECT_TRUE(std::isnan(Values<float>(read("NaN", DType::kFloat32))[0]));
}

TEST_F(JsonLinesTest, WhatIsWrongIsNamed) {
  const TextField number{.dtype = DType::kInt8};
  const TextField list{.dtype = DType::kFloat32, .shape = {2}};
  const TextField text{.max_bytes = 3};
  const TextField pairs{.dtype = DType::kInt8, .shape = {2}, .max_length = 9};
  const auto fails = [&](const std::string& line, const TextField& field) {
    const auto source = Open(JsonLinesSource{
        .files = {{Write("a", line + "\n")}}, .fields = {{"x", field}}});
    const std::string message = ReadFails(*source, 0);
    EXPECT_THAT(message, testing::StartsWith(folder_ + "/a, line 1: "));
    return message.substr(folder_.size() + 12);
  };
  EXPECT_EQ(fails("{}", number),
            "field 'x' is missing; give it a `default` if that is right");
  EXPECT_EQ(fails("{\"x\": null}", number),
            "field 'x' is null; give it a `default` if that is right");
  EXPECT_EQ(fails("[1]", number),
            "field 'x' is missing; give it a `default` if that is right");
  EXPECT_EQ(fails("{\"x\": 128}", number),
            "field 'x': 128 does not fit into int8");
  EXPECT_EQ(fails("{\"x\": 1.5}", number),
            "field 'x': 1.5 does not fit into int8");
  EXPECT_EQ(fails("{\"x\": 9223372036854775808}", number),
            "field 'x': 9223372036854775808 does not fit into int8");
  EXPECT_EQ(fails("{\"x\": \"1\"}", number),
            "field 'x': wanted a number, found text");
  EXPECT_EQ(fails("{\"x\": 2}", {.dtype = DType::kBool}),
            "field 'x': 2 does not fit into bool");
  EXPECT_EQ(fails("{\"x\": 1}", list),
            "field 'x': wanted a list of 2, found a number");
  EXPECT_EQ(fails("{\"x\": [1]}", list),
            "field 'x': wanted a list of 2, found one of 1");
  EXPECT_EQ(fails("{\"x\": [1, 2, 3]}", list),
            "field 'x': wanted a list of 2, found more");
  EXPECT_EQ(fails("{\"x\": [1, [2]]}", list),
            "field 'x': wanted a number, found a list");
  EXPECT_EQ(fails("{\"x\": null}", pairs),
            "field 'x' is null; give it a `default` if that is right");
  EXPECT_EQ(fails("{\"x\": 1}", pairs),
            "field 'x': wanted a list, found a number");
  EXPECT_EQ(fails("{\"x\": [[1, 2], [3]]}", pairs),
            "field 'x': wanted a list of 2, found one of 1");
  EXPECT_EQ(fails("{\"x\": [[1, 2], [3, 400]]}", pairs),
            "field 'x': 400 does not fit into int8");
  EXPECT_EQ(fails("{\"x\": 1e39}", {.dtype = DType::kFloat32}),
            "field 'x': 1e+39 does not fit into float32");
  EXPECT_EQ(fails("{\"x\": 1}", text),
            "field 'x': wanted text, found a number");
  EXPECT_EQ(fails("{\"x\": [\"1\"]}", text),
            "field 'x': wanted text, found a list; `json: true` takes its JSON "
            "as text");
  EXPECT_EQ(fails("{\"x\": \"1\"}", {.max_bytes = 3, .json = true}),
            "field 'x': wanted a list or an object, found text");
  EXPECT_EQ(fails("{\"x\": [1,2]}", {.max_bytes = 3, .json = true}),
            "field 'x': text of 5 bytes; at most 3 fit (max_bytes, or `longer: "
            "cut`)");
  EXPECT_EQ(fails("{\"x\": \"1234\"}", text),
            "field 'x': text of 4 bytes; at most 3 fit (max_bytes, or `longer: "
            "cut`)");
  EXPECT_THAT(fails("{\"x\": 1", number), HasSubstr("not JSON: "));
  EXPECT_THAT(fails("{\"x\": 1} {}", number), HasSubstr("not JSON: "));
  EXPECT_EQ(fails("{\"x\": NaN}", number),
            "field 'x': wanted a number, found text");
  EXPECT_THAT(fails("{\"x\": nan}", number), HasSubstr("not JSON: "));
  EXPECT_THAT(fails(std::string(2000, '['), number), HasSubstr("not JSON: "));
  EXPECT_EQ(fails("{\"x\": \"\xff\"}", text),
            "not UTF-8 at offset 7 of the file");
  EXPECT_EQ(fails("{\"\xc3\xa4\": \"\xe2\x82\", \"x\": \"\"}", text),
            "not UTF-8 at offset 8 of the file");
}

TEST_F(JsonLinesTest, TheLastOfRepeatedKeysCounts) {
  const auto source = Open(
      JsonLinesSource{.files = {{Write("a", "{\"x\": \"no\", \"x\": 2}\n")}},
                      .fields = {{"x", {.dtype = DType::kInt64}}}});
  EXPECT_THAT(Values<int64_t>(Record(*source, 0)[0]), ElementsAre(2));
}

TEST_F(JsonLinesTest, ADefaultFillsWhatIsMissing) {
  const auto bytes = [](const std::string& text) {
    const auto from = std::as_bytes(std::span(text));
    return std::vector<std::byte>(from.begin(), from.end());
  };
  const auto source = Open(JsonLinesSource{
      .files = {{Write("a", "{\"w\": null}\n{\"w\": [1, 2], \"t\": \"b\"}\n")}},
      .fields = {
          {"w",
           {.dtype = DType::kUint8, .shape = {2}, .fallback = bytes("\x07")}},
          {"t", {.max_bytes = 3, .fallback = bytes("no")}}}});
  EXPECT_EQ(Record(*source, 0)[0], "\x07\x07");
  EXPECT_EQ(Text(Record(*source, 0), 1), "no");
  EXPECT_EQ(Text(Record(*source, 1), 1), "b");
}

TEST_F(JsonLinesTest, AListOrAnObjectIsTakenAsItsJson) {
  const auto source = Open(JsonLinesSource{
      .files = {{Write("a",
                       "{\"x\": [ {\"a\" : \"\\u00e4\\n\\\"\"}, 1.50, null ]}\n"
                       "{\"x\": {}}\n{\"x\": null}\n")}},
      .fields = {{"x",
                  {.max_bytes = 32,
                   .json = true,
                   .fallback = std::vector<std::byte>(2, std::byte{'7'})}}}});
  EXPECT_EQ(Text(Record(*source, 0), 0),
            "[{\"a\":\"\xc3\xa4\\n\\\"\"},1.5,null]");
  EXPECT_EQ(Text(Record(*source, 1), 0), "{}");
  EXPECT_EQ(Text(Record(*source, 2), 0), "77");
}

TEST_F(JsonLinesTest, ListsDifferInLength) {
  const std::string file = Write("a",
                                 "{\"x\": [1, 2], \"b\": [[1, 2], [3, 4]]}\n"
                                 "{\"x\": [], \"b\": null}\n"
                                 "{\"x\": [1, 2, 3, 4], \"b\": []}\n");
  const FeatureValues<TextField> fields = {
      {"x", {.dtype = DType::kInt32, .max_length = 3}},
      {"b",
       {.dtype = DType::kFloat32,
        .shape = {2},
        .max_length = 2,
        .fallback = std::vector<std::byte>()}}};
  const auto source =
      Open(JsonLinesSource{.files = {{file}}, .fields = fields});
  EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "x int32 [3]");
  EXPECT_EQ(source->raw_spec()[1].feature.ToString(), "x.length int64 []");
  EXPECT_EQ(source->raw_spec()[2].feature.ToString(), "b float32 [2, 2]");
  std::vector<std::string> record = Record(*source, 0);
  EXPECT_THAT(Values<int32_t>(record[0]), ElementsAre(1, 2, 0));
  EXPECT_THAT(Values<int64_t>(record[1]), ElementsAre(2));
  EXPECT_THAT(Values<float>(record[2]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Values<int64_t>(record[3]), ElementsAre(2));
  record = Record(*source, 1);
  EXPECT_THAT(Values<int32_t>(record[0]), ElementsAre(0, 0, 0));
  EXPECT_THAT(Values<int64_t>(record[1]), ElementsAre(0));
  EXPECT_THAT(Values<float>(record[2]), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Values<int64_t>(record[3]), ElementsAre(0));
  EXPECT_THAT(ReadFails(*source, 2),
              HasSubstr("field 'x': a list of 4; at most 3 fit (max_length, or "
                        "`longer: cut`)"));
  const auto cut = Open(JsonLinesSource{
      .files = {{file}}, .fields = fields, .longer = Longer::kCut});
  record = Record(*cut, 2);
  EXPECT_THAT(Values<int32_t>(record[0]), ElementsAre(1, 2, 3));
  EXPECT_THAT(Values<int64_t>(record[1]), ElementsAre(3));
}

TEST_F(JsonLinesTest, LongerTextIsCutAtAWholeCharacter) {
  const auto source =
      Open(JsonLinesSource{.files = {{Write("a",
                                            "{\"x\": \"ab\xc3\xa4\"}\n"
                                            "{\"x\": \"\xf0\x9f\x98\x80\"}\n"
                                            "{\"x\": \"abcd\"}\n")}},
                           .fields = {{"x", {.max_bytes = 3}}},
                           .longer = Longer::kCut});
  EXPECT_EQ(Text(Record(*source, 0), 0), "ab");
  EXPECT_EQ(Text(Record(*source, 1), 0), "");
  EXPECT_EQ(Text(Record(*source, 2), 0), "abc");
}

TEST_F(JsonLinesTest, ALineThatIsTooLongIsAnErrorOfItsSample) {
  const std::string most((16 << 20) - 8, 'x');
  const auto source = Open(JsonLinesSource{
      .files = {{Write(
          "a", "{\"x\": \"" + most + "\"}\n" + "{\"x\":\"" + most + "\"}\n")}},
      .fields = {{"x", {.max_bytes = 1}}},
      .longer = Longer::kCut});
  EXPECT_THAT(ReadFails(*source, 0),
              HasSubstr("line 1: a line of 16777217 bytes; at most 16777216 "
                        "are parsed"));
  EXPECT_EQ(Text(Record(*source, 1), 0), "x");
}

TEST_F(JsonLinesTest, FilesThatAreNoLinesAreRefused) {
  const auto refused = [&](const std::string& content) {
    return OpenFails(JsonLinesSource{.files = {{Write("a", content)}},
                                     .fields = {{"x", {.max_bytes = 1}}}},
                     StatusCode::kInvalidArgument);
  };
  EXPECT_THAT(refused("\x1f\x8b\x08"), HasSubstr("/a is compressed"));
  EXPECT_THAT(refused("\xff\xfe{"), HasSubstr("/a is in UTF-16; convert it"));
  EXPECT_THAT(refused(""), HasSubstr("no record in "));
  EXPECT_THAT(refused("\n\r\n"), HasSubstr("no record in "));
}

TEST_F(JsonLinesTest, PointersAreThoseOfTheRfc) {
  using Tokens = std::vector<std::string>;
  EXPECT_EQ(PointerTokens("/a/0"), (Tokens{"a", "0"}));
  EXPECT_EQ(PointerTokens("/a~1b/~0/m n/"), (Tokens{"a/b", "~", "m n", ""}));
  EXPECT_EQ(PointerTokens(""), Tokens{});
  EXPECT_EQ(PointerTokens("a"), std::nullopt);
  EXPECT_EQ(PointerTokens("/a~2"), std::nullopt);
  EXPECT_EQ(PointerTokens("/a~"), std::nullopt);
}

}  // namespace penstock::json_lines_test
