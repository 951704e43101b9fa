// A segment: the memory in which the broker hands batches to the ranks of one
// job. A memfd without a name, sealed so that nobody else can write, shrink or
// grow it.
#ifndef COMMON_SEGMENT_H_
#define COMMON_SEGMENT_H_

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/element_spec.h"
#include "common/fd.h"
#include "common/layout.h"
#include "common/slot_rows.h"
#include "common/status.h"

namespace penstock {

// The layout of a segment; a pure function of the arguments of PlanSegment.
struct SegmentPlan {
  uint32_t seats = 0;
  uint32_t slot_count = 0;
  uint32_t bank_slots = 0;  // see layout.h
  uint64_t rows_max = 0;
  uint64_t ids_offset = 0;  // within a slot
  std::vector<uint64_t> feature_offset;
  uint64_t slot_stride = 0;
  uint64_t populated = 0;  // bytes of a slot that have pages from the beginning
  uint64_t slots_offset = 0;
  uint64_t segment_bytes = 0;

  // The memory that it takes before a batch is larger than its room.
  uint64_t PopulatedBytes() const {
    return segment_bytes - slot_count * (slot_stride - populated);
  }
  // Bytes of the memory of a feature in a slot.
  uint64_t FeatureBytes(size_t feature) const {
    return (feature + 1 < feature_offset.size() ? feature_offset[feature + 1]
                                                : slot_stride) -
           feature_offset[feature];
  }
};

// Plans slot_count slots of rows_max rows of spec each, in banks of bank_slots
// (0: no banks), and `seats` rings. ResourceExhausted: the sizes overflow an
// address.
StatusOr<SegmentPlan> PlanSegment(const ElementSpec& spec, uint64_t rows_max,
                                  uint32_t slot_count, uint32_t seats,
                                  uint32_t bank_slots = 0);
// The layout of batches of several forms, with the same number of features: a
// slot holds any of them.
struct BatchForm {
  ElementSpec element;
  uint64_t rows_max = 0;
};
StatusOr<SegmentPlan> PlanSegment(std::span<const BatchForm> forms,
                                  uint32_t slot_count, uint32_t seats,
                                  uint32_t bank_slots);

// A mapping of a memfd, through Boost.Interprocess.
class Mapping {
 public:
  static StatusOr<Mapping> Map(int fd, uint64_t bytes, bool writable);
  std::byte* data() const {
    return static_cast<std::byte*>(region_.get_address());
  }
  uint64_t bytes() const { return region_.get_size(); }

 private:
  boost::interprocess::mapped_region region_;
};

// The broker's side. Creation is not thread-safe; for the memory see ring.h.
class Segment {
 public:
  // The header is complete and ready; slots are not yet populated.
  static StatusOr<std::unique_ptr<Segment>> Create(const SegmentPlan& plan,
                                                   uint64_t broker_instance_id,
                                                   uint64_t job_id);
  int fd() const { return fd_.get(); }
  const SegmentPlan& plan() const { return plan_; }
  std::byte* base() const { return mapping_.data(); }
  Ring& ring(uint32_t seat) const;
  uint64_t slot_offset(uint32_t slot) const {
    return plan_.slots_offset +
           SlotOffset(plan_.bank_slots, plan_.slot_stride, slot);
  }
  // The rows of a slot whose batch has this form.
  SlotRows rows(uint32_t slot, const ElementSpec& element) const;
  int64_t* ids(uint32_t slot) const;
  std::byte* feature(uint32_t slot, size_t index) const;

 private:
  Segment(SegmentPlan plan, Fd fd, Mapping mapping)
      : plan_(std::move(plan)),
        fd_(std::move(fd)),
        mapping_(std::move(mapping)) {}
  SegmentPlan plan_;
  Fd fd_;
  Mapping mapping_;
};

// A rank's side, read-only. Checks seals, size and a copy of the header before
// it trusts anything else.
class SegmentView {
 public:
  // FailedPrecondition: another layout version, names both; Internal: not a
  // segment.
  static StatusOr<std::unique_ptr<SegmentView>> Open(int fd,
                                                     uint32_t feature_count);
  const Ring& ring(uint32_t seat) const;
  // Whether a cell names a slot of this segment that can hold its rows.
  bool Valid(const Cell& cell) const;
  const int64_t* ids(const Cell& cell) const;
  const std::byte* feature(const Cell& cell, size_t index) const;
  uint32_t seats() const { return plan_.seats; }
  uint64_t broker_instance_id() const { return broker_instance_id_; }
  std::span<std::byte> memory() const {
    return {mapping_.data(), mapping_.bytes()};
  }
  uint64_t slot_bytes() const { return plan_.slot_stride; }
  uint64_t feature_bytes(size_t index) const {
    return plan_.FeatureBytes(index);
  }

 private:
  SegmentView(SegmentPlan plan, Mapping mapping)
      : plan_(std::move(plan)), mapping_(std::move(mapping)) {}
  SegmentPlan plan_;
  Mapping mapping_;
  uint64_t broker_instance_id_ = 0;
};

// ---- the cursor page, for the other direction ------------------------------

// A rank's page; the rank creates, maps and seals it.
struct OwnedCursor {
  Fd fd;
  Mapping mapping;
  CursorPage& page() const {
    return *reinterpret_cast<CursorPage*>(mapping.data());
  }
};
StatusOr<OwnedCursor> CreateCursor();

// The broker's read-only view of it. InvalidArgument: not a sealed memfd of one
// page; FailedPrecondition: another layout version.
StatusOr<Mapping> OpenCursor(int fd);
// Equal for two descriptors of the same cursor page, whoever sent them. 0:
// unknown.
uint64_t CursorInode(int fd);

}  // namespace penstock
#endif  // COMMON_SEGMENT_H_
