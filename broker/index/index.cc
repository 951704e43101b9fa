#include "broker/index/index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "broker/base/text.h"
#include "broker/index/in_parallel.h"
#include "broker/index/index_cache.h"
#include "broker/io/file_error.h"
#include "broker/io/stores.h"

namespace penstock {
namespace {

constexpr size_t kBlockBytesMin = size_t{4} << 10;
constexpr size_t kBlockBytesMax = size_t{1} << 20;
constexpr size_t kPlacesFirst = 64;  // of which there may be files without end
constexpr uint64_t kPlaceBytes = sizeof(uint64_t) + sizeof(uint32_t);

Status Scan(const DataFile& file, const RecordScanner& scanner,
            OpenProgress* progress, FileRecords* records) {
  PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(file.path()));
  const int64_t begin_ns = RealTimeNs();
  ScannedFile scanned(file, progress);
  RecordSink sink(records, progress);
  PENSTOCK_RETURN_IF_ERROR(scanner.scan(&scanned, &sink));
  records->offsets.shrink_to_fit();
  records->bytes.shrink_to_fit();
  // Without a cache the next opening only scans again.
  (void)WriteIndexCache(file, scanner, *records, begin_ns);
  return OkStatus();
}

// Says what scans are going to fetch, before they do.
Status CountScans(const DataFiles& files, const std::vector<uint8_t>& kept,
                  const OpenProgress& progress) {
  const DataFile* first = nullptr;
  OpenProgress::Remote& remote = progress.remote;
  for (size_t i = 0; i < files.size(); ++i) {
    if (kept[i] != 0 || files[i].remote() == nullptr) continue;
    if (first == nullptr) first = &files[i];
    ++remote.scanned;
    remote.scanned_bytes += files[i].bytes();
  }
  if (first == nullptr || progress.scans_remote) return OkStatus();
  return FailedPreconditionError(
      "{}{} no index: to find the records, {} would be read once on each host, "
      "which fetches up to {}; `penstock index --out` writes indexes to lie "
      "beside the files, in the store, too",
      first->path(),
      remote.scanned == 1
          ? " has"
          : Format(" and {} more files have", remote.scanned - 1),
      remote.scanned == 1 ? "it" : "they", BytesText(remote.scanned_bytes));
}

}  // namespace

Fingerprint::Digest FileRecords::Digest() const {
  Fingerprint places("places");
  places.Add(std::as_bytes(std::span(offsets)));
  places.Add(std::as_bytes(std::span(bytes)));
  places.Add(left_out);
  places.Add(odd_end);
  return places.digest();
}

Status RecordSink::Grow() {
  const size_t before = records_->offsets.capacity();
  const size_t more = std::max(2 * before, kPlacesFirst);
  PENSTOCK_RETURN_IF_ERROR(Promise((more - before) * kPlaceBytes));
  records_->offsets.reserve(more);
  records_->bytes.reserve(more);
  return OkStatus();
}

ScannedFile::~ScannedFile() {
  progress_->CountDone(file_.bytes() - reported_);
  if (ahead_.bytes > 0) file_.remote()->Release(ahead_);
  if (alone_) file_.remote()->FetchUnits(true);
}

void ScannedFile::FetchAlone() {
  alone_ = file_.remote() != nullptr;
  if (alone_) file_.remote()->FetchUnits(false);
}

std::shared_ptr<const HeldRanges> ScannedFile::Expect(
    std::vector<RemoteFile::Range> ranges) {
  if (!alone_) return nullptr;
  return std::make_shared<const HeldRanges>(file_.remote(), std::move(ranges),
                                            nullptr, RemoteFile::Ask::kHurry);
}

// A scan that goes on needs all of a file or its headers; whoever waits for
// each of those over a network has the whole file sooner. Others need a table.
void ScannedFile::ReadAhead(uint64_t offset) {
  constexpr uint64_t kAheadBytes = 32 << 20;
  constexpr int kFillsOfTable = 4;
  if (file_.remote() == nullptr || alone_ || ++fills_ <= kFillsOfTable) return;
  // By halves: not for each block.
  if (ahead_.bytes > 0 && offset < ahead_.offset + ahead_.bytes / 2 &&
      offset >= ahead_.offset) {
    return;
  }
  const RemoteFile::Range next = {
      offset, std::min(kAheadBytes, file_.bytes() - offset)};
  file_.remote()->Hold(next, nullptr, RemoteFile::Ask::kFetch);
  if (ahead_.bytes > 0) file_.remote()->Release(ahead_);
  ahead_ = next;
}

