#include "broker/job/asked_rows.h"

namespace penstock {

Status AskedRows::Add(std::span<const uint64_t> numbers) {
  if (numbers.size() % 2 != 0) {
    return InvalidArgumentError("a row is asked for by its record and a pass");
  }
  for (size_t i = 0; i < numbers.size(); i += 2) {
    if (numbers[i] < records_) continue;
    return InvalidArgumentError("there is no record {}: the dataset has {}",
                                numbers[i], records_);
  }
  MutexLock lock(&mutex_);
  if (rows_.size() + numbers.size() / 2 > kRowsMax) {
    return ResourceExhaustedError(
        "{} rows are asked for and not released, at most {} may be",
        rows_.size(), kRowsMax);
  }
  for (size_t i = 0; i < numbers.size(); i += 2) {
    rows_.push_back({numbers[i], numbers[i + 1], numbers[i], numbers[i + 1]});
  }
  return OkStatus();
}

uint64_t AskedRows::end() const {
  MutexLock lock(&mutex_);
  return begin_ + rows_.size();
}

void AskedRows::Release(uint64_t position) {
  MutexLock lock(&mutex_);
  while (begin_ < position && !rows_.empty()) {
    rows_.pop_front();
    ++begin_;
  }
}

Status AskedRows::Find(uint64_t position, std::span<Plan::Row> rows) const {
  MutexLock lock(&mutex_);
  if (position < begin_ || rows.size() > rows_.size() ||
      position - begin_ > rows_.size() - rows.size()) {
    return NotFoundError("row {} is not asked for any more: ask anew",
                         position);
  }
  const auto first = static_cast<size_t>(position - begin_);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = rows_[first + i];
  return OkStatus();
}

}  // namespace penstock
