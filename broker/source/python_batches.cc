// A worker asks its process for a batch: all rows of a claim at once. The first
// row that can be made has the bytes of the batch, the others have none.
#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include "broker/source/python_records.h"

namespace penstock {
namespace {

// See python_batches.py.
constexpr uint64_t kSkipped = uint64_t{1} << 63;
constexpr uint64_t kNone = UINT64_MAX;
// Processes that may end before the batch is given up.
constexpr int kEndsMax = 64;
constexpr int kEndsWithoutRowMax = 3;
constexpr size_t kAnswerNumbers = 3;  // memory, offset and size
constexpr size_t kFailedNumbers = 3;  // row, record, size of the text

class PythonBatches final : public Source::Maker {
 public:
  PythonBatches(std::shared_ptr<const PythonRecords> records, uint32_t index,
                Cancelled cancelled)
      : process_(std::move(records), index, std::move(cancelled)) {}

  void Expect(uint64_t seed, std::span<const Source::Wanted> wanted) override {
    if (next_ < wanted_.size() && seed == seed_) return;
    seed_ = seed;
    wanted_.assign(wanted.begin(), wanted.end());
    next_ = 0;
    made_ = false;
    blamed_.clear();
    ends_ = 0;
    ends_without_row_ = 0;
  }

  Status Make(uint64_t seed, const Source::Wanted& wanted,
              RawRecord* raw) override {
    if (next_ == wanted_.size() || seed != seed_ ||
        !(wanted_[next_] == wanted)) {
      next_ = wanted_.size();
      Expect(seed, {&wanted, 1});
    }
    if (!made_) {
      asked_ = false;
      const Status status = Ask();
      if (!status.ok()) {
        const Status error = status.code() == StatusCode::kInvalidArgument
                                 ? status
                                 : Ended(status);
        // The other rows of the batch are not made one by one.
        if (error.code() != StatusCode::kAborted) next_ = wanted_.size();
        return error;
      }
    }
    const size_t row = next_++;
    const auto failed = failed_.find(row);
    if (failed != failed_.end()) return failed->second.status;
    raw->assign(1, std::exchange(batch_, {}));
    return OkStatus();
  }

  bool makes_batches() const override { return true; }
  std::optional<uint64_t> Substitute() const override {
    const auto found = failed_.find(next_ - 1);
    if (found == failed_.end() || found->second.substitute == kNone) {
      return std::nullopt;
    }
    return found->second.substitute;
  }

  size_t begun() const override {
    return wanted_.size() - std::min(next_ + 1, wanted_.size());
  }

 private:
  struct Failed {
    uint64_t substitute = kNone;
    Status status;
  };

  // Another process is asked, unless too many have ended: with no single sample
  // in work (in collate_fn, at their start), or in all.
  Status Ended(const Status& status) {
    std::optional<uint64_t> row;
    if (asked_) row = process_.InWork(wanted_.size());
    std::optional<uint64_t> record;
    if (row) record = wanted_[*row].record;
    const Status ended = process_.Ended(status, record);
    if (ended.code() != StatusCode::kAborted) return ended;
    if (record) {
      if (const Status blame = process_.Blame(*record); !blame.ok()) {
        blamed_.insert_or_assign(*record, blame);
      }
    }
    ends_without_row_ += row ? 0 : 1;
    if (++ends_ < kEndsMax && ends_without_row_ < kEndsWithoutRowMax) {
      return ended;
    }
    return InvalidArgumentError("{}, {} times while one batch was made",
                                status.message(), ends_);
  }

  // InvalidArgument: the batch cannot be made of its samples. Others: as of
  // PythonProcess::Receive.
  Status Ask() {
    const uint64_t rows = wanted_.size();
    PENSTOCK_RETURN_IF_ERROR(
        process_.Start(kPythonHeap + (1 + 2 * rows) * sizeof(uint64_t)));
    numbers_.assign(1, seed_);
    for (const Source::Wanted& each : wanted_) {
      const bool skipped = blamed_.count(each.record) > 0;
      numbers_.push_back(each.record | (skipped ? kSkipped : 0));
      numbers_.push_back(each.pass);
    }
    std::memset(process_.memory().data(), 0, sizeof(uint64_t));
    std::memcpy(process_.memory().data() + kPythonHeap, numbers_.data(),
                numbers_.size() * sizeof(uint64_t));
    const uint64_t call[] = {rows, process_.memory().bytes(), ends_ > 0};
    PENSTOCK_RETURN_IF_ERROR(process_.Send(call));
    asked_ = true;
    PythonProcess::Answer answer;
    do {
      PENSTOCK_ASSIGN_OR_RETURN(answer, process_.Receive(0));
    } while (answer.kind == PythonProcess::Answer::Kind::kMore);
    if (answer.kind == PythonProcess::Answer::Kind::kFailed) {
      return InvalidArgumentError("{}", answer.body);
    }
    PENSTOCK_RETURN_IF_ERROR(Read(answer.body, rows));
    if (answer.kind == PythonProcess::Answer::Kind::kLast) process_.End();
    process_.Acquit();
    made_ = true;
    return OkStatus();
  }

  Status Read(std::string_view body, uint64_t rows) {
    uint64_t place[kAnswerNumbers];
    if (!Take(&body, place)) return PythonRecordProcess::WrongAnswer();
    const auto [bytes, offset, size] = place;
    if (offset > process_.memory().bytes() ||
        size > process_.memory().bytes() - offset ||
        size > process_.records().features[0].feature.RowBytes()) {
      return PythonRecordProcess::WrongAnswer();
    }
    batch_ = {process_.memory().data() + offset, size};
    failed_.clear();
    while (!body.empty()) {
      uint64_t failed[kFailedNumbers];
      if (!Take(&body, failed)) return PythonRecordProcess::WrongAnswer();
      const auto [row, substitute, text] = failed;
      if (row >= rows || text > body.size()) {
        return PythonRecordProcess::WrongAnswer();
      }
      const auto blame = blamed_.find(wanted_[row].record);
      failed_[row] = {substitute,
                      blame == blamed_.end()
                          ? DataLossError("{}", body.substr(0, text))
                          : blame->second};
      body.remove_prefix(text);
    }
    if (size == 0 && failed_.size() < rows) {
      return PythonRecordProcess::WrongAnswer();
    }
    return OkStatus();
  }

  template <size_t kCount>
  static bool Take(std::string_view* body, uint64_t (&numbers)[kCount]) {
    if (body->size() < sizeof(numbers)) return false;
    std::memcpy(numbers, body->data(), sizeof(numbers));
    body->remove_prefix(sizeof(numbers));
    return true;
  }

  PythonRecordProcess process_;
  std::vector<uint64_t> numbers_;
  uint64_t seed_ = 0;
  std::vector<Source::Wanted> wanted_;
  size_t next_ = 0;  // of wanted_: taken before
  bool asked_ = false;
  bool made_ = false;
  std::span<const std::byte> batch_;   // until a row has it
  std::map<uint64_t, Status> blamed_;  // records, of these rows
  int ends_ = 0;                       // of processes, with these rows
  int ends_without_row_ = 0;
  std::map<uint64_t, Failed> failed_;  // by row
};

}  // namespace

std::unique_ptr<Source::Maker> MakePythonBatches(
    std::shared_ptr<const PythonRecords> records, uint32_t index,
    Cancelled cancelled) {
  return std::make_unique<PythonBatches>(std::move(records), index,
                                         std::move(cancelled));
}

}  // namespace penstock
