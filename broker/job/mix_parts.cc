#include "broker/job/mix_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <variant>

#include "broker/declare/declaration.h"
#include "broker/plan/mix.h"
#include "broker/source/parts.h"
#include "broker/transform/mixup.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using Part = JobState::MixPart;

// Those of a mix, if they do not change by a schedule.
std::optional<std::vector<double>> SpecWeights(const DatasetSpec& spec) {
  const auto* const mix = std::get_if<MixSource>(&spec.source);
  if (mix == nullptr || !mix->schedule.empty()) return std::nullopt;
  std::vector<double> weights;
  for (const PartSpec& part : mix->parts) weights.push_back(part.weight);
  return weights;
}

// As a change has them; empty: it cannot.
std::vector<uint32_t> WeightsOfChange(const std::vector<double>& weights) {
  auto whole = WholeWeights(weights);
  if (!whole.ok()) return {};
  uint32_t divisor = 0;
  for (const uint32_t weight : *whole) divisor = std::gcd(divisor, weight);
  for (uint32_t& weight : *whole) {
    weight /= std::max(divisor, 1U);
    if (weight > WeightsChange::kWeightMax) return {};
  }
  return *std::move(whole);
}

// The first text in it.
const nlohmann::ordered_json* TextIn(const nlohmann::ordered_json& json) {
  if (json.is_string()) return &json;
  if (!json.is_structured()) return nullptr;
  for (const auto& each : json) {
    if (const auto* const text = TextIn(each)) return text;
  }
  return nullptr;
}

// What a source is, in a word and what it is of: "megatron /data/c4_text".
// base: of a path only its last name, which is the same on every host.
std::string SourceText(const SourceSpec& source, bool base = false) {
  constexpr size_t kTextMax = 80;
  nlohmann::ordered_json json;
  WriteKind(KindsOf<SourceSpec>(), &source, &json);
  const auto& value = json.begin().value();
  const auto* const text = TextIn(value);
  std::string of = text != nullptr ? text->get<std::string>() : value.dump();
  if (base) of = of.substr(of.rfind('/') + 1);
  of = json.begin().key() + " " + of;
  if (of.size() > kTextMax) {
    of = of.substr(0, kTextMax / 2) + "..." +
         of.substr(of.size() - kTextMax / 2);
  }
  return Printable(of);
}

std::string NameOf(const DatasetSpec& spec, size_t part) {
  return Format(
      "parts[{}] ({})", part,
      SourceText(std::get<MixSource>(spec.source).parts[part].source));
}

// Those of the spec, at their beginning.
std::vector<Part> PartsOf(const DatasetSpec& spec, const Dataset& dataset,
                          const MixOrder& mix) {
  const std::vector<PartPlace> places = mix.PlacesAt(0, 0);
  // A snapshot has no parts.
  const auto* const source =
      dynamic_cast<const SourceOfParts*>(dataset.source.get());
  std::vector<Part> parts;
  for (size_t i = 0; i < places.size(); ++i) {
    Part& part = parts.emplace_back();
    if (source != nullptr) part.key = source->KeyOfPart(i);
    part.name =
        SourceText(std::get<MixSource>(spec.source).parts[i].source, true);
    part.records = mix.RowsOf(i);
    part.shuffle = places[i].shuffle;
  }
  return parts;
}

std::vector<PartPlace> PlacesOf(const std::vector<Part>& parts) {
  std::vector<PartPlace> places;
  for (const Part& part : parts) {
    places.push_back({part.shuffle, part.pass, part.taken});
  }
  return places;
}

// A mix whose weights alone may be others. False: they would be a change more
// than a state has.
bool TakeWeights(const JobState& state, const std::vector<double>& wanted,
                 MixStart* start) {
  const JobState::Mix& former = *state.mix;
  if (wanted != former.spec) {
    const std::vector<uint32_t> change = WeightsOfChange(wanted);
    if (change.empty()) return true;  // and the state is of another order
    if (!start->changes.empty() && start->changes.back().epoch == state.epoch &&
        start->changes.back().row == state.row) {
      start->changes.pop_back();
    }
    if (start->changes.size() == JobState::kChangesMax) return false;
    start->changes.push_back({state.epoch, state.row, change});
  }
  start->mix->begin = former.begin;
  return true;
}

