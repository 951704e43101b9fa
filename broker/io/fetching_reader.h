// Reads of files of object stores: what is not there of them is fetched, then
// read as any file is.
#ifndef BROKER_IO_FETCHING_READER_H_
#define BROKER_IO_FETCHING_READER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/io/read.h"
#include "broker/io/remote_file.h"

namespace penstock {

class FetchingReader final : public StorageReader {
 public:
  explicit FetchingReader(std::unique_ptr<StorageReader> files);
  ~FetchingReader() override;

  std::string backend() const override { return files_->backend(); }
  uint32_t depth() const override { return files_->depth(); }
  bool blocking() const override { return files_->blocking(); }
  bool Start(uint32_t ticket, const ReadRequest& request,
             std::span<std::byte> into, uint32_t pinned) override;
  uint32_t Pin(std::span<std::byte> memory) override {
    return files_->Pin(memory);
  }
  void Unpin(uint32_t pinned) override { files_->Unpin(pinned); }
  void Submit() override { files_->Submit(); }
  bool Next(uint64_t wait_ns, Done* done) override;
  bool Arrived(uint32_t ticket) override;
  bool Fetches(uint32_t ticket) const override;
  void Release(uint32_t ticket) override;
  uint32_t in_flight() const override {
    return files_->in_flight() + fetching_;
  }
  void ReportBlocking(std::atomic<uint32_t>* entry, uint32_t first) override {
    files_->ReportBlocking(entry, first);
  }

 private:
  // A read of parts that are not kept; its ranges are held.
  struct Fetch {
    ReadRequest request;
    std::span<std::byte> into;
    uint32_t pinned = kNotPinned;
    std::shared_ptr<FetchWait> wait;  // nullptr: it is read, or there is none
    bool held = false;
  };

  void Unhold(Fetch* fetch);
  bool StartFetched();
  bool NextFailed(Done* done);

  const std::unique_ptr<StorageReader> files_;
  const std::shared_ptr<FetchSignal> signal_;
  std::vector<Fetch> fetches_;  // by ticket; empty: no file is remote
  uint32_t fetching_ = 0;
};

}  // namespace penstock
#endif  // BROKER_IO_FETCHING_READER_H_
