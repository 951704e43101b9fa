// The rank numbers of one launch and the standing of each with one incarnation
// of their job. An incarnation belongs to its launch: each rank number is told
// the end of the data once, however late its process attaches, and never
// restarts data that the others have had.
//
// Plain data. The job table keeps one per incarnation, the recovery journal
// another for the next broker instance; the simulation uses it as well.
#ifndef BROKER_JOB_LAUNCH_H_
#define BROKER_JOB_LAUNCH_H_

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>

namespace penstock {

class Launch {
 public:
  Launch() = default;
  // Ranks are numbered below world_size; local_world_size of them run on this
  // host. Which ones is known only when they attach.
  Launch(uint32_t world_size, uint32_t local_world_size)
      : world_size_(world_size), local_world_size_(local_world_size) {}

  void Attached(uint32_t rank) { standings_[rank] = Standing::kAttached; }
  // Left in an orderly way. finished: it had taken all of its data.
  void Left(uint32_t rank, bool finished) {
    standings_[rank] = finished ? Standing::kFinished : Standing::kLeft;
  }

  // A process has attached as this rank; it may have died or left since.
  bool Knows(uint32_t rank) const { return standings_.count(rank) > 0; }
  bool HasLeft(uint32_t rank) const {
    const auto found = standings_.find(rank);
    return found != standings_.end() && found->second != Standing::kAttached;
  }
  bool Finished(uint32_t rank) const {
    const auto found = standings_.find(rank);
    return found != standings_.end() && found->second == Standing::kFinished;
  }
  // A process of this launch may still attach as this rank: the first one, or
  // the replacement of one that died.
  bool Expects(uint32_t rank) const {
    if (rank >= world_size_ || HasLeft(rank)) return false;
    return Knows(rank) || CountRanks(false) < local_world_size_;
  }
  bool AnyLeft() const { return CountRanks(true) > 0; }
  // As many ranks as run on this host have attached at some time.
  bool AllCame() const { return CountRanks(false) >= local_world_size_; }
  // Every rank of this host came and left, also if more came than announced.
  bool Complete() const {
    return AllCame() && CountRanks(true) == CountRanks(false);
  }

  nlohmann::json ToJson() const;
  // Throws what nlohmann::json throws.
  static Launch FromJson(const nlohmann::json& json);

 private:
  enum Standing : uint8_t { kAttached, kLeft, kFinished };

  // Consumers that joined a broadcast later have numbers beyond the launch.
  uint32_t CountRanks(bool only_left) const {
    uint32_t count = 0;
    for (const auto& [rank, standing] : standings_) {
      if (rank >= world_size_) break;
      if (!only_left || standing != Standing::kAttached) ++count;
    }
    return count;
  }

  uint32_t world_size_ = 1;
  uint32_t local_world_size_ = 1;
  std::map<uint32_t, Standing> standings_;
};

}  // namespace penstock
#endif  // BROKER_JOB_LAUNCH_H_
