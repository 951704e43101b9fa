#include "broker/job/bottleneck.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "broker/base/text.h"
#include "common/format.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// A job sampled for less is not judged: its first batches had to be waited for.
constexpr double kSecondsMin = 1;
// Ranks that wait for less of the time are not held up by the broker.
constexpr double kWaits = 0.1;
// A rank is behind if it is so in at least this share of the samples, and twice
// as often as any other.
constexpr double kBehind = 0.5;
// A rank that stands for longer is named for that alone: by then the means of
// the others say nothing.
constexpr double kStandsSeconds = RecentMean::kSeconds;
// If more of the workers sleep, they hold nobody up.
constexpr double kIdle = 0.5;
// Share of all workers' time below which their work holds nobody up.
constexpr double kBusy = 0.05;
// A stream without rows more often than this makes its ranks wait.
constexpr double kStarved = 0.5;
// Ranks whose batches take less than this share of a slow rank's are faster
// than it; others wait for it in each step.
constexpr double kFaster = 0.8;
// Ranks that wait for each other in each step are no further apart.
constexpr double kHalfStepsApart = 2;
// A rank that takes fewer batches has no rate.
constexpr double kTakesPerSecondMin = 0.001;
// A row that takes a Python function longer than this is named.
constexpr uint64_t kLongRowNs = 1'000'000'000;

double Share(double value) { return std::clamp(value, 0.0, 1.0); }

long Percent(double share) { return std::lround(100 * share); }

// The increase since the last sample; a counter that went back counts as none.
uint64_t Since(uint64_t now, uint64_t last) {
  return now > last ? now - last : 0;
}

// It does nothing, and no other rank with data left goes on without it.
bool StandsStill(const RecentUse::Rank& rank,
                 const std::vector<RecentUse::Rank>& all, bool makes) {
  if (!rank.still || rank.waiting) return false;
  return std::all_of(all.begin(), all.end(), [&](const RecentUse::Rank& other) {
    if (other.rank == rank.rank || other.done) return true;
    const bool still = other.still && !other.waiting;
    if (rank.progress && other.progress) {
      return *other.progress > *rank.progress ||
             (*other.progress == *rank.progress && still);
    }
    return still || (other.waiting && !makes);
  });
}

// "41 ms", "1.3 s".
std::string BatchText(double seconds) {
  const double ms = 1000 * seconds;
  return ms < 1      ? Format("{:.2f} ms", ms)
         : ms < 10   ? Format("{:.1f} ms", ms)
         : ms < 1000 ? Format("{:.0f} ms", ms)
                     : Format("{:.1f} s", seconds);
}

// The mean of the ranks but one whose time is known; 0: of none.
double BatchSeconds(const std::vector<RecentUse::RankUse>& ranks,
                    std::optional<uint32_t> but = std::nullopt) {
  double sum = 0;
  uint32_t known = 0;
  for (const RecentUse::RankUse& each : ranks) {
    if (each.batch_s <= 0 || each.rank == but) continue;
    sum += each.batch_s;
    ++known;
  }
  return known == 0 ? 0 : sum / known;
}

// As far as can be told from its distance to the furthest.
bool KeepsStep(const RecentUse::RankUse& rank) {
  return rank.lag <= kHalfStepsApart;
}

// What a batch takes the ranks that are ahead of one.
double OthersBatchSeconds(const std::vector<RecentUse::RankUse>& ranks,
                          const RecentUse::RankUse& behind) {
  const double others = BatchSeconds(ranks, behind.rank);
  if (!KeepsStep(behind) || others < kFaster * behind.batch_s) return others;
  return (1 - behind.behind) * behind.batch_s;
}

std::vector<RecentUse::RankUse> ThatStand(
    std::vector<RecentUse::RankUse> ranks) {
  std::erase_if(ranks, [](const RecentUse::RankUse& rank) {
    return rank.stands_s < kStandsSeconds;
  });
  return ranks;
}

