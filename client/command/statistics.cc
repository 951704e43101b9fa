#include "client/command/statistics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "client/command/batch_sheet.h"
#include "client/command/contact_sheet.h"
#include "client/command/sketches.h"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Weighted = std::vector<std::pair<double, uint64_t>>;

// Fixed, so that the threads are not seen in the sums.
constexpr size_t kParts = 16;
constexpr size_t kBins = 64;
constexpr int64_t kChannelsMax = 8192;
constexpr int64_t kTabledChannelsMax = 16;
constexpr uint64_t kTokensPerRowMax = 4096;
constexpr size_t kTokenBytesMax = size_t{256} << 20;
constexpr double kQuantiles[] = {0.01, 0.05, 0.1,  0.25, 0.5,
                                 0.75, 0.9,  0.95, 0.99};

bool IsInteger(DType dtype) {
  return dtype != DType::kFloat16 && dtype != DType::kBFloat16 &&
         dtype != DType::kFloat32 && dtype != DType::kFloat64;
}

// As normalize counts them.
int64_t ChannelsOf(const Feature& feature) {
  const bool is_picture =
      feature.dtype == DType::kUint8 && feature.shape.size() == 3;
  if (feature.shape.empty()) return 1;
  if (feature.dtype == DType::kUint8 && !is_picture) return 1;
  return feature.shape.back() <= kChannelsMax ? feature.shape.back() : 1;
}

OrderedJson QuantilesOf(const Weighted& weighted) {
  OrderedJson json = OrderedJson::object();
  if (weighted.empty()) return json;
  for (const double q : kQuantiles) {
    json[Format("{}", q)] = QuantileOf(weighted, q);
  }
  return json;
}

OrderedJson HistogramOf(const Weighted& weighted, double from, double to) {
  std::vector<uint64_t> bins(kBins);
  const double width = (to - from) / kBins;
  for (const auto& [value, weight] : weighted) {
    const double at = width > 0 ? (value - from) / width : 0;
    bins[static_cast<size_t>(
        std::clamp(at, 0.0, static_cast<double>(kBins - 1)))] += weight;
  }
  return {{"from", from}, {"to", to}, {"counts", bins}};
}

class Numbers final : public FeatureStatistics {
 public:
  explicit Numbers(const Feature& feature)
      : feature_(feature),
        channels_(static_cast<size_t>(ChannelsOf(feature))),
        values_(feature.RowBytes() / DTypeBytes(feature.dtype)),
        tabled_(DTypeBytes(feature.dtype) == 1 &&
                channels_ <= kTabledChannelsMax) {
    for (Part& part : parts_) {
      tabled_ ? part.tables.resize(channels_) : part.moments.resize(channels_);
    }
  }

  size_t parts() const override { return kParts; }

  std::pair<uint64_t, uint64_t> RowsOf(size_t part,
                                       uint64_t rows) const override {
    return {rows * part / kParts, rows * (part + 1) / kParts};
  }

  void Add(const void* data, const int64_t*, uint64_t rows, size_t i) override {
    const auto* const bytes = static_cast<const uint8_t*>(data);
    Part& part = parts_[i];
    // Rows begin with channel 0.
    size_t channel = 0;
    for (uint64_t at = 0; at < rows * values_; ++at) {
      if (tabled_) {
        ++part.tables[channel][bytes[at]];
      } else {
        AddValue(ValueAt(feature_.dtype, data, at), channel, &part);
      }
      if (++channel == channels_) channel = 0;
    }
  }

  OrderedJson ToJson() override {
    Part& all = parts_[0];
    for (size_t i = 1; i < kParts; ++i) Merge(parts_[i], &all);
    Weighted weighted = all.quantiles.Weighted();
    if (tabled_) weighted = TakeTables(&all);
    Moments overall;
    for (const Moments& each : all.moments) overall.Merge(each);
    OrderedJson json = {{"dtype", DTypeName(feature_.dtype)},
                        {"shape", feature_.shape},
                        {"values", overall.count() + all.nan + all.infinite}};
    if (all.nan > 0) json["nan"] = all.nan;
    if (all.infinite > 0) json["infinite"] = all.infinite;
    if (overall.count() == 0) return json;
    for (const Moments& each : all.moments) {
      json["mean"].push_back(each.mean());
      json["std"].push_back(each.std());
      json["min"].push_back(each.min());
      json["max"].push_back(each.max());
    }
    json["overall"] = {{"mean", overall.mean()},
                       {"std", overall.std()},
                       {"min", overall.min()},
                       {"max", overall.max()}};
    json["quantiles"] = QuantilesOf(weighted);
    json["histogram"] = HistogramOf(weighted, overall.min(), overall.max());
    return json;
  }

