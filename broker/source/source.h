// Stage 2 of the flow, "read": the records of a dataset and where their bytes
// are.
//
// Opened once per dataset, on a separate thread. Afterwards every method is
// const, and all workers call them concurrently without a lock.
#ifndef BROKER_SOURCE_SOURCE_H_
#define BROKER_SOURCE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "broker/io/read_request.h"
#include "broker/io/remote_file.h"
#include "broker/plan/columns.h"
#include "broker/plan/order.h"
#include "broker/user_code/trusted_code.h"
#include "common/element_spec.h"
#include "common/exact_max.h"
#include "common/status.h"

namespace penstock {

class Fingerprint;
template <typename T>
class Declaration;

// More would not fit into a plan.
inline constexpr uint64_t kRecordsMax = kExactMax;

// Two corners, a corner and the sides, or the centre and the sides.
enum class BoxFormat { kXyxy, kXywh, kCxcywh };

// A feature as the source holds it.
struct RawFeature {
  Feature feature;
  bool encoded = false;  // bytes of a file to decode: dtype uint8, no shape
  // What is known of its values besides. It has an item for each object in the
  // picture of this name; it is boxes; a sound has so many samples a second.
  std::string picture = {};
  std::optional<BoxFormat> boxes = {};
  int64_t rate = 0;

  // The same bytes.
  bool operator==(const RawFeature& other) const {
    return feature == other.feature && encoded == other.encoded;
  }
};
using RawSpec = std::vector<RawFeature>;
// Features of values alone.
RawSpec RawSpecOf(const ElementSpec& features);

// One number, of a dtype that a column may have.
bool IsNumber(const RawFeature& raw);
// The value of such a feature.
ColumnValue NumberOf(DType dtype, const std::byte* bytes);

// The bytes of one record's features, in RawSpec's order. The spans point into
// the read buffer, the source's own memory or the scratch passed to Unpack.
using RawRecord = std::vector<std::span<const std::byte>>;

// Digests of the contents of files, by path.
using FileDigests = std::map<std::string, std::string>;

using FileVisit = std::function<void(std::string_view name, uint64_t bytes)>;

class Source {
 public:
  virtual ~Source() = default;

  virtual uint64_t record_count() const = 0;
  virtual const RawSpec& raw_spec() const = 0;

  // ---- its parts, if it is made of several whose records may differ

  virtual size_t parts() const { return 1; }
  virtual size_t PartOf(uint64_t /*record*/) const { return 0; }
  // raw_spec() is that of the first.
  virtual const RawSpec& RawSpecOfPart(size_t /*part*/) const {
    return raw_spec();
  }
  // InvalidArgument names a part whose features are not those of the first.
  virtual Status CheckAlike() const { return OkStatus(); }

  // ---- its records

  // Broker memory that it keeps (index, inline values, unpacked files).
  virtual uint64_t memory_bytes() const { return 0; }

  // The order of a pass over all records. first: the number of its first record
  // in the source that this one is a part of. May take a pass over the index.
  virtual StatusOr<std::unique_ptr<Order>> OrderOf(
      uint64_t first, const OrderBudget& /*budget*/) const {
    return AllRecords(record_count(), first);
  }

  // The same in two steps, for a source made of parts: an order of each, and
  // what it makes of them or of others in their places.
  using Orders = std::vector<std::unique_ptr<Order>>;
  virtual StatusOr<Orders> OrdersOfParts(uint64_t first,
                                         const OrderBudget& budget) const {
    Orders orders(1);
    PENSTOCK_ASSIGN_OR_RETURN(orders[0], OrderOf(first, budget));
    return orders;
  }
  virtual StatusOr<std::unique_ptr<Order>> Combined(
      Orders orders, const OrderBudget& /*budget*/) const {
    return std::move(orders[0]);
  }

  // Copies the number of a feature without dimensions that is known without
  // reading the record; false: it is not.
  virtual bool KnownNumber(uint64_t /*record*/, size_t /*feature*/,
                           std::byte* /*number*/) const {
    return false;
  }
  // The path of the file that has the record, where records are ranges of
  // files; "": elsewhere.
  virtual std::string_view FileOf(uint64_t /*record*/) const { return ""; }
  // What is known of records without reading them: those features, the file,
  // and what a kind adds. Of first + record where this source is a part
  // (OrderOf).
  virtual Columns columns(uint64_t first) const;

  // Fills *request for record (< record_count()). Either all records of a
  // source are of kNone, as by default, or none: one of no bytes is a range of
  // no bytes.
  virtual void Locate(uint64_t /*record*/, ReadRequest* request) const {
    request->kind = ReadRequest::Kind::kNone;
  }

