// Reads one byte of every cache line: what the least trainer does with a batch.
#ifndef BENCH_PEERS_TOUCH_H_
#define BENCH_PEERS_TOUCH_H_

#include <cstddef>
#include <cstdint>

// The bytes' exclusive or, so that the compiler has to read them.
extern "C" uint8_t peers_touch(const void* data, size_t bytes);

#endif  // BENCH_PEERS_TOUCH_H_
