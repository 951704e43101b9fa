#include "broker/plan/shard_steps.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <numeric>
#include <utility>

#include "common/quantity.h"

namespace penstock {
namespace {

// Until the last shard has run out.
uint64_t CountOf(const std::vector<uint64_t>& rows, uint64_t global_batch) {
  const auto shards = static_cast<uint32_t>(rows.size());
  uint64_t steps = 0;
  for (uint32_t i = 0; i < shards; ++i) {
    const uint64_t block = RowsOfRank(global_batch, i, shards);
    steps = std::max(steps, (rows[i] - 1) / block + 1);
  }
  return steps;
}

std::vector<uint64_t> RowsOf(const std::vector<Shard>& shards) {
  std::vector<uint64_t> rows;
  for (const Shard& shard : shards) rows.push_back(shard.rows);
  return rows;
}

// Steps of its own: the next rows of each shard, one shard after the other.
class Sharded final : public Derived {
 public:
  Sharded(std::unique_ptr<Order> of, std::vector<Shard> shards, uint64_t size,
          uint64_t global_batch)
      : Derived(std::move(of), size),
        shards_(std::move(shards)),
        steps_(RowsOf(shards_), global_batch) {}

  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    auto [number, place] = steps_.Find(index);
    const Shard& shard = shards_[number];
    if (shuffling.spec != nullptr) {
      const uint32_t part = shuffling.first_part + number;
      place = shard.windows ? shard.windows->Of(place, pass, *shuffling.spec,
                                                part, shuffling.last)
                            : shuffling.last->Of(part, *shuffling.spec,
                                                 shard.rows, pass)(place);
    }
    return of_->At(shard.RowOf(place), pass, shuffling);
  }
  uint32_t shuffled_parts() const override { return steps_.size(); }
  const Steps* steps() const override { return &steps_; }
  uint64_t memory_bytes() const override {
    uint64_t bytes = of_->memory_bytes() + steps_.memory_bytes();
    for (const Shard& shard : shards_) {
      bytes += shard.runs.capacity() * sizeof(Shard::Run);
      if (shard.windows) bytes += shard.windows->memory_bytes();
    }
    return bytes;
  }

 private:
  const std::vector<Shard> shards_;
  const ShardSteps steps_;
};

}  // namespace

ShardSteps::ShardSteps(std::vector<uint64_t> rows, uint64_t global_batch)
    : Steps(std::accumulate(rows.begin(), rows.end(), uint64_t{0}),
            CountOf(rows, global_batch), global_batch),
      rows_(std::move(rows)) {
  assert(!rows_.empty() && global_batch >= rows_.size());
  // By step: the shards that have other rows from there on.
  std::map<uint64_t, std::vector<std::pair<uint32_t, uint64_t>>> changes;
  full_steps_ = UINT64_MAX;
  for (uint32_t shard = 0; shard < size(); ++shard) {
    assert(rows_[shard] > 0);
    const uint64_t block = Block(shard);
    const uint64_t full = rows_[shard] / block;
    const uint64_t rest = rows_[shard] % block;
    full_steps_ = std::min(full_steps_, full);
    if (rest > 0) changes[full].push_back({shard, rest});
    changes[full + (rest > 0)].push_back({shard, 0});
  }
  Segment segment = {0, 0, AddBlocks(0, size())};
  for (const auto& [step, of_shards] : changes) {
    if (step > segment.step) segments_.push_back(segment);
    segment.row += (step - segment.step) * nodes_[segment.root].rows;
    segment.step = step;
    for (const auto& [shard, rows] : of_shards) {
      segment.root = With(segment.root, 0, size(), shard, rows);
    }
  }
  assert(nodes_[segment.root].rows == 0 && segment.step == count());
  segments_.push_back(segment);
}

uint32_t ShardSteps::AddBlocks(uint32_t begin, uint32_t end) {
  Node node;
  if (end - begin == 1) {
    node.rows = Block(begin);
  } else {
    const uint32_t middle = begin + (end - begin) / 2;
    node.first = AddBlocks(begin, middle);
    node.second = AddBlocks(middle, end);
    node.rows = nodes_[node.first].rows + nodes_[node.second].rows;
  }
  nodes_.push_back(node);
  return static_cast<uint32_t>(nodes_.size() - 1);
}

uint32_t ShardSteps::With(uint32_t node, uint32_t begin, uint32_t end,
                          uint32_t shard, uint64_t rows) {
  Node changed = nodes_[node];
  if (end - begin == 1) {
    changed.rows = rows;
  } else {
    const uint32_t middle = begin + (end - begin) / 2;
    if (shard < middle) {
      changed.first = With(changed.first, begin, middle, shard, rows);
    } else {
      changed.second = With(changed.second, middle, end, shard, rows);
    }
    changed.rows = nodes_[changed.first].rows + nodes_[changed.second].rows;
  }
  nodes_.push_back(changed);
  return static_cast<uint32_t>(nodes_.size() - 1);
}

