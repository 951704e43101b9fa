#include "broker/plan/select.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/plan/windows.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr uint64_t kRecordsMax = uint64_t{1} << 53;
constexpr uint32_t kPartsMax = uint32_t{1} << 20;
constexpr size_t kStepsMax = 16;
constexpr size_t kValuesMax = 65'536;
constexpr uint64_t kRowsAtOnce = 1 << 16;

ValueType<uint64_t> Seeds() {
  return WholeNumber<uint64_t>(0, std::numeric_limits<uint64_t>::max());
}

Status NothingLeft(uint64_t of) {
  return InvalidArgumentError("nothing is left of {}; leave fewer out",
                              Counted(of, "record", "records"));
}

ValueType<std::string> ColumnName() {
  return Text("the name of a column",
              [](std::string_view text) { return !text.empty(); });
}

// Left out where it is empty.
template <typename V>
ValueType<V> OrNothing(ValueType<V> type) {
  type.write = [write = type.write](const V& value,
                                    nlohmann::ordered_json* out) {
    if (!value.empty()) write(value, out);
  };
  return type;
}

// The end of a part whose fractions, with those before it, add up to share.
uint64_t EndOf(double share, uint64_t records) {
  return std::min(records, static_cast<uint64_t>(std::llround(
                               share * static_cast<double>(records))));
}

StatusOr<Column> Find(const std::string& name, const SelectContext& context) {
  std::set<std::string> known(context.readable.begin(), context.readable.end());
  for (const Column& column : context.columns) {
    if (column.name == name) return column;
    known.insert(column.name);
  }
  std::string names;
  for (const std::string& each : known) {
    names += (names.empty() ? "" : ", ") + each;
  }
  return InvalidArgumentError(
      "this source has no column '{}'; it has {}", name,
      names.empty()
          ? "none, but `penstock filter` judges records by a Python function"
          : names);
}

StatusOr<std::vector<uint64_t>> FileRunsOf(const Order& order,
                                           const SelectContext& context) {
  PENSTOCK_ASSIGN_OR_RETURN(const Column file, Find("file", context));
  return FileRuns(
      order,
      [&](uint64_t record, uint64_t other) {
        return file.value(record) == file.value(other);
      },
      context.budget);
}

