// What the processes of a Python dataset share, and their makers.
//
// Threads: records are constant; each maker has a thread of its own.
#ifndef BROKER_SOURCE_PYTHON_RECORDS_H_
#define BROKER_SOURCE_PYTHON_RECORDS_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "broker/source/kinds.h"
#include "broker/source/source.h"
#include "broker/user_code/python_process.h"
#include "common/status.h"

namespace penstock {

struct PythonRecords {
  std::string name;  // for messages
  FunctionOptions options;
  // nullptr: each process loads the dataset itself.
  std::shared_ptr<PythonTemplate> parent;
  nlohmann::json argument;
  // What each process finds in its memory when it starts; its size is "given"
  // of the argument.
  std::string given;
  uint64_t length = 0;
  RawSpec features;
  // What has to stay decoded for rows in a random order.
  uint64_t decoded_bytes = 0;

  // What an iterable dataset has.
  uint32_t iterators = 0;
  // The position that a job begins at (python_iterators.cc); what a template
  // says of files (parquet.cc).
  std::string begin;

  // Samples in columns.
  std::vector<uint64_t> columns;  // their offsets
  uint64_t heap = 0;              // its offset
  uint64_t rows = 0;              // in the columns
};

inline constexpr uint32_t kPythonProcessesMax = 4096;
inline constexpr uint64_t kPythonTextBytesMax = uint64_t{1} << 30;
// The offset of the heap in the memory of whole batches.
inline constexpr size_t kPythonHeap = 64;

// Places the columns of rows; InvalidArgument or ResourceExhausted: they are
// too large.
Status LayOutColumns(PythonRecords* records);

// The memory of a process that starts, with what it is given.
Status FillMemory(const PythonRecords& records, uint64_t bytes,
                  GrowingMemory* memory);
// Takes what the template says of its dataset, keeps it if others can be forked
// from it, and completes the argument of those. in_columns: LayOutColumns.
Status TakeTemplate(std::unique_ptr<PythonProcess> process, bool in_columns,
                    GrowingMemory* memory, PythonRecords* records);

// Sample by sample, into columns (python_rows.py).
std::unique_ptr<Source::Maker> MakePythonRows(
    std::shared_ptr<const PythonRecords> records, uint32_t index,
    Cancelled cancelled);
// Whole batches (python_batches.py).
std::unique_ptr<Source::Maker> MakePythonBatches(
    std::shared_ptr<const PythonRecords> records, uint32_t index,
    Cancelled cancelled);

// Whole batches, by iterators in turn (python_iterators.py).
std::unique_ptr<Source::Maker> MakePythonIterators(
    std::shared_ptr<const PythonRecords> records, Cancelled cancelled);

// Waits for a file that a program is still writing; NotFound: it does not come.
Status AwaitFile(const std::string& path, const Cancelled& cancelled);

// A maker's process: asked, answering, ended, started again.
class PythonRecordProcess {
 public:
  // Bytes of the memory that it may make of it.
  static constexpr uint64_t kMemoryBytesMax = uint64_t{2} << 30;

  PythonRecordProcess(std::shared_ptr<const PythonRecords> records,
                      uint32_t index, Cancelled cancelled)
      : records_(std::move(records)),
        index_(index),
        cancelled_(std::move(cancelled)) {}

  const PythonRecords& records() const { return *records_; }
  GrowingMemory& memory() { return memory_; }
  const GrowingMemory& memory() const { return memory_; }

  // Starts it where there is none, with so much memory at least.
  Status Start(uint64_t bytes);
  Status Send(std::span<const uint64_t> numbers) {
    if (process_ == nullptr) return NoProcess();
    return process_->Send(numbers, cancelled_);
  }
  // Follows it as its memory grows, which the answer's `number` says. Failed:
  // no number.
  StatusOr<PythonProcess::Answer> Receive(size_t number);
  void End() { process_.reset(); }

  // It has ended, or took too long, or lied, in work at this record (nullopt:
  // at no single one): notes the record, whose fault it is after some times.
  // Aborted: another process is to be asked; else the error to return.
  Status Ended(const Status& status, std::optional<uint64_t> record);
  static Status WrongAnswer();
  static Status NoProcess();
  // The index of the row in work, of those that it was asked for: after Send.
  // nullopt: no single one.
  std::optional<uint64_t> InWork(uint64_t rows) const;
  // The record that a process ended at, and what is wrong with it, if it is
  // known to be its fault.
  bool IsSuspect(uint64_t record) const {
    return suspect_ && suspect_->record == record;
  }
  Status Blame(uint64_t record) const;
  void Acquit() { suspect_.reset(); }

 private:
  struct Suspect {
    uint64_t record = 0;
    int deaths = 0;
    Status status;
  };

  const std::shared_ptr<const PythonRecords> records_;
  const uint32_t index_;
  const Cancelled cancelled_;
  GrowingMemory memory_;
  std::unique_ptr<PythonProcess> process_;
  int starts_ = 0;
  std::optional<Suspect> suspect_;
};

// The longest that a maker waits for a record.
uint64_t PythonWaitNs(const FunctionOptions& options);

}  // namespace penstock
#endif  // BROKER_SOURCE_PYTHON_RECORDS_H_