Status TooManyChanges() {
  return ResourceExhaustedError(
      "state: has {} changes of weights, the most that are kept, and the spec "
      "has others: go on with the weights of the last resume",
      JobState::kChangesMax);
}

// A mix goes on with the parts of a spec.
class OtherParts {
 public:
  OtherParts(const JobState& state, const DatasetSpec& spec,
             const Dataset& dataset, std::vector<Part> parts)
      : state_(state),
        former_(*state.mix),
        spec_(spec),
        dataset_(dataset),
        parts_(std::move(parts)) {}

  // Which of the state's parts, those that are gone behind the others, each one
  // is.
  Status Match() {
    const size_t all = former_.parts.size() + former_.gone.size();
    was_.resize(parts_.size());
    is_.assign(all, false);
    const auto take = [&](size_t part, size_t former) {
      was_[part] = former;
      is_[former] = true;
    };
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (size_t j = 0; j < all && !was_[i]; ++j) {
        if (is_[j] || parts_[i].key.empty() || Former(j).key != parts_[i].key ||
            Former(j).records != parts_[i].records) {
          continue;
        }
        take(i, j);
      }
    }
    // Names of files may have changed since.
    for (size_t i = 0; i < std::min(parts_.size(), former_.parts.size()); ++i) {
      if (was_[i] || is_[i] || Former(i).records != parts_[i].records) continue;
      take(i, i);
    }
    if (std::none_of(was_.begin(), was_.end(),
                     [](const auto& was) { return was.has_value(); })) {
      return FailedPreconditionError(
          "the state belongs to other data: its mix has none of these parts, "
          "{} and so on{}",
          NameOf(spec_, 0),
          spec_.batch.pack ? ", or packs them otherwise (`batch.pack`)" : "");
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (size_t j = 0; j < former_.parts.size() && !was_[i]; ++j) {
        if (is_[j] || Former(j).name != parts_[i].name) continue;
        return InvalidArgumentError(
            "state: {} has {} in a pass, and the state's part of this name {}: "
            "data that have changed cannot go on where they were; if it is "
            "another part, leave the former one out in a resume of its own",
            NameOf(spec_, i), Counted(parts_[i].records, "row", "rows"),
            Former(j).records);
      }
    }
    return OkStatus();
  }
  bool Same() const {
    if (parts_.size() != former_.parts.size()) return false;
    for (size_t i = 0; i < was_.size(); ++i) {
      if (was_[i] != i) return false;
    }
    return true;
  }
  // The same parts: what the state says of them.
  void Keep(JobState::Mix* mix) {
    if (former_.from) {
      for (size_t i = 0; i < parts_.size(); ++i) {
        parts_[i] = As(parts_[i], former_.parts[i]);
      }
      mix->shuffles = former_.shuffles;
      mix->from = former_.from;
      mix->gone = former_.gone;
    }
    mix->parts = std::move(parts_);
  }

  // The same parts, with the weights of the spec: the changes before the
  // state's row are forgotten, for where they have brought each part.
  Status ForgetChanges(uint32_t world_size, const OrderBudget& budget,
                       MixStart* start) const {
    JobState::Mix& mix = *start->mix;
    const bool is_there =
        former_.rule == mix.rule && state_.owed.empty() &&
        spec_.batch.by_part.empty() &&
        (!dataset_.mixes_pairs() || state_.row % kPairedRows == 0);
    if (!is_there) return TooManyChanges();
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Part> now,
                              FormerPlaces(world_size, budget));
    for (size_t i = 0; i < mix.parts.size(); ++i) {
      mix.parts[i] = As(mix.parts[i], now[i]);
    }
    mix.shuffles = former_.shuffles;
    mix.from = {state_.epoch, state_.row};
    start->changes.clear();
    start->parts_changed = true;
    return OkStatus();
  }

  // Others. mix: the order of the spec.
  Status Change(const MixOrder& order, uint32_t world_size,
                const OrderBudget& budget, MixStart* start) {
    PENSTOCK_RETURN_IF_ERROR(CheckPlace(start->mix->rule));
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Part> now,
                              FormerPlaces(world_size, budget));
    const std::vector<PartPlace> fresh = order.PlacesAt(0, 0);
    uint32_t next = former_.shuffles;
    std::vector<std::string> news;
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      const uint32_t end =
          i + 1 < parts_.size() ? fresh[i + 1].shuffle : order.shuffled_parts();
      const uint32_t width = end - fresh[i].shuffle;
      if (was_[i]) {
        part = As(part, now[*was_[i]]);
        if (*was_[i] >= former_.parts.size()) {
          news.push_back(NameOf(spec_, i) + " is back");
        }
      } else {
        part.shuffle = next;
        next += width;
        news.push_back(NameOf(spec_, i) + " begins");
      }
      if (next > Part::kShufflesMax) {
        return ResourceExhaustedError(
            "state: parts of this mix came and went too often: begin another "
            "job without the state");
      }
      if (dataset_.packing != nullptr && part.shuffle != i) {
        return InvalidArgumentError(
            "state: {}: the parts of a mix that is packed keep their places: "
            "put new ones behind the others, and leave out the last alone",
            NameOf(spec_, i));
      }
    }
    JobState::Mix& mix = *start->mix;
    mix.shuffles = next;
    mix.parts = std::move(parts_);
    mix.from = {state_.epoch, state_.row};
    for (size_t j = 0; j < now.size(); ++j) {
      if (is_[j]) continue;
      if (j < former_.parts.size()) {
        news.push_back(Printable(now[j].name) + " is left out");
      }
      // It comes back where it was, whichever pass the mix is in.
      now[j].pass += now[j].taken / now[j].records;
      now[j].taken %= now[j].records;
      mix.gone.push_back(std::move(now[j]));
    }
    if (mix.gone.size() > JobState::Mix::kGoneMax) {
      mix.gone.erase(mix.gone.begin(),
                     mix.gone.end() - JobState::Mix::kGoneMax);
    }
    start->changes.clear();
    start->parts_changed = true;
    start->news =
        "the mix has other parts than the state: " +
        (news.empty() ? "another order of them" : JoinText(news, ", "));
    return OkStatus();
  }

 private:
  // The same part, and where the state has it.
  static Part As(const Part& part, const Part& state) {
    Part same = state;
    same.key = part.key;
    same.name = part.name;
    return same;
  }
  const Part& Former(size_t number) const {
    const size_t parts = former_.parts.size();
    return number < parts ? former_.parts[number]
                          : former_.gone[number - parts];
  }
  // The first part that is another.
  std::string Which() const {
    for (size_t i = 0; i < was_.size(); ++i) {
      if (was_[i] != i) return NameOf(spec_, i);
    }
    return Format("parts[{}] of the state is left out", was_.size());
  }

  Status CheckPlace(const std::string& rule) const {
    if (former_.rule != rule) {
      return FailedPreconditionError(
          "the state belongs to other data or another order: {}, and "
          "`when_out`, `block`, or what else decides the order of the mix, is "
          "another, too: change its parts alone",
          Which());
    }
    if (!state_.owed.empty()) {
      return FailedPreconditionError(
          "state: {}, and {} of rows before it were not delivered (`owed`), "
          "which need the former parts: go on with these until a state owes "
          "none",
          Which(), Counted(state_.owed.size(), "batch", "batches"));
    }
    if (!spec_.batch.by_part.empty()) {
      return InvalidArgumentError(
          "state: {}: with batch.by_part other parts would give other steps, "
          "and a mix keeps those that it has",
          Which());
    }
    if (dataset_.mixes_pairs() && state_.row % kPairedRows != 0) {
      return InvalidArgumentError(
          "state: {}: rows are mixed in pairs, and row {} had a partner before "
          "it: parts change at a multiple of {}",
          Which(), state_.row, kPairedRows);
    }
    return OkStatus();
  }

  // Where the state's parts, and those that are gone, are at its row: their
  // sizes alone tell it.
  StatusOr<std::vector<Part>> FormerPlaces(uint32_t world_size,
                                           const OrderBudget& budget) const {
    const auto& source = std::get<MixSource>(spec_.source);
    std::vector<std::unique_ptr<Order>> orders;
    for (const Part& part : former_.parts) {
      orders.push_back(AllRecords(part.records));
    }
    const auto damaged = [](const Status& status) {
      return status.Prepend("state: mix");
    };
    auto weights = WholeWeights(former_.begin);
    if (!weights.ok()) return damaged(weights.status());
    auto mix = Mix(std::move(orders), {{0, *weights}}, source.when_out, budget,
                   source.block);
    if (!mix.ok()) return damaged(mix.status());
    if (!former_.from && (*mix)->size() != state_.records) {
      return damaged(InvalidArgumentError(
          "its parts make a pass of {} rows, and `records` is {}",
          (*mix)->size(), state_.records));
    }
    auto plan = Plan::Make(spec_, *std::move(mix), world_size, state_.records);
    if (plan.ok() && former_.from) {
      plan = plan->BegunAt(former_.from->epoch, former_.from->row,
                           PlacesOf(former_.parts), *weights, budget);
    }
    for (size_t i = 0; i < state_.weights.size() && plan.ok(); ++i) {
      plan = plan->WithWeights(state_.weights[i], budget);
    }
    if (!plan.ok()) return damaged(plan.status());
    const uint64_t rows = plan->rows_per_epoch();
    if (state_.epoch >= Plan::kTotalRowsMax / rows) {
      return damaged(InvalidArgumentError("epoch {}: wanted less than {}",
                                          state_.epoch,
                                          Plan::kTotalRowsMax / rows));
    }
    const std::vector<Plan::PartRows> at =
        plan->PartsAt(state_.epoch * rows + std::min(state_.row, rows));
    std::vector<Part> parts = former_.parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].pass = at[i].place.pass;
      parts[i].taken = at[i].place.rows;
      parts[i].rows += at[i].rows;
    }
    parts.insert(parts.end(), former_.gone.begin(), former_.gone.end());
    return parts;
  }

  const JobState& state_;
  const JobState::Mix& former_;
  const DatasetSpec& spec_;
  const Dataset& dataset_;
  std::vector<Part> parts_;
  std::vector<std::optional<size_t>> was_;  // of the state's, of each part
  std::vector<bool> is_;                    // there, of each of the state's
};

