#include "broker/declare/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "common/printable.h"

namespace penstock {
namespace {

constexpr size_t kQuotedBytesMax = 60;
constexpr size_t kPathBytesMax = 4095;  // PATH_MAX without the final zero
// The search for duplicate keys is linear; no legal mapping has this many.
constexpr size_t kKeysMax = 256;

Status ErrorAt(const std::string& file, int line, int column,
               const std::string& path, const std::string& message) {
  const std::string of_path = path.empty() ? "" : path + ": ";
  if (file.empty()) return InvalidArgumentError("spec: {}{}", of_path, message);
  return InvalidArgumentError("{}:{}:{}: {}{}", file, line, column, of_path,
                              message);
}

bool IsControl(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

// "s3" of "s3://bucket/key" (RFC 3986), "pipe" of "pipe:curl ..." (webdataset);
// "" of a path.
// Checks for UTF-8 text without control characters.
Status CheckCharacters(std::string_view text, const std::string& file) {
  int line = 1;
  int column = 1;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t bytes = Utf8Bytes(text, i);
    if (bytes == 0) {
      return ErrorAt(file, line, column, "",
                     Format("byte 0x{:02x} is not UTF-8 text",
                            static_cast<unsigned char>(c)));
    }
    if (IsControl(c) && c != '\n' && c != '\t' && c != '\r') {
      return ErrorAt(
          file, line, column, "",
          Format("control character 0x{:02x}", static_cast<unsigned char>(c)));
    }
    ++column;
    if (c == '\n') {
      ++line;
      column = 1;
    }
    i += bytes;
  }
  return OkStatus();
}

// Thrown through yaml-cpp's parser to stop it.
struct Refused {
  YAML::Mark mark;
  std::string message;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::string_view text) : text_(text) {
    line_starts_.push_back(0);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') line_starts_.push_back(i + 1);
    }
  }

  bool has_document() const { return documents_ > 0; }
  YamlNode TakeRoot() { return std::move(root_); }

  // The path of the current node, "map[2].flip", as in YamlValue. Keys are
  // untrusted text: truncated and escaped.
  std::string Path() const {
    std::string path;
    for (const auto& [node, mark, block] : open_) {
      if (node.kind == YamlNode::Kind::kSequence) {
        path += Format("[{}]", node.items.size());
      } else if (node.keys.size() > node.items.size()) {
        const std::string key = Quoted(node.keys.back().text);
        path += (path.empty() ? "" : ".") + key.substr(1, key.size() - 2);
      }
    }
    return path;
  }

  // yaml-cpp counts lines and bytes from 0; we count lines and characters from
  // 1.
  void Place(const YAML::Mark& mark, int* line, int* column) {
    *line = 1;
    *column = 1;
    if (mark.is_null() || mark.line < 0 || mark.column < 0) return;
    *line = mark.line + 1;
    // Continues from the last position, because a whole text may be one line.
    if (mark.line != counted_line_ || mark.column < counted_bytes_) {
      counted_line_ = mark.line;
      counted_bytes_ = 0;
      counted_characters_ = 0;
    }
    const std::string_view between =
        Line(mark.line)
            .substr(0, static_cast<size_t>(mark.column))
            .substr(static_cast<size_t>(counted_bytes_));
    counted_bytes_ += static_cast<int>(between.size());
    counted_characters_ += static_cast<int>(std::count_if(
        between.begin(), between.end(),
        [](char c) { return static_cast<unsigned char>(c) >> 6 != 2; }));
    *column = counted_characters_ + 1;
  }

