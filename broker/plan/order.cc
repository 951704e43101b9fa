#include "broker/plan/order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "broker/plan/shard_steps.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// As Plan::kTotalRowsMax: more would not fit into a plan.
constexpr uint64_t kRowsMax = uint64_t{1} << 53;
constexpr uint64_t kFar = uint64_t{1} << 62;

Status TooManyRows() {
  return InvalidArgumentError(
      "more than {} rows in a pass: select or repeat fewer", kRowsMax);
}

class All final : public Order {
 public:
  All(uint64_t count, uint64_t first) : Order(count), first_(first) {}
  Row At(uint64_t index, uint64_t pass, Shuffling) const override {
    return {first_ + index, pass};
  }

 private:
  const uint64_t first_;
};

// An order made of another.
class Derived : public Order {
 public:
  uint32_t shuffled_parts() const override { return of_->shuffled_parts(); }
  bool repeats() const override { return of_->repeats(); }
  bool draws() const override { return of_->draws(); }
  uint64_t memory_bytes() const override { return of_->memory_bytes(); }
  std::string warning() const override { return of_->warning(); }

 protected:
  Derived(std::unique_ptr<Order> of, uint64_t size)
      : Order(size), of_(std::move(of)) {}
  const std::unique_ptr<Order> of_;
};

class Sliced final : public Derived {
 public:
  Sliced(std::unique_ptr<Order> of, uint64_t first, uint64_t count,
         uint64_t stride)
      : Derived(std::move(of), count), first_(first), stride_(stride) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_->At(first_ + index * stride_, pass, shuffling);
  }

 private:
  const uint64_t first_;
  const uint64_t stride_;
};

// A set of positions that finds its i-th member: a bit for each, and the number
// of members before every block of 512.
class Bitmap {
 public:
  static uint64_t BytesFor(uint64_t size) {
    return (size / kBits + 1) * (kWords + 1) * sizeof(uint64_t);
  }
  explicit Bitmap(uint64_t size)
      : words_((size + kBits - 1) / kBits * kWords) {}
  void Add(uint64_t index) {
    words_[index / 64] |= uint64_t{1} << (index % 64);
  }
  // Call after the last Add.
  uint64_t Count() {
    uint64_t count = 0;
    before_.reserve(words_.size() / kWords);
    for (size_t i = 0; i < words_.size(); ++i) {
      if (i % kWords == 0) before_.push_back(count);
      count += static_cast<uint64_t>(std::popcount(words_[i]));
    }
    return count;
  }
  uint64_t At(uint64_t member) const {
    const size_t block = static_cast<size_t>(
        std::upper_bound(before_.begin(), before_.end(), member) -
        before_.begin() - 1);
    uint64_t left = member - before_[block];
    for (size_t i = block * kWords;; ++i) {
      uint64_t word = words_[i];
      const auto here = static_cast<uint64_t>(std::popcount(word));
      if (left >= here) {
        left -= here;
        continue;
      }
      for (; left > 0; --left) word &= word - 1;
      return i * 64 + static_cast<uint64_t>(std::countr_zero(word));
    }
  }
  uint64_t memory_bytes() const {
    return (words_.capacity() + before_.capacity()) * sizeof(uint64_t);
  }

 private:
  static constexpr size_t kWords = 8;  // of a block: a cache line
  static constexpr uint64_t kBits = 64 * kWords;
  std::vector<uint64_t> words_;
  std::vector<uint64_t> before_;
};

class Picked final : public Derived {
 public:
  Picked(std::unique_ptr<Order> of, Bitmap kept, uint64_t count)
      : Derived(std::move(of), count), kept_(std::move(kept)) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_->At(kept_.At(index), pass, shuffling);
  }
  uint64_t memory_bytes() const override {
    return of_->memory_bytes() + kept_.memory_bytes();
  }

 private:
  const Bitmap kept_;
};

class Listed final : public Order {
 public:
  Listed(std::shared_ptr<const Order> of, RowList rows, size_t first,
         size_t count)
      : Order(count),
        of_(std::move(of)),
        rows_(std::move(rows)),
        first_(first) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_->At((*rows_)[first_ + index], pass, shuffling);
  }
  uint32_t shuffled_parts() const override { return of_->shuffled_parts(); }
  bool repeats() const override { return of_->repeats(); }
  bool draws() const override { return of_->draws(); }
  // The first of those that share it counts the list.
  uint64_t memory_bytes() const override {
    return first_ == 0
               ? of_->memory_bytes() + rows_->capacity() * sizeof(uint64_t)
               : 0;
  }

 private:
  const std::shared_ptr<const Order> of_;
  const RowList rows_;
  const size_t first_;
};

