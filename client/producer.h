// One producer of a job whose source is a stream: puts rows, whole batches of
// them at a time, into memory that the broker reads.
//
// One thread at a time. What was put is delivered, whatever becomes of this
// process; what was only written is not.
#ifndef CLIENT_PRODUCER_H_
#define CLIENT_PRODUCER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "client/fork.h"
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
  // The first rows of those reserved are whole. Does not wait.
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
  Status Send(const nlohmann::json& request);
  // Takes in what the broker said.
  Status Listen();
  // Until there is something to take in, or to be sent.
  Status Wait(short events, const Deadline& deadline);
  Status EndWith(nlohmann::json request);

  Fd control_;
  std::optional<Mapping> memory_;
  std::optional<ForkGuard> guard_;
  ProducerLayout layout_;
  uint64_t put_rows_ = 0;
  double timeout_s_ = 0;
  std::function<bool()> cancelled_;
  uint64_t fork_generation_ = 0;
  std::string job_;
  std::string dataset_;
  uint64_t next_row_ = 0;

  uint64_t end_ = 0;    // place behind the last put
  uint64_t freed_ = 0;  // place up to which the ranks are through
  uint64_t place_ = 0;  // of what is reserved
  uint64_t reserved_ = 0;
  uint64_t unanswered_ = 0;  // puts
  Status over_;              // why it cannot go on
};

}  // namespace penstock
#endif  // CLIENT_PRODUCER_H_
