#include "broker/transform/vocabulary.h"

#include <sys/random.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "broker/base/mutex.h"
#include "broker/index/data_file.h"
#include "broker/index/fingerprint.h"
#include "broker/source/text_field.h"
#include "broker/transform/op_declaration.h"
#include "broker/transform/statistics_file.h"
#include "common/exact_max.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr uint64_t kVocabularyBytesMax = uint64_t{4} << 30;
constexpr uint64_t kTokensMax = uint64_t{1} << 31;
constexpr size_t kTokensInSpecMax = 16384;
constexpr size_t kReadBytes = size_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kStatisticsBegin = "{\"penstock_statistics\"";

// So that nobody can write a file whose tokens all have one place.
uint64_t Seed() {
  static const uint64_t seed = [] {
    uint64_t random = 0;
    const bool drawn = getrandom(&random, sizeof(random), GRND_NONBLOCK) > 0;
    return drawn ? random : uint64_t{0};
  }();
  return seed;
}

// A vocabulary as one dataset has opened it.
class VocabularyFile final : public SideFile {
 public:
  VocabularyFile(DataFile file, std::shared_ptr<const Vocabulary> vocabulary)
      : file_(std::move(file)), vocabulary_(std::move(vocabulary)) {}
  bool Changed() const override { return file_.Changed(); }
  uint64_t memory_bytes() const override { return vocabulary_->memory_bytes(); }
  std::string digest() const override { return vocabulary_->digest(); }

 private:
  const DataFile file_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
};

// Device, inode, time, bytes, integers.
using FileKey = std::tuple<uint64_t, uint64_t, int64_t, uint64_t, bool>;

struct OpenVocabularies {
  Mutex mutex;
  std::map<FileKey, std::weak_ptr<const Vocabulary>> by_file
      ABSL_GUARDED_BY(mutex);
};
OpenVocabularies& Shared() {
  static OpenVocabularies shared;
  return shared;
}

std::string Shown(std::string_view token) {
  constexpr size_t kShown = 64;
  return Printable(std::string(token.substr(0, kShown)));
}

}  // namespace

ValueType<std::string> TokenType() {
  return {
      "a word, or a whole number",
      [](const YamlValue& value, std::string_view wanted, std::string* out) {
        if (!value.IsScalar()) return value.Wanted(wanted);
        if (value.IsWord("")) return OkStatus();
        return value.String(out);
      },
      [](const std::string& text, nlohmann::ordered_json* out) {
        WriteText(text, out);
      }};
}

ValueType<VocabularySpec> VocabularyType() {
  const auto tokens =
      List(TokenType(), 1, kTokensInSpecMax,
           "a list of words or whole numbers, a file with one a line, or a "
           "mapping of from, feature, min_count, max_size");
  const auto file = Path();
  const auto from = MappingOf(CountedVocabulary::Declared());
  return {tokens.wanted,
          [=](const YamlValue& value, std::string_view wanted,
              VocabularySpec* out) {
            if (value.IsScalar()) return file.Read(value, &out->file);
            if (value.IsMapping())
              return from.Read(value, &out->from.emplace());
            return tokens.read(value, wanted, &out->tokens);
          },
          [=](const VocabularySpec& spec, nlohmann::ordered_json* out) {
            if (spec.from) return from.write(*spec.from, out);
            spec.file.empty() ? tokens.write(spec.tokens, out)
                              : file.write(spec.file, out);
          },
          from.parts};
}

const Declaration<CountedVocabulary>& CountedVocabulary::Declared() {
  static const auto declared =
      Declaration<CountedVocabulary>(
          "vocabulary",
          "What `penstock analyze` has counted, the most frequent first.")
          .Example("{from: stats.json, min_count: 5}")
          .Required("from", &CountedVocabulary::file, Path(), "its file")
          .Optional("feature", &CountedVocabulary::feature,
                    LeftOutAt<std::string>("", Name()),
                    "of that file; by default the same name")
          .Optional("min_count", &CountedVocabulary::min_count,
                    WholeNumber<uint64_t>(1, kExactMax),
                    "what is rarer is left out")
          .Optional("max_size", &CountedVocabulary::max_size,
                    WholeNumber<uint64_t>(0, kTokensMax),
                    "the most frequent only; 0: all");
  return declared;
}

