// What an epoch of a dataset reads from object stores, for `penstock check` and
// `explain`.
#ifndef BROKER_JOB_REMOTE_DATA_H_
#define BROKER_JOB_REMOTE_DATA_H_

#include <nlohmann/json_fwd.hpp>

#include "broker/job/dataset.h"
#include "broker/plan/plan.h"

namespace penstock {

// `remote` of the answer to `index`; null: nothing is remote. The size of a row
// is a mean over some rows of the plan.
nlohmann::json RemoteDataJson(const Dataset& dataset, const Plan& plan);

}  // namespace penstock
#endif  // BROKER_JOB_REMOTE_DATA_H_
