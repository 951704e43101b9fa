// Stage 3 of the flow, "decode/transform": a spec's `map` list compiled once
// into what is done to every row.
//
// Immutable after Compile; Run is called by all workers at once, each with its
// own Scratch. What a row becomes is a pure function of its raw bytes and of
// (seed, epoch, sample): it does not depend on batch, rank, worker or time.
#ifndef BROKER_TRANSFORM_ROW_PROGRAM_H_
#define BROKER_TRANSFORM_ROW_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "broker/transform/row_function.h"
#include "common/dataset_spec.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

class RowProgram {
 public:
  // A worker's buffers, decoder objects and processes of Python functions: made
  // once, reused for every row. One thread at a time.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };

  virtual ~RowProgram() = default;

  // Checks the list against what the source gives: InvalidArgument names the
  // op by its number and says what it wanted and what it found ("map[2]
  // normalize: feature 'image' is encoded; put decode_image before it"). Tries
  // the functions it names: may take as long as they are to import.
  static StatusOr<std::unique_ptr<RowProgram>> Compile(
      const std::vector<TransformSpec>& map, const RawSpec& raw,
      const FunctionOptions& functions = {},
      const RowFunction::Cancelled& cancelled = {});

  // The features of a finished row: the source's, in its order, or those that
  // the last function returns.
  virtual const ElementSpec& element_spec() const = 0;

  // Whether a feature is copied as it is. Run does not copy what is in its
  // place already.
  virtual bool Copies(size_t feature) const = 0;

  // The longest that Run waits for other processes; 0: it is the thread's own
  // work.
  virtual uint64_t wait_ns() const = 0;

  // cancelled is asked now and then while Run waits for another process.
  virtual std::unique_ptr<Scratch> MakeScratch(
      RowFunction::Cancelled cancelled) const = 0;

  // Writes row features to out[i], element_spec()[i].RowBytes() bytes each, no
  // alignment promised beyond the dtype's. DataLoss: the record is not what it
  // should be (truncated, not a JPEG, or a function failed), says why; out then
  // holds garbage.
  virtual Status Run(const RawRecord& raw, const AugmentationKey& key,
                     Scratch& scratch,
                     std::span<std::byte* const> out) const = 0;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_ROW_PROGRAM_H_
