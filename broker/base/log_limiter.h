// How many messages of one kind and one cause are written: so many at once,
// then a few an hour, so that neither a million damaged samples nor a hostile
// client fills the log. A cause is a job, and its user for all of her jobs
// together: names of jobs cost nothing.
//
// Token buckets, of bounded number. Times are passed in. Not thread-safe.
#ifndef BROKER_BASE_LOG_LIMITER_H_
#define BROKER_BASE_LOG_LIMITER_H_

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "broker/base/messages.h"

namespace penstock {

// Neither: the broker itself.
struct LogCause {
  std::optional<uint32_t> uid;
  std::string job;  // "": of no job

  auto operator<=>(const LogCause&) const = default;
  std::string ToString() const;
};

struct HeldBack {
  const LogMessage* message;
  LogCause cause;
  uint64_t count;
  int64_t seconds;  // for how long, rounded up
};

class LogLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr double kBurst = 20;
  static constexpr double kUserBurst = 100;
  static constexpr std::chrono::seconds kRefill{30};  // one more
  static constexpr std::chrono::seconds kUserRefill{10};
  // Causes known at once. Those beyond share one bucket.
  static constexpr size_t kBucketsMax = 1024;

  // Whether this message may be written now, behind what *before gets.
  bool Admit(const LogMessage& message, const LogCause& cause, Time now,
             std::vector<HeldBack>* before);

  bool holds_back() const { return holding_ > 0; }
  // What may be told now; all: what there is.
  std::vector<HeldBack> TakeHeldBack(Time now, bool all);

  size_t buckets() const { return buckets_.size(); }

 private:
  struct Key {
    const LogMessage* message;
    LogCause cause;
    auto operator<=>(const Key&) const = default;
  };
  struct Bucket {
    bool of_user;  // of all jobs of a user
    double tokens;
    Time seen;
    uint64_t held_back = 0;
    Time held_since;
  };
  using Buckets = std::map<Key, Bucket>;

  static void Refill(Bucket* bucket, Time now);
  Buckets::iterator At(const Key& key, bool of_user, Time now);
  // A token of it; else the message is held back.
  bool Give(Bucket* bucket, Time now);
  HeldBack Take(Buckets::value_type* item, Time now);

  Buckets buckets_;
  size_t holding_ = 0;  // buckets with held_back
};

}  // namespace penstock
#endif  // BROKER_BASE_LOG_LIMITER_H_
