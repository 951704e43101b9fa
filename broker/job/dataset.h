// An opened dataset: its source and its compiled transforms, shared by every
// job that consumes it.
//
// Opened on a thread of its own (indexing a large folder takes minutes), then
// constant.
#ifndef BROKER_JOB_DATASET_H_
#define BROKER_JOB_DATASET_H_

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "broker/cache/shared_caches.h"
#include "broker/job/packed_rows.h"
#include "broker/plan/buckets.h"
#include "broker/plan/packing.h"
#include "broker/plan/plan.h"
#include "broker/source/selection.h"
#include "broker/spec/dataset_spec.h"
#include "broker/transform/row_program.h"
#include "common/status.h"

namespace penstock {

// Contains nothing of a job: jobs with other seeds or batches share it.
struct Dataset {
  std::unique_ptr<Source> source;
  // One for all rows, or by part of the source (map_by_part).
  std::vector<std::unique_ptr<RowProgram>> programs;
  // The files that steps of the maps read.
  std::vector<std::shared_ptr<const SideFile>> files;
  std::string map_warning;
  Selection selection;
  // batch.buckets: its rows in buckets, nullptr without; and what a row of each
  // has: room for the longest lists of its bucket.
  std::shared_ptr<const Buckets> buckets;
  std::vector<ElementSpec> bucket_specs;
  // batch.pack: its sequences, which are the rows of the plan, and what a row
  // has; nullptr without.
  std::shared_ptr<const Packing> packing;
  std::unique_ptr<const PackedRows> packed_rows;
  // The cache of what the heads of the programs make; nullptr: nothing is kept.
  // It counts its memory itself.
  std::shared_ptr<RowCache> cache;
  std::string cache_warning;
  // Files that are read from local copies, and what these take.
  uint64_t copied_files = 0;
  uint64_t copied_bytes = 0;
  // Files of object stores, what they have, and by where their indexes are
  // from: the cache folder, beside them, or a scan of so many bytes.
  struct RemoteFiles {
    uint64_t files = 0;
    uint64_t bytes = 0;
    uint64_t kept = 0;
    uint64_t beside = 0;
    uint64_t scanned = 0;
    uint64_t scanned_bytes = 0;
  };
  RemoteFiles remote;

  // As of a source, with those files.
  bool Changed() const;
  uint64_t memory_bytes() const;
  std::string fingerprint() const;
  std::string warning() const;
  // Files of kept records, at any depth.
  FileDigests FilesOfSelection() const;

  // The number of the program that makes a record.
  size_t ProgramOf(uint64_t record) const {
    return programs.size() == 1 ? 0 : source->PartOf(record);
  }
  // The features of a row of a batch. part: of a batch, if its batches are of
  // one part or bucket; else all have the same shapes.
  const ElementSpec& element_spec(
      std::optional<uint32_t> part = std::nullopt) const {
    if (packed_rows != nullptr) return packed_rows->element_spec();
    if (part && !bucket_specs.empty()) return bucket_specs[*part];
    return programs[programs.size() == 1 ? 0 : part.value_or(0)]
        ->element_spec();
  }
  // Parts or buckets that batches may be of.
  size_t forms() const {
    if (packed_rows != nullptr) return 1;
    return bucket_specs.empty() ? programs.size() : bucket_specs.size();
  }
  // Whether the rows of its parts or buckets differ in their shapes.
  bool ShapesDiffer() const;
  // Adds element_spec, and those of each part if they differ, as the answers to
  // `attach` and `inspect` have them.
  void DescribeRows(nlohmann::json* answer) const;
  // Its one feature is a value for all rows of a batch, which one worker makes.
  bool of_batches() const { return element_spec()[0].room > 0; }
  // The rows of all programs are then mixed in pairs.
  bool mixes_pairs() const { return programs[0]->mixes_pairs(); }

  // The longest that a row waits for other processes; 0: workers make it alone.
  uint64_t wait_ns() const;

  // The feature that is read directly into its row of the slot.
  std::optional<size_t> FeatureReadInPlace() const;
};

// Specs with the same key share an opened dataset: their source, maps and
// cache, batches of parts, buckets, packing and its shuffle, and their
// selection if a file belongs to it or buckets or sequences are made of it;
// else only the columns that it goes by.
std::string DatasetKey(const DatasetSpec& spec);

// The order of the spec's rows. shards: the number of ranks that files (`shard:
// file`), steps of buckets, or samples of Megatron's `cyclic` were first
// divided over. May take a pass over the index.
StatusOr<std::shared_ptr<const Order>> OrderOf(const DatasetSpec& spec,
                                               const Dataset& dataset,
                                               uint32_t shards,
                                               const OrderBudget& budget = {});
// The plan of these rows for so many ranks. Errors: also those of Plan::Make.
StatusOr<Plan> PlanOf(const DatasetSpec& spec, const Dataset& dataset,
                      uint32_t world_size, uint32_t shards,
                      const OrderBudget& budget = {});

// Rows of a step, of all ranks together, or under `shard: off` of each.
uint64_t GlobalBatchOf(const DatasetSpec& spec, uint32_t world_size);

// A digest of which records a pass has in which order: of `select`, of how a
// source is made of others, of windows. "": all of one source.
std::string SelectionOf(const DatasetSpec& spec, const Dataset& dataset);
// The same of a mix, but for its parts and their weights.
std::string RuleOf(const DatasetSpec& spec, const Dataset& dataset);

// The dataset is made by functions of users, in Python or C, at least in part.
bool RunsFunctions(const DatasetSpec& spec);

// Errors: those of OpenSource and RowProgram::Compile, plus the dataset's name.
StatusOr<std::shared_ptr<const Dataset>> OpenDataset(
    const DatasetSpec& spec, const FunctionOptions& functions,
    OpenProgress* progress, const CacheHost& host = {});

}  // namespace penstock
#endif  // BROKER_JOB_DATASET_H_
