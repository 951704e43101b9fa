// The number of reads that a worker has in flight for one job. A local disk
// needs few, several NVMe or a network many. Its only cost is buffers.
#ifndef BROKER_IO_READ_DEPTH_H_
#define BROKER_IO_READ_DEPTH_H_

#include <cstdint>

#include "broker/base/tuner.h"

namespace penstock {

// Work is bytes, and workers wait.
class ReadDepth : public Tuner {
 public:
  static constexpr uint32_t kFirst = 16;
  static constexpr uint32_t kMost = 128;

  explicit ReadDepth(uint32_t fixed = 0) : Tuner({kFirst, kMost}, fixed) {}
  uint32_t depth() const { return number(); }
};

}  // namespace penstock
#endif  // BROKER_IO_READ_DEPTH_H_
