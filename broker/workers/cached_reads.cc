#include "broker/workers/cached_reads.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace penstock {

void CachedReads::Begin(ClaimedRows* rows) {
  rows_ = rows;
  in_place_ = rows->job->dataset().FeatureReadInPlace();
  group_rows_ = next_ = 0;
  group_max_ = kGroupRowsMin;
  reads_ = bytes_ = 0;
}

bool CachedReads::Next(uint64_t* index, ReadBytes* read, bool* from_cache) {
  if (rows_->job->Cancelled()) return false;
  if (next_ == group_rows_) ReadGroup();
  if (next_ == group_rows_) return false;
  const Row& row = group_[next_++];
  ends_.clear();
  if (!row.request.more.empty()) {
    ends_.push_back(row.request.bytes);
    for (const ReadPart& part : row.request.more) {
      ends_.push_back(ends_.back() + part.bytes);
    }
  }
  *read = {{row.to, row.bytes}, ends_};
  *from_cache = row.from_cache;
  *index = rows_->IndexOf(rows_->started++);
  ++reads_;
  bytes_ += row.bytes;
  return true;
}

void CachedReads::ReadGroup() {
  group_rows_ = next_ = 0;
  const size_t count = LocateGroup();
  if (count == 0) return;
  uint64_t& cached_rows = rows_->state->reads.cached_rows;
  const bool mapped = cached_rows >= kWarmRows;
  // A page that was dropped this moment is read by this thread, which may hang.
  in_flight_->Start(entry_, rows_->job_number,
                    rows_->rows[rows_->IndexOf(rows_->started)].record,
                    host_->now_ns());
  size_t read = 0;
  while (read < count &&
         ReadCached(group_[read].request, mapped, group_[read].to)) {
    ++read;
  }
  const bool keeps = !mapped || KeepsGroup(read);
  in_flight_->End(entry_);
  if (keeps) group_rows_ = read;
  cached_rows = keeps && read == count ? cached_rows + read : 0;
  group_max_ = std::min(2 * group_max_, kGroupRowsMax);
}

// Finds the rows of the next group and where their bytes go. Returns how many.
size_t CachedReads::LocateGroup() {
  const Source& source = *rows_->job->dataset().source;
  const RowCache* const cache = rows_->job->dataset().cache.get();
  const uint64_t end = rows_->to_read;
  uint64_t bytes = 0;
  size_t count = 0;
  for (; count < group_max_ && rows_->started + count < end; ++count) {
    const uint64_t index = rows_->started + count;
    Row& row = group_[count];
    row.from_cache = LocateRow(
        source, cache, rows_->rows[rows_->IndexOf(index)].record, &row.request);
    const std::optional<uint64_t> needed = CachedBytes(row.request);
    if (!needed || (count > 0 && bytes + *needed > kGroupBytes)) break;
    ExpectCached(row.request);
    if (index + group_max_ < end) {
      source.Expect(rows_->rows[rows_->IndexOf(index + group_max_)].record);
    }
    row.bytes = *needed;
    bytes += *needed;
  }
  if (buffer_.size() < bytes) buffer_.resize(bytes);
  std::byte* to = buffer_.data();
  for (size_t i = 0; i < count; ++i) {
    Row& row = group_[i];
    const bool in_place =
        in_place_ && !row.from_cache && row.request.more.empty();
    row.to = in_place
                 ? rows_->Place(rows_->IndexOf(rows_->started + i), *in_place_)
                 : std::exchange(to, to + row.bytes);
  }
  return count;
}

// Whether rows that were copied from maps are what their files have. A fault
// that read storage ends such copies for now.
bool CachedReads::KeepsGroup(size_t count) {
  int checked = -1;  // parts and rows that follow one another are often of it
  const auto is_whole = [&checked](const ReadPart& part) {
    return part.fd == std::exchange(checked, part.fd) || IsWhole(part);
  };
  for (size_t i = 0; i < count; ++i) {
    const ReadRequest& request = group_[i].request;
    if (!is_whole(request) ||
        !std::all_of(request.more.begin(), request.more.end(), is_whole)) {
      return false;
    }
  }
  struct rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) == 0 &&
      std::exchange(faults_, usage.ru_majflt) != usage.ru_majflt) {
    rows_->state->reads.cached_rows = 0;
  }
  return true;
}

void CachedReads::End() {
  Job::Counters& counters = rows_->job->counters();
  Count(counters.reads, reads_);
  Count(counters.reads_cached, reads_);
  Count(counters.bytes_read, bytes_);
  in_flight_->CountBytes(bytes_);
}

}  // namespace penstock
