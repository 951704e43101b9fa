// One producer of a job whose source is a stream: puts rows, whole batches of
// them at a time, into memory that the broker reads.
//
// One thread at a time. What was put is delivered, whatever becomes of this
// process or of the broker; what was only written is not.
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
  uint64_t rows = 1;     // of one put, at most
  double timeout_s = 0;  // of each call; 0: none
  // For the broker to come back when it died; 0: never.
  double reconnect_s = kReconnectSeconds;
  // Not empty: asked every kPause while a call waits; true: it is cancelled.
  std::function<bool()> cancelled;
};

class Producer {
 public:
  // Waits until a rank has attached to the job.
  static StatusOr<std::unique_ptr<Producer>> Open(
      const ProduceOptions& options);
  // Without Finish before: as if the process had died.
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  // Room for so many rows, to be written at data(feature) and then put; waits
  // until ranks are through with what is there.
  Status Reserve(uint64_t rows);
  // nullptr: no rows are reserved. Row by row, RowBytes apart.
  std::byte* data(size_t feature) const;
  // The first rows of those reserved are whole. Does not wait for anybody to
  // take them. InvalidArgument: a bool that is neither 0 nor 1; the rows are
  // still reserved.
  Status Put(uint64_t rows);
  // All that was put has arrived, and no more will come. Then the producer is
  // of no more use, as after Fail.
  Status Finish();
  // Ends the job for its ranks.
  Status Fail(const std::string& why);

  const std::string& dataset() const { return dataset_; }
  // The number of the row of the stream that was put next, by anybody, when
  // this producer came: where one goes on that knows its rows by number.
  uint64_t next_row() const { return next_row_; }

 private:
  Producer() = default;
  Status Check() const;  // not a forked child, not over
  // Of the rows that are to be put. The broker would fail the job of all.
  Status CheckBools(uint64_t rows) const;
  // Asks to be let in, for the first time or again; the broker says which puts
  // of a former life it knows, the others are to be sent again.
  Status Join(Fd control, const Deadline& deadline);
  Status ReadAnswer(Message answer);
  // The broker died: until it is back.
  Status Reconnect(const Deadline& deadline);
  // Takes in what the broker said, sends what is not sent.
  Status Exchange(const Deadline& deadline);
  Status Listen(const Deadline& deadline);
  // The broker has heard of the puts before this place.
  void Heard(uint64_t end);
  // Until there is something to take in, or to be sent.
  Status Wait(short events, const Deadline& deadline);
  Status EndWith(nlohmann::json request);

  std::string socket_;
  nlohmann::json request_;  // to be let in
  ElementSpec features_;
  uint64_t put_rows_ = 0;
  double timeout_s_ = 0;
  double reconnect_s_ = 0;
  std::function<bool()> cancelled_;
  uint64_t fork_generation_ = 0;
  std::string job_;
  std::string dataset_;
  uint64_t next_row_ = 0;

  Fd control_;    // none: the broker is gone
  Fd memory_fd_;  // shown to the next life of the broker
  std::optional<Mapping> memory_;
  std::optional<ForkGuard> guard_;
  ProducerLayout layout_;
  std::optional<std::chrono::steady_clock::time_point> lost_;

  uint64_t end_ = 0;    // place behind the last put
  uint64_t freed_ = 0;  // place up to which the ranks are through
  uint64_t place_ = 0;  // of what is reserved
  uint64_t reserved_ = 0;
  // Requests that the broker has not answered; of them were sent, on this
  // connection.
  std::deque<nlohmann::json> unanswered_;
  size_t sent_ = 0;
  Status over_;  // why it cannot go on
};

}  // namespace penstock
#endif  // CLIENT_RANK_PRODUCER_H_
