// How much of the time some processors had nothing to do.
#ifndef BROKER_MEMORY_IDLE_PROCESSORS_H_
#define BROKER_MEMORY_IDLE_PROCESSORS_H_

#include <cstdint>
#include <optional>
#include <set>

#include "broker/memory/available_memory.h"

namespace penstock {

// One thread's.
class IdleProcessors {
 public:
  // By their numbers.
  explicit IdleProcessors(std::set<uint32_t> processors, SystemFiles files = {})
      : processors_(std::move(processors)), files_(std::move(files)) {}

  // The share of their time since the last call, waits for storage included;
  // nullopt: the first call, or /proc/stat does not say.
  std::optional<double> SinceLastCall();

 private:
  const std::set<uint32_t> processors_;
  const SystemFiles files_;
  uint64_t idle_ = 0;  // in ticks of the kernel
  uint64_t all_ = 0;
};

}  // namespace penstock
#endif  // BROKER_MEMORY_IDLE_PROCESSORS_H_
