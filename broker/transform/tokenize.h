// map: tokenize. Texts, and chats, to tokens by Hugging Face's tokenizers, in
// processes of Python.
#ifndef BROKER_TRANSFORM_TOKENIZE_H_
#define BROKER_TRANSFORM_TOKENIZE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/text_field.h"
#include "broker/transform/picture.h"
#include "broker/transform/row_function.h"

namespace penstock {

// The text is JSON of a chat, which a template writes.
struct ChatSpec {
  std::string config;         // tokenizer_config.json; "": none
  std::string template_file;  // "": that of config
  std::vector<std::string> train_on = {"assistant"};
  std::string mask = "loss_mask";
  std::string labels;                // "": none
  FeatureValues<std::string> roles;  // other names of roles
  std::string variables = "{}";      // of the template, as JSON
  bool operator==(const ChatSpec&) const = default;

  static const Declaration<ChatSpec>& Declared();
};

struct TokenizeOp {
  FeatureNames feature = DefaultText();  // one text, or a pair
  std::string file;                      // tokenizer.json
  int64_t max_length = 0;
  Longer longer = Longer::kFail;
  bool add_special_tokens = true;
  std::string to;        // "": as the first text
  std::string type_ids;  // "": none
  DType dtype = DType::kInt32;
  std::optional<ChatSpec> chat;
  bool operator==(const TokenizeOp&) const = default;

  static const Declaration<TokenizeOp>& Declared();
  // python_tokenizer.py.
  static std::string_view Program();
  // That of the file, without its folder.
  std::string Name() const { return file.substr(file.rfind('/') + 1); }
  // Reads the file with the access of opening: the processes are given what it
  // has now.
  StatusOr<std::unique_ptr<RowFunction>> Open(const RawSpec& inputs,
                                              const FunctionOptions& options,
                                              MapOpening* opening) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_TOKENIZE_H_
