#include "broker/base/log_limiter.h"

#include <algorithm>
#include <utility>

#include "common/format.h"

namespace penstock {

std::string LogCause::ToString() const {
  if (!uid) return "the broker";
  if (job.empty()) return Format("user {}", *uid);
  return Format("job '{}' of user {}", job, *uid);
}

bool LogLimiter::Admit(const LogMessage& message, const LogCause& cause,
                       Time now, std::vector<HeldBack>* before) {
  // A user who is held back makes no buckets. One that has given a token is not
  // full, and so stays.
  Buckets::value_type* user = nullptr;
  if (!cause.job.empty()) {
    user = &*At({&message, {cause.uid, ""}}, true, now);
    if (!Give(&user->second, now)) return false;
  }
  Buckets::value_type* const own = &*At({&message, cause}, false, now);
  if (!Give(&own->second, now)) {
    if (user != nullptr) user->second.tokens += 1;
    return false;
  }
  for (Buckets::value_type* const item : {user, own}) {
    if (item != nullptr && item->second.held_back > 0) {
      before->push_back(Take(item, now));
    }
  }
  return true;
}

std::vector<HeldBack> LogLimiter::TakeHeldBack(Time now, bool all) {
  std::vector<HeldBack> taken;
  if (holding_ == 0) return taken;
  for (Buckets::value_type& item : buckets_) {
    Bucket& bucket = item.second;
    if (bucket.held_back == 0) continue;
    Refill(&bucket, now);
    if (bucket.tokens < 1 && !all) continue;
    bucket.tokens = std::max(0.0, bucket.tokens - 1);
    taken.push_back(Take(&item, now));
  }
  return taken;
}

void LogLimiter::Refill(Bucket* bucket, Time now) {
  const double seconds =
      std::chrono::duration<double>(now - bucket->seen).count();
  const double each =
      static_cast<double>((bucket->of_user ? kUserRefill : kRefill).count());
  bucket->tokens = std::min(bucket->of_user ? kUserBurst : kBurst,
                            bucket->tokens + std::max(0.0, seconds / each));
  bucket->seen = now;
}

LogLimiter::Buckets::iterator LogLimiter::At(const Key& key, bool of_user,
                                             Time now) {
  auto found = buckets_.find(key);
  if (found == buckets_.end() && buckets_.size() >= kBucketsMax) {
    // Those that are as if they were new.
    for (auto item = buckets_.begin(); item != buckets_.end();) {
      Bucket& bucket = item->second;
      Refill(&bucket, now);
      const bool full = bucket.tokens >= (bucket.of_user ? kUserBurst : kBurst);
      item = full && bucket.held_back == 0 ? buckets_.erase(item)
                                           : std::next(item);
    }
    if (buckets_.size() >= kBucketsMax) {
      const Key shared = {key.message, {}};
      return buckets_.try_emplace(shared, Bucket{true, kUserBurst, now, 0, now})
          .first;
    }
  }
  if (found == buckets_.end()) {
    const double burst = of_user ? kUserBurst : kBurst;
    found = buckets_.emplace(key, Bucket{of_user, burst, now, 0, now}).first;
  }
  Refill(&found->second, now);
  return found;
}

bool LogLimiter::Give(Bucket* bucket, Time now) {
  if (bucket->tokens >= 1) {
    bucket->tokens -= 1;
    return true;
  }
  if (bucket->held_back++ == 0) {
    bucket->held_since = now;
    ++holding_;
  }
  return false;
}

HeldBack LogLimiter::Take(Buckets::value_type* item, Time now) {
  Bucket& bucket = item->second;
  --holding_;
  const auto seconds =
      std::chrono::ceil<std::chrono::seconds>(now - bucket.held_since);
  return {item->first.message, item->first.cause,
          std::exchange(bucket.held_back, 0),
          std::max<int64_t>(seconds.count(), 1)};
}

}  // namespace penstock
