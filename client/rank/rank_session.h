// The state of one attach of a reader: connection, ring, leases.
#ifndef CLIENT_RANK_RANK_SESSION_H_
#define CLIENT_RANK_RANK_SESSION_H_

#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "client/attach/fork.h"
#include "client/gpu/device_copies.h"
#include "client/rank/private_memory.h"
#include "client/rank/rank_reader.h"
#include "common/fd.h"
#include "common/ring.h"

namespace penstock {

struct RankReader::Session {
  Fd control;
  Fd wake;
  OwnedCursor cursor;
  Fd segment;
  std::unique_ptr<SegmentView> view;
  std::unique_ptr<PinnedMemory> pinned;  // guarded by sessions_mutex_
  std::optional<ForkGuard> guards[2];    // for cursor and view
  const Ring* ring = nullptr;
  bool broker_died = false;
  // Batches taken. Only the consuming thread adds to it, and only until it has
  // superseded the session.
  std::atomic<uint64_t> taken{0};
  // Guarded by sessions_mutex_:
  std::unique_ptr<CopyOnWrite> writable;  // mapped at its first use
  uint64_t given_back = 0;
  bool superseded = false;
  bool Unused() const {  // superseded, and no batch of it is held
    // Relaxed: a thread that sees superseded, through the mutex, sees the last
    // count.
    return superseded && given_back == taken.load(std::memory_order_relaxed);
  }
  std::array<Batch, kLeasesMax> batches;
};

}  // namespace penstock
#endif  // CLIENT_RANK_RANK_SESSION_H_
