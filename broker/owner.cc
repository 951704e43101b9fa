#include "broker/owner.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "broker/base/log.h"
#include "common/memory_folder.h"

namespace penstock {
namespace {

constexpr std::chrono::seconds kGrace(5);

bool IsDead(int pidfd, int timeout_ms) {
  pollfd entry{pidfd, POLLIN, 0};
  int ready;
  while ((ready = poll(&entry, 1, timeout_ms)) < 0 && errno == EINTR) {
  }
  return ready > 0;
}

// Removes links in it without following them.
void RemoveFolder(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  // It tries unlink(2) first, for which the sandbox has another answer than the
  // one that it expects.
  rmdir(folder.c_str());
}

void Remove(const std::string& folder) {
  // If the state is on a disk, part of it is in memory.
  const std::string memory = LinkedMemoryFolder(folder + "/state");
  if (!memory.empty()) RemoveFolder(memory);
  RemoveFolder(folder);
}

}  // namespace

Owner::Owner(Fd pidfd, std::string folder)
    : pidfd_(pidfd.Release()), folder_(std::move(folder)) {
  if (pidfd_ < 0) return;
  std::thread([pidfd = pidfd_, folder = folder_] {
    if (!IsDead(pidfd, -1)) return;
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(kGrace);
    Log<"owner-gone">();
    Remove(folder);
    _exit(1);
  }).detach();
}

void Owner::RemoveFolderOfDead() const {
  if (pidfd_ >= 0 && IsDead(pidfd_, 0)) Remove(folder_);
}

}  // namespace penstock
