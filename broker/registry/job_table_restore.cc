// The part of JobTable for a restart of the broker: jobs of a former instance
// and their ranks, some of which reconnect, some are dead and some stay silent.

#include <algorithm>
#include <chrono>
#include <utility>

#include "broker/base/log.h"
#include "broker/recovery/restore.h"
#include "broker/registry/job_table.h"

namespace penstock {
namespace {

// Time to reconnect for ranks from before a restart whose state is unknown.
constexpr std::chrono::seconds kReconnectTime{60};

std::string UnknownText(const JobKey& key, const JobOptions& options,
                        uint32_t rank) {
  return Format(
      "job '{}': rank {} died while no broker ran, and nobody kept its page: "
      "how far it was is not known; begin all ranks at a state (systemd and "
      "penstock run keep the pages)",
      key.name,
      RankName(key.ProcessOf(rank, options.replicas), options.replicas));
}

}  // namespace

bool JobTable::WaitsFor(const Entry& entry, uint32_t rank) {
  if (entry.state.stage() == State::kOpening) return false;
  const Job* const job = entry.state.job().get();
  if (job != nullptr && job->Locked(&Delivery::Knows, rank)) {
    return job->Locked(&Delivery::WaitsFor, rank) && !job->failed();
  }
  if (entry.former == nullptr) return false;
  const RecordedRank* last = nullptr;
  for (const auto& [attach, former] : entry.former->ranks) {
    if (former.rank == rank) last = &former;
  }
  return last != nullptr && !last->left && !last->MayLive();
}

std::shared_ptr<void> JobTable::FormerMemoryOf(const Entry& entry,
                                               uint32_t rank, int pidfd) {
  // Removes the dead first: another process may have their pid.
  CheckHolders();
  std::vector<uint64_t> attaches;
  for (const Holder& holder : holders_) {
    if (holder.job == entry.number && holder.rank == rank &&
        IsSameProcess(holder.pidfd->get(), pidfd)) {
      attaches.push_back(holder.attach);
    }
  }
  if (attaches.empty()) return entry.former_memory;
  return {nullptr, [this, job = entry.number, attaches = std::move(attaches),
                    memory = entry.former_memory](void*) {
            for (const uint64_t attach : attaches) Unmapped(job, attach);
          }};
}

void JobTable::Unmapped(uint64_t job, uint64_t attach) {
  journal_->Unmapped(job, attach);
  std::erase_if(holders_, [&](const Holder& holder) {
    return holder.job == job && holder.attach == attach;
  });
}

void JobTable::CheckHolders() {
  std::erase_if(holders_, [this](const Holder& holder) {
    if (!IsDead(holder.pidfd->get())) return false;
    journal_->Unmapped(holder.job, holder.attach);
    return true;
  });
}

void JobTable::HearFormer(Entry& entry) {
  if (entry.former == nullptr) return;
  for (auto& [attach, former] : entry.former->ranks) {
    const std::optional<bool> finished = former.LeftUnheard();
    if (!finished) continue;
    former.left = true;
    entry.launch.Left(former.rank, *finished);
    journal_->RankLeft(entry.number, attach, *finished);
  }
}

bool JobTable::TakeUpUnanswered(Entry& entry, AttachRequest* request) {
  if (entry.former == nullptr) return false;
  std::map<uint64_t, RecordedRank>& ranks = entry.former->ranks;
  const auto is_it = [request](const auto& item) {
    const RecordedRank& former = item.second;
    return (request->joining.rank == Delivery::kAnyRank ||
            request->joining.rank == former.rank) &&
           former.WasNotAnswered(request->pidfd);
  };
  // It must have the batches that the others had because it was there.
  if (entry.options.delivery.mode == DeliveryMode::kBroadcast &&
      request->options.start == entry.options.start &&
      (entry.state.stage() != State::kOpen || Gathers(entry))) {
    const auto last = std::find_if(ranks.rbegin(), ranks.rend(), is_it);
    if (last != ranks.rend()) {
      const RecordedRank& former = last->second;
      // It was not answered, so it has no segment.
      Unmapped(entry.number, last->first);
      request->asked_before = true;
      request->incarnation = entry.incarnation;
      request->former_inode = former.inode;
      request->joining.rank = former.rank;
      request->joining.position = former.from;
      request->joining.epochs_from = former.from;
      return true;
    }
  }
  std::erase_if(ranks, [&](const auto& item) {
    if (!is_it(item)) return false;
    request->asked_before = true;
    Unmapped(entry.number, item.first);
    journal_->RankForgotten(entry.number, item.first);
    return true;
  });
  return false;
}

Status JobTable::CheckFormer(const Entry& entry,
                             const AttachRequest& request) const {
  const uint32_t rank = request.joining.rank;
  bool any_may_live = entry.state.stage() == State::kOpen &&
                      entry.state.job()->Locked(&Delivery::AnyAttached);
  const RecordedRank* last = nullptr;
  for (const auto& [attach, former] : entry.former->ranks) {
    any_may_live |= former.MayLive();
    if (former.rank == rank) last = &former;
  }
  const std::string name =
      RankName(entry.key.ProcessOf(rank, entry.options.replicas),
               entry.options.replicas);
  const auto left = std::chrono::ceil<std::chrono::seconds>(
      started_ + kReconnectTime - std::chrono::steady_clock::now());
  if (last != nullptr && last->pidfd == nullptr && !last->left &&
      left.count() > 0) {
    const DeliveryOptions& delivery = entry.options.delivery;
    const char* help = "waiting does not help: begin all ranks at a state";
    if (delivery.mode == DeliveryMode::kDynamic) {
      help = "attach again after that";
    } else if (delivery.mode == DeliveryMode::kBroadcast &&
               delivery.on_rank_death != OnRankDeath::kWait) {
      help =
          "attach again after that, or begin all ranks at a state if no other "
          "consumer lives";
    }
    return AlreadyExistsError(
        "rank {} of job '{}' was attached before the broker restarted, and may "
        "reconnect: nobody kept its page and its pidfd (systemd and penstock "
        "run do), so whether it lives is not known for another {} s; if it is "
        "dead, {}",
        name, entry.key.name, left.count(), help);
  }
  if (last != nullptr && last->pidfd != nullptr && last->MayLive()) {
    return AlreadyExistsError(
        "rank {} of job '{}' was attached before the broker restarted, and its "
        "process may reconnect: give each process its own rank, or another job "
        "name",
        name, entry.key.name);
  }
  if (!entry.named && !any_may_live) {
    return NotFoundError("all of its ranks are dead");
  }
  if (last != nullptr && last->page == nullptr &&
      (entry.options.delivery.mode == DeliveryMode::kSplit ||
       entry.options.delivery.mode == DeliveryMode::kIndependent)) {
    return FailedPreconditionError("{}",
                                   UnknownText(entry.key, entry.options, rank));
  }
  return OkStatus();
}

Status JobTable::CheckRestored(const Entry& entry, uint32_t rank) {
  const auto& former = entry.former->ranks;
  const Job& job = *entry.state.job();
  // One that the job has shrunk by is told so.
  if (job.Locked(&Delivery::Knows, rank) ||
      job.Locked(&Delivery::GoesOnWithout, rank) ||
      std::none_of(former.begin(), former.end(), [rank](const auto& item) {
        return item.second.rank == rank;
      })) {
    return OkStatus();
  }
  return FailedPreconditionError("{}",
                                 UnknownText(entry.key, entry.options, rank));
}

std::vector<FormerProcess> JobTable::ProcessesOf(const Entry& entry) {
  std::vector<FormerProcess> processes;
  for (const auto& [attach, rank] : entry.former->ranks) {
    processes.push_back({rank.rank, rank.from, rank.page.get(), rank.MayLive(),
                         rank.left, false});
  }
  // From the page it handed over on, processes are its own: attaches after that
  // may not have been answered. If nobody kept that page, the last one is.
  for (const auto& [rank, reconnected] : entry.reconnected) {
    size_t i = 0;
    size_t last = processes.size();
    bool found = false;
    for (const auto& [attach, former] : entry.former->ranks) {
      if (former.rank == rank) {
        found |= former.inode == reconnected.inode && former.inode != 0;
        processes[i].reconnects = found;
        last = i;
      }
      ++i;
    }
    if (last < processes.size()) processes[last].reconnects = true;
  }
  return processes;
}

Status JobTable::Restore(Entry& entry) {
  const FormerJob& former = *entry.former;
  Job& job = *entry.state.job();
  for (const FormerPhase& phase : former.phases) {
    PENSTOCK_RETURN_IF_ERROR(job.Locked(&Delivery::RestorePhase, phase));
  }
  if (job.stream() != nullptr && former.incomplete) {
    job.Fail(DataLossError(
        "job '{}': the journal has not all of the rows that its producers put "
        "(a full disk, or damage; the broker's log says so): begin at a state, "
        "ranks and producers",
        entry.key.name));
  } else if (former.stream != nullptr && job.stream() != nullptr) {
    job.RestoreStream(std::move(*entry.former->stream));
    entry.former->stream.reset();
  }
  // Batches owed by a dead rank came between the others' own steps, whose
  // positions do not tell which of them they had.
  if (former.incomplete && !former.phases.empty()) {
    job.Fail(DataLossError(
        "job '{}': the journal has not all that its ranks have had since they "
        "go on without a dead one (the state directory hung or was full, or "
        "damage; the broker's log says so): begin all ranks at a state",
        entry.key.name));
  }
  // Batches of ranks that the others go on without are owed by the others.
  std::erase_if(entry.former->ranks, [&](const auto& item) {
    const auto& [attach, rank] = item;
    if (!job.Locked(&Delivery::GoesOnWithout, rank.rank)) return false;
    journal_->RankForgotten(entry.number, attach);
    return true;
  });
  job.Locked(&Delivery::BeginRecovery);
  return OkStatus();
}

// Not only once: a rank that lived when the job was reopened may have died
// since.
void JobTable::RestoreDead(Entry& entry) {
  if (entry.former == nullptr || Gathers(entry)) return;
  for (const Delivery::FormerConsumer& rank :
       RestoreRanks(ProcessesOf(entry), entry.former->handed_over,
                    entry.state.job()->plan())) {
    entry.state.job()->Locked(&Delivery::RestoreRank, rank);
  }
}

void JobTable::RetireFormer(Entry& entry, uint32_t rank) {
  if (entry.former == nullptr) return;
  std::erase_if(entry.former->ranks, [&](const auto& item) {
    const auto& [attach, former] = item;
    if (former.rank != rank) return false;
    if (former.page != nullptr) {
      entry.retired.push_back({attach, rank, former.page, former.inode});
    } else {
      journal_->RankForgotten(entry.number, attach);
    }
    return true;
  });
}

Status JobTable::CheckForgotten(const Entry& entry,
                                const AttachRequest& request) {
  const uint32_t rank = request.joining.rank;
  const Job* const job = entry.state.job().get();
  if (job != nullptr && job->Locked(&Delivery::Knows, rank)) return OkStatus();
  return FailedPreconditionError(
      "rank {} of job '{}' was attached before the broker was restarted, which "
      "has no record of it: it has no state directory (--state-dir), or its "
      "journal there is missing or damaged; that rank's position is unknown: "
      "begin all ranks at a state",
      RankName(rank, entry.options.replicas), entry.key.name);
}

// In split the ranks alone know their positions, so all must report.
void JobTable::FinishForgotten(Entry& entry) {
  Job& job = *entry.state.job();
  if (job.Locked(&Delivery::AllCame)) {
    entry.forgotten.reset();
    job.FinishRecovery(true);
  } else if (std::chrono::steady_clock::now() - *entry.forgotten >
             kReconnectTime) {
    job.Fail(AbortedError(
        "job '{}': {} did not come back within {} s after the broker was "
        "restarted, which has no record of it (no --state-dir, or a missing or "
        "damaged journal): its position is unknown; begin all ranks at a state",
        entry.key.name, job.MissingText(), kReconnectTime.count()));
    entry.forgotten.reset();
  }
}

bool JobTable::Gathers(const Entry& entry) {
  return entry.state.job()->Locked(&Delivery::gathering);
}

void JobTable::FinishFormer(Entry& entry) {
  if (entry.forgotten) FinishForgotten(entry);
  Job& job = *entry.state.job();
  if (entry.former == nullptr || Gathers(entry) ||
      !job.Locked(&Delivery::Unsettled)) {
    return;
  }
  const bool time_is_over =
      std::chrono::steady_clock::now() - started_ > kReconnectTime;
  struct Last {
    const RecordedRank* former;
    bool may_live;
  };
  std::map<uint32_t, Last> last;
  for (const auto& [attach, rank] : entry.former->ranks) {
    last[rank.rank] = {&rank, rank.MayLive()};
  }
  // After MayLive was checked: a rank that dies now still counts as alive
  // above.
  RestoreDead(entry);
  bool all_spoke = true;
  for (const auto& [rank, each] : last) {
    const auto& [former, may_live] = each;
    if (former->left || job.Locked(&Delivery::Knows, rank)) continue;
    if (may_live) {
      if (!time_is_over) return;
      all_spoke = false;
      if (former->pidfd != nullptr) continue;  // it lives but is silent
    }
    job.Fail(AbortedError("{}", UnknownText(entry.key, entry.options, rank)));
    return;
  }
  // A phase can begin only if all ranks are known to be before it.
  job.FinishRecovery(all_spoke);
}

void JobTable::TryGather(Entry& entry) {
  if (entry.former == nullptr || !Gathers(entry)) return;
  Job& job = *entry.state.job();
  const FormerJob& former = *entry.former;
  const bool time_is_over =
      std::chrono::steady_clock::now() - started_ > kReconnectTime;
  if (!time_is_over && !Away(entry).empty()) return;
  std::map<uint32_t, ReconnectedRank> reconnected;
  for (const auto& [rank, each] : entry.reconnected) {
    reconnected[rank] = {each.page.get(), each.position};
  }
  const std::vector<FormerProcess> processes = ProcessesOf(entry);
  std::set<uint32_t> ranks;
  for (const FormerProcess& process : processes) ranks.insert(process.rank);
  if (former.options.delivery.on_rank_death == OnRankDeath::kFail) {
    std::map<uint32_t, const FormerProcess*> last;
    for (const FormerProcess& process : processes) {
      last[process.rank] = &process;
    }
    for (const auto& [rank, process] : last) {
      if (process->left || process->may_live || process->reconnects) continue;
      job.Fail(AbortedError("job '{}': rank {} died (on_rank_death: fail)",
                            entry.key.name, rank));
    }
  }
  const Stream* const stream = job.stream();
  std::set<uint64_t> completed;
  for (const auto& [position, next] : former.completed) {
    completed.insert(position);
  }
  const FormerProgress progress = {
      former.options.delivery,
      former.opened,
      former.low,
      std::move(completed),
      former.handed_over,
      former.incomplete,
      stream == nullptr ? std::vector<RowRange>{} : stream->Here(),
      former.launch.AllCame()};
  if (const auto unknown = UnknownConsumer(progress, processes, reconnected)) {
    job.Fail(
        AbortedError("{}", UnknownText(entry.key, entry.options, *unknown)));
  }
  job.Change(&Delivery::TakeOverSteps,
             GatherSteps(progress, job.plan(), processes, reconnected));
  for (const uint32_t rank : ranks) RetireFormer(entry, rank);
  entry.former = nullptr;
  entry.reconnected.clear();
  for (Pending& each : std::exchange(entry.pending, {})) {
    each.done(AttachTo(entry, std::move(each.request)));
  }
}

// A new consumer's start is unknown until the positions of all are known.
bool JobTable::MustWait(const Entry& entry, const AttachRequest& request) {
  return !request.incarnation && Gathers(entry);
}

void JobTable::Postpone(Entry& entry, Pending attach) {
  if (const Status status = CheckFormer(entry, attach.request);
      !status.ok() && status.code() != StatusCode::kNotFound) {
    attach.done(status);
    return;
  }
  entry.pending.push_back(std::move(attach));
  // The job may have waited only for this rank, whose attach the former
  // instance did not answer.
  TryGather(entry);
}

// An absent rank, or its replacement, has more to take.
bool JobTable::OwesAnybody(Entry& entry) {
  RestoreDead(entry);
  return entry.state.job()->Locked(&Delivery::OwesTheDead) ||
         !Away(entry).empty();
}

bool JobTable::Superseded(const Entry& entry, const Entry::Attachment& dead) {
  if (entry.options.delivery.mode == DeliveryMode::kDynamic) return true;
  const auto later = [&](const Entry::Attachment& other) {
    return other.rank == dead.rank && other.attach > dead.attach &&
           Supersedes(*other.cursor, *dead.cursor, entry.state.job()->plan());
  };
  return std::any_of(entry.retired.begin(), entry.retired.end(), later) ||
         std::any_of(entry.attachments.begin(), entry.attachments.end(),
                     [&](const auto& item) { return later(item.second); });
}

std::map<uint32_t, const RecordedRank*> JobTable::Away(const Entry& entry) {
  std::map<uint32_t, const RecordedRank*> away;
  if (entry.former == nullptr) return away;
  const auto asks = [&entry](uint32_t rank) {
    return std::any_of(entry.pending.begin(), entry.pending.end(),
                       [rank](const Pending& each) {
                         return each.request.incarnation &&
                                each.request.joining.rank == rank;
                       });
  };
  const Job* const job = entry.state.job().get();
  for (const auto& [attach, former] : entry.former->ranks) {
    const uint32_t rank = former.rank;
    if (entry.reconnected.count(rank) > 0 || !former.MayLive() || asks(rank) ||
        (job != nullptr && job->Locked(&Delivery::Knows, rank))) {
      continue;
    }
    away[entry.key.ProcessOf(rank, entry.options.replicas)] = &former;
  }
  return away;
}

void JobTable::NoteEvicted(const std::shared_ptr<Job>& job) {
  for (const Entry& entry : entries_) {
    if (entry.state.job() != job) continue;
    for (const auto& [seat, attachment] : entry.attachments) {
      if (job->Locked(&Delivery::RankAt, seat)) continue;
      journal_->RankEvicted(entry.number, attachment.attach, attachment.inode);
    }
  }
}

Status JobTable::EvictAway(const JobQuery& query, uint32_t rank,
                           uint32_t replica, uint32_t by) {
  const auto number_in = [&](const Entry& entry) {
    return rank * entry.options.replicas + replica;
  };
  const auto is_awaited = [&](const Entry& entry) {
    return !entry.state.over() && query.Matches(entry.key) &&
           replica < entry.options.replicas &&
           (entry.options.replicas == 1 || rank < entry.options.world_size) &&
           Away(entry).count(number_in(entry)) > 0;
  };
  std::vector<JobKey> keys;
  for (const Entry& entry : entries_) {
    if (is_awaited(entry)) keys.push_back(entry.key);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckOneJob(keys));
  Status status = NotFoundError("job '{}' waits for no rank {} to reconnect",
                                query.name, rank);
  for (Entry& entry : entries_) {
    if (!is_awaited(entry)) continue;
    const uint32_t number = number_in(entry);
    for (auto& [attach, former] : entry.former->ranks) {
      if (entry.key.ProcessOf(former.rank, entry.options.replicas) != number ||
          !former.MayLive()) {
        continue;
      }
      if (former.pidfd == nullptr || former.page == nullptr) {
        return FailedPreconditionError(
            "rank {} of job '{}' has not reconnected, and nobody kept its page "
            "and its pidfd (systemd and penstock run do): how far it was is "
            "not known; begin all ranks at a state",
            rank, query.name);
      }
      former.evicted = former.inode;
      journal_->RankEvicted(entry.number, attach, former.inode);
      for (Holder& holder : holders_) {
        if (holder.job == entry.number && holder.attach == attach) {
          holder.evicted = former.inode;
        }
      }
    }
    Log<"rank-evicted">(entry.key, RankName(number, entry.options.replicas),
                        Format("by user {}, before it reconnected", by));
    // Its time may have been over before; its batches are settled now.
    if (entry.state.stage() == State::kOpen) {
      entry.state.job()->Locked(&Delivery::BeginRecovery);
    }
    status = OkStatus();
  }
  return status;
}

bool JobTable::AnyMayLive(const FormerJob& former) {
  return std::any_of(former.ranks.begin(), former.ranks.end(),
                     [](const auto& item) { return item.second.MayLive(); });
}

bool JobTable::FormerIsDeserted(const Entry& entry) {
  return entry.state.stage() == State::kUnopened && !AnyMayLive(*entry.former);
}

bool JobTable::OpenersAreDead(const Entry& entry) {
  return std::all_of(
             entry.pending.begin(), entry.pending.end(),
             [](const Pending& each) { return IsDead(each.request.pidfd); }) &&
         (entry.former == nullptr || !AnyMayLive(*entry.former));
}

std::chrono::duration<double> JobTable::DesertedKept(const Entry& entry) {
  const std::chrono::duration<double> kept = kDesertedJobKept;
  // As for the missing ranks of a job that is open.
  const double wait_s = entry.options.wait_s;
  return wait_s > 0 ? std::min(kept, std::chrono::duration<double>(wait_s))
                    : kept;
}

bool JobTable::FormerIsOver(Entry& entry) const {
  const auto now = std::chrono::steady_clock::now();
  if (now - started_ > kDesertedJobKept) return true;
  if (!entry.deserted && FormerIsDeserted(entry)) entry.deserted = now;
  return entry.deserted &&
         (!entry.named || now - *entry.deserted > DesertedKept(entry));
}

}  // namespace penstock
