// The dataset spec: source, order, transforms and batches, written in YAML
// (JSON is YAML). Parsing is strict: an unknown key, a wrong type or a value
// out of range is an error with line and column.
#ifndef BROKER_SPEC_DATASET_SPEC_H_
#define BROKER_SPEC_DATASET_SPEC_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/cache/cache_spec.h"
#include "broker/plan/plan_spec.h"
#include "broker/plan/select.h"
#include "broker/source/kinds.h"
#include "broker/transform/kinds.h"
#include "common/status.h"

namespace penstock {

// What a spec was read from, for errors that are found later. It is no part of
// what the spec means: all are equal.
struct SpecText {
  std::string file;  // "": a program wrote the text
  std::shared_ptr<const std::string> text;
  bool operator==(const SpecText&) const { return true; }
};

enum class OnError { kFail, kSkip, kSubstitute };

// How `split` divides the data, by tf.data's names.
enum class ShardPolicy { kAuto, kFile, kData, kOff };

struct DatasetSpec : PlanSpec {
  std::string name;
  SourceSpec source;
  std::vector<SelectSpec> select;
  uint64_t seed = 0;  // of augmentation; default: shuffle's
  // Maps of the parts of the source; none: `map` alone. They come before `map`.
  std::vector<std::vector<TransformSpec>> map_by_part;
  std::vector<TransformSpec> map;
  std::optional<CacheSpec> cache;  // this, or a snapshot
  std::optional<SnapshotSpec> snapshot;
  // Finished batches per rank; nothing: as many as it needs (job/prefetch.h).
  std::optional<uint32_t> prefetch;
  // Batches a rank may hold at once: the loop's current one, one that the loop
  // keeps, and the one being requested.
  uint32_t hold = 3;
  OnError on_error = OnError::kFail;
  ShardPolicy shard = ShardPolicy::kAuto;
  // Its rows are those that a process asks for, by their numbers, in that order
  // (job/asked_rows.h).
  bool asked = false;
  SpecText written;

  // Compiled once: they are of every kind of source and of step, some 70 types,
  // and cost seconds of each file that would compile them.
  DatasetSpec();
  ~DatasetSpec();
  DatasetSpec(const DatasetSpec&);
  DatasetSpec(DatasetSpec&&) noexcept;
  DatasetSpec& operator=(const DatasetSpec&);
  DatasetSpec& operator=(DatasetSpec&&) noexcept;
  bool operator==(const DatasetSpec&) const;

  static const Declaration<DatasetSpec>& Declared();
};

// Parses and checks text. Error messages start with file ("train.yaml:7:3:
// unknown key 'shufle'; did you mean 'shuffle'?"). file "": a program wrote the
// text, and errors name the key's path ("spec: map[0].cast.dtype: ...").
// Relative paths are resolved against base_dir. Opens no file: only the text is
// checked. Errors: InvalidArgument only.
StatusOr<DatasetSpec> ParseDatasetSpec(std::string_view text,
                                       const std::string& file,
                                       const std::string& base_dir);

// Megatron's sampler `cyclic` decides the order of its samples.
bool IsCyclic(const DatasetSpec& spec);

// How many lists of steps it has: one, or one for each part.
size_t MapsOf(const DatasetSpec& spec);
// The steps of the rows of a part (< MapsOf): its own, then those of `map`.
// They point into the spec.
std::vector<MapStep> MapOf(const DatasetSpec& spec, size_t part);
// One more than the largest number of a step.
size_t StepNumbers(const DatasetSpec& spec);

// The steps of `map` whose rows are kept, after those of each part; nullopt:
// none are.
std::optional<size_t> KeptSteps(const DatasetSpec& spec);

// Every field, defaults included, in a fixed order. Two specs describe the same
// dataset if and only if their JSON is equal.
nlohmann::ordered_json DatasetSpecToJson(const DatasetSpec& spec);
// Parses the text of that JSON, from the journal. It may be longer than the
// text of any spec, whose numbers may be shorter.
StatusOr<DatasetSpec> ParseJournaledSpec(std::string_view json);

// An error of opening the dataset, with where the spec has what it is of
// ("train.yaml:7:5: map[2].rotate: ..."), or else the dataset's name.
Status Located(const DatasetSpec& spec, const Status& status);

// The first differing field with both values ("batch.size: 256 here, 128
// there"), or "" if the specs are equal.
std::string DifferingField(const DatasetSpec& here, const DatasetSpec& there);

}  // namespace penstock
#endif  // BROKER_SPEC_DATASET_SPEC_H_
