// What a broker has to make again after its own death: from the pages of the
// ranks' processes of its former lives and from what it recorded.
//
// Pure functions, on the control thread; pages are read as untrusted input.
#ifndef BROKER_RECOVERY_RESTORE_H_
#define BROKER_RECOVERY_RESTORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "broker/delivery/delivery.h"
#include "broker/plan/plan.h"
#include "common/delivery_options.h"
#include "common/layout.h"

namespace penstock {

// An attach of a former life.
struct FormerProcess {
  uint32_t rank = 0;
  uint64_t from = 0;  // where it was to begin: its page says so once answered
  const CursorPage* page = nullptr;  // nullptr: nobody kept it
  bool may_live = false;
  bool left = false;  // orderly: what it took counts as released
  // Its process goes on in this life and speaks for itself, also when it has
  // died meanwhile.
  bool reconnects = false;
};

// By rank, StepId: of which it is recorded that they were released outside the
// order of positions.
using HandedOverSteps = std::set<std::pair<uint32_t, uint64_t>>;

// processes: in the order of their attaches. A rank whose last process may live
// and does not reconnect is left out: it still takes what the former life
// published. So is one that nobody can speak for, and one that speaks for
// itself without predecessors.
std::vector<Delivery::FormerConsumer> RestoreRanks(
    const std::vector<FormerProcess>& processes,
    const HandedOverSteps& handed_over, uint64_t global_batch);

// Whether the page of a later process of the same rank tells where the rank
// goes on, so that the earlier one's is needed no more for that.
bool Supersedes(const CursorPage& later, const CursorPage& earlier,
                uint64_t global_batch);

// dynamic, broadcast: what was recorded of the job.
struct FormerProgress {
  DeliveryOptions options;
  uint64_t opened = 0;  // dynamic: no step from here on was opened
  uint64_t low = 0;     // dynamic: all before was completed, and these
  std::set<uint64_t> completed;
  HandedOverSteps handed_over;  // broadcast
  bool incomplete = false;      // there is more that was not recorded
  std::vector<RowRange> here;   // of a stream: Stream::Here; else empty
  // Every rank of this host's launch has attached: a broadcast may have begun.
  bool all_came = true;
};
struct ReconnectedRank {
  const CursorPage* page = nullptr;  // of the former life; nullptr: not given
  uint64_t position = 0;
};
// broadcast: a rank that nobody can tell of how far it was, where the job
// cannot go on without knowing that; nullopt: it can.
std::optional<uint32_t> UnknownConsumer(
    const FormerProgress& former, const std::vector<FormerProcess>& processes,
    const std::map<uint32_t, ReconnectedRank>& reconnected);
// Of a process that may live and did not reconnect nothing is known: what it
// may have had comes again, marked.
Delivery::FormerSteps GatherSteps(
    const FormerProgress& former, const Plan& plan,
    const std::vector<FormerProcess>& processes,
    const std::map<uint32_t, ReconnectedRank>& reconnected);

}  // namespace penstock
#endif  // BROKER_RECOVERY_RESTORE_H_
