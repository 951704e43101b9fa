// What a selection may go by and take, and what its steps ask of it. All that
// the header of a step needs.
#ifndef BROKER_PLAN_SELECT_CONTEXT_H_
#define BROKER_PLAN_SELECT_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "broker/plan/columns.h"
#include "broker/plan/order.h"
#include "common/status.h"

namespace penstock {

template <typename T>
class Declaration;

// What a selection may go by and take.
struct SelectContext {
  Columns columns;
  OrderBudget budget;
  // Features that are columns once records are read, for messages.
  std::vector<std::string> readable;
  // Whether the file that a step names has a record.
  std::function<bool(const std::string& file, uint64_t record)> file_has;
};

// InvalidArgument: there is no such column; the message lists those that are.
StatusOr<Column> FindColumn(const std::string& name,
                            const SelectContext& context);

std::string TextOf(const ColumnValue& value);
// nullopt: it is a text.
std::optional<double> NumberOf(const ColumnValue& value);

// The value of a column of lengths, rounded up. InvalidArgument: it is no
// number from 0 to 2^53.
StatusOr<uint64_t> LengthAt(const Column& column, uint64_t record);

// What a map of values takes for one.
uint64_t BytesOfValue(const std::string& text);

inline uint64_t RecordAt(const Order& order, uint64_t index) {
  return order.At(index, 0, {}).record;
}

Status NothingLeft(uint64_t of);

// Positions of one pass would be those of other records in the next.
Status CheckSameEachPass(const Order& order, std::string_view step);

}  // namespace penstock
#endif  // BROKER_PLAN_SELECT_CONTEXT_H_