 private:
  struct Part {
    std::vector<Moments> moments;  // of each channel
    QuantileSketch quantiles;
    uint64_t nan = 0;
    uint64_t infinite = 0;
    // How often each byte is there, in each channel.
    std::vector<std::array<uint64_t, 256>> tables;
  };

  static void AddValue(double value, size_t channel, Part* part) {
    if (std::isnan(value)) {
      ++part->nan;
    } else if (std::isinf(value)) {
      ++part->infinite;
    } else {
      part->moments[channel].Add(value);
      part->quantiles.Add(value);
    }
  }

  void Merge(const Part& from, Part* to) const {
    for (size_t c = 0; c < channels_; ++c) {
      if (tabled_) {
        for (size_t v = 0; v < 256; ++v) to->tables[c][v] += from.tables[c][v];
      } else {
        to->moments[c].Merge(from.moments[c]);
      }
    }
    to->quantiles.Merge(from.quantiles);
    to->nan += from.nan;
    to->infinite += from.infinite;
  }

  Weighted TakeTables(Part* part) const {
    part->moments.resize(channels_);
    std::array<uint64_t, 256> all = {};
    for (size_t c = 0; c < channels_; ++c) {
      for (size_t v = 0; v < 256; ++v) {
        part->moments[c].Add(Value(v), part->tables[c][v]);
        all[v] += part->tables[c][v];
      }
    }
    Weighted weighted;
    for (size_t v = 0; v < 256; ++v) {
      if (all[v] > 0) weighted.emplace_back(Value(v), all[v]);
    }
    std::sort(weighted.begin(), weighted.end());
    return weighted;
  }

  double Value(size_t byte) const {
    return feature_.dtype == DType::kInt8
               ? static_cast<double>(static_cast<int8_t>(byte))
               : static_cast<double>(byte);
  }

  const Feature feature_;
  const size_t channels_;
  const uint64_t values_;  // of a row
  const bool tabled_;
  std::array<Part, kParts> parts_;
};

// Numbers that may be labels or identifiers.
class Integers final : public FeatureStatistics {
 public:
  Integers(const Feature& feature, size_t tokens_max)
      : numbers_(feature),
        dtype_(feature.dtype),
        values_(feature.RowBytes() / DTypeBytes(feature.dtype)),
        counts_(tokens_max, SIZE_MAX) {}

  size_t parts() const override { return kParts + 1; }
  std::pair<uint64_t, uint64_t> RowsOf(size_t part,
                                       uint64_t rows) const override {
    return part < kParts ? numbers_.RowsOf(part, rows)
                         : std::pair{uint64_t{0}, rows};
  }
  void Add(const void* data, const int64_t* lengths, uint64_t rows,
           size_t part) override {
    if (part < kParts) return numbers_.Add(data, lengths, rows, part);
    for (uint64_t i = 0; i < rows * values_; ++i) {
      counts_.Add(dtype_ == DType::kInt64
                      ? static_cast<const int64_t*>(data)[i]
                      : static_cast<int64_t>(ValueAt(dtype_, data, i)));
    }
  }
  OrderedJson ToJson() override {
    OrderedJson json = numbers_.ToJson();
    const auto sorted = counts_.Sorted();
    json["distinct"] = sorted.size();
    if (counts_.undercount() > 0) json["undercount"] = counts_.undercount();
    OrderedJson& vocabulary = json["vocabulary"] = OrderedJson::array();
    for (const auto& [value, count] : sorted) {
      vocabulary.push_back({value, count});
    }
    return json;
  }

 private:
  Numbers numbers_;
  const DType dtype_;
  const uint64_t values_;
  TokenCounts<int64_t> counts_;
};

