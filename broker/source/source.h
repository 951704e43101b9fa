// Stage 2 of the flow, "read": which records a dataset has and where the bytes
// of each are.
//
// Opened once per dataset, on its own thread; afterwards every method is const
// and called by all workers at once without a lock.
#ifndef BROKER_SOURCE_SOURCE_H_
#define BROKER_SOURCE_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/io/read_request.h"
#include "common/dataset_spec.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

// A feature as the source holds it.
struct RawFeature {
  Feature feature;
  bool encoded = false;  // bytes of a picture file: dtype uint8, shape unknown
};
using RawSpec = std::vector<RawFeature>;

// The bytes of one record's features, in RawSpec's order. The spans point into
// the read buffer, the source's own memory or the scratch given to Unpack.
using RawRecord = std::vector<std::span<const std::byte>>;

class Source {
 public:
  virtual ~Source() = default;

  virtual uint64_t record_count() const = 0;
  virtual const RawSpec& raw_spec() const = 0;
  // Bytes of broker memory it keeps (index, inline values, unpacked files).
  virtual uint64_t memory_bytes() const = 0;

  // Fills *request for record (< record_count()).
  virtual void Locate(uint64_t record, ReadRequest* request) const = 0;

  // Points *raw at the record's features. read is what the request asked for
  // (empty for kNone); scratch is the calling worker's and may be grown; both
  // must outlive *raw. An error here is the record's: DataLoss.
  virtual Status Unpack(uint64_t record, std::span<const std::byte> read,
                        std::vector<std::byte>* scratch,
                        RawRecord* raw) const = 0;

  // What it was opened from is not what it was: the next job of this dataset
  // opens it anew. May look at each folder.
  virtual bool Changed() const { return false; }

  // For messages: the file (and offset) the record is in.
  virtual std::string Describe(uint64_t record) const = 0;

  // How it is read, for people; "" when there is nothing to read.
  virtual std::string io() const { return ""; }

  // The feature whose bytes are what is read for a record, all of it and
  // unchanged; it can be read into its place. The others need no reading.
  virtual std::optional<size_t> plain_feature() const { return std::nullopt; }

  // The names of label values, when the source knows them (class folders).
  virtual std::vector<std::string> class_names() const { return {}; }

  // What lies beside the records and is none, for people: files of other kinds.
  virtual std::string left_out() const { return {}; }
};

// Progress of a long opening, and the way to stop it.
struct OpenProgress {
  std::atomic<uint64_t> done{0};   // files, records or bytes so far
  std::atomic<uint64_t> total{0};  // 0: not known
  std::atomic<bool> cancel{false};
  // Asked before a source keeps much in memory; an error ends the opening.
  std::function<Status(uint64_t bytes)> reserve = [](uint64_t) {
    return OkStatus();
  };
};

// Opens the source a spec names: scans folders, reads headers, checks sizes.
// Errors name the file and the way out: NotFound, PermissionDenied (with the
// user the broker runs as, and `penstock run` as the way out), DataLoss,
// InvalidArgument (an empty folder, files that do not belong together),
// Cancelled.
StatusOr<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec,
                                             OpenProgress* progress);

}  // namespace penstock
#endif  // BROKER_SOURCE_SOURCE_H_