class Repeated final : public Derived {
 public:
  Repeated(std::unique_ptr<Order> of, uint64_t size, uint64_t times)
      : Derived(std::move(of), size), times_(times) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    const uint64_t time = index / of_->size();
    return of_->At(index - time * of_->size(), pass * times_ + time, shuffling);
  }

  bool repeats() const override { return times_ > 1 || of_->repeats(); }

 private:
  const uint64_t times_;
};

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
      place = shuffling.last->Of(shuffling.first_part + number, *shuffling.spec,
                                 shard.rows, pass)(place);
    }
    const Shard::Run& run =
        *std::prev(std::upper_bound(shard.runs.begin(), shard.runs.end(), place,
                                    [](uint64_t row, const Shard::Run& each) {
                                      return row < each.before;
                                    }));
    return of_->At(run.first + place - run.before, pass, shuffling);
  }
  uint32_t shuffled_parts() const override { return steps_.size(); }
  const Steps* steps() const override { return &steps_; }
  uint64_t memory_bytes() const override {
    uint64_t bytes = of_->memory_bytes() + steps_.memory_bytes();
    for (const Shard& shard : shards_) {
      bytes += shard.runs.capacity() * sizeof(Shard::Run);
    }
    return bytes;
  }

 private:
  const std::vector<Shard> shards_;
  const ShardSteps steps_;
};

// Rows by their weights, in O(1): a column for each row, as high as the mean
// weight, holds its own row's weight up to there and is filled up by one
// other's. Vose, "A linear algorithm for generating random numbers with a given
// distribution", IEEE Transactions on Software Engineering 17 (1991).
class AliasTable {
 public:
  explicit AliasTable(std::vector<double> weights) : columns_(weights.size()) {
    if (weights.empty()) return;
    const double mean = std::accumulate(weights.begin(), weights.end(), 0.0) /
                        static_cast<double>(weights.size());
    std::vector<uint32_t> below;
    std::vector<uint32_t> above;
    for (uint32_t row = 0; row < weights.size(); ++row) {
      weights[row] /= mean;
      (weights[row] < 1 ? below : above).push_back(row);
      columns_[row] = {UINT32_MAX, row};
    }
    uint32_t fills_up = above.empty() ? 0 : above.back();
    while (!below.empty() && !above.empty()) {
      const uint32_t row = below.back();
      below.pop_back();
      fills_up = above.back();
      columns_[row] = {static_cast<uint32_t>(weights[row] * 0x1p32), fills_up};
      weights[fills_up] -= 1 - weights[row];
      if (weights[fills_up] >= 1) continue;
      above.pop_back();
      below.push_back(fills_up);
    }
    // By rounding: such a row has the mean weight, or none.
    for (const uint32_t row : below) {
      if (weights[row] < 0.5) columns_[row] = {0, fills_up};
    }
  }

  bool empty() const { return columns_.empty(); }
  uint64_t memory_bytes() const { return columns_.capacity() * sizeof(Column); }
  // bits: 64 random ones.
  uint64_t At(uint64_t bits) const {
    const auto place = static_cast<unsigned __int128>(bits) * columns_.size();
    const auto row = static_cast<uint64_t>(place >> 64);
    const Column& column = columns_[row];
    return static_cast<uint32_t>(place >> 32) < column.own ? row : column.other;
  }

 private:
  struct Column {
    uint32_t own = 0;  // its own row's part, in 2^-32
    uint32_t other = 0;
  };
  std::vector<Column> columns_;
};

class Drawn final : public Derived {
 public:
  Drawn(std::unique_ptr<Order> of, uint64_t rows, uint64_t seed,
        std::vector<double> weights)
      : Derived(std::move(of), rows), seed_(seed), table_(std::move(weights)) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    const uint64_t draw = pass * size() + index;
    const uint64_t bits = Mixed64(Mixed64(seed_) + draw * kGolden);
    const uint64_t row =
        table_.empty()
            ? static_cast<uint64_t>(
                  (static_cast<unsigned __int128>(bits) * of_->size()) >> 64)
            : table_.At(bits);
    return of_->At(row, draw, shuffling);
  }
  bool repeats() const override { return true; }
  bool draws() const override { return true; }
  uint64_t memory_bytes() const override {
    return of_->memory_bytes() + table_.memory_bytes();
  }

 private:
  static constexpr uint64_t kGolden = 0x9e37'79b9'7f4a'7c15;  // 2^64 / phi
  // splitmix64's finaliser: a bijection.
  static uint64_t Mixed64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9;
    x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11eb;
    return x ^ (x >> 31);
  }

  const uint64_t seed_;
  const AliasTable table_;
};

