// The input is a line of JSON. It is refused as documented, or becomes a row of
// its own: text in UTF-8 behind which are zeros, and no byte of another row.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "broker/source/json_lines.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

using Pointers = std::vector<std::vector<std::string>>;

// Parses into a scratch of foreign bytes.
Status Parse(std::string_view line, const FieldRows& rows,
             const Pointers& pointers, std::byte foreign,
             std::vector<std::byte>* scratch) {
  scratch->assign(rows.bytes() + 99, foreign);
  const Status status = ParseJsonLine(line, rows, pointers, scratch);
  Require(status.ok() || status.code() == StatusCode::kDataLoss,
          "a line is refused as documented");
  return status;
}

void Check(std::string_view line) {
  // One field each: others do not hide what it does.
  static const std::vector<TextField> fields = {
      {.dtype = DType::kInt8},
      {.dtype = DType::kInt64},
      {.dtype = DType::kFloat16, .shape = {2}},
      {.dtype = DType::kFloat32, .shape = {1, 2}},
      {.dtype = DType::kFloat64},
      {.dtype = DType::kBool},
      {.dtype = DType::kInt8, .max_length = 2},
      {.dtype = DType::kFloat32, .shape = {2}, .max_length = 3},
      {.max_bytes = 5},
      {.max_bytes = 9, .json = true}};
  static const Pointers pointers = {{"x"}};
  static const Pointers deep = {{"x", "0", "y"}};
  // As the source checks it before.
  if (FindNotUtf8(line)) return;
  for (const TextField& field : fields) {
    const FieldRows rows({{"x", field}}, Longer::kCut);
    for (const Pointers& pointer : {pointers, deep}) {
      std::vector<std::byte> one;
      std::vector<std::byte> other;
      const bool parsed =
          Parse(line, rows, pointer, std::byte{0x55}, &one).ok();
      Require(
          parsed == Parse(line, rows, pointer, std::byte{0xaa}, &other).ok(),
          "a line is parsed or not");
      if (!parsed) continue;
      Require(std::memcmp(one.data(), other.data(), rows.bytes()) == 0,
              "a row has no byte of another");
      if (!field.max_bytes && !field.max_length) continue;
      int64_t bytes = 0;
      std::memcpy(&bytes, one.data() + rows.bytes() - sizeof(bytes),
                  sizeof(bytes));
      const uint64_t room =
          field.max_bytes.value_or(field.max_length.value_or(0));
      Require(bytes >= 0 && static_cast<uint64_t>(bytes) <= room,
              "texts and lists have room");
      if (!field.max_bytes) continue;
      Require(!FindNotUtf8({reinterpret_cast<const char*>(one.data()),
                            static_cast<size_t>(bytes)}),
              "text is UTF-8");
    }
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
