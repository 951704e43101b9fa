// The records that a predicate kept (common/kept_records.h), as steps of
// `select` are told them; and what a selection is, as text, by which files and
// states know theirs again.
#ifndef BROKER_SOURCE_KEPT_RECORDS_H_
#define BROKER_SOURCE_KEPT_RECORDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/index/side_file.h"
#include "broker/source/kinds.h"

namespace penstock {

// Files that steps of one `select` name, by path. Constant once opened.
class KeptFiles {
 public:
  // Reads them, with the access of progress. Errors begin with the path of the
  // step, "select[1].filter.records: ...": the file's; InvalidArgument: it is
  // none; FailedPrecondition: it is of other data, or of another selection
  // before it.
  static StatusOr<KeptFiles> Open(const std::vector<SelectSpec>& steps,
                                  const SourceSpec& spec, const Source& source,
                                  OpenProgress* progress);

  // For SelectContext. first: as in Source::OrderOf. Refers to this object.
  std::function<bool(const std::string& path, uint64_t record)> Lookup(
      uint64_t first) const;
  bool Changed() const;
  uint64_t memory_bytes() const;
  void AddDigests(FileDigests* digests) const;

 private:
  class File;
  std::map<std::string, std::shared_ptr<const File>> files_;
};

// Which records of a source a selection has, and in which order, as text: how
// the source is made of others, and the steps. The same on every host: without
// paths, files by their digests. "": all of a source that is made of no other.
std::string SelectionText(const SourceSpec& source,
                          std::span<const SelectSpec> steps,
                          const FileDigests& digests);

// What the header of a file of kept records says of what was judged.
// fingerprint: the source's.
std::string SelectionDigest(const SourceSpec& source,
                            const std::string& fingerprint,
                            std::span<const SelectSpec> steps,
                            const FileDigests& digests);

}  // namespace penstock
#endif  // BROKER_SOURCE_KEPT_RECORDS_H_
