// One producer of a job whose source is a stream: puts rows, many at a time,
// into memory that the broker reads.
//
// One thread at a time. Rows that were put are delivered even if this process
// or the broker dies; rows not yet put are discarded.
#ifndef CLIENT_RANK_PRODUCER_H_
#define CLIENT_RANK_PRODUCER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "client/attach/fork.h"
#include "client/attach/reconnect.h"
#include "common/element_spec.h"
#include "common/message.h"
#include "common/producer_memory.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

struct ProduceOptions {
  std::string job;      // "": PENSTOCK_JOB, the launcher's, "default"
  std::string dataset;  // "": the only one of that job
  std::string socket;   // "": PENSTOCK_SOCKET, the default
  ElementSpec features;
  uint64_t rows = 1;     // most rows of one put
  double timeout_s = 0;  // limit of each call; 0: none
  // Wait for a dead broker to come back; 0: do not wait.
  double reconnect_s = kReconnectSeconds;
  // Called every kPause while a call waits; true cancels the call.
  std::function<bool()> cancelled;
};

class Producer {
 public:
  // Waits until a rank has attached to the job.
  static StatusOr<std::unique_ptr<Producer>> Open(
      const ProduceOptions& options);
  // Without Finish or Fail before: as if the process had died.
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  // Reserves memory for rows, to be written at data(feature) and then put;
  // waits until the ranks have finished with older rows.
  Status Reserve(uint64_t rows);
  // The reserved rows, RowBytes apart. nullptr: no rows are reserved.
  std::byte* data(size_t feature) const;
  // Puts the first of the reserved rows; does not wait for ranks.
  // InvalidArgument: a bool that is neither 0 nor 1; the rows stay reserved.
  Status Put(uint64_t rows);
  // Says that no more rows come; waits until the broker has recorded all puts.
  // Then, as after Fail, every call fails.
  Status Finish();
  // Fails the job.
  Status Fail(const std::string& why);

  const std::string& dataset() const { return dataset_; }
  // The stream's row number that was next when this producer opened: a producer
  // that knows its rows by number goes on there.
  uint64_t next_row() const { return next_row_; }

 private:
  Producer() = default;
  Status Check() const;  // not a forked child, not over
  // Checks the rows to be put: with wrong ones the broker would fail the job.
  Status CheckBools(uint64_t rows) const;
  // Joins the job, or rejoins it: then the broker says which puts it has
  // recorded, and the others are sent again.
  Status Join(Fd control, const Deadline& deadline);
  Status ReadAnswer(Message answer);
  // Waits until a dead broker is back.
  Status Reconnect(const Deadline& deadline);
  // Reads the broker's messages, then sends the unsent requests.
  Status Exchange(const Deadline& deadline);
  Status Listen(const Deadline& deadline);
  // The broker has recorded the puts before this ring row.
  void Heard(uint64_t end);
  // Waits, kPause at most, until the socket can be read or written.
  Status Wait(short events, const Deadline& deadline);
  Status EndWith(nlohmann::json request);

  std::string socket_;
  nlohmann::json request_;  // to join
  ElementSpec features_;
  uint64_t put_rows_ = 0;
  double timeout_s_ = 0;
  double reconnect_s_ = 0;
  std::function<bool()> cancelled_;
  uint64_t fork_generation_ = 0;
  std::string job_;
  std::string dataset_;
  uint64_t next_row_ = 0;

  Fd control_;    // closed: the broker is gone
  Fd memory_fd_;  // passed to the next broker instance
  std::optional<Mapping> memory_;
  std::optional<ForkGuard> guard_;
  ProducerLayout layout_;
  std::optional<std::chrono::steady_clock::time_point> lost_;

  // Ring rows, counted without wrapping.
  uint64_t end_ = 0;            // end of the last put
  uint64_t freed_ = 0;          // end of the rows the ranks have finished with
  uint64_t ring_position_ = 0;  // first reserved row
  uint64_t reserved_ = 0;       // number of reserved rows
  // Requests that the broker has not answered; the first sent_ of them were
  // sent on this connection.
  std::deque<nlohmann::json> unanswered_;
  size_t sent_ = 0;
  Status over_;  // why it cannot go on
};

}  // namespace penstock
#endif  // CLIENT_RANK_PRODUCER_H_
