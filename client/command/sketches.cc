#include "client/command/sketches.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace penstock {
namespace {

constexpr size_t kLargest = 1024;  // values of the highest level
constexpr size_t kLeast = 8;
constexpr double kShrinks = 2.0 / 3;

template <typename Token>
size_t BytesOf(const Token& token) {
  if constexpr (std::is_same_v<Token, std::string>) {
    return token.size();
  } else {
    return 0;
  }
}

}  // namespace

size_t QuantileSketch::CapacityOf(size_t level) const {
  const auto below = static_cast<double>(levels_.size() - 1 - level);
  return std::max(kLeast,
                  static_cast<size_t>(kLargest * std::pow(kShrinks, below)));
}

void QuantileSketch::Add(double value) {
  levels_[0].push_back(value);
  ++held_;
  if (levels_[0].size() >= CapacityOf(0)) Compact();
}

// Every other value of each full level goes up, in place of two.
void QuantileSketch::Compact() {
  for (size_t i = 0; i < levels_.size(); ++i) {
    if (levels_[i].size() < CapacityOf(i)) continue;
    if (i + 1 == levels_.size()) levels_.emplace_back();
    std::vector<double>& full = levels_[i];
    std::sort(full.begin(), full.end());
    coin_ ^= coin_ << 13;
    coin_ ^= coin_ >> 7;
    coin_ ^= coin_ << 17;
    const bool keeps_one = full.size() % 2 == 1;
    const double kept = full.back();
    if (keeps_one) full.pop_back();
    for (size_t at = coin_ >> 63; at < full.size(); at += 2) {
      levels_[i + 1].push_back(full[at]);
    }
    held_ -= full.size() / 2;
    full.clear();
    if (keeps_one) full.push_back(kept);
  }
}

void QuantileSketch::Merge(const QuantileSketch& other) {
  if (levels_.size() < other.levels_.size()) {
    levels_.resize(other.levels_.size());
  }
  for (size_t i = 0; i < other.levels_.size(); ++i) {
    levels_[i].insert(levels_[i].end(), other.levels_[i].begin(),
                      other.levels_[i].end());
  }
  held_ += other.held_;
  Compact();
}

std::vector<std::pair<double, uint64_t>> QuantileSketch::Weighted() const {
  std::vector<std::pair<double, uint64_t>> all;
  all.reserve(held_);
  for (size_t i = 0; i < levels_.size(); ++i) {
    for (const double value : levels_[i]) {
      all.emplace_back(value, uint64_t{1} << i);
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

double QuantileOf(const std::vector<std::pair<double, uint64_t>>& weighted,
                  double q) {
  uint64_t all = 0;
  for (const auto& [value, weight] : weighted) all += weight;
  const double wanted = q * static_cast<double>(all);
  uint64_t below = 0;
  for (const auto& [value, weight] : weighted) {
    below += weight;
    if (static_cast<double>(below) >= wanted) return value;
  }
  return weighted.back().first;
}

void Moments::Add(double value, uint64_t times) {
  if (times == 0) return;
  if (count_ == 0) {
    shift_ = min_ = max_ = value;
  }
  count_ += times;
  const auto weight = static_cast<double>(times);
  const double from_shift = value - shift_;
  sum_ += weight * from_shift;
  squares_ += weight * from_shift * from_shift;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
}

void Moments::Merge(const Moments& other) {
  if (other.count_ == 0) return;
  if (count_ == 0) {
    *this = other;
    return;
  }
  // About this shift: value - shift = (value - other.shift) + moved.
  const double moved = other.shift_ - shift_;
  const auto count = static_cast<double>(other.count_);
  squares_ += other.squares_ + 2 * moved * other.sum_ + count * moved * moved;
  sum_ += other.sum_ + count * moved;
  count_ += other.count_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

double Moments::mean() const {
  return count_ == 0 ? 0 : shift_ + sum_ / static_cast<double>(count_);
}

double Moments::std() const {
  if (count_ == 0) return 0;
  const auto count = static_cast<double>(count_);
  return std::sqrt(
      std::max(0.0, squares_ / count - sum_ / count * (sum_ / count)));
}

template <typename Token>
void TokenCounts<Token>::Add(const Token& token) {
  const auto [found, is_new] = counts_.try_emplace(token, 0);
  ++found->second;
  if (!is_new) return;
  bytes_ += BytesOf(token);
  if (counts_.size() > most_ || bytes_ > bytes_most_) Forget();
}

template <typename Token>
void TokenCounts<Token>::Forget() {
  std::vector<uint64_t> counts;
  counts.reserve(counts_.size());
  for (const auto& [token, count] : counts_) counts.push_back(count);
  const auto median =
      counts.begin() + static_cast<ptrdiff_t>(counts.size() / 2);
  std::nth_element(counts.begin(), median, counts.end());
  const uint64_t taken = *median;
  for (auto each = counts_.begin(); each != counts_.end();) {
    if (each->second > taken) {
      each->second -= taken;
      ++each;
    } else {
      bytes_ -= BytesOf(each->first);
      each = counts_.erase(each);
    }
  }
  undercount_ += taken;
}

template <typename Token>
std::vector<std::pair<Token, uint64_t>> TokenCounts<Token>::Sorted() const {
  std::vector<std::pair<Token, uint64_t>> sorted(counts_.begin(),
                                                 counts_.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  return sorted;
}

template class TokenCounts<int64_t>;
template class TokenCounts<std::string>;

}  // namespace penstock
