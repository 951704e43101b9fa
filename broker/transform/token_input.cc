#include "broker/transform/token_input.h"

#include <charconv>

#include "broker/transform/pixel_pass.h"
#include "broker/transform/values.h"

namespace penstock {

StatusOr<std::string_view> TokenInput::TextOf(
    std::span<const std::span<const std::byte>> in, uint64_t i) const {
  const std::string_view all(
      reinterpret_cast<const char*>(in[0].data()) + i * room, room);
  if (!has_lengths) return all.substr(0, all.find_last_not_of('\0') + 1);
  const auto bytes = ValueAt<int64_t>(in[1].data() + i * sizeof(int64_t));
  if (bytes < 0 || static_cast<uint64_t>(bytes) > room) {
    return DataLossError("a text of {} bytes where {} have room", bytes, room);
  }
  return all.substr(0, static_cast<size_t>(bytes));
}

StatusOr<TokenInput> FindTokens(const RowBuilder& row,
                                const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const path, row.Find(name));
  PENSTOCK_RETURN_IF_ERROR(path->CheckIntegers(
      "bucketize makes integers of them, and `cast: {dtype: int64}`"));
  const Feature& feature = path->feature();
  TokenInput input;
  input.name = feature.name;
  input.dtype = feature.dtype;
  input.shape = feature.shape;
  input.taken.push_back(path);
  if (feature.dtype == DType::kUint8 && !feature.shape.empty() &&
      !row.IsList(*path)) {
    input.is_text = true;
    input.room = static_cast<uint64_t>(feature.shape.back());
    input.shape.pop_back();
  }
  if (PathBuilder* const lengths = row.LengthOf(*path)) {
    input.has_lengths = input.is_text;
    input.is_list = !input.is_text;
    input.taken.push_back(lengths);
  }
  input.count = 1;
  for (const int64_t side : input.shape) {
    input.count *= static_cast<uint64_t>(side);
  }
  return input;
}

StatusOr<TokenInput> FindTexts(const RowBuilder& row, const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const path, row.Find(name));
  PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
  if (path->feature().dtype == DType::kUint8 &&
      !path->feature().shape.empty()) {
    return FindTokens(row, name);
  }
  return InvalidArgumentError(
      "wants text, uint8 [bytes], found {}; `feature: NAME` chooses another",
      path->feature().ToString());
}

StatusOr<uint64_t> TokenInput::CountIn(
    std::span<const std::span<const std::byte>> in) const {
  if (!is_list) return count;
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t length,
                            ItemsOf(name, shape[0], in[1]));
  return count / static_cast<uint64_t>(shape[0]) *
         static_cast<uint64_t>(length);
}

TokenStage::TokenStage(TokenInput input)
    : input_(std::move(input)),
      widen_(CastKernel(input_.dtype, DType::kInt64)) {}

Status TokenStage::Run(std::span<const std::span<const std::byte>> in,
                       const AugmentationKey&,
                       std::span<std::byte* const> out) const {
  char digits[24];
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t count, input_.CountIn(in));
  std::memset(out[0] + count * sizeof(int64_t), 0,
              (input_.count - count) * sizeof(int64_t));
  if (input_.is_list) std::memcpy(out[1], in[1].data(), sizeof(int64_t));
  for (uint64_t i = 0; i < count; ++i) {
    Token token;
    if (input_.is_text) {
      PENSTOCK_ASSIGN_OR_RETURN(token.text, input_.TextOf(in, i));
    } else {
      int64_t whole = 0;
      widen_(nullptr, in[0].data() + i * DTypeBytes(input_.dtype), 1,
             reinterpret_cast<std::byte*>(&whole), 1, 1);
      const auto end = std::to_chars(digits, std::end(digits), whole).ptr;
      token = {{digits, static_cast<size_t>(end - digits)}, whole};
    }
    int64_t number = 0;
    PENSTOCK_RETURN_IF_ERROR(NumberOf(token, &number));
    Store(number, out[0] + i * sizeof(int64_t));
  }
  return OkStatus();
}

Status AddTokenStage(RowBuilder* row, const TokenInput& input,
                     std::unique_ptr<TokenStage> stage) {
  ElementSpec made = {{input.name, DType::kInt64, input.shape}};
  // Steps replace what they take.
  if (input.is_list) made.push_back(input.taken[1]->feature());
  return row->AddStep(input.taken, made, std::move(stage));
}

}  // namespace penstock
