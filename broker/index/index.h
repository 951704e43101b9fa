// Where the records of a list of files lie: found by a scan of each file, or
// read from that file's cache. Immutable once opened; any thread may use it.
//
// A record has one place (offset and number of bytes in its file), or one for
// each of its members. A place takes 12 bytes.
#ifndef BROKER_INDEX_INDEX_H_
#define BROKER_INDEX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "broker/index/concatenation.h"
#include "broker/index/data_files.h"
#include "broker/index/fingerprint.h"
#include "broker/index/open_progress.h"
#include "broker/io/remote_file.h"
#include "broker/plan/columns.h"
#include "common/status.h"

namespace penstock {

// The places of one file's records.
struct FileRecords {
  // The offset of a member that its record does not have.
  static constexpr uint64_t kAbsent = UINT64_MAX;

  std::vector<uint64_t> offsets;
  // Bytes of a place; with more: UINT32_MAX. No record of so many is ever read.
  std::vector<uint32_t> bytes;
  uint64_t left_out = 0;  // records that the scan left out
  // Where the scan ended otherwise than the format wants it; kAbsent: it did
  // not.
  uint64_t odd_end = kAbsent;

  Fingerprint::Digest Digest() const;
};

// What a scan adds records to.
class RecordSink {
 public:
  RecordSink(FileRecords* records, const OpenProgress* progress)
      : records_(records), progress_(progress) {}

  // The next place: of a record, or of its next member.
  Status Add(uint64_t offset, uint64_t bytes) {
    if (records_->offsets.size() == records_->offsets.capacity()) {
      PENSTOCK_RETURN_IF_ERROR(Grow());
    }
    records_->offsets.push_back(offset);
    records_->bytes.push_back(
        static_cast<uint32_t>(bytes < UINT32_MAX ? bytes : UINT32_MAX));
    return OkStatus();
  }
  void LeaveOut() { ++records_->left_out; }
  void EndsOddly(uint64_t offset) { records_->odd_end = offset; }
  // For what a scan keeps until it can add it.
  Status Promise(uint64_t bytes) { return progress_->reserve(bytes); }

 private:
  Status Grow();

  FileRecords* const records_;
  const OpenProgress* const progress_;
};

// A file as a scan reads it: forwards, in blocks that grow while it needs most
// bytes, and that are small while it skips from header to header.
class ScannedFile {
 public:
  ScannedFile(const DataFile& file, OpenProgress* progress)
      : file_(file), progress_(progress) {}
  // Reports the rest of the file as done.
  ~ScannedFile();
  ScannedFile(const ScannedFile&) = delete;
  ScannedFile& operator=(const ScannedFile&) = delete;

  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.bytes(); }

  // These bytes of the file, within bytes(), until the next call. Errors:
  // Cancelled, DataLoss (it became shorter), and those of reads.
  StatusOr<std::span<const std::byte>> At(uint64_t offset, size_t bytes);

  // From now on nothing else of a remote file is fetched: what is between the
  // places that are read is large, or not wanted.
  void FetchAlone();
  // After FetchAlone: asks for places that are read soon, all at once. Held
  // until it ends; nullptr: the file is not remote.
  std::shared_ptr<const HeldRanges> Expect(
      std::vector<RemoteFile::Range> ranges);

 private:
  void ReadAhead(uint64_t offset);

  const DataFile& file_;
  OpenProgress* const progress_;
  RemoteFile::Range ahead_;  // of a remote file: held
  bool alone_ = false;       // of a remote file
  int fills_ = 0;            // of the buffer
  std::vector<std::byte> buffer_;
  uint64_t begin_ = 0;  // of what is in the buffer
  size_t size_ = 0;
  size_t block_ = 0;
  uint64_t reported_ = 0;
};

// How the records of a format are found.
struct RecordScanner {
  std::string kind;      // of the source
  uint32_t version = 1;  // other code that finds other records has another one
  std::string options;   // what else the result depends on
  uint32_t places = 1;   // of a record
  std::function<Status(ScannedFile* file, RecordSink* records)> scan;
};

class Index {
 public:
  // Errors: those of DataFiles::Open and of the scan; what
  // OpenProgress::reserve says; InvalidArgument: there is no record.
  static StatusOr<Index> Open(const FilePatterns& files,
                              const RecordScanner& scanner,
                              OpenProgress* progress);
  // The index of files that are open already.
  static StatusOr<Index> Open(DataFiles files, const RecordScanner& scanner,
                              OpenProgress* progress);

  // How records are read from now on; DataFile::ChooseIo for their mean size.
  Status ChooseIo(Io io) {
    return files_.ChooseIo(io, files_.total_bytes() / records());
  }

  uint64_t records() const { return records_.count(); }
  const DataFiles& files() const { return files_; }
  uint64_t RecordsOf(size_t file) const {
    return of_file_[file].offsets.size() / places_;
  }
  // Records that the scans left out.
  uint64_t left_out() const;
  // Files with FileRecords::odd_end, and the first of them.
  struct OddEnds {
    size_t files = 0;
    const DataFile* first = nullptr;
    uint64_t offset = 0;
  };
  OddEnds odd_ends() const;
  uint64_t memory_bytes() const;
  bool Changed() const { return files_.Changed(); }
  std::string fingerprint() const;

  struct Record {
    const DataFile* file;
    uint64_t number;  // in the file
    std::span<const uint64_t> offsets;
    std::span<const uint32_t> bytes;
  };
  Record At(uint64_t record) const;
  // At(record) will be asked for soon: of many records each is a cache miss.
  void Expect(uint64_t record) const {
    const auto [file, number] = records_.Find(record);
    __builtin_prefetch(&of_file_[file].offsets[number * places_]);
    __builtin_prefetch(&of_file_[file].bytes[number * places_]);
  }

 private:
  Index(DataFiles files, const RecordScanner& scanner)
      : files_(std::move(files)),
        kind_(scanner.kind),
        options_(scanner.options),
        places_(scanner.places) {}

  DataFiles files_;
  std::string kind_;
  std::string options_;
  uint32_t places_;
  std::vector<FileRecords> of_file_;
  Concatenation records_;  // of the files
};

// What is known of each record: `file`, its path, and `bytes`, its size in it.
// first: added to the numbers of records.
Columns ColumnsOf(const Index& index, uint64_t first);

}  // namespace penstock
#endif  // BROKER_INDEX_INDEX_H_
