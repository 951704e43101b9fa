// Defines every byte that the broker and a rank share.
//
// A segment: the broker writes it; ranks read it and cannot map it writable.
//
//   byte 0       SegmentHeader   one page, written once; `ready` last
//   byte 4096    Ring[seats]     one per local rank, see ring.h
//   slots_offset slots           slot_count * slot_stride; each holds
//                                [ids int64 rows_max][feature 0][feature 1]...
//                                at the offsets in the header
//
// On a machine with several NUMA nodes the slots form banks: bank_slots
// contiguous slots on one node; each bank starts on a huge page.
//
// A cursor page: only its rank writes it; the broker reads it as untrusted
// input.
//
// Positions are byte offsets from the segment's base, never pointers, because
// each process maps it at its own address.
#ifndef COMMON_LAYOUT_H_
#define COMMON_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <type_traits>

#include "common/atomic.h"
#include "common/hash.h"

namespace penstock {

// Increment on any change to the size, offset or meaning of a field below.
inline constexpr uint32_t kLayoutVersion = 10;
inline constexpr uint64_t kSegmentMagic = 0x31474553'4b545350;  // "PSTKSEG1"
inline constexpr uint64_t kCursorMagic = 0x31525543'4b545350;   // "PSTKCUR1"
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
// Two cache lines, because x86 prefetches lines in pairs.
inline constexpr size_t kWriterSpacing = 128;

// Cells of a ring, one per batch; no fewer than a rank can have outstanding.
inline constexpr uint32_t kRingCells = 128;
// Batches of one rank that are published and not yet released: prefetch + hold.
inline constexpr uint32_t kLeasesMax = 128;
inline constexpr uint32_t kFeaturesMax = 64;
// Ranks of one job on one host. Each may have a successor while its evicted
// process is still alive.
inline constexpr uint32_t kLocalRanksMax = 1024;
inline constexpr uint32_t kSeatsMax = 2 * kLocalRanksMax;

// Why a ring gets no more cells. The order matters: from kRecalled on,
// published cells that were not taken are void.
enum class Closed : uint32_t {
  kOpen = 0,
  kFinished = 1,  // the data have ended; take what was published
  kFailed = 2,    // the job failed: Ring::code and reason say why; likewise
  kRecalled = 3,  // evicted or fenced; Ring::reason says why
  kEvicted = 4,   // as kRecalled, for good: Ring::code says why too
};

enum CellFlags : uint32_t {
  kLastOfEpoch = 1,
  kRedelivered = 4,  // another rank, now gone, took and did not release it
  // Made outside the order of positions: does not advance the rank's position.
  kExtra = 8,
  // From this batch on the job has different ranks: a `ranks` event with the
  // same phase accompanies it.
  kRanksChanged = 16,
};
// Bits of Cell::flags: one more than the part of the source that all rows are
// of; 0: of any.
inline constexpr uint32_t kPartShift = 6;
inline constexpr uint32_t kPartMask = 0x3ff;
// The upper half of Cell::flags: how often, modulo 2^16, the job's ranks had
// changed when the step was planned.
inline constexpr uint32_t kPhaseShift = 16;

// Identifies the step of a batch: the position, below 2^54, and above it the
// phase. Batches left by a rank that is gone are redelivered in the next phase
// at the same position. There are at most as many phases as local ranks.
inline constexpr uint32_t kPositionBits = 54;
constexpr uint64_t StepId(uint64_t position, uint32_t phase) {
  return position | uint64_t{phase} << kPositionBits;
}
constexpr uint64_t PositionOfStep(uint64_t id) {
  return id & ((uint64_t{1} << kPositionBits) - 1);
}
constexpr uint32_t PhaseOfStep(uint64_t id) {
  return static_cast<uint32_t>(id >> kPositionBits);
}

inline constexpr uint64_t kLeftOutMax = UINT16_MAX;

// The description of a batch.
struct BatchCell {
  uint64_t slot_offset;  // of the slot, from the segment's base
  uint16_t lease;        // < kLeasesMax
  uint16_t left_out;  // rows that on_error: skip left out, kLeftOutMax at most
  uint32_t flags;     // CellFlags
  uint32_t rows;      // batch dimension, padding included
  uint32_t valid_rows;   // samples among them
  uint32_t global_rows;  // plan rows of the global batch
  uint32_t skipped;      // batches this rank missed just before this one (lag)
  uint64_t epoch;        // from 0
  uint64_t step_in_epoch;  // from 0
  // The position of the global batch's first row: epoch * rows of an epoch +
  // row in the epoch.
  uint64_t position;
};

inline std::optional<uint32_t> PartOf(const BatchCell& cell) {
  const uint32_t part = cell.flags >> kPartShift & kPartMask;
  return part == 0 ? std::nullopt : std::optional(part - 1);
}

// The copy of one published batch. generation: number of batches in the ring
// including this one, stored in released later; at 1M batches/s it wraps after
// 580,000 years.
struct Cell : BatchCell {
  uint64_t generation;
};

// A batch in one cache line with the number that publishes it, which is stored
// last: a rank that polls for the next batch polls the line it will read.
struct alignas(64) RingCell {
  Atomic<uint64_t> generation;
  BatchCell batch;
};

struct Ring {
  alignas(kWriterSpacing) Atomic<uint32_t> closed;  // Closed
  // The broker waits for this rank to release: the rank sends a wake then.
  Atomic<uint32_t> broker_waiting;
  // Written before closed:
  int32_t code;      // kFailed: StatusCode
  uint32_t skipped;  // kFinished: batches missed that no cell reports
  alignas(kWriterSpacing) char reason[1024];  // for people; NUL-terminated
  alignas(kWriterSpacing) RingCell cells[kRingCells];
};

struct SegmentHeader {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t page_bytes;
  uint64_t layout_hash;  // kLayoutHash, over all sizes and offsets
  uint64_t segment_bytes;
  uint64_t broker_instance_id;  // random ID of the broker instance
  uint64_t job_id;              // unique within the broker instance
  uint32_t seats;
  uint32_t slot_count;
  uint64_t rings_offset;
  uint64_t ring_stride;
  uint64_t slots_offset;
  uint64_t slot_stride;
  uint64_t rows_max;    // capacity of a slot
  uint64_t ids_offset;  // within a slot
  uint32_t feature_count;
  uint32_t bank_slots;                    // 0: all slots are contiguous
  uint64_t feature_offset[kFeaturesMax];  // within a slot
  Atomic<uint32_t> ready;                 // 1, stored last
};

// Distance from one bank to the next.
constexpr uint64_t BankStride(uint32_t bank_slots, uint64_t slot_stride) {
  return (bank_slots * slot_stride + kHugePageBytes - 1) / kHugePageBytes *
         kHugePageBytes;
}
// Offset of a slot from slots_offset.
constexpr uint64_t SlotOffset(uint32_t bank_slots, uint64_t slot_stride,
                              uint32_t slot) {
  if (bank_slots == 0) return slot * slot_stride;
  return slot / bank_slots * BankStride(bank_slots, slot_stride) +
         slot % bank_slots * slot_stride;
}

// The rank's record of one lease. It may be read when broker and rank are both
// gone, so it must be self-contained.
struct LeaseRecord {
  Atomic<uint64_t> generation;  // last taken; held while it differs
  Atomic<uint64_t> step;        // StepId of that batch
};

// Progress of a rank's attach; never goes back.
enum class RankStage : uint32_t {
  kAsks,
  kAnswered,  // has the broker's answer and continues with this page
  kLeft,      // detached, even if no broker was there to receive it
  kFinished,  // detached, having been told the end of the data
};

struct CursorPage {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t reserved;
  uint64_t layout_hash;
  alignas(kWriterSpacing) Atomic<uint64_t> taken;
  // Where the rank continues: the end of what it took, without kExtra batches.
  Atomic<uint64_t> position;
  // The rank sleeps or is about to: the broker sends a wake after publishing.
  // On a line apart from taken: every publish reads it, and a take would have
  // to get its line back.
  alignas(kWriterSpacing) Atomic<uint32_t> waiting;
  Atomic<uint32_t> stage;  // RankStage
  // Stall counters, written by the rank for `penstock status`; never trusted.
  alignas(kWriterSpacing) Atomic<uint64_t> waits;
  Atomic<uint64_t> wait_ns;
  // Generation last released, per lease. On lines apart from those above: any
  // thread of the rank releases.
  alignas(kWriterSpacing) Atomic<uint64_t> released[kLeasesMax];
  // Apart from released, which the broker reads all the time. It reads these
  // only when the rank is dead, so that a take already owns their lines.
  alignas(kWriterSpacing) LeaseRecord leases[kLeasesMax];
};
inline constexpr uint64_t kCursorBytes = kPageBytes;

static_assert(sizeof(BatchCell) == 56);
static_assert(sizeof(RingCell) == 64);
static_assert(std::is_trivially_copyable_v<Cell>);
static_assert(offsetof(RingCell, batch) == 8);
static_assert(offsetof(Ring, code) == 8 && offsetof(Ring, skipped) == 12);
static_assert(offsetof(Ring, reason) == kWriterSpacing);
static_assert(offsetof(Ring, cells) == kWriterSpacing + 1024);
static_assert(sizeof(Ring) == 9344);
static_assert(offsetof(SegmentHeader, bank_slots) == 108);
static_assert(offsetof(SegmentHeader, feature_offset) == 112);
static_assert(offsetof(SegmentHeader, ready) == 624);
static_assert(sizeof(SegmentHeader) <= kPageBytes);
static_assert(offsetof(CursorPage, taken) == 128);
static_assert(offsetof(CursorPage, waiting) == 256);
static_assert(offsetof(CursorPage, waits) == 384);
static_assert(offsetof(CursorPage, released) == 512);
static_assert(offsetof(CursorPage, leases) == 1536);
static_assert(sizeof(LeaseRecord) == 16);
static_assert(sizeof(CursorPage) == 3584 && sizeof(CursorPage) <= kCursorBytes);
static_assert(Atomic<uint64_t>::is_always_lock_free &&
                  Atomic<uint32_t>::is_always_lock_free,
              "a lock hidden in std::atomic would be private to one process");

namespace internal {
constexpr uint64_t HashOffsets(std::initializer_list<uint64_t> values) {
  uint64_t hash = kFnv1aBasis;
  for (uint64_t value : values) {
    for (int i = 0; i < 8; ++i, value >>= 8) {
      hash = Fnv1aByte(hash, static_cast<uint8_t>(value));
    }
  }
  return hash;
}
}  // namespace internal

// Must be equal on both sides before memory is shared: detects a build with
// another compiler or another struct under the same version number.
inline constexpr uint64_t kLayoutHash =
    internal::HashOffsets({kLayoutVersion,
                           kPageBytes,
                           kRingCells,
                           kLeasesMax,
                           kFeaturesMax,
                           sizeof(RingCell),
                           offsetof(RingCell, generation),
                           offsetof(BatchCell, lease),
                           offsetof(BatchCell, left_out),
                           offsetof(BatchCell, flags),
                           offsetof(BatchCell, rows),
                           offsetof(BatchCell, valid_rows),
                           offsetof(BatchCell, epoch),
                           offsetof(BatchCell, step_in_epoch),
                           offsetof(BatchCell, global_rows),
                           offsetof(BatchCell, skipped),
                           offsetof(BatchCell, position),
                           sizeof(Ring),
                           offsetof(Ring, closed),
                           offsetof(Ring, broker_waiting),
                           offsetof(Ring, code),
                           offsetof(Ring, skipped),
                           offsetof(Ring, reason),
                           offsetof(Ring, cells),
                           sizeof(SegmentHeader),
                           offsetof(SegmentHeader, broker_instance_id),
                           offsetof(SegmentHeader, seats),
                           offsetof(SegmentHeader, rings_offset),
                           offsetof(SegmentHeader, slots_offset),
                           offsetof(SegmentHeader, rows_max),
                           offsetof(SegmentHeader, feature_offset),
                           offsetof(SegmentHeader, ready),
                           sizeof(CursorPage),
                           offsetof(CursorPage, taken),
                           offsetof(CursorPage, position),
                           offsetof(CursorPage, waiting),
                           offsetof(CursorPage, stage),
                           offsetof(CursorPage, waits),
                           offsetof(CursorPage, released),
                           offsetof(CursorPage, leases),
                           sizeof(LeaseRecord),
                           offsetof(LeaseRecord, generation),
                           offsetof(LeaseRecord, step)});

}  // namespace penstock
#endif  // COMMON_LAYOUT_H_
