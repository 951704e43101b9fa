// Chooses how many reads a worker has in flight for one job when the
// configuration leaves it to the broker: more, as long as more makes the
// storage faster. A local disk needs few, several NVMe or a network many; only
// measured throughput tells.
//
// After each second in which workers waited for reads a good part of their
// time, the depth is doubled. It stays if the next second brought more than
// kGain times the bytes; otherwise it is reset and tried again only after kRest
// seconds. It never drops while reads continue: its only cost is buffers. A job
// that has not read for kRest seconds starts over.
#ifndef BROKER_IO_READ_DEPTH_H_
#define BROKER_IO_READ_DEPTH_H_

#include <algorithm>
#include <cstdint>

namespace penstock {

// Used on the control thread.
class ReadDepth {
 public:
  static constexpr uint32_t kFirst = 16;
  static constexpr uint32_t kMost = 128;
  static constexpr double kWindowS = 1;
  static constexpr double kRestS = 30;
  static constexpr double kGain = 1.05;
  // Workers that wait less than this share of their time have enough reads.
  static constexpr double kWaits = 0.2;

  // fixed: constant depth; 0: automatic.
  explicit ReadDepth(uint32_t fixed = 0)
      : fixed_(fixed), depth_(fixed != 0 ? fixed : kFirst) {}

  bool automatic() const { return fixed_ == 0; }
  uint32_t depth() const { return depth_; }
  uint32_t most() const { return automatic() ? kMost : fixed_; }

  // Reports that in the `seconds` since the last call all workers read `bytes`
  // and waited for reads for the share `waiting` of their time. True: the depth
  // changed.
  bool Measured(double seconds, uint64_t bytes, double waiting) {
    if (!automatic()) return false;
    const uint32_t before = depth_;
    rest_s_ = std::max(0.0, rest_s_ - seconds);
    idle_s_ = bytes == 0 ? idle_s_ + seconds : 0;
    if (idle_s_ >= kRestS) *this = ReadDepth();
    seconds_ += seconds;
    bytes_ += static_cast<double>(bytes);
    waited_s_ += waiting * seconds;
    if (seconds_ >= kWindowS) EndWindow();
    return depth_ != before;
  }

 private:
  void EndWindow() {
    const double rate = bytes_ / seconds_;
    const bool waits = waited_s_ > kWaits * seconds_;
    seconds_ = bytes_ = waited_s_ = 0;
    if (trying_) {
      trying_ = false;
      // If workers do not wait, the rate says nothing about the storage.
      if (waits && rate < kGain * rate_before_) {
        depth_ /= 2;
        rest_s_ = kRestS;
        return;
      }
    }
    if (!waits || rest_s_ > 0 || depth_ == kMost) return;
    rate_before_ = rate;
    depth_ *= 2;
    trying_ = true;
  }

  uint32_t fixed_;
  uint32_t depth_;
  bool trying_ = false;  // this depth is being measured
  double rate_before_ = 0;
  double rest_s_ = 0;  // no new attempt for this long
  double idle_s_ = 0;
  // The current window.
  double seconds_ = 0;
  double bytes_ = 0;
  double waited_s_ = 0;
};

}  // namespace penstock
#endif  // BROKER_IO_READ_DEPTH_H_
