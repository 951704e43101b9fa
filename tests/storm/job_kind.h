// The jobs of a storm and of a soak: what they read, how it is handed out, and
// how every byte of it is known.
#ifndef TESTS_STORM_JOB_KIND_H_
#define TESTS_STORM_JOB_KIND_H_

#include <cstdint>
#include <string>

namespace penstock {

struct JobKind {
  std::string name;  // begins the job's
  std::string delivery;
  std::string lag;            // broadcast
  std::string on_rank_death;  // "": the mode's default
  int window = 0;             // broadcast
  uint32_t ranks = 3;
  uint64_t records = 0;
  uint64_t batch = 0;  // of all ranks together
  uint64_t epochs = 2;
  uint64_t hold = 3;

  // The place of a rank whose process died waits for another; else a process
  // that comes in its place is a consumer of its own.
  bool keeps_places() const {
    return delivery != "broadcast" || on_rank_death == "wait";
  }
  // The others go on without one that died; half of them have to live.
  bool shrinks() const {
    return delivery == "split" && on_rank_death == "shrink";
  }
  bool mortal(uint32_t rank) const { return !shrinks() || rank < ranks / 2; }
  uint64_t steps_per_epoch() const { return (records + batch - 1) / batch; }
  uint64_t steps() const { return epochs * steps_per_epoch(); }
  std::string Spec() const {
    return "dataset: " + name +
           "\nsource:\n  synthetic:\n    records: " + std::to_string(records) +
           "\n    features: {bytes: {dtype: uint8, shape: [" +
           std::to_string(kRowBytes) +
           "]}}\n    cost_us: 20\nshuffle: {seed: 7}\nbatch: {size: " +
           std::to_string(batch) +
           ", last: partial}\nhold: " + std::to_string(hold) +
           "\nepochs: " + std::to_string(epochs) + "\n";
  }

  static constexpr uint64_t kRowBytes = 200;
};

}  // namespace penstock
#endif  // TESTS_STORM_JOB_KIND_H_
