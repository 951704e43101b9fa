// source: tokens. Sequences of tokens from flat files, raw or .npy: no sequence
// crosses from one file to the next.
#ifndef BROKER_SOURCE_TOKENS_H_
#define BROKER_SOURCE_TOKENS_H_

#include <optional>

#include "broker/index/data_files.h"
#include "broker/source/source.h"

namespace penstock {

struct TokensSource {
  enum class Stored { kUint16, kUint32, kInt32, kInt64 };
  enum class Targets { kShifted, kNone };

  FilePatterns files;
  std::optional<Stored> dtype;  // absent: what a .npy file says, else uint16
  uint64_t header_bytes = 0;    // skipped at the start of each raw file
  uint64_t sequence_length = 0;
  std::optional<uint64_t> stride;  // absent: sequence_length
  Targets targets = Targets::kShifted;
  DType output_dtype = DType::kInt64;  // or kInt32
  Io io = Io::kAuto;
  bool operator==(const TokensSource&) const = default;

  static const Declaration<TokensSource>& Declared();
  StatusOr<std::unique_ptr<Source>> Open(OpenProgress* progress) const;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_TOKENS_H_