const RecentUse::RankUse* OneBehind(
    const std::vector<RecentUse::RankUse>& all) {
  const RecentUse::RankUse* most = nullptr;
  double second = 0;
  for (const RecentUse::RankUse& rank : all) {
    if (most == nullptr || rank.behind > most->behind) {
      if (most != nullptr) second = std::max(second, most->behind);
      most = &rank;
    } else {
      second = std::max(second, rank.behind);
    }
  }
  if (most == nullptr || most->waits >= kWaits || most->behind < kBehind ||
      most->behind < 2 * second) {
    return nullptr;
  }
  // It fell back once and is as fast as the others since.
  if (!KeepsStep(*most) && most->batch_s > 0 &&
      BatchSeconds(all, most->rank) >= kFaster * most->batch_s) {
    return nullptr;
  }
  return most;
}

}  // namespace

void RecentMean::Add(double value, double seconds) {
  const double old = std::exp(-seconds / kSeconds);
  sum_ = sum_ * old + value * (1 - old);
  weight_ = weight_ * old + (1 - old);
}

void RecentUse::Add(uint64_t now_ns, uint64_t decode_ns, uint64_t read_wait_ns,
                    const std::vector<Rank>& ranks, bool starved,
                    const FunctionWorkersUse& function_workers, bool filling,
                    uint64_t fetch_wait_ns) {
  const bool first = checked_ns_ == 0;
  const uint64_t ns = first ? 0 : Since(now_ns, checked_ns_);
  if (!first && ns == 0) return;
  checked_ns_ = now_ns;
  const double seconds = static_cast<double>(ns) * 1e-9;
  const auto per_time = [ns](uint64_t spent_ns) {
    return static_cast<double>(spent_ns) / static_cast<double>(ns);
  };
  if (!first) {
    decoding_.Add(per_time(Since(decode_ns, decode_ns_)), seconds);
    storage_.Add(per_time(Since(read_wait_ns, read_wait_ns_)), seconds);
    network_.Add(per_time(Since(fetch_wait_ns, fetch_wait_ns_)), seconds);
    starved_.Add(starved ? 1 : 0, seconds);
    function_workers_busy_.Add(static_cast<double>(function_workers.busy) /
                                   std::max(1u, function_workers.threads),
                               seconds);
    seconds_ += seconds;
    const bool stand =
        !filling && !starved &&
        std::none_of(ranks.begin(), ranks.end(),
                     [](const Rank& rank) { return rank.moved; });
    stand_ns_ = stand ? stand_ns_ + ns : 0;
  }
  decode_ns_ = decode_ns;
  read_wait_ns_ = read_wait_ns;
  fetch_wait_ns_ = fetch_wait_ns;
  function_workers_ = function_workers;

  int64_t furthest = INT64_MIN;
  for (const Rank& rank : ranks) {
    furthest = std::max(furthest, rank.progress.value_or(INT64_MIN));
  }
  std::map<uint32_t, Seen> seen;
  for (const Rank& rank : ranks) {
    if (rank.done) continue;
    const auto last = seen_.find(rank.rank);
    Seen& now = seen[rank.rank];
    if (last != seen_.end()) {
      now = last->second;
      uint64_t waited_ns = Since(rank.wait_ns, now.wait_ns);
      const bool goes_on = now.waiting && rank.waits == now.waits;
      if (goes_on) {
        // The rank counts a wait when it ends; this counts it from the first
        // sample in which it is seen, and not twice.
        waited_ns = rank.waiting ? ns : 0;
        now.counted_ns += waited_ns;
      } else {
        waited_ns = Since(waited_ns, std::exchange(now.counted_ns, 0));
      }
      now.waited.Add(Share(per_time(waited_ns)), seconds);
      now.behind.Add(rank.progress && *rank.progress < furthest ? 1 : 0,
                     seconds);
      now.lag.Add(
          rank.progress ? static_cast<double>(furthest - *rank.progress) : 0,
          seconds);
      now.takes.Add(per_time(Since(rank.taken, now.taken)) * 1e9, seconds);
      now.stands_ns =
          StandsStill(rank, ranks, filling || starved) ? now.stands_ns + ns : 0;
    }
    now.waiting = rank.waiting;
    now.waits = rank.waits;
    now.wait_ns = rank.wait_ns;
    now.taken = rank.taken;
  }
  seen_ = std::move(seen);
}

