// In which order a worker serves the jobs: fair shares of the workers' time.
#ifndef BROKER_WORKERS_SERVING_ORDER_H_
#define BROKER_WORKERS_SERVING_ORDER_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "broker/job/job.h"

namespace penstock {

// A job with rows to claim.
struct Candidate {
  uint64_t virtual_time_ns = 0;  // worker time it has had
  Demand demand = Demand::kAhead;
};
// Jobs without attached ranks are served last. A job with a waiting rank is
// served before jobs whose ranks have batches, until it has had this much more
// worker time. Without the bound a job that never gets enough would always come
// first, and a job that uses less than its share would get each batch only
// after its ranks stall.
inline constexpr uint64_t kHeadStartNs = 50'000'000;
// Limits the unused worker time that a job which slept gets back. It exceeds
// the head start, so a job that uses less than its share comes first.
inline constexpr uint64_t kCreditNs = 2 * kHeadStartNs;
// The candidate with the least turn is served next: fair shares.
inline uint64_t TurnOf(const Candidate& candidate) {
  // More worker time than any job ever gets.
  constexpr uint64_t kLastNs = uint64_t{1} << 62;
  return candidate.virtual_time_ns +
         (candidate.demand == Demand::kNow ? 0 : kHeadStartNs) +
         (candidate.demand == Demand::kNobody ? kLastNs : 0);
}
// Returns the index; candidates is not empty.
size_t ServedNext(std::span<const Candidate> candidates);

// The data that a claim reads of every job. The accounts of all jobs are
// adjacent, with nothing else in their cache lines.
struct alignas(64) JobAccount {
  // Relaxed, all: hints; slightly old ones are as fair.
  std::atomic<uint64_t> virtual_time_ns{0};
  std::atomic<uint64_t> wanted_seen_ns{0};  // when wanted was updated
  std::atomic<Demand> wanted{Demand::kAhead};
  std::weak_ptr<const Job> job;  // expired: free. Pool's mutex.
};
// Demand is at most 5 ms old: ranks do not report that they go to sleep, and
// reading all their pages for every claim costs too much. now_ns: steady.
Candidate CandidateOf(JobAccount& account, Job& job, uint64_t now_ns);

// The jobs that may have rows to claim, by the index of their account: a claim
// costs the same however many jobs wait for their ranks. Lock-free.
class ClaimableJobs {
 public:
  static constexpr size_t kJobsMax = 1024;

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
  // Calls visit(index) for each.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      uint64_t bits = words_[i].load(std::memory_order_relaxed);
      for (; bits != 0; bits &= bits - 1) {
        visit(64 * i + static_cast<size_t>(std::countr_zero(bits)));
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
    uint64_t turn = 0;
    size_t index = 0;  // of the job's account
  };
  // now_ns: steady.
  bool expired(uint64_t now_ns) const { return now_ns - listed_ns_ > kKeptNs; }
  void Expire() { listed_ns_ = 0; }
  void Begin(uint64_t now_ns) {
    listed_ns_ = now_ns;
    for (auto& places : places_) places.clear();
  }
  // reads: the job's rows are read before they are made.
  void Add(bool reads, const Place& place) {
    places_[reads].push_back(place);
    std::push_heap(places_[reads].begin(), places_[reads].end(), Later);
  }
  // Removes and returns the first, of the jobs that do not read only one whose
  // turn is before `before`.
  std::optional<Place> TakeNext(uint64_t before);
  bool empty() const { return places_[0].empty() && places_[1].empty(); }

 private:
  static bool Later(const Place& a, const Place& b) { return a.turn > b.turn; }

  std::array<std::vector<Place>, 2> places_;  // by reads; heaps
  uint64_t listed_ns_ = 0;
};

}  // namespace penstock
#endif  // BROKER_WORKERS_SERVING_ORDER_H_
