// The files of a source that has several: opened together, constant afterwards.
#ifndef BROKER_INDEX_DATA_FILES_H_
#define BROKER_INDEX_DATA_FILES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "broker/index/data_file.h"
#include "broker/index/file_patterns.h"
#include "broker/index/inflated_files.h"
#include "broker/index/open_progress.h"

namespace penstock {

class Fingerprint;

class DataFiles {
 public:
  // Finds and opens all files, on several threads; those that are compressed as
  // what they inflate to. Errors: those of FilePatterns, of DataFile and of
  // CopiesOf.
  static StatusOr<DataFiles> Open(const FilePatterns& patterns,
                                  const OpenProgress& progress,
                                  InflateBy by = InflateBy::kMark);

  // A single file, whatever characters its path has.
  explicit DataFiles(DataFile file);

  // For InParallel, of what has to be read of each.
  size_t threads() const;

  // Other files match the patterns now, or one of them was rewritten.
  bool Changed() const;

  size_t size() const { return files_.size(); }
  uint64_t total_bytes() const { return total_bytes_; }
  const DataFile& operator[](size_t i) const { return files_[i]; }
  std::vector<DataFile>::const_iterator begin() const { return files_.begin(); }
  std::vector<DataFile>::const_iterator end() const { return files_.end(); }

  // Their names from the folder that has all of them.
  void List(const std::function<void(std::string_view name, uint64_t bytes)>&
                visit) const;
  // When each was last changed.
  void AddTimes(Fingerprint* to) const;

  // DataFile::ChooseIo for all of them.
  Status ChooseIo(Io io, uint64_t record_bytes);

 private:
  DataFiles(FilePatterns patterns, std::shared_ptr<const FileAccess> access)
      : patterns_(std::move(patterns)), access_(std::move(access)) {}

  FilePatterns patterns_;
  std::shared_ptr<const FileAccess> access_ = FileAccess::OfBroker();
  std::vector<DataFile> files_;
  uint64_t total_bytes_ = 0;
};

}  // namespace penstock
#endif  // BROKER_INDEX_DATA_FILES_H_