// How long texts and lists are.
class Lengths final : public FeatureStatistics {
 public:
  size_t parts() const override { return 1; }
  std::pair<uint64_t, uint64_t> RowsOf(size_t, uint64_t rows) const override {
    return {0, rows};
  }
  void Add(const void*, const int64_t* lengths, uint64_t rows,
           size_t) override {
    for (uint64_t i = 0; i < rows; ++i) {
      moments_.Add(static_cast<double>(lengths[i]));
      quantiles_.Add(static_cast<double>(lengths[i]));
    }
  }
  OrderedJson ToJson() override {
    return {{"mean", moments_.mean()},
            {"min", moments_.min()},
            {"max", moments_.max()},
            {"quantiles", QuantilesOf(quantiles_.Weighted())}};
  }
  uint64_t count() const { return moments_.count(); }

 private:
  Moments moments_;
  QuantileSketch quantiles_;
};

class Texts final : public FeatureStatistics {
 public:
  // words: of these a text has several; nullopt: it is one token.
  Texts(const Feature& feature, size_t tokens_max,
        std::optional<WordRules> words)
      : feature_(feature),
        room_(feature.RowBytes()),
        words_(std::move(words)),
        counts_(tokens_max, kTokenBytesMax),
        documents_(tokens_max, kTokenBytesMax) {}

  size_t parts() const override { return 1; }
  std::pair<uint64_t, uint64_t> RowsOf(size_t, uint64_t rows) const override {
    return {0, rows};
  }
  void Add(const void* data, const int64_t* lengths, uint64_t rows,
           size_t part) override {
    lengths_.Add(data, lengths, rows, part);
    for (uint64_t i = 0; i < rows; ++i) {
      const std::string_view text(static_cast<const char*>(data) + i * room_,
                                  static_cast<size_t>(lengths[i]));
      if (words_) {
        AddWords(text);
      } else {
        counts_.Add(std::string(text));
      }
    }
  }
  OrderedJson ToJson() override {
    const auto sorted = counts_.Sorted();
    OrderedJson json = {{"dtype", DTypeName(feature_.dtype)},
                        {"shape", feature_.shape},
                        {"texts", lengths_.count()},
                        {"bytes", lengths_.ToJson()},
                        {"distinct", sorted.size()}};
    if (counts_.undercount() > 0) json["undercount"] = counts_.undercount();
    uint64_t not_utf8 = 0;
    OrderedJson vocabulary = OrderedJson::array();
    OrderedJson documents = OrderedJson::array();
    std::unordered_map<std::string, uint64_t> texts_with;
    for (auto& [token, count] : documents_.Sorted()) texts_with[token] = count;
    for (const auto& [token, count] : sorted) {
      if (IsUtf8(token)) {
        vocabulary.push_back({token, count});
        // 1 where it was forgotten.
        documents.push_back(std::max<uint64_t>(1, texts_with[token]));
      } else {
        not_utf8 += count;
      }
    }
    if (not_utf8 > 0) json["not_utf8"] = not_utf8;
    json["vocabulary"] = std::move(vocabulary);
    if (words_) json["documents"] = std::move(documents);
    return json;
  }

 private:
  void AddWords(std::string_view text) {
    std::unordered_set<std::string> different;
    splitter_.ForEach(text, *words_, [&](std::string_view word) {
      counts_.Add(std::string(word));
      different.emplace(word);
      return true;
    });
    for (const std::string& each : different) documents_.Add(each);
  }
  static bool IsUtf8(const std::string& text) {
    try {
      static_cast<void>(nlohmann::json(text).dump());
      return true;
    } catch (const nlohmann::json::type_error&) {
      return false;
    }
  }

  const Feature feature_;
  const uint64_t room_;
  const std::optional<WordRules> words_;
  WordSplitter splitter_;
  Lengths lengths_;
  TokenCounts<std::string> counts_;
  TokenCounts<std::string> documents_;  // in how many texts each word is
};

}  // namespace

