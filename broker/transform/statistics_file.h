// Statistics of a dataset, as `penstock analyze` writes them: what normalize
// and lookup are told with `from`.
#ifndef BROKER_TRANSFORM_STATISTICS_FILE_H_
#define BROKER_TRANSFORM_STATISTICS_FILE_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "broker/transform/map_file.h"
#include "common/status.h"

namespace penstock {

// Reads what the file says of a feature, with the access of opening, and notes
// the file there. Untrusted: what is in the object is not checked. Errors: the
// file's; InvalidArgument: it is none, or has no such feature. Statistics of
// other data are warned of.
StatusOr<nlohmann::json> StatisticsOf(const std::string& path,
                                      const std::string& feature,
                                      MapOpening* opening);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_STATISTICS_FILE_H_
