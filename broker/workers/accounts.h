// Who has had how much of the workers' time: fair shares for the users, and of
// a user's share for her jobs. Who is served next follows from it
// (serving_order.h).
#ifndef BROKER_WORKERS_ACCOUNTS_H_
#define BROKER_WORKERS_ACCOUNTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "broker/base/mutex.h"
#include "broker/job/job.h"

namespace penstock {

// Jobs without attached ranks are served last. A job with a waiting rank is
// served before jobs whose ranks have batches, until it has had this much more
// worker time. Without the bound a job that never gets enough would always come
// first, and a job that uses less than its share would get each batch only
// after its ranks stall.
inline constexpr uint64_t kHeadStartNs = 50'000'000;
// Limits the unused worker time that a job which slept gets back. It exceeds
// the head start, so a job that uses less than its share comes first.
inline constexpr uint64_t kCreditNs = 2 * kHeadStartNs;

// Worker time. Relaxed: hints; slightly old ones are as fair.
class VirtualTime {
 public:
  uint64_t ns() const { return ns_.load(std::memory_order_relaxed); }
  void Add(uint64_t ns) { ns_.fetch_add(ns, std::memory_order_relaxed); }
  void Set(uint64_t ns) { ns_.store(ns, std::memory_order_relaxed); }
  // Whoever has slept has at most kCreditNs less than those that were served.
  void LimitCredit(const VirtualTime& present) {
    const uint64_t now = present.ns();
    if (ns() + kCreditNs < now) Set(now - kCreditNs);
  }
  // As the present time of others: it may lag, so that not every worker writes
  // it for every row.
  void Follow(const VirtualTime& served) {
    constexpr uint64_t kStepNs = kHeadStartNs / 50;
    const uint64_t to = served.ns();
    uint64_t now = ns();
    while (now + kStepNs < to &&
           !ns_.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<uint64_t> ns_{0};
};

// What a user's jobs have had together.
struct alignas(64) UserAccount {
  VirtualTime virtual_time;
  VirtualTime present;  // time that her recently served jobs have had
  size_t number = 0;
  uint32_t uid = 0;  // with number: Accounts' mutex
};

// The data that a claim reads of every job. The accounts of all jobs are
// adjacent, with nothing else in their cache lines.
struct alignas(64) JobAccount {
  VirtualTime virtual_time;
  // Relaxed, both: as VirtualTime.
  std::atomic<uint64_t> wanted_seen_ns{0};  // when wanted was updated
  std::atomic<Demand> wanted{Demand::kAhead};
  // The time of function workers is not shared.
  bool shares = true;
  UserAccount* user = nullptr;
  size_t index = 0;              // of this account
  std::weak_ptr<const Job> job;  // expired: free. Accounts' mutex.

  void Charge(uint64_t ns) {
    if (!shares) return;
    virtual_time.Add(ns);
    user->virtual_time.Add(ns);
  }
};
static_assert(sizeof(JobAccount) == 64);

class Accounts {
 public:
  static constexpr size_t kJobsMax = 1024;

  // The account of a new job, while that exists; nullptr: there are too many.
  JobAccount* Open(const std::shared_ptr<Job>& job);
  // Called for each job served.
  void Served(const JobAccount& account) {
    if (!account.shares) return;
    account.user->present.Follow(account.virtual_time);
    present_.Follow(account.user->virtual_time);
  }
  // Called before a job is served: it may have slept.
  void LimitCredit(JobAccount* account) {
    account->user->virtual_time.LimitCredit(present_);
    account->virtual_time.LimitCredit(account->user->present);
  }

 private:
  UserAccount* OfUser(uint32_t uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Worker time that recently served users have had: a new one starts here, and
  // one that slept near it.
  VirtualTime present_;

  Mutex mutex_;
  std::deque<JobAccount> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<UserAccount> users_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace penstock
#endif  // BROKER_WORKERS_ACCOUNTS_H_