uint64_t RecordAt(const Order& order, uint64_t index) {
  return order.At(index, 0, {}).record;
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

// What a map of values takes for one.
uint64_t BytesOfValue(const std::string& text) {
  constexpr uint64_t kNodeBytes = 96;
  return text.capacity() + kNodeBytes;
}

// A number in [0, 1) for a value, the same whatever else there is.
double Drawn(const std::string& value, uint64_t seed) {
  // FNV-1a, then splitmix64's finaliser.
  uint64_t x = 0xcbf2'9ce4'8422'2325 ^ seed;
  for (const unsigned char c : value) x = (x ^ c) * 0x100'0000'01b3;
  x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9;
  x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11eb;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

// Parts of an order would have records in common, in a pass or in two.
Status CheckDivisible(const Order& order, std::string_view step) {
  if (order.repeats()) {
    return InvalidArgumentError(
        "a record may come several times in a pass, in both parts: put `{}` "
        "before what repeats it, or into the `select` of each part of a mix",
        step);
  }
  if (order.shuffled_parts() > 0) {
    return InvalidArgumentError(
        "a mix has its records in another order in each pass, in other parts: "
        "put `{}` into the `select` of each part of the mix",
        step);
  }
  return OkStatus();
}

// Positions of one pass would be those of other records in the next.
Status CheckSameEachPass(const Order& order, std::string_view step) {
  if (!order.draws() && order.shuffled_parts() == 0) return OkStatus();
  return InvalidArgumentError(
      "{} has other records at the same place in each pass: put `{}` before "
      "it{}",
      order.draws() ? "a sample" : "a mix", step,
      order.draws() ? "" : ", or into the `select` of each part of the mix");
}

// The positions of each value, as text. InvalidArgument: it has too many.
StatusOr<std::map<std::string, std::vector<uint64_t>>> RowsByValue(
    const Order& order, const Column& column, const SelectContext& context) {
  // The positions, by value and then in one list.
  PENSTOCK_RETURN_IF_ERROR(
      context.budget.reserve(3 * order.size() * sizeof(uint64_t)));
  std::map<std::string, std::vector<uint64_t>> of_value;
  for (uint64_t i = 0; i < order.size(); ++i) {
    if (i % kRowsAtOnce == 0 && context.budget.cancelled()) {
      return CancelledError("nobody waits any more");
    }
    of_value[TextOf(column.value(RecordAt(order, i)))].push_back(i);
    if (of_value.size() > kValuesMax) {
      return InvalidArgumentError(
          "column '{}' has more than {} values: go by one that has fewer",
          column.name, kValuesMax);
    }
  }
  return of_value;
}

// The first values of a column, for a message: numbers by size, texts by bytes.
std::string ValuesShown(const Order& order, const Column& column) {
  constexpr size_t kShown = 8;
  constexpr size_t kValuesLookedAt = 1'000;
  constexpr uint64_t kLookedAt = 10'000;
  std::set<ColumnValue> values;
  const uint64_t looked_at = std::min(order.size(), kLookedAt);
  uint64_t i = 0;
  for (; i < looked_at && values.size() < kValuesLookedAt; ++i) {
    values.insert(column.value(RecordAt(order, i)));
  }
  std::string shown;
  size_t count = 0;
  for (const ColumnValue& each : values) {
    if (++count > kShown) break;
    shown += (shown.empty() ? "" : ", ") + Quoted(TextOf(each));
  }
  const bool all = count <= kShown && i == order.size();
  return shown.empty() ? "no values" : shown + (all ? "" : ", ...");
}

Status CheckShard(const YamlValue& value, ShardStep* shard) {
  if (shard->index < shard->of) return OkStatus();
  return value.Required("index").Error(
      Format("shard {} of {}: wanted less than {}", shard->index, shard->of,
             shard->of));
}

Status CheckSplit(const YamlValue& value, SplitStep* split) {
  double sum = 0;
  bool found = false;
  for (const auto& [name, fraction] : split->parts) {
    sum += fraction;
    found |= name == split->part;
  }
  if (sum > 1 + 1e-9) {
    return value.Required("of").Error(
        Format("the fractions add up to {:g}, more than 1", sum));
  }
  for (const auto& [name, fraction] : split->parts) {
    if (name != split->part || fraction > 0) continue;
    return value.Required("part").Error(
        Format("'{}' has the fraction 0: give it more", name));
  }
  if (!found) {
    std::string known;
    for (const auto& [name, fraction] : split->parts) {
      known += (known.empty() ? "" : ", ") + name;
    }
    return value.Required("part").Error(
        Format("'{}' is none of the parts: {}", split->part, known));
  }
  return OkStatus();
}

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

Status CheckSample(const YamlValue& value, SampleStep* sample) {
  if (!sample->weights.empty() && sample->by.empty()) {
    return value.Required("weights").Error(
        "wanted `by` as well, the column whose values have these weights");
  }
  if (!sample->weight.empty() && !sample->by.empty()) {
    return value.Required("weight").Error(
        "wanted weight, a column of numbers, or by and weights, not both");
  }
  return OkStatus();
}

// Values of a column may be any text, such as the names of classes.
Status CheckAnyKeys(const YamlValue& mapping, std::string_view wanted) {
  // So long is the longest name of a folder.
  constexpr size_t kBytesMax = 255;
  if (!mapping.IsMapping() || mapping.size() == 0) {
    return mapping.Wanted(wanted);
  }
  for (size_t i = 0; i < mapping.size(); ++i) {
    const std::string& key = mapping.Key(i);
    if (key.size() <= kBytesMax && Printable(key) == key) continue;
    return mapping.KeyError(
        i, Format("{} is no value: wanted a line of at most {} bytes",
                  Quoted(key), kBytesMax));
  }
  return OkStatus();
}

ValueType<FeatureValues<double>> WeightsOfValues() {
  return OrNothing(
      ValueOfEach(Number(0, 1e6), "{VALUE: a weight, ...}", CheckAnyKeys));
}

Status NoSuchValue(const std::string& value, const Order& order,
                   const Column& column) {
  return InvalidArgumentError(
      "weights: no record has {} in column '{}'; it has {}", Quoted(value),
      column.name, ValuesShown(order, column));
}

Status AllWeightsAreZero() {
  return InvalidArgumentError("all weights are 0: one at least has to be more");
}

Status CheckFold(const YamlValue& value, FoldStep* fold) {
  if (fold->number < fold->of) return OkStatus();
  return value.Required("number").Error(Format(
      "fold {} of {}: wanted less than {}", fold->number, fold->of, fold->of));
}

}  // namespace

const Declaration<TakeStep>& TakeStep::Declared() {
  const auto count = WholeNumber<uint64_t>(1, kRecordsMax);
  static const auto declared =
      Declaration<TakeStep>("take", "The first records.")
          .Example("1000")
          .Brief("a number of records", &TakeStep::records, count)
          .Required("records", &TakeStep::records, count,
                    "how many; all if there are fewer");
  return declared;
}

StatusOr<std::unique_ptr<Order>> TakeStep::Apply(std::unique_ptr<Order> of,
                                                 const SelectContext&) const {
  const uint64_t count = std::min(records, of->size());
  return Slice(std::move(of), 0, count);
}

const Declaration<SkipStep>& SkipStep::Declared() {
  const auto count = WholeNumber<uint64_t>(0, kRecordsMax);
  static const auto declared =
      Declaration<SkipStep>("skip", "All but the first records.")
          .Example("1000")
          .Brief("a number of records", &SkipStep::records, count)
          .Required("records", &SkipStep::records, count, "how many to leave");
  return declared;
}

StatusOr<std::unique_ptr<Order>> SkipStep::Apply(std::unique_ptr<Order> of,
                                                 const SelectContext&) const {
  const uint64_t size = of->size();
  if (records >= size) return NothingLeft(size);
  return Slice(std::move(of), records, size - records);
}

const Declaration<ShardStep>& ShardStep::Declared() {
  static const auto declared =
      Declaration<ShardStep>("shard", "Every n-th record.")
          .Example("{index: 0, of: 4}")
          .Required("index", &ShardStep::index,
                    WholeNumber<uint32_t>(0, kPartsMax - 1), "the first")
          .Required("of", &ShardStep::of, WholeNumber<uint32_t>(1, kPartsMax),
                    "n")
          .Optional("by", &ShardStep::by, OrNothing(ColumnName()),
                    "every n-th value of this column with all its records, "
                    "such as `file`")
          .Check(CheckShard);
  return declared;
}

StatusOr<std::unique_ptr<Order>> ShardStep::Apply(
    std::unique_ptr<Order> order, const SelectContext& context) const {
  const uint64_t size = order->size();
  if (by.empty()) {
    if (index >= size) return NothingLeft(size);
    return Slice(std::move(order), index, (size - index - 1) / of + 1, of);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*order, "shard"));
  PENSTOCK_ASSIGN_OR_RETURN(const Column column, Find(by, context));
  std::map<std::string, uint64_t> numbers;
  Status status;  // of the memory for values
  const Order& all = *order;
  auto kept = Pick(
      std::move(order),
      [&](uint64_t i) {
        std::string text = TextOf(column.value(RecordAt(all, i)));
        const auto found = numbers.find(text);
        if (found != numbers.end()) return found->second % of == index;
        if (status.ok()) status = context.budget.reserve(BytesOfValue(text));
        if (!status.ok()) return false;
        const uint64_t number = numbers.size();
        numbers.emplace(std::move(text), number);
        return number % of == index;
      },
      context.budget);
  if (!status.ok()) return status;
  return kept;
}

