// The input is a vocabulary, a file of statistics, and a text with a length
// that may be none. Each file is refused as documented, or its tokens have
// their numbers; of the text every step of words makes a row, or refuses it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "broker/transform/row_program.h"
#include "tests/fuzz/file_of.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr int64_t kRoom = 24;

RawSpec Row() {
  return {{{"w", DType::kUint8, {kRoom}}, false},
          {{"w_bytes", DType::kInt64, {}}, false},
          {{"x", DType::kFloat32, {2}}, false}};
}

// The row of a text of these bytes, with zeros or the text's end behind it.
Status Run(const RowProgram& program, std::string_view text, int64_t bytes,
           std::vector<std::vector<std::byte>>* row) {
  std::vector<std::byte> room(kRoom);
  std::memcpy(room.data(), text.data(), std::min<size_t>(text.size(), kRoom));
  const float x[2] = {1, -1};
  const RawRecord record = {room, std::as_bytes(std::span(&bytes, 1)),
                            std::as_bytes(std::span(x))};
  std::vector<std::byte*> out;
  row->clear();
  for (const Feature& each : program.element_spec()) {
    row->emplace_back(each.RowBytes());
  }
  for (auto& each : *row) out.push_back(each.data());
  const auto scratch = program.MakeScratch({});
  const Status status = program.Run(record, {}, *scratch, out);
  Require(status.ok() || status.code() == StatusCode::kDataLoss,
          "a row is refused as documented");
  return status;
}

// Such text has to be UTF-8.
bool SplitsCharacters(const TransformSpec& op) {
  const auto* const vectorize = std::get_if<VectorizeTextOp>(&op);
  return vectorize != nullptr &&
         vectorize->split == WordRules::Split::kCharacter;
}

void CheckMap(const TransformSpec& op, std::string_view text, int64_t bytes) {
  const auto program = RowProgram::Compile({op}, Row());
  if (!program.ok()) {
    Require(program.status().code() == StatusCode::kInvalidArgument,
            "a file is refused as documented");
    return;
  }
  std::vector<std::vector<std::byte>> row;
  const Status status = Run(**program, text, bytes, &row);
  Require(status.ok() == (bytes >= 0 && bytes <= kRoom) ||
              std::holds_alternative<ParseJsonOp>(op) ||
              std::holds_alternative<NormalizeOp>(op) || SplitsCharacters(op),
          "a text is refused for its length only");
}

void Check(std::string_view input) {
  if (input.empty()) return;
  const auto bytes = static_cast<int8_t>(input[0]);
  const std::string_view file = input.substr(1);
  const std::string_view text = file.substr(0, kRoom);
  for (const std::optional<std::string>& mask :
       {std::optional<std::string>(), std::optional<std::string>("")}) {
    LookupOp lookup = {.feature = {"w"}, .mask = mask};
    lookup.vocabulary.file = FileOf(file);
    CheckMap(lookup, text, bytes);
    lookup.vocabulary.file.clear();
    lookup.vocabulary.from = {{.file = FileOf(file)}};
    CheckMap(lookup, text, bytes);
  }
  VectorizeTextOp vectorize = {
      .feature = {"w"}, .max_length = 4, .longer = Longer::kCut};
  vectorize.vocabulary.file = FileOf(file);
  CheckMap(vectorize, text, bytes);
  vectorize.ngrams = {1, 3};
  vectorize.output = VectorizeTextOp::Output::kTfIdf;
  vectorize.vocabulary = {.from = {{.file = FileOf(file)}}};
  CheckMap(vectorize, text, bytes);
  vectorize.vocabulary = {.tokens = {"a", "b c"}};
  vectorize.idf = FileOf(file);
  CheckMap(vectorize, text, bytes);
  vectorize.split = WordRules::Split::kCharacter;
  vectorize.output = VectorizeTextOp::Output::kCount;
  CheckMap(vectorize, text, bytes);
  CheckMap(EncodeBytesOp{.feature = {"w"}, .offset = 3, .end = 1}, text, bytes);
  CheckMap(NormalizeOp{.feature = {"x"}, .from = FileOf(file)}, text, bytes);
  CheckMap(HashOp{.feature = {"w"}, .bins = 7}, text, bytes);
  CheckMap(PadSequenceOp{.feature = {"w"}, .length = 5}, text, bytes);
  CheckMap(
      ParseJsonOp{.feature = "w", .fields = {{"a", {.dtype = DType::kInt8}}}},
      text, bytes);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
