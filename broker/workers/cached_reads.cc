#include "broker/workers/cached_reads.h"

#include <sys/resource.h>

#include <algorithm>
#include <span>
#include <utility>

namespace penstock {

void CachedReads::Begin(ClaimedRows* rows) {
  rows_ = rows;
  in_place_ = rows->job->dataset().FeatureReadInPlace();
  located_end_ = rows->started;
  reads_ = bytes_ = 0;
}

void CachedReads::Locate(uint64_t index) {
  const Source& source = *rows_->job->dataset().source;
  ReadRequest& request = Located(index);
  request.more.clear();
  source.Locate(rows_->rows[index].record, &request);
  range_.Expect(request);
  if (index + kAhead < rows_->rows.size()) {
    source.Expect(rows_->rows[index + kAhead].record);
  }
}

bool CachedReads::Next(uint64_t* index, ReadBytes* read) {
  const uint64_t count = rows_->rows.size();
  if (rows_->started >= count || rows_->job->Cancelled()) return false;
  *index = rows_->started;
  const uint64_t ahead = std::min(*index + kAhead, count);
  while (located_end_ < ahead) Locate(located_end_++);
  const ReadRequest& request = Located(*index);
  std::span<std::byte> into;
  if (in_place_ && request.more.empty()) {
    into = {rows_->Place(*index, *in_place_), request.bytes};
  }
  // A page that was dropped this moment is read by this thread, which may hang.
  in_flight_->Start(entry_, rows_->job_number, rows_->rows[*index].record,
                    pool_->now_ns());
  uint64_t& cached_rows = rows_->kept->reads.cached_rows;
  const bool cached =
      range_.Read(request, cached_rows >= kWarmRows, into, read);
  in_flight_->End(entry_);
  if (!cached) {
    cached_rows = 0;
    return false;
  }
  if (++cached_rows >= kWarmRows && cached_rows % kCheckRows == 0) {
    CheckFaults();
  }
  ++rows_->started;
  ++reads_;
  bytes_ += read->bytes.size();
  return true;
}

void CachedReads::CheckFaults() {
  struct rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return;
  if (std::exchange(faults_, usage.ru_majflt) != usage.ru_majflt) {
    rows_->kept->reads.cached_rows = 0;
  }
}

void CachedReads::End() {
  Job::Counters& counters = rows_->job->counters();
  Count(counters.reads, reads_);
  Count(counters.reads_cached, reads_);
  Count(counters.bytes_read, bytes_);
  in_flight_->CountBytes(bytes_);
}

}  // namespace penstock