const Declaration<RepeatStep>& RepeatStep::Declared() {
  const auto count = WholeNumber<uint32_t>(1, kPartsMax);
  static const auto declared =
      Declaration<RepeatStep>(
          "repeat",
          "All records several times, with random numbers of "
          "augmentation of their own each time.")
          .Example("3")
          .Brief("a number of times", &RepeatStep::times, count)
          .Required("times", &RepeatStep::times, count, "how often");
  return declared;
}

StatusOr<std::unique_ptr<Order>> RepeatStep::Apply(std::unique_ptr<Order> of,
                                                   const SelectContext&) const {
  return Repeat(std::move(of), times);
}

const Declaration<SplitStep>& SplitStep::Declared() {
  const auto fractions = ValueOfEach(
      Number(0, 1), "{NAME: a fraction, ...}, such as {train: 0.9, test: 0.1}",
      CheckNames);
  static const auto declared =
      Declaration<SplitStep>(
          "split", "One part of several: no record is in two of them.")
          .Example("{of: {train: 0.9, validation: 0.1}, part: train}")
          .Required("of", &SplitStep::parts, fractions,
                    "the parts; each has its fraction of the records, to the "
                    "nearest record")
          .Required("part", &SplitStep::part, Name(), "which of them")
          .Optional("by", &SplitStep::by, OrNothing(ColumnName()),
                    "records with one value of this column stay together, "
                    "also when others are added; the fractions are those of "
                    "the values, on average")
          .Optional("seed", &SplitStep::seed, Seeds(),
                    "records are drawn by it")
          .Check(CheckSplit);
  return declared;
}

