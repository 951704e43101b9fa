#include "tests/crash/judge.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "common/status.h"

namespace penstock {
namespace {

using Step = std::pair<uint64_t, uint64_t>;  // epoch, step

// A batch and who took it.
struct Take {
  const RankLog* log;
  const LoggedBatch* batch;
};

std::string NameOf(const Take& take) {
  return Format("epoch {} step {} by rank {} restart {}", take.batch->epoch,
                take.batch->step, take.log->rank, take.log->restart);
}

void Find(Verdict* verdict, std::string what) {
  constexpr size_t kFindingsMax = 20;
  if (verdict->findings.size() < kFindingsMax) {
    verdict->findings.push_back(std::move(what));
  }
}

// These processes together took all rows of each epoch, except skipped ones,
// which JudgeGaps checks.
void JudgeRows(const JobKind& kind, const std::vector<const RankLog*>& logs,
               const std::string& whose, Verdict* verdict) {
  std::map<std::pair<uint64_t, int64_t>, std::vector<Take>> rows;
  for (const RankLog* log : logs) {
    for (const LoggedBatch& batch : log->batches) {
      for (const int64_t id : batch.ids) {
        rows[{batch.epoch, id}].push_back({log, &batch});
      }
    }
  }
  for (uint64_t epoch = 0; epoch < kind.epochs; ++epoch) {
    for (uint64_t id = 0; id < kind.records; ++id) {
      if (kind.lag == "skip" ||
          rows.count({epoch, static_cast<int64_t>(id)}) > 0) {
        continue;
      }
      ++verdict->lost;
      Find(verdict, Format("lost: {}epoch {} sample {}", whose, epoch, id));
    }
  }
  for (const auto& [row, takes] : rows) {
    const Take* unmarked = nullptr;
    for (const Take& take : takes) {
      if (take.batch->redelivered) continue;
      if (unmarked != nullptr) {
        ++verdict->unmarked;
        Find(verdict, Format("unmarked twice: sample {}, {} and {}", row.second,
                             NameOf(*unmarked), NameOf(take)));
      }
      unmarked = &take;
    }
    if (row.first >= kind.epochs || row.second < 0 ||
        static_cast<uint64_t>(row.second) >= kind.records) {
      Find(verdict, Format("there is no sample {} of epoch {}: {}", row.second,
                           row.first, NameOf(takes.front())));
      ++verdict->gaps;
    }
  }
}

// A batch whose release returned must not come again.
void JudgeReleases(const std::vector<const RankLog*>& logs, Verdict* verdict) {
  std::map<std::vector<int64_t>, std::map<uint64_t, std::vector<Take>>> batches;
  for (const RankLog* log : logs) {
    for (const LoggedBatch& batch : log->batches) {
      if (batch.ids.empty()) continue;
      batches[batch.ids][batch.epoch].push_back({log, &batch});
    }
  }
  for (const auto& [ids, epochs] : batches) {
    for (const auto& [epoch, takes] : epochs) {
      for (const Take& first : takes) {
        for (const Take& again : takes) {
          if (!first.batch->released_ns ||
              again.batch->taken_ns <= *first.batch->released_ns) {
            continue;
          }
          ++verdict->released;
          Find(verdict, Format("again after its release: {}, then {}",
                               NameOf(first), NameOf(again)));
        }
      }
    }
  }
}

// shrink, replicas: a row that all replicas of a rank have released must not
// come again. What only some of them have goes to the other ranks, marked.
void JudgeRankReleases(const JobKind& kind,
                       const std::vector<const RankLog*>& logs,
                       Verdict* verdict) {
  using Row = std::pair<uint64_t, int64_t>;
  // By row, rank and replica: when it was released first.
  std::map<Row, std::map<uint32_t, std::map<uint32_t, uint64_t>>> released;
  for (const RankLog* log : logs) {
    for (const LoggedBatch& batch : log->batches) {
      // One that is evicted may release later than the broker looked; what it
      // released before its last take counts.
      if (!batch.released_ns ||
          (!log->ended && *batch.released_ns > log->batches.back().taken_ns)) {
        continue;
      }
      for (const int64_t id : batch.ids) {
        uint64_t& first =
            released[{batch.epoch, id}][log->rank / kind.replicas]
                .try_emplace(log->rank % kind.replicas, *batch.released_ns)
                .first->second;
        first = std::min(first, *batch.released_ns);
      }
    }
  }
  std::map<Row, uint64_t> over;
  for (const auto& [row, ranks] : released) {
    for (const auto& [rank, replicas] : ranks) {
      if (replicas.size() < kind.replicas) continue;
      uint64_t last = 0;
      for (const auto& [replica, when] : replicas) last = std::max(last, when);
      const auto [at, added] = over.try_emplace(row, last);
      if (!added) at->second = std::min(at->second, last);
    }
  }
  for (const RankLog* log : logs) {
    for (const LoggedBatch& batch : log->batches) {
      for (const int64_t id : batch.ids) {
        const auto found = over.find({batch.epoch, id});
        if (found == over.end() || batch.taken_ns <= found->second) continue;
        ++verdict->released;
        Find(verdict, Format("again after all replicas of a rank released "
                             "sample {}: {}",
                             id, NameOf({log, &batch})));
      }
    }
  }
}

void JudgeGaps(const JobKind& kind, const RankLog& log, Verdict* verdict) {
  std::optional<uint64_t> last;
  for (const LoggedBatch& batch : log.batches) {
    if (batch.redelivered) continue;
    const uint64_t step = batch.epoch * kind.steps_per_epoch() + batch.step;
    if (last && step != *last + 1 + batch.skipped) {
      ++verdict->gaps;
      Find(verdict, Format("{}: came after step {} of the job, {} were "
                           "said to be skipped",
                           NameOf({&log, &batch}), *last, batch.skipped));
    }
    last = step;
  }
  if (log.ended && last && kind.lag != "skip" && *last + 1 != kind.steps()) {
    ++verdict->gaps;
    Find(verdict, Format("rank {} restart {}: the data were over after step "
                         "{} of {}",
                         log.rank, log.restart, *last + 1, kind.steps()));
  }
}

bool ByRank(const JobKind& kind) { return kind.delivery != "dynamic"; }

std::vector<const RankLog*> Of(const JobKind& kind,
                               const std::vector<RankLog>& logs,
                               uint32_t rank) {
  std::vector<const RankLog*> found;
  for (const RankLog& log : logs) {
    if (!ByRank(kind) || log.rank == rank) found.push_back(&log);
  }
  return found;
}

// The part of a step's rows that a rank gets (Plan).
std::vector<int64_t> PartOf(const std::vector<int64_t>& rows, uint32_t rank,
                            uint32_t ranks) {
  const size_t each = rows.size() / ranks;
  const size_t more = rows.size() % ranks;
  const auto begin = [&](size_t of) { return of * each + std::min(of, more); };
  return {rows.begin() + static_cast<ptrdiff_t>(begin(rank)),
          rows.begin() + static_cast<ptrdiff_t>(begin(rank + 1))};
}

void JudgeOrder(const JobKind& kind, const Attempt& attempt,
                const std::map<Step, std::vector<int64_t>>& steps,
                const RankLog& log, Verdict* verdict) {
  const auto at = [&](uint64_t epoch, uint64_t step) {
    return epoch * kind.steps_per_epoch() + step;
  };
  uint64_t next = at(attempt.epoch, attempt.step);
  for (const LoggedBatch& batch : log.batches) {
    const uint64_t step = at(batch.epoch, batch.step);
    if (step > next || (step < next && !batch.redelivered)) {
      ++verdict->gaps;
      Find(verdict, Format("{}: came where step {} of the job was next",
                           NameOf({&log, &batch}), next));
    }
    next = std::max(next, step + 1);
    const auto whole = steps.find({batch.epoch, batch.step});
    if (whole == steps.end() || log.rank >= attempt.ranks ||
        batch.ids != PartOf(whole->second, log.rank, attempt.ranks)) {
      ++verdict->torn;
      Find(verdict, Format("{}: has other rows than that of a job without "
                           "faults",
                           NameOf({&log, &batch})));
    }
  }
  if (log.ended && next != kind.steps()) {
    ++verdict->gaps;
    Find(verdict, Format("rank {} restart {}: the data were over after step "
                         "{} of {}",
                         log.rank, log.restart, next, kind.steps()));
  }
}

}  // namespace

void Verdict::Add(const Verdict& other) {
  batches += other.batches;
  rows += other.rows;
  redelivered += other.redelivered;
  skipped += other.skipped;
  reconnects += other.reconnects;
  lost += other.lost;
  torn += other.torn;
  unmarked += other.unmarked;
  released += other.released;
  gaps += other.gaps;
  errors += other.errors;
  for (const std::string& finding : other.findings) Find(this, finding);
}

Verdict Judge(const JobKind& kind, const std::vector<RankLog>& logs) {
  Verdict verdict;
  std::vector<const RankLog*> all;
  for (const RankLog& log : logs) {
    all.push_back(&log);
    verdict.reconnects += log.reconnects;
    verdict.torn += log.torn.size();
    verdict.errors += log.errors.size();
    for (const std::string& what : log.torn) Find(&verdict, "torn: " + what);
    for (const std::string& what : log.errors) {
      Find(&verdict,
           Format("rank {} restart {}: {}", log.rank, log.restart, what));
    }
    for (const LoggedBatch& batch : log.batches) {
      ++verdict.batches;
      verdict.rows += batch.ids.size();
      verdict.redelivered += batch.redelivered ? 1 : 0;
      verdict.skipped += batch.skipped;
    }
  }
  if (kind.all_to_each()) {
    for (const RankLog& log : logs) JudgeGaps(kind, log, &verdict);
    for (uint32_t rank = 0; rank < kind.ranks && kind.reserves_numbers();
         ++rank) {
      const auto own = Of(kind, logs, rank);
      JudgeRows(kind, own, Format("rank {} ", rank), &verdict);
      JudgeReleases(own, &verdict);
    }
  } else {
    for (uint32_t replica = 0; replica < kind.replicas; ++replica) {
      std::vector<const RankLog*> some;
      std::copy_if(all.begin(), all.end(), std::back_inserter(some),
                   [&](const RankLog* log) {
                     return log->rank % kind.replicas == replica;
                   });
      JudgeRows(kind, some,
                kind.replicas > 1 ? Format("replica {} ", replica) : "",
                &verdict);
      if (!kind.evicts()) JudgeReleases(some, &verdict);
    }
    if (kind.evicts()) JudgeRankReleases(kind, all, &verdict);
  }
  return verdict;
}

Verdict JudgeAttempts(const JobKind& kind, const std::vector<Attempt>& attempts,
                      std::vector<RankLog> logs, const RankLog& alone) {
  std::map<Step, std::vector<int64_t>> steps;
  for (const LoggedBatch& batch : alone.batches) {
    steps[{batch.epoch, batch.step}] = batch.ids;
  }
  Verdict verdict;
  for (RankLog& log : logs) {
    JudgeOrder(kind, attempts.at(log.restart), steps, log, &verdict);
    Step end = {kind.epochs, 0};
    for (size_t i = log.restart + size_t{1}; i < attempts.size(); ++i) {
      end = std::min(end, {attempts[i].epoch, attempts[i].step});
    }
    std::erase_if(log.batches, [&](const LoggedBatch& batch) {
      return Step(batch.epoch, batch.step) >= end;
    });
  }
  verdict.Add(Judge(kind, logs));
  return verdict;
}

}  // namespace penstock
