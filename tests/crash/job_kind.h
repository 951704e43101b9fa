// The jobs of a storm and of a soak: their data, their delivery mode, and the
// formula of every byte.
#ifndef TESTS_CRASH_JOB_KIND_H_
#define TESTS_CRASH_JOB_KIND_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace penstock {

struct JobKind {
  std::string name;  // the job's name begins with it
  std::string delivery;
  std::string lag;            // broadcast
  std::string on_rank_death;  // "": the mode's default
  int window = 0;             // broadcast
  uint32_t ranks = 3;         // processes
  uint32_t replicas = 1;      // of them that are one rank
  uint64_t records = 0;
  uint64_t batch = 0;  // of all ranks together
  uint64_t epochs = 2;
  uint64_t hold = 3;
  uint64_t cost_us = 20;  // processor time of a row
  bool stream = false;    // a producer makes the rows; one epoch, in order
  // Rows of four lengths, in buckets, read from this file.
  std::string lists;

  // Each rank gets all rows.
  bool all_to_each() const {
    return delivery == "broadcast" || delivery == "independent";
  }
  // The number of a dead rank is reserved for its replacement. Otherwise its
  // replacement is a new consumer.
  bool reserves_numbers() const {
    return delivery != "broadcast" || on_rank_death == "wait";
  }
  // The others continue without a dead rank; half of the ranks must survive.
  bool shrinks() const {
    return delivery == "split" && on_rank_death == "shrink";
  }
  bool mortal(uint32_t rank) const {
    return !shrinks() || rank / replicas < ranks / replicas / 2;
  }
  // A rank goes with any of its replicas, and the others of it are evicted.
  bool evicts() const { return shrinks() && replicas > 1; }
  uint64_t steps_per_epoch() const {
    const uint64_t buckets = lists.empty() ? 1 : kLengths;
    return buckets * ((records / buckets + batch - 1) / batch);
  }
  uint64_t steps() const { return epochs * steps_per_epoch(); }
  std::string Spec() const {
    const std::string features =
        "    features: {bytes: {dtype: uint8, shape: [" +
        std::to_string(kRowBytes) + "]}}\n";
    const std::string shuffle = "shuffle: {seed: 7}\n";
    std::string source =
        "  synthetic:\n    records: " + std::to_string(records) + "\n" +
        features + "    cost_us: " + std::to_string(cost_us) + "\n" + shuffle;
    if (stream) source = "  stream:\n" + features;
    if (!lists.empty()) {
      source = "  json_lines:\n    files: " + lists +
               "\n    fields: {bytes: {dtype: uint8, max_length: " +
               std::to_string(kRowBytes) + "}}\n" + shuffle;
    }
    return "dataset: " + name + "\nsource:\n" + source +
           "batch: {size: " + std::to_string(batch) + ", last: partial" +
           (lists.empty() ? "" : ", buckets: {by: bytes.length, count: 4}") +
           "}\nhold: " + std::to_string(hold) +
           "\nepochs: " + std::to_string(epochs) + "\n";
  }

  static constexpr uint64_t kRowBytes = 200;
  static constexpr uint64_t kLengths = 4;
  static_assert(kRowBytes % sizeof(uint64_t) == 0);
  // A row of `lists` has so many; as many rows have each of the four.
  static uint64_t LengthOf(int64_t id) {
    return kRowBytes / kLengths * (static_cast<uint64_t>(id) % kLengths + 1);
  }

  // The bytes of a sample: the formula of the source `synthetic`.
  static void FillRow(int64_t id, std::byte* row) {
    const uint64_t begin = Mix(Mix(static_cast<uint64_t>(id)));
    for (uint64_t k = 0; k < kRowBytes / sizeof(uint64_t); ++k) {
      const uint64_t value = Mix(begin + (k + 1) * 0x9e3779b97f4a7c15);
      std::memcpy(row + k * sizeof(value), &value, sizeof(value));
    }
  }

 private:
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
};

}  // namespace penstock
#endif  // TESTS_CRASH_JOB_KIND_H_