  // Rewords yaml-cpp's errors so that they name the remedy.
  Refused Explain(const YAML::Exception& error) const {
    const std::string_view message = error.msg;
    if ((message == YAML::ErrorMsg::END_OF_MAP_FLOW ||
         message == YAML::ErrorMsg::END_OF_SEQ_FLOW) &&
        !open_.empty()) {
      return {open_.back().mark, "this bracket is never closed"};
    }
    // yaml-cpp 0.8 appends the alias's name.
    if (message.starts_with(YAML::ErrorMsg::UNKNOWN_ANCHOR)) {
      return Alias(error.mark);
    }
    Refused refused{error.mark, "not YAML: " + error.msg};
    const std::string_view line = Line(error.mark.line);
    const size_t indentation = line.find_first_not_of(" \t");
    if (line.substr(0, indentation).find('\t') != std::string_view::npos) {
      refused.message += " (there is a tab before it; YAML indents by spaces)";
    }
    return refused;
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw Refused{mark, "a second document begins here"};
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add(Node(YamlNode::Kind::kNull, mark, "?", anchor), mark);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Alias(mark);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag,
                YAML::anchor_t anchor, const std::string& value) override {
    YamlNode node = Node(YamlNode::Kind::kScalar, mark, tag, anchor);
    // The text was UTF-8, but yaml-cpp turns \N and \_ into single bytes.
    for (size_t i = 0; i < value.size(); i += Utf8Bytes(value, i)) {
      if (Utf8Bytes(value, i) != 0) continue;
      throw Refused{mark,
                    "the escapes \\N and \\_ are not understood here; "
                    "write \\x85 and \\xa0"};
    }
    node.plain = tag != "!";
    node.text = value;
    Add(std::move(node), mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag,
                       YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    Open(YamlNode::Kind::kSequence, mark, tag, anchor, style);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag,
                  YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    Open(YamlNode::Kind::kMapping, mark, tag, anchor, style);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Collection {
    YamlNode node;
    YAML::Mark mark;
    bool block;  // not in brackets
  };

  static Refused Alias(const YAML::Mark& mark) {
    return {mark,
            "aliases (*name) are not allowed; quote a text that begins with *"};
  }

  // The line without its end; empty if there is no such line.
  std::string_view Line(int line) const {
    if (line < 0 || static_cast<size_t>(line) >= line_starts_.size()) return {};
    const size_t begin = line_starts_[line];
    const size_t next = static_cast<size_t>(line) + 1;
    return next < line_starts_.size()
               ? text_.substr(begin, line_starts_[next] - 1 - begin)
               : text_.substr(begin);
  }

  // Moves the position of an empty block-sequence item to its dash: yaml-cpp
  // reports the next token, after nothing but blanks and comments.
  void PlaceAtDash(const YAML::Mark& mark, YamlNode* node) {
    for (int line = mark.line; line >= 0; --line) {
      std::string_view text = Line(line);
      if (line == mark.line) text = text.substr(0, mark.column);
      text = text.substr(0, text.find(" #"));
      const size_t last = text.find_last_not_of(" \t\r");
      if (last == std::string_view::npos ||
          text[text.find_first_not_of(" \t")] == '#') {
        continue;
      }
      if (text[last] != '-') return;
      YAML::Mark dash;
      dash.line = line;
      dash.column = static_cast<int>(last);
      Place(dash, &node->line, &node->column);
      return;
    }
  }

  // yaml-cpp's tags: "?" for none, "!" for a quoted scalar.
  YamlNode Node(YamlNode::Kind kind, const YAML::Mark& mark,
                const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) {
      throw Refused{mark, "anchors (&name) are not allowed; write it out"};
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused{mark, "tags (!type) are not allowed"};
    }
    YamlNode node;
    node.kind = kind;
    Place(mark, &node.line, &node.column);
    return node;
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor, YAML::EmitterStyle::value style) {
    YamlNode node = Node(kind, mark, tag, anchor);
    if (open_.size() >= static_cast<size_t>(kSpecDepthMax)) {
      throw Refused{mark, Format("nested more than {} deep", kSpecDepthMax)};
    }
    if (WantsKey())
      throw Refused{mark, "a key must be a name (is a bracket left open?)"};
    open_.push_back(
        {std::move(node), mark, style == YAML::EmitterStyle::Block});
  }

  void Close() {
    Collection closed = std::move(open_.back());
    open_.pop_back();
    Add(std::move(closed.node), closed.mark);
  }

  bool WantsKey() const {
    if (open_.empty()) return false;
    const YamlNode& parent = open_.back().node;
    return parent.kind == YamlNode::Kind::kMapping &&
           parent.keys.size() == parent.items.size();
  }

  void Add(YamlNode node, const YAML::Mark& mark) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    YamlNode& parent = open_.back().node;
    if (!WantsKey()) {
      if (node.kind == YamlNode::Kind::kNull) {
        if (parent.kind == YamlNode::Kind::kMapping) {
          node.line = parent.keys.back().line;
          node.column = parent.keys.back().column;
        } else if (open_.back().block) {
          PlaceAtDash(mark, &node);
        }
      }
      parent.items.push_back(std::move(node));
      return;
    }
    if (node.kind != YamlNode::Kind::kScalar) {
      throw Refused{mark, "a key must be a name (is a bracket left open?)"};
    }
    for (const YamlNode& key : parent.keys) {
      if (key.text != node.text) continue;
      throw Refused{mark, Format("{} is given twice, first in line {}",
                                 Quoted(node.text), key.line)};
    }
    if (parent.keys.size() >= kKeysMax) {
      throw Refused{mark, Format("more than {} keys", kKeysMax)};
    }
    parent.keys.push_back(std::move(node));
  }

