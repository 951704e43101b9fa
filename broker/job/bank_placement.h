// Where in the machine the slots of jobs are. They lie in banks: each is bound
// to one NUMA node before it is populated, moved when its ranks turn out to be
// on another, and looked at afterwards. No errors: unbound memory works too,
// and the log and the counters tell.
#ifndef BROKER_JOB_BANK_PLACEMENT_H_
#define BROKER_JOB_BANK_PLACEMENT_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/job/job.h"
#include "broker/memory/available_memory.h"
#include "broker/memory/placement.h"
#include "broker/memory/topology.h"

namespace penstock {

// The node of each bank: in split a bank is a lane; the one lane of all ranks
// is divided over the nodes. known: ranks that wait for the job.
std::vector<uint32_t> NodesOfBanks(const JobOptions& options,
                                   const Job::Layout& layout,
                                   const std::vector<uint32_t>& nodes,
                                   const std::vector<KnownRank>& known);

// Thread safe, but of one job only one call at a time.
class BankPlacement {
 public:
  // topology outlives it.
  explicit BankPlacement(const Topology* topology, SystemFiles files = {})
      : topology_(topology), files_(std::move(files)) {}

  // Before any page of the job's slots is there. Their memory counts as taken
  // from its nodes until the caller lets go of what is returned, which is to be
  // when the pages are there: from then on the nodes' free memory tells.
  [[nodiscard]] std::vector<std::shared_ptr<void>> Bind(const Job& job);
  // Takes bytes of the node's memory, likewise; nullptr: it has not so many
  // left. One check for all jobs that open at once: they cannot be reserved the
  // same memory twice.
  std::shared_ptr<void> TakeOfNode(uint32_t node, uint64_t bytes);
  // Those that belong on another node by now, until there is none
  // (Job::EndMoving); then a look at where the pages are. May take seconds.
  void Move(Job& job);

  // Pages of slots that were found on another NUMA node than they were bound
  // to, of all jobs.
  uint64_t pages_elsewhere() const {
    return pages_elsewhere_.load(std::memory_order_relaxed);  // shown
  }

 private:
  bool Binds(const Job& job) const;
  void BindBank(const Job& job, size_t bank, uint32_t node);
  void MoveBank(const Job& job, uint32_t bank, uint32_t node);
  void CheckPlacement(Job& job, const std::vector<uint32_t>& nodes);

  const Topology* const topology_;
  const SystemFiles files_;
  // By node, bytes that are reserved and not seen in its free memory yet;
  // shared, for a reservation may outlive this.
  struct Taken {
    Mutex mutex;
    std::map<uint32_t, uint64_t> bytes ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Taken> taken_ = std::make_shared<Taken>();
  std::atomic<bool> told_unbound_{false};  // the log has it
  std::atomic<uint64_t> pages_elsewhere_{0};
};

}  // namespace penstock
#endif  // BROKER_JOB_BANK_PLACEMENT_H_
