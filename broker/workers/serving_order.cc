#include "broker/workers/serving_order.h"

namespace penstock {
namespace {

// Short enough: a job gets at most ten times this ahead of its share.
constexpr uint64_t kWantedKeptNs = 5'000'000;

}  // namespace

size_t ServedNext(std::span<const Candidate> candidates) {
  return static_cast<size_t>(
      std::min_element(candidates.begin(), candidates.end(),
                       [](const Candidate& a, const Candidate& b) {
                         return TurnOf(a) < TurnOf(b);
                       }) -
      candidates.begin());
}

Candidate CandidateOf(JobAccount& account, Job& job, uint64_t now_ns) {
  // Concurrent callers compute the same value.
  if (now_ns - account.wanted_seen_ns.load(std::memory_order_relaxed) >
      kWantedKeptNs) {
    account.wanted_seen_ns.store(now_ns, std::memory_order_relaxed);
    account.wanted.store(job.Wanted(), std::memory_order_relaxed);
  }
  return {account.virtual_time_ns.load(std::memory_order_relaxed),
          account.wanted.load(std::memory_order_relaxed)};
}

std::optional<ServingOrder::Place> ServingOrder::TakeNext(uint64_t before) {
  const auto& [unread, read] = places_;
  const bool any_unread = !unread.empty() && unread.front().turn < before;
  if (!any_unread && read.empty()) return std::nullopt;
  const bool reads = !any_unread || (!read.empty() &&
                                     read.front().turn <= unread.front().turn);
  std::vector<Place>& places = places_[reads];
  std::pop_heap(places.begin(), places.end(), Later);
  const Place place = places.back();
  places.pop_back();
  return place;
}

}  // namespace penstock
