// One rank: attaches to a job and takes its batches. The C ABI of penstock.h
// wraps it.
//
// Threads: one thread at a time calls Next, State, Reset and StopJob; Release
// and Interrupt any thread.
//
// A reader outlives broker instances and incarnations of its job: each attach
// is a Session with its own connection, cursor page and mapping. A superseded
// session stays mapped until its last batch is released.
#ifndef CLIENT_RANK_RANK_READER_H_
#define CLIENT_RANK_RANK_READER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/attach/attach_request.h"
#include "client/attach/reconnect.h"
#include "client/gpu/device_copies.h"
#include "common/element_spec.h"
#include "common/job_state.h"
#include "common/layout.h"
#include "common/message.h"
#include "common/quantity.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

class RankReader {
 public:
  struct Session;
  // A lease: an entry of its session's table, one per lease number.
  struct Batch {
    RankReader* reader = nullptr;
    Session* session = nullptr;
    Cell cell;
    std::atomic<bool> held{false};
    // Guarded by sessions_mutex_:
    bool writable = false;
    uint32_t repeats = 0;  // repeat_first: further hand-outs while held
    std::unique_ptr<DeviceBatch> on_device;  // until it is asked for
    uint64_t copy = 0;  // the last copy to the device that reads it; 0: none
  };
  enum class Result { kBatch, kEndOfEpoch, kEndOfData };
  struct Stats {
    uint64_t batches = 0;
    uint64_t rows = 0;
    uint64_t waits = 0;
    uint64_t wait_ns = 0;
    uint64_t skipped = 0;
    uint64_t redelivered = 0;
    uint64_t reconnects = 0;
  };

  static StatusOr<std::unique_ptr<RankReader>> Attach(
      const AttachOptions& options);
  // Leaves the job. Batches that are held stay readable, as copies, until they
  // are released; the last release destroys the reader.
  static void Detach(std::unique_ptr<RankReader> reader);
  ~RankReader();

  // timeout_s < 0: no limit; 0: do not wait. The answer of a broker that came
  // back is waited for beyond it.
  StatusOr<Result> Next(double timeout_s, Batch** batch);
  // As Next(0), and does not reach a broker again: DeadlineExceeded.
  StatusOr<Result> NextReady(Batch** batch);
  static void Release(Batch* batch);
  void Interrupt();

  // The job's position for this rank, as JSON for a checkpoint.
  StatusOr<std::string> State();
  // Leaves this incarnation of the job and joins the one that begins at state.
  // Batches that are held stay valid. local_world_size 0: world_size if all
  // ranks were on this host, else as before.
  Status Reset(int64_t rank, int64_t world_size, int64_t local_world_size,
               const std::string& state);
  // See penstock_prefetch_to_device.
  Status PrefetchToDevice(int device, uint32_t batches);
  // Any thread. See penstock_batch_to_device.
  static StatusOr<std::unique_ptr<DeviceBatch>> ToDevice(Batch* batch);
  // nullopt: before PrefetchToDevice.
  std::optional<DeviceCopies::Stats> device_stats() const;
  // Asks the broker to end the job for all of its ranks.
  Status StopJob(bool now);
  // See penstock_fingerprint; part: "": all.
  StatusOr<std::string> Fingerprint(const std::string& part);
  // See penstock_first_free_row.
  Status FirstFreeRow(int64_t* epoch, int64_t* row);
  // See penstock_set_weights.
  Status SetWeights(const std::vector<double>& weights, int64_t epoch,
                    int64_t row);

  static const int64_t* ids(const Batch& batch);
  static const std::byte* data(const Batch& batch, uint32_t feature);
  // Any thread. The same bytes, writable: for this process alone, until the
  // batch is released.
  static StatusOr<std::byte*> WritableData(Batch* batch, uint32_t feature);

