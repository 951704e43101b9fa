#include "broker/stream/stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "broker/base/log.h"
#include "common/layout.h"

namespace penstock {
namespace {

// Nobody can remove pages during a read.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

// A producer's memfd; closed with its last row.
class Stream::Memory {
 public:
  static StatusOr<std::shared_ptr<const Memory>> Create(ProducerLayout layout) {
    Fd fd(memfd_create("penstock-producer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) return ErrnoError(errno, "memfd_create");
    if (ftruncate(fd.get(), static_cast<off_t>(layout.bytes)) != 0) {
      return ErrnoError(errno, "a producer's memory");
    }
    if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
      return ErrnoError(errno, "sealing a producer's memory");
    }
    return std::shared_ptr<const Memory>(
        new Memory(std::move(fd), std::move(layout)));
  }
  // Takes memory of a former broker instance; it comes from a producer, so it
  // is untrusted.
  static StatusOr<std::shared_ptr<const Memory>> Adopt(Fd fd,
                                                       ProducerLayout layout) {
    struct stat status {};
    if (!MayBeMemory(fd.get()) || fstat(fd.get(), &status) != 0 ||
        static_cast<uint64_t>(status.st_size) != layout.bytes) {
      return InvalidArgumentError("this is not the producer's memory");
    }
    return std::shared_ptr<const Memory>(
        new Memory(std::move(fd), std::move(layout)));
  }

  int fd() const { return fd_.get(); }
  const ProducerLayout& layout() const { return layout_; }

 private:
  Memory(Fd fd, ProducerLayout layout)
      : fd_(std::move(fd)), layout_(std::move(layout)) {}
  const Fd fd_;
  const ProducerLayout layout_;
};

Stream::Stream(ElementSpec element, const Shape& shape, StreamRecord* record)
    : element_(std::move(element)),
      shape_(shape),
      record_(record),
      ledger_(shape.begin, shape.to_finish),
      recorded_(shape.begin) {}

// ---- a former broker instance ----------------------------------------------

bool Stream::MayBeMemory(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

void Stream::Restore(FormerStream former) {
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(&mutex_);
  ledger_ = std::move(former.ledger);
  recorded_ = ledger_.released();
  for (const auto& [number, producer] : ledger_.producers()) {
    FormerStream::Kept& kept = former.kept[number];
    auto layout = PlanProducerMemory(element_, producer.ring_rows);
    if (kept.memory && layout.ok()) {
      auto memory = Memory::Adopt(std::move(kept.memory), *std::move(layout));
      if (memory.ok()) memories_[number] = *std::move(memory);
    }
    reported_freed_[number] = producer.freed;
    if (producer.at_work) away_[number] = {std::move(kept.pidfd), now};
  }
  NoteMissingLocked();
}

void Stream::NoteMissingLocked() {
  missing_.reset();
  for (const StreamLedger::Chunk& chunk : ledger_.chunks()) {
    // The ranks that hold retained rows already have them.
    if (chunk.producer == StreamLedger::kRetained) continue;
    if (memories_.count(chunk.producer) > 0) continue;
    missing_ = chunk.first;
    return;
  }
}

void Stream::GiveUpLocked(double wait_s) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<uint32_t> given_up;
  for (const auto& [number, away] : away_) {
    const std::chrono::duration<double> silent = now - away.since;
    if (IsDead(away.pidfd.get()) || (!away.pidfd && silent > kComeBackTime) ||
        (wait_s > 0 && silent.count() > wait_s)) {
      given_up.push_back(number);
    }
  }
  for (const uint32_t number : given_up) LeaveLocked(number, false);
}

Status Stream::GiveUpAway(double wait_s) {
  MutexLock lock(&mutex_);
  GiveUpLocked(wait_s);
  if (!missing_) return OkStatus();
  for (const StreamLedger::Chunk& chunk : ledger_.chunks()) {
    if (chunk.producer == StreamLedger::kRetained ||
        memories_.count(chunk.producer) > 0 ||
        away_.count(chunk.producer) > 0) {
      continue;
    }
    return DataLossError(
        "rows {} to {} of the stream were lost with producer {} and the "
        "broker: nothing kept its memory (systemd and penstock run do); begin "
        "ranks and producers at a state",
        chunk.first, chunk.first + chunk.rows - 1, chunk.producer);
  }
  return OkStatus();
}

StatusOr<Stream::Joined> Stream::ComeBack(uint32_t number,
                                          const Joining& joining) {
  const auto away = away_.find(number);
  if (away == away_.end()) {
    return AlreadyExistsError("producer {} is at work on another connection",
                              number);
  }
  if (memories_.count(number) == 0) {
    if (joining.memory < 0) {
      return DataLossError("the memory of producer {} is lost: nothing kept it",
                           number);
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        ProducerLayout layout,
        PlanProducerMemory(element_, ledger_.producers().at(number).ring_rows));
    PENSTOCK_ASSIGN_OR_RETURN(
        std::shared_ptr<const Memory> memory,
        Memory::Adopt(Fd(fcntl(joining.memory, F_DUPFD_CLOEXEC, 0)),
                      std::move(layout)));
    memories_[number] = std::move(memory);
    NoteMissingLocked();
  }
  away_.erase(away);
  // The answer tells it what is free.
  RecordReleasedLocked();
  reported_freed_[number] = ledger_.producers().at(number).freed;
  return JoinedAs(number);
}

// ---- producers -------------------------------------------------------------

Stream::Joined Stream::JoinedAs(uint32_t number) const {
  const StreamLedger::Producer& producer = ledger_.producers().at(number);
  Joined joined;
  joined.producer = number;
  joined.rows = producer.ring_rows;
  joined.fd = memories_.at(number)->fd();
  joined.next = ledger_.end();
  joined.end = producer.end;
  joined.freed = producer.freed;
  return joined;
}

StatusOr<Stream::Joined> Stream::Join(const Joining& joining) {
  MutexLock lock(&mutex_);
  if (ledger_.HasFinished(joining.token)) {
    Joined joined;
    joined.finished = true;
    return joined;
  }
  std::optional<uint32_t> known;
  for (const auto& [number, producer] : ledger_.producers()) {
    if (joining.token != 0 && producer.token == joining.token &&
        producer.at_work) {
      known = number;
    }
  }
  if (known && !joining.back && memories_.count(*known) == 0) {
    // It got no answer, so it has put nothing.
    LeaveLocked(*known, false);
  } else if (known) {
    return ComeBack(*known, joining);
  }
  if (joining.back) {
    return AbortedError(
        "this producer belongs to another incarnation of the job, or was away "
        "for longer than wait_s after the broker died: it was given up");
  }
  // Otherwise dead producers would count beside their replacements.
  GiveUpLocked(0);
  if (ledger_.over()) {
    return FailedPreconditionError(
        "the stream is over: all of its producers have finished (`producers:` "
        "of the spec says how many there are)");
  }
  if (joining.put_rows > UINT32_MAX) {
    return ResourceExhaustedError("{} rows in one put: at most {} are allowed",
                                  joining.put_rows, UINT32_MAX);
  }
  if (ledger_.producers().size() -
          ledger_.producers().count(StreamLedger::kRetained) >=
      kProducersMax) {
    return ResourceExhaustedError(
        "the limit of {} producers is reached: they are at work, or gone with "
        "rows that no rank has taken",
        kProducersMax);
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      ProducerLayout layout,
      PlanProducerMemory(element_, RowsNeeded(joining.put_rows) +
                                       shape_.rows_out / kToldShare));
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<const Memory> memory,
                            Memory::Create(std::move(layout)));
  StreamLedger::Producer producer;
  producer.token = joining.token;
  producer.ring_rows = memory->layout().rows;
  producer.put_rows = joining.put_rows;
  PENSTOCK_RETURN_IF_ERROR(
      record_->ProducerJoined(ledger_, producer, memory->fd(), joining.pidfd));
  const uint32_t number = ledger_.next_producer();
  ledger_.Join(number, producer.token, producer.ring_rows, producer.put_rows);
  memories_[number] = std::move(memory);
  return JoinedAs(number);
}

StatusOr<uint64_t> Stream::Put(uint32_t number, uint64_t ring_position,
                               uint64_t rows) {
  MutexLock lock(&mutex_);
  PENSTOCK_RETURN_IF_ERROR(ledger_.CheckPut(number, ring_position, rows));
  const uint64_t first = ledger_.end();
  record_->RowsPut(number, ring_position, rows, first);
  ledger_.Put(number, ring_position, rows, first);
  return first;
}

void Stream::Leave(uint32_t number, bool finished) {
  MutexLock lock(&mutex_);
  LeaveLocked(number, finished);
}

void Stream::LeaveLocked(uint32_t number, bool finished) {
  record_->ProducerLeft(number, finished);
  away_.erase(number);
  ForgetLocked(ledger_.Leave(number, finished));
  if (ledger_.at_work() == 0) idle_since_ = std::chrono::steady_clock::now();
}

void Stream::ForgetLocked(const std::vector<uint32_t>& gone) {
  for (const uint32_t number : gone) {
    memories_.erase(number);
    reported_freed_.erase(number);
  }
}

void Stream::Release(uint64_t row) {
  MutexLock lock(&mutex_);
  ForgetLocked(ledger_.Release(row));
  if (missing_ && ledger_.released() > *missing_) NoteMissingLocked();
}

void Stream::RecordReleasedLocked() {
  if (ledger_.released() == recorded_) return;
  recorded_ = ledger_.released();
  record_->RowsReleased(recorded_);
}

bool Stream::IsNewsLocked(uint32_t number,
                          const StreamLedger::Producer& producer) const {
  if (!producer.at_work || away_.count(number) > 0) return false;
  const auto reported = reported_freed_.find(number);
  const uint64_t freed =
      producer.freed -
      (reported == reported_freed_.end() ? 0 : reported->second);
  const uint64_t needed = RowsNeeded(producer.put_rows);
  return freed > 0 && freed + needed >= producer.ring_rows;
}

bool Stream::AnyFreed() const {
  MutexLock lock(&mutex_);
  const uint64_t unrecorded = ledger_.released() - recorded_;
  return unrecorded > (ledger_.at_work() > 0 ? shape_.rows_out : 0) ||
         std::any_of(ledger_.producers().begin(), ledger_.producers().end(),
                     [this](const auto& it) {
                       mutex_.AssertHeld();
                       return IsNewsLocked(it.first, it.second);
                     });
}

std::vector<Stream::Freed> Stream::TakeFreed() {
  MutexLock lock(&mutex_);
  RecordReleasedLocked();
  std::vector<Freed> all;
  for (const auto& [number, producer] : ledger_.producers()) {
    if (!IsNewsLocked(number, producer)) continue;
    reported_freed_[number] = producer.freed;
    all.push_back({number, producer.freed, producer.end});
  }
  return all;
}

// ---- the retained rows -----------------------------------------------------

bool Stream::ShortOfRoom() const {
  MutexLock lock(&mutex_);
  return ShortOfRoomLocked();
}

bool Stream::ShortOfRoomLocked() const {
  return std::any_of(ledger_.producers().begin(), ledger_.producers().end(),
                     [this](const auto& it) {
                       const StreamLedger::Producer& producer = it.second;
                       return producer.at_work &&
                              producer.end - producer.freed > shape_.rows_out;
                     });
}

StatusOr<std::shared_ptr<const Stream::Memory>> Stream::RetainedLocked() {
  if (const auto found = memories_.find(StreamLedger::kRetained);
      found != memories_.end()) {
    return found->second;
  }
  const auto former = ledger_.producers().find(StreamLedger::kRetained);
  if (former != ledger_.producers().end() && former->second.chunks > 0) {
    return DataLossError(
        "nothing kept the retained rows of the former broker instance");
  }
  PENSTOCK_ASSIGN_OR_RETURN(ProducerLayout layout,
                            PlanProducerMemory(element_, shape_.retained_rows));
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<const Memory> memory,
                            Memory::Create(std::move(layout)));
  // Otherwise the record may contain an older one whose rows are all released.
  RecordReleasedLocked();
  PENSTOCK_RETURN_IF_ERROR(
      record_->RetainedOpened(memory->layout().rows, memory->fd()));
  ledger_.OpenRetained(memory->layout().rows);
  memories_[StreamLedger::kRetained] = memory;
  return memory;
}

Status Stream::CopyLocked(const StreamLedger::Chunk& to,
                          const Memory& retained) const {
  constexpr uint64_t kBytesAtOnce = 1 << 20;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Piece> pieces,
                            FindLocked(to.first, to.rows));
  const ProducerLayout& layout = retained.layout();
  std::vector<std::byte> rows;
  for (size_t i = 0; i < layout.row_bytes.size(); ++i) {
    const uint64_t row_bytes = layout.row_bytes[i];
    const uint64_t at_once =
        std::max<uint64_t>(kBytesAtOnce / std::max<uint64_t>(row_bytes, 1), 1);
    uint64_t at = layout.Place(to.ring_position, i);
    for (const Piece& piece : pieces) {
      for (uint64_t k = 0; k < piece.rows; k += at_once) {
        rows.resize(std::min(at_once, piece.rows - k) * row_bytes);
        PENSTOCK_RETURN_IF_ERROR(
            piece.Read(i, k, std::min(at_once, piece.rows - k), rows.data()));
        for (uint64_t done = 0; done < rows.size();) {
          const ssize_t wrote =
              pwrite(retained.fd(), rows.data() + done, rows.size() - done,
                     static_cast<off_t>(at + done));
          if (wrote < 0 && errno == EINTR) continue;
          if (wrote <= 0)
            return ErrnoError(wrote < 0 ? errno : EIO, "retained rows");
          done += static_cast<uint64_t>(wrote);
        }
        at += rows.size();
      }
    }
  }
  return OkStatus();
}