class Shuffled final : public Derived {
 public:
  Shuffled(std::unique_ptr<Order> of, uint64_t size, uint64_t seed)
      : Derived(std::move(of), size), seed_(seed) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    return of_->At(Permutation(size(), seed_, pass)(index), pass, shuffling);
  }
  bool draws() const override { return true; }

 private:
  const uint64_t seed_;
};

using Parts = std::vector<std::unique_ptr<Order>>;

// Orders of which another is made, which shuffles each of them alone.
class PartOrders {
 public:
  explicit PartOrders(Parts parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      first_.push_back(shuffled_);
      shuffled_ += std::max(part->shuffled_parts(), 1u);
    }
  }
  size_t size() const { return parts_.size(); }
  const Order& operator[](size_t i) const { return *parts_[i]; }
  bool Any(bool (Order::*is)() const) const {
    return std::any_of(parts_.begin(), parts_.end(),
                       [is](const auto& part) { return (*part.*is)(); });
  }
  bool AnyShuffles() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) {
      return part->shuffled_parts() > 0;
    });
  }
  uint64_t memory_bytes() const {
    uint64_t bytes = 0;
    for (const auto& part : parts_) bytes += part->memory_bytes();
    return bytes;
  }
  uint32_t shuffled() const { return shuffled_; }
  Order::Row At(size_t number, uint64_t place, uint64_t pass,
                Order::Shuffling shuffling) const {
    const Order& part = *parts_[number];
    shuffling.first_part += first_[number];
    if (shuffling.spec != nullptr && part.shuffled_parts() == 0) {
      place = shuffling.last->Of(shuffling.first_part, *shuffling.spec,
                                 part.size(), pass)(place);
    }
    return part.At(place, pass, shuffling);
  }

 private:
  const Parts parts_;
  std::vector<uint32_t> first_;  // numbers of what each shuffles
  uint32_t shuffled_ = 0;
};

class Concatenated final : public Order {
 public:
  Concatenated(Parts parts, std::vector<uint64_t> ends)
      : Order(ends.back()), parts_(std::move(parts)), ends_(std::move(ends)) {}
  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    const size_t part = static_cast<size_t>(
        std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    const uint64_t place = index - (part == 0 ? 0 : ends_[part - 1]);
    return !mixes_ ? parts_[part].At(place, pass, shuffling)
                   : parts_.At(part, place, pass, shuffling);
  }
  bool repeats() const override { return parts_.Any(&Order::repeats); }
  bool draws() const override { return parts_.Any(&Order::draws); }
  uint64_t memory_bytes() const override { return parts_.memory_bytes(); }
  // If one of its parts does, it has to shuffle the others as well.
  uint32_t shuffled_parts() const override {
    return mixes_ ? parts_.shuffled() : 0;
  }

 private:
  const PartOrders parts_;
  const std::vector<uint64_t> ends_;
  const bool mixes_ = parts_.AnyShuffles();
};

// ---- mix -------------------------------------------------------------------

// One period of a proportional sequence of turns: as many turns as the weights
// add up to, as many of each part as its weight. Its first n turns have n *
// weight / period of each part, less than one more or less. A turn has as many
// rows as its part has in a block.
class Proportion {
 public:
  struct Slot {
    uint32_t part = 0;
    uint32_t turn = 0;  // turns of the part before, in the period
  };
  Proportion(const std::vector<uint32_t>& weights,
             const std::vector<uint64_t>& blocks)
      : weights_(weights), turns_(weights.size()) {
    const uint64_t period =
        std::accumulate(weights.begin(), weights.end(), uint64_t{0});
    // The turns of a part are jobs of one slot: turn c of weight w may come
    // from slot floor(c * period / w) on and must before ceil((c + 1) * period
    // / w). The earliest deadline first keeps all of them, as the weights add
    // up to the period (Baruah et al., "Proportionate Progress", 1996).
    using Job = std::pair<uint64_t, uint32_t>;  // slot, part
    std::priority_queue<Job, std::vector<Job>, std::greater<>> waiting;
    std::priority_queue<Job, std::vector<Job>, std::greater<>> ready;
    for (uint32_t part = 0; part < weights.size(); ++part) {
      if (weights[part] > 0) waiting.push({0, part});
    }
    slots_.reserve(period);
    while (slots_.size() < period) {
      while (!waiting.empty() && waiting.top().first <= slots_.size()) {
        const uint32_t part = waiting.top().second;
        const uint64_t turn = turns_[part].size();
        ready.push({((turn + 1) * period - 1) / weights[part] + 1, part});
        waiting.pop();
      }
      const uint32_t part = ready.top().second;
      ready.pop();
      turns_[part].push_back(static_cast<uint32_t>(slots_.size()));
      const auto turn = static_cast<uint32_t>(turns_[part].size());
      slots_.push_back({part, turn - 1});
      waiting.push({turn * period / weights[part], part});
    }
    if (AllSame(blocks)) {
      block_ = blocks[0];
      return;
    }
    ends_.reserve(period);
    uint64_t rows = 0;
    for (const Slot& slot : slots_) ends_.push_back(rows += blocks[slot.part]);
  }

