// Promise: source csv gives the named columns of each row by the quoting of RFC
// 4180, and an error that names file, row and column where one is not as it
// should be. Method: files written here; tests/python/test_lines.py compares
// with Python's csv.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>

#include "tests/unit/file_source.h"

namespace penstock::csv_test {

using testing::ElementsAre;
using testing::HasSubstr;

class CsvTest : public FileSourceTest {
 protected:
  // Text columns of these names.
  static FeatureValues<TextField> Texts(const std::vector<std::string>& names) {
    FeatureValues<TextField> columns;
    for (const std::string& name : names) {
      columns.push_back({name, {.max_bytes = 16}});
    }
    return columns;
  }

  static std::vector<std::string> Texts(const Source& source, uint64_t row) {
    const auto record = Record(source, row);
    std::vector<std::string> texts;
    for (size_t i = 0; i < record.size(); i += 2) {
      const auto bytes = Values<int64_t>(record[i + 1])[0];
      texts.push_back(record[i].substr(0, static_cast<size_t>(bytes)));
    }
    return texts;
  }

  // Rows of two columns of text, without a header.
  std::vector<std::vector<std::string>> Rows(const std::string& content) {
    const auto source = Open(CsvSource{.files = {{Write("rows", content)}},
                                       .columns = Texts({"a", "b"}),
                                       .header = false});
    std::vector<std::vector<std::string>> rows;
    for (uint64_t i = 0; i < source->record_count(); ++i) {
      rows.push_back(Texts(*source, i));
    }
    return rows;
  }
};

TEST_F(CsvTest, QuotesHideDelimitersAndLineEnds) {
  EXPECT_THAT(
      Rows("a,b\r\nc,\"d\"\n\"e,\n\r\n\",\"\"\"f\"\"\"\n\"\",g"),
      ElementsAre(ElementsAre("a", "b"), ElementsAre("c", "d"),
                  ElementsAre("e,\n\r\n", "\"f\""), ElementsAre("", "g")));
  // A quote within a value without quotes is a character.
  EXPECT_THAT(
      Rows("5\" pipe,x\ny, \"z\"\n"),
      ElementsAre(ElementsAre("5\" pipe", "x"), ElementsAre("y", " \"z\"")));
  EXPECT_THAT(Rows(",\n,x\r\n\"\"\"\",\"a\"\"\"\r\n"),
              ElementsAre(ElementsAre("", ""), ElementsAre("", "x"),
                          ElementsAre("\"", "a\"")));
}

TEST_F(CsvTest, EmptyLinesAreNoRows) {
  EXPECT_THAT(Rows("\n\r\na,b\n\n\r\n\nc,d\n\n"),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("c", "d")));
}

TEST_F(CsvTest, ColumnsAreFoundByTheHeaderOfEachFile) {
  const auto source = Open(
      CsvSource{.files = {{Write("a", "\xef\xbb\xbfx,\"y\"\"\nz\",w\n1,2,3\n"),
                           Write("b", "\r\nw,x,v,u,\"y\"\"\nz\"\n4,5,6,7,8")}},
                .columns = {{"x", {.max_bytes = 4}},
                            {"other", {.from = "y\"\nz", .max_bytes = 4}},
                            {"again", {.from = "x", .max_bytes = 4}}}});
  ASSERT_EQ(source->record_count(), 2u);
  EXPECT_THAT(Texts(*source, 0), ElementsAre("1", "2", "1"));
  EXPECT_THAT(Texts(*source, 1), ElementsAre("5", "8", "5"));
  EXPECT_EQ(source->Describe(1), folder_ + "/b, row 1 (offset 18)");
}

TEST_F(CsvTest, WithoutAHeaderColumnsHaveNumbers) {
  const auto source =
      Open(CsvSource{.files = {{Write("a", "p;q;r\n")}},
                     .columns = {{"first", {.max_bytes = 4}},
                                 {"last", {.from = "2", .max_bytes = 4}}},
                     .delimiter = ';',
                     .header = false});
  EXPECT_THAT(Texts(*source, 0), ElementsAre("p", "r"));
}

