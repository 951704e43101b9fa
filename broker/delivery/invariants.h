// Invariants that are checked in release builds, too. One that does not hold is
// a fault of the broker: it ends the job that it was found in, by name, and
// neither the broker nor its other jobs.
#ifndef BROKER_DELIVERY_INVARIANTS_H_
#define BROKER_DELIVERY_INVARIANTS_H_

namespace penstock {

class Invariants {
 public:
  // False: it does not hold, and the caller leaves everything as it is.
  [[nodiscard]] bool Hold(bool holds, const char* invariant) {
    if (holds) [[likely]]
      return true;
    if (violated_ == nullptr) violated_ = invariant;
    return false;
  }
  // The first that did not hold; nullptr: all did. Asked after each operation.
  const char* violated() const { return violated_; }

 private:
  const char* violated_ = nullptr;
};

}  // namespace penstock
#endif  // BROKER_DELIVERY_INVARIANTS_H_
