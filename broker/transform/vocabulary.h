// The tokens that lookup numbers: those of a spec, of a file with one a line,
// or of statistics.
//
// Constant once made: any thread may use it. A file is in memory once, however
// many datasets use it.
#ifndef BROKER_TRANSFORM_VOCABULARY_H_
#define BROKER_TRANSFORM_VOCABULARY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/transform/map_file.h"
#include "common/status.h"

namespace penstock {

template <typename T>
class Declaration;

// The vocabulary that a file of statistics counts.
struct CountedVocabulary {
  std::string file;
  std::string feature;  // "": as in the row
  uint64_t min_count = 1;
  uint64_t max_size = 0;  // 0: all
  bool operator==(const CountedVocabulary&) const = default;

  static const Declaration<CountedVocabulary>& Declared();
};

struct VocabularySpec {
  // One of these.
  std::vector<std::string> tokens;
  std::string file;
  std::optional<CountedVocabulary> from;
  bool operator==(const VocabularySpec&) const = default;
};
ValueType<VocabularySpec> VocabularyType();
// A word or a number, as text.
ValueType<std::string> TokenType();

class Vocabulary {
 public:
  // integers: tokens are whole numbers. feature: in the row. Reads a file with
  // the access of opening, and notes it there. InvalidArgument: a token is
  // there twice, is no number, or there are none. Errors name file and line.
  static StatusOr<std::shared_ptr<const Vocabulary>> Open(
      const VocabularySpec& spec, bool integers, const std::string& feature,
      MapOpening* opening);

  uint64_t size() const { return ends_.size(); }
  std::string_view operator[](uint64_t i) const {
    const uint64_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }
  // Its number, from 0.
  std::optional<uint64_t> Find(std::string_view token) const;
  uint64_t memory_bytes() const;
  const std::string& digest() const { return digest_; }

 private:
  Vocabulary() = default;
  // What is wrong with a token; "": nothing is.
  std::string Add(std::string_view token, bool integers);
  static StatusOr<std::shared_ptr<const Vocabulary>> OfFile(
      const std::string& path, bool integers, MapOpening* opening);
  static StatusOr<std::shared_ptr<const Vocabulary>> OfStatistics(
      const CountedVocabulary& from, bool integers, const std::string& feature,
      MapOpening* opening);
  // Once all are there: finds them by their hashes. InvalidArgument: token i is
  // there before; where(i) begins the message.
  template <typename Where>
  Status Index(const Where& where);
  size_t PlaceOf(std::string_view token) const;

  std::string text_;            // of all tokens
  std::vector<uint64_t> ends_;  // of each
  // By hash: 1 + its number; 0: none. A power of two, half of it empty.
  std::vector<uint32_t> places_;
  std::string digest_;
  uint64_t not_utf8_ = 0;  // the first line of the file that is not; 0: all are
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_VOCABULARY_H_
