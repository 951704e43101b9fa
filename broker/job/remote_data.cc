#include "broker/job/remote_data.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "broker/io/remote_file.h"
#include "broker/job/look_ahead.h"

namespace penstock {
namespace {

// Rows that are looked at, evenly over the epoch.
constexpr uint64_t kRowsSampled = 4096;

class Sampled {
 public:
  explicit Sampled(const Dataset& dataset) : dataset_(dataset) {}

  void Add(const Plan::Row& row) {
    ++rows_;
    if (dataset_.packing == nullptr) return AddRecord(row.record);
    dataset_.packing->PiecesOf(row.record, row.pass, &pieces_);
    for (const Piece& piece : pieces_) AddRecord(piece.record);
  }

  nlohmann::json ToJson(const Plan& plan) const {
    if (files_.empty()) return nullptr;
    uint64_t bytes = 0;
    for (const RemoteFile* const file : files_) bytes += file->bytes();
    const RemoteFile& any = **files_.begin();
    struct statvfs disk {};
    const bool known = fstatvfs(any.fd(), &disk) == 0;
    const double rows = static_cast<double>(rows_);
    if (reads_columns_ && bytes_ > 0) {
      bytes = static_cast<uint64_t>(static_cast<double>(bytes_) / rows *
                                    static_cast<double>(plan.rows_per_epoch()));
    } else if (dataset_.remote.bytes > 0) {
      bytes = dataset_.remote.bytes;
    }
    const Dataset::RemoteFiles& all = dataset_.remote;
    return {
        {"files", std::max<uint64_t>(all.files, files_.size())},
        {"bytes", bytes},
        {"index_kept", all.kept},
        {"index_beside", all.beside},
        {"index_scanned", all.scanned},
        {"index_scanned_bytes", all.scanned_bytes},
        {"rows", plan.rows_per_epoch()},
        {"row_bytes", static_cast<double>(bytes_) / rows},
        {"row_block_bytes", static_cast<double>(block_bytes_) / rows},
        {"room_bytes", any.room_bytes()},
        {"kept_bytes", any.kept_bytes()},
        {"ahead_bytes", any.ahead_bytes()},
        {"ahead_rows", LookAhead::kRowsMax},
        {"free_bytes", known ? uint64_t{disk.f_bavail} * disk.f_frsize : 0}};
  }

 private:
  void AddRecord(uint64_t record) {
    request_.more.clear();
    dataset_.source->Locate(record, &request_);
    AddPart(request_);
    for (const ReadPart& part : request_.more) AddPart(part);
    const auto shared = dataset_.source->SharedRangesOf(record);
    if (!shared) return;
    reads_columns_ = true;
    // A record's part of what its group needs.
    uint64_t bytes = 0;
    for (const RemoteFile::Range& each : shared->ranges) bytes += each.bytes;
    files_.insert(shared->file);
    bytes_ += bytes / shared->records;
    block_bytes_ += bytes / shared->records;
  }
  void AddPart(const ReadPart& part) {
    constexpr uint64_t kBlock = RemoteFile::kBlockBytes;
    if (part.kind != ReadPart::Kind::kRange || part.remote == nullptr) return;
    files_.insert(part.remote);
    bytes_ += part.bytes;
    block_bytes_ +=
        (part.offset % kBlock + part.bytes + kBlock - 1) / kBlock * kBlock;
  }

  const Dataset& dataset_;
  std::set<const RemoteFile*> files_;
  uint64_t rows_ = 0;
  uint64_t bytes_ = 0;
  uint64_t block_bytes_ = 0;  // of the blocks that the rows are in
  bool reads_columns_ = false;
  ReadRequest request_;
  std::vector<Piece> pieces_;
};

}  // namespace

nlohmann::json RemoteDataJson(const Dataset& dataset, const Plan& plan) {
  if (FileAccess::stores() == nullptr) return nullptr;
  Sampled sampled(dataset);
  const uint64_t rows = plan.rows_per_epoch();
  const uint64_t count = std::min(rows, kRowsSampled);
  Shuffles shuffles;
  for (uint64_t i = 0; i < count; ++i) {
    Plan::Row row;
    // Without overflow, and the first one of each stretch.
    plan.Rows(0, rows / count * i + rows % count * i / count, 1, &shuffles,
              &row);
    sampled.Add(row);
  }
  return sampled.ToJson(plan);
}

}  // namespace penstock