  // What has to be there of a remote file before a record is made that is of
  // kNone: the same for all records of its group.
  struct SharedRanges {
    RemoteFile* file = nullptr;
    uint64_t group = 0;  // of the file
    uint64_t records = 0;
    std::vector<RemoteFile::Range> ranges;  // none: the group is made
  };
  // nullopt: nothing.
  virtual std::optional<SharedRanges> SharedRangesOf(
      uint64_t /*record*/) const {
    return std::nullopt;
  }

  // The record will be located soon: a hint to the processor.
  virtual void Expect(uint64_t) const {}

  // Points *raw at the record's features. read: the result of the request
  // (empty for kNone), with the ends of its parts if it has several. scratch
  // belongs to the calling worker and may grow. Both must outlive *raw. An
  // error concerns the record: DataLoss.
  virtual Status Unpack(uint64_t record, const ReadBytes& read,
                        std::vector<std::byte>* scratch,
                        RawRecord* raw) const = 0;

  // Adds when its files, or their folders, were last changed before they were
  // opened: what is kept of them for later (broker/cache/) is of no use
  // afterwards.
  virtual void AddTimes(Fingerprint* /*to*/) const {}

  // Its files in the order of its records, by their names from the folder that
  // has all of them, and their sizes (0: unknown), for comparing hosts.
  // Nothing: there are none, or not known. May take a pass over the index.
  virtual void ListFiles(const FileVisit& /*visit*/) const {}

  // The underlying data have changed: the next job of this dataset must reopen
  // it. May check every folder.
  virtual bool Changed() const { return false; }

  // ---- records that another process makes

  struct Wanted {
    uint64_t record = 0;
    uint64_t pass = 0;  // of the data; its random numbers depend on it
    bool operator==(const Wanted&) const = default;
  };
  // A worker's part of such a source, with its process. Not thread-safe.
  class Maker {
   public:
    virtual ~Maker() = default;
    // These rows will be wanted next, in this order.
    virtual void Expect(uint64_t seed, std::span<const Wanted> wanted) = 0;
    // Points *raw at the features of a record; valid until the next call.
    // Errors of the record: DataLoss, DeadlineExceeded. Aborted: its process
    // has ended; called again, it waits for another one. Others:
    // InvalidArgument (the dataset cannot be loaded), Cancelled, ...
    virtual Status Make(uint64_t seed, const Wanted& wanted,
                        RawRecord* raw) = 0;
    // Rows that are expected at once are a batch, whose one feature the first
    // of them has that can be made. An error of Make is then about its row
    // alone.
    virtual bool makes_batches() const { return false; }
    // The record that has taken the place of a batch's row whose Make, the last
    // one, failed.
    virtual std::optional<uint64_t> Substitute() const { return std::nullopt; }
    // After Aborted: so many of the expected rows after this one are wanted
    // here. A process that has ended had begun none of the others.
    virtual size_t begun() const = 0;
  };
  // nullptr: records are located and unpacked.
  virtual std::unique_ptr<Maker> MakeMaker(Cancelled) const { return nullptr; }
  // The same records with these features, and what comes with them, for a pass
  // over the values of a column. nullptr: batches are made, or records in one
  // order.
  virtual std::unique_ptr<Source> OfFeatures(
      std::span<const std::string> /*names*/) const {
    return nullptr;
  }
  // The longest that Make waits; 0: there is no Maker.
  virtual uint64_t wait_ns() const { return 0; }
  // Records that are asked for in another order than that of a pass cost much
  // more.
  virtual bool in_order() const { return false; }
  // How many workers make records; 0: as many as there are.
  virtual uint32_t processes() const { return 0; }

  // ---- for people and messages

  // The file (and offset) of the record.
  virtual std::string Describe(uint64_t record) const = 0;

  // How records are read, for people; "" if nothing is read.
  virtual std::string io() const { return ""; }

  // The feature that consists of exactly the bytes read for a record and can be
  // read directly into its destination. The other features need no reading.
  virtual std::optional<size_t> plain_feature() const { return std::nullopt; }

  // The names of label values, if known (class folders).
  virtual std::vector<std::string> class_names() const { return {}; }

  // What works, but not as it should, for people.
  virtual std::string warning() const { return {}; }

  // What rows in a random order cost, if it is much, for people.
  virtual std::string shuffle_warning() const { return {}; }

  // Describes skipped files or records, for people.
  virtual std::string left_out() const { return {}; }

  // Adds those of the files of kept records that its parts name.
  virtual void AddDigests(FileDigests*) const {}

  // The same on every host that has the same files, whatever their folder;
  // "": the spec says it all, or it is not known. May take a pass over the
  // index.
  virtual std::string fingerprint() const { return {}; }
};

using OpenedSource = StatusOr<std::unique_ptr<Source>>;

}  // namespace penstock
#endif  // BROKER_SOURCE_SOURCE_H_
