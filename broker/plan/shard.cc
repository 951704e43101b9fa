#include <map>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/plan/kinds.h"
#include "broker/plan/orders.h"
#include "broker/plan/select_fields.h"

namespace penstock {
namespace {

Status CheckShard(const YamlValue& value, ShardStep* shard) {
  if (shard->index < shard->of) return OkStatus();
  return value.Required("index").Error(
      Format("shard {} of {}: wanted less than {}", shard->index, shard->of,
             shard->of));
}

}  // namespace

const Declaration<ShardStep>& ShardStep::Declared() {
  static const auto declared =
      Declaration<ShardStep>("shard", "Every n-th record.")
          .Example("{index: 0, of: 4}")
          .Required("index", &ShardStep::index,
                    WholeNumber<uint32_t>(0, kPartsMax - 1), "the first")
          .Required("of", &ShardStep::of, WholeNumber<uint32_t>(1, kPartsMax),
                    "n")
          .Optional("by", &ShardStep::by, LeftOutAt({}, ColumnName()),
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
  PENSTOCK_ASSIGN_OR_RETURN(const Column column, FindColumn(by, context));
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

}  // namespace penstock
