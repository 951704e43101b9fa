#include "client/command/statistics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <thread>
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
  Numbers(const Feature& feature, uint32_t index)
      : feature_(feature),
        index_(index),
        channels_(static_cast<size_t>(ChannelsOf(feature))),
        values_(feature.RowBytes() / DTypeBytes(feature.dtype)),
        tabled_(DTypeBytes(feature.dtype) == 1 &&
                channels_ <= kTabledChannelsMax) {
    for (Part& part : parts_) {
      tabled_ ? part.tables.resize(channels_) : part.moments.resize(channels_);
    }
  }

  size_t parts() const override { return kParts; }

  void Add(const penstock_batch* batch, uint64_t rows, size_t i) override {
    const auto* const data =
        static_cast<const uint8_t*>(penstock_batch_data(batch, index_));
    Part& part = parts_[i];
    const uint64_t end = rows * (i + 1) / kParts * values_;
    uint64_t at = rows * i / kParts * values_;
    // Rows begin with channel 0.
    for (size_t channel = 0; at < end; ++at) {
      if (tabled_) {
        ++part.tables[channel][data[at]];
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
  const uint32_t index_;
  const size_t channels_;
  const uint64_t values_;  // of a row
  const bool tabled_;
  std::array<Part, kParts> parts_;
};

// Numbers that may be labels or identifiers.
class Integers final : public FeatureStatistics {
 public:
  Integers(const Feature& feature, uint32_t index, size_t tokens_max)
      : numbers_(feature, index),
        dtype_(feature.dtype),
        index_(index),
        values_(feature.RowBytes() / DTypeBytes(feature.dtype)),
        counts_(tokens_max, SIZE_MAX) {}

  size_t parts() const override { return kParts + 1; }
  void Add(const penstock_batch* batch, uint64_t rows, size_t part) override {
    if (part < kParts) return numbers_.Add(batch, rows, part);
    const void* const data = penstock_batch_data(batch, index_);
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
  const uint32_t index_;
  const uint64_t values_;
  TokenCounts<int64_t> counts_;
};

class Texts final : public FeatureStatistics {
 public:
  Texts(const Feature& feature, uint32_t index, uint32_t lengths,
        size_t tokens_max)
      : feature_(feature),
        index_(index),
        lengths_(lengths),
        room_(feature.RowBytes()),
        counts_(tokens_max, kTokenBytesMax) {}

  size_t parts() const override { return 1; }
  void Add(const penstock_batch* batch, uint64_t rows, size_t) override {
    const auto* const data =
        static_cast<const char*>(penstock_batch_data(batch, index_));
    const auto* const lengths =
        static_cast<const int64_t*>(penstock_batch_data(batch, lengths_));
    for (uint64_t i = 0; i < rows; ++i) {
      const int64_t bytes =
          std::clamp<int64_t>(lengths[i], 0, static_cast<int64_t>(room_));
      lengths_of_.Add(static_cast<double>(bytes));
      quantiles_.Add(static_cast<double>(bytes));
      counts_.Add(std::string(data + i * room_, static_cast<size_t>(bytes)));
    }
  }
  OrderedJson ToJson() override {
    const auto sorted = counts_.Sorted();
    OrderedJson json = {{"dtype", DTypeName(feature_.dtype)},
                        {"shape", feature_.shape},
                        {"texts", lengths_of_.count()},
                        {"bytes",
                         {{"mean", lengths_of_.mean()},
                          {"min", lengths_of_.min()},
                          {"max", lengths_of_.max()},
                          {"quantiles", QuantilesOf(quantiles_.Weighted())}}},
                        {"distinct", sorted.size()}};
    if (counts_.undercount() > 0) json["undercount"] = counts_.undercount();
    uint64_t not_utf8 = 0;
    OrderedJson vocabulary = OrderedJson::array();
    for (const auto& [token, count] : sorted) {
      if (IsUtf8(token)) {
        vocabulary.push_back({token, count});
      } else {
        not_utf8 += count;
      }
    }
    if (not_utf8 > 0) json["not_utf8"] = not_utf8;
    json["vocabulary"] = std::move(vocabulary);
    return json;
  }

 private:
  static bool IsUtf8(const std::string& text) {
    try {
      static_cast<void>(nlohmann::json(text).dump());
      return true;
    } catch (const nlohmann::json::type_error&) {
      return false;
    }
  }

  const Feature feature_;
  const uint32_t index_;
  const uint32_t lengths_;
  const uint64_t room_;
  Moments lengths_of_;
  QuantileSketch quantiles_;
  TokenCounts<std::string> counts_;
};

}  // namespace

Statistics::Statistics(ElementSpec features, const StatisticsOptions& options)
    : features_(std::move(features)), threads_(options.threads) {
  std::vector<bool> is_length(features_.size());
  for (const Feature& each : features_) {
    if (const auto lengths = LengthsOf(features_, each)) {
      is_length[*lengths] = true;
    }
  }
  for (uint32_t i = 0; i < features_.size(); ++i) {
    const Feature& each = features_[i];
    if (is_length[i]) continue;
    std::unique_ptr<FeatureStatistics> made;
    const uint64_t values = each.RowBytes() / DTypeBytes(each.dtype);
    const bool is_picture =
        each.dtype == DType::kUint8 && each.shape.size() > 1;
    if (const auto lengths = LengthsOf(features_, each)) {
      made = std::make_unique<Texts>(each, i, *lengths, options.tokens_max);
    } else if (IsInteger(each.dtype) && values <= kTokensPerRowMax &&
               !is_picture) {
      made = std::make_unique<Integers>(each, i, options.tokens_max);
    } else {
      made = std::make_unique<Numbers>(each, i);
    }
    of_.emplace_back(each.name, std::move(made));
  }
}

void Statistics::Add(const penstock_batch* batch) {
  const uint64_t rows = penstock_batch_valid_rows(batch);
  rows_ += rows;
  std::vector<std::pair<FeatureStatistics*, size_t>> tasks;
  for (const auto& [name, feature] : of_) {
    for (size_t part = 0; part < feature->parts(); ++part) {
      tasks.emplace_back(feature.get(), part);
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    // Whose turn it is, and nothing more: the threads are joined.
    for (size_t i;
         (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks.size();) {
      tasks[i].first->Add(batch, rows, tasks[i].second);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < threads_; ++i) threads.emplace_back(work);
  work();
  for (std::thread& each : threads) each.join();
}

OrderedJson Statistics::ToJson() const {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, feature] : of_) json[name] = feature->ToJson();
  return json;
}

}  // namespace penstock
