// What the steps of a `select` need to know of records: columns, of the source
// or read, and the records that files of `penstock filter` keep.
#ifndef BROKER_SOURCE_SELECTION_H_
#define BROKER_SOURCE_SELECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "broker/plan/select.h"
#include "broker/source/kept_records.h"
#include "broker/source/read_columns.h"

namespace penstock {

// Constant once opened.
class Selection {
 public:
  // Errors begin with the path of the step: those of KeptFiles and ReadColumns.
  static StatusOr<Selection> Open(const std::vector<SelectSpec>& steps,
                                  const SourceSpec& spec, const Source& source,
                                  OpenProgress* progress);

  // first: as in Source::OrderOf. Refers to this object and to source, which is
  // the one that it was opened for.
  SelectContext Context(const Source& source, uint64_t first,
                        const OrderBudget& budget) const;
  bool Changed() const { return kept_.Changed(); }
  uint64_t memory_bytes() const;
  void AddDigests(FileDigests* digests) const;

 private:
  KeptFiles kept_;
  ReadColumns read_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_SELECTION_H_
