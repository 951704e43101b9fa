// What a job needs before it is created: its plan, where a state says it
// begins, its lanes and slots.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "broker/job/job.h"
#include "broker/job/mix_parts.h"
#include "common/hash.h"
#include "common/producer_memory.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Where a state says to begin, in positions of this plan.
StatusOr<PlanStart> StartOf(const JobState& state, const JobState& here,
                            const DatasetSpec& spec, const Plan& plan) {
  if (const std::string differs = DifferingIdentity(state, here);
      !differs.empty()) {
    return FailedPreconditionError(
        "the state belongs to other data or another order: {}", differs);
  }
  const uint64_t rows_per_epoch = plan.rows_per_epoch();
  // With another batch size or fewer ranks an epoch may be shorter than it was:
  // a row beyond its new end means that end.
  const uint64_t row_max = !spec.steps_per_epoch ? plan.records()
                           : spec.batch.per_rank ? UINT64_MAX
                                                 : rows_per_epoch;
  if (state.row > row_max) {
    return InvalidArgumentError(
        "state: row {} of epoch {}: an epoch has {} rows; resume with the "
        "batch and steps_per_epoch that it was saved with, or at row 0 of the "
        "next epoch",
        state.row, state.epoch, rows_per_epoch);
  }
  const auto position = [&](uint64_t epoch, uint64_t row) {
    return epoch * rows_per_epoch + std::min(row, rows_per_epoch);
  };
  const uint64_t epochs_max = Plan::kTotalRowsMax / rows_per_epoch;
  if (state.epoch >= epochs_max) {
    return InvalidArgumentError("state: epoch {}: wanted less than {}",
                                state.epoch, epochs_max);
  }
  PlanStart start;
  start.position = position(state.epoch, state.row);
  for (const JobState::Owed& owed : state.owed) {
    if (owed.epoch >= epochs_max || owed.row > rows_per_epoch ||
        owed.rows > rows_per_epoch - owed.row) {
      return InvalidArgumentError(
          "state: owed rows {} to {} of epoch {}: an epoch has {}", owed.row,
          owed.row + owed.rows, owed.epoch, rows_per_epoch);
    }
    for (uint64_t row = 0; row < owed.rows;) {
      const uint64_t begin = position(owed.epoch, owed.row + row);
      const uint64_t rows =
          std::min(plan.RowsOfOneStep(begin), owed.rows - row);
      start.owed.push_back({begin, rows, owed.redelivered});
      row += rows;
    }
  }
  return start;
}

// The ranks that files, or steps, are divided over: a resumed job keeps those
// it began with.
uint32_t ShardsOf(const JobOptions& options) {
  return options.start && options.start->shards ? options.start->shards->count
                                                : options.world_size;
}

// Where the steps of buckets begin depends on how many ranks there are.
bool StepsDependOnRanks(const JobOptions& options) {
  const DatasetSpec& spec = options.spec;
  const bool off = spec.shard == ShardPolicy::kOff;
  return spec.batch.buckets && spec.batch.per_rank != off &&
         (off || options.delivery.mode == DeliveryMode::kSplit);
}

JobState IdentityOf(const JobOptions& options, uint64_t records,
                    const std::string& selection,
                    const std::optional<JobState::Mix>& mix) {
  JobState state;
  state.dataset = options.spec.name;
  state.delivery = options.delivery.mode;
  state.records = records;
  state.seed = options.spec.seed;
  state.selection = selection;
  if (options.spec.shuffle) {
    state.shuffle = JobState::Shuffle{options.spec.shuffle->seed,
                                      options.spec.shuffle->each_epoch};
  }
  state.mix = mix;
  const bool cyclic =
      IsCyclic(options.spec) && options.delivery.mode == DeliveryMode::kSplit;
  if (options.spec.shard == ShardPolicy::kFile || cyclic ||
      StepsDependOnRanks(options)) {
    const uint32_t shards = ShardsOf(options);
    state.shards =
        JobState::Shards{shards, GlobalBatchOf(options.spec, shards)};
  }
  return state;
}

}  // namespace

