// The atomic type of every word that two processes share: std::atomic.
//
// The simulation in tests/ compiles the same sources with its own atomic: each
// access is a step of a scheduler that tries every interleaving, with store
// buffers and deaths between any two steps (PENSTOCK_SIMULATION).
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
