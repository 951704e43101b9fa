// The lower half of the parser of dataset specs, and of the broker's
// configuration: text -> a tree that knows the
// line and column of every node -> typed values with error messages that say
// where.
//
// The text comes from any user of the host. yaml-cpp's scanner reads it and
// its events build the tree, so that what a spec may not have (anchors,
// aliases, tags, nesting beyond kSpecDepthMax) ends the parse where it stands,
// before yaml-cpp recurses or expands anything. No exception leaves ReadYaml.
// One thread; no state.
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

namespace penstock {

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  int line = 1;  // of its first character; from 1
  int column = 1;
  bool plain = false;           // kScalar: written without quotes
  std::string text;             // kScalar
  std::vector<YamlNode> keys;   // kMapping: scalars, all different
  std::vector<YamlNode> items;  // kSequence, kMapping: values in keys' order
};

// The one document in text; kNull when there is nothing in it. Errors:
// InvalidArgument "FILE:LINE:COL: message", columns counted in characters. file
// "": a program wrote the text, and its lines tell nobody anything: "spec:
// PATH: message", also from SpecValue.
StatusOr<YamlNode> ReadYaml(std::string_view text, const std::string& file);

// text in single quotes, cut and escaped so that it fits into a message.
std::string Quoted(std::string_view text);

// "did you mean 'x'?" when one of the choices is near, else "known are a, b".
std::string Suggestion(std::string_view word,
                       const std::vector<std::string_view>& choices);

// A node and its dotted path from the document's root ("map[2].flip"), or the
// place where an absent one would be.
//
// Readers check a value's type and range and store it in *out. An absent value
// is an error when it was asked for with Required; else *out keeps its default.
class SpecValue {
 public:
  SpecValue(const YamlNode& root, const std::string& file)
      : node_(&root), file_(&file), line_(root.line), column_(root.column) {}

  bool present() const { return node_ != nullptr; }
  bool IsScalar() const { return Is(YamlNode::Kind::kScalar); }
  bool IsSequence() const { return Is(YamlNode::Kind::kSequence); }
  bool IsMapping() const { return Is(YamlNode::Kind::kMapping); }
  // Present and this word, quoted or not.
  bool IsWord(std::string_view word) const {
    return IsScalar() && node_->text == word;
  }
  // A number as Int reads it, of whatever size.
  bool IsWholeNumber() const;
  // true or false, as Bool reads it.
  bool IsBool() const;

  // A mapping that has none but these keys. wanted stands before their list in
  // the message.
  Status CheckMapping(const std::vector<std::string_view>& known_keys,
                      std::string_view wanted = "a mapping of") const;
  // The one of these keys that the mapping has.
  StatusOr<std::string_view> OneOf(
      const std::vector<std::string_view>& keys) const;
  SpecValue Optional(std::string_view key) const { return Member(key, false); }
  SpecValue Required(std::string_view key) const { return Member(key, true); }

  // A list of min to max items.
  Status CheckSequence(size_t min, size_t max, std::string_view wanted) const;
  // Of a sequence or mapping; else 0.
  size_t size() const { return node_ ? node_->items.size() : 0; }
  SpecValue Item(size_t i) const;          // of a sequence
  const std::string& Key(size_t i) const;  // of a mapping
  Status KeyError(size_t i, const std::string& message) const;

  Status Uint(uint64_t min, uint64_t max, uint64_t* out) const;
  Status Int(int64_t min, int64_t max, int64_t* out) const;
  Status Double(double min, double max, double* out) const;
  Status Bool(bool* out) const;
  // Any scalar without control characters.
  Status String(std::string* out) const;
  // Absolute and lexically normal; a relative one is taken from base_dir.
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
  // For a scalar that is none of the words it may be.
  Status UnknownWord(const std::vector<std::string_view>& words) const;

  // InvalidArgument "FILE:LINE:COL: PATH: message".
  Status Error(const std::string& message) const;
  // "wanted ..., found ...", or that it is missing.
  Status Wanted(std::string_view wanted) const;
  // What a reader returns for an absent value.
  Status Absent() const;

 private:
  SpecValue() = default;
  SpecValue Member(std::string_view key, bool required) const;
  bool Is(YamlNode::Kind kind) const { return node_ && node_->kind == kind; }

  const YamlNode* node_ = nullptr;  // null: absent
  const std::string* file_ = nullptr;
  std::string path_;
  int line_ = 1;  // of the node; of the mapping it is missing in, when absent
  int column_ = 1;
  bool required_ = false;
};

}  // namespace penstock
#endif  // COMMON_DATASET_SPEC_YAML_H_
