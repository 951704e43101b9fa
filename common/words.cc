#include "common/words.h"

#include <algorithm>

namespace penstock {
namespace {

bool IsPunctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') ||
         (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

// The bytes of the UTF-8 character at the beginning of text, or 1.
size_t CharacterBytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t bytes = first >= 0xf0   ? 4
                       : first >= 0xe0 ? 3
                       : first >= 0xc0 ? 2
                                       : 1;
  const auto follows = [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
  };
  const bool whole =
      bytes <= text.size() &&
      std::all_of(text.begin() + 1,
                  text.begin() + static_cast<ptrdiff_t>(bytes), follows);
  return whole ? bytes : 1;
}

}  // namespace

void WordSplitter::Add(std::string_view word) {
  if (!places_.empty()) joined_ += ' ';
  places_.emplace_back(joined_.size(), joined_.size() + word.size());
  joined_ += word;
}

void WordSplitter::Split(std::string_view text, const WordRules& rules) {
  standard_.assign(text);
  using Standardize = WordRules::Standardize;
  const Standardize how = rules.standardize;
  if (how == Standardize::kLowerAndStrip || how == Standardize::kLower) {
    for (char& c : standard_) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
  }
  if (how == Standardize::kLowerAndStrip || how == Standardize::kStrip) {
    std::erase_if(standard_, IsPunctuation);
  }
  joined_.clear();
  places_.clear();
  std::string_view rest = standard_;
  switch (rules.split) {
    case WordRules::Split::kNone:
      if (!rest.empty()) Add(rest);
      return;
    case WordRules::Split::kCharacter:
      while (!rest.empty()) {
        const size_t bytes = CharacterBytes(rest);
        Add(rest.substr(0, bytes));
        rest.remove_prefix(bytes);
      }
      return;
    case WordRules::Split::kWhitespace: {
      constexpr std::string_view kWhitespace = " \t\n\v\f\r";
      for (;;) {
        const size_t begin = rest.find_first_not_of(kWhitespace);
        if (begin == rest.npos) return;
        rest.remove_prefix(begin);
        const size_t end =
            std::min(rest.find_first_of(kWhitespace), rest.size());
        Add(rest.substr(0, end));
        rest.remove_prefix(end);
      }
    }
  }
}

}  // namespace penstock
