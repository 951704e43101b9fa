// In which order a worker serves the jobs: fair shares of the workers' time for
// the users, and of a user's share for her jobs.
#ifndef BROKER_WORKERS_SERVING_ORDER_H_
#define BROKER_WORKERS_SERVING_ORDER_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "broker/job/job.h"
#include "broker/workers/accounts.h"

namespace penstock {

// A job with rows to claim.
struct Candidate {
  uint64_t virtual_time_ns = 0;  // worker time it has had
  Demand demand = Demand::kAhead;
  size_t user = 0;                    // her number
  uint64_t user_virtual_time_ns = 0;  // worker time that her jobs have had
};
// The candidate with the least turn is served next. Which user comes first is
// decided by the time of all her jobs, so many jobs get no more than one; the
// head start is one among the jobs of a user.
struct Turn {
  uint64_t of_user = 0;
  uint64_t of_job = 0;  // among the jobs of the user
  auto operator<=>(const Turn&) const = default;
};
inline constexpr Turn kLastTurn = {UINT64_MAX, UINT64_MAX};
inline Turn TurnOf(const Candidate& candidate) {
  // More worker time than anybody ever gets.
  constexpr uint64_t kLastNs = uint64_t{1} << 62;
  return {candidate.user_virtual_time_ns +
              (candidate.demand == Demand::kNobody ? kLastNs : 0),
          candidate.virtual_time_ns +
              (candidate.demand == Demand::kNow ? 0 : kHeadStartNs)};
}
// Returns the index; candidates is not empty.
size_t ServedNext(std::span<const Candidate> candidates);

// As last seen.
inline Candidate CandidateOf(const JobAccount& account) {
  return {account.virtual_time.ns(),
          account.wanted.load(std::memory_order_relaxed), account.user->number,
          account.user->virtual_time.ns()};
}
// Demand is at most 5 ms old: ranks do not report that they go to sleep, and
// reading all their pages for every claim costs too much. now_ns: steady.
Candidate CandidateOf(JobAccount& account, Job& job, uint64_t now_ns);

// The jobs that may have rows to claim, by the index of their account: a claim
// costs the same however many jobs wait for their ranks. Lock-free.
class ClaimableJobs {
 public:
  static constexpr size_t kJobsMax = Accounts::kJobsMax;

  // Relaxed, all: hints, as in JobAccount.
  void Set(size_t index, bool claimable) {
    const uint64_t bit = uint64_t{1} << index % 64;
    if (claimable) {
      words_[index / 64].fetch_or(bit, std::memory_order_relaxed);
    } else {
      words_[index / 64].fetch_and(~bit, std::memory_order_relaxed);
    }
  }
  bool Has(size_t index) const {
    return (words_[index / 64].load(std::memory_order_relaxed) >> index % 64 &
            1) != 0;
  }
  // Calls visit(index) for each below end.
  template <typename Visit>
  void ForEach(size_t end, const Visit& visit) const {
    for (size_t i = 0; 64 * i < end; ++i) {
      uint64_t bits = words_[i].load(std::memory_order_relaxed);
      for (; bits != 0; bits &= bits - 1) {
        const size_t index =
            64 * i + static_cast<size_t>(std::countr_zero(bits));
        if (index < end) visit(index);
      }
    }
  }

 private:
  std::array<std::atomic<uint64_t>, kJobsMax / 64> words_{};
};

// The jobs with claimable rows as one worker last listed them, by their turns.
// A claim takes the first: it costs the logarithm of their number. Listing
// costs their number, so a list serves for as long as a claim may take.
//
// Runs on its worker's thread.
class ServingOrder {
 public:
  static constexpr uint64_t kKeptNs = 500'000;

  struct Place {
    Turn turn;
    size_t index = 0;  // of the job's account
  };
  // The turn of a job, with its user's time as this list saw it first: the jobs
  // of a user are compared with one another by their own.
  Turn TurnIn(const Candidate& candidate);
  // now_ns: steady.
  bool expired(uint64_t now_ns) const { return now_ns - listed_ns_ > kKeptNs; }
  void Expire() { listed_ns_ = 0; }
  void Begin(uint64_t now_ns) {
    listed_ns_ = now_ns;
    for (auto& places : places_) places.clear();
    users_.clear();
  }
  // reads: the job's rows are read before they are made.
  void Add(bool reads, const Place& place) {
    places_[reads].push_back(place);
    std::push_heap(places_[reads].begin(), places_[reads].end(), Later);
  }
  // Removes and returns the first, of the jobs that do not read only one whose
  // turn is before `before`.
  std::optional<Place> TakeNext(const Turn& before);
  bool empty() const { return places_[0].empty() && places_[1].empty(); }

 private:
  static bool Later(const Place& a, const Place& b) { return a.turn > b.turn; }

  std::array<std::vector<Place>, 2> places_;  // by reads; heaps
  // By the user's number: her time; 0: not seen yet.
  std::vector<uint64_t> users_;
  uint64_t listed_ns_ = 0;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_SERVING_ORDER_H_
