// The bookkeeping of a stream: which rows were put by which producer, which of
// them are released, and which producers have not finished.
//
// The broker delivers from one ledger; its recovery journal rebuilds another
// from the records for the next broker instance. The same calls in the same
// order give the same ledger; repeating a call changes nothing.
//
// Plain data, not thread-safe. Input from producers must pass CheckPut.
#ifndef BROKER_STREAM_STREAM_LEDGER_H_
#define BROKER_STREAM_STREAM_LEDGER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "common/status.h"

namespace penstock {

class StreamLedger {
 public:
  // A contiguous run of kept rows: put and not released.
  struct Chunk {
    uint64_t first = 0;  // row number in the stream
    uint64_t rows = 0;
    uint32_t producer = 0;
    uint64_t place = 0;  // ring position
  };
  // A producer that is at work or has kept rows.
  struct Producer {
    uint64_t token = 0;  // secret shown when it comes back; 0: it never does
    uint64_t ring_rows = 0;
    uint64_t put_rows = 0;  // the largest put
    uint64_t end = 0;       // ring position after its last put
    uint64_t freed = 0;     // its rows before this ring position are released
    uint64_t chunks = 0;    // kept chunks
    uint64_t rows = 0;      // rows put, over all broker instances
    bool at_work = true;
  };

  // begin: the number of the first row. to_finish: the stream is over when this
  // many producers have finished, or more if more were at work at once, so that
  // the stream waits for a replacement of one that dies.
  StreamLedger(uint64_t begin, uint64_t to_finish);

  // The number for the next producer.
  uint32_t next_producer() const { return next_producer_; }
  void Join(uint32_t number, uint64_t token, uint64_t ring_rows,
            uint64_t put_rows);
  // InvalidArgument: impossible rows; ResourceExhausted: too many chunks are
  // kept.
  Status CheckPut(uint32_t number, uint64_t ring_position, uint64_t rows) const;
  // first: the number of the first row; end() unless replayed.
  void Put(uint32_t number, uint64_t ring_position, uint64_t rows,
           uint64_t first);
  // finished: it has put all of its rows; else it is gone, and another may
  // replace it. This and the next two return the producers removed from
  // producers().
  std::vector<uint32_t> Leave(uint32_t number, bool finished);
  // Releases the rows before this one.
  std::vector<uint32_t> Release(uint64_t row);
  // Before row only the chunks `kept` are still needed, sorted by number, and
  // they are now in the retained rows: place is their position there,
  // unchanged for those that were there before.
  std::vector<uint32_t> Move(uint64_t row, const std::vector<Chunk>& kept);
  // The broker's own memory. Not a producer's, but listed in producers() while
  // it holds rows.
  static constexpr uint32_t kRetained = UINT32_MAX;
  void OpenRetained(uint64_t rows);

  uint64_t end() const { return end_; }
  // The first kept row, or end().
  uint64_t released() const {
    return chunks_.empty() ? end_ : chunks_.front().first;
  }
  bool over() const { return at_work_ == 0 && finished_ >= to_finish_; }
  uint32_t at_work() const { return at_work_; }
  bool HasFinished(uint64_t token) const;  // remembers the last kFinishedKept
  const std::deque<Chunk>& chunks() const { return chunks_; }  // by number
  const std::map<uint32_t, Producer>& producers() const { return producers_; }

  // Everything but the chunks; add those with Keep, in order.
  nlohmann::json ToJson() const;
  // Throws nlohmann::json::exception.
  static StreamLedger FromJson(const nlohmann::json& json);
  // Adds a chunk numbered by Put before; false: impossible.
  bool Keep(const Chunk& chunk);

  static constexpr size_t kChunksMax = 1 << 15;
  static constexpr size_t kFinishedKept = 1024;

 private:
  std::map<uint32_t, Producer> producers_;
  uint32_t next_producer_ = 0;
  uint32_t at_work_ = 0;
  uint64_t finished_ = 0;
  uint64_t to_finish_ = 0;
  std::deque<uint64_t> finished_tokens_;
  std::deque<Chunk> chunks_;
  uint64_t end_ = 0;
};

}  // namespace penstock
#endif  // BROKER_STREAM_STREAM_LEDGER_H_
