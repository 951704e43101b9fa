// `select`: which records of a source a pass has. Each step makes an order of
// the one before it.
#ifndef BROKER_PLAN_SELECT_H_
#define BROKER_PLAN_SELECT_H_

#include <memory>
#include <string>
#include <vector>

#include "broker/plan/kinds.h"
#include "broker/plan/select_context.h"
#include "common/status.h"

namespace penstock {

template <typename V>
struct ValueType;

// The columns that it goes by.
std::vector<std::string> ColumnsOf(const SelectSpec& step);

// The file of records that it names; nullptr: it names none.
const std::string* FileOf(const SelectSpec& step);

// `select`, as a list.
inline constexpr char kSelectText[] =
    "which of them a pass has, in this order; all if there is none";
ValueType<std::vector<SelectSpec>> SelectSteps();

// Errors name the step: "select[1].skip: ...".
StatusOr<std::unique_ptr<Order>> Select(const std::vector<SelectSpec>& steps,
                                        std::unique_ptr<Order> of,
                                        const SelectContext& context = {});

}  // namespace penstock
#endif  // BROKER_PLAN_SELECT_H_
