#include "broker/source/parquet_rows.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

// Rows that a maker copies at once, group by group, and their bytes: small rows
// stay in the cache of a core.
constexpr size_t kRowsMax = 256;
constexpr uint64_t kRowsBytes = uint64_t{16} << 20;
// What features of any size take, before any is known.
constexpr uint64_t kAnySizeGuess = 256 << 10;
constexpr std::chrono::milliseconds kLook{50};

// What a process is asked for: a group, by its file and its number there; or
// rows, each by those and its number in the group.
enum Ask : uint64_t { kAskGroup, kAskRows };

class ParquetRows final : public Source::Maker {
 public:
  ParquetRows(std::shared_ptr<const ParquetRecords> records, uint32_t index,
              Cancelled cancelled)
      : records_(std::move(records)),
        // Shares the ownership of the whole.
        process_({records_, &records_->python}, index, cancelled),
        cancelled_(std::move(cancelled)),
        buffer_(records_->python.features) {
    for (const RawFeature& each : records_->python.features) {
      if (each.encoded) any_size_bytes_ += kAnySizeGuess;
    }
  }

  void Expect(uint64_t, std::span<const Source::Wanted> wanted) override {
    if (next_ < wanted_.size()) return;
    wanted_.assign(wanted.begin(), wanted.end());
    next_ = begin_ = end_ = 0;
  }

  Status Make(uint64_t seed, const Source::Wanted& wanted,
              RawRecord* raw) override {
    if (next_ == wanted_.size() || !(wanted_[next_] == wanted)) {
      next_ = wanted_.size();
      Expect(seed, {&wanted, 1});
    }
    if (next_ == end_) PENSTOCK_RETURN_IF_ERROR(Advance());
    const size_t row = next_++ - begin_;
    if (errors_[row].ok()) buffer_.Point(row, raw);
    return errors_[row];
  }

  size_t begun() const override { return wanted_.size() - next_ - 1; }

 private:
  // Makes the next rows. Aborted: its process has ended.
  Status Advance() {
    begin_ = next_;
    const uint64_t row_bytes = buffer_.row_bytes() + any_size_bytes_;
    const size_t rows = std::min<size_t>(
        wanted_.size() - begin_,
        std::clamp<uint64_t>(kRowsBytes / std::max<uint64_t>(row_bytes, 1), 1,
                             kRowsMax));
    buffer_.Clear(rows);
    errors_.assign(rows, OkStatus());
    PENSTOCK_RETURN_IF_ERROR(records_->python.decoded_bytes == 0
                                 ? CopySelected(rows)
                                 : CopyDecoded(rows));
    any_size_bytes_ = buffer_.any_size_bytes() / rows;
    end_ = begin_ + rows;
    return OkStatus();
  }

  size_t GroupOf(size_t row) const {
    return groups().rows.Find(wanted_[begin_ + row].record).part;
  }
  const ParquetGroups& groups() const { return *records_->groups; }

  // ---- of decoded groups

  Status CopyDecoded(size_t rows) {
    std::map<uint64_t, std::vector<size_t>> left;  // rows by group
    for (size_t row = 0; row < rows; ++row) left[GroupOf(row)].push_back(row);
    std::vector<uint64_t> asked;
    while (!left.empty()) {
      if (cancelled_ && cancelled_()) {
        return CancelledError("nobody waits for it");
      }
      asked.clear();
      for (const auto& each : left) asked.push_back(each.first);
      std::optional<DecodedGroups::Found> found =
          records_->decoded->Find(asked);
      if (!found) continue;
      Status status;
      if (found->table == nullptr) {
        StatusOr<ParquetTable> table = Decode(found->group);
        if (table.ok()) {
          found->table =
              std::make_shared<const ParquetTable>(*std::move(table));
        }
        status = table.status();
        records_->decoded->End(found->group, found->table);
      }
      if (!status.ok() && !IsOfRecord(status)) return status;
      const auto of_group = left.find(found->group);
      const uint64_t first = groups().rows.BeginOf(found->group);
      for (const size_t row : of_group->second) {
        errors_[row] =
            status.ok() ? found->table->Copy(
                              wanted_[begin_ + row].record - first,
                              records_->columns, records_->cuts, row, &buffer_)
                        : status;
      }
      left.erase(of_group);
    }
    return OkStatus();
  }