template <typename Where>
Status Vocabulary::Index(const Where& where) {
  Fingerprint fingerprint("vocabulary");
  fingerprint.Add(text_);
  fingerprint.Add(std::as_bytes(std::span(ends_)));
  digest_ = fingerprint.Hex();
  places_.resize(std::bit_ceil(2 * ends_.size()));
  for (uint64_t i = 0; i < size(); ++i) {
    uint32_t& place = places_[PlaceOf((*this)[i])];
    if (place != 0) {
      return InvalidArgumentError("{}: '{}' is there before: each token once",
                                  where(i), Shown((*this)[i]));
    }
    place = static_cast<uint32_t>(i + 1);
  }
  return OkStatus();
}

StatusOr<std::shared_ptr<const Vocabulary>> Vocabulary::Open(
    const VocabularySpec& spec, bool integers, const std::string& feature,
    MapOpening* opening) {
  if (spec.from) return OfStatistics(*spec.from, integers, feature, opening);
  if (!spec.file.empty()) return OfFile(spec.file, integers, opening);
  std::shared_ptr<Vocabulary> made(new Vocabulary());
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    if (std::string wrong = made->Add(spec.tokens[i], integers);
        !wrong.empty()) {
      return InvalidArgumentError("vocabulary[{}]: {}", i, wrong);
    }
  }
  PENSTOCK_RETURN_IF_ERROR(
      made->Index([](uint64_t i) { return Format("vocabulary[{}]", i); }));
  return std::shared_ptr<const Vocabulary>(made);
}

StatusOr<std::shared_ptr<const Vocabulary>> Vocabulary::OfFile(
    const std::string& path, bool integers, MapOpening* opening) {
  OpenProgress* const progress = opening->progress;
  PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, *progress));
  const FileKey key = {file.device(), file.inode(), file.mtime_ns(),
                       file.bytes(), integers};
  std::shared_ptr<const Vocabulary> vocabulary;
  {
    MutexLock lock(&Shared().mutex);
    const auto found = Shared().by_file.find(key);
    if (found != Shared().by_file.end()) vocabulary = found->second.lock();
  }
  if (vocabulary == nullptr) {
    if (file.bytes() > kVocabularyBytesMax) {
      return InvalidArgumentError("{}: a vocabulary of {} bytes; at most {}",
                                  path, file.bytes(), kVocabularyBytesMax);
    }
    PENSTOCK_RETURN_IF_ERROR(progress->reserve(file.bytes()));
    std::shared_ptr<Vocabulary> made(new Vocabulary());
    std::vector<std::byte> block(kReadBytes);
    std::string rest;  // of a line
    uint64_t line = 0;
    const auto add = [&](std::string_view token) -> Status {
      ++line;
      if (token.ends_with('\r')) token.remove_suffix(1);
      if (line == 1 && token.starts_with(kByteOrderMark)) {
        token.remove_prefix(kByteOrderMark.size());
      }
      if (line == 1 && token.starts_with(kStatisticsBegin)) {
        return InvalidArgumentError(
            "{}: is a file of `penstock analyze`, not of tokens: write "
            "`vocabulary: {{from: ...}}`",
            path);
      }
      if (!integers && made->not_utf8_ == 0 && FindNotUtf8(token)) {
        made->not_utf8_ = line;
      }
      std::string wrong = made->Add(token, integers);
      if (wrong.empty()) return OkStatus();
      return InvalidArgumentError("{}:{}: {}", path, line, wrong);
    };
    for (uint64_t at = 0; at < file.bytes();) {
      const uint64_t wanted = std::min<uint64_t>(kReadBytes, file.bytes() - at);
      PENSTOCK_ASSIGN_OR_RETURN(
          const uint64_t got,
          file.Read(at, std::span(block).first(wanted), progress));
      if (got < wanted) {
        return DataLossError(
            "{}: ends at {} of {} bytes: it has changed since it was opened",
            path, at + got, file.bytes());
      }
      at += got;
      rest.append(reinterpret_cast<const char*>(block.data()), got);
      size_t begin = 0;
      for (size_t end; (end = rest.find('\n', begin)) != rest.npos;
           begin = end + 1) {
        PENSTOCK_RETURN_IF_ERROR(
            add(std::string_view(rest).substr(begin, end - begin)));
      }
      rest.erase(0, begin);
    }
    if (!rest.empty()) PENSTOCK_RETURN_IF_ERROR(add(rest));
    if (made->size() == 0) {
      return InvalidArgumentError("{}: is empty: wanted a token a line", path);
    }
    PENSTOCK_RETURN_IF_ERROR(progress->reserve(made->size() * 16));
    PENSTOCK_RETURN_IF_ERROR(made->Index(
        [&path](uint64_t i) { return Format("{}:{}", path, i + 1); }));
    MutexLock lock(&Shared().mutex);
    auto& by_file = Shared().by_file;
    std::erase_if(by_file,
                  [](const auto& each) { return each.second.expired(); });
    // Another dataset may have read it in between.
    vocabulary = by_file[key].lock();
    if (vocabulary == nullptr) {
      vocabulary = made;
      by_file[key] = made;
    }
  }
  if (vocabulary->not_utf8_ > 0) {
    opening->Warn(Format("{}:{}: is not UTF-8: no text that is has this token",
                         path, vocabulary->not_utf8_));
  }
  opening->files.push_back(
      std::make_shared<VocabularyFile>(std::move(file), vocabulary));
  return vocabulary;
}

