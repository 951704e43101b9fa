// Words and numbers of a row as tokens: what lookup and hash take.
//
// A feature of uint8 with a dimension is text, or several: of NAME_bytes bytes
// each, if the row has that feature, else without the zeros at its end, as
// NumPy's S. Other integers are tokens of their decimal digits. Of a list of
// NAME.length of them, those behind its end are none.
#ifndef BROKER_TRANSFORM_TOKEN_INPUT_H_
#define BROKER_TRANSFORM_TOKEN_INPUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/transform/row_builder.h"
#include "common/status.h"

namespace penstock {

// Room of a list of tokens that a step makes.
inline constexpr int64_t kListTokensMax = int64_t{1} << 24;

struct Token {
  std::string_view text;
  std::optional<int64_t> whole;  // of integers
};

// Where the tokens of a feature are. Immutable once found.
struct TokenInput {
  std::string name;
  bool is_text = false;
  bool has_lengths = false;  // taken[1]: of a text, or of each
  bool is_list = false;      // taken[1]: of the list
  DType dtype = DType::kUint8;
  uint64_t room = 0;           // of a text, bytes
  std::vector<int64_t> shape;  // of the tokens
  uint64_t count = 0;
  std::vector<PathBuilder*> taken;

  // How many tokens a row has. DataLoss, here and below: its length is none.
  StatusOr<uint64_t> CountIn(
      std::span<const std::span<const std::byte>> in) const;
  // The text of a row.
  StatusOr<std::string_view> TextOf(
      std::span<const std::span<const std::byte>> in, uint64_t i) const;
};

// InvalidArgument: floating-point values, bools.
StatusOr<TokenInput> FindTokens(const RowBuilder& row, const std::string& name);
// Only text. InvalidArgument: numbers.
StatusOr<TokenInput> FindTexts(const RowBuilder& row, const std::string& name);

// A number for each token, int64.
class TokenStage : public RowStage {
 public:
  explicit TokenStage(TokenInput input);

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey&,
             std::span<std::byte* const> out) const final;

 private:
  // DataLoss: it has none.
  virtual Status NumberOf(const Token& token, int64_t* number) const = 0;

  const TokenInput input_;
  void (*const widen_)(const std::byte*, const std::byte*, ptrdiff_t,
                       std::byte*, ptrdiff_t, int64_t);
};

// Replaces tokens by their numbers.
Status AddTokenStage(RowBuilder* row, const TokenInput& input,
                     std::unique_ptr<TokenStage> stage);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_TOKEN_INPUT_H_
