// YAML text -> a tree with line and column of every node -> values, with error
// messages that name the position.
//
// Any user of the host may send the text. yaml-cpp's scanner reads it, and its
// events build the tree. Forbidden constructs (anchors, aliases, tags, nesting
// beyond kSpecDepthMax) therefore stop the parse before yaml-cpp recurses or
// expands anything. No exception leaves ReadYaml. Single-threaded, stateless.
#ifndef BROKER_DECLARE_YAML_H_
#define BROKER_DECLARE_YAML_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
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
// PATH: message", also from YamlValue.
StatusOr<YamlNode> ReadYaml(std::string_view text, const std::string& file,
                            size_t bytes_max = kSpecBytesMax);

// text in single quotes, truncated and escaped to fit into a message.
std::string Quoted(std::string_view text);

// What is wrong with text as a path, where it is an address ("s3://bucket/a");
// else "".
std::string WhyNoPath(std::string_view text);
// "s3" of "s3://bucket/key"; "": it is no address.
std::string_view SchemeOf(std::string_view text);

// "did you mean 'x'?" if a choice is close, else "known are a, b".
std::string Suggestion(std::string_view word,
                       const std::vector<std::string_view>& choices);

// What error messages begin with, and the folder of relative paths.
struct YamlPlace {
  std::string file;
  std::string base_dir;
};

// A node with its dotted path from the document's root ("map[2].flip"); or an
// absent node with the position where it belongs. Its root and place outlive
// it.
class YamlValue {
 public:
  YamlValue(const YamlNode& root, const YamlPlace& place)
      : node_(&root), place_(&place), line_(root.line), column_(root.column) {}

  bool present() const { return node_ != nullptr; }
  // Nothing is written there: `key:`.
  bool IsNull() const { return Is(YamlNode::Kind::kNull); }
  bool IsScalar() const { return Is(YamlNode::Kind::kScalar); }
  bool IsSequence() const { return Is(YamlNode::Kind::kSequence); }
  bool IsMapping() const { return Is(YamlNode::Kind::kMapping); }
  // True if present and equal to word, quoted or not.
  bool IsWord(std::string_view word) const {
    return IsScalar() && node_->text == word;
  }
  // The text of a scalar; else "".
  std::string_view Scalar() const {
    return IsScalar() ? std::string_view(node_->text) : std::string_view();
  }
  // A whole number of any size, in digits.
  bool IsWholeNumber() const;
  // true or false, unquoted.
  bool IsBool() const;
  // A number that *out can hold, unquoted; else *out is left alone.
  bool IsNumber(int64_t* out) const;
  bool IsNumber(uint64_t* out) const;
  bool IsNumber(double* out) const;

  // Checks for a mapping with no other keys than these. wanted: for a value of
  // another kind, as in Wanted.
  Status CheckMapping(const std::vector<std::string_view>& known_keys,
                      std::string_view wanted) const;
  // Returns the only one of these keys that is present.
  StatusOr<std::string_view> OneOf(
      const std::vector<std::string_view>& keys) const;
  YamlValue Optional(std::string_view key) const { return Member(key, false); }
  YamlValue Required(std::string_view key) const { return Member(key, true); }

  // Checks for a list of min to max items.
  Status CheckSequence(size_t min, size_t max, std::string_view wanted) const;
  // Items of a sequence or mapping; else 0.
  size_t size() const { return node_ ? node_->items.size() : 0; }
  YamlValue Item(size_t i) const;          // of a sequence
  const std::string& Key(size_t i) const;  // of a mapping
  Status KeyError(size_t i, const std::string& message) const;

  // These check a present value and store it in *out.
  // Any scalar without control characters.
  Status String(std::string* out) const;
  // A path; made absolute (against base_dir) and lexically normal.
  Status Path(std::string* out) const;
  // Also an address, as it is.
  Status PathOrAddress(std::string* out) const;
  // One of the words; *out: its index.
  Status Word(const std::vector<std::string_view>& words,
              std::string_view wanted, size_t* out) const;

  // InvalidArgument "FILE:LINE:COL: PATH: message".
  Status Error(const std::string& message) const;
  // Error "wanted ..., found ..." or "... is missing".
  Status Wanted(std::string_view wanted) const;
  // The result of reading an absent value: an error if it was requested with
  // Required.
  Status Absent() const;

 private:
  YamlValue() = default;
  YamlValue Member(std::string_view key, bool required) const;
  bool Is(YamlNode::Kind kind) const { return node_ && node_->kind == kind; }

  const YamlNode* node_ = nullptr;  // null: absent
  const YamlPlace* place_ = nullptr;
  std::string path_;
  int line_ = 1;  // of the node; if absent, of the enclosing mapping
  int column_ = 1;
  bool required_ = false;
};

}  // namespace penstock
#endif  // BROKER_DECLARE_YAML_H_
