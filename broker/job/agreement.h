// What all hosts of a job must have alike: each one's broker makes the shares
// of its own ranks of a plan that it computes for itself, so hosts with other
// files, specs or versions would deliver rows twice and others never. Ranks
// compare it once, when they attach (client/README.md).
//
// Two levels, so that what is compared is small: named parts whose long values
// are digests, and what a part consists of, which is asked for only where a
// part differs.
#ifndef BROKER_JOB_AGREEMENT_H_
#define BROKER_JOB_AGREEMENT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "broker/job/dataset.h"
#include "broker/job/job_options.h"
#include "common/status.h"

namespace penstock {

class Agreement {
 public:
  // A value of more bytes is told as its digest.
  static constexpr size_t kValueBytesMax = 64;
  // What a part has of its value, of the name of each file, and how many files
  // or digests of files it lists.
  static constexpr size_t kPartBytesMax = 16'384;
  static constexpr size_t kNameBytesMax = 200;
  static constexpr uint64_t kFanOut = 64;

  // weights: changes of those of its mix before the job began. Takes a pass
  // over the index.
  Agreement(const JobOptions& options, const Dataset& dataset,
            const std::vector<WeightsChange>& weights);

  // [[name, value or "#" and its digest], ...], the first that differs being
  // the one to be told.
  nlohmann::json Parts() const;
  // A part's whole value, {"text": ...}; of "files FIRST COUNT" these files, in
  // the order of the dataset: {"files": how many there are in all, "digests":
  // of kFanOut equal shares of them} or, of up to kFanOut, {"files": ...,
  // "names": [[name, bytes], ...]}. InvalidArgument: there is no such part.
  StatusOr<nlohmann::json> Part(const Dataset& dataset,
                                const std::string& name) const;

 private:
  std::vector<std::pair<std::string, std::string>> parts_;
};

}  // namespace penstock
#endif  // BROKER_JOB_AGREEMENT_H_
