// A terminal's full screen: raw keys, and a second screen buffer that leaves
// the first as it was. Restored at every end but SIGKILL: of this object, by a
// signal that kills, and while the command is stopped (Ctrl-Z).
//
// One thread, one object at a time.
#ifndef CLIENT_COMMAND_SCREEN_H_
#define CLIENT_COMMAND_SCREEN_H_

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"

namespace penstock {

enum class Key {
  kOther,
  kQuit,
  kUp,
  kDown,
  kPageUp,
  kPageDown,
  kHome,
  kPause,
  kRanks,
  kFaster,
  kSlower
};

class Screen {
 public:
  // Whether standard input and output are a terminal that can be drawn on.
  static bool IsThere();
  static StatusOr<std::unique_ptr<Screen>> Open();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // {columns, rows}; 80 × 24 where the terminal does not say.
  std::pair<size_t, size_t> Size() const;
  // Unavailable: the terminal is gone.
  Status Draw(const std::vector<std::string>& lines);
  // Waits for keys, for a readable `fd` (-1: none), for a new size or a return
  // from Ctrl-Z; up to timeout_ms. Cancelled: a signal came.
  StatusOr<std::vector<Key>> Wait(int fd, int timeout_ms);

 private:
  Screen() = default;
  void Enter();
  void Stop();

  sigset_t unblocked_{};  // while it waits
};

}  // namespace penstock
#endif  // CLIENT_COMMAND_SCREEN_H_
