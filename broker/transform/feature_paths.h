// The per-feature ops of a `map`, up to the next whole-row function or the end:
// what is done to each feature of a row.
//
// Immutable after Compile. All workers call Run concurrently, each with its own
// Scratch.
#ifndef BROKER_TRANSFORM_FEATURE_PATHS_H_
#define BROKER_TRANSFORM_FEATURE_PATHS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "broker/transform/kinds.h"
#include "broker/transform/map_file.h"
#include "broker/transform/step_clock.h"
#include "common/status.h"

namespace penstock {

class FeaturePaths {
 public:
  // A worker's buffers and decoder objects, for all paths: made once and reused
  // for every row, without allocation once warm. Not thread-safe.
  class Scratch {
   public:
    virtual ~Scratch() = default;
    StepClock* clock = nullptr;  // of the worker
  };
  static std::unique_ptr<Scratch> MakeScratch();

  virtual ~FeaturePaths() = default;

  // steps contains no function. InvalidArgument names the op by its path, what
  // it needs and what it found
  // ("map[2].normalize: feature 'image' is encoded; put decode_image before
  // it"). opening: for ops that read files; nullptr: as the broker.
  static StatusOr<std::unique_ptr<FeaturePaths>> Compile(
      std::span<const MapStep> steps, const RawSpec& raw,
      MapOpening* opening = nullptr);

  // The output features, in input order unless an op says otherwise. Features
  // that no op decodes stay encoded.
  virtual const RawSpec& out() const = 0;
  // The bytes of an output feature, which Run writes for raw.
  virtual uint64_t OutBytes(size_t feature, const RawRecord& raw) const = 0;
  // Whether the input feature of this number is the output feature of the same
  // number, unchanged. Run skips the copy if the bytes are
  // already at their destination.
  virtual bool Copies(size_t feature) const = 0;

  // Writes row features to out[i]: RowBytes() bytes, or the record's size if
  // encoded. DataLoss with the reason: the record is bad (truncated, not a
  // picture); out then holds garbage.
  virtual Status Run(const RawRecord& raw, const AugmentationKey& key,
                     Scratch& scratch,
                     std::span<std::byte* const> out) const = 0;

  // See RowProgram.
  virtual bool mixes_pairs() const = 0;
  virtual void MixPair(const AugmentationKey& pair,
                       std::span<std::byte* const> first,
                       std::span<std::byte* const> second) const = 0;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_FEATURE_PATHS_H_
