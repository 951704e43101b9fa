#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "broker/plan/orders.h"
#include "broker/plan/shard_steps.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// The rows of one shard.
class OfShard final : public Order {
 public:
  OfShard(const Order& of, const Shard& shard)
      : Order(shard.rows), of_(of), shard_(shard) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_.At(shard_.RowOf(index), pass, shuffling);
  }

 private:
  const Order& of_;
  const Shard& shard_;
};

}  // namespace

StatusOr<std::unique_ptr<Order>> ShardByFile(std::unique_ptr<Order> of,
                                             uint32_t shards,
                                             uint64_t global_batch,
                                             const ShuffleSpec* shuffle,
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
  // Where records are files, their path tells them apart.
  StatusOr<Column> file = FindColumn("file", context);
  if (!file.ok()) file = FindColumn("path", context);
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
  const auto add = [&](uint64_t i) {
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
    return OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(ForEachRow(of->size(), context.budget, add));
  if (numbers.size() < shards) {
    return InvalidArgumentError(
        "shard: file: {} for {} ranks, so that some would have none; split "
        "the data into {} files or more, or {}",
        Counted(numbers.size(), "file", "files"), shards, shards, kWayOut);
  }
  for (Shard& each : of_shard) {
    each.runs.shrink_to_fit();
    if (shuffle == nullptr || !shuffle->window_files) continue;
    auto windows =
        Windows::In(OfShard(*of, each), *shuffle->window_files, context);
    if (!windows.ok()) {
      return windows.status().Prepend(
          Format("shuffle.window_files: of the files of one of {} ranks "
                 "(shard: file)",
                 shards));
    }
    each.windows = *std::move(windows);
  }
  return InShards(std::move(of), std::move(of_shard), global_batch);
}

}  // namespace penstock
