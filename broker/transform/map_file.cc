#include "broker/transform/map_file.h"

#include <span>
#include <utility>

#include "broker/index/data_file.h"
#include "broker/index/fingerprint.h"

namespace penstock {
namespace {

class WholeFile final : public SideFile {
 public:
  WholeFile(DataFile file, std::string digest, uint64_t memory_bytes)
      : file_(std::move(file)),
        digest_(std::move(digest)),
        memory_bytes_(memory_bytes) {}
  bool Changed() const override { return file_.Changed(); }
  uint64_t memory_bytes() const override { return memory_bytes_; }
  std::string digest() const override { return digest_; }

 private:
  const DataFile file_;
  const std::string digest_;
  const uint64_t memory_bytes_;
};

}  // namespace

StatusOr<std::string> ReadMapFile(const std::string& path,
                                  const MapFileKind& kind,
                                  MapOpening* opening) {
  OpenProgress* const progress = opening->progress;
  PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, *progress));
  if (file.bytes() > kind.bytes_max) {
    return InvalidArgumentError("{}: {} of {} bytes; at most {}", path,
                                kind.name, file.bytes(), kind.bytes_max);
  }
  PENSTOCK_RETURN_IF_ERROR(progress->reserve(file.bytes()));
  std::string text(file.bytes(), '\0');
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint64_t got,
      file.Read(0, std::as_writable_bytes(std::span(text)), progress));
  text.resize(got);
  Fingerprint fingerprint(kind.name);
  fingerprint.Add(text);
  opening->files.push_back(std::make_shared<WholeFile>(
      std::move(file), fingerprint.Hex(), kind.stays ? got : 0));
  return text;
}

}  // namespace penstock
