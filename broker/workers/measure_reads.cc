#include "broker/workers/measure_reads.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "broker/io/file_access.h"
#include "broker/io/read.h"
#include "broker/io/stores.h"
#include "broker/job/dataset.h"
#include "broker/plan/plan.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Reads in flight of each thread, and their bytes: as of a worker whose storage
// gains by many (io/read_depth.h).
constexpr uint32_t kInFlight = 64;
constexpr uint64_t kInFlightBytes = uint64_t{64} << 20;
// Records that are dropped from the page cache, then read.
constexpr uint64_t kRowsMax = 16'384;
constexpr uint64_t kBytesMax = uint64_t{4} << 30;
// The kernel is asked whether so many pages are still there.
constexpr size_t kProbes = 64;
constexpr uint64_t kPage = 4096;
// Shares of the time; the rest is for reading the same again.
constexpr double kColdShare = 0.7;
constexpr double kDroppedShare = 0.9;

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

struct Measured {
  uint64_t rows = 0;
  uint64_t bytes = 0;
  uint64_t failed = 0;
  double seconds = 0;
  double read_s = 0;  // sum

  void Add(const Measured& other) {
    rows += other.rows;
    bytes += other.bytes;
    failed += other.failed;
    read_s += other.read_s;
  }
  nlohmann::json ToJson() const {
    return {{"rows", rows},
            {"bytes", bytes},
            {"failed", failed},
            {"seconds", seconds},
            {"read_s", rows == 0 ? 0 : read_s / static_cast<double>(rows)}};
  }
};

// The file of a part: its own descriptor, or one opened for it.
class PartFile {
 public:
  explicit PartFile(const ReadPart& part) : fd_(part.fd) {
    if (part.kind != ReadPart::Kind::kFile) return;
    const std::shared_ptr<const FileAccess> own = FileAccess::OfBroker();
    auto opened = (part.access != nullptr ? part.access : own.get())
                      ->Open(part.path, O_RDONLY);
    if (opened.ok()) opened_ = *std::move(opened);
    fd_ = opened_.get();
  }
  int fd() const { return fd_; }

 private:
  Fd opened_;
  int fd_;
};

// Whole pages: the kernel drops no others.
void Drop(const ReadPart& part) {
  const PartFile file(part);
  if (file.fd() < 0) return;
  const uint64_t begin = part.offset / kPage * kPage;
  const uint64_t end = (part.offset + part.bytes + kPage - 1) / kPage * kPage;
  // A whole file has no size here: 0 is to its end.
  posix_fadvise(
      file.fd(), static_cast<off_t>(begin),
      part.kind == ReadPart::Kind::kFile ? 0 : static_cast<off_t>(end - begin),
      POSIX_FADV_DONTNEED);
}

bool IsCached(const ReadPart& part) {
  if (part.align > 0) return false;  // it is read past the page cache
  const PartFile file(part);
  if (file.fd() < 0) return false;
  std::byte first;
  iovec into = {&first, 1};
  return preadv2(file.fd(), &into, 1, static_cast<off_t>(part.offset),
                 RWF_NOWAIT) > 0;
}

// One thread's share of the rows.
class Reading {
 public:
  Reading(const Source& source, std::vector<uint64_t> records, uint64_t bytes)
      : source_(source), records_(std::move(records)) {
    const uint64_t mean = bytes / std::max<uint64_t>(records_.size(), 1);
    in_flight_ = static_cast<uint32_t>(std::clamp<uint64_t>(
        kInFlightBytes / std::max<uint64_t>(mean, 1), 1, kInFlight));
  }

  uint32_t in_flight() const { return in_flight_; }

  // Reads the first rows until the time is over; returns how many.
  Status Read(uint64_t rows, Clock::time_point until, Measured* measured) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const std::unique_ptr<StorageReader> reader,
        MakeStorageReader(ReadBackend::kAuto, in_flight_));
    const uint32_t most = reader->blocking() ? 1 : in_flight_;
    std::vector<Clock::time_point> began(in_flight_);
    std::vector<uint32_t> free;
    for (uint32_t i = 0; i < most; ++i) free.push_back(i);
    uint64_t next = 0;
    ReadRequest request;
    while (true) {
      const bool over = next == std::min<uint64_t>(rows, records_.size()) ||
                        Clock::now() >= until;
      if (over && reader->in_flight() == 0) return OkStatus();
      while (!over && !free.empty() && next < records_.size()) {
        request.more.clear();
        source_.Locate(records_[next++], &request);
        const uint32_t ticket = free.back();
        free.pop_back();
        began[ticket] = Clock::now();
        // What is in the page cache is taken at once, as by workers.
        if (reader->Start(ticket, request, {}, kNotPinned)) break;
        if (next == rows) break;
      }
      reader->Submit();
      StorageReader::Done done;
      for (bool any = reader->Next(kWaitForever, &done); any;
           any = reader->Next(kNoWait, &done)) {
        measured->read_s += Seconds(Clock::now() - began[done.ticket]);
        measured->failed += !done.status.ok();
        measured->bytes += done.bytes.size();
        ++measured->rows;
        reader->Release(done.ticket);
        free.push_back(done.ticket);
      }
    }
  }

 private:
  const Source& source_;
  const std::vector<uint64_t> records_;
  uint32_t in_flight_ = 1;
};

