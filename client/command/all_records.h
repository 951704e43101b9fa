// Every record of a dataset, taken once from a private broker, as fast as its
// workers make them: what `analyze`, `filter` and `check --all` do.
#ifndef CLIENT_COMMAND_ALL_RECORDS_H_
#define CLIENT_COMMAND_ALL_RECORDS_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "client/command/spec_file.h"
#include "client/penstock.h"
#include "client/private_broker/private_broker.h"
#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

struct AllRecords {
  std::string socket;
  std::string spec;  // its text; one epoch
  std::string job;   // a name that no other job has
  uint64_t records = 0;
  std::string label;  // of the progress bar, "analyzing"
  // Told each record that is left out, before the batch behind it is taken, and
  // as often as it fails.
  std::function<void(uint64_t record, std::string message)> failed = nullptr;
  std::string state = {};  // of the job; "": from the beginning
};

// The spec in its canonical form. random: takes the steps of `map` that may
// make another row of a record in each epoch, functions left out.
StatusOr<nlohmann::ordered_json> ParsedSpec(
    PrivateBroker* broker, const SpecFile& file,
    std::set<uint64_t>* random = nullptr);

// What such a job has of its spec: one epoch in the order of the source, in
// batches of so many rows, and whatever cannot be read or made is left out.
void ReadAllOnce(nlohmann::ordered_json* spec, uint64_t batch_rows);

// begin: told the features of a row, first. add: of each batch; its error ends
// the taking. Returns what was left out (`on_error: skip`): count, kinds, the
// first of them. Runs in the process of InTakingProcess.
StatusOr<nlohmann::ordered_json> TakeAllRecords(
    const AllRecords& all,
    const std::function<void(const ElementSpec& features)>& begin,
    const std::function<Status(const penstock_batch* batch)>& add);

// Prints what was left out, if anything was. what: "left out of ...";
// could_not: "be read".
void ReportBroken(const nlohmann::ordered_json& broken, const std::string& what,
                  const std::string& could_not);
// Prints what the broker warns of.
void ReportWarning(const DatasetIndex& index);

// The messages of penstockd's log that these two tell.
inline constexpr std::initializer_list<const char*> kReported = {
    "job-warning", "sample-skipped", "sample-substituted"};

// With --json an error is told as JSON too.
StatusOr<int> WithJsonError(StatusOr<int> result, bool json);

// Rows of a batch of a sensible size.
uint64_t RowsAtOnce(const DatasetIndex& index);

}  // namespace penstock
#endif  // CLIENT_COMMAND_ALL_RECORDS_H_