StatusOr<Job::Layout> Job::PlanLayout(const JobOptions& options,
                                      const Dataset& dataset, uint32_t nodes,
                                      bool replicate, bool ahead,
                                      const OrderBudget& budget) {
  DatasetSpec spec = options.spec;
  if (options.repeat_first) {
    spec.epochs = 1;
    spec.steps_per_epoch = 1;
  }
  // Every consumer has an order of its own, the first that of the spec; any odd
  // factor gives each another seed.
  if (spec.shuffle) {
    spec.shuffle->seed += options.consumer * kGolden64;
  }
  const DeliveryOptions& delivery = options.delivery;
  if (std::holds_alternative<StreamSource>(spec.source)) {
    if (delivery.mode == DeliveryMode::kIndependent) {
      return InvalidArgumentError(
          "a stream is delivered once, not once per consumer: delivery "
          "`broadcast` gives every batch to all of them");
    }
    if (options.several_hosts()) {
      return InvalidArgumentError(
          "a stream feeds the ranks of one host: {} of {} are on this one",
          options.local_processes(), options.processes());
    }
  }
  const bool split = delivery.mode == DeliveryMode::kSplit;
  const uint32_t world_size = split ? options.world_size : 1;
  if (spec.shard == ShardPolicy::kOff) {
    spec.batch.size = GlobalBatchOf(spec, ShardsOf(options));
    spec.batch.per_rank = true;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      std::shared_ptr<const Order> order,
      OrderOf(spec, dataset,
              split || spec.shard == ShardPolicy::kFile ? ShardsOf(options) : 1,
              budget));
  PENSTOCK_ASSIGN_OR_RETURN(
      MixStart mix,
      StartOfMix(options, spec, dataset, *order, world_size, budget));
  PENSTOCK_ASSIGN_OR_RETURN(
      Plan plan,
      PlanOfMix(mix, options, spec, std::move(order), world_size, budget));
  if (mix.mix) SetWeights(mix.mix->begin, &spec);
  const uint64_t order_bytes =
      plan.order_bytes() +
      (dataset.packing == nullptr ? 0 : dataset.packing->use_bytes());
  const std::string selection = SelectionOf(spec, dataset);
  if (options.start) {
    JobState here = IdentityOf(options, plan.records(), selection, mix.mix);
    // It has been compared, but for them.
    if (mix.parts_changed) here.selection = options.start->selection;
    PENSTOCK_ASSIGN_OR_RETURN(PlanStart start,
                              StartOf(*options.start, here, spec, plan));
    PENSTOCK_ASSIGN_OR_RETURN(plan, plan.From(std::move(start), world_size));
  }
  const bool differ = dataset.ShapesDiffer();
  // The rows of the rank that has most.
  const auto rows_of = [differ](const Plan& of, uint32_t form) {
    return differ ? of.max_batch_rows(0, form) : of.max_batch_rows(0);
  };
  std::vector<BatchForm> forms;
  uint64_t row_bytes = 0;
  uint64_t batch_bytes = 0;
  for (uint32_t part = 0; part < dataset.forms(); ++part) {
    const ElementSpec& element = dataset.element_spec(part);
    uint64_t room = 0;  // of values of whole batches
    uint64_t bytes = sizeof(int64_t);
    for (const Feature& feature : element) {
      (feature.room > 0 ? room : bytes) +=
          feature.room > 0 ? feature.room : feature.RowBytes();
    }
    row_bytes = std::max(row_bytes, bytes);
    forms.push_back({element, 0});
    batch_bytes = std::max(batch_bytes, bytes * rows_of(plan, part) + room);
  }
  if (!differ) forms.resize(1);
  if (plan.global_batch() > UINT32_MAX) {
    return ResourceExhaustedError("a step of {} rows: at most {} are allowed",
                                  plan.global_batch(), UINT32_MAX);
  }
  // Batches in use at once in the worst case.
  const uint64_t consumers = options.consumers_max;
  uint32_t lanes = 1;
  uint64_t leases = 0;
  uint64_t slots = 0;
  Tuner prefetch = PrefetchOf(spec.prefetch, UINT64_MAX);
  switch (delivery.mode) {
    case DeliveryMode::kSplit:
    case DeliveryMode::kIndependent:
      lanes = options.consumers_max / options.local_replicas;
      // Rows of a stream are retained for every slot.
      if (ahead && !std::holds_alternative<StreamSource>(spec.source)) {
        const uint64_t pages = (batch_bytes + kPageBytes - 1) / kPageBytes;
        prefetch = PrefetchOf(spec.prefetch, lanes * pages * kPageBytes);
      }
      leases = prefetch.most() + spec.hold;
      // All may hold different batches while they wait for the next.
      slots = leases + (options.local_replicas - 1) * (spec.hold - 1);
      break;
    case DeliveryMode::kDynamic:
      leases = 1 + spec.hold;
      slots = prefetch.most() + consumers * leases;
      break;
    case DeliveryMode::kBroadcast:
      leases = delivery.window + spec.hold;
      // Consumers that may not be skipped are all within one window.
      slots = delivery.lag == Lag::kSkip
                  ? consumers * leases
                  : delivery.window + consumers * spec.hold;
      break;
  }
  if (options.at_end) slots = 1;  // none is ever filled
  if (leases > kLeasesMax) {
    return ResourceExhaustedError(
        "{} + hold {} is more than the {} batches a rank may have",
        delivery.mode == DeliveryMode::kBroadcast
            ? Format("window {}", delivery.window)
            : Format("prefetch {}", prefetch.most()),
        spec.hold, kLeasesMax);
  }
  for (uint32_t i = 0; i < forms.size(); ++i) {
    forms[i].rows_max = rows_of(plan, i);
    if (split && delivery.on_rank_death == OnRankDeath::kShrink) {
      PENSTOCK_ASSIGN_OR_RETURN(const Plan half,
                                plan.From(plan.start(), (world_size + 1) / 2));
      forms[i].rows_max = rows_of(half, i);
    }
  }
  // A rank's lane is on one node; a lane for all ranks is on all nodes.
  const bool lanes_are_ranks =
      split || delivery.mode == DeliveryMode::kIndependent;
  const bool copied =
      replicate && nodes > 1 && delivery.mode == DeliveryMode::kBroadcast;
  const uint32_t copies = copied ? nodes : 1;
  uint64_t bank_slots = 0;
  if (nodes > 1) {
    bank_slots =
        lanes_are_ranks || copied ? slots : (slots + nodes - 1) / nodes;
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      SegmentPlan segment,
      PlanSegment(forms, static_cast<uint32_t>(copies * lanes * slots),
                  2 * options.consumers_max,
                  static_cast<uint32_t>(bank_slots)));
  Layout layout{std::move(plan),
                std::move(segment),
                lanes,
                static_cast<uint32_t>(slots),
                static_cast<uint32_t>(leases),
                row_bytes,
                copies,
                prefetch};
  if (forms.size() > 1) layout.ranks_min = (world_size + 1) / 2;
  layout.order_bytes = order_bytes;
  layout.selection = selection;
  layout.mix = std::move(mix.mix);
  layout.weights = std::move(mix.changes);
  layout.news = std::move(mix.news);
  if (const auto* stream = std::get_if<StreamSource>(&spec.source)) {
    // Unreleased batches are in slots, or were in those of a former instance.
    layout.retained_rows =
        2 * uint64_t{lanes} * slots * layout.segment.rows_max;
    PENSTOCK_ASSIGN_OR_RETURN(
        const ProducerLayout retained,
        PlanProducerMemory(stream->features, layout.retained_rows));
    layout.retained_bytes = retained.bytes;
  }
  return layout;
}