StatusOr<std::vector<StreamLedger::Chunk>> Stream::MoveRunLocked(
    uint64_t first, uint64_t end,
    const std::vector<StreamLedger::Chunk>& kept) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const Memory> retained,
                            RetainedLocked());
  std::map<uint64_t, uint64_t> taken;  // positions [from, upto) in use
  for (const StreamLedger::Chunk& each : kept) {
    taken[each.ring_position] = each.ring_position + each.rows;
  }
  taken[retained->layout().rows] = retained->layout().rows;
  // Fills the gaps, in as many parts as needed.
  std::vector<StreamLedger::Chunk> moved;
  uint64_t position = 0;
  for (const auto& [from, upto] : taken) {
    if (const uint64_t rows = std::min(from - position, end - first);
        rows > 0) {
      moved.push_back({first, rows, StreamLedger::kRetained, position});
      PENSTOCK_RETURN_IF_ERROR(CopyLocked(moved.back(), *retained));
      first += rows;
    }
    position = upto;
  }
  if (first < end) {
    return ResourceExhaustedError("the retained rows are full: {} rows",
                                  position);
  }
  return moved;
}

void Stream::MakeRoom(uint64_t row, const std::vector<RowRange>& ranges) {
  MutexLock lock(&mutex_);
  row = std::min(row, ledger_.end());
  // Needed and in the retained rows.
  std::vector<StreamLedger::Chunk> kept;
  // Needed and in a ring: first and end.
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  auto range = ranges.begin();
  for (const StreamLedger::Chunk& chunk : ledger_.chunks()) {
    const uint64_t chunk_end = std::min(chunk.first + chunk.rows, row);
    while (range != ranges.end() &&
           range->position + range->rows <= chunk.first) {
      ++range;
    }
    for (auto each = range; each != ranges.end() && each->position < chunk_end;
         ++each) {
      const uint64_t first = std::max(each->position, chunk.first);
      const uint64_t end = std::min(each->position + each->rows, chunk_end);
      if (first >= end) continue;
      if (chunk.producer == StreamLedger::kRetained) {
        kept.push_back({first, end - first, StreamLedger::kRetained,
                        chunk.ring_position + (first - chunk.first)});
      } else if (!runs.empty() && runs.back().second == first) {
        runs.back().second = end;
      } else {
        runs.push_back({first, end});
      }
    }
  }
  // Rows before the first needed one are freed without copying. Then copies the
  // oldest first, and no more than necessary.
  for (size_t i = 0; i <= runs.size() && ShortOfRoomLocked(); ++i) {
    if (i > 0) {
      auto moved = MoveRunLocked(runs[i - 1].first, runs[i - 1].second, kept);
      if (!moved.ok()) {
        if (!std::exchange(retained_failed_, true)) {
          Log<"stream-full">(moved.status().message());
        }
        return;
      }
      kept.insert(kept.end(), moved->begin(), moved->end());
    }
    const uint64_t upto = i < runs.size() ? runs[i].first : row;
    if (!MovesLocked(upto, kept)) continue;
    record_->RowsMoved(upto, kept);
    ForgetLocked(ledger_.Move(upto, kept));
    NoteMissingLocked();
  }
}

