#include <fnmatch.h>

#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/plan/kinds.h"
#include "broker/plan/orders.h"
#include "broker/plan/select_fields.h"
#include "broker/plan/values.h"
#include "common/quantity.h"

namespace penstock {
namespace {

Status CheckFilter(const YamlValue& value, FilterStep* filter) {
  const bool by_column = !filter->column.empty();
  if (by_column != filter->records.empty()) {
    return value.Error(by_column
                           ? "wanted a column or records, not both: a filter "
                             "for each"
                           : "wanted a column, or records, a file that "
                             "`penstock filter` writes");
  }
  if (!by_column) {
    for (const char* key : {"in", "except", "min", "max", "matches"}) {
      if (!value.Optional(key).present()) continue;
      return value.Optional(key).Error(
          "is of a column, and `records` has none: leave it out");
    }
    return OkStatus();
  }
  if (filter->min && filter->max && *filter->min > *filter->max) {
    return value.Required("min").Error(
        Format("{:g} is more than max, {:g}", *filter->min, *filter->max));
  }
  if (filter->in.empty() && value.Optional("in").present()) {
    return value.Optional("in").Error(
        "an empty list keeps nothing: give values");
  }
  if (!filter->in.empty() || !filter->except.empty() || filter->min ||
      filter->max || !filter->matches.empty()) {
    return OkStatus();
  }
  return value.Error("wanted one of in, except, min, max, matches as well");
}

}  // namespace

const Declaration<FilterStep>& FilterStep::Declared() {
  const auto any = Number(-std::numeric_limits<double>::max(),
                          std::numeric_limits<double>::max());
  const auto values = LeftOutAt(
      {}, List(Text("a value", [](std::string_view) { return true; }), 0,
               kValuesMax, Format("a list of at most {} values", kValuesMax)));
  static const auto declared =
      Declaration<FilterStep>(
          "filter",
          "Records by a column: a number or a text of the source, `file` of "
          "records of files, `bytes` of text_lines, json_lines, csv, "
          "tfrecord, webdataset, lmdb and mds, `path` and `class` of pictures. "
          "One that is in the records (csv, json_lines, "
          "tfrecord, webdataset, ...) is read from all of them when the "
          "dataset is first opened, and kept in the cache folder (of a Python "
          "dataset, whenever it is opened); so is a number that the first "
          "steps of `map` make, up to one that draws random numbers, such as "
          "`audio.length` of decode_audio. All that is given has to hold.")
          .Example("{column: label, in: [3, 5]}")
          .Optional("column", &FilterStep::column, LeftOutAt({}, ColumnName()),
                    "its name")
          .Optional("records", &FilterStep::records, MaybePathOrAddress(),
                    "instead of a column: a file of `penstock filter`, the "
                    "records that a Python function kept")
          .Optional("in", &FilterStep::in, values, "it is one of these")
          .Optional("except", &FilterStep::except, values,
                    "it is none of these")
          .Optional("min", &FilterStep::min, Maybe(any), "at least this number")
          .Optional("max", &FilterStep::max, Maybe(any), "at most this number")
          .Optional("matches", &FilterStep::matches,
                    LeftOutAt({}, Text("a pattern",
                                       [](std::string_view text) {
                                         return !text.empty();
                                       })),
                    "text that this pattern matches, with * and ?")
          .Check(CheckFilter);
  return declared;
}

StatusOr<std::unique_ptr<Order>> FilterStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  const uint64_t size = of->size();
  PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*of, "filter"));
  if (!records.empty()) {
    const Order& all = *of;
    auto kept = Pick(
        std::move(of),
        [&](uint64_t i) { return context.file_has(records, RecordAt(all, i)); },
        context.budget);
    if (kept.status().code() == StatusCode::kInvalidArgument) {
      return InvalidArgumentError("{}: its function kept none of {}", records,
                                  Counted(size, "record", "records"));
    }
    return kept;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Column found, FindColumn(column, context));
  const std::set<std::string> wanted(in.begin(), in.end());
  const std::set<std::string> unwanted(except.begin(), except.end());
  const Order& all = *of;
  if (size > 0 && (min || max) &&
      !NumberOf(found.value(RecordAt(all, 0))).has_value()) {
    return InvalidArgumentError(
        "column '{}' is text, and has no min and max: use `in` or `matches`",
        column);
  }
  const std::string shown = ValuesShown(all, found);
  auto kept = Pick(
      std::move(of),
      [&](uint64_t i) {
        const ColumnValue value = found.value(RecordAt(all, i));
        if (min || max) {
          const double number = *NumberOf(value);
          if ((min && number < *min) || (max && number > *max)) return false;
        }
        if (in.empty() && except.empty() && matches.empty()) return true;
        const std::string text = TextOf(value);
        return (in.empty() || wanted.contains(text)) &&
               !unwanted.contains(text) &&
               (matches.empty() ||
                fnmatch(matches.c_str(), text.c_str(), 0) == 0);
      },
      context.budget);
  if (kept.status().code() == StatusCode::kInvalidArgument) {
    return InvalidArgumentError(
        "none of {} has such a value; column '{}' has "
        "{}",
        Counted(size, "record", "records"), column, shown);
  }
  return kept;
}

}  // namespace penstock
