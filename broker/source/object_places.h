// Where the objects of records lie in the file that has all of a folder's.
#ifndef BROKER_SOURCE_OBJECT_PLACES_H_
#define BROKER_SOURCE_OBJECT_PLACES_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/io/read_request.h"
#include "broker/io/stores.h"

namespace penstock {

class ObjectPlaces {
 public:
  ObjectPlaces() = default;
  ObjectPlaces(std::shared_ptr<RemoteFile> file, uint64_t count)
      : file_(std::move(file)) {
    places_.reserve(count);
  }

  // name: one that the folder has.
  void Add(const RemoteFolder& folder, std::string_view name) {
    const size_t at = folder.Find(name).value_or(0);
    places_.push_back({folder.offsets[at], folder.bytes[at]});
  }
  bool remote() const { return file_ != nullptr; }
  uint64_t memory_bytes() const { return places_.capacity() * sizeof(Place); }
  void Locate(uint64_t i, ReadPart* part) const {
    part->kind = ReadPart::Kind::kRange;
    part->nowait = true;
    part->align = 0;
    part->fd = file_->fd();
    part->remote = file_.get();
    part->map = {};
    part->offset = places_[i].offset;
    part->bytes = places_[i].bytes;
  }

 private:
  struct Place {
    uint64_t offset;
    uint64_t bytes;
  };
  std::shared_ptr<RemoteFile> file_;  // nullptr: a folder of this machine
  std::vector<Place> places_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_OBJECT_PLACES_H_