bool Stream::MovesLocked(uint64_t row,
                         const std::vector<StreamLedger::Chunk>& kept) const {
  uint64_t rows = 0;
  for (const StreamLedger::Chunk& chunk : ledger_.chunks()) {
    if (chunk.first >= row) break;
    if (chunk.producer != StreamLedger::kRetained) return true;
    rows += std::min(chunk.rows, row - chunk.first);
  }
  for (const StreamLedger::Chunk& chunk : kept) rows -= chunk.rows;
  return rows > 0;
}

// ---- queries ---------------------------------------------------------------

uint64_t Stream::end() const {
  MutexLock lock(&mutex_);
  return ledger_.end();
}

uint64_t Stream::available() const {
  MutexLock lock(&mutex_);
  return missing_.value_or(ledger_.end());
}

bool Stream::over() const {
  MutexLock lock(&mutex_);
  return ledger_.over();
}

uint32_t Stream::at_work() const {
  MutexLock lock(&mutex_);
  return ledger_.at_work() - static_cast<uint32_t>(away_.size());
}

uint64_t Stream::released() const {
  MutexLock lock(&mutex_);
  return ledger_.released();
}

std::vector<RowRange> Stream::Here() const {
  MutexLock lock(&mutex_);
  std::vector<RowRange> here;
  const auto add = [&here](uint64_t first, uint64_t rows) {
    if (here.empty() || here.back().position + here.back().rows != first) {
      here.push_back({first, 0, false});
    }
    here.back().rows += rows;
  };
  for (const StreamLedger::Chunk& chunk : ledger_.chunks()) {
    add(chunk.first, chunk.rows);
  }
  add(ledger_.end(), 0);
  return here;
}