StatusOr<std::unique_ptr<Order>> SplitStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  const uint64_t size = of->size();
  PENSTOCK_RETURN_IF_ERROR(CheckDivisible(*of, "split"));
  if (size == 0) return NothingLeft(size);
  double begin_share = 0;
  double share = 0;
  for (const auto& [name, fraction] : parts) {
    begin_share = share;
    share += fraction;
    if (name == part) break;
  }
  // The last part has what rounding leaves.
  if (share > 1 - 1e-9) share = 1;
  if (by.empty()) {
    const uint64_t begin = EndOf(begin_share, size);
    const uint64_t end = EndOf(share, size);
    const Permutation drawn(size, seed, 0);
    return Pick(
        std::move(of),
        [&](uint64_t i) {
          const uint64_t number = drawn(i);
          return begin <= number && number < end;
        },
        context.budget);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Column column, Find(by, context));
  const Order& all = *of;
  return Pick(
      std::move(of),
      [&](uint64_t i) {
        const double number =
            Drawn(TextOf(column.value(RecordAt(all, i))), seed);
        return begin_share <= number && number < share;
      },
      context.budget);
}

const Declaration<FoldStep>& FoldStep::Declared() {
  static const auto declared =
      Declaration<FoldStep>("fold", "One fold of k-fold cross-validation.")
          .Example("{number: 0, of: 5, part: validation}")
          .Required("number", &FoldStep::number,
                    WholeNumber<uint32_t>(0, kPartsMax - 1), "of the fold")
          .Optional("of", &FoldStep::of, WholeNumber<uint32_t>(2, kPartsMax),
                    "the number of folds")
          .Optional("part", &FoldStep::part,
                    Words<Part>({{"train", Part::kTrain},
                                 {"validation", Part::kValidation}}),
                    "validation: the records of the fold; train: all others")
          .Optional("by", &FoldStep::by, OrNothing(ColumnName()),
                    "records with one value of this column stay together")
          .Optional("seed", &FoldStep::seed, Seeds(), "records are drawn by it")
          .Check(CheckFold);
  return declared;
}

StatusOr<std::unique_ptr<Order>> FoldStep::Apply(
    std::unique_ptr<Order> order, const SelectContext& context) const {
  PENSTOCK_RETURN_IF_ERROR(CheckDivisible(*order, "fold"));
  const uint64_t size = order->size();
  if (size < of) {
    return InvalidArgumentError(
        "{} folds of {}: at most as many folds as records may be", of,
        Counted(size, "record", "records"));
  }
  if (by.empty()) {
    const Permutation drawn(size, seed, 0);
    return Pick(
        std::move(order),
        [&](uint64_t i) {
          return (drawn(i) % of == number) == (part == Part::kValidation);
        },
        context.budget);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Column column, Find(by, context));
  const Order& all = *order;
  return Pick(
      std::move(order),
      [&](uint64_t i) {
        const double drawn =
            Drawn(TextOf(column.value(RecordAt(all, i))), seed);
        return (static_cast<uint32_t>(drawn * of) == number) ==
               (part == Part::kValidation);
      },
      context.budget);
}