  // What its process reads of a remote file.
  StatusOr<HeldRanges> Fetched(uint64_t group) const {
    RemoteFile* const remote = groups().RemoteOf(group);
    if (remote == nullptr) return HeldRanges();
    return HeldRanges::Await(remote, records_->RangesOf(group), [this] {
      return cancelled_ && cancelled_() ? CancelledError("nobody waits for it")
                                        : OkStatus();
    });
  }

  StatusOr<ParquetTable> Decode(uint64_t group) {
    PENSTOCK_ASSIGN_OR_RETURN(const HeldRanges held, Fetched(group));
    const size_t file = groups().FileOf(group);
    const uint64_t asked[] = {kAskGroup, file, group - groups().begins[file]};
    const uint64_t first = groups().rows.BeginOf(group);
    return Call(asked, groups().rows.BeginOf(group + 1) - first, first);
  }

  // ---- of rows that a process selects of mapped files

  Status CopySelected(size_t rows) {
    if (!by_group_) {
      const Status status = Select(0, rows);
      if (status.ok() || !IsOfRecord(status)) {
        by_group_ = status.code() == StatusCode::kAborted;
        return status;
      }
    }
    // Group by group, so that no other one is to blame.
    for (size_t row = 0; row < rows;) {
      size_t end = row + 1;
      while (end < rows && GroupOf(end) == GroupOf(row)) ++end;
      const Status status = Select(row, end);
      if (!status.ok()) {
        if (!IsOfRecord(status)) return status;
        std::fill(errors_.begin() + static_cast<ptrdiff_t>(row),
                  errors_.begin() + static_cast<ptrdiff_t>(end), status);
      }
      row = end;
    }
    by_group_ = false;
    return OkStatus();
  }

  Status Select(size_t row, size_t end) {
    std::vector<uint64_t> asked = {kAskRows};
    std::map<uint64_t, HeldRanges> held;  // by group
    for (size_t i = row; i < end; ++i) {
      const auto [group, number] =
          groups().rows.Find(wanted_[begin_ + i].record);
      if (!held.contains(group)) {
        PENSTOCK_ASSIGN_OR_RETURN(held[group], Fetched(group));
      }
      const size_t file = groups().FileOf(group);
      asked.insert(asked.end(), {file, group - groups().begins[file], number});
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        const ParquetTable table,
        Call(asked, end - row, wanted_[begin_ + row].record));
    for (size_t i = row; i < end; ++i) {
      errors_[i] =
          table.Copy(i - row, records_->columns, records_->cuts, i, &buffer_);
    }
    return OkStatus();
  }

  // ---- the process

  static bool IsOfRecord(const Status& status) {
    return status.code() == StatusCode::kDataLoss ||
           status.code() == StatusCode::kDeadlineExceeded;
  }

  // record: to blame if the process ends. Aborted: it has.
  StatusOr<ParquetTable> Call(std::span<const uint64_t> asked, uint64_t rows,
                              uint64_t record) {
    if (const Status blamed = process_.Blame(record); !blamed.ok()) {
      process_.Acquit();
      return blamed;
    }
    StatusOr<ParquetTable> table = CallOnce(asked, rows);
    if (table.status().code() == StatusCode::kUnavailable ||
        table.status().code() == StatusCode::kDeadlineExceeded) {
      return process_.Ended(table.status(), record);
    }
    if (process_.IsSuspect(record)) process_.Acquit();
    return table;
  }

