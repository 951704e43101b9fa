// Determines what a restarted broker must make and redeliver, from its records
// and from the pages of the rank processes of former broker instances.
//
// Pure functions, on the control thread. Pages are untrusted input.
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

// An attach to a former broker instance.
struct FormerProcess {
  uint32_t rank = 0;
  uint64_t from = 0;  // its start; its page says so once the attach is answered
  const CursorPage* page = nullptr;  // nullptr: not kept
  bool may_live = false;
  bool left = false;  // cleanly: what it took counts as released
  // Its process reconnected to this broker instance and reports its own
  // progress, even if it has died meanwhile.
  bool reconnects = false;
};

// (rank, StepId) of steps recorded as released out of position order.
using HandedOverSteps = std::set<std::pair<uint32_t, uint64_t>>;

// processes: in attach order. A rank whose last process may live and does not
// reconnect is left out: it still takes what the former broker instance
// published. So are a rank of unknown progress, and one that reports its own
// progress and has no predecessors.
std::vector<Delivery::FormerConsumer> RestoreRanks(
    const std::vector<FormerProcess>& processes,
    const HandedOverSteps& handed_over, const Plan& plan);

// True if the page of the rank's later process shows where the rank continues,
// so the earlier page is not needed for that.
bool Supersedes(const CursorPage& later, const CursorPage& earlier,
                const Plan& plan);

// The recorded progress of a dynamic or broadcast job.
struct FormerProgress {
  DeliveryOptions options;
  uint64_t opened = 0;  // dynamic: no step from here on was opened
  uint64_t low = 0;     // dynamic: all before, and `completed`, are done
  std::set<uint64_t> completed;
  HandedOverSteps handed_over;  // broadcast
  bool incomplete = false;      // records are missing
  std::vector<RowRange> here;   // stream: Stream::Here; else empty
  // All ranks of this host's launch attached: a broadcast may have begun.
  bool all_came = true;
};
struct ReconnectedRank {
  const CursorPage* page = nullptr;  // from before; nullptr: not given
  uint64_t position = 0;
};
// broadcast: a rank of unknown progress without which the job cannot continue;
// nullopt: it can.
std::optional<uint32_t> UnknownConsumer(
    const FormerProgress& former, const std::vector<FormerProcess>& processes,
    const std::map<uint32_t, ReconnectedRank>& reconnected);
// A process that may live and did not reconnect has unknown progress: what it
// may have had is redelivered, marked.
Delivery::FormerSteps GatherSteps(
    const FormerProgress& former, const Plan& plan,
    const std::vector<FormerProcess>& processes,
    const std::map<uint32_t, ReconnectedRank>& reconnected);

}  // namespace penstock
#endif  // BROKER_RECOVERY_RESTORE_H_