StatusOr<std::span<const std::byte>> ScannedFile::At(uint64_t offset,
                                                     size_t bytes) {
  if (offset >= begin_ && offset - begin_ <= size_ &&
      bytes <= size_ - (offset - begin_)) {
    return std::span<const std::byte>(buffer_).subspan(offset - begin_, bytes);
  }
  PENSTOCK_RETURN_IF_ERROR(progress_->CheckCancelled(path()));
  const bool near = offset >= begin_ && offset - begin_ <= size_ + block_;
  block_ = near && !alone_
               ? std::clamp(2 * block_, kBlockBytesMin, kBlockBytesMax)
               : kBlockBytesMin;
  const size_t want =
      std::min<uint64_t>(std::max(bytes, block_), file_.bytes() - offset);
  if (buffer_.size() < want) buffer_.resize(want);
  begin_ = offset;
  size_ = 0;
  ReadAhead(offset);
  PENSTOCK_ASSIGN_OR_RETURN(
      size_, file_.Read(begin_, std::span(buffer_).first(want), progress_));
  if (size_ < bytes) {
    return DataLossError(
        "{} became shorter while its records were counted: it had {} bytes, "
        "and has {}",
        path(), file_.bytes(), begin_ + size_);
  }
  const uint64_t done = std::max(reported_, offset);
  progress_->CountDone(done - reported_);
  reported_ = done;
  return std::span<const std::byte>(buffer_).first(bytes);
}

StatusOr<Index> Index::Open(const FilePatterns& patterns,
                            const RecordScanner& scanner,
                            OpenProgress* progress) {
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles files,
                            DataFiles::Open(patterns, *progress));
  return Open(std::move(files), scanner, progress);
}

StatusOr<Index> Index::Open(DataFiles files, const RecordScanner& scanner,
                            OpenProgress* progress) {
  progress->total.store(files.total_bytes(),
                        std::memory_order_relaxed);  // only displayed
  Index index(std::move(files), scanner);
  index.of_file_.resize(index.files_.size());
  std::vector<uint8_t> kept(index.files_.size());
  PENSTOCK_RETURN_IF_ERROR(InParallel(
      kept.size(),
      [&](size_t i) -> Status {
        const DataFile& file = index.files_[i];
        PENSTOCK_RETURN_IF_ERROR(progress->CheckCancelled(file.path()));
        PENSTOCK_ASSIGN_OR_RETURN(
            kept[i],
            ReadKeptIndex(file, scanner, *progress, &index.of_file_[i]));
        if (kept[i] != 0) progress->CountDone(file.bytes());
        return OkStatus();
      },
      index.files_.threads()));
  PENSTOCK_RETURN_IF_ERROR(CountScans(index.files_, kept, *progress));
  PENSTOCK_RETURN_IF_ERROR(InParallel(kept.size(), [&](size_t i) -> Status {
    if (kept[i] != 0) return OkStatus();
    return Scan(index.files_[i], scanner, progress, &index.of_file_[i]);
  }));
  for (size_t i = 0; progress->on_index && i < index.files_.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(
        progress->on_index(index.files_[i], scanner, index.of_file_[i]));
  }
  for (const FileRecords& each : index.of_file_) {
    PENSTOCK_RETURN_IF_ERROR(
        index.records_.Append(each.offsets.size() / scanner.places));
  }
  if (index.records() == 0) {
    return InvalidArgumentError("{}: no record in {}{}", scanner.kind,
                                index.files_[0].path(),
                                index.files_.size() == 1 ? "" : " and others");
  }
  return index;
}

uint64_t Index::left_out() const {
  uint64_t count = 0;
  for (const FileRecords& each : of_file_) count += each.left_out;
  return count;
}

Index::OddEnds Index::odd_ends() const {
  OddEnds odd;
  for (size_t i = 0; i < of_file_.size(); ++i) {
    if (of_file_[i].odd_end == FileRecords::kAbsent) continue;
    if (odd.files++ == 0) {
      odd.first = &files_[i];
      odd.offset = of_file_[i].odd_end;
    }
  }
  return odd;
}

uint64_t Index::memory_bytes() const {
  uint64_t bytes = files_.size() * sizeof(uint64_t);  // of records_
  for (const FileRecords& each : of_file_) {
    bytes += each.offsets.capacity() * sizeof(uint64_t) +
             each.bytes.capacity() * sizeof(uint32_t);
  }
  return bytes;
}

std::string Index::fingerprint() const {
  Fingerprint fingerprint(kind_);
  fingerprint.Add(options_);
  fingerprint.Add(files_);
  for (const FileRecords& each : of_file_) {
    for (const uint64_t word : each.Digest()) fingerprint.Add(word);
  }
  return fingerprint.Hex();
}

Index::Record Index::At(uint64_t record) const {
  const auto [file, number] = records_.Find(record);
  const FileRecords& records = of_file_[file];
  return {&files_[file], number,
          std::span(records.offsets).subspan(number * places_, places_),
          std::span(records.bytes).subspan(number * places_, places_)};
}

Columns ColumnsOf(const Index& index, uint64_t first) {
  return {{"file",
           [&index, first](uint64_t record) {
             return index.At(record - first).file->path();
           }},
          {"bytes", [&index, first](uint64_t record) {
             int64_t bytes = 0;
             for (const uint32_t each : index.At(record - first).bytes) {
               bytes += each;
             }
             return bytes;
           }}};
}

}  // namespace penstock
