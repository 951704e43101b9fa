#include "broker/stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <set>

#include "common/layout.h"

namespace penstock {

// A producer's memfd; closed with the last row that is in it.
class Stream::Memory {
 public:
  static StatusOr<std::shared_ptr<const Memory>> Create(ProducerLayout layout) {
    Fd fd(memfd_create("penstock-producer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) return ErrnoError(errno, "memfd_create");
    if (ftruncate(fd.get(), static_cast<off_t>(layout.bytes)) != 0) {
      return ErrnoError(errno, "a producer's memory");
    }
    // Nobody can take pages away from a read that is under way.
    if (fcntl(fd.get(), F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return ErrnoError(errno, "sealing a producer's memory");
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

Stream::Stream(ElementSpec element, uint64_t begin, uint64_t rows_out,
               uint64_t producers)
    : element_(std::move(element)),
      rows_out_(rows_out),
      to_finish_(producers),
      end_(begin) {}

StatusOr<Stream::Joined> Stream::Join(uint64_t put_rows) {
  if (over()) {
    return FailedPreconditionError(
        "the stream is over: all of its producers have finished (`producers:` "
        "of the spec says how many there are)");
  }
  if (put_rows > UINT32_MAX) {
    return ResourceExhaustedError("{} rows in one put, at most {} may be",
                                  put_rows, UINT32_MAX);
  }
  // Besides: what is passed over at the ring's end, and the put itself.
  PENSTOCK_ASSIGN_OR_RETURN(
      ProducerLayout layout,
      PlanProducerMemory(element_, rows_out_ + 2 * put_rows));
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<const Memory> memory,
                            Memory::Create(std::move(layout)));
  MutexLock lock(&mutex_);
  std::set<const Memory*> memories;  // each a descriptor
  for (const auto& [number, producer] : producers_) {
    memories.insert(producer.memory.get());
  }
  for (const Chunk& chunk : chunks_) memories.insert(chunk.memory.get());
  if (memories.size() >= kProducersMax) {
    return ResourceExhaustedError(
        "{} producers are at work, or gone with rows that nobody has taken: "
        "all "
        "there may be",
        kProducersMax);
  }
  Joined joined;
  joined.producer = next_producer_++;
  joined.rows = memory->layout().rows;
  joined.fd = memory->fd();
  joined.next = end_;
  Producer& producer = producers_[joined.producer];
  producer.memory = std::move(memory);
  producer.put_rows = put_rows;
  to_finish_ = std::max(to_finish_, finished_ + producers_.size());
  return joined;
}

StatusOr<uint64_t> Stream::Put(uint32_t number, uint64_t place, uint64_t rows) {
  MutexLock lock(&mutex_);
  Producer& producer = producers_.at(number);
  const uint64_t ring = producer.memory->layout().rows;
  // Behind the last one, or, when there was not enough room, at the beginning.
  const bool follows = place == producer.end ||
                       (place > producer.end && place - producer.end < ring &&
                        place % ring == 0);
  if (rows == 0 || rows > producer.put_rows || !follows ||
      rows > ring - place % ring || place + rows - producer.freed > ring) {
    return InvalidArgumentError(
        "a put of {} rows at {} that cannot be: the last ended at {}, room is "
        "up to {}",
        rows, place, producer.end, producer.freed + ring);
  }
  if (!chunks_.empty() && chunks_.back().producer == number &&
      place == producer.end && place % ring != 0) {
    chunks_.back().rows += rows;
  } else if (chunks_.size() < kChunksMax) {
    chunks_.push_back({end_, rows, number, producer.memory, place});
  } else {
    return ResourceExhaustedError(
        "{} puts of several producers wait for the ranks, all that may: put "
        "more rows at once",
        kChunksMax);
  }
  producer.end = place + rows;
  end_ += rows;
  return end_ - rows;
}

void Stream::Leave(uint32_t number, bool finished) {
  MutexLock lock(&mutex_);
  producers_.erase(number);
  if (finished) ++finished_;
  if (producers_.empty()) idle_since_ = std::chrono::steady_clock::now();
}

void Stream::Release(uint64_t row) {
  MutexLock lock(&mutex_);
  while (!chunks_.empty() && chunks_.front().first < row) {
    Chunk& chunk = chunks_.front();
    const uint64_t rows = std::min(chunk.rows, row - chunk.first);
    chunk.first += rows;
    chunk.place += rows;
    chunk.rows -= rows;
    const auto producer = producers_.find(chunk.producer);
    if (producer != producers_.end()) producer->second.freed = chunk.place;
    if (chunk.rows == 0) chunks_.pop_front();
  }
}

bool Stream::AnyFreed() const {
  MutexLock lock(&mutex_);
  return std::any_of(producers_.begin(), producers_.end(), [](const auto& it) {
    return it.second.freed != it.second.told;
  });
}

std::vector<Stream::Freed> Stream::TakeFreed() {
  MutexLock lock(&mutex_);
  std::vector<Freed> all;
  for (auto& [number, producer] : producers_) {
    if (producer.freed == producer.told) continue;
    producer.told = producer.freed;
    all.push_back({number, producer.freed});
  }
  return all;
}

uint64_t Stream::end() const {
  MutexLock lock(&mutex_);
  return end_;
}

bool Stream::over() const {
  MutexLock lock(&mutex_);
  return producers_.empty() && finished_ >= to_finish_;
}

uint32_t Stream::at_work() const {
  MutexLock lock(&mutex_);
  return static_cast<uint32_t>(producers_.size());
}

uint64_t Stream::kept_rows() const {
  MutexLock lock(&mutex_);
  return chunks_.empty() ? 0 : end_ - chunks_.front().first;
}

std::optional<std::chrono::steady_clock::time_point> Stream::idle_since()
    const {
  MutexLock lock(&mutex_);
  if (!producers_.empty()) return std::nullopt;
  return idle_since_;
}

std::vector<Stream::Piece> Stream::Find(uint64_t first, uint64_t count) const {
  MutexLock lock(&mutex_);
  auto chunk = std::upper_bound(
      chunks_.begin(), chunks_.end(), first,
      [](uint64_t row, const Chunk& each) { return row < each.first; });
  assert(chunk != chunks_.begin());
  --chunk;
  std::vector<Piece> pieces;
  for (; count > 0; ++chunk) {
    assert(chunk != chunks_.end());
    const uint64_t skipped = first - chunk->first;
    const uint64_t rows = std::min(count, chunk->rows - skipped);
    const uint64_t ring = chunk->memory->layout().rows;
    pieces.push_back({rows, chunk->memory, chunk->place % ring + skipped});
    first += rows;
    count -= rows;
  }
  return pieces;
}

Status Stream::Piece::Read(size_t feature, uint64_t row, uint64_t count,
                           std::byte* out) const {
  const ProducerLayout& layout = memory->layout();
  const uint64_t row_bytes = layout.row_bytes[feature];
  uint64_t at = layout.offsets[feature] + (ring_row + row) * row_bytes;
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
