// The input is an object of a store: a file of Parquet or Arrow, or a stream.
// What is fetched of it before any row lies within it.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "broker/io/stores.h"
#include "broker/source/parquet_metadata.h"
#include "common/fd.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

// A store with one object, all of which is there.
class OneObject final : public Stores {
 public:
  explicit OneObject(Fd fd) : fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }
  void SetBytes(uint64_t bytes) { bytes_ = bytes; }

  StatusOr<std::shared_ptr<RemoteFile>> Open(
      const std::string& url, std::optional<uint64_t>,
      const std::atomic<bool>&) override {
    auto file = std::make_shared<RemoteFile>(
        RemoteFile::Opened{
            .url = url,
            .bytes = bytes_,
            .unit_bytes = std::make_shared<std::atomic<uint64_t>>(1)},
        Fd(dup(fd_.get())),
        [](RemoteFile::Ask ask, uint64_t, const RemoteFile::Range&) {
          Require(ask == RemoteFile::Ask::kClose, "all of it is there");
        });
    file->Arrived({0, bytes_}, /*kept=*/true);
    return file;
  }

  StatusOr<std::vector<std::string>> List(const std::string& pattern,
                                          const std::atomic<bool>&) override {
    return NoStoresError(pattern);
  }
  StatusOr<RemoteFolder> OpenFolder(const std::string& url,
                                    std::optional<uint64_t>,
                                    const std::atomic<bool>&) override {
    return NoStoresError(url);
  }
  StatusOr<std::string> Version(const std::string& url) override {
    return NoStoresError(url);
  }
  Status Put(const std::string&, const std::string& url) override {
    return NoStoresError(url);
  }
  nlohmann::json UseJson() const override { return {}; }
  void Observe(std::function<void(const FetchSpan&)>) override {}

 private:
  const Fd fd_;
  uint64_t bytes_ = 0;
};

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;
  static OneObject* const store = [] {
    auto made = std::make_unique<OneObject>(Fd(memfd_create("object", 0)));
    OneObject* const pointer = made.get();
    FileAccess::UseStores(std::move(made));
    return pointer;
  }();
  if (size == 0) return 0;
  Require(ftruncate(store->fd(), 0) == 0 &&
              pwrite(store->fd(), data, size, 0) == static_cast<ssize_t>(size),
          "the input can be written");
  store->SetBytes(size);
  const auto file = DataFile::Open("s3://b/k", *FileAccess::OfBroker());
  Require(file.ok(), "the object is opened");
  Require(FetchParquetMetadata(*file, OpenProgress()).ok(),
          "what is wrong with a file is left to pyarrow");
  return 0;
}
