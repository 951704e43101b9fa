// libcuda.so.1 of a machine without a GPU: the functions that client/gpu uses,
// with the device's memory on the host and a thread for each stream. What a
// stream does comes late, so that a wait that is missing shows as wrong data.
//
// It judges too: `faults` counts what a driver would not forgive, of any
// process that was forked from the one that loaded it.
#ifndef TESTS_SUPPORT_STAND_IN_CUDA_H_
#define TESTS_SUPPORT_STAND_IN_CUDA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

struct StandIn {
  // Settings; at first those of the environment, STAND_IN_DELAY_US and so on.
  std::atomic<uint64_t> delay_us;  // before each copy
  std::atomic<uint64_t> stopped;   // not 0: copies wait
  std::atomic<uint64_t> no_device;
  std::atomic<uint64_t> no_read_only;     // what the device says
  std::atomic<uint64_t> refuse_register;  // cuMemHostRegister fails
  std::atomic<uint64_t> device_bytes_max;
  // Counts: now, and of all.
  std::atomic<uint64_t> registered, registered_bytes, host_bytes, device_bytes,
      streams, events, contexts;
  std::atomic<uint64_t> registrations, allocations, copies;
  // Memory unregistered after it was unmapped, freed or registered twice; a
  // copy from memory that is not pinned, or beyond an allocation; a call
  // without a context, or in a forked child.
  std::atomic<uint64_t> faults;
};

extern "C" {
__attribute__((visibility("default"))) StandIn* stand_in();
// Issues on a stream what a trainer would: reads device memory, after a while.
__attribute__((visibility("default"))) void stand_in_read(void* stream,
                                                          const void* device,
                                                          size_t bytes,
                                                          void* to,
                                                          uint64_t delay_us);
__attribute__((visibility("default"))) void* stand_in_stream();
__attribute__((visibility("default"))) void stand_in_synchronize(void* stream);
}

#endif  // TESTS_SUPPORT_STAND_IN_CUDA_H_
