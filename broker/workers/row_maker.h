// Makes rows: a record in a pass becomes the features at the places that are
// named, or the spec's on_error decides what does.
//
// Knows neither jobs nor claims nor slots: a worker makes rows of its claims
// with it (claim_maker.h), a replay those of a plan (replay.cc).
//
// All code that processes foreign bytes runs inside a quarantine mark
// (sample_quarantine.h).
#ifndef BROKER_WORKERS_ROW_MAKER_H_
#define BROKER_WORKERS_ROW_MAKER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "broker/io/read.h"
#include "broker/io/reads_in_flight.h"
#include "broker/job/dataset.h"
#include "broker/job/remote_rows.h"
#include "broker/plan/plan.h"
#include "broker/transform/row_program.h"
#include "broker/workers/sample_quarantine.h"
#include "common/status.h"

namespace penstock {

// Makes rows of one dataset, on one thread.
class RowMaker {
 public:
  // Where a thread tells what it is at, for those who look whether it hangs.
  struct Watch {
    SampleQuarantine* samples = nullptr;
    uint32_t thread_index = 0;  // its line of samples
    uint64_t job_number = 0;
    const std::atomic<uint64_t>* now_ns = nullptr;
    ReadsInFlight* in_flight = nullptr;
    uint32_t entry = 0;  // of in_flight: reads that it waits for
  };
  // By feature.
  using Places = std::span<std::byte* const>;

  // The dataset outlives it. cancelled: nobody waits for the rows.
  RowMaker(const Dataset& dataset, const DatasetSpec& spec,
           const Cancelled& cancelled, const Watch& watch);

  // The part or bucket of the batch whose rows are made from here on: lists
  // have the room that it gives them.
  void SetPart(std::optional<uint32_t> part) {
    SetForm(dataset_.element_spec(part));
  }
  // Rows that are made from here on are documents, of which a packed row has
  // this piece.
  void SetPiece(const Piece& piece) { piece_ = piece; }
  // These rows will be made next, in this order.
  void Expect(std::span<const Plan::Row> rows);
  // Makes a row of what was read for it, which is nothing if its source needs
  // no reading. from_cache: it is an entry of the dataset's cache.
  Status Make(const Plan::Row& row, const ReadBytes& read, bool from_cache,
              Places out);
  // ---- several rows that go to a function together: added, called, finished

  bool takes_several() const { return takes_several_; }
  // kAlone: nothing is done, Make has to make it once the others are finished;
  // kMade: it is, and needs no call. Errors as of Make.
  enum class Added { kAdded, kMade, kAlone };
  StatusOr<Added> Add(const Plan::Row& row, const ReadBytes& read,
                      bool from_cache, Places out);
  // Those that were added are enough, or are to be finished before this one.
  bool IsFull(const Plan::Row& next) const;
  void CallAdded();
  // The row that was added as number i. Errors as of Make.
  Status Finish(size_t i, Places out);
  // All are finished. Neither Make nor Recover may be called before.
  void ForgetAdded();

  // Makes a row of features that are at hand.
  Status MakeOf(const RawRecord& raw, const Plan::Row& row, Places out);
  // Makes a row of what another host has made of it, or without that if it is
  // of no use.
  Status MakeOfHead(RemoteRows* remote, const RemoteRows::Heads& heads,
                    const RemoteRows::Head& head, const Plan::Row& row,
                    Places out);
  // Reads the row, waits for it, and makes it.
  Status ReadAndMake(const Plan::Row& row, Places out);

  struct Outcome {
    std::optional<uint64_t> record;  // whose features it has; none: left out
    Status error;                    // why these are not its own
  };
  // What on_error does about a row that could not be read or made. An error:
  // the rows end here, or nobody waits (Cancelled).
  StatusOr<Outcome> Recover(const Plan::Row& row, const Status& status,
                            const Plan& plan, Shuffles* shuffles, Places out);
  // ReadAndMake, else Recover.
  StatusOr<Outcome> MakeAnyhow(const Plan::Row& row, const Plan& plan,
                               Shuffles* shuffles, Places out);
  // Mixes a row with its partner, both finished but for that. pair: see
  // PairMix.
  void MixPair(const Plan::Row& row, const AugmentationKey& pair, Places out,
               Places partner);

