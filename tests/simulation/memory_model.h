// What a load may read, and when a store is seen: the memory of an exploration.
//
// Who runs it: explorer.cc, one step at a time. Processes are numbered from 0;
// words by location, numbered as they are first met and then the same in all
// runs of the exploration.
//
//   kSequential  Every access goes to memory at once. For comparison only: no
//                machine is like that.
//   kTso         x86, as compilers make it: each process has a FIFO buffer. A
//                relaxed or release store enters it; a seq_cst store is an
//                xchg, which drains it and writes memory. A load takes the
//                newest value of the own buffer, else memory. When a buffer's
//                oldest entry goes to memory is the scheduler's choice.
//   kCpp         What C++20 promises and no more, but that a load never sees a
//                store that is yet to be made: all values of a word are kept in
//                their order, and a load may read any that is not older than
//                one its process knows of (by reading or writing it, or through
//                a release store that it has acquired), nor, if both are
//                seq_cst, than the newest one. Plain words fail on a data race.
//
// Buffered stores of a dead process still go to memory. They were retired, so
// the processor completes them although the kernel killed the process.
//
// Fingerprint() is equal in two states only if (by all odds) every later access
// can do the same in both.
#ifndef TESTS_SIMULATION_MEMORY_MODEL_H_
#define TESTS_SIMULATION_MEMORY_MODEL_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/simulation/simulated_atomic.h"

