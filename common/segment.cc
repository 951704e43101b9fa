#include "common/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <boost/interprocess/detail/os_file_functions.hpp>
#include <cstring>
#include <new>

namespace penstock {
namespace {

// Seals required of a peer's segment: its bytes cannot vanish (SIGBUS), and
// only the mapping that the broker made before sealing can write it.
constexpr int kSegmentSeals =
    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
// Each feature starts on a cache line.
constexpr uint64_t kFeatureAlignment = 64;
// The smallest unit of direct reads.
constexpr uint64_t kBlockBytes = 512;
constexpr uint64_t kSegmentBytesMax = uint64_t{1} << 46;

uint64_t RoundUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

uint64_t BanksOf(uint32_t slot_count, uint32_t bank_slots) {
  return (uint64_t{slot_count} + bank_slots - 1) / bank_slots;
}

// The interface that mapped_region requires.
class MemfdHandle {
 public:
  MemfdHandle(int fd, boost::interprocess::mode_t mode)
      : fd_(fd), mode_(mode) {}
  boost::interprocess::mapping_handle_t get_mapping_handle() const {
    return boost::interprocess::ipcdetail::mapping_handle_from_file_handle(fd_);
  }
  boost::interprocess::mode_t get_mode() const { return mode_; }

 private:
  int fd_;
  boost::interprocess::mode_t mode_;
};

Status LayoutMismatch(const char* what, uint32_t found, bool hash_differs) {
  return FailedPreconditionError(
      "{} has memory layout version {}{}, this side reads version {}: install "
      "the broker and the client library from the same Penstock release",
      what, found, hash_differs ? " built differently" : "", kLayoutVersion);
}

}  // namespace

StatusOr<SegmentPlan> PlanSegment(const ElementSpec& spec, uint64_t rows_max,
                                  uint32_t slot_count, uint32_t seats,
                                  uint32_t bank_slots) {
  const BatchForm form = {spec, rows_max};
  return PlanSegment({&form, 1}, slot_count, seats, bank_slots);
}

StatusOr<SegmentPlan> PlanSegment(std::span<const BatchForm> forms,
                                  uint32_t slot_count, uint32_t seats,
                                  uint32_t bank_slots) {
  SegmentPlan plan;
  plan.bank_slots = bank_slots;
  plan.seats = seats;
  plan.slot_count = slot_count;
  for (const BatchForm& form : forms) {
    plan.rows_max = std::max(plan.rows_max, form.rows_max);
  }
  const auto too_large = [] {
    return ResourceExhaustedError(
        "the batches of this job need more than {} TiB: reduce batch.size or "
        "prefetch",
        kSegmentBytesMax >> 40);
  };
  if (seats > kSeatsMax) {
    return ResourceExhaustedError(
        "{} ranks on one host: at most {} are allowed", seats, kSeatsMax);
  }
  if (plan.rows_max > kSegmentBytesMax / sizeof(int64_t)) return too_large();
  uint64_t offset = RoundUp(plan.rows_max * sizeof(int64_t), kFeatureAlignment);
  uint64_t populated = 0;  // 0: all
  for (size_t i = 0; i < forms[0].element.size(); ++i) {
    uint64_t bytes = 0;
    for (const BatchForm& form : forms) {
      const Feature& feature = form.element[i];
      const uint64_t row_bytes = feature.RowBytes();
      // Nothing follows a value that may be larger than its room.
      if (feature.room > 0) populated = offset + feature.room;
      // Rows of whole blocks start on a page, so that direct reads can target
      // them.
      if (row_bytes > 0 && row_bytes % kBlockBytes == 0) {
        offset = RoundUp(offset, kPageBytes);
      }
      if (row_bytes != 0 && form.rows_max > kSegmentBytesMax / row_bytes) {
        return too_large();
      }
      bytes = std::max(bytes, feature.BytesOf(form.rows_max));
    }
    plan.feature_offset.push_back(offset);
    offset += RoundUp(bytes, kFeatureAlignment);
    if (offset > kSegmentBytesMax) return too_large();
  }
  // Large slots start on a huge page.
  const uint64_t alignment =
      offset >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  plan.slot_stride = RoundUp(std::max<uint64_t>(offset, 1), alignment);
  plan.populated =
      populated > 0 ? std::min(RoundUp(populated, kPageBytes), plan.slot_stride)
                    : plan.slot_stride;
  plan.slots_offset = RoundUp(kPageBytes + seats * sizeof(Ring),
                              bank_slots > 0 ? kHugePageBytes : alignment);
  const uint64_t room = kSegmentBytesMax - plan.slots_offset;
  if (slot_count > room / plan.slot_stride ||
      bank_slots > room / plan.slot_stride) {
    return too_large();
  }
  if (bank_slots == 0) {
    plan.segment_bytes = plan.slots_offset + slot_count * plan.slot_stride;
    return plan;
  }
  const uint64_t banks = BanksOf(slot_count, bank_slots);
  const uint64_t bank_stride = BankStride(bank_slots, plan.slot_stride);
  if (banks > room / bank_stride) return too_large();
  plan.segment_bytes = plan.slots_offset + banks * bank_stride;
  return plan;
}

StatusOr<Mapping> Mapping::Map(int fd, uint64_t bytes, bool writable) {
  const auto mode = writable ? boost::interprocess::read_write
                             : boost::interprocess::read_only;
  try {
    Mapping mapping;
    mapping.region_ = boost::interprocess::mapped_region(MemfdHandle(fd, mode),
                                                         mode, 0, bytes);
    return mapping;
  } catch (const boost::interprocess::interprocess_exception& error) {
    return ErrnoError(error.get_native_error(),
                      Format("map {} bytes of shared memory", bytes));
  }
}

StatusOr<std::unique_ptr<Segment>> Segment::Create(const SegmentPlan& plan,
                                                   uint64_t broker_instance_id,
                                                   uint64_t job_id) {
  Fd fd(memfd_create("penstock segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoError(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(plan.segment_bytes)) != 0) {
    return ErrnoError(errno,
                      Format("make a segment of {} bytes", plan.segment_bytes));
  }
  PENSTOCK_ASSIGN_OR_RETURN(Mapping mapping,
                            Mapping::Map(fd.get(), plan.segment_bytes, true));
  if (fcntl(fd.get(), F_ADD_SEALS, kSegmentSeals) != 0) {
    return ErrnoError(errno, "seal a segment");
  }
  // Advisory: without huge pages populating is 5 to 15 times slower.
  (void)madvise(mapping.data(), plan.segment_bytes, MADV_HUGEPAGE);

  auto* header = new (mapping.data()) SegmentHeader{};
  header->magic = kSegmentMagic;
  header->layout_version = kLayoutVersion;
  header->page_bytes = kPageBytes;
  header->layout_hash = kLayoutHash;
  header->segment_bytes = plan.segment_bytes;
  header->broker_instance_id = broker_instance_id;
  header->job_id = job_id;
  header->seats = plan.seats;
  header->slot_count = plan.slot_count;
  header->bank_slots = plan.bank_slots;
  header->rings_offset = kPageBytes;
  header->ring_stride = sizeof(Ring);
  header->slots_offset = plan.slots_offset;
  header->slot_stride = plan.slot_stride;
  header->rows_max = plan.rows_max;
  header->ids_offset = plan.ids_offset;
  header->feature_count = static_cast<uint32_t>(plan.feature_offset.size());
  for (size_t i = 0; i < plan.feature_offset.size(); ++i) {
    header->feature_offset[i] = plan.feature_offset[i];
  }
  for (uint32_t seat = 0; seat < plan.seats; ++seat) {
    new (mapping.data() + kPageBytes + seat * sizeof(Ring)) Ring{};
  }
  // Release: a reader that sees ready sees the header and the rings.
  header->ready.store(1, std::memory_order_release);
  return std::unique_ptr<Segment>(
      new Segment(plan, std::move(fd), std::move(mapping)));
}

Ring& Segment::ring(uint32_t seat) const {
  return *reinterpret_cast<Ring*>(base() + kPageBytes + seat * sizeof(Ring));
}

SlotRows Segment::rows(uint32_t slot, const ElementSpec& element) const {
  std::vector<SlotRows::Column> columns;
  columns.reserve(element.size());
  for (size_t i = 0; i < element.size(); ++i) {
    columns.push_back({feature(slot, i),
                       element[i].room > 0 ? 0 : element[i].RowBytes(),
                       &element[i]});
  }
  return {ids(slot), std::move(columns)};
}

int64_t* Segment::ids(uint32_t slot) const {
  return reinterpret_cast<int64_t*>(base() + slot_offset(slot) +
                                    plan_.ids_offset);
}

std::byte* Segment::feature(uint32_t slot, size_t index) const {
  return base() + slot_offset(slot) + plan_.feature_offset[index];
}

StatusOr<std::unique_ptr<SegmentView>> SegmentView::Open(
    int fd, uint32_t feature_count) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat info;
  if (seals < 0 || (seals & kSegmentSeals) != kSegmentSeals ||
      fstat(fd, &info) != 0) {
    return InternalError("the broker's segment is not a sealed memfd");
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes < kPageBytes) return InternalError("the segment is too short");
  PENSTOCK_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd, bytes, false));
  const auto* shared = reinterpret_cast<const SegmentHeader*>(mapping.data());
  if (shared->ready.load(std::memory_order_acquire) != 1) {
    return InternalError("the broker's segment is not ready");
  }
  // Checks and uses a copy, without `ready` (an atomic).
  SegmentHeader header{};
  std::memcpy(static_cast<void*>(&header), mapping.data(),
              offsetof(SegmentHeader, ready));
  if (header.magic != kSegmentMagic) {
    return InternalError("the broker's memory is not a Penstock segment");
  }
  if (header.layout_version != kLayoutVersion ||
      header.layout_hash != kLayoutHash) {
    return LayoutMismatch("the broker", header.layout_version,
                          header.layout_hash != kLayoutHash);
  }
  SegmentPlan plan;
  plan.seats = header.seats;
  plan.slot_count = header.slot_count;
  plan.bank_slots = header.bank_slots;
  plan.rows_max = header.rows_max;
  plan.ids_offset = header.ids_offset;
  plan.slot_stride = header.slot_stride;
  plan.slots_offset = header.slots_offset;
  plan.segment_bytes = header.segment_bytes;
  if (header.segment_bytes != bytes || header.rings_offset != kPageBytes ||
      header.ring_stride != sizeof(Ring) || plan.seats > kSeatsMax ||
      kPageBytes + plan.seats * sizeof(Ring) > plan.slots_offset ||
      plan.slots_offset > bytes || plan.slot_stride == 0 ||
      plan.slot_count > (bytes - plan.slots_offset) / plan.slot_stride ||
      plan.bank_slots > (bytes - plan.slots_offset) / plan.slot_stride ||
      header.feature_count != feature_count || feature_count > kFeaturesMax) {
    return InternalError("the segment's header is inconsistent");
  }
  if (plan.bank_slots > 0 &&
      BanksOf(plan.slot_count, plan.bank_slots) >
          (bytes - plan.slots_offset) /
              BankStride(plan.bank_slots, plan.slot_stride)) {
    return InternalError("the segment's header is inconsistent");
  }
  for (uint32_t i = 0; i < feature_count; ++i) {
    if (header.feature_offset[i] > plan.slot_stride) {
      return InternalError("the segment's header is inconsistent");
    }
    plan.feature_offset.push_back(header.feature_offset[i]);
  }
  const uint64_t broker_instance_id = header.broker_instance_id;
  auto view = std::unique_ptr<SegmentView>(
      new SegmentView(std::move(plan), std::move(mapping)));
  view->broker_instance_id_ = broker_instance_id;
  return view;
}

