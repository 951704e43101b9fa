#include "broker/recovery/recorded_job.h"

#include <sys/stat.h>
#include <sys/vfs.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>

#include "common/format.h"

namespace penstock {
namespace {

constexpr long kPidFsMagic = 0x50494446;  // linux/magic.h, since Linux 6.9

// Written by a rank: any other value is treated as kAnswered.
RankStage StageOf(const CursorPage& page) {
  return static_cast<RankStage>(page.stage.load(std::memory_order_relaxed));
}

}  // namespace

pid_t PidOf(int pidfd) {
  std::ifstream info(Format("/proc/self/fdinfo/{}", pidfd));
  for (std::string line; std::getline(info, line);) {
    pid_t pid = 0;
    if (std::sscanf(line.c_str(), "Pid: %d", &pid) == 1) return pid;
  }
  return 0;
}

bool IsSameProcess(int pidfd, int other) {
  struct stat one;
  struct stat two;
  struct statfs fs;
  if (fstatfs(pidfd, &fs) == 0 && fs.f_type == kPidFsMagic) {
    // The inode is the process's, never used again.
    return fstat(pidfd, &one) == 0 && fstat(other, &two) == 0 &&
           one.st_dev == two.st_dev && one.st_ino == two.st_ino;
  }
  const pid_t pid = PidOf(pidfd);
  return pid > 0 && pid == PidOf(other);
}

std::optional<bool> RecordedRank::LeftUnheard() const {
  // An evicted process detaches when told of its eviction; its rank remains.
  if (left || evicted != 0 || page == nullptr) return std::nullopt;
  const RankStage stage = StageOf(*page);
  if (stage != RankStage::kLeft && stage != RankStage::kFinished) {
    return std::nullopt;
  }
  return stage == RankStage::kFinished;
}

bool RecordedRank::MayLive() const {
  if (left || evicted != 0) return false;
  return pidfd == nullptr || !IsDead(pidfd->get());
}

bool RecordedRank::WasNotAnswered(int other) const {
  if (page == nullptr || pidfd == nullptr ||
      StageOf(*page) != RankStage::kAsks) {
    return false;
  }
  return IsSameProcess(pidfd->get(), other);
}

void RecordedJob::ChangeWeights(WeightsChange change) {
  std::vector<WeightsChange>& changes = options.weights;
  if (!changes.empty()) {
    const auto last = std::pair(changes.back().epoch, changes.back().row);
    const auto now = std::pair(change.epoch, change.row);
    if (now < last) return;  // repeated
    if (now == last) changes.pop_back();
  }
  changes.push_back(std::move(change));
}

void RecordedJob::Complete(uint64_t position, uint64_t next) {
  if (position >= low || next <= position) completed[position] = next;
  for (auto found = completed.find(low); found != completed.end();
       found = completed.find(low)) {
    if (found->second <= low) break;
    low = found->second;
    completed.erase(found);
  }
}

}  // namespace penstock
