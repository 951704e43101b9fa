// What sources have in common whose records lie in files: those of an index,
// and those of one size, whose places follow from their numbers.
#ifndef BROKER_SOURCE_INDEXED_SOURCE_H_
#define BROKER_SOURCE_INDEXED_SOURCE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "broker/index/concatenation.h"
#include "broker/index/index.h"
#include "broker/source/source.h"

namespace penstock {

class IndexedSource : public Source {
 public:
  uint64_t record_count() const override { return index_.records(); }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override { return index_.memory_bytes(); }
  bool Changed() const override { return index_.Changed(); }
  std::string io() const override { return IoText(index_.files()[0].align()); }
  std::string fingerprint() const override { return index_.fingerprint(); }
  void AddTimes(Fingerprint* to) const override { index_.files().AddTimes(to); }
  void ListFiles(const FileVisit& visit) const override {
    index_.files().List(visit);
  }
  Columns columns(uint64_t first) const override {
    return ColumnsOf(index_, first);
  }
  void Expect(uint64_t record) const override { index_.Expect(record); }

 protected:
  IndexedSource(Index index, RawSpec raw_spec)
      : index_(std::move(index)), raw_spec_(std::move(raw_spec)) {}
  const Index& index() const { return index_; }

 private:
  const Index index_;
  const RawSpec raw_spec_;
};

class EvenSource : public Source {
 public:
  uint64_t record_count() const override { return layout_.records.count(); }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  bool Changed() const override { return files_.Changed(); }
  std::string io() const override { return IoText(files_[0].align()); }
  void AddTimes(Fingerprint* to) const override { files_.AddTimes(to); }
  void ListFiles(const FileVisit& visit) const override { files_.List(visit); }
  void Locate(uint64_t record, ReadRequest* request) const override {
    const auto [file, offset] = PlaceOf(record);
    file->Locate(offset, layout_.record_bytes, request);
  }
  std::string_view FileOf(uint64_t record) const override {
    return PlaceOf(record).first->path();
  }
  std::string Describe(uint64_t record) const override {
    const auto [file, offset] = PlaceOf(record);
    return Format("{}, offset {}", file->path(), offset);
  }

  struct Layout {
    uint64_t record_bytes = 0;      // that are read
    uint64_t step_bytes = 0;        // from a record to the next
    std::vector<uint64_t> data_at;  // in each file
    Concatenation records;          // of the files
  };

 protected:
  EvenSource(DataFiles files, Layout layout, RawSpec raw_spec)
      : files_(std::move(files)),
        layout_(std::move(layout)),
        raw_spec_(std::move(raw_spec)) {}
  const DataFiles& files() const { return files_; }
  const Layout& layout() const { return layout_; }

 private:
  std::pair<const DataFile*, uint64_t> PlaceOf(uint64_t record) const {
    const auto [file, number] = layout_.records.Find(record);
    return {&files_[file], layout_.data_at[file] + number * layout_.step_bytes};
  }

  const DataFiles files_;
  const Layout layout_;
  const RawSpec raw_spec_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_INDEXED_SOURCE_H_
