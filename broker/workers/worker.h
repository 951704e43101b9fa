// One worker: the loop that reads, decodes and finishes rows.
//
// It has rows of several jobs at once: what has arrived of them, and what needs
// no reading, is made in the order of ServedNext, one row after the other, or
// kInlineNs of rows that need none. So a row is all that a job waits for
// another one that has had more than its share.
//
// Storage that hangs must cost its job its life and nobody else anything:
//   * A job starts a read only while it has fewer in flight here than tickets
//     are free, and never more than `read_depth`. So a job alone has half of
//     them at most; the next finds half of the rest, and so on: a job on hung
//     storage leaves some to those that come later, without anybody saying
//     which one that is (the dynamic threshold of shared-memory switches,
//     Choudhury and Hahne, 1998).
//   * The loop never waits for long: it looks for other rows in between.
//   * A read that nobody waits for any more (its job failed, or its ranks left)
//     is given up: its row counts as done, its ticket stays occupied until the
//     kernel is through with the buffer. A read that lands in a slot keeps its
//     job, and so the memory.
//   * When given up reads occupy half of the tickets, the reader is set aside
//     with them and a new one is made. Bound: kLanesMax readers.
//   * While given up reads of a dataset hang, its jobs have one read in flight:
//     a training that is started again and again on hung storage uses up one
//     ticket each time, and finds out when the storage is back.
#ifndef BROKER_WORKERS_WORKER_H_
#define BROKER_WORKERS_WORKER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "broker/io/read.h"
#include "broker/io/reads_in_flight.h"
#include "broker/job/job.h"
#include "broker/plan/plan.h"
#include "broker/transform/row_program.h"
#include "broker/workers/worker_pool.h"

namespace penstock {

// Lives on its own thread; touches a Job's row memory and counters, its
// ReadsInFlight and its line of the pool's SampleQuarantine, else nothing
// shared.
class Worker {
 public:
  static constexpr uint32_t kLanesMax = 4;
  // Tickets of its reader, and entries of reads.
  static uint32_t Tickets(uint32_t most) { return 2 * most; }
  static uint32_t ReadEntries(uint32_t most) {
    return kLanesMax * Tickets(most) + 1;
  }

  struct Seat {
    uint32_t index = 0;            // of its thread
    uint32_t place = 0;            // see worker_pool.h
    uint64_t job = 0;              // it works for this one only; 0: for all
    std::optional<uint32_t> node;  // NUMA, that it is pinned to
  };
  // most: reads in flight of one job, whatever the pool's read_depth will be.
  Worker(WorkerPool* pool, const Seat& seat, uint32_t most,
         ReadsInFlight* reads);
  // Waits for the reads in flight, for ever if the storage hangs.
  ~Worker() = default;

  // Claims and makes rows until there are none to claim and no read is in
  // flight that somebody waits for. False: there was nothing to do, or the pool
  // stops.
  bool RunOnce();
  // Something is to be given back in time, also without rows: tickets of reads
  // that nobody waits for, pinned memory of jobs that end.
  bool owes() const { return given_up_ > 0 || pins_ > 0; }
  // While it reads it does nothing else.
  bool blocking() const { return lanes_[lane_].reader->blocking(); }
  uint32_t place() const { return seat_.place; }
  uint64_t job() const { return seat_.job; }
  std::optional<uint32_t> node() const { return seat_.node; }

 private:
  // A read that is over, with its bytes in the reader's buffer or in the slot.
  struct Arrival {
    uint32_t lane = 0;
    StorageReader::Done done;
  };
  // What this worker keeps of a job.
  struct JobState {
    std::weak_ptr<Job> job;
    std::unique_ptr<RowProgram::Scratch> scratch;
    Plan::OrderCache order;
    uint64_t dataset_hash = 0;  // SampleQuarantine's
    // By lane: in flight, and arrived but not made.
    std::array<uint32_t, kLanesMax> reads{};
    std::deque<Arrival> arrived;
    uint32_t read_at_once = 0;  // of reads: they were in the page cache
    double buffer_bytes = 0;    // of a read that is not in place, on average
    // By slot: where direct reads land in it (StorageReader::Pin, of lane_), if
    // that was tried.
    std::vector<std::optional<uint32_t>> pins;
    uint64_t pin_bytes = 0;  // of each of them
  };
  // A claim being worked on: its plan rows, and how many are still to start and
  // to finish.
  struct Work {
    std::shared_ptr<Job> job;
    JobAccount* account = nullptr;  // the pool's, of job
    JobState* state = nullptr;      // of job
    uint64_t number = 0;            // the pool's, of job
    Claim claim;
    std::vector<Plan::Row> rows;
    uint64_t started = 0;
    uint64_t finished = 0;
    bool reads = false;                 // its rows are to be read first
    bool cut_off = false;               // the broker stops in the midst of it
    std::vector<Stream::Piece> pieces;  // of a stream, instead of reading
  };
  struct Ticket {
    bool taken = false;
    bool arrived = false;
    bool at_once = false;        // counted in read_at_once
    std::shared_ptr<Work> work;  // none: given up
    uint64_t index = 0;          // in work->rows
    // Whose file is read, or, if it is read into a slot, whose memory.
    std::shared_ptr<const Dataset> dataset;
    std::shared_ptr<Job> into;
    uint64_t dataset_hash = 0;
  };
  // A reader and what its tickets are for.
  struct Lane {
    std::unique_ptr<StorageReader> reader;  // none: the lane is not used
    std::vector<Ticket> tickets;
    std::vector<uint32_t> free;
    uint32_t given_up = 0;
  };

