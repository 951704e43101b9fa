// A job's activity: `penstock status`, and the ranks that everybody waits for.
#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <variant>

#include "broker/base/text.h"
#include "broker/declare/declaration.h"
#include "broker/job/job.h"
#include "broker/job/mix_parts.h"

namespace penstock {
namespace {

constexpr uint64_t kStatBlockBytes = 512;  // unit of st_blocks

}  // namespace

void Job::NoteRanksLocked(const FunctionWorkersUse& function_workers) {
  const auto now = std::chrono::steady_clock::now();
  std::map<uint32_t, Seen> seen;
  std::vector<RecentUse::Rank> at_work;
  for (const Delivery::RankStatus& rank : delivery_.Ranks()) {
    if (!rank.seat) continue;
    const auto last = seen_.find(rank.rank);
    const bool has_batches = rank.ready + rank.held > 0;
    const bool moved = last == seen_.end() ||
                       last->second.taken != rank.taken ||
                       last->second.held != rank.held;
    // Without batches there was nothing it could do.
    const bool still = has_batches && !moved;
    seen[rank.rank] = {rank.taken, rank.held, still ? last->second.since : now};
    at_work.push_back({NumberOf(rank.rank), rank.waits, rank.wait_ns,
                       rank.waiting, rank.progress, !rank.open && !has_batches,
                       still, moved, rank.taken});
  }
  seen_ = std::move(seen);
  // Before a broadcast begins, batches are made ahead that nobody may get.
  const bool waits_to_begin =
      options_.delivery.mode == DeliveryMode::kBroadcast &&
      delivery_.CountSlots().out == 0 && !delivery_.Missing().empty();
  // Relaxed, all: shown, nothing depends on them.
  recent_.Add(static_cast<uint64_t>(
                  std::chrono::nanoseconds(now.time_since_epoch()).count()),
              counters_.decode_ns.load(std::memory_order_relaxed),
              counters_.read_wait_ns.load(std::memory_order_relaxed), at_work,
              StarvedLocked(), function_workers,
              delivery_.Filling() && !waits_to_begin,
              counters_.fetch_wait_ns.load(std::memory_order_relaxed));
}

std::vector<uint32_t> Job::MissingLocked() const {
  std::vector<uint32_t> missing = delivery_.Missing();
  for (uint32_t& rank : missing) rank = NumberOf(rank);
  return missing;
}

// Producers have put too few rows for a batch although there is room for one,
// in a slot and in the producers' memory.
bool Job::StarvedLocked() const {
  if (stream_ == nullptr || stream_->over() || stream_->ShortOfRoom() ||
      delivery_.gathering()) {
    return false;
  }
  const Delivery::SlotCounts slots = delivery_.CountSlots();
  return slots.filling == 0 && slots.ready == 0 && slots.free > 0;
}

Job::Recent Job::recent() const {
  MutexLock lock(&mutex_);
  return RecentLocked();
}

Job::Recent Job::RecentLocked() const {
  Recent recent = {recent_.decoding(), recent_.storage()};
  for (const RecentUse::RankUse& rank : recent_.ranks()) {
    recent.ranks_wait = std::max(recent.ranks_wait, rank.waits);
  }
  return recent;
}

Bottleneck Job::FindBottleneck(
    const PoolUse& pool, AbsentRanks absent,
    const std::function<pid_t(uint32_t seat)>& pid_of) const {
  absent.replicas = options_.replicas;
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return Bottleneck::Of(recent_, pool);
  const std::vector<uint32_t> away = absent.to_reconnect;
  for (const uint32_t rank : MissingLocked()) {
    if (std::find(away.begin(), away.end(), rank) != away.end()) continue;
    absent.to_attach.push_back(rank);
  }
  Bottleneck found = Bottleneck::Of(recent_, pool, absent);
  // A rank sleeps until others have released the last batches: one of them may
  // die yet.
  std::vector<uint32_t> holders;
  bool one_waits = false;
  for (const Delivery::RankStatus& rank : delivery_.Ranks()) {
    if (rank.ready + rank.held > 0) holders.push_back(rank.rank);
    one_waits |= rank.waiting;
  }
  if (one_waits && !holders.empty() && delivery_.OnlyRanksHaveBatches()) {
    found.what = Bottleneck::What::kRanks;
    if (holders.size() == 1) {
      found.what = Bottleneck::What::kRank;
      found.rank = holders[0];
    }
    found.text = Format(
        "the data are over but for the last batches, which {} {} not released: "
        "the others wait for the end",
        RanksText(holders, options_.replicas),
        holders.size() == 1 ? "has" : "have");
  }
  if (const auto seats = delivery_.EvictedInTheWay();
      absent.empty() && !seats.empty()) {
    found.what = Bottleneck::What::kEvicted;
    found.rank.reset();
    std::vector<std::string> pids;
    for (const uint32_t seat : seats) {
      const pid_t pid = pid_of(seat);
      if (pid > 0) found.pids.push_back(pid);
      // It is in a PID namespace that is not visible here.
      pids.push_back(pid > 0 ? Format("pid {}", pid) : "pid unknown");
    }
    found.text = Format(
        "slots are held by {} ({}): evicted processes may read their batches "
        "as long as they live, and the others wait for a slot: end {}, by kill "
        "-9 where frozen",
        Counted(seats.size(), "evicted process", "evicted processes"),
        JoinText(pids, ", "), seats.size() == 1 ? "it" : "them");
  }
  return found;
}

nlohmann::json Job::PartsJson() const {
  constexpr const char* kNames[] = {"read",  "unpack",   "copy",   "hand_over",
                                    "other", "assemble", "publish"};
  static_assert(std::size(kNames) == kFirstStep);
  nlohmann::json parts = nlohmann::json::array();
  const auto seconds_of = [this](size_t part) {
    return static_cast<double>(part_ns_[part].load(std::memory_order_relaxed)) *
           1e-9;
  };
  for (size_t i = 0; i < kFirstStep; ++i) {
    parts.push_back({{"part", kNames[i]}, {"seconds", seconds_of(i)}});
  }
  std::set<uint32_t> seen;
  for (size_t part = 0; part < MapsOf(options_.spec); ++part) {
    for (const MapStep& step : MapOf(options_.spec, part)) {
      if (!seen.insert(step.number).second) continue;
      parts.push_back(
          {{"part", "step"},
           {"seconds", seconds_of(kFirstStep + step.number)},
           {"step", step.number},
           {"path", step.path},
           {"name",
            std::visit([](const auto& op) { return op.Declared().name(); },
                       *step.op)}});
    }
  }
  return {{"rows", measured_rows_.load(std::memory_order_relaxed)},
          {"parts", std::move(parts)}};
}

nlohmann::json Job::StatusJson(bool with_ranks,
                               std::optional<double> kept_s) const {
  MutexLock lock(&mutex_);
  const auto seconds = [](const std::atomic<uint64_t>& ns) {
    return static_cast<double>(ns.load(std::memory_order_relaxed)) * 1e-9;
  };
  const uint64_t rows_per_epoch = layout_.plan.rows_per_epoch();
  const uint64_t position = delivery_.State().position;
  const std::vector<uint32_t> missing = MissingLocked();
  const Delivery::SlotCounts slots = delivery_.CountSlots();
  const DeliveryOptions& delivery = options_.delivery;
  // Counts from before a move are void while banks are moved.
  const bool moving = moving_ || !banks_to_move_.empty();
  const std::vector<Delivery::RankStatus> all_ranks = delivery_.Ranks();
  // The bytes of pages that exist, not of those that are promised.
  struct stat segment {};
  const bool stated = fstat(segment_->fd(), &segment) == 0;
  std::vector<uint32_t> waits_for;
  if (kept_s) {
    for (const Delivery::RankStatus& rank : all_ranks) {
      if (delivery_.WaitsFor(rank.rank)) {
        waits_for.push_back(NumberOf(rank.rank));
      }
    }
    // It may fail earlier because of missing ranks.
    if (missing_ > 0 && options_.wait_s > 0) {
      const std::chrono::duration<double> missed =
          std::chrono::steady_clock::now() - missing_since_;
      kept_s = std::clamp(options_.wait_s - missed.count(), 0.0, *kept_s);
    }
  }
  const auto name = [](const auto& names, auto value) {
    return names[static_cast<size_t>(value)];
  };
  nlohmann::json json = {
      {"job", key_.name},
      {"dataset", key_.dataset},
      {"uid", key_.uid},
      {"state", !failure_.ok() ? "failed"
                : delivery_.Unsettled()
                    ? missing.empty()
                          ? "waiting for its ranks to reconnect"
                          : "waiting for " +
                                RanksText(missing, options_.replicas) +
                                " to reconnect"
                : kept_s ? AllGoneText(waits_for, *kept_s, options_.replicas)
                : !missing.empty()
                    ? "waiting for " + RanksText(missing, options_.replicas)
                    : "running"},
      {"delivery", name(kDeliveryModeNames, delivery.mode)},
      {"on_rank_death", name(kOnRankDeathNames, delivery.on_rank_death)},
      {"missing", RanksOf(missing, options_.replicas)},
      {"slots",
       {{"free", slots.free},
        {"filling", slots.filling},
        {"ready", slots.ready},
        {"out", slots.out},
        {"quarantined", slots.quarantined}}},
      {"world_size", options_.world_size},
      {"local_world_size", options_.local_world_size},
      {"replicas", options_.replicas},
      {"epoch", position / rows_per_epoch},
      {"step", layout_.plan.StepOfEpoch(position)},
      {"steps_per_epoch", layout_.plan.steps_per_epoch()},
      {"epochs", layout_.plan.epochs().value_or(0)},
      {"position", position},
      {"records", layout_.plan.records()},
      {"rows", counters_.rows.load(std::memory_order_relaxed)},
      {"rows_skipped", counters_.rows_skipped.load(std::memory_order_relaxed)},
      {"rows_substituted",
       counters_.rows_substituted.load(std::memory_order_relaxed)},
      {"rows_failed",
       {{"damaged", counters_.rows_damaged.load(std::memory_order_relaxed)},
        {"missing", counters_.rows_missing.load(std::memory_order_relaxed)},
        {"other",
         counters_.rows_of_other_errors.load(std::memory_order_relaxed)}}},
      {"rows_failed_first", first_errors_},
      {"batches_redelivered", delivery_.redelivered()},
      {"rows_local", counters_.rows_local.load(std::memory_order_relaxed)},
      {"rows_remote", counters_.rows_remote.load(std::memory_order_relaxed)},
      {"pages_seen",
       moving ? 0 : counters_.pages_seen.load(std::memory_order_relaxed)},
      {"pages_elsewhere",
       moving ? 0 : counters_.pages_elsewhere.load(std::memory_order_relaxed)},
      {"io", dataset_->source->io()},
      {"reads", counters_.reads.load(std::memory_order_relaxed)},
      {"reads_cached", counters_.reads_cached.load(std::memory_order_relaxed)},
      {"bytes_read", counters_.bytes_read.load(std::memory_order_relaxed)},
      {"read_wait_s", seconds(counters_.read_wait_ns)},
      {"decode_s", seconds(counters_.decode_ns)},
      {"memory_bytes", layout_.memory_bytes()},
      {"memory_used_bytes",
       stated ? static_cast<uint64_t>(segment.st_blocks) * kStatBlockBytes : 0},
      {"copies", layout_.copies},
      {"prefetch", prefetch_.number()},
      {"prefetch_chosen", prefetch_.Reason([](double rows) {
         return Format("{:.0f} samples/s", rows);
       })},
      {"last_error", last_error_},
      {"warning", warning_}};
  if (const auto use = look_ahead_ ? look_ahead_->use() : std::nullopt) {
    json["remote"] = use->ToJson();
    json["remote"]["wait_s"] = seconds(counters_.fetch_wait_ns);
  }
  if (remote_ != nullptr) {
    if (nlohmann::json made = remote_->StatusJson(); !made.is_null()) {
      json["remote_rows"] = std::move(made);
    }
  }
  if (const RowCache* const cache = dataset_->cache.get()) {
    json["cache"] = Format("{}, {}", cache->where(), cache->state());
    json["cache_hits"] = counters_.cache_hits.load(std::memory_order_relaxed);
    json["cache_misses"] =
        counters_.cache_misses.load(std::memory_order_relaxed);
    json["cache_entries"] = cache->entries();
    json["cache_bytes"] = cache->bytes();
    json["cache_records"] = cache->records();
  }
  if (key_.consumer) json["consumer"] = *key_.consumer;
  for (const WeightsChange& change : weights()) {
    json["weights"].push_back(WeightsChangeToJson(change));
  }
  if (with_ranks && layout_.plan.mix() != nullptr) {
    std::shared_ptr<const Plan> plan;
    {
      MutexLock weights_lock(&weights_mutex_);
      plan = rows_plan_;
    }
    json["parts"] = MixPartsJson(options_.spec, *dataset_, layout_.mix, *plan,
                                 layout_.plan.start().position, position);
  }
  if (stream_ != nullptr) {
    json["records"] = json["steps_per_epoch"] = 0;  // unknown
    json["producers_at_work"] = stream_->at_work();
    json["retained_rows"] = stream_->retained_rows();
    json["retained_bytes"] = layout_.retained_bytes;
    json["rows_put"] = stream_->end();
    json["rows_kept"] = stream_->kept_rows();
  }
  if (kept_s) {
    json["waits_for"] = RanksOf(waits_for, options_.replicas);
    json["kept_s"] = *kept_s;
  }
  if (with_ranks && stream_ != nullptr) {
    nlohmann::json producers = nlohmann::json::array();
    for (const Stream::ProducerStatus& each : stream_->Producers()) {
      producers.push_back({{"producer", each.producer},
                           {"state", each.state},
                           {"rows_put", each.rows_put},
                           {"rows_kept", each.rows_kept},
                           {"room_rows", each.room_rows},
                           {"waits_for_room", each.waits_for_room},
                           {"memory_bytes", each.memory_bytes}});
    }
    json["producers"] = std::move(producers);
  }
  if (with_ranks) {
    nlohmann::json ranks = nlohmann::json::array();
    std::map<uint32_t, double> batch_s;
    for (const RecentUse::RankUse& use : recent_.ranks()) {
      batch_s[use.rank] = use.batch_s;
    }
    int64_t furthest = INT64_MIN;
    for (const Delivery::RankStatus& rank : all_ranks) {
      furthest = std::max(furthest, rank.progress.value_or(INT64_MIN));
    }
    for (const Delivery::RankStatus& rank : all_ranks) {
      // It has batches but takes none and releases none.
      double silent_s = 0;
      if (const auto seen = seen_.find(rank.rank);
          seen != seen_.end() && rank.ready + rank.held > 0) {
        silent_s = std::chrono::duration<double>(
                       std::chrono::steady_clock::now() - seen->second.since)
                       .count();
      }
      const auto node = [](const std::optional<uint32_t>& number) {
        return number ? nlohmann::json(*number) : nlohmann::json();
      };
      ranks.push_back(
          {{"silent_s", silent_s},
           {"node", node(rank.node)},
           {"node_from", rank.node_from},
           {"memory_node", node(rank.memory_node)},
           {"rank", key_.consumer.value_or(rank.rank / options_.replicas)},
           {"seat", rank.seat ? static_cast<int64_t>(*rank.seat) : int64_t{-1}},
           {"state", rank.state},
           {"ready", rank.ready},
           {"held", rank.held},
           {"taken", rank.taken},
           {"skipped", rank.skipped},
           {"waits", rank.waits},
           {"wait_s", static_cast<double>(rank.wait_ns) * 1e-9}});
      nlohmann::json& added = ranks.back();
      if (options_.replicas > 1) {
        added["replica"] = rank.rank % options_.replicas;
      }
      if (const auto found = batch_s.find(NumberOf(rank.rank));
          found != batch_s.end() && found->second > 0) {
        added["batch_s"] = found->second;
      }
      // Half steps, rounded up: a batch that is held is not finished.
      if (rank.progress) added["lag"] = (furthest - *rank.progress + 1) / 2;
    }
    json["ranks"] = std::move(ranks);
  }
  return json;
}

}  // namespace penstock
