#include "tests/support/stand_in_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNotReady = 600,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotSupported = 801
};
constexpr unsigned kReadOnly = 8;

uint64_t Setting(const char* name) {
  const char* const value = getenv(name);
  return value == nullptr ? 0 : strtoull(value, nullptr, 10);
}

// In memory that forked children share.
StandIn& State() {
  static StandIn* const state = [] {
    void* const memory = mmap(nullptr, sizeof(StandIn), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* const made = new (memory) StandIn{};
    made->delay_us = Setting("STAND_IN_DELAY_US");
    made->no_device = Setting("STAND_IN_NO_DEVICE");
    made->no_read_only = Setting("STAND_IN_NO_READ_ONLY");
    made->refuse_register = Setting("STAND_IN_REFUSE_REGISTER");
    made->device_bytes_max = Setting("STAND_IN_DEVICE_BYTES_MAX");
    return made;
  }();
  return *state;
}

void Fault(const char* what) {
  ++State().faults;
  fprintf(stderr, "stand-in of libcuda: %s\n", what);
}

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  uint64_t issued = 0, done = 0;
  bool ends = false;
  std::thread thread;

  Stream() : thread([this] { Run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    thread.join();
  }
  void Issue(std::function<void()> step) {
    const std::lock_guard lock(mutex);
    work.push_back(std::move(step));
    ++issued;
    changed.notify_all();
  }
  void Synchronize() {
    std::unique_lock lock(mutex);
    const uint64_t until = issued;
    changed.wait(lock, [&] { return done >= until; });
  }
  void Run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ends || !work.empty(); });
      if (work.empty()) return;
      const auto step = std::move(work.front());
      work.pop_front();
      lock.unlock();
      step();
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }
};

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, passed = 0;
  void Wait(uint64_t until) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return passed >= until; });
  }
};

std::mutex mutex;  // guards the maps, and what is kept
// By their beginning: bytes.
std::map<uintptr_t, size_t> registered, host, device;
const pid_t owner = getpid();

struct Context {
  int device;
};
Context context{0};
thread_local std::vector<Context*> current;

// Kept for ever: whoever destroys it in CUDA may still have work that uses it.
template <typename T>
T* Keep() {
  static auto* const all = new std::vector<std::unique_ptr<T>>();
  const std::lock_guard lock(mutex);
  return all->emplace_back(std::make_unique<T>()).get();
}
Stream& Default() {
  static auto* const stream = Keep<Stream>();
  return *stream;
}
Stream& Of(void* stream) {
  return reinterpret_cast<uintptr_t>(stream) <= 2
             ? Default()
             : *static_cast<Stream*>(stream);
}

bool Within(const std::map<uintptr_t, size_t>& all, const void* at,
            size_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(at);
  auto found = all.upper_bound(from);
  if (found == all.begin()) return false;
  --found;
  return from + bytes <= found->first + found->second;
}

bool IsMapped(uintptr_t page) {
  unsigned char resident;
  return mincore(reinterpret_cast<void*>(page), 1, &resident) == 0;
}

void Sleep(uint64_t us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

// Every call.
bool Allowed(bool needs_context = true) {
  if (getpid() != owner) {
    Fault("a call in a forked child");
    return false;
  }
  if (needs_context && current.empty()) {
    Fault("a call without a context");
    return false;
  }
  return true;
}

// What is left when the process ends, for tests in another process.
[[gnu::destructor]] void Report() {
  const char* const path = getenv("STAND_IN_REPORT");
  if (path == nullptr || getpid() != owner) return;
  FILE* const file = fopen(path, "w");
  if (file == nullptr) return;
  const StandIn& s = State();
  fprintf(file,
          "{\"faults\": %lu, \"registered\": %lu, \"registrations\": %lu, "
          "\"device_bytes\": %lu, \"host_bytes\": %lu, \"streams\": %lu, "
          "\"events\": %lu, \"contexts\": %lu, \"copies\": %lu}\n",
          s.faults.load(), s.registered.load(), s.registrations.load(),
          s.device_bytes.load(), s.host_bytes.load(), s.streams.load(),
          s.events.load(), s.contexts.load(), s.copies.load());
  fclose(file);
}

}  // namespace

