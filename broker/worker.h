// One worker: the loop that reads, decodes and finishes rows.
#ifndef BROKER_WORKER_H_
#define BROKER_WORKER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "broker/job.h"
#include "broker/plan.h"
#include "broker/read.h"
#include "broker/transform/row_program.h"

namespace penstock {

class WorkerPool;

// Lives on its own thread; touches a Job's row memory and counters, else
// nothing shared.
class Worker {
 public:
  Worker(WorkerPool* pool, std::unique_ptr<Reader> reader);

  // Claims and makes rows until there are none to claim and no read is in
  // flight. False: there was nothing to do.
  bool RunOnce();

 private:
  // A claim being worked on: its plan rows, and how many are still to start and
  // to finish.
  struct Work {
    std::shared_ptr<Job> job;
    Claim claim;
    std::vector<Plan::Row> rows;
    uint64_t started = 0;
    uint64_t finished = 0;
  };
  struct Ticket {
    std::shared_ptr<Work> work;
    uint64_t index = 0;  // in work->rows
  };
  // What a row program needs of this thread.
  struct ProgramScratch {
    std::weak_ptr<Job> job;
    std::unique_ptr<RowProgram::Scratch> scratch;
    Plan::OrderCache order;
  };

  bool ClaimMore();
  // Starts the reads of current_; makes rows that need none, for kInlineNs at
  // most. True: it made some.
  bool StartReads();
  void Finish(const Ticket& ticket, const Status& read,
              std::span<const std::byte> bytes);
  Status MakeRow(Work& work, uint64_t index, uint64_t record,
                 std::span<const std::byte> bytes);
  void HandleError(Work& work, uint64_t index, const Status& status);
  bool Substitute(Work& work, uint64_t index);
  void Done(Work& work, uint64_t rows);
  ProgramScratch& ScratchOf(const std::shared_ptr<Job>& job);

  WorkerPool* const pool_;
  const std::unique_ptr<Reader> reader_;
  std::unique_ptr<Reader> substitute_reader_;
  std::shared_ptr<Work> current_;  // not all of its reads are started
  std::vector<Ticket> tickets_;
  std::vector<uint32_t> free_tickets_;
  std::map<const Job*, ProgramScratch> scratch_;
  ReadRequest request_;
  RawRecord raw_;
  std::vector<std::byte> unpack_scratch_;
  std::vector<std::byte*> out_;
};

}  // namespace penstock
#endif  // BROKER_WORKER_H_