  // Starts what reads may be started, of all rows that are claimed here, and
  // claims more. True: it claimed some.
  bool ReadAhead();
  bool ClaimMore();
  void StartReads(const std::shared_ptr<Work>& work);
  bool MayRead(const Work& work) const;
  // Waits that long at most for a read; true: some have arrived.
  bool TakeArrived(uint64_t wait_ns);
  void Arrive(uint32_t lane, const StorageReader::Done& done);
  // Rows of the job that is served next; false: there are none to make.
  bool MakeNext();
  void MakeArrived(JobState* state);  // one
  void MakeRows(Work& work);          // that need no reading, for kInlineNs
  void CountReadWait(uint64_t ns);
  void Finish(const Ticket& ticket, const StorageReader::Done& done);
  std::byte* Place(const Work& work, uint64_t index, size_t feature) const;
  // Rows of a stream, from index on, of one piece; how many.
  StatusOr<uint64_t> MakeStreamRows(Work& work, uint64_t index);
  Status MakeRow(Work& work, uint64_t index, uint64_t record,
                 std::span<const std::byte> bytes);
  void HandleError(Work& work, uint64_t index, const Status& status);
  bool Substitute(Work& work, uint64_t index);
  void Done(Work& work, uint64_t rows);
  JobState& StateOf(const std::shared_ptr<Job>& job);
  // Of the feature of the claim's slot that direct reads land in.
  uint32_t PinOf(const Work& work, size_t feature);
  void Unpin(JobState& state);
  // Of jobs that nobody waits for. A job's memory goes back only then.
  void UnpinEnded();
  // Once per tick of the pool's clock.
  void CheckReads();
  void GiveUp(uint32_t lane, uint32_t ticket);
  void OpenLane(uint32_t lane);
  // The reader is set aside, if there is a lane for another.
  void ChangeLane();

  uint32_t Entry(uint32_t lane, uint32_t ticket) const {
    return lane * tickets_per_lane_ + ticket;
  }
  uint32_t SubstituteEntry() const { return kLanesMax * tickets_per_lane_; }

  WorkerPool* const pool_;
  const Seat seat_;
  const uint32_t tickets_per_lane_;  // a blocking reader has fewer
  ReadsInFlight* const reads_;
  std::array<Lane, kLanesMax> lanes_;
  uint32_t lane_ = 0;                         // where reads are started
  uint64_t waited_for_ = 0;                   // reads, of all lanes, not made
  uint64_t given_up_ = 0;                     // reads in flight, of all lanes
  std::map<uint64_t, uint32_t> given_up_of_;  // the same, by dataset_hash
  uint64_t pins_ = 0;                         // of all jobs
  uint64_t looked_at_ns_ = 0;                 // when CheckReads was called
  std::unique_ptr<StorageReader> substitute_reader_;
  // Not all of their reads are started; one of a job at most.
  std::vector<std::shared_ptr<Work>> open_;
  std::vector<const Job*> jobs_of_open_;
  bool claim_failed_ = false;  // since the pool's news_seen_
  uint64_t news_seen_ = 0;
  std::map<const Job*, JobState> states_;
  std::vector<JobState*> arrived_of_;  // of states_: something has arrived
  // MakeNext's, for each that it may choose.
  struct Makeable {
    Work* work = nullptr;
    JobState* arrived = nullptr;  // none: its rows need no reading
  };
  std::vector<Makeable> makeable_;
  std::vector<Candidate> candidates_;
  ReadRequest request_;
  RawRecord raw_;
  std::vector<std::byte> unpack_scratch_;
  std::vector<std::byte*> out_;
  std::vector<std::vector<std::byte>> stream_scratch_;  // by feature
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_H_
