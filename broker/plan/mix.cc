#include "broker/plan/mix.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "broker/plan/part_orders.h"
#include "broker/plan/steps.h"
#include "common/exact_max.h"
#include "common/format.h"

namespace penstock {
namespace {

constexpr uint64_t kFar = uint64_t{1} << 62;

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
    // The turns of a part are tasks of one slot: turn c of weight w may come
    // from slot floor(c * period / w) on and must before ceil((c + 1) * period
    // / w). The earliest deadline first keeps all of them, as the weights add
    // up to the period (Baruah et al., "Proportionate Progress", 1996).
    using Task = std::pair<uint64_t, uint32_t>;  // slot, part
    std::priority_queue<Task, std::vector<Task>, std::greater<>> waiting;
    std::priority_queue<Task, std::vector<Task>, std::greater<>> ready;
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
  // A part's share of the rows.
  double ShareOf(size_t part, const std::vector<uint64_t>& blocks) const {
    const uint64_t rows = ends_.empty() ? slots_.size() * block_ : ends_.back();
    return static_cast<double>(weights_[part] * blocks[part]) /
           static_cast<double>(rows);
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
  // begun: turns of each part before; empty: none.
  static StatusOr<Made> Make(const PartOrders& parts, const Rule& rule,
                             const std::vector<uint64_t>& begun,
                             const OrderBudget& budget);

  Mixed(std::shared_ptr<const PartOrders> parts, Rule rule, PartPasses numbers,
        Made made, std::vector<uint64_t> begun = {})
      : MixOrder(made.rows),
        Steps(made.rows, made.turns,
              *std::max_element(rule.blocks.begin(), rule.blocks.end())),
        parts_(std::move(parts)),
        rule_(std::move(rule)),
        numbers_(std::move(numbers)),
        stretches_(std::move(made.stretches)),
        passes_(std::move(made.passes)),
        begun_(std::move(begun)) {}

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
  uint64_t RowsOf(size_t part) const override {
    const uint64_t block = rule_.blocks[part];
    return (*parts_)[part].size() / block * block;
  }
  std::vector<uint64_t> RowsBefore(uint64_t place) const override {
    const Stretch& stretch = StretchAt(&Stretch::row, place);
    const Proportion& proportion = *stretch.proportion;
    const uint64_t turn = proportion.TurnAt(place - stretch.row);
    std::vector<uint64_t> rows(parts());
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t turns = stretch.before[i] + proportion.Before(i, turn);
      rows[i] = (turns - (begun() ? begun_[i] : 0)) * rule_.blocks[i];
    }
    rows[proportion.At(turn).first] +=
        place - stretch.row - proportion.RowsBefore(turn);
    return rows;
  }
  std::vector<double> SharesAt(uint64_t place) const override {
    const Stretch& stretch = StretchAt(&Stretch::row, place);
    std::vector<double> shares;
    for (size_t i = 0; i < parts(); ++i) {
      shares.push_back(stretch.proportion->ShareOf(i, rule_.blocks));
    }
    return shares;
  }
  std::vector<PartPlace> PlacesAt(uint64_t pass,
                                  uint64_t place) const override {
    const std::vector<uint64_t> rows = RowsBefore(place);
    std::vector<PartPlace> places;
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t before = begun() ? begun_[i] * rule_.blocks[i] : 0;
      places.push_back({parts_->FirstOf(i), PassOf(i, pass), before + rows[i]});
    }
    return places;
  }
  bool begun() const override { return !begun_.empty(); }
  StatusOr<std::shared_ptr<const MixOrder>> BegunAt(
      const std::vector<PartPlace>& places,
      const std::vector<uint32_t>& weights,
      const OrderBudget& budget) const override;
  StatusOr<std::shared_ptr<const MixOrder>> ChangedAt(
      uint64_t pass, uint64_t place, const std::vector<uint32_t>& weights,
      const OrderBudget& budget) const override {
    assert(!rule_.steps && place % block() == 0 && place < size());
    assert(!begun() || pass == numbers_.pass);
    Rule rule = rule_;
    std::erase_if(rule.schedule,
                  [&](const MixWeights& each) { return each.from >= place; });
    rule.schedule.push_back({place, weights});
    return With(pass, std::move(rule), begun_, budget);
  }
  StatusOr<std::shared_ptr<const MixOrder>> ChangedFrom(
      uint64_t pass, const std::vector<uint32_t>& weights,
      const OrderBudget& budget) const override {
    Rule rule = rule_;
    rule.schedule = {{0, weights}};
    return With(pass, std::move(rule), {}, budget);
  }

  // ---- in steps of its own

