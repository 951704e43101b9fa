#include "broker/workers/accounts.h"

#include <algorithm>

namespace penstock {

JobAccount* Accounts::Open(const std::shared_ptr<Job>& job) {
  MutexLock lock(&mutex_);
  const auto free = std::find_if(
      jobs_.begin(), jobs_.end(),
      [](const JobAccount& account) { return account.job.expired(); });
  const auto index = static_cast<size_t>(free - jobs_.begin());
  if (index == kJobsMax) return nullptr;
  JobAccount& account = free == jobs_.end() ? jobs_.emplace_back() : *free;
  account.index = index;
  account.user = OfUser(job->key().uid);
  account.shares = !job->has_function_workers();
  // A new job starts at the present, without debt or credit.
  account.virtual_time.Set(account.user->present.ns());
  account.wanted_seen_ns.store(0, std::memory_order_relaxed);
  account.job = job;
  return &account;
}

// The user has a job, or had one lately: debts of time are kept.
UserAccount* Accounts::OfUser(uint32_t uid) {
  UserAccount* found = nullptr;
  for (UserAccount& user : users_) {
    if (user.uid == uid) return &user;
    const bool free = std::none_of(
        jobs_.begin(), jobs_.end(), [&](const JobAccount& account) {
          return account.user == &user && !account.job.expired();
        });
    if (free && found == nullptr) found = &user;
  }
  // One for each job is enough.
  if (found == nullptr || users_.size() < kJobsMax) {
    found = &users_.emplace_back();
    found->number = users_.size() - 1;
  }
  found->uid = uid;
  found->virtual_time.Set(present_.ns());
  return found;
}

}  // namespace penstock