StatusOr<nlohmann::json> Job::FindRow(const JobOptions& options,
                                      const Dataset& dataset,
                                      const Layout& layout, Place place) {
  const Plan& plan = layout.plan;
  const uint64_t rows = plan.rows_per_epoch();
  const uint64_t epochs = plan.epochs().value_or(Plan::kTotalRowsMax / rows);
  if (place.epoch >= epochs) {
    return InvalidArgumentError(
        "there is no epoch {}: the dataset has {}, numbered from 0",
        place.epoch, Counted(epochs, "epoch"));
  }
  if (place.row >= rows) {
    return InvalidArgumentError(
        "there is no row {}: an epoch has {}, numbered from 0", place.row,
        Counted(rows, "row"));
  }
  const uint64_t position = place.epoch * rows + place.row;
  if (position < plan.first_known()) {
    return InvalidArgumentError(
        "row {} of epoch {} is of a mix of other parts: this one began at "
        "position {}",
        place.row, place.epoch, plan.first_known());
  }
  const uint64_t step = plan.StepOfEpoch(position);
  const uint64_t begin =
      plan.PositionOf(place.epoch * plan.steps_per_epoch() + step);
  JobState state =
      IdentityOf(options, plan.records(), layout.selection, layout.mix);
  state.epoch = place.epoch;
  state.row = begin % rows;
  Plan::Row planned;
  plan.Rows(place.epoch, place.row, 1, &planned);
  std::string of;
  if (dataset.packing == nullptr) {
    of = dataset.source->Describe(planned.record);
  } else {
    std::vector<Piece> pieces;
    dataset.packing->PiecesOf(planned.record, planned.pass, &pieces);
    of = dataset.source->Describe(pieces[0].record);
    if (pieces.size() > 1) {
      of += Format(" and {}", Counted(pieces.size() - 1, "further document"));
    }
  }
  return nlohmann::json{{"step", step},
                        {"row_of_step", position - begin},
                        {"sample", planned.record},
                        {"place", of},
                        {"state", JobStateToJson(state)}};
}

JobState Job::StateAt(const PlanStart& start) const {
  JobState state = IdentityOf(options_, layout_.plan.records(),
                              layout_.selection, layout_.mix);
  const uint64_t rows_per_epoch = layout_.plan.rows_per_epoch();
  state.weights = weights();
  state.epoch = start.position / rows_per_epoch;
  state.row = start.position % rows_per_epoch;
  for (const RowRange& range : start.owed) {
    state.owed.push_back({range.position / rows_per_epoch,
                          range.position % rows_per_epoch, range.rows,
                          range.redelivered});
  }
  return state;
}

}  // namespace penstock
