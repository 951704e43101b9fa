// The second step of a row: its read. A worker reads ahead, through a reader of
// its own.
//
// Hung storage must fail its job and cost other jobs nothing:
//   * A job starts a read only while it has fewer reads in flight here than
//     tickets are free, and never more than `read_depth`. So a job alone gets
//     at most half of the tickets, the next job half of the rest, and so on. A
//     job on hung storage leaves tickets to later jobs without being detected
//     (the dynamic threshold of shared-memory switches, Choudhury and Hahne,
//     1998).
//   * Nothing here waits for long: the worker makes other rows in between.
//   * A read that is no longer awaited (its job failed, or its ranks left) is
//     given up: its row counts as done, and its ticket stays occupied until the
//     kernel has finished with the buffer. A read that lands in a slot keeps
//     its job, and so the memory.
//   * A reader with its tickets is a read group. When given up reads occupy
//     half of the current group's tickets, the group is set aside and another
//     is opened. Bound: JobReads::kGroupsMax groups.
//   * While given up reads of a dataset hang, its jobs have one read in flight.
//     So a training restarted repeatedly on hung storage uses one ticket each
//     time, and notices when the storage is back.
#ifndef BROKER_WORKERS_WORKER_READS_H_
#define BROKER_WORKERS_WORKER_READS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "broker/io/read.h"
#include "broker/io/reads_in_flight.h"
#include "broker/workers/claimed_rows.h"
#include "broker/workers/worker_host.h"

namespace penstock {

// Runs on its worker's thread.
class WorkerReads {
 public:
  // Tickets of a group, and entries of `in_flight`, if a job has at most `most`
  // reads.
  static uint32_t Tickets(uint32_t most) { return 2 * most; }
  static constexpr uint32_t kExtraEntries = 2;
  static uint32_t Entries(uint32_t most) {
    return JobReads::kGroupsMax * Tickets(most) + kExtraEntries;
  }

  // A finished read of a row. Its bytes are valid until Release.
  struct Read {
    std::shared_ptr<ClaimedRows> rows;
    uint64_t index = 0;       // in rows->rows
    bool in_place = false;    // the bytes are in the slot
    bool cached = false;      // a range, in the page cache
    bool from_cache = false;  // an entry of the job's (RowCache::Locate)
    Arrival arrival;
  };

  WorkerReads(WorkerHost* host, uint32_t thread_index, uint32_t most,
              ReadsInFlight* in_flight, WorkerJobs* jobs);
  // Waits for the reads in flight, forever if the storage hangs.
  ~WorkerReads() = default;

  // ---- starting

  // Starts as many of the rows' reads as permitted.
  void Start(const std::shared_ptr<ClaimedRows>& rows);
  void Submit() { groups_[current_].reader->Submit(); }
  // No ticket is free.
  bool full() const { return groups_[current_].free.empty(); }
  // Reads block the worker.
  bool blocking() const { return groups_[current_].reader->blocking(); }

  // ---- arriving

  // Awaited reads: in flight, or arrived and not made.
  uint64_t waited_for() const { return waited_for_; }
  // Waits at most `wait_ns` for a read. True: some have arrived.
  bool Await(uint64_t wait_ns);
  // Jobs with arrived reads, and the rows of a job's first one.
  const std::vector<WorkerJob*>& arrived() const { return arrived_; }
  ClaimedRows* FirstArrived(const WorkerJob& job) const {
    const Arrival& first = job.reads.arrived.front();
    return groups_[first.group].tickets[first.done.ticket].rows.get();
  }
  Read TakeFirst(WorkerJob* job);
  void Release(const Read& read);

  // ---- in time

  // True while the worker must still release tickets of given up reads or
  // pinned memory, even with no rows to make.
  bool owes() const { return given_up_ > 0 || pins_ > 0; }
  // Once per tick of the host's clock: gives up reads no longer awaited.
  void CheckTimeouts();
  // A job's memory is freed only when none of its slots is pinned.
  void Unpin(JobReads& reads);
  void UnpinEnded();

  // Entries of `in_flight` for reads outside of all groups.
  uint32_t extra_entry(uint32_t number) const {
    return JobReads::kGroupsMax * tickets_per_group_ + number;
  }

 private:
  struct Ticket {
    bool taken = false;
    bool arrived = false;
    bool at_once = false;               // counted in JobReads::at_once
    bool range = false;                 // no whole file
    bool from_cache = false;            // as in Read
    bool fetching = false;              // counted in JobReads::fetching
    std::shared_ptr<ClaimedRows> rows;  // nullptr: given up
    uint64_t index = 0;                 // in rows->rows
    // The dataset whose file is read, and the job whose slot it lands in.
    std::shared_ptr<const Dataset> dataset;
    std::shared_ptr<Job> into;
    uint64_t dataset_hash = 0;
  };
  struct Group {
    std::unique_ptr<StorageReader> reader;  // nullptr: unused group
    std::vector<Ticket> tickets;
    std::vector<uint32_t> free;
    uint32_t given_up = 0;
  };

  bool MayStart(const ClaimedRows& rows) const;
  void Arrive(uint32_t group, const StorageReader::Done& done);
  void GiveUp(uint32_t group, uint32_t ticket);
  void CountWait(uint64_t ns);
  void OpenGroup(uint32_t group);
  void ChangeGroup();
  // The pin of the claim's slot for direct reads of the feature.
  uint32_t PinOf(const ClaimedRows& rows, size_t feature);

  uint32_t Entry(uint32_t group, uint32_t ticket) const {
    return group * tickets_per_group_ + ticket;
  }

  WorkerHost* const host_;
  const uint32_t thread_index_;
  const uint32_t tickets_per_group_;  // a blocking reader has fewer
  ReadsInFlight* const in_flight_;
  WorkerJobs* const jobs_;
  std::array<Group, JobReads::kGroupsMax> groups_;
  uint32_t current_ = 0;  // where reads are started
  uint64_t waited_for_ = 0;
  uint64_t given_up_ = 0;                     // in flight, of all groups
  std::map<uint64_t, uint32_t> given_up_of_;  // the same, by dataset_hash
  uint64_t pins_ = 0;                         // of all jobs
  uint64_t checked_ns_ = 0;                   // when CheckTimeouts ran
  std::vector<WorkerJob*> arrived_;           // of *jobs_
  ReadRequest request_;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_WORKER_READS_H_
