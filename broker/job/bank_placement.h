// Places the slots of jobs on NUMA nodes. Slots lie in banks: each bank is
// bound to one node before it is populated, moved if its ranks turn out to run
// on another node, and checked afterwards. Never fails: unbound memory works
// too; the log and the counters report it.
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

// The node of each bank. In split a bank is a lane; a lane of all ranks is
// divided over the nodes. known: ranks that wait for the job.
std::vector<uint32_t> NodesOfBanks(const JobOptions& options,
                                   const Job::Layout& layout,
                                   const std::vector<uint32_t>& nodes,
                                   const std::vector<KnownRank>& known);

// Thread safe, but only one call at a time for one job.
class BankPlacement {
 public:
  // topology outlives it.
  explicit BankPlacement(const Topology* topology, SystemFiles files = {})
      : topology_(topology), files_(std::move(files)) {}

  // Call before any page of the job's slots exists. Their memory is reserved on
  // its nodes until the caller drops what is returned, to be done when the
  // pages exist: from then on they show in the nodes' free memory.
  [[nodiscard]] std::vector<std::shared_ptr<void>> Bind(const Job& job);
  // Reserves bytes of the node's memory in the same way; nullptr: not enough is
  // left. Jobs that open at once share this check and cannot reserve the same
  // memory twice.
  std::shared_ptr<void> TakeOfNode(uint32_t node, uint64_t bytes);
  // Moves banks that now belong on another node until none is left
  // (Job::EndMoving), then checks where the pages are. May take seconds.
  void Move(Job& job);

  // Pages of slots found on another NUMA node than the one they were bound to,
  // for all jobs.
  uint64_t pages_elsewhere() const {
    return pages_elsewhere_.load(std::memory_order_relaxed);  // statistics
  }

 private:
  bool Binds(const Job& job) const;
  void BindBank(const Job& job, size_t bank, uint32_t node);
  void MoveBank(const Job& job, uint32_t bank, uint32_t node);
  void CheckPlacement(Job& job, const std::vector<uint32_t>& nodes);

  const Topology* const topology_;
  const SystemFiles files_;
  // By node, reserved bytes that its free memory does not show yet. Shared: a
  // reservation may outlive this object.
  struct Taken {
    Mutex mutex;
    std::map<uint32_t, uint64_t> bytes ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Taken> taken_ = std::make_shared<Taken>();
  std::atomic<bool> warned_unbound_{false};  // it is logged once
  std::atomic<uint64_t> pages_elsewhere_{0};
};

}  // namespace penstock
#endif  // BROKER_JOB_BANK_PLACEMENT_H_