  // The part of a turn, and how many of its turns come before.
  std::pair<uint32_t, uint64_t> At(uint64_t turn) const {
    const uint64_t periods = turn / slots_.size();
    const Slot slot = slots_[turn - periods * slots_.size()];
    return {slot.part, periods * weights_[slot.part] + slot.turn};
  }
  // The turn that is the n-th of the part, counted from 0. Its weight is not 0.
  // At most kFar, beyond any turn.
  uint64_t TurnOf(size_t part, uint64_t n) const {
    const unsigned __int128 turn =
        static_cast<unsigned __int128>(n / weights_[part]) * slots_.size() +
        turns_[part][n % weights_[part]];
    return turn < kFar ? static_cast<uint64_t>(turn) : kFar;
  }
  // Turns of the part among the first `turns`.
  uint64_t Before(size_t part, uint64_t turns) const {
    const uint64_t periods = turns / slots_.size();
    const std::vector<uint32_t>& of_part = turns_[part];
    return periods * weights_[part] +
           static_cast<uint64_t>(
               std::lower_bound(of_part.begin(), of_part.end(),
                                turns - periods * slots_.size()) -
               of_part.begin());
  }
  // The turn that has this row.
  uint64_t TurnAt(uint64_t row) const {
    if (ends_.empty()) return row / block_;
    const uint64_t periods = row / ends_.back();
    return periods * ends_.size() +
           static_cast<uint64_t>(
               std::upper_bound(ends_.begin(), ends_.end(),
                                row - periods * ends_.back()) -
               ends_.begin());
  }
  // Rows of the first `turns`. At most kFar.
  uint64_t RowsBefore(uint64_t turns) const {
    unsigned __int128 rows = 0;
    if (ends_.empty()) {
      rows = static_cast<unsigned __int128>(turns) * block_;
    } else {
      const uint64_t periods = turns / ends_.size();
      const uint64_t slot = turns - periods * ends_.size();
      rows = static_cast<unsigned __int128>(periods) * ends_.back() +
             (slot == 0 ? 0 : ends_[slot - 1]);
    }
    return rows < kFar ? static_cast<uint64_t>(rows) : kFar;
  }
  static bool AllSame(const std::vector<uint64_t>& blocks) {
    return std::all_of(blocks.begin(), blocks.end(),
                       [&](uint64_t each) { return each == blocks[0]; });
  }
  static uint64_t BytesFor(uint64_t period, size_t parts, bool all_same) {
    return period * (sizeof(Slot) + 2 * sizeof(uint32_t) +
                     (all_same ? 0 : sizeof(uint64_t))) +
           parts * (sizeof(uint32_t) + sizeof(std::vector<uint32_t>));
  }
  uint64_t memory_bytes() const {
    return BytesFor(slots_.size(), weights_.size(), ends_.empty());
  }

 private:
  const std::vector<uint32_t> weights_;
  std::vector<Slot> slots_;
  std::vector<std::vector<uint32_t>> turns_;  // slots, by part
  uint64_t block_ = 0;                        // of all parts, if they are alike
  std::vector<uint64_t> ends_;  // else: the rows up to the end of each slot
};

