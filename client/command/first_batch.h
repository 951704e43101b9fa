// The first batch of a dataset's first epoch, or from a state on, taken as rank
// 0 of 1; and the process for any such taking.
//
// A forked process takes it and the parent only waits, so that Ctrl-C ends it
// at any point.
#ifndef CLIENT_COMMAND_FIRST_BATCH_H_
#define CLIENT_COMMAND_FIRST_BATCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "client/penstock.h"
#include "client/private_broker/private_broker.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

struct JobToTake {
  // Either the path of a spec file, or the text of a spec.
  std::string dataset;
  std::string spec;
  std::string name;
  std::string state;  // "": from the beginning
};

// Whether steps begin only where the plan says: then a batch is made whole.
template <typename Json>
bool HasOwnSteps(const Json& spec) {
  const Json& batch = spec.at("batch");
  return batch.contains("buckets") || batch.contains("by_part") ||
         spec.value("shard", "") == "file";
}

// Batches of so many rows instead of the spec's; packed ones stay as they are.
template <typename Json>
void SetBatchSize(Json* spec, uint64_t rows) {
  Json& batch = (*spec)["batch"];
  Json pack = batch.value("pack", Json());
  batch = {{"size", rows}};
  if (!pack.is_null()) batch["pack"] = std::move(pack);
}

// The error of a call of the library that returned this code.
Status LibraryError(int code);
// Attaches as rank 0 of 1; to be detached.
StatusOr<penstock_reader*> AttachAlone(const std::string& socket,
                                       const JobToTake& job);
// The features of the batch's rows, as the library describes them; nullptr:
// of all batches' rows, with kAnySize where they differ.
ElementSpec FeaturesOf(const penstock_reader* reader,
                       const penstock_batch* batch);

// Runs `take` in a forked process, and tends the broker meanwhile. Errors:
// take's; Cancelled after a signal. penstockd is restarted when it dies.
StatusOr<std::string> InTakingProcess(
    PrivateBroker* broker, const std::function<StatusOr<std::string>()>& take);

// Runs in the forked process. What it returns is the result.
using UseBatch = std::function<StatusOr<std::string>(
    const ElementSpec& features, const penstock_batch* batch)>;

// Errors: those of penstock_attach and penstock_next, NotFound (the dataset has
// no whole batch), use's; Cancelled after a signal. penstockd is restarted when
// it dies meanwhile.
StatusOr<std::string> WithFirstBatch(PrivateBroker* broker,
                                     const JobToTake& job, const UseBatch& use);

}  // namespace penstock
#endif  // CLIENT_COMMAND_FIRST_BATCH_H_