const Declaration<FilterStep>& FilterStep::Declared() {
  const auto any = Number(-std::numeric_limits<double>::max(),
                          std::numeric_limits<double>::max());
  const auto values = OrNothing(
      List(Text("a value", [](std::string_view) { return true; }), 0,
           kValuesMax, Format("a list of at most {} values", kValuesMax)));
  static const auto declared =
      Declaration<FilterStep>(
          "filter",
          "Records by a column: a number or a text of the source, `file` of "
          "records of files, `bytes` where they have any length, `path` and "
          "`class` of pictures. One that is in the records (csv, json_lines, "
          "tfrecord, webdataset, ...) is read from all of them when the "
          "dataset is first opened, and kept in the cache folder. All that is "
          "given has to hold.")
          .Example("{column: label, in: [3, 5]}")
          .Optional("column", &FilterStep::column, OrNothing(ColumnName()),
                    "its name")
          .Optional("records", &FilterStep::records, MaybePath(),
                    "instead of a column: a file of `penstock filter`, the "
                    "records that a Python function kept")
          .Optional("in", &FilterStep::in, values, "it is one of these")
          .Optional("except", &FilterStep::except, values,
                    "it is none of these")
          .Optional("min", &FilterStep::min, Maybe(any), "at least this number")
          .Optional("max", &FilterStep::max, Maybe(any), "at most this number")
          .Optional("matches", &FilterStep::matches,
                    OrNothing(Text(
                        "a pattern",
                        [](std::string_view text) { return !text.empty(); })),
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
        [&](uint64_t i) { return context.kept(records, RecordAt(all, i)); },
        context.budget);
    if (kept.status().code() == StatusCode::kInvalidArgument) {
      return InvalidArgumentError("{}: its function kept none of {}", records,
                                  Counted(size, "record", "records"));
    }
    return kept;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Column found, Find(column, context));
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

const Declaration<BalanceStep>& BalanceStep::Declared() {
  static const auto declared =
      Declaration<BalanceStep>(
          "balance",
          "As many rows of each value of a column, such as a label, or in "
          "proportion to weights: a mix of the records of each value.")
          .Example("{by: label}")
          .Required("by", &BalanceStep::by, ColumnName(),
                    "the column (see filter)")
          .Optional("weights", &BalanceStep::weights, WeightsOfValues(),
                    "of values; those that are not named have 1")
          .Optional("when_out", &BalanceStep::when_out, WhenOutWords(),
                    "when a value has no more records, as in mix");
  return declared;
}

StatusOr<std::unique_ptr<Order>> BalanceStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*of, "balance"));
  PENSTOCK_ASSIGN_OR_RETURN(const Column column, Find(by, context));
  const std::shared_ptr<const Order> all = std::move(of);
  PENSTOCK_ASSIGN_OR_RETURN(auto of_value, RowsByValue(*all, column, context));
  std::map<std::string, double> given(weights.begin(), weights.end());
  std::vector<double> weight_of;
  auto rows = std::make_shared<std::vector<uint64_t>>();
  rows->reserve(all->size());
  std::vector<std::pair<size_t, size_t>> places;
  for (auto& [value, indices] : of_value) {
    const auto named = given.extract(value);
    const double weight = named.empty() ? 1 : named.mapped();
    if (weight == 0) continue;
    weight_of.push_back(weight);
    places.emplace_back(rows->size(), indices.size());
    rows->insert(rows->end(), indices.begin(), indices.end());
    std::vector<uint64_t>().swap(indices);
  }
  if (!given.empty()) {
    return NoSuchValue(given.begin()->first, *all, column);
  }
  if (places.empty()) return AllWeightsAreZero();
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> whole,
                            WholeWeights(weight_of));
  std::vector<std::unique_ptr<Order>> parts;
  for (const auto& [first, count] : places) {
    parts.push_back(ListRows(all, rows, first, count));
  }
  return Mix(std::move(parts), {{0, std::move(whole)}}, when_out,
             context.budget);
}