// How many tokens so many rows of a part have; nullopt: they differ, or are
// none.
std::optional<uint64_t> TokensOf(uint64_t rows, const DatasetSpec& spec,
                                 const Dataset& dataset, size_t part) {
  if (const Packing* const packing = dataset.packing.get()) {
    return packing->ItemsOf(part, rows);
  }
  const auto& mix = std::get<MixSource>(spec.source);
  const SourceSpec& source = mix.parts[part].source;
  if (dataset.source->parts() != mix.parts.size() ||
      !(std::holds_alternative<MegatronSource>(source) ||
        std::holds_alternative<TokensSource>(source))) {
    return std::nullopt;
  }
  const RawSpec& spec_of_part = dataset.source->RawSpecOfPart(part);
  const Feature& tokens = spec_of_part[0].feature;
  // Documents differ in length.
  if (spec_of_part.back().feature.name == tokens.name + ".length") {
    return std::nullopt;
  }
  if (tokens.shape.size() != 1 || tokens.shape[0] < 0) return std::nullopt;
  return rows * static_cast<uint64_t>(tokens.shape[0]);
}

}  // namespace

StatusOr<MixStart> StartOfMix(const JobOptions& options,
                              const DatasetSpec& spec, const Dataset& dataset,
                              const Order& order, uint32_t world_size,
                              const OrderBudget& budget) {
  MixStart start;
  if (options.start) start.changes = options.start->weights;
  const auto wanted = SpecWeights(spec);
  if (!wanted) return start;
  // Not emplace(): Clang takes no default of a nested class there.
  JobState::Mix& mix = *(start.mix = JobState::Mix());
  mix.begin = mix.spec = *wanted;
  const MixOrder* const of = order.mix();
  if (of != nullptr) {
    mix.rule = RuleOf(spec, dataset);
    mix.parts = PartsOf(spec, dataset, *of);
    mix.shuffles = of->shuffled_parts();
  }
  if (!options.start || !options.start->mix) return start;
  const JobState& state = *options.start;
  if (of == nullptr || state.mix->parts.empty()) {
    if (state.mix->begin.size() == wanted->size() &&
        !TakeWeights(state, *wanted, &start)) {
      return TooManyChanges();
    }
    return start;
  }
  OtherParts parts(state, spec, dataset, mix.parts);
  PENSTOCK_RETURN_IF_ERROR(parts.Match());
  if (!parts.Same()) {
    PENSTOCK_RETURN_IF_ERROR(parts.Change(*of, world_size, budget, &start));
    return start;
  }
  parts.Keep(&mix);
  if (!TakeWeights(state, *wanted, &start)) {
    PENSTOCK_RETURN_IF_ERROR(parts.ForgetChanges(world_size, budget, &start));
  }
  return start;
}