class Mixed final : public MixOrder, private Steps {
 public:
  // Turns from `turn` on, until the next stretch.
  struct Stretch {
    uint64_t turn = 0;
    uint64_t row = 0;  // with which it begins
    std::shared_ptr<const Proportion> proportion;
    std::vector<uint64_t> before;  // turns of each part that came before
  };
  // How its passes are numbered for its parts: in pass `pass` of the mix a part
  // is in its pass first[part].
  struct PartPasses {
    uint64_t pass = 0;
    std::vector<uint64_t> first;
  };
  // What decides it, besides its parts.
  struct Rule {
    std::vector<MixWeights> schedule;
    WhenOut when_out = WhenOut::kStop;
    std::vector<uint64_t> blocks;  // rows of a turn of each part
    bool steps = false;            // each turn is a step
  };
  struct Made {
    std::vector<Stretch> stretches;
    std::vector<uint64_t> passes;  // as passes_
    uint64_t turns = 0;
    uint64_t rows = 0;
  };
  static StatusOr<Made> Make(const PartOrders& parts, const Rule& rule,
                             const OrderBudget& budget);

  Mixed(std::shared_ptr<const PartOrders> parts, Rule rule, PartPasses numbers,
        Made made)
      : MixOrder(made.rows),
        Steps(made.rows, made.turns,
              *std::max_element(rule.blocks.begin(), rule.blocks.end())),
        parts_(std::move(parts)),
        rule_(std::move(rule)),
        numbers_(std::move(numbers)),
        stretches_(std::move(made.stretches)),
        passes_(std::move(made.passes)) {}

  Row At(uint64_t index, uint64_t pass, Shuffling shuffling) const override {
    const Turn at = TurnOf(index);
    const uint64_t block = rule_.blocks[at.part];
    const uint64_t turns = (*parts_)[at.part].size() / block;
    const uint64_t time = at.of_part / turns;
    return parts_->At(at.part,
                      (at.of_part - time * turns) * block + index - at.row,
                      PassOf(at.part, pass) + time, shuffling);
  }
  bool repeats() const override {
    return parts_->Any(&Order::repeats) ||
           std::any_of(passes_.begin(), passes_.end(),
                       [](uint64_t passes) { return passes > 1; });
  }
  bool draws() const override { return parts_->Any(&Order::draws); }
  uint32_t shuffled_parts() const override { return parts_->shuffled(); }
  uint64_t memory_bytes() const override {
    uint64_t bytes = parts_->memory_bytes();
    for (const Stretch& stretch : stretches_) {
      bytes += stretch.proportion->memory_bytes() +
               stretch.before.size() * sizeof(uint64_t);
    }
    return bytes;
  }

  const MixOrder* mix() const override { return this; }
  size_t parts() const override { return parts_->size(); }
  uint64_t block() const override { return rule_.blocks[0]; }
  StatusOr<std::shared_ptr<const MixOrder>> ChangedAt(
      uint64_t pass, uint64_t place, const std::vector<uint32_t>& weights,
      const OrderBudget& budget) const override {
    assert(!rule_.steps && place % block() == 0 && place < size());
    Rule rule = rule_;
    std::erase_if(rule.schedule,
                  [&](const MixWeights& each) { return each.from >= place; });
    rule.schedule.push_back({place, weights});
    return With(pass, std::move(rule), budget);
  }
  StatusOr<std::shared_ptr<const MixOrder>> ChangedFrom(
      uint64_t pass, const std::vector<uint32_t>& weights,
      const OrderBudget& budget) const override {
    Rule rule = rule_;
    rule.schedule = {{0, weights}};
    return With(pass, std::move(rule), budget);
  }

  // ---- in steps of its own

  StatusOr<std::unique_ptr<Order>> InBatches(
      const std::vector<uint64_t>& sizes,
      const OrderBudget& budget) const override {
    assert(sizes.size() == parts_->size());
    Rule rule = rule_;
    rule.blocks = sizes;
    rule.steps = true;
    PENSTOCK_ASSIGN_OR_RETURN(Made made, Make(*parts_, rule, budget));
    return std::unique_ptr<Order>(std::make_unique<Mixed>(
        parts_, std::move(rule), numbers_, std::move(made)));
  }
  const Steps* steps() const override { return rule_.steps ? this : nullptr; }

 private:
  struct Turn {
    uint64_t row = 0;  // with which it begins
    uint64_t number = 0;
    uint32_t part = 0;
    uint64_t of_part = 0;  // turns of the part before, in the pass
  };