const Ring& SegmentView::ring(uint32_t seat) const {
  return *reinterpret_cast<const Ring*>(mapping_.data() + kPageBytes +
                                        seat * sizeof(Ring));
}

bool SegmentView::Valid(const Cell& cell) const {
  if (cell.lease >= kLeasesMax || cell.rows > plan_.rows_max ||
      cell.valid_rows > cell.rows || cell.slot_offset < plan_.slots_offset) {
    return false;
  }
  uint64_t offset = cell.slot_offset - plan_.slots_offset;
  uint64_t slots_before = 0;
  if (plan_.bank_slots > 0) {
    const uint64_t stride = BankStride(plan_.bank_slots, plan_.slot_stride);
    if (offset / stride >= BanksOf(plan_.slot_count, plan_.bank_slots)) {
      return false;
    }
    slots_before = offset / stride * plan_.bank_slots;
    offset %= stride;
    if (offset / plan_.slot_stride >= plan_.bank_slots) return false;
  }
  return offset % plan_.slot_stride == 0 &&
         slots_before + offset / plan_.slot_stride < plan_.slot_count;
}

const int64_t* SegmentView::ids(const Cell& cell) const {
  return reinterpret_cast<const int64_t*>(mapping_.data() + cell.slot_offset +
                                          plan_.ids_offset);
}