TEST_F(CsvTest, NumbersAreParsedInFull) {
  const auto source = Open(CsvSource{
      .files = {{Write("a",
                       "i,f,b\n -7 ,1e-3,True\n+8,inf,0\n127,3.4028235e+38,1\n"
                       "\"12\",\"-0.5\",false\n")}},
      .columns = {{"i", {.dtype = DType::kInt8}},
                  {"f", {.dtype = DType::kFloat32}},
                  {"b", {.dtype = DType::kBool}}}});
  EXPECT_THAT(Values<int8_t>(Record(*source, 0)[0]), ElementsAre(-7));
  EXPECT_THAT(Values<float>(Record(*source, 0)[1]), ElementsAre(1e-3f));
  EXPECT_EQ(Record(*source, 0)[2], std::string("\1"));
  EXPECT_THAT(Values<int8_t>(Record(*source, 1)[0]), ElementsAre(8));
  EXPECT_THAT(Values<float>(Record(*source, 1)[1]),
              ElementsAre(std::numeric_limits<float>::infinity()));
  EXPECT_THAT(Values<float>(Record(*source, 2)[1]),
              ElementsAre(std::numeric_limits<float>::max()));
  EXPECT_THAT(Values<int8_t>(Record(*source, 3)[0]), ElementsAre(12));
  EXPECT_EQ(Record(*source, 3)[2], std::string(1, 0));
}

TEST_F(CsvTest, NumbersAndNamesAreTakenAsOthersWriteThem) {
  const auto source = Open(CsvSource{
      .files = {{Write("a", "i, f ,\"b\"\n2.0,true,1.0\nFALSE,nan,0\n")}},
      .columns = {{"i", {.dtype = DType::kInt64}},
                  {"f", {.dtype = DType::kFloat32}},
                  {"b", {.dtype = DType::kBool}}}});
  EXPECT_THAT(Values<int64_t>(Record(*source, 0)[0]), ElementsAre(2));
  EXPECT_THAT(Values<float>(Record(*source, 0)[1]), ElementsAre(1));
  EXPECT_EQ(Record(*source, 0)[2], std::string("\1"));
  EXPECT_THAT(Values<int64_t>(Record(*source, 1)[0]), ElementsAre(0));
  EXPECT_TRUE(std::isnan(Values<float>(Record(*source, 1)[1])[0]));
}

TEST_F(CsvTest, EachWayToReadANumberGivesTheSame) {
  // Short decimals without quotes take a path of their own; strtod judges.
  std::vector<std::string> numbers = {"0",
                                      "-0",
                                      "-0.0",
                                      "1.",
                                      ".5",
                                      "-.5",
                                      "007",
                                      "1e5",
                                      "2.5E-3",
                                      "123456789012345",
                                      "1234567890123456",
                                      "0.123456789012345",
                                      "0.1234567890123456",
                                      "-9007199254740993",
                                      "18446744073709551616",
                                      "99999999999999999999999999999999.5",
                                      "0.3",
                                      "123456.789",
                                      "1e308",
                                      "5e-324",
                                      "000000000000000000.5"};
  std::mt19937_64 bits(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string number = bits() % 2 == 0 ? "-" : "";
    const size_t whole = bits() % 12;
    for (size_t j = 0; j < whole; ++j) {
      number += static_cast<char>('0' + bits() % 10);
    }
    const size_t fraction = whole == 0 ? 1 + bits() % 11 : bits() % 12;
    if (fraction > 0) number += '.';
    for (size_t j = 0; j < fraction; ++j) {
      number += static_cast<char>('0' + bits() % 10);
    }
    numbers.push_back(number);
  }
  std::string content;
  for (const std::string& each : numbers) {
    content += Format("{},\"{}\",{}\n", each, each, each);
  }
  const auto source =
      Open(CsvSource{.files = {{Write("numbers", content)}},
                     .columns = {{"plain", {.dtype = DType::kFloat64}},
                                 {"quoted", {.dtype = DType::kFloat64}},
                                 {"last", {.dtype = DType::kFloat64}},
                                 {"same", {.from = "2", .max_bytes = 48}}},
                     .header = false});
  for (uint64_t i = 0; i < numbers.size(); ++i) {
    const auto record = Record(*source, i);
    const auto wanted =
        std::bit_cast<uint64_t>(std::strtod(numbers[i].c_str(), nullptr));
    for (size_t field = 0; field < 3; ++field) {
      EXPECT_EQ(Values<uint64_t>(record[field])[0], wanted) << numbers[i];
    }
    EXPECT_EQ(record[3].substr(0, numbers[i].size()), numbers[i]);
  }
}

