// Destroys what may take long to destroy, on a thread of its own: a segment of
// many gigabytes, a descriptor that a client sent (closing a socket can wait
// for its SO_LINGER time, closing a file for its storage).
//
// Thread safe. Bound: none; what is handed over is bounded where it is made.
#ifndef BROKER_BASE_DEFERRED_DESTRUCTION_H_
#define BROKER_BASE_DEFERRED_DESTRUCTION_H_

#include <memory>
#include <thread>
#include <vector>

#include "broker/base/mutex.h"
#include "common/fd.h"

namespace penstock {

class DeferredDestruction {
 public:
  DeferredDestruction();
  // Waits for what is being destroyed.
  ~DeferredDestruction();
  void Destroy(std::shared_ptr<void> thing);
  void Close(std::vector<Fd> fds);

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<void>> things_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock
#endif  // BROKER_BASE_DEFERRED_DESTRUCTION_H_
