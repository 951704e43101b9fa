// How long the parts of making a row take: its read, each step of `map`,
// copies. Runs while somebody asks for it (`penstock explain`); else a part
// costs one comparison.
//
// Belongs to one worker's thread.
#ifndef BROKER_TRANSFORM_STEP_CLOCK_H_
#define BROKER_TRANSFORM_STEP_CLOCK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/deadline.h"

namespace penstock {

// What a worker does for a row. From kFirstStep on: the steps of `map`, by
// number.
enum RowPart : uint32_t {
  kReading,      // starts reads; copies from the page cache
  kUnpacking,    // finds the features in the record, or has a process make it
  kCopying,      // features that no step changes; checks of all features
  kHandingOver,  // to the process of a Python function, and back
  kOther,        // of making rows
  kAssembling,   // a batch of which all rows are made
  kPublishing,   // gives batches to ranks, and opens the next
  kFirstStep,
};

class StepClock {
 public:
  bool on() const { return on_; }

  // What follows is kOther. parts: kFirstStep and the number of steps.
  void Start(size_t parts, uint64_t now_ns) {
    ns_.assign(parts, 0);
    since_ns_ = now_ns;
    part_ = kOther;
    on_ = true;
  }
  // The time of each part since Start.
  const std::vector<uint64_t>& Stop(uint64_t now_ns) {
    ns_[part_] += now_ns - since_ns_;
    on_ = false;
    return ns_;
  }

  // Time from now on is that of `part`. Returns what it was of before.
  uint32_t Switch(uint32_t part) {
    const uint64_t now_ns = MonotonicNs();
    ns_[part_] += now_ns - since_ns_;
    since_ns_ = now_ns;
    return std::exchange(part_, part);
  }
  // Gives only own_ns of the time since the last switch to this part, the rest
  // to `other`.
  void Split(uint64_t own_ns, uint32_t other) {
    const uint64_t now_ns = MonotonicNs();
    const uint64_t ns = now_ns - since_ns_;
    own_ns = std::min(own_ns, ns);
    ns_[part_] += own_ns;
    ns_[other] += ns - own_ns;
    since_ns_ = now_ns;
  }

  // While it lives, time is that of `part`. clock: nullptr or off: no effect.
  class In {
   public:
    In(StepClock* clock, uint32_t part)
        : clock_(clock != nullptr && clock->on() ? clock : nullptr) {
      if (clock_ != nullptr) before_ = clock_->Switch(part);
    }
    ~In() {
      if (clock_ != nullptr) clock_->Switch(before_);
    }
    In(const In&) = delete;
    In& operator=(const In&) = delete;

   private:
    StepClock* const clock_;
    uint32_t before_ = kOther;
  };

 private:
  bool on_ = false;
  uint32_t part_ = kOther;
  uint64_t since_ns_ = 0;
  std::vector<uint64_t> ns_;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_STEP_CLOCK_H_