TEST_F(CsvTest, ADelimiterMayBeACharacterOfNumbers) {
  for (const char delimiter : {'-', '.', '5'}) {
    const auto source =
        Open(CsvSource{.files = {{Write("a", Format("1{}2\n", delimiter))}},
                       .columns = {{"x", {.dtype = DType::kFloat32}},
                                   {"y", {.dtype = DType::kFloat32}}},
                       .delimiter = delimiter,
                       .header = false});
    EXPECT_THAT(Values<float>(Record(*source, 0)[0]), ElementsAre(1));
    EXPECT_THAT(Values<float>(Record(*source, 0)[1]), ElementsAre(2));
  }
}

TEST_F(CsvTest, WhatIsWrongIsNamed) {
  const auto fails = [&](const std::string& row, DType dtype = DType::kInt8) {
    const auto source =
        Open(CsvSource{.files = {{Write("a", "x,y\n0,0\n" + row + "\n1,1\n")}},
                       .columns = {{"y", {.dtype = dtype}}}});
    EXPECT_EQ(source->record_count(), 3u) << row;
    Record(*source, 2);
    const std::string message = ReadFails(*source, 1);
    const std::string where = folder_ + "/a, row 2 (offset 8): ";
    EXPECT_THAT(message, testing::StartsWith(where));
    return message.substr(where.size());
  };
  EXPECT_EQ(fails("1"), "1 columns, wanted 2");
  EXPECT_EQ(fails("1,2,3"), "3 columns, wanted 2");
  EXPECT_EQ(fails("1,x"), "field 'y': wanted int8, found 'x'");
  EXPECT_EQ(fails("1,128"), "field 'y': wanted int8, found '128'");
  EXPECT_EQ(fails("1,1.5"), "field 'y': wanted int8, found '1.5'");
  EXPECT_EQ(fails("1,1 2"), "field 'y': wanted int8, found '1 2'");
  EXPECT_EQ(fails("1,+-2"), "field 'y': wanted int8, found '+-2'");
  EXPECT_EQ(fails("1,2", DType::kBool), "field 'y': wanted bool, found '2'");
  EXPECT_EQ(fails("1,1e39", DType::kFloat32),
            "field 'y': wanted float32, found '1e39'");
  EXPECT_EQ(fails("1, "),
            "field 'y' is empty; give it a `default` if that is right");
  EXPECT_EQ(fails("\"a\"b,1"), "column 1: text behind a closing quote");
  EXPECT_EQ(fails("a\rb,1"),
            "column 1: a carriage return without a newline; quote it, or "
            "convert the line ends");
  EXPECT_EQ(fails("\xff,1"), "not UTF-8 at offset 8 of the file");
  EXPECT_THAT(fails("1," + std::string(99, '1')),
              HasSubstr("found '" + std::string(32, '1') + "...'"));
}

TEST_F(CsvTest, AnEmptyValueTakesTheDefault) {
  const auto source = Open(CsvSource{
      .files = {{Write("a", "x,y\n,\n1,a\n")}},
      .columns = {{"x",
                   {.dtype = DType::kInt8,
                    .fallback = std::vector<std::byte>{std::byte{9}}}},
                  {"y",
                   {.max_bytes = 2,
                    .fallback = std::vector<std::byte>{std::byte{'-'}}}}}});
  EXPECT_EQ(Record(*source, 0)[0], "\x09");
  EXPECT_EQ(Record(*source, 0)[1], std::string("-\0", 2));
  EXPECT_EQ(Record(*source, 1)[1], std::string("a\0", 2));
}