StatusOr<std::unique_ptr<Order>> ShardByFile(std::unique_ptr<Order> of,
                                             uint32_t shards,
                                             uint64_t global_batch,
                                             const SelectContext& context) {
  constexpr char kWayOut[] =
      "use shard: data (or leave it out), which divides each batch by rows and "
      "reads every record once";
  if (of->repeats() || of->shuffled_parts() > 0) {
    return InvalidArgumentError(
        "shard: file: the records of a file come in several places of a pass: "
        "it goes with no repeat, sample, balance or mix; {}",
        kWayOut);
  }
  if (global_batch < shards) {
    return InvalidArgumentError(
        "shard: file: a batch of {} has no row for some of {} ranks; use a "
        "batch of {} rows or more, or {}",
        Counted(global_batch, "row", "rows"), shards, shards, kWayOut);
  }
  // Of a source whose records are files, that is their path.
  StatusOr<Column> file = Find("file", context);
  if (!file.ok()) file = Find("path", context);
  if (!file.ok()) {
    return InvalidArgumentError(
        "shard: file: the records of this source come from no files that could "
        "be told apart; {}",
        kWayOut);
  }
  std::vector<Shard> of_shard(std::min<uint64_t>(shards, of->size()));
  std::map<std::string, uint64_t> numbers;
  std::string last;
  Shard* shard = nullptr;
  uint64_t next = 0;  // the row after the last one of *shard
  for (uint64_t i = 0; i < of->size(); ++i) {
    if (i % kRowsAtOnce == 0 && context.budget.cancelled()) {
      return CancelledError("nobody waits any more");
    }
    std::string path = TextOf(file->value(RecordAt(*of, i)));
    if (shard == nullptr || path != last) {
      const auto [found, is_new] = numbers.try_emplace(path, numbers.size());
      if (is_new) {
        PENSTOCK_RETURN_IF_ERROR(context.budget.reserve(BytesOfValue(path)));
      }
      Shard* const now = &of_shard[found->second % of_shard.size()];
      if (now != shard || next != i) {
        // Twice: the vector grows by doubling.
        PENSTOCK_RETURN_IF_ERROR(
            context.budget.reserve(2 * sizeof(Shard::Run)));
        now->runs.push_back({i, now->rows});
      }
      shard = now;
      last = std::move(path);
    }
    ++shard->rows;
    next = i + 1;
  }
  if (numbers.size() < shards) {
    return InvalidArgumentError(
        "shard: file: {} for {} ranks, so that some would have none; split "
        "the data into {} files or more, or {}",
        Counted(numbers.size(), "file", "files"), shards, shards, kWayOut);
  }
  for (Shard& each : of_shard) each.runs.shrink_to_fit();
  return InShards(std::move(of), std::move(of_shard), global_batch);
}

const Declaration<SampleStep>& SampleStep::Declared() {
  static const auto declared =
      Declaration<SampleStep>(
          "sample",
          "Records drawn in proportion to weights, anew in each pass; each row "
          "has random numbers of augmentation of its own. For exact "
          "proportions of values see `balance`.")
          .Example("{by: label, weights: {0: 1, 1: 9}, rows: 10000}")
          .Optional("rows", &SampleStep::rows,
                    Maybe(WholeNumber<uint64_t>(1, kRecordsMax)),
                    "of a pass; as many as there are records if absent")
          .Optional("weight", &SampleStep::weight, OrNothing(ColumnName()),
                    "the column that has the weight of each record (see "
                    "filter)")
          .Optional("by", &SampleStep::by, OrNothing(ColumnName()),
                    "the column whose values have weights")
          .Optional("weights", &SampleStep::weights, WeightsOfValues(),
                    "of a record of each value; those that are not named have "
                    "1")
          .Optional("replacement", &SampleStep::replacement, Bool(),
                    "a record may come again in a pass; false: each comes once "
                    "at most, and those of larger weight come earlier and "
                    "more often among the rows")
          .Optional("seed", &SampleStep::seed, Seeds(),
                    "records are drawn by it")
          .Check(CheckSample);
  return declared;
}

Status WeightIsText(const std::string& column) {
  return InvalidArgumentError(
      "weight: column '{}' is text: give `by` and `weights` instead", column);
}

Status NoWeight(double weight, uint64_t record) {
  return InvalidArgumentError("the weight {} of record {}: wanted 0 or more",
                              weight, record);
}

// So that no quotient overflows.
constexpr double kWeightsMin = 1e-280;

