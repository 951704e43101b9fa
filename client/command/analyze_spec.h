// The spec that `penstock analyze` reads a dataset with: all records once, in
// their order, each feature as its first step with `from` finds it.
#ifndef CLIENT_COMMAND_ANALYZE_SPEC_H_
#define CLIENT_COMMAND_ANALYZE_SPEC_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/status.h"

namespace penstock {

struct AnalyzedSpec {
  nlohmann::ordered_json spec;
  std::vector<size_t> steps;  // of each step of its `map`: the number it had
};

// What is analyzed of a canonical spec. FailedPrecondition: its values are in
// the spec itself (tensors), or a function takes what statistics are to make.
StatusOr<AnalyzedSpec> SpecToAnalyze(const nlohmann::ordered_json& spec,
                                     uint64_t batch_rows);

}  // namespace penstock
#endif  // CLIENT_COMMAND_ANALYZE_SPEC_H_
