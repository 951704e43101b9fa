// A worker asks its process for the rows of a claim at once, and takes them one
// by one as they are made.
#include <algorithm>
#include <cstring>

#include "broker/source/python_records.h"

namespace penstock {
namespace {

constexpr uint64_t kAlign = 64;
// Bytes of the rows that a process makes at once, and their number: of a
// message with two numbers for each.
constexpr uint64_t kRowsBytes = uint64_t{8} << 20;
constexpr uint64_t kRowsMax = 1024;
constexpr uint64_t kRowBytesOfProcessMax = uint64_t{512} << 20;

// In a column, for features of any size.
struct InHeap {
  uint64_t offset;
  uint64_t bytes;
};

uint64_t ColumnBytes(const RawFeature& feature) {
  return feature.encoded ? sizeof(InHeap) : feature.feature.RowBytes();
}

class PythonRows final : public Source::Maker {
 public:
  PythonRows(std::shared_ptr<const PythonRecords> records, uint32_t index,
             Cancelled cancelled)
      : process_(std::move(records), index, std::move(cancelled)) {}

  void Expect(uint64_t seed, std::span<const Source::Wanted> wanted) override {
    if (next_ < wanted_.size() && seed == seed_) return;
    seed_ = seed;
    wanted =
        wanted.first(std::min<size_t>(wanted.size(), process_.records().rows));
    wanted_.assign(wanted.begin(), wanted.end());
    next_ = made_ = 0;
    asked_ = false;
  }

  Status Make(uint64_t seed, const Source::Wanted& wanted,
              RawRecord* raw) override {
    if (next_ == wanted_.size() || seed != seed_ ||
        !(wanted_[next_] == wanted)) {
      next_ = wanted_.size();
      Expect(seed, {&wanted, 1});
    }
    while (made_ == next_) {
      const Status status = Advance();
      if (status.ok()) continue;
      if (status.code() == StatusCode::kDataLoss ||
          status.code() == StatusCode::kDeadlineExceeded) {
        made_ = ++next_;
        asked_ = false;
        process_.Acquit();
      }
      return status;
    }
    if (process_.IsSuspect(wanted.record)) process_.Acquit();
    const Status status = Find(next_ - first_, raw);
    ++next_;
    return status;
  }

  size_t begun() const override { return wanted_.size() - next_ - 1; }

 private:
  // Waits until more rows are made. DataLoss, DeadlineExceeded: the next row
  // cannot be.
  Status Advance() {
    PENSTOCK_RETURN_IF_ERROR(process_.Blame(wanted_[next_].record));
    StatusOr<PythonProcess::Answer> answer = Ask();
    if (!answer.ok()) return Ended(answer.status());
    if (answer->kind == PythonProcess::Answer::Kind::kFailed) {
      return DataLossError("{}", answer->body);
    }
    uint64_t rows = 0;
    std::memcpy(&rows, answer->body.data(), sizeof(rows));
    if (rows > wanted_.size() - first_ || rows < made_ - first_) {
      return Ended(PythonRecordProcess::WrongAnswer());
    }
    made_ = first_ + rows;
    if (answer->kind != PythonProcess::Answer::Kind::kMore) asked_ = false;
    if (answer->kind == PythonProcess::Answer::Kind::kLast) process_.End();
    return OkStatus();
  }

  StatusOr<PythonProcess::Answer> Ask() {
    if (!asked_) {
      PENSTOCK_RETURN_IF_ERROR(process_.Start(process_.records().heap));
      first_ = next_;
      numbers_.assign(1, seed_);
      for (size_t i = first_; i < wanted_.size(); ++i) {
        if (i > first_ && process_.IsSuspect(wanted_[i].record)) break;
        numbers_.push_back(wanted_[i].record);
        numbers_.push_back(wanted_[i].pass);
      }
      PENSTOCK_RETURN_IF_ERROR(process_.Send(numbers_));
      asked_ = true;
    }
    // The number of rows made, and the size of the memory.
    return process_.Receive(1);
  }

  // Aborted: another process is asked. It makes the rows before the suspect
  // first, so that nothing else can be to blame.
  Status Ended(const Status& status) {
    uint64_t in_work = next_;
    if (asked_) {
      in_work = std::clamp<uint64_t>(
          first_ + process_.InWork(wanted_.size()).value_or(0), next_,
          wanted_.size() - 1);
    }
    asked_ = false;
    const Status ended = process_.Ended(status, wanted_[in_work].record);
    if (ended.code() == StatusCode::kAborted) wanted_.resize(in_work + 1);
    return ended;
  }

  Status Find(uint64_t row, RawRecord* raw) const {
    const PythonRecords& records = process_.records();
    const std::span<const std::byte> memory(process_.memory().data(),
                                            process_.memory().bytes());
    raw->clear();
    for (size_t i = 0; i < records.features.size(); ++i) {
      const uint64_t bytes = ColumnBytes(records.features[i]);
      const auto column =
          memory.subspan(records.columns[i] + row * bytes, bytes);
      if (!records.features[i].encoded) {
        raw->push_back(column);
        continue;
      }
      InHeap place;
      std::memcpy(&place, column.data(), sizeof(place));
      if (place.offset > memory.size() ||
          place.bytes > memory.size() - place.offset) {
        return DataLossError(
            "feature '{}' lies outside of its process's memory",
            records.features[i].feature.name);
      }
      raw->push_back(memory.subspan(place.offset, place.bytes));
    }
    return OkStatus();
  }

  PythonRecordProcess process_;
  std::vector<uint64_t> numbers_;
  uint64_t seed_ = 0;
  std::vector<Source::Wanted> wanted_;
  size_t next_ = 0;     // of wanted_: taken before
  size_t made_ = 0;     // of wanted_: made before
  size_t first_ = 0;    // of wanted_: the first that the process was asked for
  bool asked_ = false;  // another answer will come
};

}  // namespace

Status LayOutColumns(PythonRecords* records) {
  uint64_t row_bytes = 0;
  for (const RawFeature& feature : records->features) {
    row_bytes += ColumnBytes(feature);
    if (row_bytes > kRowBytesOfProcessMax) {
      return ResourceExhaustedError(
          "a sample has more than {} bytes, as '{}' has {}",
          kRowBytesOfProcessMax, feature.feature.name,
          feature.feature.RowBytes());
    }
  }
  records->rows = std::clamp(kRowsBytes / std::max<uint64_t>(row_bytes, 1),
                             uint64_t{1}, kRowsMax);
  uint64_t at = kAlign;  // the number of the row in work
  for (const RawFeature& feature : records->features) {
    records->columns.push_back(at);
    at += records->rows * ColumnBytes(feature);
    at = (at + kAlign - 1) / kAlign * kAlign;
  }
  records->heap = at;
  return OkStatus();
}

std::unique_ptr<Source::Maker> MakePythonRows(
    std::shared_ptr<const PythonRecords> records, uint32_t index,
    Cancelled cancelled) {
  return std::make_unique<PythonRows>(std::move(records), index,
                                      std::move(cancelled));
}

}  // namespace penstock
