// The rows that producers put for a job whose source is a stream: numbered as
// they come, kept in the producers' memory until every rank is through with
// them.
//
// Thread safe: the control thread lets producers in and numbers what they put,
// workers look up rows and read them. What a producer says is untrusted.
//
// Invariants
//   T1  Rows are numbered in the order of the puts, without gaps: the plan's
//       positions.
//   T2  A producer may write a row again only when Release was past its number:
//       until then a rank may still have to get it once more.
//   T3  The memory of a producer outlives its process: what was put is
//       delivered, what was not put is nothing to anybody.
//
// Bounds: kProducersMax producers, at work or gone and with rows left; the rows
// of each one's ring, which are those that the job's slots hold, one step more,
// and two of its puts; kChunksMax runs of rows.
#ifndef BROKER_STREAM_H_
#define BROKER_STREAM_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/mutex.h"
#include "common/element_spec.h"
#include "common/message.h"
#include "common/producer_memory.h"
#include "common/status.h"

namespace penstock {

class Stream {
 public:
  // begin: the number of the first row. rows_out: as many may be put and not
  // released when the next one is needed. producers: so many have to finish
  // before the stream is over; more, if more were there at once, so that one
  // that dies is waited for and not taken for the end.
  Stream(ElementSpec element, uint64_t begin, uint64_t rows_out,
         uint64_t producers);

  // ---- the control thread's
  // ---------------------------------------------------

  struct Joined {
    uint32_t producer = 0;
    uint64_t rows = 0;  // of its ring
    int fd = -1;        // its memory; the stream's
    uint64_t next = 0;  // the number of the row that is put next, by anybody
  };
  // put_rows: the most rows of one put. FailedPrecondition: the stream is over;
  // ResourceExhausted: too many producers, or rows in one put.
  StatusOr<Joined> Join(uint64_t put_rows);
  // Rows are whole, from this place of the producer's ring on; their first
  // number. InvalidArgument: they cannot be there.
  StatusOr<uint64_t> Put(uint32_t producer, uint64_t place, uint64_t rows);
  // finished: it has put all of its rows; else it died, and another may take
  // its place.
  void Leave(uint32_t producer, bool finished);
  // Every rank is through with the rows before this one.
  void Release(uint64_t row);
  // Of producers at work: the place up to which they may write again. Those
  // that changed since the last call.
  struct Freed {
    uint32_t producer = 0;
    uint64_t place = 0;
  };
  std::vector<Freed> TakeFreed();
  bool AnyFreed() const;

  // Rows put so far, with those before begin.
  uint64_t end() const;
  // No more will come.
  bool over() const;
  uint32_t at_work() const;
  uint64_t kept_rows() const;  // put, and not released
  // Since when nobody is at work who could put more; nullopt: somebody is.
  std::optional<std::chrono::steady_clock::time_point> idle_since() const;

  // ---- workers'
  // ---------------------------------------------------------------

  class Memory;
  // Rows that follow one another in a producer's memory.
  struct Piece {
    uint64_t rows = 0;
    std::shared_ptr<const Memory> memory;
    uint64_t ring_row = 0;

    // Copies rows [row, row + count) of the piece: count * RowBytes bytes.
    Status Read(size_t feature, uint64_t row, uint64_t count,
                std::byte* out) const;
  };
  // The rows [first, first + count), which were put and not released.
  std::vector<Piece> Find(uint64_t first, uint64_t count) const;

 private:
  static constexpr size_t kChunksMax = 1 << 18;
  // Rows that follow one another, in the stream and in a producer's memory.
  struct Chunk {
    uint64_t first = 0;
    uint64_t rows = 0;
    uint32_t producer = 0;
    std::shared_ptr<const Memory> memory;
    uint64_t place = 0;
  };
  struct Producer {
    std::shared_ptr<const Memory> memory;
    uint64_t put_rows = 0;
    uint64_t end = 0;    // of its last put: a place
    uint64_t freed = 0;  // likewise, up to which it may write
    uint64_t told = 0;   // of freed
  };

  const ElementSpec element_;
  const uint64_t rows_out_;

  mutable Mutex mutex_;
  std::map<uint32_t, Producer> producers_ ABSL_GUARDED_BY(mutex_);  // at work
  uint32_t next_producer_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t to_finish_ ABSL_GUARDED_BY(mutex_);
  std::deque<Chunk> chunks_ ABSL_GUARDED_BY(mutex_);  // by number
  uint64_t end_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point idle_since_ ABSL_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
};

}  // namespace penstock
#endif  // BROKER_STREAM_H_