StatusOr<std::shared_ptr<const Vocabulary>> Vocabulary::OfStatistics(
    const CountedVocabulary& from, bool integers, const std::string& feature,
    MapOpening* opening) {
  const std::string& name = from.feature.empty() ? feature : from.feature;
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json of,
                            StatisticsOf(from.file, name, opening));
  const auto counted = of.find("vocabulary");
  if (counted == of.end() || !counted->is_array()) {
    return InvalidArgumentError(
        "{}: has no vocabulary of '{}', which is neither text nor integers "
        "there; `feature` names another",
        from.file, name);
  }
  std::shared_ptr<Vocabulary> made(new Vocabulary());
  for (const nlohmann::json& each : *counted) {
    if (!each.is_array() || each.size() != 2 || !each[1].is_number_unsigned() ||
        !(each[0].is_string() || each[0].is_number_integer())) {
      return InvalidArgumentError(
          "{}: the vocabulary of '{}' is no list of [token, count]", from.file,
          name);
    }
    if (from.max_size > 0 && made->size() == from.max_size) break;
    if (each[1].get<uint64_t>() < from.min_count) continue;
    const std::string token =
        each[0].is_string() ? each[0].get<std::string>() : each[0].dump();
    if (std::string wrong = made->Add(token, integers); !wrong.empty()) {
      return InvalidArgumentError("{}: '{}': {}", from.file, name, wrong);
    }
  }
  if (made->size() == 0) {
    if (from.min_count <= 1) {
      return InvalidArgumentError("{}: the vocabulary of '{}' is empty",
                                  from.file, name);
    }
    return InvalidArgumentError("{}: no token of '{}' is there {} times",
                                from.file, name, from.min_count);
  }
  PENSTOCK_RETURN_IF_ERROR(
      made->Index([&from](uint64_t) { return from.file; }));
  return std::shared_ptr<const Vocabulary>(made);
}

std::string Vocabulary::Add(std::string_view token, bool integers) {
  char digits[24];
  if (integers) {
    int64_t whole = 0;
    const char* const end = token.data() + token.size();
    const auto [rest, error] = std::from_chars(token.data(), end, whole);
    if (error != std::errc{} || rest != end) {
      return Format("'{}' is no whole number of 64 bits", Shown(token));
    }
    const char* const last = std::to_chars(digits, std::end(digits), whole).ptr;
    token = {digits, static_cast<size_t>(last - digits)};
  }
  if (ends_.size() == kTokensMax) return Format("more than {}", kTokensMax);
  text_ += token;
  ends_.push_back(text_.size());
  return "";
}

size_t Vocabulary::PlaceOf(std::string_view token) const {
  const size_t mask = places_.size() - 1;
  size_t at = XXH3_64bits_withSeed(token.data(), token.size(), Seed()) & mask;
  while (places_[at] != 0 && (*this)[places_[at] - 1] != token) {
    at = (at + 1) & mask;
  }
  return at;
}

std::optional<uint64_t> Vocabulary::Find(std::string_view token) const {
  const uint32_t found = places_[PlaceOf(token)];
  if (found == 0) return std::nullopt;
  return found - 1;
}

uint64_t Vocabulary::memory_bytes() const {
  return text_.capacity() + ends_.capacity() * sizeof(uint64_t) +
         places_.capacity() * sizeof(uint32_t);
}

}  // namespace penstock