std::vector<RecentUse::RankUse> RecentUse::ranks() const {
  std::vector<RankUse> ranks;
  for (const auto& [rank, seen] : seen_) {
    const double takes = seen.takes.mean();
    ranks.push_back(
        {rank, seen.waited.mean(), seen.behind.mean(),
         static_cast<double>(seen.stands_ns) * 1e-9,
         takes < kTakesPerSecondMin ? 0 : (1 - seen.waited.mean()) / takes,
         seen.lag.mean()});
  }
  return ranks;
}

Bottleneck Bottleneck::Of(const RecentUse& job, const PoolUse& pool,
                          const AbsentRanks& absent) {
  Bottleneck found;
  found.replicas = absent.replicas;
  found.pool = pool;
  found.pool.decoding = Share(pool.decoding);
  found.pool.storage = Share(pool.storage);
  found.pool.idle = Share(pool.idle);
  // Figures of the threads that make its rows.
  const FunctionWorkersUse& function_workers = job.function_workers();
  const bool python = function_workers.threads > 0;
  const double workers =
      std::max(1u, python ? function_workers.threads : pool.workers);
  found.decoding =
      python ? job.function_workers_busy() : Share(job.decoding() / workers);
  found.storage = Share(job.storage() / workers);
  found.network = Share(job.network() / workers);
  const double busy = python ? found.decoding : found.pool.decoding;
  const double idle =
      python ? Share(1 - found.decoding - found.storage) : found.pool.idle;
  found.idle = idle;
  const char* const they = python ? "its Python processes" : "workers";
  const std::vector<RecentUse::RankUse> ranks = job.ranks();
  for (const RecentUse::RankUse& rank : ranks) {
    found.ranks_wait = std::max(found.ranks_wait, rank.waits);
  }
  const std::string who =
      Format("ranks wait {} % of the time", Percent(found.ranks_wait));
  const std::string they_idle = Format("{} idle {} %", they, Percent(idle));
  const bool somebody_waits = found.ranks_wait >= kWaits;
  // A rank that computes may stand for a while; one that waits gets nothing.
  if (!absent.empty() &&
      (ranks.empty() ||
       job.all_stand_s() >= (somebody_waits ? kSecondsMin : kStandsSeconds))) {
    found.what = What::kAbsent;
    found.absent = absent;
    const auto to = [&](const std::vector<uint32_t>& them, const char* what) {
      return them.empty() ? ""
                          : Format(" for {} to {},",
                                   RanksText(them, absent.replicas), what);
    };
    found.text =
        Format("the job waits{}{} {}, {}", to(absent.to_reconnect, "reconnect"),
               to(absent.to_attach, "attach"), who, they_idle);
    return found;
  }
  if (ranks.empty()) {
    found.text = "no bottleneck: no rank takes batches";
    return found;
  }
  if (job.seconds() < kSecondsMin) {
    found.text = "not known yet: the job began a moment ago";
    return found;
  }
  const RecentUse::RankUse* const behind = OneBehind(ranks);
  if (const auto stand = ThatStand(ranks); stand.size() == 1) {
    found.what = What::kRank;
    found.rank = stand[0].rank;
    found.behind = stand[0].behind;
    found.stands_s = stand[0].stands_s;
    found.text = Format(
        "rank {} is the bottleneck: it has neither taken nor released a batch "
        "for {:.0f} s, {}",
        RankName(stand[0].rank, absent.replicas), stand[0].stands_s, they_idle);
  } else if (!stand.empty()) {
    found.what = What::kRanks;
    found.text = Format(
        "ranks are the bottleneck: {} of {} have neither taken nor released a "
        "batch for {:.0f} s, {}",
        stand.size(), ranks.size(), stand[0].stands_s, they_idle);
  } else if (somebody_waits && job.starved() > kStarved) {
    found.what = What::kProducers;
    found.text = Format(
        "producers are the bottleneck: {} % of the time there are no rows to "
        "make a batch of, {}, {}",
        Percent(job.starved()), who, they_idle);
  } else if (behind != nullptr && (!somebody_waits || idle > kIdle)) {
    found.what = What::kRank;
    found.rank = behind->rank;
    found.behind = behind->behind;
    found.batch_s = behind->batch_s;
    found.others_batch_s = OthersBatchSeconds(ranks, *behind);
    const std::string takes =
        found.others_batch_s > 0
            ? Format("it takes {} a batch, the others {}, ",
                     BatchText(found.batch_s), BatchText(found.others_batch_s))
            : "";
    found.text = Format(
        "rank {} is the bottleneck: {}behind the others {} % of the time, it "
        "waits {} %, {}, {}",
        RankName(behind->rank, absent.replicas), takes, Percent(behind->behind),
        Percent(behind->waits), who, they_idle);
  } else if (!somebody_waits) {
    found.what = What::kRanks;
    const double batch_s = BatchSeconds(ranks);
    const std::string takes =
        batch_s > 0 ? Format("a batch takes them {}, ", BatchText(batch_s))
                    : "";
    found.text =
        Format("ranks are the bottleneck: {}{}, {}", takes, who, they_idle);
  } else if (const bool long_row = function_workers.longest_ns > kLongRowNs;
             !python && !long_row && busy + found.storage < kBusy) {
    found.text =
        Format("no bottleneck is known: {}, {}: a larger `prefetch` may help",
               who, they_idle);
  } else {
    const std::string of_job =
        busy - found.decoding < 0.01
            ? ""
            : Format(" ({} % for this job)", Percent(found.decoding));
    if (found.storage > busy) {
      const bool network = found.network > found.storage / 2;
      found.what = network ? What::kNetwork : What::kStorage;
      found.text = Format(
          "{} is the bottleneck: {} wait {} % for {}, decode {} %{}, {}",
          network ? "the network" : "storage", they, Percent(found.storage),
          network ? "object stores" : "reads", Percent(busy), of_job, who);
    } else if (python) {
      found.what = What::kPython;
      found.text = Format(
          "its Python function is the bottleneck: its {} {} % busy, decoding "
          "included, {} % waiting for reads, {}",
          Counted(function_workers.threads, "process is", "processes are"),
          Percent(busy), Percent(found.storage), who);
    } else {
      found.what = What::kDecode;
      found.text = Format(
          "decode is the bottleneck: workers {} % busy decoding{}, {} % "
          "waiting for reads, {}",
          Percent(busy), of_job, Percent(found.storage), who);
    }
    if (long_row) {
      found.text +=
          Format(", sample {} has been in progress for {:.1f} s",
                 function_workers.longest_record,
                 static_cast<double>(function_workers.longest_ns) * 1e-9);
    } else if (idle > kIdle) {
      found.text += ", " + they_idle + ": a larger `prefetch` may help";
    }
  }
  return found;
}

nlohmann::json Bottleneck::ToJson() const {
  constexpr const char* kNames[] = {"unknown", "ranks",     "rank",   "decode",
                                    "storage", "producers", "python", "absent",
                                    "evicted", "network"};
  nlohmann::json json = {{"what", kNames[static_cast<size_t>(what)]},
                         {"text", text},
                         {"ranks_wait", ranks_wait},
                         {"decoding", decoding},
                         {"storage", storage},
                         {"network", network},
                         {"workers_decoding", pool.decoding},
                         {"workers_storage", pool.storage},
                         {"workers_idle", pool.idle}};
  if (rank) {
    json["rank"] = *rank / replicas;
    if (replicas > 1) json["replica"] = *rank % replicas;
    json["behind"] = behind;
    json["stands_s"] = stands_s;
    if (others_batch_s > 0) {
      json["batch_s"] = batch_s;
      json["others_batch_s"] = others_batch_s;
    }
  }
  if (what == What::kEvicted) json["pids"] = pids;
  if (!absent.empty()) {
    json["to_attach"] = RanksOf(absent.to_attach, replicas);
    json["to_reconnect"] = RanksOf(absent.to_reconnect, replicas);
  }
  return json;
}

}  // namespace penstock
