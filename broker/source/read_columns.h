// Columns that a selection goes by and a source knows only by reading its
// records: numbers and texts of theirs. All records are read once, on several
// threads, when the dataset is opened; the values stay in the cache folder.
#ifndef BROKER_SOURCE_READ_COLUMNS_H_
#define BROKER_SOURCE_READ_COLUMNS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "broker/index/open_progress.h"
#include "broker/source/kinds.h"
#include "broker/source/source.h"

namespace penstock {

class ColumnValues;

// Constant once opened: 8 bytes a record of a number, 4 of a text.
class ReadColumns {
 public:
  // Reads those that steps name, and that source.columns() has not. Errors
  // begin with the path of the step: those of a record (DataLoss), of the
  // promise of memory, Cancelled. Names of nothing are left to the steps.
  static StatusOr<ReadColumns> Open(const std::vector<SelectSpec>& steps,
                                    const SourceSpec& spec,
                                    const Source& source,
                                    OpenProgress* progress);

  // The features that it could read; none of a source that processes make.
  static std::vector<std::string> NamesOf(const Source& source);

  // first: as in Source::OrderOf. The columns refer to this object's values.
  void AddTo(uint64_t first, Columns* columns) const;
  uint64_t memory_bytes() const;
  // Adds digests of the values: they decide which records there are.
  void AddDigests(FileDigests* digests) const;

 private:
  std::vector<std::shared_ptr<const ColumnValues>> columns_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_READ_COLUMNS_H_
