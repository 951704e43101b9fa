// The input is the text of a job's state (common/job_state.h), out of some
// trainer's checkpoint. What is read is written and read again as the same.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/job_state.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

void Check(const std::string& text) {
  const StatusOr<JobState> state = ParseJobState(text);
  if (!state.ok()) {
    Require(state.status().code() == StatusCode::kInvalidArgument ||
                state.status().code() == StatusCode::kFailedPrecondition,
            "a refusal is one of the two that are documented");
    return;
  }
  Require(state->owed.size() <= JobState::kOwedMax, "owed ranges are bounded");
  const StatusOr<JobState> again = ParseJobState(JobStateToJson(*state).dump());
  Require(again.ok(), "what was written is read");
  Require(*again == *state, "as the same state");
  Require(DifferingIdentity(*state, *again).empty(), "of the same data");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