// All threads at once. rows: of each, the first so many.
StatusOr<Measured> ReadAll(std::vector<Reading>& readings,
                           const std::vector<uint64_t>& rows, double seconds,
                           std::vector<uint64_t>* read) {
  std::vector<Measured> each(readings.size());
  std::vector<Status> ends(readings.size());
  std::vector<std::thread> threads;
  const Clock::time_point begin = Clock::now();
  const auto until = begin + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(seconds));
  for (size_t i = 0; i < readings.size(); ++i) {
    threads.emplace_back(
        [&, i] { ends[i] = readings[i].Read(rows[i], until, &each[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  Measured all;
  all.seconds = Seconds(Clock::now() - begin);
  read->clear();
  for (size_t i = 0; i < readings.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(ends[i]);
    all.Add(each[i]);
    read->push_back(each[i].rows);
  }
  return all;
}

// At most so many as there are rows: it is enough to measure.
std::vector<Plan::Row> DocumentsOf(const Packing& packing,
                                   const std::vector<Plan::Row>& sequences) {
  std::vector<Plan::Row> documents;
  std::vector<Piece> pieces;
  for (size_t i = 0; documents.size() < sequences.size(); ++i) {
    packing.PiecesOf(sequences[i].record, sequences[i].pass, &pieces);
    for (const Piece& piece : pieces) {
      documents.push_back({.record = piece.record});
    }
  }
  return documents;
}

// The first records of the plan, and the bytes that they are known to have.
std::vector<uint64_t> FirstRecords(const Plan& plan, const Dataset& dataset,
                                   uint64_t* bytes) {
  const Source& source = *dataset.source;
  std::vector<Plan::Row> rows(
      std::min({plan.rows_per_epoch(), plan.records(), kRowsMax}));
  Shuffles shuffles;
  plan.Rows(0, 0, rows.size(), &shuffles, rows.data());
  if (dataset.packing != nullptr) rows = DocumentsOf(*dataset.packing, rows);
  std::vector<uint64_t> records;
  ReadRequest request;
  for (const Plan::Row& row : rows) {
    request.more.clear();
    source.Locate(row.record, &request);
    if (request.kind == ReadRequest::Kind::kNone) continue;
    *bytes += request.bytes;
    for (const ReadPart& part : request.more) *bytes += part.bytes;
    if (*bytes > kBytesMax && !records.empty()) break;
    records.push_back(row.record);
  }
  return records;
}

// Whether the kernel did.
bool DropAll(const Source& source, const std::vector<uint64_t>& records) {
  ReadRequest request;
  const auto for_each = [&](size_t step, const auto& each) {
    for (size_t i = 0; i < records.size(); i += step) {
      request.more.clear();
      source.Locate(records[i], &request);
      each(request);
      for (const ReadPart& part : request.more) each(part);
    }
  };
  for_each(1, Drop);
  size_t parts = 0;
  size_t cached = 0;
  for_each(std::max<size_t>(records.size() / kProbes, 1),
           [&](const ReadPart& part) {
             ++parts;
             cached += IsCached(part);
           });
  return static_cast<double>(parts - cached) >=
         kDroppedShare * static_cast<double>(parts);
}

// From object stores, so far: the process that fetches tells it twice a second.
uint64_t FetchedBytes() {
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  return FileAccess::stores()->UseJson().value("bytes", uint64_t{0});
}

}  // namespace

Status MeasureReads(const DatasetSpec& spec, const FunctionOptions& functions,
                    const MeasureReadsOptions& options, std::FILE* out) {
  OpenProgress progress;
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const Dataset> dataset,
                            OpenDataset(spec, functions, &progress));
  const Source& source = *dataset->source;
  nlohmann::json json = {{"reads", false}};
  std::vector<uint64_t> records;
  uint64_t bytes = 0;
  if (!std::holds_alternative<StreamSource>(spec.source)) {
    PENSTOCK_ASSIGN_OR_RETURN(const Plan plan, PlanOf(spec, *dataset, 1, 1));
    records = FirstRecords(plan, *dataset, &bytes);
  }
  if (!records.empty()) {
    const size_t threads =
        std::clamp<size_t>(options.threads, 1, records.size());
    std::vector<std::vector<uint64_t>> shares(threads);
    for (size_t i = 0; i < records.size(); ++i) {
      shares[i % threads].push_back(records[i]);
    }
    std::vector<Reading> readings;
    std::vector<uint64_t> rows;
    for (std::vector<uint64_t>& share : shares) {
      rows.push_back(share.size());
      readings.emplace_back(source, std::move(share), bytes / threads);
    }
    json = {{"reads", true},
            {"threads", threads},
            {"in_flight", readings[0].in_flight()},
            {"cold", nullptr}};
    ReadRequest first;
    source.Locate(records[0], &first);
    const bool remote = first.remote != nullptr;
    const uint64_t before = remote ? FetchedBytes() : 0;
    bool is_cold = remote || DropAll(source, records);
    // Also where they are cached: then all of them are afterwards.
    PENSTOCK_ASSIGN_OR_RETURN(
        const Measured cold,
        ReadAll(readings, rows, kColdShare * options.seconds, &rows));
    if (remote) {
      const uint64_t fetched = FetchedBytes() - before;
      is_cold = fetched > cold.bytes / 2;
      json["fetched_bytes_per_s"] =
          static_cast<double>(fetched) / std::max(cold.seconds, 1e-9);
    }
    if (is_cold) {
      json["cold"] = cold.ToJson();
    } else {
      json["cold_why"] =
          remote ? "its files are in local copies already"
                 : "the kernel keeps its files in memory (tmpfs), or in use";
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        const Measured cached,
        ReadAll(readings, rows, (1 - kColdShare) * options.seconds, &rows));
    json["cached"] = cached.ToJson();
  }
  std::fputs((json.dump() + "\n").c_str(), out);
  return std::fflush(out) == 0 ? OkStatus() : ErrnoError(errno, "write");
}

}  // namespace penstock