  std::string_view text_;
  std::vector<size_t> line_starts_;
  int documents_ = 0;
  YamlNode root_;
  std::vector<Collection> open_;  // from the root to here
  int counted_line_ = -1;         // Place: where it last counted
  int counted_bytes_ = 0;
  int counted_characters_ = 0;
};

// Optimal string alignment: insertions, deletions, replacements and swaps of
// neighbours.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last;
  std::vector<size_t> last(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t> row(b.size() + 1);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1,
                         last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = std::move(last);
    last = std::move(row);
  }
  return last[b.size()];
}

// -?(0|[1-9][0-9]*): excludes 0777, 1e6, 1_000 and +1, whose meaning is
// ambiguous.
bool IsDecimal(std::string_view text) {
  if (!text.empty() && text.front() == '-') text.remove_prefix(1);
  if (text.empty() || (text.front() == '0' && text.size() > 1)) return false;
  return text.find_first_not_of("0123456789") == text.npos;
}

// Also false if the number does not fit.
template <typename T>
bool ParseNumber(std::string_view text, T* out) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && rest == end;
}

bool ParseDecimalFraction(std::string_view text, double* out) {
  // from_chars would also accept inf and nan.
  return text.find_first_not_of("0123456789.eE+-") == std::string_view::npos &&
         ParseNumber(text, out) && std::isfinite(*out);
}

}  // namespace

std::string_view SchemeOf(std::string_view text) {
  const size_t end = text.find(':');
  const std::string_view scheme = text.substr(0, end);
  const bool is_address =
      end != text.npos && end > 0 &&
      (text.substr(end).starts_with("://") || scheme == "pipe") &&
      std::all_of(scheme.begin(), scheme.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '+' ||
               c == '-' || c == '.';
      });
  return is_address ? scheme : std::string_view();
}

std::string WhyNoPath(std::string_view text) {
  const std::string_view scheme = SchemeOf(text);
  if (scheme.empty()) return "";
  return Format(
      "{} is an address; only files that this machine has mounted are read: {}",
      Quoted(text),
      scheme == "file" ? "write the path alone"
                       : "mount the storage as a file system, or copy the "
                         "files");
}

StatusOr<YamlNode> ReadYaml(std::string_view text, const std::string& file,
                            size_t bytes_max) {
  if (text.size() > bytes_max) {
    return ErrorAt(
        file, 1, 1, "",
        Format("{} bytes of text; at most {} may be", text.size(), bytes_max));
  }
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  PENSTOCK_RETURN_IF_ERROR(CheckCharacters(text, file));
  TreeBuilder builder(text);
  const auto refuse = [&](const Refused& refused) {
    int line = 1;
    int column = 1;
    builder.Place(refused.mark, &line, &column);
    // In a file, line and column are enough.
    return ErrorAt(file, line, column, file.empty() ? builder.Path() : "",
                   refused.message);
  };
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refused& refused) {
    return refuse(refused);
  } catch (const YAML::Exception& error) {
    return refuse(builder.Explain(error));
  } catch (const std::exception& error) {
    return ErrorAt(file, 1, 1, "", Format("not YAML: {}", error.what()));
  }
  if (!builder.has_document()) return YamlNode();
  return builder.TakeRoot();
}

