// The third step of a row: its bytes become the features of its ring row, or
// the spec's on_error decides how to handle it.
//
// All code that processes foreign bytes runs inside a quarantine mark
// (sample_quarantine.h).
#ifndef BROKER_WORKERS_ROW_MAKER_H_
#define BROKER_WORKERS_ROW_MAKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "broker/io/read.h"
#include "broker/io/reads_in_flight.h"
#include "broker/workers/claimed_rows.h"
#include "broker/workers/worker_host.h"
#include "common/status.h"

namespace penstock {

// Runs on its worker's thread.
class RowMaker {
 public:
  // substitute_entry: the entry of `in_flight` for reads of substitutes.
  RowMaker(WorkerHost* host, uint32_t thread_index, ReadsInFlight* in_flight,
           uint32_t substitute_entry)
      : host_(host),
        thread_index_(thread_index),
        in_flight_(in_flight),
        substitute_entry_(substitute_entry) {}

  // The claim's rows that are not started will be made next, in order.
  void Expect(const ClaimedRows& rows);
  // Makes row `index` of the claim. bytes: as read; empty if its source needs
  // no reading. kept: they are of the job's cache.
  void Make(ClaimedRows& rows, uint64_t index, const ReadBytes& read,
            bool kept = false);
  // Makes rows of a stream from `index` to the end of a piece. Returns how
  // many; all remaining rows if they cannot be made.
  uint64_t MakeOfStream(ClaimedRows& rows, uint64_t index);
  // Called for a row that could not be read or made.
  void HandleError(ClaimedRows& rows, uint64_t index, const Status& status);
  // Called once all rows of the claim are made, if they are mixed in pairs: the
  // claim has both rows of each, but for pairs across the ends of its batch.
  // These rows' partners are made again.
  void MixPairs(ClaimedRows& rows);

 private:
  // What makes a row writes it where this says.
  void Aim(const ClaimedRows& rows, uint64_t index);
  Status MakeRow(ClaimedRows& rows, const Plan::Row& row, const ReadBytes& read,
                 bool kept);
  enum class MadeBy {
    kSource,   // nothing is to be kept
    kHead,     // kept_ is
    kNothing,  // its entry in the cache is damaged
  };
  Status Run(ClaimedRows& rows, const AugmentationKey& key,
             const ReadBytes& read, bool kept, MadeBy* by);
  void Keep(ClaimedRows& rows, uint64_t record);
  Status ReadAndMake(ClaimedRows& rows, const Plan::Row& row);
  StatusOr<uint64_t> MakePiece(ClaimedRows& rows, uint64_t index);
  std::optional<uint64_t> Substitute(ClaimedRows& rows, const Plan::Row& row);
  Status MakePartner(ClaimedRows& rows, uint64_t row_of_epoch);

  WorkerHost* const host_;
  const uint32_t thread_index_;
  ReadsInFlight* const in_flight_;
  const uint32_t substitute_entry_;
  std::unique_ptr<StorageReader> substitute_reader_;
  std::vector<Source::Wanted> wanted_;
  RawRecord raw_;
  RawRecord kept_;  // what the head has made, or a cache had
  std::vector<std::byte> unpack_scratch_;
  std::vector<std::byte*> out_;
  std::vector<std::vector<std::byte>> partner_;         // by feature
  std::vector<std::vector<std::byte>> stream_scratch_;  // by feature
};

}  // namespace penstock
#endif  // BROKER_WORKERS_ROW_MAKER_H_