  uint64_t Begin(uint64_t step) const override {
    const Stretch& stretch = StretchAt(&Stretch::turn, step);
    return stretch.row + stretch.proportion->RowsBefore(step - stretch.turn);
  }
  uint64_t StepAt(uint64_t row) const override {
    if (row >= size()) return count();
    const Turn turn = TurnOf(row);
    return turn.number + (turn.row < row);
  }
  const char* fixed_by() const override { return "batch.by_part"; }
  uint64_t Following(uint64_t row, uint64_t i, uint64_t) const override {
    const Turn turn = TurnOf(row);
    return turn.row + (row - turn.row + i) % rule_.blocks[turn.part];
  }
  std::optional<uint32_t> PartOf(uint64_t step) const override {
    const Stretch& stretch = StretchAt(&Stretch::turn, step);
    return stretch.proportion->At(step - stretch.turn).first;
  }

  const Stretch& StretchAt(uint64_t Stretch::*counted, uint64_t at) const {
    return *std::prev(
        std::upper_bound(stretches_.begin(), stretches_.end(), at,
                         [counted](uint64_t wanted, const Stretch& each) {
                           return wanted < each.*counted;
                         }));
  }
  Turn TurnOf(uint64_t row) const {
    const Stretch& stretch = StretchAt(&Stretch::row, row);
    const Proportion& proportion = *stretch.proportion;
    const uint64_t turn = proportion.TurnAt(row - stretch.row);
    const auto [part, of_part] = proportion.At(turn);
    return {stretch.row + proportion.RowsBefore(turn), stretch.turn + turn,
            part, stretch.before[part] + of_part};
  }
  // The pass of a part in which it begins a pass of the mix.
  uint64_t PassOf(size_t part, uint64_t pass) const {
    return numbers_.first[part] + (pass - numbers_.pass) * passes_[part];
  }
  StatusOr<std::shared_ptr<const MixOrder>> With(
      uint64_t pass, Rule rule, const OrderBudget& budget) const {
    PENSTOCK_ASSIGN_OR_RETURN(Made made, Make(*parts_, rule, budget));
    PartPasses numbers = {pass, {}};
    for (size_t i = 0; i < parts_->size(); ++i) {
      numbers.first.push_back(PassOf(i, pass));
    }
    return std::shared_ptr<const MixOrder>(std::make_shared<Mixed>(
        parts_, std::move(rule), std::move(numbers), std::move(made)));
  }

  const std::shared_ptr<const PartOrders> parts_;
  const Rule rule_;
  const PartPasses numbers_;
  const std::vector<Stretch> stretches_;
  // Of each part, how many of its passes are begun in one of the mix.
  const std::vector<uint64_t> passes_;
};

}  // namespace

const Permutation& Shuffles::Of(uint32_t part, const ShuffleSpec& shuffle,
                                uint64_t records, uint64_t pass) {
  if (part > parts_.size()) parts_.resize(part);
  Last& last = part == 0 ? whole_ : parts_[part - 1];
  const uint64_t key = shuffle.each_epoch ? pass : 0;
  if (!last.permutation || last.pass != key) {
    last.permutation.emplace(records, shuffle.SeedOf(part), key);
    last.pass = key;
  }
  return *last.permutation;
}

std::unique_ptr<Shuffles::Kept>& Shuffles::KeptOf(uint32_t part) {
  assert(part > 0);
  if (part > parts_.size()) parts_.resize(part);
  return parts_[part - 1].kept;
}

std::unique_ptr<Order> AllRecords(uint64_t count, uint64_t first) {
  return std::make_unique<All>(count, first);
}

std::unique_ptr<Order> Slice(std::unique_ptr<Order> of, uint64_t first,
                             uint64_t count, uint64_t stride) {
  assert(count == 0 || first + (count - 1) * stride < of->size());
  return std::make_unique<Sliced>(std::move(of), first, count, stride);
}

StatusOr<std::unique_ptr<Order>> Pick(std::unique_ptr<Order> of,
                                      const std::function<bool(uint64_t)>& keep,
                                      const OrderBudget& budget) {
  constexpr uint64_t kRowsAtOnce = 1 << 16;
  const uint64_t size = of->size();
  PENSTOCK_RETURN_IF_ERROR(budget.reserve(Bitmap::BytesFor(size)));
  Bitmap kept(size);
  for (uint64_t i = 0; i < size; ++i) {
    if (i % kRowsAtOnce == 0 && budget.cancelled()) {
      return CancelledError("nobody waits any more");
    }
    if (keep(i)) kept.Add(i);
  }
  const uint64_t count = kept.Count();
  if (count == 0) {
    return InvalidArgumentError("none of {} is left; leave fewer out",
                                Counted(size, "record", "records"));
  }
  return std::unique_ptr<Order>(
      std::make_unique<Picked>(std::move(of), std::move(kept), count));
}