Statistics::Statistics(ElementSpec features, const StatisticsOptions& options)
    : features_(std::move(features)), threads_(options.threads) {
  std::vector<bool> is_length(features_.size());
  for (const Feature& each : features_) {
    if (const auto lengths = LengthOf(features_, each)) {
      is_length[*lengths] = true;
    }
  }
  for (uint32_t i = 0; i < features_.size(); ++i) {
    if (is_length[i]) continue;
    Of of = {.feature = features_[i],
             .index = i,
             .lengths = LengthOf(features_, features_[i])};
    const bool is_text = of.lengths && MayBeText(of.feature);
    of.is_list = of.lengths && !is_text;
    Feature row = of.feature;
    if (of.is_list) {
      row.shape.erase(row.shape.begin());
      of.of_lengths = std::make_unique<Lengths>();
    }
    const uint64_t values = row.RowBytes() / DTypeBytes(row.dtype);
    const bool is_picture = row.dtype == DType::kUint8 && row.shape.size() > 1;
    if (is_text) {
      const auto words = options.words.find(of.feature.name);
      of.statistics = std::make_unique<Texts>(
          row, options.tokens_max,
          words == options.words.end() ? std::nullopt
                                       : std::optional(words->second));
    } else if (IsInteger(row.dtype) && values <= kTokensPerRowMax &&
               !is_picture) {
      of.statistics = std::make_unique<Integers>(row, options.tokens_max);
    } else {
      of.statistics = std::make_unique<Numbers>(row);
    }
    of_.push_back(std::move(of));
  }
}

std::vector<int64_t> Statistics::LengthsIn(const penstock_batch* batch,
                                           const Of& of, uint64_t begin,
                                           uint64_t end) {
  const auto* const found =
      static_cast<const int64_t*>(penstock_batch_data(batch, *of.lengths));
  std::vector<int64_t> lengths(found + begin, found + end);
  for (int64_t& each : lengths) {
    each = std::clamp<int64_t>(each, 0, of.feature.shape[0]);
  }
  return lengths;
}

void Statistics::Add(const penstock_batch* batch, uint64_t rows, const Of& of,
                     size_t part) {
  const auto [begin, end] = of.statistics->RowsOf(part, rows);
  const uint64_t row_bytes = of.feature.RowBytes();
  const auto* const data =
      static_cast<const std::byte*>(penstock_batch_data(batch, of.index));
  if (!of.lengths) {
    return of.statistics->Add(data + begin * row_bytes, nullptr, end - begin,
                              part);
  }
  const std::vector<int64_t> lengths = LengthsIn(batch, of, begin, end);
  if (!of.is_list) {
    return of.statistics->Add(data + begin * row_bytes, lengths.data(),
                              end - begin, part);
  }
  // Its items are rows without gaps.
  const uint64_t item_bytes =
      row_bytes / static_cast<uint64_t>(of.feature.shape[0]);
  std::vector<std::byte> items;
  for (uint64_t i = begin; i < end; ++i) {
    const std::byte* const row = data + i * row_bytes;
    const auto length = static_cast<uint64_t>(lengths[i - begin]);
    items.insert(items.end(), row, row + length * item_bytes);
  }
  of.statistics->Add(items.data(), nullptr, items.size() / item_bytes, part);
}

void Statistics::Add(const penstock_batch* batch) {
  const uint64_t rows = penstock_batch_valid_rows(batch);
  rows_ += rows;
  std::vector<std::pair<const Of*, size_t>> tasks;
  for (const Of& of : of_) {
    if (of.of_lengths) {
      of.of_lengths->Add(nullptr, LengthsIn(batch, of, 0, rows).data(), rows,
                         0);
    }
    for (size_t part = 0; part < of.statistics->parts(); ++part) {
      tasks.emplace_back(&of, part);
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    // Whose turn it is, and nothing more: the threads are joined.
    for (size_t i;
         (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks.size();) {
      Add(batch, rows, *tasks[i].first, tasks[i].second);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < threads_; ++i) threads.emplace_back(work);
  work();
  for (std::thread& each : threads) each.join();
}

OrderedJson Statistics::ToJson() const {
  OrderedJson json = OrderedJson::object();
  for (const Of& of : of_) {
    OrderedJson& each = json[of.feature.name] = of.statistics->ToJson();
    if (!of.is_list) continue;
    each["shape"] = of.feature.shape;
    each["length"] = of.of_lengths->ToJson();
  }
  return json;
}

}  // namespace penstock
