// Stage 3 of the flow, "decode/transform": a spec's `map` list, compiled once
// into the steps for every row.
//
// Immutable after Compile; all workers call Run concurrently, each with its own
// Scratch. The result for a row is a pure function of its raw bytes and of
// (seed, epoch, sample), independent of batch, rank, worker and time.
#ifndef BROKER_TRANSFORM_ROW_PROGRAM_H_
#define BROKER_TRANSFORM_ROW_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "broker/source/source.h"
#include "broker/transform/augmentation.h"
#include "broker/transform/kinds.h"
#include "broker/transform/map_file.h"
#include "broker/transform/row_function.h"
#include "broker/transform/step_clock.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

class RowProgram {
 public:
  // A worker's buffers, decoder objects and processes of Python functions: made
  // once, reused for every row. Not thread-safe.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };

  virtual ~RowProgram() = default;

  // Checks the list against the source's features. InvalidArgument names the op
  // by its path, what it needs and what it found ("map[2].normalize: feature
  // 'image' is encoded; put decode_image before it"). Loads the functions it
  // names, which may take as long as their import. Reads files as the opening
  // says, by default as the broker.
  // head: this many steps can be run alone, and the rest later: those that draw
  // no random numbers (draws.h), whose result is kept (broker/cache/), or those
  // that another host runs (job/remote_rows.h).
  static StatusOr<std::unique_ptr<RowProgram>> Compile(
      std::span<const MapStep> steps, const RawSpec& raw,
      const FunctionOptions& functions, MapOpening* opening,
      std::optional<size_t> head = std::nullopt);
  static StatusOr<std::unique_ptr<RowProgram>> Compile(
      const std::vector<TransformSpec>& map, const RawSpec& raw,
      const FunctionOptions& functions = {});

  // The features of a finished row: the source's in its order, or the last
  // function's outputs, and what ops have made of them.
  virtual const ElementSpec& element_spec() const = 0;

  // Whether the source's feature of this number is that of the row, unchanged.
  // Run skips the copy if the bytes are
  // already at their destination.
  virtual bool Copies(size_t feature) const = 0;

  // The longest time Run waits for other processes; 0: all work is on this
  // thread.
  virtual uint64_t wait_ns() const = 0;

  // What its functions say (RowFunction::made_by).
  virtual std::string made_by() const = 0;

  // cancelled is called now and then while Run waits for another process.
  // clock: that of the worker, which outlives it; nullptr: nobody measures.
  virtual std::unique_ptr<Scratch> MakeScratch(
      Cancelled cancelled, StepClock* clock = nullptr) const = 0;

  // Writes row features to out[i], element_spec()[i].RowBytes() bytes each,
  // aligned at least to the dtype. DataLoss with the reason: the record is bad
  // (truncated, not a JPEG) or a function failed; out then holds garbage.
  virtual Status Run(const RawRecord& raw, const AugmentationKey& key,
                     Scratch& scratch,
                     std::span<std::byte* const> out) const = 0;

  // Whether it ends by mixing rows in pairs (mixup.h): those that Run gave are
  // then not finished.
  virtual bool mixes_pairs() const = 0;
  // Mixes a row with its partner, both as Run wrote them. pair: see PairMix.
  virtual void MixPair(const AugmentationKey& pair,
                       std::span<std::byte* const> row,
                       std::span<std::byte* const> partner) const = 0;

  // ---- in two parts, if it was compiled with a head

  // The features that the head makes, which may be encoded still.
  virtual const RawSpec& head_spec() const = 0;
  // The first so many of the files that `opening` has got are the head's.
  virtual size_t head_files() const = 0;
  // Points *made at them: in raw, in out where the rest leaves them unchanged,
  // or in scratch. Errors as of Run.
  virtual Status RunHead(const RawRecord& raw, const AugmentationKey& key,
                         Scratch& scratch, std::span<std::byte* const> out,
                         RawRecord* made) const = 0;
  // What Run would have written.
  virtual Status RunRest(const RawRecord& made, const AugmentationKey& key,
                         Scratch& scratch,
                         std::span<std::byte* const> out) const = 0;

  // ---- several rows at once, if the first function takes them in one call

  enum class Several {
    kNever,
    kInHead,
    kInRest,  // or there is no head
  };
  virtual Several SeveralIn(Scratch& scratch) const = 0;
  // Does what comes before the function. in: as of RunHead, or of RunRest if it
  // is in the rest. Errors as of Run; the row is then none of them.
  virtual Status Add(const RawRecord& in, const AugmentationKey& key,
                     Scratch& scratch) const = 0;
  // They are enough for a call.
  virtual bool IsFull(Scratch& scratch) const = 0;
  // Calls the function with all that were added; if that fails, with each
  // alone.
  virtual void CallAdded(Scratch& scratch) const = 0;
  // Ends the row that was added as number `row`: does what RunHead would have,
  // or Run and RunRest.
  virtual Status FinishHead(size_t row, const AugmentationKey& key,
                            Scratch& scratch, std::span<std::byte* const> out,
                            RawRecord* made) const = 0;
  virtual Status Finish(size_t row, const AugmentationKey& key,
                        Scratch& scratch,
                        std::span<std::byte* const> out) const = 0;
  virtual void Forget(Scratch& scratch) const = 0;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_ROW_PROGRAM_H_