std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (size_t i = 0; i < text.size();) {
    if (i >= kQuotedBytesMax) return quoted + "...'";
    const size_t bytes = Utf8Bytes(text, i);
    if (bytes == 0 || IsControl(text[i])) {
      quoted += Format("\\x{:02x}", static_cast<unsigned char>(text[i]));
      ++i;
    } else {
      quoted += text.substr(i, bytes);
      i += bytes;
    }
  }
  return quoted + "'";
}

std::string Suggestion(std::string_view word,
                       const std::vector<std::string_view>& choices) {
  // Long words are not typing errors, and the distance is quadratic.
  if (word.size() <= kQuotedBytesMax) {
    std::string_view nearest;
    size_t nearest_distance = 3;  // two errors at most
    for (const std::string_view choice : choices) {
      const size_t distance = EditDistance(word, choice);
      // Most of a short word must remain.
      if (distance < nearest_distance && 2 * distance < choice.size()) {
        nearest = choice;
        nearest_distance = distance;
      }
    }
    if (!nearest.empty()) return Format("did you mean '{}'?", nearest);
  }
  return Format("known here: {}", JoinText(choices, ", "));
}

// ---- YamlValue -------------------------------------------------------------

bool YamlValue::IsWholeNumber() const {
  return IsScalar() && node_->plain && IsDecimal(node_->text);
}

bool YamlValue::IsBool() const {
  return IsScalar() && node_->plain &&
         (node_->text == "true" || node_->text == "false");
}

bool YamlValue::IsNumber(int64_t* out) const {
  return IsWholeNumber() && ParseNumber(node_->text, out);
}

bool YamlValue::IsNumber(uint64_t* out) const {
  return IsWholeNumber() && ParseNumber(node_->text, out);
}

bool YamlValue::IsNumber(double* out) const {
  return IsScalar() && node_->plain && ParseDecimalFraction(node_->text, out);
}

Status YamlValue::Error(const std::string& message) const {
  return ErrorAt(place_->file, line_, column_, path_, message);
}

Status YamlValue::KeyError(size_t i, const std::string& message) const {
  return ErrorAt(place_->file, node_->keys[i].line, node_->keys[i].column,
                 path_, message);
}

Status YamlValue::Absent() const {
  return required_
             ? ErrorAt(place_->file, line_, column_, "", path_ + " is missing")
             : OkStatus();
}

Status YamlValue::Wanted(std::string_view wanted) const {
  if (!present()) return Absent();
  switch (node_->kind) {
    case YamlNode::Kind::kNull:
      return Error(Format("wanted {}, found nothing", wanted));
    case YamlNode::Kind::kSequence:
      return Error(
          Format("wanted {}, found a list of {}", wanted, node_->items.size()));
    case YamlNode::Kind::kMapping:
      return Error(Format("wanted {}, found {} mapping", wanted,
                          node_->items.empty() ? "an empty" : "a"));
    case YamlNode::Kind::kScalar:
      break;
  }
  return Error(Format("wanted {}, found {}{}", wanted,
                      node_->plain ? "" : "the quoted text ",
                      Quoted(node_->text)));
}

Status YamlValue::CheckMapping(const std::vector<std::string_view>& known_keys,
                               std::string_view wanted) const {
  if (!IsMapping()) return Wanted(wanted);
  for (size_t i = 0; i < size(); ++i) {
    const std::string& key = Key(i);
    if (std::find(known_keys.begin(), known_keys.end(), key) ==
        known_keys.end()) {
      return KeyError(i, Format("unknown key {}; {}", Quoted(key),
                                Suggestion(key, known_keys)));
    }
  }
  return OkStatus();
}

