// What is known of records without reading them: `select` goes by it.
#ifndef BROKER_PLAN_COLUMNS_H_
#define BROKER_PLAN_COLUMNS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace penstock {

using ColumnValue = std::variant<int64_t, double, std::string>;

struct Column {
  std::string name;
  // The value of a record, by its number. Any thread.
  std::function<ColumnValue(uint64_t record)> value;
};
using Columns = std::vector<Column>;

}  // namespace penstock
#endif  // BROKER_PLAN_COLUMNS_H_
