// How a job hands its batches out. Chosen by the rank that creates the job; the
// others must agree.
#ifndef COMMON_DELIVERY_OPTIONS_H_
#define COMMON_DELIVERY_OPTIONS_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace penstock {

enum class DeliveryMode : uint32_t {
  kSplit,
  kDynamic,
  kBroadcast,
  kIndependent
};
inline constexpr std::array<std::string_view, 4> kDeliveryModeNames = {
    "split", "dynamic", "broadcast", "independent"};

// broadcast: a consumer has `window` batches that it did not take yet.
enum class Lag : uint32_t { kBlock, kSkip, kFail };
inline constexpr std::array<std::string_view, 3> kLagNames = {"block", "skip",
                                                              "fail"};

enum class OnRankDeath : uint32_t { kWait, kFail, kShrink };
inline constexpr std::array<std::string_view, 3> kOnRankDeathNames = {
    "wait", "fail", "shrink"};

struct DeliveryOptions {
  DeliveryMode mode = DeliveryMode::kSplit;
  Lag lag = Lag::kBlock;
  uint32_t window = 0;  // broadcast; 0: the spec's prefetch
  // split waits for a replacement, the others go on without.
  OnRankDeath on_rank_death = OnRankDeath::kWait;
  bool operator==(const DeliveryOptions&) const = default;
};

}  // namespace penstock
#endif  // COMMON_DELIVERY_OPTIONS_H_
