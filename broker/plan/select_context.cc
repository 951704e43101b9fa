#include "broker/plan/select_context.h"

#include <cmath>
#include <set>

#include "common/exact_max.h"
#include "common/quantity.h"

namespace penstock {

StatusOr<Column> FindColumn(const std::string& name,
                            const SelectContext& context) {
  std::set<std::string> known(context.readable.begin(), context.readable.end());
  for (const Column& column : context.columns) {
    if (column.name == name) return column;
    known.insert(column.name);
  }
  const std::string names = JoinText(known, ", ");
  return InvalidArgumentError(
      "this source has no column '{}'; it has {}", name,
      names.empty()
          ? "none, but `penstock filter` judges records by a Python function"
          : names);
}

std::string TextOf(const ColumnValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* whole = std::get_if<int64_t>(&value)) {
    return Format("{}", *whole);
  }
  return Format("{}", std::get<double>(value));
}

std::optional<double> NumberOf(const ColumnValue& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) {
    return static_cast<double>(*whole);
  }
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::nullopt;
}

StatusOr<uint64_t> LengthAt(const Column& column, uint64_t record) {
  const std::optional<double> value = NumberOf(column.value(record));
  if (!value) {
    return InvalidArgumentError("column '{}' is text; lengths are numbers",
                                column.name);
  }
  if (!(*value >= 0 && *value <= static_cast<double>(kExactMax))) {
    return InvalidArgumentError(
        "column '{}' is {} in record {}: lengths are from 0 to 2^53",
        column.name, *value, record);
  }
  return static_cast<uint64_t>(std::ceil(*value));
}

uint64_t BytesOfValue(const std::string& text) {
  constexpr uint64_t kNodeBytes = 96;
  return text.capacity() + kNodeBytes;
}

Status NothingLeft(uint64_t of) {
  return InvalidArgumentError("nothing is left of {}; leave fewer out",
                              Counted(of, "record", "records"));
}

Status CheckSameEachPass(const Order& order, std::string_view step) {
  if (!order.draws() && order.shuffled_parts() == 0) return OkStatus();
  return InvalidArgumentError(
      "{} has other records at the same place in each pass: put `{}` before "
      "it{}",
      order.draws() ? "a sample" : "a mix", step,
      order.draws() ? "" : ", or into the `select` of each part of the mix");
}

}  // namespace penstock