StatusOr<Plan> PlanOfMix(const MixStart& start, const JobOptions& options,
                         const DatasetSpec& spec,
                         std::shared_ptr<const Order> order,
                         uint32_t world_size, const OrderBudget& budget) {
  std::optional<uint64_t> records;
  std::vector<uint32_t> weights;
  if (start.mix) {
    PENSTOCK_ASSIGN_OR_RETURN(weights, WholeWeights(start.mix->begin));
    if (start.mix->from) {
      records = options.start->records;
    } else if (order->mix() != nullptr &&
               start.mix->begin != SpecWeights(spec)) {
      PENSTOCK_ASSIGN_OR_RETURN(order,
                                order->mix()->ChangedFrom(0, weights, budget));
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      Plan plan, Plan::Make(spec, std::move(order), world_size, records));
  if (start.mix && start.mix->from) {
    auto begun = plan.BegunAt(start.mix->from->epoch, start.mix->from->row,
                              PlacesOf(start.mix->parts), weights, budget);
    if (!begun.ok()) return begun.status().Prepend("state: mix");
    plan = *std::move(begun);
  }
  const bool is_mix = std::holds_alternative<MixSource>(spec.source);
  for (const WeightsChange& change :
       AllWeights(start.changes, options.weights)) {
    auto changed = is_mix ? plan.WithWeights(change, budget)
                          : InvalidArgumentError("the source is no mix");
    if (!changed.ok()) return changed.status().Prepend("state: weights");
    plan = *std::move(changed);
  }
  return plan;
}

void SetWeights(const std::vector<double>& weights, DatasetSpec* spec) {
  auto& parts = std::get<MixSource>(spec->source).parts;
  for (size_t i = 0; i < parts.size(); ++i) parts[i].weight = weights[i];
}

nlohmann::json MixPartsJson(const DatasetSpec& spec, const Dataset& dataset,
                            const std::optional<JobState::Mix>& mix,
                            const Plan& plan, uint64_t begun,
                            uint64_t position) {
  const std::vector<Plan::PartRows> parts = plan.PartsAt(position);
  const std::vector<Plan::PartRows> before = plan.PartsAt(begun);
  const auto& specs = std::get<MixSource>(spec.source).parts;
  std::vector<uint64_t> rows;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool known = mix && i < mix->parts.size();
    rows.push_back(parts[i].rows + (known ? mix->parts[i].rows : 0));
  }
  const uint64_t all = std::accumulate(rows.begin(), rows.end(), uint64_t{0});
  const auto ratio = [](uint64_t of, uint64_t to) {
    return to == 0 ? 0.0 : static_cast<double>(of) / static_cast<double>(to);
  };
  nlohmann::json json = nlohmann::json::array();
  for (size_t i = 0; i < parts.size(); ++i) {
    const uint64_t records = plan.mix()->RowsOf(i);
    json.push_back({{"part", i},
                    {"source", SourceText(specs[i].source)},
                    {"weight", parts[i].share},
                    {"share", ratio(rows[i], all)},
                    {"rows", rows[i]},
                    {"rows_of_job", parts[i].rows - before[i].rows},
                    {"rows_of_pass", parts[i].place.rows},
                    {"records", records},
                    {"epochs", ratio(rows[i], records)}});
    if (const auto tokens = TokensOf(rows[i], spec, dataset, i)) {
      json.back()["tokens"] = *tokens;
    }
  }
  return json;
}

}  // namespace penstock
