// The lower half of the parser of dataset specs and of the broker's
// configuration: text -> a tree with line and column of every node -> typed
// values, with error messages that name the position.
//
// Any user of the host may send the text. yaml-cpp's scanner reads it, and its
// events build the tree. Forbidden constructs (anchors, aliases, tags, nesting
// beyond kSpecDepthMax) therefore stop the parse before yaml-cpp recurses or
// expands anything. No exception leaves ReadYaml. Single-threaded, stateless.
#ifndef COMMON_DATASET_SPEC_YAML_H_
#define COMMON_DATASET_SPEC_YAML_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/text_file.h"

namespace penstock {

// Beside kSpecBytesMax.
inline constexpr int kSpecDepthMax = 32;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  int line = 1;  // of the first character; from 1
  int column = 1;
  bool plain = false;           // kScalar: written without quotes
  std::string text;             // kScalar
  std::vector<YamlNode> keys;   // kMapping: scalars, no duplicates
  std::vector<YamlNode> items;  // kSequence, kMapping: values in keys' order
};

// The one document in text; kNull if it is empty. Errors: InvalidArgument
// "FILE:LINE:COL: message", columns counted in characters. file "": a
// program wrote the text, so line numbers are useless: messages read "spec:
// PATH: message", also from SpecValue.
StatusOr<YamlNode> ReadYaml(std::string_view text, const std::string& file);

// text in single quotes, truncated and escaped to fit into a message.
std::string Quoted(std::string_view text);

// "did you mean 'x'?" if a choice is close, else "known are a, b".
std::string Suggestion(std::string_view word,
                       const std::vector<std::string_view>& choices);

// A node with its dotted path from the document's root ("map[2].flip"); or an
// absent node with the position where it belongs.
//
// Readers check a value's type and range and store it in *out. An absent value
// is an error if requested with Required; otherwise *out keeps its default.
class SpecValue {
 public:
  SpecValue(const YamlNode& root, const std::string& file)
      : node_(&root), file_(&file), line_(root.line), column_(root.column) {}

  bool present() const { return node_ != nullptr; }
  bool IsScalar() const { return Is(YamlNode::Kind::kScalar); }
  bool IsSequence() const { return Is(YamlNode::Kind::kSequence); }
  bool IsMapping() const { return Is(YamlNode::Kind::kMapping); }
  // True if present and equal to word, quoted or not.
  bool IsWord(std::string_view word) const {
    return IsScalar() && node_->text == word;
  }
  // A number that Int can read, of any size.
  bool IsWholeNumber() const;
  // true or false, as Bool reads it.
  bool IsBool() const;

  // Checks for a mapping with no other keys than these. wanted precedes the
  // list of keys in the message.
  Status CheckMapping(const std::vector<std::string_view>& known_keys,
                      std::string_view wanted = "a mapping of") const;
  // Returns the only one of these keys that is present.
  StatusOr<std::string_view> OneOf(
      const std::vector<std::string_view>& keys) const;
  SpecValue Optional(std::string_view key) const { return Member(key, false); }
  SpecValue Required(std::string_view key) const { return Member(key, true); }

  // Checks for a list of min to max items.
  Status CheckSequence(size_t min, size_t max, std::string_view wanted) const;
  // Items of a sequence or mapping; else 0.
  size_t size() const { return node_ ? node_->items.size() : 0; }
  SpecValue Item(size_t i) const;          // of a sequence
  const std::string& Key(size_t i) const;  // of a mapping
  Status KeyError(size_t i, const std::string& message) const;

  Status Uint(uint64_t min, uint64_t max, uint64_t* out) const;
  Status Int(int64_t min, int64_t max, int64_t* out) const;
  Status Double(double min, double max, double* out) const;
  Status Bool(bool* out) const;
  // Reads any scalar without control characters.
  Status String(std::string* out) const;
  // Reads a path; makes it absolute (against base_dir) and lexically normal.
  Status Path(const std::string& base_dir, std::string* out) const;
  template <typename T>
  Status Word(std::initializer_list<std::pair<std::string_view, T>> choices,
              T* out) const {
    if (!present()) return Absent();
    std::vector<std::string_view> words;
    for (const auto& [word, value] : choices) {
      if (IsWord(word)) {
        *out = value;
        return OkStatus();
      }
      words.push_back(word);
    }
    return UnknownWord(words);
  }
  // Error for a scalar that is none of the accepted words.
  Status UnknownWord(const std::vector<std::string_view>& words) const;

  // InvalidArgument "FILE:LINE:COL: PATH: message".
  Status Error(const std::string& message) const;
  // Error "wanted ..., found ..." or "... is missing".
  Status Wanted(std::string_view wanted) const;
  // The result of reading an absent value.
  Status Absent() const;

 private:
  SpecValue() = default;
  SpecValue Member(std::string_view key, bool required) const;
  bool Is(YamlNode::Kind kind) const { return node_ && node_->kind == kind; }

  const YamlNode* node_ = nullptr;  // null: absent
  const std::string* file_ = nullptr;
  std::string path_;
  int line_ = 1;  // of the node; if absent, of the enclosing mapping
  int column_ = 1;
  bool required_ = false;
};

}  // namespace penstock
#endif  // COMMON_DATASET_SPEC_YAML_H_