StatusOr<std::unique_ptr<Order>> SampleStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  const uint64_t size = of->size();
  if (size == 0) return NothingLeft(size);
  if (of->shuffled_parts() > 0) {
    return InvalidArgumentError(
        "a mix has proportions of its own: put `sample` into the `select` of "
        "its parts");
  }
  if (!replacement) return EachOnce(std::move(of), context);
  std::vector<double> each_weight;
  if (!weight.empty() || !by.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*of, "sample"));
    PENSTOCK_ASSIGN_OR_RETURN(const Column column,
                              Find(weight.empty() ? by : weight, context));
    std::map<std::string, double> of_value(weights.begin(), weights.end());
    std::set<std::string> missing;
    for (const auto& [value, number] : weights) missing.insert(value);
    PENSTOCK_RETURN_IF_ERROR(context.budget.reserve(size * kDrawBytes));
    if (size >= UINT32_MAX) {
      return InvalidArgumentError(
          "weights of {} records: at most {}; take fewer of them before it",
          size, UINT32_MAX - 1);
    }
    each_weight.reserve(size);
    double sum = 0;
    for (uint64_t i = 0; i < size; ++i) {
      if (i % kRowsAtOnce == 0 && context.budget.cancelled()) {
        return CancelledError("nobody waits any more");
      }
      const ColumnValue value = column.value(RecordAt(*of, i));
      double each = 1;
      if (!weight.empty()) {
        const std::optional<double> number = NumberOf(value);
        if (!number) {
          return WeightIsText(weight);
        }
        each = *number;
      } else if (const auto named = of_value.find(TextOf(value));
                 named != of_value.end()) {
        each = named->second;
        if (!missing.empty()) missing.erase(named->first);
      }
      sum += each;
      if (!(each >= 0) || !std::isfinite(sum)) {
        return NoWeight(each, RecordAt(*of, i));
      }
      each_weight.push_back(each);
    }
    if (!missing.empty()) {
      return NoSuchValue(*missing.begin(), *of, column);
    }
    if (sum == 0) return AllWeightsAreZero();
    if (sum < kWeightsMin) {
      return InvalidArgumentError(
          "the sum of the weights is {}: wanted {} or "
          "more; multiply them by a number",
          sum, kWeightsMin);
    }
  }
  return Draw(std::move(of), rows.value_or(size), seed, std::move(each_weight));
}

// Records of one weight are one part of a mix, whose share is the sum of their
// weights; a part that has no more records drops out. So a position costs what
// it costs in a mix, whatever was drawn before it.
StatusOr<std::unique_ptr<Order>> SampleStep::EachOnce(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  const auto first =
      [this](std::unique_ptr<Order> all) -> StatusOr<std::unique_ptr<Order>> {
    const uint64_t wanted = rows.value_or(all->size());
    if (wanted <= all->size()) return Slice(std::move(all), 0, wanted);
    return InvalidArgumentError(
        "rows: {} of {} with a weight, without replacement: give at most as "
        "many, or replacement: true",
        wanted, Counted(all->size(), "record"));
  };
  if (weight.empty() && by.empty()) {
    return first(ShuffledEachPass(std::move(of), seed));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSameEachPass(*of, "sample"));
  PENSTOCK_ASSIGN_OR_RETURN(const Column column,
                            Find(weight.empty() ? by : weight, context));
  const std::shared_ptr<const Order> all = std::move(of);
  PENSTOCK_ASSIGN_OR_RETURN(auto of_value, RowsByValue(*all, column, context));
  std::map<std::string, double> given(weights.begin(), weights.end());
  std::vector<double> shares;
  std::vector<std::unique_ptr<Order>> parts;
  for (auto& [value, indices] : of_value) {
    double each = 1;
    if (weight.empty()) {
      const auto named = given.extract(value);
      if (!named.empty()) each = named.mapped();
    } else {
      const uint64_t record = RecordAt(*all, indices[0]);
      const std::optional<double> number = NumberOf(column.value(record));
      if (!number) return WeightIsText(weight);
      if (!(*number >= 0) || !std::isfinite(*number)) {
        return NoWeight(*number, record);
      }
      each = *number;
    }
    if (each == 0) continue;
    shares.push_back(each * static_cast<double>(indices.size()));
    const size_t count = indices.size();
    parts.push_back(ShuffledEachPass(
        ListRows(
            all,
            std::make_shared<const std::vector<uint64_t>>(std::move(indices)),
            0, count),
        seed + parts.size()));
  }
  if (!given.empty()) return NoSuchValue(given.begin()->first, *all, column);
  if (parts.empty()) return AllWeightsAreZero();
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<uint32_t> whole;
  for (const double share : shares) {
    constexpr double kPeriod = kMixPeriodMax / 2;  // room for those below 1
    whole.push_back(static_cast<uint32_t>(
        std::max(1LL, std::llround(share / sum * kPeriod))));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Order> mix,
                            Mix(std::move(parts), {{0, std::move(whole)}},
                                WhenOut::kDrop, context.budget));
  return first(std::move(mix));
}