TEST_F(CsvTest, AQuoteThatIsNotClosedIsFoundWhenTheFileIsOpened) {
  const auto refused = [&](const std::string& content) {
    return OpenFails(
        CsvSource{.files = {{Write("a", content)}}, .columns = Texts({"x"})},
        StatusCode::kDataLoss);
  };
  EXPECT_EQ(refused("x\n1\n\"2\n3\n"),
            folder_ +
                "/a: the row at offset 4 ends with the file, within quotes; is "
                "a quote not closed?");
  EXPECT_THAT(refused("x\n1\n\"" + std::string(17 << 20, 'y') + "\"\n2\n"),
              HasSubstr("the row at offset 4 has more than 16777216 bytes"));
  EXPECT_THAT(refused("\"x\n" + std::string(2 << 20, 'y') + "\"\n"),
              HasSubstr("its first row has no end within 1048576 bytes"));
  EXPECT_THAT(refused("\"x\ny"), HasSubstr("a quote is not closed"));
  EXPECT_THAT(refused(""), HasSubstr("no row in it; leave it out"));
}

TEST_F(CsvTest, ColumnsThatAreNotThereAreNamed) {
  const auto refused = [&](const CsvSource& spec) {
    return OpenFails(spec, StatusCode::kInvalidArgument);
  };
  const std::string a = Write("a", "x,y\n1,2\n");
  EXPECT_EQ(refused({.files = {{a}}, .columns = Texts({"z"})}),
            a + ": no column 'z'; its header has 'x', 'y'");
  const std::string twice = Write("twice", "x,x\n1,2\n");
  EXPECT_EQ(refused({.files = {{twice}}, .columns = Texts({"x"})}),
            twice + ": two columns are named 'x'");
  EXPECT_EQ(refused({.files = {{a}},
                     .columns = {{"x", {.from = "2", .max_bytes = 1}}},
                     .header = false}),
            a + ": its first row has 2 columns, numbered from 0; 'x' is "
                "column 2");
  EXPECT_EQ(refused({.files = {{a, Write("b", "1,2,3\n")}},
                     .columns = Texts({"x"}),
                     .header = false}),
            a + " has 2 columns, but " + folder_ +
                "/b has 3, and no header to name them");
  EXPECT_EQ(
      refused({.files = {{Write("h", "x\n\n")}}, .columns = Texts({"x"})}),
      "csv: no record in " + folder_ + "/h");
}

TEST_F(CsvTest, RowsThatCrossTheScansBlocksAreWhole) {
  std::string content = "a,b\n";
  std::vector<std::vector<std::string>> rows;
  for (int i = 0; content.size() < (size_t{3} << 20); ++i) {
    std::string text(static_cast<size_t>(i * 7919 % 9'000), 'x');
    for (size_t at = 0; at < text.size(); at += 97)
      text[at] = "\n,\"yz"[at % 5];
    std::string quoted;
    for (const char each : text) {
      quoted += each;
      if (each == '"') quoted += each;
    }
    rows.push_back({text, std::to_string(i)});
    content += '"' + quoted + "\"," + rows.back()[1] + "\n";
  }
  const auto source = Open(CsvSource{
      .files = {{Write("a", content)}},
      .columns = {{"a", {.max_bytes = 9000}}, {"b", {.max_bytes = 16}}}});
  ASSERT_EQ(source->record_count(), rows.size());
  for (uint64_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(Texts(*source, i), rows[i]);
  }
}

TEST_F(CsvTest, AFileThatIsChangedInPlaceIsAnError) {
  const std::string path = Write("a", "x\n1234567\n8\n");
  const auto source =
      Open(CsvSource{.files = {{path}}, .columns = Texts({"x"})});
  Write("a", "x\n123\n567\n8\n");
  EXPECT_THAT(ReadFails(*source, 0), HasSubstr("has changed since it was"));
  Write("a", "x\n");
  ReadFails(*source, 0);
}

}  // namespace penstock::csv_test
