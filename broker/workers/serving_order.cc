#include "broker/workers/serving_order.h"

namespace penstock {
namespace {

// Short enough: a job gets at most ten times this ahead of its share.
constexpr uint64_t kWantedKeptNs = 5'000'000;

}  // namespace

size_t ServedNext(std::span<const Candidate> candidates) {
  // A user's time grows while the candidates are looked at.
  const auto earlier = [](const Candidate& a, const Candidate& b) {
    const Turn turn = TurnOf(a);
    const Turn other = TurnOf(b);
    const bool compares_jobs =
        a.user == b.user &&
        (a.demand == Demand::kNobody) == (b.demand == Demand::kNobody);
    return compares_jobs ? turn.of_job < other.of_job : turn < other;
  };
  return static_cast<size_t>(
      std::min_element(candidates.begin(), candidates.end(), earlier) -
      candidates.begin());
}

Candidate CandidateOf(JobAccount& account, Job& job, uint64_t now_ns) {
  // Concurrent callers compute the same value.
  if (now_ns - account.wanted_seen_ns.load(std::memory_order_relaxed) >
      kWantedKeptNs) {
    account.wanted_seen_ns.store(now_ns, std::memory_order_relaxed);
    account.wanted.store(job.Locked(&Delivery::Wanted),
                         std::memory_order_relaxed);
  }
  return CandidateOf(account);
}

Turn ServingOrder::TurnIn(const Candidate& candidate) {
  if (candidate.user >= users_.size()) users_.resize(candidate.user + 1);
  uint64_t& time = users_[candidate.user];
  if (time == 0) time = candidate.user_virtual_time_ns;
  Candidate seen = candidate;
  seen.user_virtual_time_ns = time;
  return TurnOf(seen);
}

std::optional<ServingOrder::Place> ServingOrder::TakeNext(const Turn& before) {
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
