#include "client/gpu/device_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/attach/fork.h"
#include "common/layout.h"

namespace penstock {
namespace {

// Each region of a batch begins on the device as cuMemAlloc's memory does.
constexpr uint64_t kAlignment = 256;
// Two features with no more than this between them are one copy: issuing
// another one takes as long as these bytes on PCIe 4 (2.5 us).
constexpr uint64_t kGapBytes = 64 << 10;
// Buffers have whole ones of these, cuMemAlloc's own unit.
constexpr uint64_t kUnitBytes = 2 << 20;

uint64_t RoundUp(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

// Makes the device's primary context, which CUDA's runtime and the frameworks
// use, the current one of this thread. A thread that captures a graph is not
// disturbed by calls that are none of its graph.
class DeviceCopies::Scope {
 public:
  explicit Scope(const DeviceCopies& copies)
      : driver_(copies.driver_),
        ok_(copies.context_ != nullptr &&
            driver_.PushContext(copies.context_) == cuda::kSuccess) {
    if (ok_) (void)driver_.ExchangeCaptureMode(&capture_mode_);
  }
  ~Scope() {
    if (!ok_) return;
    (void)driver_.ExchangeCaptureMode(&capture_mode_);
    cuda::Context former;
    (void)driver_.PopContext(&former);
  }
  Scope(const Scope&) = delete;
  // False: the process is about to end, and the driver with it.
  bool ok() const { return ok_; }

 private:
  const cuda::Driver& driver_;
  const bool ok_;
  int capture_mode_ = cuda::kCaptureRelaxed;  // then: the thread's own
};

DeviceCopies::DeviceCopies(const cuda::Driver& driver, int device,
                           uint32_t ahead)
    : driver_(driver),
      device_(device),
      ahead_(ahead),
      fork_generation_(ForkGeneration()) {}

StatusOr<std::shared_ptr<DeviceCopies>> DeviceCopies::Open(int device,
                                                           uint32_t ahead) {
  PENSTOCK_ASSIGN_OR_RETURN(const cuda::Driver* const driver,
                            cuda::LoadDriver());
  std::shared_ptr<DeviceCopies> copies(
      new DeviceCopies(*driver, device, ahead));
  PENSTOCK_RETURN_IF_ERROR(
      copies->OpenDevice().Prepend(Format("GPU {}", device)));
  return copies;
}

Status DeviceCopies::OpenDevice() {
  PENSTOCK_RETURN_IF_ERROR(
      driver_.Check(driver_.DeviceGet(&handle_, device_), "cuDeviceGet"));
  PENSTOCK_RETURN_IF_ERROR(driver_.Check(
      driver_.RetainContext(&context_, handle_), "cuDevicePrimaryCtxRetain"));
  const Scope scope(*this);
  // Not one that waits for the default stream, which has the trainer's work.
  return driver_.Check(driver_.StreamCreate(&stream_, cuda::kStreamNonBlocking),
                       "cuStreamCreate");
}

DeviceCopies::~DeviceCopies() {
  if (context_ == nullptr || ForkGeneration() != fork_generation_) return;
  {
    const Scope scope(*this);
    if (scope.ok()) {
      if (stream_ != nullptr) (void)driver_.StreamSynchronize(stream_);
      for (const auto& buffer : buffers_) Destroy(buffer.get());
      if (stream_ != nullptr) (void)driver_.StreamDestroy(stream_);
    }
  }
  (void)driver_.ReleaseContext(handle_);
}

StatusOr<std::unique_ptr<DeviceBatch>> DeviceCopies::Start(
    std::span<const Piece> pieces, bool registered, bool ahead) {
  if (ForkGeneration() != fork_generation_) {
    return FailedPreconditionError(
        "this GPU is used by the parent process: attach again after fork");
  }
  struct Region {
    const std::byte* from;
    uint64_t at;  // on the device
    uint64_t bytes;
  };
  std::vector<Region> regions;
  std::vector<DeviceBatch::Place> places;
  uint64_t total = 0;
  for (const Piece& piece : pieces) {
    places.push_back({total, piece.bytes});
    if (piece.bytes == 0) continue;
    if (regions.empty() ||
        static_cast<uint64_t>(piece.from - regions.back().from) >
            regions.back().bytes + kGapBytes) {
      regions.push_back({piece.from, RoundUp(total, kAlignment), 0});
    }
    Region& region = regions.back();
    const auto within = static_cast<uint64_t>(piece.from - region.from);
    region.bytes = within + piece.bytes;
    places.back().data = region.at + within;
    total = region.at + region.bytes;
  }

  const std::lock_guard lock(mutex_);
  const Scope scope(*this);
  if (!scope.ok())
    return UnavailableError("GPU {} is no longer there", device_);
  Trim();
  PENSTOCK_ASSIGN_OR_RETURN(Buffer* const buffer, Take(total, ahead));
  if (buffer == nullptr) return std::unique_ptr<DeviceBatch>();
  if (driver_.EventQuery(buffer->copied) == cuda::kSuccess) {
    passed_ = std::max(passed_, buffer->copy);  // of its former copy
  }
  const auto issue = [&]() -> Status {
    for (size_t i = 0; i < buffer->streams.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(driver_.Check(
          driver_.StreamWaitEvent(stream_, buffer->used[i], 0),  // G2
          "cuStreamWaitEvent"));
    }
    buffer->streams.clear();
    if (!registered) {
      PENSTOCK_RETURN_IF_ERROR(GrowStaging(buffer, total));
      // Its former copy.
      (void)driver_.EventSynchronize(buffer->copied);
    }
    for (const Region& region : regions) {
      const std::byte* from = region.from;
      if (!registered) {
        from = buffer->staging + region.at;
        std::memcpy(buffer->staging + region.at, region.from, region.bytes);
      }
      PENSTOCK_RETURN_IF_ERROR(
          driver_.Check(driver_.CopyToDevice(buffer->data + region.at, from,
                                             region.bytes, stream_),
                        "cuMemcpyHtoDAsync"));
    }
    return driver_.Check(driver_.EventRecord(buffer->copied, stream_),  // G1
                         "cuEventRecord");
  };
  const Status issued = issue();
  if (!issued.ok()) {
    (void)driver_.StreamSynchronize(stream_);  // D1, of what was issued
    free_.push_back(buffer);
    return issued;
  }
  buffer->copy = ++copies_;
  for (DeviceBatch::Place& place : places) {
    place.data = place.bytes == 0 ? 0 : place.data + buffer->data;
  }
  return std::unique_ptr<DeviceBatch>(
      new DeviceBatch(shared_from_this(), buffer, std::move(places),
                      registered ? buffer->copy : 0));
}

StatusOr<DeviceCopies::Buffer*> DeviceCopies::Take(uint64_t bytes, bool ahead) {
  Buffer* buffer = nullptr;
  if (!free_.empty()) {
    buffer = free_.front();
    free_.pop_front();
  } else {
    // The batch that is asked for gets one in any case: how many the trainer
    // keeps is its own affair.
    if (ahead && buffers_.size() >= ahead_ + 2) return buffer;
    auto made = std::make_unique<Buffer>();
    PENSTOCK_RETURN_IF_ERROR(driver_.Check(
        driver_.EventCreate(&made->copied, cuda::kEventDisableTiming),
        "cuEventCreate"));
    buffer = buffers_.emplace_back(std::move(made)).get();
  }
  const Status grown = Grow(buffer, bytes);
  if (grown.ok()) return buffer;
  free_.push_back(buffer);
  return grown;
}

Status DeviceCopies::Grow(Buffer* buffer, uint64_t bytes) {
  if (bytes <= buffer->bytes) return OkStatus();
  // Batches of growing sizes grow it a few times only.
  bytes =
      RoundUp(std::max(bytes, buffer->bytes + buffer->bytes / 2), kUnitBytes);
  for (size_t i = 0; i < buffer->streams.size(); ++i) {
    (void)driver_.EventSynchronize(buffer->used[i]);
  }
  (void)driver_.EventSynchronize(buffer->copied);  // one that nobody asked for
  if (buffer->data != 0) (void)driver_.Free(std::exchange(buffer->data, 0));
  stats_.device_bytes -= std::exchange(buffer->bytes, 0);
  PENSTOCK_RETURN_IF_ERROR(
      driver_.Check(driver_.Alloc(&buffer->data, bytes),
                    "memory on the GPU for batches (prefetch_to_device says "
                    "how many are there at once)"));
  buffer->bytes = bytes;
  stats_.device_bytes += bytes;
  return OkStatus();
}

Status DeviceCopies::GrowStaging(Buffer* buffer, uint64_t bytes) {
  if (bytes <= buffer->staging_bytes) return OkStatus();
  (void)driver_.EventSynchronize(buffer->copied);
  if (buffer->staging != nullptr) (void)driver_.HostFree(buffer->staging);
  buffer->staging = nullptr;
  stats_.staging_bytes -= std::exchange(buffer->staging_bytes, 0);
  void* staging = nullptr;
  PENSTOCK_RETURN_IF_ERROR(driver_.Check(
      driver_.HostAlloc(&staging, buffer->bytes, cuda::kHostPortable),
      "cuMemHostAlloc"));
  buffer->staging = static_cast<std::byte*>(staging);
  buffer->staging_bytes = buffer->bytes;
  stats_.staging_bytes += buffer->bytes;
  return OkStatus();
}

// Frees what a trainer that had kept more batches has given back.
void DeviceCopies::Trim() {
  while (buffers_.size() > ahead_ + 2 && !free_.empty()) {
    Buffer* const buffer = free_.front();
    for (size_t i = 0; i < buffer->streams.size(); ++i) {
      if (driver_.EventQuery(buffer->used[i]) != cuda::kSuccess) return;
    }
    if (driver_.EventQuery(buffer->copied) != cuda::kSuccess) return;
    passed_ = std::max(passed_, buffer->copy);
    free_.pop_front();
    Destroy(buffer);
    std::erase_if(buffers_,
                  [&](const auto& each) { return each.get() == buffer; });
  }
}

void DeviceCopies::Destroy(Buffer* buffer) {
  for (size_t i = 0; i < buffer->streams.size(); ++i) {
    (void)driver_.EventSynchronize(buffer->used[i]);
  }
  if (buffer->data != 0) (void)driver_.Free(buffer->data);
  if (buffer->staging != nullptr) (void)driver_.HostFree(buffer->staging);
  for (const cuda::Event event : buffer->used) {
    (void)driver_.EventDestroy(event);
  }
  (void)driver_.EventDestroy(buffer->copied);
  stats_.device_bytes -= buffer->bytes;
  stats_.staging_bytes -= buffer->staging_bytes;
}

bool DeviceCopies::Passed(uint64_t copy) {
  if (ForkGeneration() != fork_generation_) return true;
  const std::lock_guard lock(mutex_);
  if (copy <= passed_) return true;
  const Scope scope(*this);
  if (!scope.ok()) return true;
  for (const auto& buffer : buffers_) {
    // A stream's copies are made in turn.
    if (buffer->copy >= copy &&
        driver_.EventQuery(buffer->copied) == cuda::kSuccess) {
      passed_ = std::max(passed_, buffer->copy);
    }
  }
  return copy <= passed_;
}

void DeviceCopies::Await(uint64_t copy) {
  if (ForkGeneration() != fork_generation_) return;
  const std::lock_guard lock(mutex_);
  const Scope scope(*this);
  if (copy <= passed_ || !scope.ok()) return;
  const Buffer* next = nullptr;  // with the first copy from this one on
  for (const auto& buffer : buffers_) {
    if (buffer->copy >= copy &&
        (next == nullptr || buffer->copy < next->copy)) {
      next = buffer.get();
    }
  }
  (void)(next == nullptr ? driver_.StreamSynchronize(stream_)
                         : driver_.EventSynchronize(next->copied));
  passed_ = next == nullptr ? copies_ : next->copy;
}

DeviceCopies::Stats DeviceCopies::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.device = device_;
  stats.copies = copies_;
  return stats;
}

// ---- a batch on the device

DeviceBatch::~DeviceBatch() {
  DeviceCopies& copies = *copies_;
  if (ForkGeneration() != copies.fork_generation_) return;
  const std::lock_guard lock(copies.mutex_);
  const DeviceCopies::Scope scope(copies);
  if (scope.ok()) {
    for (size_t i = 0; i < buffer_->streams.size(); ++i) {
      if (copies.driver_.EventRecord(buffer_->used[i], buffer_->streams[i]) !=
          cuda::kSuccess) {  // G2
        // The stream is gone: what it had to do may not be.
        (void)copies.driver_.Synchronize();
      }
    }
  }
  copies.free_.push_back(buffer_);
}

Status DeviceBatch::MakeWait(cuda::Stream stream) {
  DeviceCopies& copies = *copies_;
  if (ForkGeneration() != copies.fork_generation_) {
    return FailedPreconditionError("this batch is the parent process's");
  }
  const std::lock_guard lock(copies.mutex_);
  const DeviceCopies::Scope scope(copies);
  const cuda::Driver& driver = copies.driver_;
  std::vector<cuda::Stream>& streams = buffer_->streams;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    if (buffer_->used.size() == streams.size()) {
      cuda::Event event;
      PENSTOCK_RETURN_IF_ERROR(
          driver.Check(driver.EventCreate(&event, cuda::kEventDisableTiming),
                       "cuEventCreate"));
      buffer_->used.push_back(event);
    }
    streams.push_back(stream);
  }
  return driver.Check(driver.StreamWaitEvent(stream, buffer_->copied, 0),  // G1
                      "cuStreamWaitEvent");
}

// ---- pinned parts of a mapping

PinnedMemory::PinnedMemory(std::shared_ptr<DeviceCopies> copies,
                           std::byte* page)
    : copies_(std::move(copies)) {
  if (Register(page, kPageBytes)) Unregister(page, kPageBytes);
}

PinnedMemory::~PinnedMemory() {
  if (ForkGeneration() != copies_->fork_generation_) return;
  copies_->Await();  // D2
  for (const auto& [begin, bytes] : parts_) Unregister(begin, bytes);
}

bool PinnedMemory::Pin(std::byte* begin, uint64_t bytes) {
  if (bytes == 0) return true;
  bytes = RoundUp(bytes, kPageBytes);
  const auto found = parts_.find(begin);
  if (found != parts_.end()) {
    if (bytes <= found->second) return true;
    // A batch that is larger than its room.
    copies_->Await();
    Unregister(begin, found->second);
    parts_.erase(found);
  }
  if (!Register(begin, bytes)) return false;
  parts_.emplace(begin, bytes);
  return true;
}

bool PinnedMemory::Register(std::byte* begin, uint64_t bytes) {
  DeviceCopies& copies = *copies_;
  const std::lock_guard lock(copies.mutex_);
  std::string& why = copies.stats_.why_staged;
  if (!why.empty()) return false;
  const DeviceCopies::Scope scope(copies);
  const cuda::Driver& driver = copies.driver_;
  int read_only = 0;
  (void)driver.DeviceGetAttribute(&read_only, cuda::kReadOnlyHostRegister,
                                  copies.handle_);
  // Where a device reads through the host's page tables it needs no flag.
  const unsigned flags =
      cuda::kHostPortable | (read_only != 0 ? cuda::kHostRegisterReadOnly : 0);
  const Status status = driver.Check(driver.HostRegister(begin, bytes, flags),
                                     "cuMemHostRegister");
  if (status.ok()) {
    copies.stats_.registered_bytes += bytes;
    return true;
  }
  why = Format(
      "the driver cannot register shared memory that is read only: {}"
      "{}",
      status.message(), read_only == 0 ? "; the GPU says that it cannot" : "");
  return false;
}

void PinnedMemory::Unregister(std::byte* begin, uint64_t bytes) {
  DeviceCopies& copies = *copies_;
  const std::lock_guard lock(copies.mutex_);
  const DeviceCopies::Scope scope(copies);
  if (scope.ok()) (void)copies.driver_.HostUnregister(begin);
  copies.stats_.registered_bytes -= bytes;
}

}  // namespace penstock
