// All jobs of the broker: opens datasets, promises memory, creates jobs when
// their first rank attaches and removes them when the last has left.
//
// Runs on the control thread; what takes long (indexing, populating memory)
// runs on a thread per opening that posts its result back.
#ifndef BROKER_JOB_TABLE_H_
#define BROKER_JOB_TABLE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "broker/dataset.h"
#include "broker/event_loop.h"
#include "broker/job.h"
#include "broker/memory_promise.h"
#include "broker/mutex.h"
#include "broker/worker_pool.h"

namespace penstock {

// Datasets that are open, one for each source and map however many jobs and
// ranks use it; two that want the same one while it is opened wait for it.
// Thread safe.
class OpenDatasets {
 public:
  StatusOr<std::shared_ptr<const Dataset>> Get(const DatasetSpec& spec,
                                               OpenProgress* progress);
  // Some OpenProgress::cancel was set: who waits for another's opening looks.
  void NoticeCancel();

 private:
  struct Entry {
    bool opening = false;
    std::weak_ptr<const Dataset> dataset;
  };
  Mutex mutex_;
  CondVar opened_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

class JobTable {
 public:
  struct Limits {
    std::optional<uint64_t> memory_bytes;  // of all segments together
    uint32_t jobs = 256;
    uint32_t jobs_per_uid = 64;
    uint32_t openings = 64;  // at once, each a thread
  };
  JobTable(EventLoop* loop, WorkerPool* workers, Limits limits)
      : loop_(loop), workers_(workers), limits_(limits) {}
  ~JobTable();

  struct AttachRequest {
    JobKey key;
    JobOptions options;
    uint32_t rank = 0;
    Mapping cursor;
    int wake_socket = -1;  // stays the caller's
  };
  struct Attached {
    std::shared_ptr<Job> job;
    uint32_t seat = 0;
  };
  using AttachDone = std::function<void(StatusOr<Attached>)>;
  // done is called on the control thread, at once or when the job is open.
  // Returns a number for CancelAttach.
  uint64_t Attach(AttachRequest request, AttachDone done);
  // The asking connection went away before done was called.
  void CancelAttach(uint64_t attach);
  void Detach(const std::shared_ptr<Job>& job, uint32_t seat);

  // Opens the dataset and describes it: the answer of the `index` operation.
  using InspectDone = std::function<void(StatusOr<nlohmann::json>)>;
  uint64_t Inspect(JobOptions options, InspectDone done);
  void CancelInspect(uint64_t inspect);

  // How far the opening that attach or inspect waits for is; false: none.
  bool Progress(uint64_t number, uint64_t* done, uint64_t* total) const;

  nlohmann::json StatusJson(bool with_ranks) const;
  // Rows made for all jobs, those that ended too.
  uint64_t RowsMade() const;
  void Shutdown();
  // Whether some opening is under way or some job waits to be removed.
  bool busy() const { return !openings_.empty() || !leaving_.empty(); }
  // Removes jobs whose last worker has finished.
  void Sweep();

 private:
  struct Pending {
    uint64_t number = 0;
    AttachRequest request;
    AttachDone done;
  };
  // Something long under way on a thread of its own.
  struct Opening {
    OpenProgress progress;
    std::thread thread;
    std::vector<uint64_t> waiting;  // numbers of attaches and inspects
  };
  struct Entry {
    JobKey key;
    JobOptions options;
    std::shared_ptr<Job> job;  // nullptr while it is opened
    Opening* opening = nullptr;
    std::vector<Pending> pending;
  };

  StatusOr<Attached> AttachTo(Entry& entry, AttachRequest request);
  static Status CheckAgreement(const Entry& entry,
                               const AttachRequest& request);
  Status Open(Entry* entry);
  Status CheckLimits(uint32_t uid) const;
  // Refuses when openings_ (this one is in it) are too many.
  StatusOr<std::thread> StartOpening(std::function<void()> body);
  StatusOr<std::shared_ptr<Job>> MakeJob(const JobKey& key,
                                         const JobOptions& options,
                                         OpenProgress* progress);
  // Whether a source may keep so many bytes in memory: its index, unpacked
  // files.
  Status CheckSource(uint64_t bytes) const;
  // Takes the job's segment off what is left; given back when the last
  // reference to it goes. ResourceExhausted says what is needed and what is
  // left.
  StatusOr<std::shared_ptr<void>> PromiseMemory(const std::string& job,
                                                const JobOptions& options,
                                                const Job::Layout& layout);
  void Opened(Entry* entry, StatusOr<std::shared_ptr<Job>> job);
  void EndOpening(Opening* opening);
  Status PopulateJob(Job& job, const OpenProgress& progress,
                     const std::function<void()>& on_first);

  EventLoop* const loop_;
  WorkerPool* const workers_;
  const Limits limits_;
  OpenDatasets datasets_;
  std::list<Entry> entries_;
  std::list<Opening> openings_;
  std::map<uint64_t, InspectDone> inspects_;
  std::vector<std::shared_ptr<Job>> leaving_;
  uint64_t next_number_ = 1;
  uint64_t rows_of_ended_jobs_ = 0;
  const uint64_t life_id_ = NewLifeId();
  static uint64_t NewLifeId();

  // Of all segments; shared, for a job may outlive this table in a worker.
  const std::shared_ptr<std::atomic<uint64_t>> segment_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  // Of them not populated yet: not seen in the machine's free memory.
  std::atomic<uint64_t> promised_bytes_{0};
  std::atomic<uint64_t> job_ids_{1};
};

}  // namespace penstock
#endif  // BROKER_JOB_TABLE_H_