  double default_timeout_s() const { return timeout_s_; }
  int fileno() const { return poll_.get(); }
  int64_t rank() const { return rank_; }
  int64_t world_size() const { return world_size_; }
  int64_t replica() const { return replica_; }
  int64_t replicas() const { return request_.value("replicas", int64_t{1}); }
  bool replaces() const { return replaces_; }
  // Some of the job's processes are on other hosts.
  bool several_hosts() const {
    return request_.at("local_world_size").get<int64_t>() *
               request_.value("local_replicas", replicas()) !=
           request_.at("world_size").get<int64_t>() * replicas();
  }
  // For messages.
  std::string name() const {
    const auto of = static_cast<uint32_t>(replicas());
    return RankName(static_cast<uint32_t>(rank_ * of + replica_), of);
  }
  const std::string& job() const { return job_; }
  // With kAnySize where batches differ.
  const ElementSpec& element_spec() const { return element_spec_; }
  // The rows of this batch.
  const ElementSpec& element_spec(const Cell& cell) const {
    return spec_by_part_.empty() ? element_spec_ : spec_by_part_[*PartOf(cell)];
  }
  uint64_t sample_count() const { return records_; }
  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  uint64_t epochs() const { return epochs_; }
  // The next batch's epoch; epochs() at the end of the data.
  uint64_t epoch() const { return epoch_; }
  uint64_t incarnation() const { return incarnation_; }
  const std::string& warning() const { return warning_; }
  uint32_t held() const {
    // In this order, with acquire: each batch is handed out before it is given
    // back.
    const uint32_t given_back = given_back_.load(std::memory_order_acquire);
    return handed_out_.load(std::memory_order_relaxed) - given_back;
  }
  uint32_t hold_max() const { return hold_; }
  const Stats& stats() const { return stats_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Ready { kNothing, kBatch, kOver };

  RankReader() = default;
  Status CheckProcess() const;  // not a forked child
  // Whether its rows of these sizes fit into the slot.
  bool Fits(const Session& session, const Cell& cell) const;
  // Waits for one that is about to listen.
  void AwaitBroker(Clock::time_point until) const;
  // Opens a session with this request and resets the reader to its answer.
  Status Open(nlohmann::json request, Deadline deadline);
  Status ReadAnswer(Message answer, Session* session);
  // Ends the use of the session; it detaches now or when its last batch is
  // released.
  void Supersede();
  void Retire(Session* session);
  void SendUnmapped();
  void Leave();
  static void Reach(Session* session, RankStage stage);
  bool Disown(Session* session);

  // sessions_mutex_ is held. Ends the lease; the caller destroys the reader
  // that is returned when it has let go of the mutex.
  std::unique_ptr<RankReader> GiveBack(Batch* batch);
  // Those of leaving_ whose copies have been made; waits for this one (0: for
  // none). sessions_mutex_ is held.
  void GiveBackCopied(uint64_t wait_for);
  // Gives back what was released and has been copied; waits for the rest, which
  // the broker, or other ranks, may wait for. for_room: only if as many are
  // held as may be. DeadlineExceeded: it may not wait.
  Status AwaitLeaving(bool for_room, bool may_wait);
  // sessions_mutex_ is held. See DeviceCopies::Start.
  StatusOr<std::unique_ptr<DeviceBatch>> StartCopy(Session* session,
                                                   const Cell& cell,
                                                   bool ahead);
  // A batch was taken: it and those that follow are copied to the device.
  void CopyTaken(Batch* batch);
  void CopyAhead();  // sessions_mutex_ is held
  // Before memory is unmapped. sessions_mutex_ is held.
  void LeaveDevice();

  bool Cancelled() const { return cancelled_ && cancelled_(); }
  // Sends a request and waits for the answer; keeps events that arrive before.
  StatusOr<Message> Ask(nlohmann::json request);
  StatusOr<Ready> TakeReady();
  StatusOr<Result> Next(double timeout_s, bool reconnects, Batch** batch);
  StatusOr<Ready> WaitUntilReady(double timeout_s, bool reconnects);
  Status NoBatchWithin(double timeout_s, Clock::duration waited) const;
  void CountHandedOut() {
    handed_out_.store(handed_out_.load(std::memory_order_relaxed) + 1,
                      std::memory_order_relaxed);
  }
  // Waits for the broker's event on the ranks of this phase.
  Status ReadRanksChanged(uint32_t phase);
  // The data are over: computes which ends of epochs are still to be returned.
  void NoteOver();
  Status ClosedStatus() const;  // ok: finished
  // Sleeps until something may be ready. False: the deadline passed.
  StatusOr<bool> Sleep(Deadline deadline);
  StatusOr<bool> SleepToRetry(Deadline deadline);  // for retry_delay_
  // Retries until the next broker instance accepts this rank. Unavailable: not
  // within reconnect_s. False: the deadline passed.
  StatusOr<bool> Reconnect(Deadline deadline);
  // lost_: retries until the next broker instance answers. False: the deadline
  // passed.
  StatusOr<bool> Reopen(const std::string& doing,
                        const std::function<nlohmann::json()>& request,
                        Deadline deadline, Deadline answered_by);
  nlohmann::json ReconnectRequest() const;
  // What the broker tells without being asked. A change of weights is told
  // before any batch that is made with them: it has come by then.
  void NoteEvent(nlohmann::json event);
  void HearEvents();
  StatusOr<Result> HandOut(bool may_wait, Batch** batch);

  // Fixed after Attach.
  Fd interrupt_;  // eventfd of Interrupt
  Fd retry_;      // timer of the next attempt to reconnect
  Fd poll_;       // epoll of all that a caller may wait for: fileno()
  std::string socket_;
  nlohmann::json request_;  // fields of every attach of this reader
  double timeout_s_ = 0;
  double reconnect_s_ = kReconnectSeconds;
  bool repeat_first_ = false;
  bool dynamic_ = false;
  std::function<bool()> cancelled_;
  uint64_t fork_generation_ = 0;

  // State of the incarnation.
  ElementSpec element_spec_;
  std::vector<ElementSpec> spec_by_part_;  // if they differ
  std::string job_;
  std::string dataset_;
  int64_t rank_ = 0;       // the number this rank attached with
  int64_t plan_rank_ = 0;  // its rank index in the plan; shrink changes it
  int64_t world_size_ = 1;
  int64_t replica_ = 0;
  uint64_t incarnation_ = 0;
  uint64_t token_ = 0;     // identifies the incarnation
  bool replaces_ = false;  // a process of its number died
  std::string warning_;
  uint64_t records_ = 0;
  uint64_t steps_per_epoch_ = 0;
  uint64_t rows_per_epoch_ = 1;
  uint64_t epochs_ = 0;
  uint32_t hold_ = 0;
  std::chrono::nanoseconds spin_{0};
  JobState start_;  // where the incarnation began; weights: all until now

  // Used by the consuming thread alone.
  // The rows owed from before position_, by the StepId of their batch.
  std::map<uint64_t, JobState::Owed> owed_;
  uint32_t phase_ = 0;      // how often the ranks changed
  uint64_t position_ = 0;   // end of the rows handed out
  uint64_t joined_at_ = 0;  // position of the first attach
  uint64_t epoch_ = 0;
  bool epoch_known_ = true;
  bool in_epoch_ = false;     // a batch of epoch_ was handed out
  uint64_t ends_owed_ = 0;    // ends of epochs to be returned first
  Batch* pending_ = nullptr;  // taken, to be returned after those
  bool over_ = false;
  Batch* repeated_ = nullptr;
  std::optional<Clock::time_point> lost_;  // when the broker was lost
  bool armed_ = false;  // a wait timed out: fileno() signals the next batch
  std::chrono::milliseconds retry_delay_{0};
  std::deque<nlohmann::json> events_;  // received before an answer
  Stats stats_;

  // Used by any thread.
  // Batches, modulo 2^32. Two counts, so that taking a batch needs no
  // read-modify-write: only the consuming thread adds to handed_out_.
  std::atomic<uint32_t> handed_out_{0};
  std::atomic<uint32_t> given_back_{0};
  std::atomic<bool> interrupted_{false};
  mutable std::mutex sessions_mutex_;
  // Batches held since Detach. Guarded by sessions_mutex_.
  uint32_t left_behind_ = 0;
  // Changed once, by the consuming thread.
  std::shared_ptr<DeviceCopies> device_;
  // Batches of session_ that are not taken yet, on the device: the next ones.
  struct Ahead {
    uint64_t generation;
    std::unique_ptr<DeviceBatch> copy;
  };
  std::deque<Ahead> ahead_;      // guarded by sessions_mutex_
  std::vector<Batch*> leaving_;  // released, being copied; likewise
  std::list<std::unique_ptr<Session>> sessions_;  // the last is in use
  Session* session_ = nullptr;
};

}  // namespace penstock
#endif  // CLIENT_RANK_RANK_READER_H_