const Declaration<InterleaveStep>& InterleaveStep::Declared() {
  constexpr uint32_t kFilesMax = 1024;
  static const auto declared =
      Declaration<InterleaveStep>(
          "interleave",
          "Records of several files in turn, each file read from its beginning "
          "to its end: an order for data that are not shuffled.")
          .Example("{files: 8}")
          .Optional("files", &InterleaveStep::files,
                    WholeNumber<uint32_t>(1, kFilesMax),
                    "how many at a time, until all of them are out")
          .Optional("block", &InterleaveStep::block,
                    WholeNumber<uint32_t>(1, uint32_t{1} << 24),
                    "how many records of a file before the next file's turn");
  return declared;
}

StatusOr<std::unique_ptr<Order>> InterleaveStep::Apply(
    std::unique_ptr<Order> of, const SelectContext& context) const {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<uint64_t> runs,
                            FileRunsOf(*of, context));
  return Interleave(std::move(of), std::move(runs), files, block);
}

StatusOr<std::unique_ptr<Order>> InWindows(const ShuffleSpec& shuffle,
                                           std::unique_ptr<Order> of,
                                           const SelectContext& context) {
  if (!shuffle.window_files) return of;
  auto runs = FileRunsOf(*of, context);
  if (!runs.ok()) return runs.status().Prepend("shuffle.window_files");
  if (*shuffle.window_files > runs->size()) {
    return InvalidArgumentError(
        "shuffle.window_files: windows of {} files, and there are {}: give "
        "fewer, or leave window_files out, which shuffles all records together",
        *shuffle.window_files, runs->size());
  }
  auto windows =
      ShuffleWindows(std::move(of), *std::move(runs), *shuffle.window_files);
  if (!windows.ok()) return windows.status().Prepend("shuffle.window_files");
  return windows;
}

std::vector<std::string> ColumnsOf(const SelectSpec& step) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (!name.empty()) names.push_back(name);
  };
  std::visit(
      [&](const auto& each) {
        if constexpr (requires { each.column; }) add(each.column);
        if constexpr (requires { each.weight; }) add(each.weight);
        if constexpr (requires { each.by; }) add(each.by);
      },
      step);
  return names;
}

ValueType<WhenOut> WhenOutWords() {
  return Words<WhenOut>({{"stop", WhenOut::kStop},
                         {"drop", WhenOut::kDrop},
                         {"repeat", WhenOut::kRepeat}});
}

ValueType<std::vector<SelectSpec>> SelectSteps() {
  auto steps = List(
      OneKind<SelectSpec>(), 0, kStepsMax,
      Format("a list of at most {} steps, such as [take: 1000]", kStepsMax));
  // Left out where there is none.
  steps.write = [write = steps.write](const auto& value,
                                      nlohmann::ordered_json* out) {
    if (!value.empty()) write(value, out);
  };
  return steps;
}

StatusOr<std::unique_ptr<Order>> Select(const std::vector<SelectSpec>& steps,
                                        std::unique_ptr<Order> of,
                                        const SelectContext& context) {
  for (size_t i = 0; i < steps.size(); ++i) {
    auto order = std::visit(
        [&](const auto& step) { return step.Apply(std::move(of), context); },
        steps[i]);
    if (!order.ok()) {
      return AtPath(
          Format("select[{}].{}", i,
                 std::visit(
                     [](const auto& step) { return step.Declared().name(); },
                     steps[i])),
          order.status());
    }
    of = *std::move(order);
  }
  return of;
}

}  // namespace penstock
