#include "client/gpu/cuda.h"

#include <dlfcn.h>

namespace penstock::cuda {
namespace {

StatusOr<const Driver*> Load() {
  // Never closed: the driver has threads and handlers of its own.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return NotFoundError("no driver of an NVIDIA GPU: {}",
                         why == nullptr ? "" : why);
  }
  static Driver driver;
  const char* missing = nullptr;
#define PENSTOCK_CUDA_FIND(name, symbol, arguments)                            \
  driver.name = reinterpret_cast<Result(*) arguments>(dlsym(library, symbol)); \
  if (driver.name == nullptr) missing = symbol;
  PENSTOCK_CUDA_FUNCTIONS(PENSTOCK_CUDA_FIND)
#undef PENSTOCK_CUDA_FIND
  if (missing != nullptr) {
    return NotFoundError(
        "the GPU's driver is too old: its libcuda.so.1 has no {}", missing);
  }
  PENSTOCK_RETURN_IF_ERROR(driver.Check(driver.Init(0), "cuInit"));
  return &driver;
}

}  // namespace

Status Driver::Check(Result result, const char* what) const {
  if (result == kSuccess) return OkStatus();
  const char* text = nullptr;
  (void)GetErrorString(result, &text);
  const std::string message = Format("{}: {} (CUDA error {})", what,
                                     text == nullptr ? "unknown error" : text,
                                     static_cast<int>(result));
  switch (result) {
    case kOutOfMemory:
      return ResourceExhaustedError("{}", message);
    case kNoDevice:
    case kInvalidDevice:
      return NotFoundError("{}", message);
    default:
      return InternalError("{}", message);
  }
}

StatusOr<const Driver*> LoadDriver() {
  static const auto* const loaded = new StatusOr<const Driver*>(Load());
  return *loaded;
}

}  // namespace penstock::cuda
