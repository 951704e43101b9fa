// CUDA's driver API, found at run time: libcuda.so.1 comes with every driver,
// so nothing of a toolkit is built or linked against.
//
// Any thread, but not a forked child of a process that has loaded it.
//
// The functions, types and numbers are those of cuda.h (CUDA Driver API
// Reference; the newest, cuMemHostRegister's READ_ONLY, is of CUDA 11.1).
#ifndef CLIENT_GPU_CUDA_H_
#define CLIENT_GPU_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "common/status.h"

namespace penstock::cuda {

using Device = int;
using Context = struct CUctx_st*;
using Event = struct CUevent_st*;
using Stream = struct CUstream_st*;
using Pointer = unsigned long long;  // CUdeviceptr

// CUresult: those that are told apart.
enum Result : int {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNotReady = 600
};
inline constexpr int kReadOnlyHostRegister = 113;  // CUdevice_attribute
inline constexpr int kCaptureRelaxed = 2;          // CUstreamCaptureMode
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostPortable = 1;
inline constexpr unsigned kHostRegisterReadOnly = 8;

// Member, symbol, arguments.
#define PENSTOCK_CUDA_FUNCTIONS(F)                                    \
  F(Init, "cuInit", (unsigned))                                       \
  F(GetErrorString, "cuGetErrorString", (Result, const char**))       \
  F(DeviceGet, "cuDeviceGet", (Device*, int))                         \
  F(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))  \
  F(RetainContext, "cuDevicePrimaryCtxRetain", (Context*, Device))    \
  F(ReleaseContext, "cuDevicePrimaryCtxRelease_v2", (Device))         \
  F(PushContext, "cuCtxPushCurrent_v2", (Context))                    \
  F(PopContext, "cuCtxPopCurrent_v2", (Context*))                     \
  F(ExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", (int*)) \
  F(Synchronize, "cuCtxSynchronize", ())                              \
  F(HostRegister, "cuMemHostRegister_v2", (void*, size_t, unsigned))  \
  F(HostUnregister, "cuMemHostUnregister", (void*))                   \
  F(HostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))          \
  F(HostFree, "cuMemFreeHost", (void*))                               \
  F(Alloc, "cuMemAlloc_v2", (Pointer*, size_t))                       \
  F(Free, "cuMemFree_v2", (Pointer))                                  \
  F(CopyToDevice, "cuMemcpyHtoDAsync_v2",                             \
    (Pointer, const void*, size_t, Stream))                           \
  F(StreamCreate, "cuStreamCreate", (Stream*, unsigned))              \
  F(StreamDestroy, "cuStreamDestroy_v2", (Stream))                    \
  F(StreamSynchronize, "cuStreamSynchronize", (Stream))               \
  F(StreamWaitEvent, "cuStreamWaitEvent", (Stream, Event, unsigned))  \
  F(EventCreate, "cuEventCreate", (Event*, unsigned))                 \
  F(EventRecord, "cuEventRecord", (Event, Stream))                    \
  F(EventQuery, "cuEventQuery", (Event))                              \
  F(EventSynchronize, "cuEventSynchronize", (Event))                  \
  F(EventDestroy, "cuEventDestroy_v2", (Event))

struct Driver {
#define PENSTOCK_CUDA_MEMBER(name, symbol, arguments) \
  Result(*name) arguments = nullptr;
  PENSTOCK_CUDA_FUNCTIONS(PENSTOCK_CUDA_MEMBER)
#undef PENSTOCK_CUDA_MEMBER

  // "what: the driver's text". ResourceExhausted: the device has no memory;
  // NotFound: no such device; else Internal.
  Status Check(Result result, const char* what) const;
};

// Loads it at the first call. NotFound: there is no driver, with the loader's
// reason; else what cuInit says.
StatusOr<const Driver*> LoadDriver();

}  // namespace penstock::cuda
#endif  // CLIENT_GPU_CUDA_H_