  StatusOr<ParquetTable> CallOnce(std::span<const uint64_t> asked,
                                  uint64_t rows) {
    PENSTOCK_RETURN_IF_ERROR(process_.Start(1));
    PENSTOCK_RETURN_IF_ERROR(process_.Send(asked));
    // The number of rows, and the size of the memory, which stays.
    PENSTOCK_ASSIGN_OR_RETURN(const PythonProcess::Answer answer,
                              process_.Receive(1));
    using Kind = PythonProcess::Answer::Kind;
    if (answer.kind == Kind::kFailed) return DataLossError("{}", answer.body);
    std::vector<uint64_t> numbers(answer.body.size() / sizeof(uint64_t));
    std::memcpy(numbers.data(), answer.body.data(),
                numbers.size() * sizeof(uint64_t));
    if (numbers[0] != rows) return PythonRecordProcess::WrongAnswer();
    // Where the memory's size was.
    numbers.erase(numbers.begin() + 1);
    StatusOr<ParquetTable> table =
        ParquetTable::Take(numbers, answer.fd, records_->columns);
    if (answer.kind == Kind::kLast) process_.End();
    return table;
  }

  const std::shared_ptr<const ParquetRecords> records_;
  PythonRecordProcess process_;
  const Cancelled cancelled_;
  ParquetRowBuffer buffer_;
  std::vector<Status> errors_;   // of each row in it
  uint64_t any_size_bytes_ = 0;  // of a row, as a rule
  std::vector<Source::Wanted> wanted_;
  size_t next_ = 0;   // of wanted_: taken before
  size_t begin_ = 0;  // of wanted_: the buffer's rows
  size_t end_ = 0;
  bool by_group_ = false;  // a process has ended at the buffer's rows
};

}  // namespace

std::vector<RemoteFile::Range> ParquetRecords::RangesOf(uint64_t group) const {
  std::vector<RemoteFile::Range> found;
  for (const size_t place : places) {
    const RemoteFile::Range& range =
        groups->places[group * groups->columns + place];
    if (range.bytes > 0) found.push_back(range);
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  // Those that touch or overlap are one.
  std::vector<RemoteFile::Range> ranges;
  for (const RemoteFile::Range& each : found) {
    if (ranges.empty() ||
        each.offset > ranges.back().offset + ranges.back().bytes) {
      ranges.push_back(each);
      continue;
    }
    RemoteFile::Range& last = ranges.back();
    last.bytes = std::max(last.bytes, each.offset + each.bytes - last.offset);
  }
  return ranges;
}

bool DecodedGroups::Has(uint64_t group) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  return found != groups_.end() && found->second.table != nullptr;
}

std::optional<DecodedGroups::Found> DecodedGroups::Find(
    std::span<const uint64_t> groups) {
  std::unique_lock lock(mutex_);
  for (bool waited = false;; waited = true) {
    const uint64_t* free = nullptr;
    for (const uint64_t& each : groups) {
      const auto found = groups_.find(each);
      if (found == groups_.end()) {
        if (free == nullptr) free = &each;
        continue;
      }
      if (found->second.table == nullptr) continue;
      used_.splice(used_.end(), used_, found->second.used);
      return Found{each, found->second.table};
    }
    if (free != nullptr) {
      groups_[*free];
      return Found{*free, nullptr};
    }
    if (waited) return std::nullopt;
    ended_.wait_for(lock, kLook);
  }
}

void DecodedGroups::End(uint64_t group,
                        std::shared_ptr<const ParquetTable> table) {
  {
    const std::lock_guard lock(mutex_);
    if (table == nullptr) {
      groups_.erase(group);
    } else {
      Group& ended = groups_[group];
      ended.table = std::move(table);
      ended.used = used_.insert(used_.end(), group);
      bytes_ += ended.table->bytes();
      while (bytes_ > bytes_max_ && used_.size() > kGroupsMin) {
        const auto oldest = groups_.find(used_.front());
        bytes_ -= oldest->second.table->bytes();
        groups_.erase(oldest);
        used_.pop_front();
      }
    }
  }
  ended_.notify_all();
}

std::unique_ptr<Source::Maker> MakeParquetRows(
    std::shared_ptr<const ParquetRecords> records, uint32_t index,
    Cancelled cancelled) {
  return std::make_unique<ParquetRows>(std::move(records), index,
                                       std::move(cancelled));
}

}  // namespace penstock
