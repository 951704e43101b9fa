#include "client/command/bench_rank.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "client/command/row_check.h"
#include "common/fd.h"
#include "common/format.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCacheLineBytes = 64;
constexpr auto kReportEvery = std::chrono::milliseconds(100);
constexpr size_t kRecordsBuffered = 4096;

template <typename T>
std::string_view BytesOf(const T* values, size_t count) {
  return {reinterpret_cast<const char*>(values), count * sizeof(T)};
}

class Drain {
 public:
  explicit Drain(const RankTask& task) : task_(task) {
    report_.rank = task.rank;
  }
  ~Drain() { penstock_detach(reader_); }

  bool Run() {
    penstock_options options = PENSTOCK_OPTIONS_INIT;
    const uint32_t replicas = task_.drain.replicas;
    options.rank = static_cast<int32_t>(task_.rank / replicas);
    options.world_size = static_cast<int32_t>(task_.drain.ranks / replicas);
    options.local_world_size = options.world_size;
    options.replica = static_cast<int32_t>(task_.rank % replicas);
    options.replicas = static_cast<int32_t>(replicas);
    options.dataset = task_.drain.dataset.c_str();
    options.job = task_.drain.job.c_str();
    options.socket = task_.drain.socket.c_str();
    if (penstock_attach(&options, &reader_) != PENSTOCK_OK) {
      return Fail(penstock_error());
    }
    features_ = penstock_feature_count(reader_);
    Report(RankReport::kAttached);
    if (!DrainAll() || !FlushRecords()) return false;
    Report(RankReport::kDone);
    char byte;
    (void)TEMP_FAILURE_RETRY(read(task_.release_fd, &byte, 1));
    return true;
  }

 private:
  bool DrainAll() {
    while (
        (task_.drain.steps == 0 || report_.totals.steps < task_.drain.steps) &&
        (task_.drain.epochs == 0 ||
         report_.totals.epochs < task_.drain.epochs)) {
      penstock_batch* batch = nullptr;
      switch (penstock_next(reader_, &batch)) {
        case PENSTOCK_OK:
          if (!Take(batch)) return false;
          break;
        case PENSTOCK_END_OF_EPOCH:
          ++report_.totals.epochs;
          break;
        case PENSTOCK_END_OF_DATA:
          return true;
        default:
          return Fail(penstock_error());
      }
    }
    return true;
  }

  bool Take(penstock_batch* batch) {
    if (task_.drain.touch) TouchBatch(features_, batch);
    const bool recorded = task_.records_fd < 0 || Record(batch);
    ++report_.totals.steps;
    report_.totals.samples += penstock_batch_valid_rows(batch);
    report_.totals.redelivered += penstock_batch_redelivered(batch) != 0;
    penstock_release(batch);
    if (const Clock::time_point now = Clock::now(); now >= next_report_) {
      next_report_ = now + kReportEvery;
      Report(RankReport::kProgress);
    }
    return recorded;
  }

  bool Record(const penstock_batch* batch) {
    const int64_t* ids = penstock_batch_ids(batch);
    const uint64_t rows = penstock_batch_valid_rows(batch);
    for (uint64_t row = 0; row < rows; ++row) {
      RowRecord record{};
      record.epoch = penstock_batch_epoch(batch);
      record.step = penstock_batch_step(batch);
      record.rank = task_.rank / task_.drain.replicas;
      record.row = static_cast<uint32_t>(row);
      record.sample_id = ids[row];
      if (task_.drain.checksums) record.crc32 = RowChecksum(batch, row);
      records_.push_back(record);
    }
    return records_.size() < kRecordsBuffered || FlushRecords();
  }

  uint32_t RowChecksum(const penstock_batch* batch, uint64_t row) {
    uLong crc = crc32_z(0, nullptr, 0);
    for (uint32_t f = 0; f < features_; ++f) {
      penstock_feature feature;
      penstock_batch_feature(batch, f, &feature);
      const uint64_t bytes = feature.row_bytes;
      const Bytef* data =
          static_cast<const Bytef*>(penstock_batch_data(batch, f));
      crc = crc32_z(crc, data + row * bytes, bytes);
    }
    return static_cast<uint32_t>(crc);
  }

  bool FlushRecords() {
    if (records_.empty()) return true;
    if (!WriteWholly(task_.records_fd,
                     BytesOf(records_.data(), records_.size()))) {
      return Fail(Format("cannot keep the list of rows for --verify: {}",
                         strerror(errno)));
    }
    records_.clear();
    return true;
  }

  void Report(RankReport::Kind kind) {
    penstock_stats stats{};
    if (reader_ != nullptr) penstock_get_stats(reader_, &stats);
    report_.kind = kind;
    report_.totals.wait_s = stats.wait_s;
    WriteWholly(task_.report_fd, BytesOf(&report_, 1));
  }

  bool Fail(const std::string& message) {
    const size_t bytes = std::min(message.size(), sizeof(report_.message) - 1);
    std::memcpy(report_.message, message.data(), bytes);
    report_.message[bytes] = '\0';
    Report(RankReport::kFailed);
    return false;
  }

  const RankTask& task_;
  penstock_reader* reader_ = nullptr;
  uint32_t features_ = 0;
  std::vector<RowRecord> records_;
  RankReport report_{};
  Clock::time_point next_report_ = Clock::now();
};

}  // namespace

void TouchBatch(uint32_t features, const penstock_batch* batch) {
  const uint64_t rows = penstock_batch_rows(batch);
  uint8_t sum = 0;
  for (uint32_t f = 0; f < features; ++f) {
    penstock_feature feature;
    penstock_batch_feature(batch, f, &feature);
    const uint8_t* data =
        static_cast<const uint8_t*>(penstock_batch_data(batch, f));
    const uint64_t bytes = rows * feature.row_bytes;
    for (uint64_t at = 0; at < bytes; at += kCacheLineBytes) sum ^= data[at];
  }
  // Keeps the compiler from dropping the reads.
  asm volatile("" : : "r"(sum));
}

int DrainAsRank(const RankTask& task) { return Drain(task).Run() ? 0 : 1; }

}  // namespace penstock