  StatusOr<std::unique_ptr<Order>> InBatches(
      const std::vector<uint64_t>& sizes,
      const OrderBudget& budget) const override {
    assert(sizes.size() == parts_->size());
    Rule rule = rule_;
    rule.blocks = sizes;
    rule.steps = true;
    PENSTOCK_ASSIGN_OR_RETURN(Made made, Make(*parts_, rule, {}, budget));
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
  uint64_t RowsOfPart(uint32_t part) const override {
    return rule_.blocks[part];
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
      uint64_t pass, Rule rule, std::vector<uint64_t> begun,
      const OrderBudget& budget) const {
    PENSTOCK_ASSIGN_OR_RETURN(Made made, Make(*parts_, rule, begun, budget));
    PartPasses numbers = {pass, {}};
    for (size_t i = 0; i < parts_->size(); ++i) {
      numbers.first.push_back(PassOf(i, pass));
    }
    return std::shared_ptr<const MixOrder>(
        std::make_shared<Mixed>(parts_, std::move(rule), std::move(numbers),
                                std::move(made), std::move(begun)));
  }

  const std::shared_ptr<const PartOrders> parts_;
  const Rule rule_;
  const PartPasses numbers_;
  const std::vector<Stretch> stretches_;
  // How many passes of each part are begun in one of the mix.
  const std::vector<uint64_t> passes_;
  // Turns of each part before its first pass; empty: none.
  const std::vector<uint64_t> begun_;
};

}  // namespace

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
                            Mixed::Make(*shared, rule, {}, budget));
  Mixed::PartPasses numbers = {0, std::vector<uint64_t>(shared->size())};
  return std::unique_ptr<Order>(std::make_unique<Mixed>(
      shared, std::move(rule), std::move(numbers), std::move(made)));
}

StatusOr<std::shared_ptr<const MixOrder>> Mixed::BegunAt(
    const std::vector<PartPlace>& places, const std::vector<uint32_t>& weights,
    const OrderBudget& budget) const {
  assert(places.size() == parts() && !rule_.steps);
  std::vector<uint32_t> shuffles;
  std::vector<uint64_t> begun;
  PartPasses numbers;
  for (size_t i = 0; i < places.size(); ++i) {
    const PartPlace& place = places[i];
    if (place.rows % block() != 0) {
      return InvalidArgumentError(
          "parts[{}]: row {} of it is within a block of {}: other parts, or "
          "weights, begin with a block",
          i, place.rows, block());
    }
    if (rule_.when_out != WhenOut::kRepeat && place.rows > RowsOf(i)) {
      return InvalidArgumentError("parts[{}]: has {} rows, and {} were taken",
                                  i, RowsOf(i), place.rows);
    }
    shuffles.push_back(place.shuffle);
    begun.push_back(place.rows / block());
    numbers.first.push_back(place.pass);
  }
  auto numbered =
      std::make_shared<const PartOrders>(*parts_, std::move(shuffles));
  if (!numbered->NumbersDiffer()) {
    return InvalidArgumentError("two parts have the number of one shuffle");
  }
  Rule rule = rule_;
  rule.schedule = {{0, weights}};
  PENSTOCK_ASSIGN_OR_RETURN(Made made, Make(*numbered, rule, begun, budget));
  return std::shared_ptr<const MixOrder>(std::make_shared<Mixed>(
      std::move(numbered), std::move(rule), std::move(numbers), std::move(made),
      std::move(begun)));
}

StatusOr<Mixed::Made> Mixed::Make(const PartOrders& parts, const Rule& rule,
                                  const std::vector<uint64_t>& begun,
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
  }
  // From here on all is counted in turns.
  const auto size = [&](size_t part) {
    return parts[part].size() / rule.blocks[part];
  };
  const bool all_same = Proportion::AllSame(rule.blocks);
  Made made;
  std::vector<uint64_t> taken = begun;
  taken.resize(count);
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
      // Parts whose weight is 0 in the end are left out.
      if (turns == 0 || next == schedule.size()) break;
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
    PENSTOCK_RETURN_IF_ERROR(budget.CheckWanted());
    PENSTOCK_RETURN_IF_ERROR(
        budget.reserve(Proportion::BytesFor(period, count, all_same) +
                       count * sizeof(uint64_t)));
    auto proportion = std::make_shared<const Proportion>(now, rule.blocks);
    // The turn before which a part is out, or after which all are complete.
    std::optional<uint64_t> event;
    bool last = false;
    if (when_out == WhenOut::kRepeat) {
      uint64_t complete = at;
      bool possible = true;
      for (size_t i = 0; i < count; ++i) {
        if (taken[i] >= size(i)) continue;
        if (now[i] == 0) {
          possible = possible && next == schedule.size();
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
    if (rows > kExactMax - row) return TooManyRows();
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
  if (at == 0 && begun.empty()) {
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