StatusOr<std::string_view> YamlValue::OneOf(
    const std::vector<std::string_view>& keys) const {
  std::string_view found;
  for (size_t i = 0; i < size(); ++i) {
    const auto key = std::find(keys.begin(), keys.end(), Key(i));
    if (key == keys.end()) continue;
    if (!found.empty()) {
      return KeyError(i, Format("'{}' and '{}' exclude each other: give "
                                "exactly one of {}",
                                found, *key, JoinText(keys, ", ")));
    }
    found = *key;
  }
  if (found.empty()) {
    return Error(Format("needs one of {}", JoinText(keys, ", ")));
  }
  return found;
}

YamlValue YamlValue::Member(std::string_view key, bool required) const {
  YamlValue member;
  member.place_ = place_;
  member.path_ = path_.empty() ? std::string(key) : Format("{}.{}", path_, key);
  member.line_ = line_;
  member.column_ = column_;
  member.required_ = required;
  for (size_t i = 0; i < size(); ++i) {
    if (Key(i) != key) continue;
    member.node_ = &node_->items[i];
    member.line_ = member.node_->line;
    member.column_ = member.node_->column;
  }
  return member;
}

YamlValue YamlValue::Item(size_t i) const {
  YamlValue item;
  item.node_ = &node_->items[i];
  item.place_ = place_;
  item.path_ = Format("{}[{}]", path_, i);
  item.line_ = item.node_->line;
  item.column_ = item.node_->column;
  return item;
}

const std::string& YamlValue::Key(size_t i) const {
  return node_->keys[i].text;
}

Status YamlValue::CheckSequence(size_t min, size_t max,
                                std::string_view wanted) const {
  if (!IsSequence() || size() < min || size() > max) return Wanted(wanted);
  return OkStatus();
}

Status YamlValue::String(std::string* out) const {
  if (!IsScalar() || node_->text.empty() ||
      std::any_of(node_->text.begin(), node_->text.end(), IsControl)) {
    return Wanted("text on one line");
  }
  *out = node_->text;
  return OkStatus();
}

Status YamlValue::PathOrAddress(std::string* out) const {
  std::string text;
  PENSTOCK_RETURN_IF_ERROR(String(&text));
  const std::string_view scheme = SchemeOf(text);
  if (scheme.empty() || scheme == "file" || scheme == "pipe") return Path(out);
  *out = std::move(text);
  return OkStatus();
}

Status YamlValue::Path(std::string* out) const {
  std::string text;
  PENSTOCK_RETURN_IF_ERROR(String(&text));
  if (text.front() == '~') {
    return Error(
        Format("'~' is not expanded in {}: write the home folder "
               "out, or './~...' for a file of that name",
               Quoted(text)));
  }
  if (const std::string why = WhyNoPath(text); !why.empty()) return Error(why);
  std::filesystem::path path(text);
  if (path.is_relative()) {
    path = std::filesystem::path(place_->base_dir) / path;
    if (path.is_relative()) {
      return Error(
          Format("{} is relative and there is no folder to take "
                 "it from: write an absolute path",
                 Quoted(text)));
    }
  }
  text = path.lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  if (text.size() > kPathBytesMax) {
    return Error(
        Format("a path of {} bytes; at most {}", text.size(), kPathBytesMax));
  }
  *out = std::move(text);
  return OkStatus();
}

Status YamlValue::Word(const std::vector<std::string_view>& words,
                       std::string_view wanted, size_t* out) const {
  if (!IsScalar()) return Wanted(wanted);
  const auto found = std::find(words.begin(), words.end(), node_->text);
  if (found == words.end()) {
    return Error(Format("unknown value {}; {}", Quoted(node_->text),
                        Suggestion(node_->text, words)));
  }
  *out = static_cast<size_t>(found - words.begin());
  return OkStatus();
}

}  // namespace penstock
