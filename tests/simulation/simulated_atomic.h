// What common/atomic.h makes of every shared word under PENSTOCK_SIMULATION.
//
// Who runs it: the code under test, unchanged, as a process of an exploration
// (explorer.h): each access is then one step of its scheduler. Outside of a
// process (a scenario's setup and checks) an access reads or writes the word
// itself, at once.
//
// Invariants
//   A1  Size, alignment and layout are those of T: offsets are as in the real
//       build.
//   A2  word_ is memory as all agree on it: what is still in a store buffer, or
//       hidden behind an older value that a process may still read, is in the
//       explorer's MemoryModel and never here.
//
// An access throws when the exploration is over: none from a noexcept function
// or a destructor.
#ifndef TESTS_SIMULATION_SIMULATED_ATOMIC_H_
#define TESTS_SIMULATION_SIMULATED_ATOMIC_H_

#include <atomic>
#include <cstdint>
#include <cstring>

namespace penstock {
namespace simulation {

// kPlain: memory that is no atomic, of which a data race is an error.
enum class Order : uint8_t { kPlain, kRelaxed, kOneSided, kSequential };

constexpr Order OrderOf(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return Order::kRelaxed;
    case std::memory_order_seq_cst:
      return Order::kSequential;
    default:  // acquire of a load, release of a store
      return Order::kOneSided;
  }
}

// True in a process of an exploration: only there are the two below called.
bool InProcess();
uint64_t Load(const void* word, uint32_t bytes, Order order);
void Store(void* word, uint32_t bytes, uint64_t value, Order order);

}  // namespace simulation

// The part of std::atomic that the shared memory's code uses. A type that wants
// read-modify-write has to add it here, as one step.
template <typename T>
class SimulatedAtomic {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);

 public:
  static constexpr bool is_always_lock_free = true;

  constexpr SimulatedAtomic() = default;
  constexpr SimulatedAtomic(T value) : word_(value) {}  // as std::atomic
  SimulatedAtomic(const SimulatedAtomic&) = delete;
  SimulatedAtomic& operator=(const SimulatedAtomic&) = delete;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    if (!simulation::InProcess()) return word_;
    return static_cast<T>(
        simulation::Load(&word_, sizeof(T), simulation::OrderOf(order)));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    if (!simulation::InProcess()) {
      word_ = value;
      return;
    }
    simulation::Store(&word_, sizeof(T), static_cast<uint64_t>(value),
                      simulation::OrderOf(order));
  }

 private:
  alignas(sizeof(T)) T word_{};
};

// A word of a slot, or any shared bytes that are no atomic: two accesses that
// no edge orders, one of them a write, fail the run under Memory::kCpp. The
// other models read and write it as an atomic, relaxed.
template <typename T>
class SimulatedPlain {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);

 public:
  T load() const {
    if (!simulation::InProcess()) return word_;
    return static_cast<T>(
        simulation::Load(&word_, sizeof(T), simulation::Order::kPlain));
  }
  void store(T value) {
    if (!simulation::InProcess()) {
      word_ = value;
      return;
    }
    simulation::Store(&word_, sizeof(T), static_cast<uint64_t>(value),
                      simulation::Order::kPlain);
  }

 private:
  alignas(sizeof(T)) T word_{};
};

}  // namespace penstock
#endif  // TESTS_SIMULATION_SIMULATED_ATOMIC_H_