std::unique_ptr<Order> ListRows(std::shared_ptr<const Order> of, RowList rows,
                                size_t first, size_t count) {
  return std::make_unique<Listed>(std::move(of), std::move(rows), first, count);
}

std::unique_ptr<Order> InShards(std::unique_ptr<Order> of,
                                std::vector<Shard> shards,
                                uint64_t global_batch) {
  uint64_t rows = 0;
  for (const Shard& shard : shards) rows += shard.rows;
  return std::make_unique<Sharded>(std::move(of), std::move(shards), rows,
                                   global_batch);
}

StatusOr<std::unique_ptr<Order>> Repeat(std::unique_ptr<Order> of,
                                        uint64_t times) {
  if (of->size() > 0 && times > kRowsMax / of->size()) return TooManyRows();
  const uint64_t size = of->size() * times;
  return std::unique_ptr<Order>(
      std::make_unique<Repeated>(std::move(of), size, times));
}

std::unique_ptr<Order> ShuffledEachPass(std::unique_ptr<Order> of,
                                        uint64_t seed) {
  const uint64_t size = of->size();
  return std::make_unique<Shuffled>(std::move(of), size, seed);
}

std::unique_ptr<Order> Draw(std::unique_ptr<Order> of, uint64_t rows,
                            uint64_t seed, std::vector<double> weights) {
  return std::make_unique<Drawn>(std::move(of), rows, seed, std::move(weights));
}

StatusOr<std::unique_ptr<Order>> Concatenate(
    std::vector<std::unique_ptr<Order>> parts) {
  std::vector<uint64_t> ends;
  uint64_t rows = 0;
  for (const auto& part : parts) {
    if (part->size() > kRowsMax - rows) return TooManyRows();
    ends.push_back(rows += part->size());
  }
  return std::unique_ptr<Order>(
      std::make_unique<Concatenated>(std::move(parts), std::move(ends)));
}

StatusOr<std::unique_ptr<Order>> Mix(std::vector<std::unique_ptr<Order>> parts,
                                     std::vector<MixWeights> schedule,
                                     WhenOut when_out,
                                     const OrderBudget& budget,
                                     uint64_t block) {
  for (const MixWeights& change : schedule) {
    if (change.from % block == 0) continue;
    return InvalidArgumentError(
        "weights from row {} on: wanted a multiple of the block, {}",
        change.from, block);
  }
  const auto shared = std::make_shared<const PartOrders>(std::move(parts));
  Mixed::Rule rule = {std::move(schedule), when_out,
                      std::vector<uint64_t>(shared->size(), block)};
  PENSTOCK_ASSIGN_OR_RETURN(Mixed::Made made,
                            Mixed::Make(*shared, rule, budget));
  Mixed::PartPasses numbers = {0, std::vector<uint64_t>(shared->size())};
  return std::unique_ptr<Order>(std::make_unique<Mixed>(
      shared, std::move(rule), std::move(numbers), std::move(made)));
}

