// Words of a text, as Keras' TextVectorization standardizes and splits it.
// `vectorize_text` numbers them, `penstock analyze` counts them.
#ifndef COMMON_WORDS_H_
#define COMMON_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

struct WordRules {
  // A to Z become small letters, as of tf.strings.lower; no other letter does.
  // Or ASCII's 32 punctuation characters go, and those beside them become
  // neighbours.
  enum class Standardize { kLowerAndStrip, kLower, kStrip, kNone };
  Standardize standardize = Standardize::kLowerAndStrip;
  enum class Split {
    kWhitespace,  // ASCII's six
    kCharacter,   // a code point is one, and so is a byte that begins none
    kNone,        // the text is one, unless it is empty
  };
  Split split = Split::kWhitespace;
  // So many neighbours, joined by spaces, are a word: all of the first size,
  // then all of the next.
  std::vector<uint32_t> ngrams = {1};
  bool operator==(const WordRules&) const = default;
};

// As specs name them.
inline constexpr std::pair<std::string_view, WordRules::Standardize>
    kStandardizeNames[] = {
        {"lower_and_strip_punctuation", WordRules::Standardize::kLowerAndStrip},
        {"lower", WordRules::Standardize::kLower},
        {"strip_punctuation", WordRules::Standardize::kStrip},
        {"none", WordRules::Standardize::kNone}};
inline constexpr std::pair<std::string_view, WordRules::Split> kSplitNames[] = {
    {"whitespace", WordRules::Split::kWhitespace},
    {"character", WordRules::Split::kCharacter},
    {"none", WordRules::Split::kNone}};

// Keeps its memory from text to text. Not thread-safe.
class WordSplitter {
 public:
  // Calls f(std::string_view) with each word, which is gone after the next call
  // of this method, until f returns false.
  template <typename F>
  void ForEach(std::string_view text, const WordRules& rules, F&& f) {
    Split(text, rules);
    for (const size_t n : rules.ngrams) {
      for (size_t i = 0; i + n <= places_.size(); ++i) {
        const size_t begin = places_[i].first;
        const size_t end = places_[i + n - 1].second;
        if (!f(std::string_view(joined_).substr(begin, end - begin))) return;
      }
    }
  }

 private:
  void Split(std::string_view text, const WordRules& rules);
  void Add(std::string_view word);

  std::string standard_;
  std::string joined_;  // single words, with a space between them
  std::vector<std::pair<size_t, size_t>> places_;  // of each
};

}  // namespace penstock
#endif  // COMMON_WORDS_H_