namespace penstock::simulation {

enum class Memory { kSequential, kTso, kCpp };

// splitmix64: one bit of difference changes half of the others.
inline uint64_t Mix(uint64_t hash, uint64_t value) {
  uint64_t x = hash * 0x9e3779b97f4a7c15 + value + 0x632be59bd9b4e019;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class MemoryModel {
 public:
  static constexpr int kLocationsMax = 384;
  static constexpr int kProcessesMax = 8;
  // The writer of words that stay as they are: no process.
  static constexpr int kNobody = -2;
  // What a process knows: per location the number of the newest value.
  using View = std::array<uint8_t, kLocationsMax>;

  MemoryModel(Memory model, int buffer_max)
      : model_(model), buffer_max_(buffer_max) {}

  // Forgets the run before; locations keep their numbers.
  void Reset() {
    regions_.clear();
    for (const uint16_t touched : touched_) {
      words_[touched].values.clear();
      newest_[touched] = 0;
    }
    touched_.clear();
    fingerprint_ = 0;
    for (Process& process : processes_) {
      process.buffer.clear();
      process.view.fill(0);
    }
    sequential_.fill(0);
  }

  void Share(const void* base, size_t bytes, int writer) {
    regions_.push_back({static_cast<const char*>(base), bytes, writer});
    if (numbers_.size() < regions_.size()) {
      numbers_.emplace_back(bytes / 4, int16_t{-1});
    }
  }

  // Whether nobody ever writes it.
  bool Constant(const void* word) const {
    for (const Region& region : regions_) {
      const auto offset = static_cast<const char*>(word) - region.base;
      if (offset >= 0 && static_cast<size_t>(offset) < region.bytes) {
        return region.writer == kNobody;
      }
    }
    return false;
  }

  // -1: in no region that was shared, or there are too many words.
  int LocationOf(const void* word, uint32_t bytes, Order order) {
    const char* address = static_cast<const char*>(word);
    for (size_t i = 0; i < regions_.size(); ++i) {
      const auto offset = static_cast<size_t>(address - regions_[i].base);
      if (address < regions_[i].base || offset >= regions_[i].bytes) continue;
      int16_t& number = numbers_[i][offset / 4];
      if (number < 0) {
        // A plain word's is followed by one per process: its reads, counted.
        const int wanted = order == Order::kPlain ? 1 + kProcessesMax : 1;
        if (count_ + wanted > kLocationsMax) return -1;
        number = static_cast<int16_t>(count_);
        count_ += wanted;
        words_[number].bytes = bytes;
      }
      words_[number].writer = regions_[i].writer;
      return number;
    }
    return -1;
  }

  bool MayWrite(int process, int location) const {
    return words_[location].writer == -1 || words_[location].writer == process;
  }
  // Whether the access commutes with all that others can do.
  bool UnnoticedRead(int process, int location, Order order) const {
    return words_[location].writer == process ||
           (model_ == Memory::kCpp && order == Order::kPlain);
  }
  bool UnnoticedWrite(int process, Order order) const {
    if (model_ == Memory::kCpp) return order == Order::kPlain;
    return model_ == Memory::kTso && order != Order::kSequential &&
           processes_[process].buffer.size() < static_cast<size_t>(buffer_max_);
  }

  // How many values a load may read, newest first.
  int Readable(int process, int location, Order order) {
    if (model_ != Memory::kCpp || order == Order::kPlain) return 1;
    return newest_[location] - Oldest(process, location, order) + 1;
  }

  // age: 0 the newest, below Readable. *race: a data race on a plain word.
  uint64_t Read(int process, const void* word, int location, Order order,
                int age, bool* race) {
    Process& reader = processes_[process];
    for (auto it = reader.buffer.rbegin(); it != reader.buffer.rend(); ++it) {
      if (it->location == location) return it->value;
    }
    if (model_ != Memory::kCpp) return words_[location].Get(word);
    if (order == Order::kPlain) {
      *race = reader.view[location] != newest_[location];
      Advance(process, location + 1 + process);
      return words_[location].Get(word);
    }
    const int number = newest_[location] - age;
    reader.view[location] = static_cast<uint8_t>(number);
    if (order == Order::kSequential && sequential_[location] < number) {
      sequential_[location] = static_cast<uint8_t>(number);
    }
    // Number 0 was there before the run: it brings nothing.
    const std::vector<Value>& values = words_[location].values;
    if (number == 0) {
      return values.empty() ? words_[location].Get(word) : values[0].value;
    }
    if (order != Order::kRelaxed) Join(reader.view, values[number].view);
    return values[number].value;
  }

  void Write(int process, void* word, int location, uint64_t value, Order order,
             bool* race) {
    Process& writer = processes_[process];
    switch (model_) {
      case Memory::kSequential:
        Commit(word, location, value);
        return;
      case Memory::kTso:
        if (order == Order::kSequential) {
          Drain(process);
          Commit(word, location, value);
          return;
        }
        if (writer.buffer.size() == static_cast<size_t>(buffer_max_)) {
          Flush(process);
        }
        writer.buffer.push_back({word, location, value});
        return;
      case Memory::kCpp:
        break;
    }
    if (order == Order::kPlain) {
      *race = writer.view[location] != newest_[location];
      for (int reader = 0; reader < kProcessesMax; ++reader) {
        const int reads = location + 1 + reader;
        *race |= reader != process && writer.view[reads] != newest_[reads];
      }
    }
    std::vector<Value>& values = words_[location].values;
    if (values.empty()) values.push_back({words_[location].Get(word), {}});
    Commit(word, location, value);
    Advance(process, location);
    if (order == Order::kSequential) sequential_[location] = newest_[location];
    values.push_back({value, {}});
    if (order == Order::kOneSided || order == Order::kSequential) {
      values.back().view = writer.view;
    }
    fingerprint_ += Mix(Mix(Mix(location, newest_[location]), value),
                        ViewHash(values.back().view));
  }

  // A word had more accesses in one run than a View can count.
  bool overflowed() const { return overflowed_; }

  bool buffered(int process) const {
    return !processes_[process].buffer.empty();
  }
  // The oldest entry of the buffer goes to memory.
  void Flush(int process) {
    std::vector<Buffered>& buffer = processes_[process].buffer;
    Commit(buffer.front().word, buffer.front().location, buffer.front().value);
    buffer.erase(buffer.begin());
  }
  void Drain(int process) {
    while (buffered(process)) Flush(process);
  }

  // Through the kernel, which synchronizes: *view is what a message carries.
  void Tell(int process, View* view) {
    Drain(process);
    Join(*view, processes_[process].view);
  }
  void Learn(int process, const View& view) {
    Join(processes_[process].view, view);
  }
  // process knows that other is gone: nothing it did can be missed any more.
  void LearnAll(int process, int other) {
    Drain(other);
    Join(processes_[process].view, processes_[other].view);
  }

  uint64_t Fingerprint(int processes) const {
    uint64_t hash = fingerprint_;
    for (int i = 0; i < processes; ++i) {
      for (const Buffered& entry : processes_[i].buffer) {
        hash = Mix(Mix(hash, entry.location), entry.value);
      }
      hash = Mix(hash, processes_[i].buffer.size());
      if (model_ == Memory::kCpp) {
        hash = Mix(hash, ViewHash(processes_[i].view));
      }
    }
    return model_ == Memory::kCpp ? Mix(hash, ViewHash(sequential_)) : hash;
  }

  uint64_t ViewHash(const View& view) const {
    uint64_t hash = 0;
    static_assert(kLocationsMax % 8 == 0);
    for (int i = 0; i < count_; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, &view[i], 8);
      if (eight != 0) hash = Mix(hash + static_cast<uint64_t>(i), eight);
    }
    return hash;
  }

 private:
  struct Value {
    uint64_t value;
    View view;  // what the writer knew, if it released that
  };
  struct Word {
    uint32_t bytes = 0;
    int writer = -1;  // the only one; < 0: any
    std::vector<Value> values;

    uint64_t Get(const void* word) const {
      uint64_t value = 0;
      std::memcpy(&value, word, bytes);
      return value;
    }
  };
  struct Buffered {
    void* word;
    int location;
    uint64_t value;
  };
  struct Process {
    std::vector<Buffered> buffer;  // oldest first
    View view{};
  };
  struct Region {
    const char* base;
    size_t bytes;
    int writer;
  };

  int Oldest(int process, int location, Order order) const {
    const int known = processes_[process].view[location];
    return order == Order::kSequential
               ? std::max<int>(known, sequential_[location])
               : known;
  }

  void Advance(int process, int location) {
    touched_.push_back(static_cast<uint16_t>(location));
    overflowed_ |= newest_[location] == UINT8_MAX;
    processes_[process].view[location] = ++newest_[location];
  }

  void Join(View& view, const View& other) const {
    for (int i = 0; i < count_; ++i) view[i] = std::max(view[i], other[i]);
  }

  void Commit(void* word, int location, uint64_t value) {
    // The sum over all words written: whatever order they were written in.
    Word& at = words_[location];
    fingerprint_ -= Mix(location + kLocationsMax, at.Get(word));
    std::memcpy(word, &value, at.bytes);
    fingerprint_ += Mix(location + kLocationsMax, value);
  }

  const Memory model_;
  const int buffer_max_;
  std::vector<Region> regions_;
  std::vector<std::vector<int16_t>> numbers_;  // per region and 4 bytes
  int count_ = 0;
  std::array<Word, kLocationsMax> words_;
  View newest_{};
  View sequential_{};  // the newest a seq_cst access has read or written
  std::vector<uint16_t> touched_;
  std::array<Process, kProcessesMax> processes_;
  uint64_t fingerprint_ = 0;
  bool overflowed_ = false;
};

}  // namespace penstock::simulation
#endif  // TESTS_SIMULATION_MEMORY_MODEL_H_