StatusOr<Mixed::Made> Mixed::Make(const PartOrders& parts, const Rule& rule,
                                  const OrderBudget& budget) {
  const std::vector<MixWeights>& schedule = rule.schedule;
  const WhenOut when_out = rule.when_out;
  const size_t count = parts.size();
  const auto of_block = [&](size_t i) {
    return Format(" records, less than {}, {}",
                  rule.steps ? "a batch of it" : "a block", rule.blocks[i]);
  };
  for (size_t i = 0; i < count; ++i) {
    const uint64_t block = rule.blocks[i];
    if (parts[i].size() < block) {
      return InvalidArgumentError(
          "parts[{}]: has {}{}: leave the part out{}", i,
          parts[i].size() == 0 ? "no" : Format("{}", parts[i].size()),
          block == 1 ? " records" : of_block(i),
          block == 1   ? ""
          : rule.steps ? ", or give it a smaller one"
                       : ", or give a smaller block");
    }
    if (when_out != WhenOut::kStop && schedule.back().weights[i] == 0) {
      return InvalidArgumentError(
          "parts[{}]: has the weight 0 in the end, so it is never complete: "
          "use when_out: stop, or a small weight",
          i);
    }
  }
  // From here on all is counted in turns.
  const auto size = [&](size_t part) {
    return parts[part].size() / rule.blocks[part];
  };
  const bool all_same = Proportion::AllSame(rule.blocks);
  Made made;
  std::vector<uint64_t> taken(count, 0);
  uint64_t at = 0;
  uint64_t row = 0;
  size_t next = 0;  // of the schedule
  std::vector<uint32_t> weights;
  // That a part still has.
  const auto left = [&](size_t part) { return size(part) - taken[part]; };
  for (;;) {
    while (next < schedule.size() && schedule[next].from <= row) {
      weights = schedule[next++].weights;
    }
    std::vector<uint32_t> now = weights;
    if (when_out == WhenOut::kDrop) {
      for (size_t i = 0; i < count; ++i) {
        if (left(i) == 0) now[i] = 0;
      }
    }
    uint32_t divisor = 0;
    for (const uint32_t weight : now) divisor = std::gcd(divisor, weight);
    if (divisor == 0) {
      // Nothing is left of the parts that have a weight now.
      uint64_t turns = 0;
      for (size_t i = 0; i < count; ++i) turns += left(i);
      if (turns == 0) break;
      return InvalidArgumentError(
          "schedule: no part with a weight has records from row {} on: give "
          "another part a weight there, or use when_out: stop",
          row);
    }
    for (uint32_t& weight : now) weight /= divisor;
    const uint64_t period =
        std::accumulate(now.begin(), now.end(), uint64_t{0});
    if (period > kMixPeriodMax) {
      return InvalidArgumentError(
          "its weights, as whole numbers, add up to {}, more than {}: round "
          "them",
          period, kMixPeriodMax);
    }
    if (budget.cancelled()) return CancelledError("nobody waits any more");
    PENSTOCK_RETURN_IF_ERROR(
        budget.reserve(Proportion::BytesFor(period, count, all_same) +
                       count * sizeof(uint64_t)));
    auto proportion = std::make_shared<const Proportion>(now, rule.blocks);
    // The turn before which a part is out, or after which all are complete.
    std::optional<uint64_t> event;
    bool last = false;
    if (when_out == WhenOut::kRepeat) {
      uint64_t complete = 0;
      bool possible = true;
      for (size_t i = 0; i < count; ++i) {
        if (taken[i] >= size(i)) continue;
        if (now[i] == 0) {
          possible = false;
          continue;
        }
        complete =
            std::max(complete, at + proportion->TurnOf(i, left(i) - 1) + 1);
      }
      if (possible) {
        event = complete;
        last = true;
      }
    } else {
      for (size_t i = 0; i < count; ++i) {
        if (now[i] == 0) continue;
        // Stop: before the turn that would need one more than there are. Drop:
        // after the last.
        const uint64_t out = when_out == WhenOut::kStop
                                 ? at + proportion->TurnOf(i, left(i))
                                 : at + proportion->TurnOf(i, left(i) - 1) + 1;
        if (!event || out < *event) event = out;
      }
      last = when_out == WhenOut::kStop;
    }
    // The first turn that begins where the schedule goes on.
    uint64_t end = kFar;
    if (next < schedule.size()) {
      end = at + proportion->TurnAt(schedule[next].from - row - 1) + 1;
    }
    const bool ends = event && *event <= end;
    if (ends) end = *event;
    const uint64_t rows = proportion->RowsBefore(end - at);
    if (rows > kRowsMax - row) return TooManyRows();
    if (end > at) made.stretches.push_back({at, row, proportion, taken});
    for (size_t i = 0; i < count; ++i) {
      taken[i] += proportion->Before(i, end - at);
    }
    at = end;
    row += rows;
    if (ends && last) break;
  }
  for (size_t i = 0; i < count; ++i) {
    made.passes.push_back(
        std::max<uint64_t>(1, (taken[i] + size(i) - 1) / size(i)));
  }
  if (at == 0) {
    return InvalidArgumentError(
        "has no row: its first would be of a part without records");
  }
  made.turns = at;
  made.rows = row;
  return made;
}

StatusOr<std::vector<uint32_t>> WholeWeights(
    const std::vector<double>& weights) {
  for (const double scale : {1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6}) {
    std::vector<uint32_t> whole;
    bool exact = true;
    for (const double weight : weights) {
      const double rounded = std::round(weight * scale);
      exact &= std::abs(weight * scale - rounded) <= 1e-9 * rounded &&
               rounded <= UINT32_MAX;
      whole.push_back(
          static_cast<uint32_t>(std::min<double>(rounded, UINT32_MAX)));
    }
    if (exact) return whole;
  }
  return InvalidArgumentError(
      "weights have at most six digits after the point, and ten in all: give "
      "whole numbers in the same proportion, such as [1, 2] for a third and "
      "two "
      "thirds");
}

}  // namespace penstock
