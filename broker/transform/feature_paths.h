// The ops of a `map` that are about one feature each, up to the next function
// of whole rows or the end: what is done to each feature of a row.
//
// Immutable after Compile; Run is called by all workers at once, each with its
// own Scratch.
#ifndef BROKER_TRANSFORM_FEATURE_PATHS_H_
#define BROKER_TRANSFORM_FEATURE_PATHS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "common/dataset_spec.h"
#include "common/status.h"

namespace penstock {

class FeaturePaths {
 public:
  // A worker's buffers and decoder objects, for all paths: made once, reused
  // for every row, no allocation per row once warm. One thread at a time.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };
  static std::unique_ptr<Scratch> MakeScratch();

  virtual ~FeaturePaths() = default;

  // ops: none is a function; the first is number `first` of the map.
  // InvalidArgument names the op by its number and says what it wanted and what
  // it found ("map[2] normalize: feature 'image' is encoded; put decode_image
  // before it").
  static StatusOr<std::unique_ptr<FeaturePaths>> Compile(
      std::span<const TransformSpec> ops, size_t first, const RawSpec& raw);

  // The features that come out, in the order in which they go in. What no op
  // decodes is encoded as before.
  virtual const RawSpec& out() const = 0;
  // Whether a feature is copied as it is. Run does not copy what is in its
  // place already.
  virtual bool Copies(size_t feature) const = 0;

  // Writes row features to out[i]: RowBytes() bytes, or as many as the record
  // has where it is encoded. DataLoss: the record is not what it should be
  // (truncated, not a JPEG), says why; out then holds garbage.
  virtual Status Run(const RawRecord& raw, const AugmentationKey& key,
                     Scratch& scratch,
                     std::span<std::byte* const> out) const = 0;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_FEATURE_PATHS_H_