uint64_t Stream::kept_rows() const {
  MutexLock lock(&mutex_);
  uint64_t rows = 0;
  for (const StreamLedger::Chunk& chunk : ledger_.chunks()) rows += chunk.rows;
  return rows;
}

std::vector<Stream::ProducerStatus> Stream::Producers() const {
  MutexLock lock(&mutex_);
  std::map<uint32_t, uint64_t> kept;
  for (const StreamLedger::Chunk& chunk : ledger_.chunks()) {
    kept[chunk.producer] += chunk.rows;
  }
  std::vector<ProducerStatus> all;
  for (const auto& [number, producer] : ledger_.producers()) {
    if (number == StreamLedger::kRetained) continue;
    ProducerStatus& status = all.emplace_back();
    status.producer = number;
    status.rows_put = producer.rows;
    status.rows_kept = kept[number];
    if (const auto memory = memories_.find(number); memory != memories_.end()) {
      status.memory_bytes = memory->second->layout().bytes;
    }
    status.state = !producer.at_work         ? "gone"
                   : away_.count(number) > 0 ? "away"
                                             : "at work";
    if (!producer.at_work || away_.count(number) > 0) continue;
    const auto reported = reported_freed_.find(number);
    const uint64_t ring = producer.ring_rows;
    const uint64_t used =
        producer.end -
        (reported == reported_freed_.end() ? 0 : reported->second);
    status.room_rows = ring - std::min(ring, used);
    const uint64_t ring_position =
        RingPositionOfPut(producer.end, producer.put_rows, ring);
    status.waits_for_room =
        ring_position - producer.end + producer.put_rows > status.room_rows;
    if (status.waits_for_room) status.state = "waits for room";
  }
  return all;
}