const ShardSteps::Segment& ShardSteps::SegmentOf(uint64_t step) const {
  return *std::prev(std::upper_bound(
      segments_.begin(), segments_.end(), step,
      [](uint64_t wanted, const Segment& each) { return wanted < each.step; }));
}

uint64_t ShardSteps::Begin(uint64_t step) const {
  const Segment& segment = SegmentOf(step);
  return segment.row + (step - segment.step) * nodes_[segment.root].rows;
}

uint64_t ShardSteps::StepAt(uint64_t row) const {
  if (row == 0) return 0;
  --row;  // its step, and the next
  assert(row < segments_.back().row);
  const Segment& segment = *std::prev(std::upper_bound(
      segments_.begin(), segments_.end(), row,
      [](uint64_t wanted, const Segment& each) { return wanted < each.row; }));
  return segment.step + (row - segment.row) / nodes_[segment.root].rows + 1;
}

uint64_t ShardSteps::RowsBefore(uint64_t step, uint32_t shard) const {
  if (step < full_steps_) return BlocksBefore(shard);
  const Node* node = &nodes_[SegmentOf(step).root];
  if (shard == size()) return node->rows;
  uint64_t rows = 0;
  for (uint32_t begin = 0, end = size(); end - begin > 1;) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (shard < middle) {
      node = &nodes_[node->first];
      end = middle;
    } else {
      rows += nodes_[node->first].rows;
      node = &nodes_[node->second];
      begin = middle;
    }
  }
  return rows;
}

ShardSteps::Place ShardSteps::Find(uint64_t row) const {
  const uint64_t step = StepAt(row + 1) - 1;
  uint64_t left = row - Begin(step);
  if (step < full_steps_) {
    const uint64_t block = global_batch() / size();
    const uint64_t longer = global_batch() % size();  // of one row more
    const uint64_t shard = left < longer * (block + 1)
                               ? left / (block + 1)
                               : (left - longer) / block;
    const auto number = static_cast<uint32_t>(shard);
    return {number, step * Block(number) + left - BlocksBefore(number)};
  }
  const Node* node = &nodes_[SegmentOf(step).root];
  uint32_t begin = 0;
  for (uint32_t end = size(); end - begin > 1;) {
    const uint32_t middle = begin + (end - begin) / 2;
    const Node& first = nodes_[node->first];
    if (left < first.rows) {
      node = &first;
      end = middle;
    } else {
      left -= first.rows;
      node = &nodes_[node->second];
      begin = middle;
    }
  }
  return {begin, step * Block(begin) + left};
}

uint64_t ShardSteps::RowOf(Place place) const {
  const uint64_t block = Block(place.shard);
  const uint64_t step = place.index / block;
  return Begin(step) + RowsBefore(step, place.shard) + place.index % block;
}

Status ShardSteps::CheckEpoch(uint64_t steps, uint64_t of_pass) const {
  if (steps == 0) {
    return InvalidArgumentError(
        "the files of one of {} ranks have less than its rows of a batch of "
        "{}, and batch.last is drop: an epoch would be empty; use a smaller "
        "batch, last: partial, or shard: data",
        size(), global_batch());
  }
  if (steps <= of_pass) return OkStatus();
  return InvalidArgumentError(
      "steps_per_epoch is {}, but the files of {} ranks give {} in a pass, and "
      "with shard: file an epoch does not begin another: use fewer, or shard: "
      "data",
      steps, size(), Counted(of_pass, "step", "steps"));
}

Steps::RankRows ShardSteps::OfRank(uint64_t step, uint64_t rows, uint32_t rank,
                                   uint32_t ranks) const {
  if (ranks > size()) return Steps::OfRank(step, rows, rank, ranks);
  const auto before = [&](uint32_t which) {
    return RowsBefore(
        step, static_cast<uint32_t>(RowsBeforeRank(size(), which, ranks)));
  };
  return {before(rank), before(rank + 1) - before(rank)};
}

uint64_t ShardSteps::RankRowsMax(uint64_t, uint32_t rank,
                                 uint32_t ranks) const {
  if (ranks > size()) return RowsOfRank(global_batch(), rank, ranks);
  const auto before = [&](uint32_t which) {
    return BlocksBefore(
        static_cast<uint32_t>(RowsBeforeRank(size(), which, ranks)));
  };
  return before(rank + 1) - before(rank);
}

uint64_t ShardSteps::Following(uint64_t row, uint64_t i, uint64_t) const {
  Place place = Find(row);
  place.index = (place.index + i) % rows_[place.shard];
  return RowOf(place);
}

uint64_t Shard::RowOf(uint64_t place) const {
  const Run& run = *std::prev(std::upper_bound(
      runs.begin(), runs.end(), place,
      [](uint64_t row, const Run& each) { return row < each.before; }));
  return run.first + place - run.before;
}

std::unique_ptr<Order> InShards(std::unique_ptr<Order> of,
                                std::vector<Shard> shards,
                                uint64_t global_batch) {
  uint64_t rows = 0;
  for (const Shard& shard : shards) rows += shard.rows;
  return std::make_unique<Sharded>(std::move(of), std::move(shards), rows,
                                   global_batch);
}

}  // namespace penstock
