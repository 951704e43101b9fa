#include "broker/job/bank_placement.h"

#include <sys/mman.h>

#include <algorithm>
#include <optional>

#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/memory/populate.h"

namespace penstock {

std::vector<uint32_t> NodesOfBanks(const JobOptions& options,
                                   const Job::Layout& layout,
                                   const std::vector<uint32_t>& nodes,
                                   const std::vector<KnownRank>& known) {
  switch (options.delivery.mode) {
    case DeliveryMode::kSplit:
      return NodesOfLanes(layout.lanes, nodes, known);
    case DeliveryMode::kIndependent: {
      // This job's one rank is one of several that have the same job name.
      const uint32_t ranks = options.local_world_size;
      if (!known.empty()) return {known.front().node};
      return {NodesOfLanes(ranks, nodes, {})[options.consumer % ranks]};
    }
    default: {
      // If slots are very few, some nodes get none.
      const SegmentPlan& plan = layout.segment;
      std::vector<uint32_t> some = nodes;
      some.resize((plan.slot_count + plan.bank_slots - 1) / plan.bank_slots);
      return some;
    }
  }
}

bool BankPlacement::Binds(const Job& job) const {
  return job.segment().plan().bank_slots > 0 && topology_->unbound().empty();
}

std::shared_ptr<void> BankPlacement::TakeOfNode(uint32_t node, uint64_t bytes) {
  MutexLock lock(&taken_->mutex);
  // Checked under the lock: if a reservation has just ended, its pages exist.
  const std::optional<uint64_t> room = FindAvailableNodeMemory(files_, node);
  uint64_t& taken = taken_->bytes[node];
  if (room && bytes > *room - std::min(*room, taken)) return nullptr;
  taken += bytes;
  return {taken_.get(), [taken = taken_, node, bytes](void*) {
            MutexLock lock(&taken->mutex);
            taken->bytes[node] -= bytes;
          }};
}

std::vector<std::shared_ptr<void>> BankPlacement::Bind(const Job& job) {
  std::vector<std::shared_ptr<void>> reservations;
  if (!Binds(job)) return reservations;
  const std::vector<uint32_t> nodes = job.Locked(&Delivery::bank_nodes);
  const SegmentPlan& plan = job.segment().plan();
  for (const uint32_t node : topology_->node_numbers()) {
    const auto banks =
        static_cast<uint64_t>(std::count(nodes.begin(), nodes.end(), node));
    const uint64_t bytes =
        banks * BankStride(plan.bank_slots, plan.slot_stride);
    // Otherwise the child that populates them would be killed, however much
    // memory other nodes have.
    std::shared_ptr<void> reservation = TakeOfNode(node, bytes);
    if (reservation == nullptr) {
      Log<"node-full">(job.key(), BytesText(bytes), node);
      continue;
    }
    reservations.push_back(std::move(reservation));
    for (size_t bank = 0; bank < nodes.size(); ++bank) {
      if (nodes[bank] == node) BindBank(job, bank, node);
    }
  }
  return reservations;
}

void BankPlacement::BindBank(const Job& job, size_t bank, uint32_t node) {
  const SegmentPlan& plan = job.segment().plan();
  const uint64_t bytes = BankStride(plan.bank_slots, plan.slot_stride);
  const Status status = topology_->BindMemory(
      job.segment().base() + plan.slots_offset + bank * bytes, bytes, node);
  if (!status.ok() && !warned_unbound_.exchange(true)) {
    Log<"not-bound">(job.key(), status.message());
  }
}

void BankPlacement::Move(Job& job) {
  do {
    std::vector<uint32_t> nodes;
    while (const std::optional<uint32_t> bank = job.NextBankToMove(&nodes)) {
      if (Binds(job)) MoveBank(job, *bank, nodes[*bank]);
    }
    if (Binds(job)) CheckPlacement(job, nodes);
  } while (!job.EndMoving());
}

void BankPlacement::MoveBank(const Job& job, uint32_t bank, uint32_t node) {
  const SegmentPlan& plan = job.segment().plan();
  const std::shared_ptr<void> reservation =
      TakeOfNode(node, BankStride(plan.bank_slots, plan.slot_stride));
  if (reservation == nullptr) return;
  // Only pages mapped by this process are moved; in a job that was just opened
  // only the child that populated them has them mapped. If madvise does not
  // know the advice (before Linux 5.14) they stay.
  for (uint32_t i = 0; i < plan.bank_slots; ++i) {
    const uint32_t slot = bank * plan.bank_slots + i;
    (void)madvise(job.segment().base() + job.segment().slot_offset(slot),
                  plan.slot_stride, MADV_POPULATE_READ);
  }
  BindBank(job, bank, node);
}

void BankPlacement::CheckPlacement(Job& job,
                                   const std::vector<uint32_t>& nodes) {
  const SegmentPlan& plan = job.segment().plan();
  uint64_t seen = 0;
  uint64_t elsewhere = 0;
  // Two pages of each slot are enough to tell where the bank is.
  for (uint32_t slot = 0; slot < plan.slot_count; ++slot) {
    const std::byte* const begin =
        job.segment().base() + job.segment().slot_offset(slot);
    for (const std::byte* at : {begin, begin + plan.slot_stride - 1}) {
      const std::optional<uint32_t> node = topology_->NodeOfPage(at);
      if (!node) continue;
      ++seen;
      elsewhere += *node != nodes[slot / plan.bank_slots];
    }
  }
  // Relaxed, all: statistics.
  job.counters().pages_seen.store(seen, std::memory_order_relaxed);
  const uint64_t before = job.counters().pages_elsewhere.exchange(
      elsewhere, std::memory_order_relaxed);
  pages_elsewhere_.fetch_add(elsewhere - before, std::memory_order_relaxed);
  if (elsewhere > 0 && !warned_unbound_.exchange(true)) {
    Log<"pages-elsewhere">(job.key(), elsewhere, seen);
  }
}

}  // namespace penstock
