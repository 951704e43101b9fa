// How a job delivers its batches. The rank that creates the job chooses; the
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

// broadcast: what happens to a consumer with `window` batches not yet taken.
enum class Lag : uint32_t { kBlock, kSkip, kFail };
inline constexpr std::array<std::string_view, 3> kLagNames = {"block", "skip",
                                                              "fail"};

enum class OnRankDeath : uint32_t { kWait, kFail, kShrink };
inline constexpr std::array<std::string_view, 3> kOnRankDeathNames = {
    "wait", "fail", "shrink"};

// split waits for a replacement: only there a rank has rows that are nobody
// else's. The other modes continue without the dead rank.
constexpr OnRankDeath DefaultOnRankDeath(DeliveryMode mode) {
  return mode == DeliveryMode::kSplit ? OnRankDeath::kWait
                                      : OnRankDeath::kShrink;
}

// Consumers of a broadcast job that does not give a number of its own, if there
// are not more ranks.
inline constexpr uint32_t kConsumersDefault = 8;

struct DeliveryOptions {
  DeliveryMode mode = DeliveryMode::kSplit;
  Lag lag = Lag::kBlock;
  uint32_t window = 0;  // broadcast; 0: the spec's prefetch
  OnRankDeath on_rank_death = DefaultOnRankDeath(DeliveryMode::kSplit);
  bool operator==(const DeliveryOptions&) const = default;
};

}  // namespace penstock
#endif  // COMMON_DELIVERY_OPTIONS_H_
