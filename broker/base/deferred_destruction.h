// Destroys objects whose destruction may take long on a separate thread: a
// segment of many gigabytes, a descriptor from a client (closing a socket can
// wait for its SO_LINGER time, closing a file for its storage).
//
// Thread-safe. Unbounded queue; the creators of the objects bound their number.
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
  // Waits until everything handed over is destroyed.
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
