// Copies of batches on one GPU, for one reader: issued on a stream of their
// own, ahead of the trainer, into buffers that are used again.
//
// Threads: any; DeviceCopies has the one mutex. In a forked child nothing of
// CUDA is called: a copy fails, the rest does nothing.
//
// Invariants
//   D1  What a copy reads stays as it is until its event has passed: whoever
//       gives the source away asks Passed(copy) first, or calls Await.
//   D2  A mapping is unregistered before it is unmapped, and after the copies
//       from it (~PinnedMemory).
//   D3  A buffer is in one DeviceBatch, or free. It is overwritten only after
//       what its last consumers had issued when they let go of it.
//
// Ordering edges, all on the device; no thread waits for the device for them
//   G1  Start records `copied` behind the copy -> MakeWait makes the consumer's
//       stream wait for it.
//   G2  ~DeviceBatch records `used` on each stream that waited -> Start makes
//       the copy stream wait for it before it overwrites the buffer (D3).
//       Not at once: the copy stream would stand still for a step of the
//       trainer although another buffer is free.
#ifndef CLIENT_GPU_DEVICE_COPIES_H_
#define CLIENT_GPU_DEVICE_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "client/gpu/cuda.h"
#include "common/status.h"

namespace penstock {

class DeviceBatch;

class DeviceCopies : public std::enable_shared_from_this<DeviceCopies> {
 public:
  static constexpr uint64_t kAll = ~uint64_t{0};
  // A feature's bytes.
  struct Piece {
    const std::byte* from;
    uint64_t bytes;
  };
  struct Stats {
    int device = 0;
    uint64_t copies = 0;
    uint64_t device_bytes = 0;
    uint64_t registered_bytes = 0;  // of the segment
    uint64_t staging_bytes = 0;     // pinned memory of its own
    std::string why_staged;         // "": batches are copied from the segment
  };

  // ahead: copies that Start makes before their batch is asked for. Errors: of
  // LoadDriver; NotFound: no such device.
  static StatusOr<std::shared_ptr<DeviceCopies>> Open(int device,
                                                      uint32_t ahead);
  ~DeviceCopies();

  // Issues the copy. pieces: in the order of their addresses. registered: they
  // lie in memory of PinnedMemory. ahead: only into a buffer that is free, or
  // one of the first ahead + 2; nullptr: there is none. ResourceExhausted: no
  // memory on the device, or to be pinned.
  StatusOr<std::unique_ptr<DeviceBatch>> Start(std::span<const Piece> pieces,
                                               bool registered, bool ahead);
  // Whether the copy of this number, and those before it, have been made.
  bool Passed(uint64_t copy);
  // Waits until this copy and those before it have been made.
  void Await(uint64_t copy = kAll);

  uint32_t ahead() const { return ahead_; }
  int device() const { return device_; }
  Stats stats() const;

 private:
  friend class DeviceBatch;
  friend class PinnedMemory;
  class Scope;
  struct Buffer {
    cuda::Pointer data = 0;
    uint64_t bytes = 0;
    std::byte* staging = nullptr;
    uint64_t staging_bytes = 0;
    cuda::Event copied = nullptr;
    uint64_t copy = 0;                  // the number of the last one
    std::vector<cuda::Stream> streams;  // that have waited for it
    std::vector<cuda::Event> used;      // one for each; more: of former ones
  };

  DeviceCopies(const cuda::Driver& driver, int device, uint32_t ahead);
  Status OpenDevice();
  // mutex_ is held, by these.
  StatusOr<Buffer*> Take(uint64_t bytes, bool ahead);
  Status Grow(Buffer* buffer, uint64_t bytes);
  Status GrowStaging(Buffer* buffer, uint64_t bytes);
  void Trim();
  void Destroy(Buffer* buffer);

  const cuda::Driver& driver_;
  const int device_;
  const uint32_t ahead_;
  const uint64_t fork_generation_;
  cuda::Device handle_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::deque<Buffer*> free_;  // the one that has been free for longest first
  uint64_t copies_ = 0;
  uint64_t passed_ = 0;
  Stats stats_;  // without device and copies
};

// A batch on the device. Its destructor gives the buffer back, on any thread.
class DeviceBatch {
 public:
  struct Place {
    cuda::Pointer data;
    uint64_t bytes;
  };
  ~DeviceBatch();
  DeviceBatch(const DeviceBatch&) = delete;

  // What is issued on this stream from now on finds the copy made; and the
  // buffer is not overwritten before what has been issued on it until the
  // DeviceBatch is destroyed. The stream must exist until then.
  Status MakeWait(cuda::Stream stream);
  // Where the pieces are.
  const std::vector<Place>& places() const { return places_; }
  int device() const { return copies_->device(); }
  // The copy that reads the source; 0: none does.
  uint64_t copy() const { return copy_; }

 private:
  friend class DeviceCopies;
  DeviceBatch(std::shared_ptr<DeviceCopies> copies,
              DeviceCopies::Buffer* buffer, std::vector<Place> places,
              uint64_t copy)
      : copies_(std::move(copies)),
        buffer_(buffer),
        places_(std::move(places)),
        copy_(copy) {}
  const std::shared_ptr<DeviceCopies> copies_;
  DeviceCopies::Buffer* const buffer_;
  const std::vector<Place> places_;
  const uint64_t copy_;
};

// The parts of one mapping that the driver has pinned, so that the device reads
// them itself. Used under one lock; destroyed before the mapping (D2).
class PinnedMemory {
 public:
  // page: a page of the mapping, to find out whether it can be registered.
  PinnedMemory(std::shared_ptr<DeviceCopies> copies, std::byte* page);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;

  // Registers what begins there, if it is not. False: it cannot be, and the
  // stats say why. begin: on a page, and the same for the same part.
  bool Pin(std::byte* begin, uint64_t bytes);

 private:
  bool Register(std::byte* begin, uint64_t bytes);
  void Unregister(std::byte* begin, uint64_t bytes);
  const std::shared_ptr<DeviceCopies> copies_;
  std::map<std::byte*, uint64_t> parts_;
};

}  // namespace penstock
#endif  // CLIENT_GPU_DEVICE_COPIES_H_