uint64_t Stream::retained_rows() const {
  MutexLock lock(&mutex_);
  uint64_t rows = 0;
  for (const StreamLedger::Chunk& chunk : ledger_.chunks()) {
    if (chunk.producer == StreamLedger::kRetained) rows += chunk.rows;
  }
  return rows;
}

std::optional<std::chrono::steady_clock::time_point> Stream::idle_since()
    const {
  MutexLock lock(&mutex_);
  if (ledger_.at_work() > 0) return std::nullopt;
  return idle_since_;
}

StatusOr<std::vector<Stream::Piece>> Stream::Find(uint64_t first,
                                                  uint64_t count) const {
  MutexLock lock(&mutex_);
  return FindLocked(first, count);
}

StatusOr<std::vector<Stream::Piece>> Stream::FindLocked(uint64_t first,
                                                        uint64_t count) const {
  const std::deque<StreamLedger::Chunk>& chunks = ledger_.chunks();
  if (first < ledger_.released() || first + count > ledger_.end()) {
    return DataLossError(
        "rows {} to {} of the stream are not available: rows {} to {} are",
        first, first + count - 1, ledger_.released(), ledger_.end() - 1);
  }
  auto chunk =
      std::upper_bound(chunks.begin(), chunks.end(), first,
                       [](uint64_t row, const StreamLedger::Chunk& each) {
                         return row < each.first;
                       });
  --chunk;
  std::vector<Piece> pieces;
  for (; count > 0; ++chunk) {
    if (chunk == chunks.end()) {
      return DataLossError("row {} of the stream was released", first);
    }
    const auto found = memories_.find(chunk->producer);
    if (found == memories_.end()) {
      if (chunk->producer == StreamLedger::kRetained) {
        return DataLossError(
            "row {} of the stream is lost: nothing kept the retained rows of "
            "the former broker instance (systemd and penstock run do)",
            first);
      }
      return DataLossError(
          "row {} of the stream is not available: producer {} is away", first,
          chunk->producer);
    }
    const std::shared_ptr<const Memory>& memory = found->second;
    const uint64_t skipped = first - chunk->first;
    if (first < chunk->first || skipped >= chunk->rows) {
      return DataLossError("row {} of the stream was released", first);
    }
    const uint64_t rows = std::min(count, chunk->rows - skipped);
    pieces.push_back(
        {rows, memory, chunk->ring_position % memory->layout().rows + skipped});
    first += rows;
    count -= rows;
  }
  return pieces;
}

Status Stream::Piece::Read(size_t feature, uint64_t row, uint64_t count,
                           std::byte* out) const {
  const ProducerLayout& layout = memory->layout();
  const uint64_t row_bytes = layout.row_bytes[feature];
  uint64_t at = layout.Place(ring_row + row, feature);
  for (uint64_t left = count * row_bytes; left > 0;) {
    const ssize_t got = pread(memory->fd(), out, left, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return ErrnoError(got < 0 ? errno : EIO, "producer's memory");
    out += got;
    at += static_cast<uint64_t>(got);
    left -= static_cast<uint64_t>(got);
  }
  return OkStatus();
}

}  // namespace penstock
