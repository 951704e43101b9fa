// The third step of a row: its bytes become the features of its row in the slot
// (row_maker.h), or its job is told what on_error did instead.
#ifndef BROKER_WORKERS_CLAIM_MAKER_H_
#define BROKER_WORKERS_CLAIM_MAKER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "broker/io/read.h"
#include "broker/workers/claimed_rows.h"
#include "common/status.h"

namespace penstock {

// Runs on its worker's thread.
class ClaimMaker {
 public:
  // The claim's rows that are not started will be made next, in order.
  void Expect(const ClaimedRows& rows);
  // Makes row `index` of the claim, or leaves it to FinishAdded: before that
  // other claims' rows may not be made. read: empty if its source needs no
  // reading. from_cache: it is an entry of the job's cache.
  void Make(ClaimedRows& rows, uint64_t index, const ReadBytes& read,
            bool from_cache = false);
  // Makes the rows that wait for a function which takes several in a call.
  void FinishAdded(ClaimedRows& rows);
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
  void Made(ClaimedRows& rows, uint64_t index, const Status& status);
  // What makes a row writes it where this says.
  void Aim(const ClaimedRows& rows, uint64_t index);
  // The rows of the claim end here.
  void End(ClaimedRows& rows, const Status& status);
  StatusOr<uint64_t> MakePiece(ClaimedRows& rows, uint64_t index);
  // Points partner_out_ at it; false: it has none, or the rows end here.
  bool MakePartner(ClaimedRows& rows, uint64_t row_of_epoch);

  std::vector<uint64_t> added_;  // rows of the claim
  std::vector<std::byte*> out_;
  std::vector<std::byte*> partner_out_;
  std::vector<std::vector<std::byte>> partner_;         // by feature
  std::vector<std::vector<std::byte>> stream_scratch_;  // by feature
  RawRecord stream_row_;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_CLAIM_MAKER_H_