extern "C" {

#pragma GCC visibility push(default)

StandIn* stand_in() { return &State(); }
void* stand_in_stream() { return Keep<Stream>(); }
void stand_in_synchronize(void* stream) { Of(stream).Synchronize(); }
void stand_in_read(void* stream, const void* from, size_t bytes, void* to,
                   uint64_t delay_us) {
  Of(stream).Issue([=] {
    Sleep(delay_us);
    memcpy(to, from, bytes);
  });
}

int cuInit(unsigned) { return State().no_device != 0 ? kNoDevice : kSuccess; }
int cuGetErrorString(int error, const char** text) {
  *text = error == kOutOfMemory    ? "out of memory"
          : error == kNotSupported ? "operation not supported"
                                   : "an error of the stand-in";
  return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < 2 ? kSuccess : kInvalidDevice;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 113 && State().no_read_only == 0 ? 1 : 0;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** made, int) {
  if (!Allowed(false)) return kInvalidContext;
  ++State().contexts;
  *made = &context;
  return kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  if (!Allowed(false)) return kInvalidContext;
  --State().contexts;
  return kSuccess;
}
int cuCtxPushCurrent_v2(void* pushed) {
  if (!Allowed(false)) return kInvalidContext;
  current.push_back(static_cast<Context*>(pushed));
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** popped) {
  if (!Allowed()) return kInvalidContext;
  *popped = current.back();
  current.pop_back();
  return kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int own = 0;  // global
  std::swap(own, *mode);
  return kSuccess;
}
int cuCtxSynchronize() {
  Default().Synchronize();
  return kSuccess;
}

int cuMemHostRegister_v2(void* begin, size_t bytes, unsigned flags) {
  if (!Allowed()) return kInvalidContext;
  if (State().refuse_register != 0) return kNotSupported;
  if (bytes == 0) {
    Fault("nothing is registered");
    return kInvalidValue;
  }
  // The memory is mapped read only.
  if ((flags & kReadOnly) == 0) return kInvalidValue;
  const std::lock_guard lock(mutex);
  const auto from = reinterpret_cast<uintptr_t>(begin);
  const auto next = registered.lower_bound(from);
  if (Within(registered, begin, 1) ||
      (next != registered.end() && next->first < from + bytes)) {
    Fault("registered twice");
    return kAlreadyRegistered;
  }
  registered[from] = bytes;
  ++State().registered;
  ++State().registrations;
  State().registered_bytes += bytes;
  return kSuccess;
}
int cuMemHostUnregister(void* begin) {
  if (!Allowed()) return kInvalidContext;
  const std::lock_guard lock(mutex);
  const auto found = registered.find(reinterpret_cast<uintptr_t>(begin));
  if (found == registered.end()) {
    Fault("unregistered, but not registered");
    return kNotRegistered;
  }
  if (!IsMapped(found->first)) Fault("unregistered after it was unmapped");
  --State().registered;
  State().registered_bytes -= found->second;
  registered.erase(found);
  return kSuccess;
}
int cuMemHostAlloc(void** made, size_t bytes, unsigned) {
  if (!Allowed()) return kInvalidContext;
  *made = malloc(bytes);
  const std::lock_guard lock(mutex);
  host[reinterpret_cast<uintptr_t>(*made)] = bytes;
  State().host_bytes += bytes;
  return kSuccess;
}
int cuMemFreeHost(void* memory) {
  if (!Allowed()) return kInvalidContext;
  const std::lock_guard lock(mutex);
  const auto found = host.find(reinterpret_cast<uintptr_t>(memory));
  if (found == host.end()) {
    Fault("host memory freed that is none");
    return kInvalidValue;
  }
  State().host_bytes -= found->second;
  host.erase(found);
  free(memory);
  return kSuccess;
}
int cuMemAlloc_v2(unsigned long long* made, size_t bytes) {
  if (!Allowed()) return kInvalidContext;
  const uint64_t most = State().device_bytes_max;
  if (most > 0 && State().device_bytes + bytes > most) return kOutOfMemory;
  void* const memory = aligned_alloc(256, bytes);
  memset(memory, 0xEE, bytes);
  const std::lock_guard lock(mutex);
  *made = reinterpret_cast<uintptr_t>(memory);
  device[*made] = bytes;
  State().device_bytes += bytes;
  ++State().allocations;
  return kSuccess;
}
int cuMemFree_v2(unsigned long long memory) {
  if (!Allowed()) return kInvalidContext;
  const std::lock_guard lock(mutex);
  const auto found = device.find(memory);
  if (found == device.end()) {
    Fault("device memory freed that is none");
    return kInvalidValue;
  }
  State().device_bytes -= found->second;
  // Who still reads it sees that.
  memset(reinterpret_cast<void*>(memory), 0xDD, found->second);
  device.erase(found);
  free(reinterpret_cast<void*>(memory));
  return kSuccess;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes,
                         void* stream) {
  if (!Allowed()) return kInvalidContext;
  {
    const std::lock_guard lock(mutex);
    if (!Within(registered, from, bytes) && !Within(host, from, bytes)) {
      Fault("a copy from memory that is not pinned");
    }
    if (!Within(device, reinterpret_cast<void*>(to), bytes)) {
      Fault("a copy beyond the device's memory");
      return kInvalidValue;
    }
  }
  Of(stream).Issue([=] {
    Sleep(State().delay_us);
    while (State().stopped != 0) Sleep(100);
    memcpy(reinterpret_cast<void*>(to), from, bytes);
    ++State().copies;
  });
  return kSuccess;
}

int cuStreamCreate(void** made, unsigned) {
  if (!Allowed()) return kInvalidContext;
  *made = new Stream();
  ++State().streams;
  return kSuccess;
}
int cuStreamDestroy_v2(void* stream) {
  if (!Allowed()) return kInvalidContext;
  delete static_cast<Stream*>(stream);
  --State().streams;
  return kSuccess;
}
int cuStreamSynchronize(void* stream) {
  if (!Allowed()) return kInvalidContext;
  Of(stream).Synchronize();
  return kSuccess;
}
int cuStreamWaitEvent(void* stream, void* of, unsigned) {
  if (!Allowed()) return kInvalidContext;
  auto* const event = static_cast<Event*>(of);
  uint64_t until;
  {
    const std::lock_guard lock(event->mutex);
    until = event->recorded;
  }
  Of(stream).Issue([=] { event->Wait(until); });
  return kSuccess;
}
int cuEventCreate(void** made, unsigned) {
  if (!Allowed()) return kInvalidContext;
  *made = Keep<Event>();
  ++State().events;
  return kSuccess;
}
int cuEventRecord(void* recorded, void* stream) {
  if (!Allowed()) return kInvalidContext;
  auto* const event = static_cast<Event*>(recorded);
  uint64_t number;
  {
    const std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  Of(stream).Issue([=] {
    const std::lock_guard lock(event->mutex);
    event->passed = number;
    event->changed.notify_all();
  });
  return kSuccess;
}
int cuEventQuery(void* of) {
  if (!Allowed()) return kInvalidContext;
  auto* const event = static_cast<Event*>(of);
  const std::lock_guard lock(event->mutex);
  return event->passed == event->recorded ? kSuccess : kNotReady;
}
int cuEventSynchronize(void* of) {
  if (!Allowed()) return kInvalidContext;
  auto* const event = static_cast<Event*>(of);
  uint64_t until;
  {
    const std::lock_guard lock(event->mutex);
    until = event->recorded;
  }
  event->Wait(until);
  return kSuccess;
}
int cuEventDestroy_v2(void*) {
  if (!Allowed()) return kInvalidContext;
  --State().events;
  return kSuccess;
}

#pragma GCC visibility pop
}
