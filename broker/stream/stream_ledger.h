// The numbers of a stream: which rows were put, by whom, which of them are
// released, which producers have not finished.
//
// The broker delivers from one, its life journal keeps another from what is
// recorded, for the next life: the same calls in the same order give the same
// ledger, and a call that it knows already changes nothing.
//
// Plain data, one thread at a time. What a producer says has to pass CheckPut.
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
  // A run of rows kept: put, and not released.
  struct Chunk {
    uint64_t first = 0;  // its number in the stream
    uint64_t rows = 0;
    uint32_t producer = 0;
    uint64_t place = 0;  // in the producer's ring
  };
  // One that is at work, or of which rows are kept.
  struct Producer {
    uint64_t token = 0;  // its own, shown when it comes back; 0: it never does
    uint64_t ring_rows = 0;
    uint64_t put_rows = 0;  // of one put, at most
    uint64_t end = 0;       // place behind its last put
    uint64_t freed = 0;     // place up to which its rows are released
    uint64_t chunks = 0;    // that are kept
    uint64_t rows = 0;      // that it has put, in all lives
    bool at_work = true;
  };

  // begin: the number of the first row. to_finish: so many producers have to
  // finish before the stream is over; more, if more were at work at once, so
  // that one that dies is waited for and not taken for the end.
  StreamLedger(uint64_t begin, uint64_t to_finish);

  // The number that is given to the next producer.
  uint32_t next_producer() const { return next_producer_; }
  void Join(uint32_t number, uint64_t token, uint64_t ring_rows,
            uint64_t put_rows);
  // InvalidArgument: rows that cannot be there; ResourceExhausted: too many
  // runs of rows are kept.
  Status CheckPut(uint32_t number, uint64_t place, uint64_t rows) const;
  // first: the number of the first row, end() unless it is known.
  void Put(uint32_t number, uint64_t place, uint64_t rows, uint64_t first);
  // finished: it has put all of its rows; else it is gone, and another may
  // take its place. The next two return who is not in producers() any more.
  std::vector<uint32_t> Leave(uint32_t number, bool finished);
  // Rows before this one.
  std::vector<uint32_t> Release(uint64_t row);
  // Of the rows before this one only those are kept, and they are in the
  // retained rows now: in the order of their numbers, place is there, for those
  // that were in the retained rows before, the same.
  std::vector<uint32_t> Move(uint64_t row, const std::vector<Chunk>& kept);
  // Memory of the broker's own, which is no producer's but is in producers()
  // while there are rows in it.
  static constexpr uint32_t kRetained = UINT32_MAX;
  void OpenRetained(uint64_t rows);

  uint64_t end() const { return end_; }
  // The first row that is kept, or end().
  uint64_t released() const {
    return chunks_.empty() ? end_ : chunks_.front().first;
  }
  bool over() const { return at_work_ == 0 && finished_ >= to_finish_; }
  uint32_t at_work() const { return at_work_; }
  bool HasFinished(uint64_t token) const;  // one of the last kFinishedKept
  const std::deque<Chunk>& chunks() const { return chunks_; }  // by number
  const std::map<uint32_t, Producer>& producers() const { return producers_; }

  // All of it but the chunks, which Keep takes one by one afterwards.
  nlohmann::json ToJson() const;
  // Throws nlohmann::json::exception.
  static StreamLedger FromJson(const nlohmann::json& json);
  // What Put has numbered before; false: that cannot be.
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
