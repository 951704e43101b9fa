// Where in the machine the slots of jobs are. They lie in banks: each is bound
// to one NUMA node before it is populated, moved when its ranks turn out to be
// on another, and looked at afterwards. No errors: unbound memory works too,
// and the log and the counters tell.
#ifndef BROKER_BANK_PLACEMENT_H_
#define BROKER_BANK_PLACEMENT_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "broker/job.h"
#include "broker/placement.h"
#include "broker/topology.h"

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
  explicit BankPlacement(const Topology* topology) : topology_(topology) {}

  // Before any page of the job's slots is there.
  void Bind(const Job& job);
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
  void LookAt(Job& job, const std::vector<uint32_t>& nodes);

  const Topology* const topology_;
  std::atomic<bool> told_unbound_{false};  // the log has it
  std::atomic<uint64_t> pages_elsewhere_{0};
};

}  // namespace penstock
#endif  // BROKER_BANK_PLACEMENT_H_