const std::byte* SegmentView::feature(const Cell& cell, size_t index) const {
  return mapping_.data() + cell.slot_offset + plan_.feature_offset[index];
}

StatusOr<OwnedCursor> CreateCursor() {
  OwnedCursor cursor;
  cursor.fd =
      Fd(memfd_create("penstock cursor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!cursor.fd) return ErrnoError(errno, "memfd_create");
  if (ftruncate(cursor.fd.get(), kCursorBytes) != 0) {
    return ErrnoError(errno, "make a cursor page");
  }
  PENSTOCK_ASSIGN_OR_RETURN(cursor.mapping,
                            Mapping::Map(cursor.fd.get(), kCursorBytes, true));
  if (fcntl(cursor.fd.get(), F_ADD_SEALS, kSegmentSeals) != 0) {
    return ErrnoError(errno, "seal a cursor page");
  }
  auto* page = new (cursor.mapping.data()) CursorPage{};
  page->magic = kCursorMagic;
  page->layout_version = kLayoutVersion;
  page->layout_hash = kLayoutHash;
  return cursor;
}

StatusOr<Mapping> OpenCursor(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat info;
  if (seals < 0 || (seals & kSegmentSeals) != kSegmentSeals ||
      fstat(fd, &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != kCursorBytes) {
    return InvalidArgumentError(
        "the cursor page is not a sealed memfd of {} bytes", kCursorBytes);
  }
  PENSTOCK_ASSIGN_OR_RETURN(Mapping mapping,
                            Mapping::Map(fd, kCursorBytes, false));
  // Copied once, because the rank may write the page at any time.
  struct {
    uint64_t magic;
    uint32_t version;
    uint32_t reserved;
    uint64_t hash;
  } copy;
  static_assert(offsetof(CursorPage, layout_hash) == 16 && sizeof(copy) == 24);
  std::memcpy(&copy, mapping.data(), sizeof(copy));
  if (copy.magic != kCursorMagic) {
    return InvalidArgumentError("the cursor page has a wrong magic number");
  }
  if (copy.version != kLayoutVersion || copy.hash != kLayoutHash) {
    return LayoutMismatch("the client", copy.version, copy.hash != kLayoutHash);
  }
  return mapping;
}

uint64_t CursorInode(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace penstock