  // Called while a row waits for the successor of a process that has ended: so
  // many of the expected rows after it are wanted here, the others need not be.
  void SetOnProcessEnd(std::function<void(size_t begun)> on_process_end) {
    on_process_end_ = std::move(on_process_end);
  }

  uint64_t dataset_hash() const { return dataset_hash_; }
  // How long the parts of rows take, while somebody asks.
  StepClock& clock() { return clock_; }
  struct CacheUse {
    uint64_t hits = 0;
    uint64_t misses = 0;
  };
  // Since the last call.
  CacheUse TakeCacheUse() { return std::exchange(cache_use_, {}); }

 private:
  enum class MadeBy {
    kSource,   // nothing is to be put into the cache
    kHead,     // head_ is
    kCache,    // head_ is its entry
    kNothing,  // its entry in the cache is damaged
  };
  Status MakeMarked(const Plan::Row& row, const ReadBytes& read,
                    bool from_cache, Places out, MadeBy* by);
  // Gets raw_, or, from the cache or if it is to run the head, head_.
  Status Begin(const Plan::Row& row, const ReadBytes& read, bool from_cache,
               Places out, bool runs_head, MadeBy* by);
  void SetForm(const ElementSpec& form);
  // Where programs write a row, whose lists may have more room than `out`; and
  // what of it is a row of the batch, or a piece of one. DataLoss: a length is
  // negative, or longer than the room of its list; PackedRows::Put.
  Places Wide(Places out);
  Status FinishLists(Places out) const;
  Status MakeByProcess(const Plan::Row& row);
  SampleQuarantine::Mark MarkOf(uint64_t record) const;
  void PutInCache(uint64_t record);
  Status ErrorOf(uint64_t record, const Status& status) const;

  const Dataset& dataset_;
  const std::string name_;
  const uint64_t seed_;
  const OnError on_error_;
  const uint32_t mixing_part_;  // RowPart
  const Cancelled cancelled_;
  const Watch watch_;
  const uint64_t dataset_hash_;  // SampleQuarantine::DatasetHash
  const uint64_t wait_ns_;       // that programs may wait for other processes
  // A user's function may set the length of a list to any number.
  const bool runs_functions_;
  RowCache* const cache_;  // nullptr: there is none

  StepClock clock_;
  CacheUse cache_use_;
  std::vector<std::unique_ptr<RowProgram::Scratch>> scratch_;  // by program
  std::unique_ptr<Source::Maker> process_;  // makes records; nullptr: unpacked
  std::function<void(size_t)> on_process_end_ = [](size_t) {};
  std::vector<Source::Wanted> wanted_;
  struct List {
    size_t feature = 0;
    size_t length = 0;  // the feature that says it
    // Where it is made if it has less room in the batch than programs give it.
    std::vector<std::byte> wide;
  };
  const ElementSpec* form_ = nullptr;
  std::vector<List> lists_;
  bool any_narrow_ = false;
  std::vector<std::byte*> wide_out_;
  // A document of a packed row, by feature.
  Piece piece_;
  std::vector<std::vector<std::byte>> document_;
  RawRecord raw_;
  RawRecord head_;                // what the head of `map` has made
  std::vector<Plan::Row> added_;  // rows of one program
  bool takes_several_ = false;    // some program does
  // What heads need: the rest of `map`, their bytes, rows to compare.
  std::unique_ptr<RowProgram::Scratch> remote_scratch_;
  std::vector<std::byte> remote_bytes_;
  std::vector<std::vector<std::byte>> compared_;  // by feature
  std::vector<std::byte> unpack_scratch_;
  CacheScratch cache_scratch_;
  ReadRequest request_;
  std::unique_ptr<StorageReader> reader_;  // of ReadAndMake
};

}  // namespace penstock
#endif  // BROKER_WORKERS_ROW_MAKER_H_
