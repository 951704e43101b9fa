// What the steps of a `select` need to know of records: columns, of the source
// or read, and files of records: those that a predicate kept
// (common/kept_records.h), those of a list (common/record_list.h); and what a
// selection is, as text, by which files and states know theirs again.
#ifndef BROKER_SOURCE_SELECTION_H_
#define BROKER_SOURCE_SELECTION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/index/open_progress.h"
#include "broker/plan/select.h"
#include "broker/source/kinds.h"

namespace penstock {

// ---- record_files.cc

// Files that steps of one `select` name, by path. Constant once opened.
class RecordFiles {
 public:
  // Reads them, with the access of progress. Errors begin with the path of the
  // step, "select[1].filter.records: ...": the file's; InvalidArgument: it is
  // none; FailedPrecondition: it is of other data, or, where records were
  // judged, of another selection before it.
  static StatusOr<RecordFiles> Open(const std::vector<SelectSpec>& steps,
                                    const SourceSpec& spec,
                                    const Source& source,
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
// What the header of a list of records says of the data that it is of: the
// fingerprint, or where there is none a digest of the source's spec.
std::string DataDigest(const SourceSpec& source,
                       const std::string& fingerprint);

// ---- read_columns.cc

class ColumnValues;

// What goes by a column: its path in the spec.
struct ColumnUse {
  std::string path;
  std::string name;
};

// Records that are excluded, so that an error of theirs is none of the
// column's, and the files that list them.
struct WithoutValues {
  std::function<bool(uint64_t record)> has;
  FileDigests files;  // empty if no record is excluded
  // Nor is the error of a bad record, which `on_error` leaves out or replaces
  // later: its numbers are 0.
  bool bad_ones = false;
};

// Numbers that `map` makes of a record, such as the length of a decoded sound.
struct MadeNumbers {
  std::vector<Feature> features;
  // What makes them. "": nothing tells whether it makes the same again.
  std::string key;
  bool in_processes = false;
  // Where those of a record lie, until it returns; or its error.
  using Take = std::function<Status(
      uint64_t record, const StatusOr<std::span<const std::byte* const>>&)>;
  // One thread's. Errors are those of Take.
  class Maker {
   public:
    virtual ~Maker() = default;
    // Those of this record are taken now, or together with others'.
    virtual Status Add(uint64_t record, const RawRecord& raw) = 0;
    // All that were added have been taken.
    virtual Status Finish() = 0;
  };
  std::function<std::unique_ptr<Maker>(Take)> begin;  // any thread
};

// Columns that a selection goes by and a source knows only by reading its
// records: numbers and texts of theirs, and numbers made of them. All records
// are read once, on several threads, when the dataset is opened; the values
// stay in the cache folder. Constant once opened: 8 bytes a record of a number,
// 4 of a text.
class ReadColumns {
 public:
  // Reads those that source.columns() has not. Errors begin with the path of
  // what names the column: those of a record (DataLoss) that is not `without`
  // values, of the promise of memory, Cancelled. Names of nothing are left to
  // those who use them.
  static StatusOr<ReadColumns> Open(std::span<const ColumnUse> uses,
                                    const SourceSpec& spec,
                                    const Source& source,
                                    const WithoutValues& without,
                                    const MadeNumbers& made,
                                    OpenProgress* progress);
  // Whether a column is one of the source or can be read.
  static bool Has(const Source& source, const std::string& name);

  // The features that it could read; none of a source that processes make.
  static std::vector<std::string> NamesOf(const Source& source);

  // first: as in Source::OrderOf. The columns refer to this object's values.
  void AddTo(uint64_t first, Columns* columns) const;
  uint64_t memory_bytes() const;
  // Adds digests of the values: they decide which records there are.
  void AddDigests(FileDigests* digests) const;
  // What there is to say of bad records, for people.
  const std::string& warning() const { return warning_; }

 private:
  std::vector<std::shared_ptr<const ColumnValues>> columns_;
  std::string warning_;
};

// ---- selection.cc

// Constant once opened.
class Selection {
 public:
  // uses: columns that others than the steps go by. bad_ones: as in
  // WithoutValues. Errors begin with the path of the step: those of RecordFiles
  // and ReadColumns.
  static StatusOr<Selection> Open(const std::vector<SelectSpec>& steps,
                                  const SourceSpec& spec, const Source& source,
                                  OpenProgress* progress,
                                  std::vector<ColumnUse> uses = {},
                                  const MadeNumbers& made = {},
                                  bool bad_ones = false);

  // first: as in Source::OrderOf. Refers to this object and to source, which is
  // the one that it was opened for.
  SelectContext Context(const Source& source, uint64_t first,
                        const OrderBudget& budget) const;
  bool Changed() const { return files_.Changed(); }
  uint64_t memory_bytes() const;
  void AddDigests(FileDigests* digests) const;
  const std::string& warning() const { return read_.warning(); }

 private:
  RecordFiles files_;
  ReadColumns read_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_SELECTION_H_
