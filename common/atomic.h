// What every word is made of that two processes share: std::atomic.
//
// The simulation in tests/ compiles the same sources with an atomic of its own
// instead: each access is a step of a scheduler that tries every interleaving,
// with store buffers and deaths between any two (PENSTOCK_SIMULATION).
#ifndef COMMON_ATOMIC_H_
#define COMMON_ATOMIC_H_

#ifdef PENSTOCK_SIMULATION
#include "tests/simulation/simulated_atomic.h"

namespace penstock {
template <typename T>
using Atomic = SimulatedAtomic<T>;
}
#else
#include <atomic>

namespace penstock {
template <typename T>
using Atomic = std::atomic<T>;
}
#endif

#endif  // COMMON_ATOMIC_H_
