// A job's mix: with which parts and weights it goes on from a state, which may
// have others, and what each part has given so far.
#ifndef BROKER_JOB_MIX_PARTS_H_
#define BROKER_JOB_MIX_PARTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "broker/job/dataset.h"
#include "broker/job/job_options.h"
#include "broker/plan/plan.h"

namespace penstock {

struct MixStart {
  // What states of the job say of it; nullopt: it has a schedule, or is no mix.
  std::optional<JobState::Mix> mix;
  // Changes of its weights, of the state or by the spec.
  std::vector<WeightsChange> changes;
  // Its parts are others than those of the state, or begin where they are.
  bool parts_changed = false;
  std::string news;  // how, for people
};

// What the mix of a spec goes on with. order: the spec's. FailedPrecondition:
// its parts are others, and the state owes rows, or the rest of it is another;
// InvalidArgument: data of a part have changed, a place where parts cannot
// change, errors of Mix. Errors name the part.
StatusOr<MixStart> StartOfMix(const JobOptions& options,
                              const DatasetSpec& spec, const Dataset& dataset,
                              const Order& order, uint32_t world_size,
                              const OrderBudget& budget);

// The plan of an order, which is this mix.
StatusOr<Plan> PlanOfMix(const MixStart& start, const JobOptions& options,
                         const DatasetSpec& spec,
                         std::shared_ptr<const Order> order,
                         uint32_t world_size, const OrderBudget& budget);

// Gives the mix of a spec other weights.
void SetWeights(const std::vector<double>& weights, DatasetSpec* spec);

// `parts` of the status: before a position of a plan whose order is a mix.
// begun: where the job began.
nlohmann::json MixPartsJson(const DatasetSpec& spec, const Dataset& dataset,
                            const std::optional<JobState::Mix>& mix,
                            const Plan& plan, uint64_t begun,
                            uint64_t position);

}  // namespace penstock
#endif  // BROKER_JOB_MIX_PARTS_H_
