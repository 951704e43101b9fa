#include "broker/delivery/consumers.h"

#include <algorithm>
#include <utility>

namespace penstock {

const Account::Entry* Account::Find(uint32_t slot) const {
  const auto found =
      std::find_if(backlog.begin(), backlog.end(),
                   [slot](const Entry& entry) { return entry.slot == slot; });
  return found == backlog.end() ? nullptr : &*found;
}

std::optional<bool> Account::Wants(const Slot& slot) const {
  if (!lacks.empty()) {
    const auto found = lacks.find(slot.id());
    if (found != lacks.end()) return found->second;
  }
  if (slot.is_redo || slot.at < from) return std::nullopt;
  return false;
}

Consumer* Consumers::Find(uint32_t rank) {
  const auto found = by_rank_.find(rank);
  return found == by_rank_.end() ? nullptr : &found->second;
}

const Consumer* Consumers::Find(uint32_t rank) const {
  const auto found = by_rank_.find(rank);
  return found == by_rank_.end() ? nullptr : &found->second;
}

Consumer* Consumers::Add(uint32_t rank) {
  Consumer& consumer = by_rank_[rank];
  consumer.rank = rank;
  consumer.plan_rank = rank / replicas_;
  consumer.state = ConsumerState::kGone;
  return &consumer;
}

void Consumers::Remove(Consumer* consumer) {
  std::replace(at_seat_.begin(), at_seat_.end(), consumer,
               static_cast<Consumer*>(nullptr));
  by_rank_.erase(consumer->rank);
}

std::optional<uint32_t> Consumers::FreeSeat() const {
  const auto free = std::find(feeds_.begin(), feeds_.end(), nullptr);
  if (free == feeds_.end()) return std::nullopt;
  return static_cast<uint32_t>(free - feeds_.begin());
}

void Consumers::Attach(Consumer* consumer, uint32_t seat,
                       std::unique_ptr<Feed> feed) {
  consumer->state = ConsumerState::kAttached;
  consumer->seat = seat;
  consumer->reconnects = false;
  at_seat_[seat] = consumer;
  feeds_[seat] = std::move(feed);
}

Consumer* Consumers::AtSeat(uint32_t seat) {
  Consumer* const consumer = at_seat_[seat];
  const bool is_there =
      consumer != nullptr && consumer->attached() && consumer->seat == seat;
  return is_there ? consumer : nullptr;
}

std::unique_ptr<Feed> Consumers::TakeFeed(uint32_t seat) {
  return std::exchange(feeds_[seat], nullptr);
}

}  // namespace penstock
