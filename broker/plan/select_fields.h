// Fields that several steps of `select` declare.
#ifndef BROKER_PLAN_SELECT_FIELDS_H_
#define BROKER_PLAN_SELECT_FIELDS_H_

#include <cstdint>
#include <string>

#include "broker/declare/declaration.h"
#include "broker/plan/mix.h"

namespace penstock {

// The largest number of parts, or of times, that a step may name.
inline constexpr uint32_t kPartsMax = uint32_t{1} << 20;

ValueType<uint64_t> Seeds();
ValueType<std::string> ColumnName();
// Weights by value of a column, 0 to 10^6; none are left out.
ValueType<FeatureValues<double>> WeightsOfValues();
ValueType<WhenOut> WhenOutWords();

}  // namespace penstock
#endif  // BROKER_PLAN_SELECT_FIELDS_H_
