// Chooses how many of something are at work (reads in flight, threads,
// processes) when the configuration leaves it to the broker: more, as long as
// more makes it faster. Only measured throughput tells.
//
// After each second in which somebody waited for them a good part of the time,
// the number is doubled. It stays if the next second brought more than kGain
// times as much; otherwise it is reset and tried again only after kRest
// seconds. So it never swings: what brings nothing is tried once in kRest, for
// a second. It begins anew after kRest seconds without work; where more of them
// cost more than memory (costs), also after kRest seconds in which nobody
// waited.
#ifndef BROKER_BASE_TUNER_H_
#define BROKER_BASE_TUNER_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "common/format.h"

namespace penstock {

// Used on the control thread.
class Tuner {
 public:
  static constexpr double kWindowS = 1;
  static constexpr double kRestS = 30;
  static constexpr double kGain = 1.05;
  // Who waits less than this share of the time has enough.
  static constexpr double kWaits = 0.2;

  struct Range {
    uint32_t first = 1;
    uint32_t most = 1;
    bool costs = false;
  };
  // fixed: constant; 0: automatic.
  explicit Tuner(const Range& range, uint32_t fixed = 0)
      : range_(range),
        fixed_(fixed),
        number_(fixed != 0 ? fixed : range.first) {}

  bool automatic() const { return fixed_ == 0; }
  uint32_t number() const { return number_; }
  uint32_t most() const { return automatic() ? range_.most : fixed_; }

  // Reports that in the `seconds` since the last call so much work was done,
  // and that it was waited for in the share `waiting` of the time. may_grow:
  // there is memory for more. True: the number changed.
  bool Measured(double seconds, double work, double waiting,
                bool may_grow = true) {
    if (!automatic()) return false;
    const uint32_t before = number_;
    rest_s_ = std::max(0.0, rest_s_ - seconds);
    idle_s_ = work <= 0 ? idle_s_ + seconds : 0;
    enough_s_ = waiting <= kWaits ? enough_s_ + seconds : 0;
    if (idle_s_ >= kRestS ||
        (range_.costs && enough_s_ >= kRestS && number_ > range_.first)) {
      *this = Tuner(range_);
    }
    seconds_ += seconds;
    work_ += work;
    waited_s_ += waiting * seconds;
    if (seconds_ >= kWindowS) EndWindow(may_grow);
    return number_ != before;
  }

  // Why this number: "64: 2 x what 32 gave", "16: waited for 3 % of the time".
  // unit: how work is told, such as one of "1.2 MB/s".
  template <typename Unit>
  std::string Reason(const Unit& unit) const {
    switch (why_) {
      case Why::kFirst:
        return fixed_ != 0 ? "set" : "nothing measured yet";
      case Why::kEnough:
        return Format("waited for {:.0f} % of the time, which is little",
                      100 * waits_);
      case Why::kTrying:
        return Format("being tried: {} gave {}", number_ / 2,
                      unit(rate_before_));
      case Why::kGained:
        return Format("{}, {} gave {}", unit(rate_), number_ / 2,
                      unit(rate_before_));
      case Why::kNoGain:
        return Format("{}, {} gave {}", unit(rate_before_), 2 * number_,
                      unit(rate_));
      case Why::kMost:
        return Format("{}, the most there may be", unit(rate_));
      case Why::kNoRoom:
        return Format("{}, there is no memory for more", unit(rate_));
    }
    return "";
  }

 private:
  enum class Why { kFirst, kEnough, kTrying, kGained, kNoGain, kMost, kNoRoom };

  void EndWindow(bool may_grow) {
    const double rate = work_ / seconds_;
    waits_ = waited_s_ / seconds_;
    seconds_ = work_ = waited_s_ = 0;
    const bool waits = waits_ > kWaits;
    if (std::exchange(trying_, false)) {
      rate_ = rate;
      // Where nobody waits, the rate says nothing about what could be.
      if (waits && rate < kGain * rate_before_) {
        number_ /= 2;
        rest_s_ = kRestS;
        why_ = Why::kNoGain;
        return;
      }
      why_ = Why::kGained;
    }
    if (rest_s_ > 0) return;  // and the reason stays
    if (!waits) {
      // What it gained stays the reason while it is needed now and then.
      if (number_ == range_.first) why_ = Why::kEnough;
      return;
    }
    rate_ = rate;
    if (number_ > range_.most / 2 || !may_grow) {
      why_ = number_ > range_.most / 2 ? Why::kMost : Why::kNoRoom;
      return;
    }
    rate_before_ = rate;
    number_ *= 2;
    trying_ = true;
    why_ = Why::kTrying;
  }

  Range range_;
  uint32_t fixed_;
  uint32_t number_;
  Why why_ = Why::kFirst;
  bool trying_ = false;  // this number is being measured
  double rate_before_ = 0;
  double rate_ = 0;
  double waits_ = 0;
  double rest_s_ = 0;    // no new attempt for this long
  double idle_s_ = 0;    // without work
  double enough_s_ = 0;  // nobody waited
  // The current window.
  double seconds_ = 0;
  double work_ = 0;
  double waited_s_ = 0;
};

}  // namespace penstock
#endif  // BROKER_BASE_TUNER_H_
