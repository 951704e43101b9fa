#include "broker/registry/job_table.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/recovery/restore.h"
#include "common/kill_point.h"

namespace penstock {

namespace {

// As people know the process that attaches.
std::string NameOf(const JobTable::AttachRequest& request) {
  const uint32_t replicas = request.options.replicas;
  return RankName(request.key.ProcessOf(request.joining.rank, replicas),
                  replicas);
}

std::string WhoJoins(const JobTable::AttachRequest& request) {
  return request.joining.rank == Delivery::kAnyRank ? "a consumer"
                                                    : "rank " + NameOf(request);
}

// Adds the ranks the job waits for since the broker was restarted.
void AddAway(const std::map<uint32_t, const RecordedRank*>& away,
             bool with_ranks, uint32_t replicas, nlohmann::json* job) {
  if (away.empty()) return;
  std::vector<uint32_t> numbers;
  for (const auto& [rank, former] : away) {
    numbers.push_back(rank);
    if (!with_ranks) continue;
    nlohmann::json row = {{"rank", rank / replicas}, {"state", "away"}};
    if (replicas > 1) row["replica"] = rank % replicas;
    const pid_t pid =
        former->pidfd != nullptr ? PidOf(former->pidfd->get()) : 0;
    if (pid > 0) row["pid"] = pid;
    (*job)["ranks"].push_back(std::move(row));
  }
  (*job)["state"] =
      "waiting for " + RanksText(numbers, replicas) + " to reconnect";
  (*job)["waits_for"] = RanksOf(numbers, replicas);
}

}  // namespace

uint64_t JobTable::NewToken() {
  uint64_t id = 0;
  while (id == 0 && getrandom(&id, sizeof(id), 0) != sizeof(id)) {
  }
  return id;
}

JobTable::JobTable(EventLoop* loop, WorkerPool* workers,
                   DeferredDestruction* deferred, RecoveryJournal* journal,
                   const Limits& limits)
    : loop_(loop),
      workers_(workers),
      deferred_(deferred),
      journal_(journal),
      limits_(limits),
      placement_(&workers->topology()) {
  SetLimits(limits);
  std::map<uint64_t, std::shared_ptr<void>> memory_of;  // by segment
  const auto take = [this](uint32_t uid, uint64_t bytes) {
    return std::make_shared<MemoryReservation>(
        reserved_->Take(uid, bytes).reservation);
  };
  const auto count = [&](uint32_t uid, uint64_t segment, uint64_t bytes) {
    std::shared_ptr<void>& memory = memory_of[segment];
    if (memory == nullptr) memory = take(uid, bytes);
    return memory;
  };
  for (const RecordedMapping& each : journal->TakeMappings()) {
    holders_.push_back({each.job, each.attach, std::nullopt, each.pidfd,
                        count(each.uid, each.segment, each.bytes),
                        each.evicted});
  }
  for (FormerJob& former : journal->TakeJobs()) {
    Entry& entry = entries_.emplace_back();
    entry.key = former.key;
    entry.options = former.options;
    entry.incarnation = former.incarnation;
    entry.named = former.named;
    entry.launch = former.launch;
    entry.number = former.id;
    for (const auto& [attach, rank] : former.ranks) {
      if (rank.left || rank.segment == 0) continue;
      // The last of its segments.
      entry.former_memory = count(former.key.uid, rank.segment, rank.bytes);
      if (rank.pidfd == nullptr) continue;
      holders_.push_back({former.id, attach, rank.rank, rank.pidfd,
                          entry.former_memory, rank.evicted ? rank.inode : 0});
    }
    if (entry.former_memory == nullptr) {
      entry.former_memory = take(former.key.uid, former.segment_bytes);
    }
    entry.former = std::make_unique<FormerJob>(std::move(former));
    Log<"job-waits">(entry.key);
  }
  for (EndedJob& ended : journal->TakeEnded()) {
    ended_.push_back({std::move(ended), true});
  }
}

JobTable::~JobTable() {
  for (Opening& opening : openings_) opening.progress.cancel.store(true);
  datasets_.NoticeCancel();
  for (Opening& opening : openings_) {
    if (opening.thread.joinable()) opening.thread.join();
  }
}

Status JobTable::CheckAgreement(const Entry& entry,
                                const AttachRequest& request) {
  const std::string option = DifferingOption(request.options, entry.options);
  if (option.empty()) return OkStatus();
  return FailedPreconditionError(
      "{} disagrees with the ranks of job '{}' that are attached: {}; give all "
      "ranks the same, and a second loader a job of its own (`job`); in a "
      "notebook close the former reader first (`reader.close()`)",
      WhoJoins(request), entry.key.name, option);
}

// Each consumer of an independent job has an entry of its own. Those that are
// attached at one time agree as ranks of one do.
Status JobTable::CheckConsumers(const AttachRequest& request) const {
  if (request.incarnation) return OkStatus();
  const auto independent = [](const JobOptions& options) {
    return options.delivery.mode == DeliveryMode::kIndependent;
  };
  for (const Entry& entry : entries_) {
    if (entry.key.uid != request.key.uid ||
        entry.key.name != request.key.name ||
        entry.key.dataset != request.key.dataset || entry.state.over() ||
        !(independent(entry.options) || independent(request.options))) {
      continue;
    }
    const Job* const job = entry.state.job().get();
    if (!entry.pending.empty() || (job != nullptr && !job->failed() &&
                                   job->Locked(&Delivery::AnyAttached))) {
      PENSTOCK_RETURN_IF_ERROR(CheckAgreement(entry, request));
    }
  }
  return OkStatus();
}

Status JobTable::ForgottenError(const std::string& job) {
  return AbortedError(
      "the broker was restarted and has no record of job '{}': it has no state "
      "directory (--state-dir), or its journal there is missing or damaged "
      "(its log says so); what the job's ranks had together is unknown: begin "
      "all ranks at a state",
      job);
}

// Not always the newest: a rank that has taken all of its data may have begun
// the next one while others have not finished with this one.
StatusOr<JobTable::Entry*> JobTable::EntryOf(const AttachRequest& request) {
  for (const Holder& holder : holders_) {
    if (holder.evicted == 0 || holder.evicted != request.former_inode) continue;
    return AbortedError(
        "rank {} was evicted from job '{}' before it reconnected: what it had "
        "is handed on; attach again",
        NameOf(request), request.key.name);
  }
  const Entry* newest = nullptr;
  bool over = journal_->KnowsAllJobs();
  for (Entry& each : entries_) {
    if (!(each.key == request.key)) continue;
    const bool is_it = each.incarnation.token == request.incarnation->token;
    if (each.state.over()) {
      over |= is_it;
    } else if (is_it) {
      return &each;
    } else {
      newest = &each;
    }
  }
  for (const Ended& ended : ended_) {
    if (ended.key == request.key &&
        ended.incarnation.token == request.incarnation->token) {
      if (ended.awaited) return Reopen(ended, request);
      over = true;
    }
  }
  if (newest != nullptr) {
    return AbortedError(
        "rank {} belongs to incarnation {} of job '{}', which is at {}: "
        "another process took over; this one must attach again",
        NameOf(request), request.incarnation->number, request.key.name,
        newest->incarnation.number);
  }
  if (!over) {
    const DeliveryMode mode = request.options.delivery.mode;
    const bool ranks_tell_all =
        mode == DeliveryMode::kSplit || mode == DeliveryMode::kIndependent;
    if (ranks_tell_all && request.joining.phase == 0) return nullptr;
    return ForgottenError(request.key.name);
  }
  return AbortedError(
      "job '{}' is over: it failed or was ended while rank {} was away (the "
      "broker's log says why); begin all ranks at a state",
      request.key.name, NameOf(request));
}

Incarnation JobTable::NextIncarnation(const JobKey& key) const {
  Incarnation next = {1, NewToken()};
  for (const Entry& entry : entries_) {
    if (!(entry.key == key)) continue;
    next.number = std::max(next.number, entry.incarnation.number + 1);
  }
  for (const Ended& ended : ended_) {
    if (!(ended.key == key)) continue;
    next.number = std::max(next.number, ended.incarnation.number + 1);
  }
  return next;
}

void JobTable::NoteEnded(const Entry& entry, bool awaited) {
  const auto now = std::chrono::system_clock::now();
  Ended noted;
  noted.id = entry.number;
  noted.key = entry.key;
  noted.incarnation = entry.incarnation;
  noted.launch = entry.launch;
  noted.agreement = AgreementDigest(entry.options);
  noted.ended = now;
  noted.awaited = awaited;
  const auto forget = [this](const Ended& ended) {
    if (ended.awaited) journal_->JobEnded(ended.id);
    return true;
  };
  std::erase_if(ended_, [&](const Ended& ended) {
    if (ended.awaited) return now - ended.ended > kAwaitedKept && forget(ended);
    return ended.key == entry.key || now - ended.ended > kEndedKept;
  });
  if (ended_.size() == kEndedMax) {
    // The oldest of the user with most: nobody's are pushed out by another's.
    std::map<uint32_t, size_t> of_user;
    for (const Ended& ended : ended_) ++of_user[ended.key.uid];
    const auto most = std::max_element(
        of_user.begin(), of_user.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto oldest = std::find_if(
        ended_.begin(), ended_.end(),
        [&](const Ended& ended) { return ended.key.uid == most->first; });
    forget(*oldest);
    ended_.erase(oldest);
  }
  if (awaited) journal_->JobDelivered(noted);
  ended_.push_back(std::move(noted));
}

StatusOr<bool> JobTable::ForgetEnded(const JobQuery& query) {
  std::vector<Ended*> found;
  std::vector<JobKey> keys;
  for (Ended& ended : ended_) {
    if (!ended.awaited || !query.Matches(ended.key)) continue;
    found.push_back(&ended);
    keys.push_back(ended.key);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckOneJob(keys));
  for (Ended* const ended : found) {
    journal_->JobEnded(ended->id);
    ended->awaited = false;
  }
  return !found.empty();
}

const JobTable::Ended* JobTable::AwaitedBy(const AttachRequest& request,
                                           uint64_t before) const {
  const uint32_t rank = request.joining.rank;
  if (rank == Delivery::kAnyRank || !request.numbered) return nullptr;
  const auto now = std::chrono::system_clock::now();
  // Costs more than everything else here, and few attaches need it.
  std::optional<uint32_t> agreement;
  const auto agrees = [&](const Ended& ended) {
    if (!agreement) agreement = AgreementDigest(request.options);
    return ended.agreement == *agreement;
  };
  const Ended* oldest = nullptr;
  for (const Ended& ended : ended_) {
    // One that disagrees is from another launch. A rank that was here and gives
    // a state begins anew.
    if (ended.awaited && ended.key == request.key &&
        ended.incarnation.number < before && ended.launch.Expects(rank) &&
        now - ended.ended <= kAwaitedKept &&
        !(request.options.start && ended.launch.Knows(rank)) && agrees(ended) &&
        (oldest == nullptr ||
         ended.incarnation.number < oldest->incarnation.number)) {
      oldest = &ended;
    }
  }
  return oldest;
}

JobTable::Entry* JobTable::Reopen(const Ended& ended,
                                  const AttachRequest& request) {
  Log<"job-told-end">(ended.key, NameOf(request), ended.incarnation.number);
  Entry& entry = entries_.emplace_back();
  entry.key = ended.key;
  entry.options = request.options;
  entry.options.at_end = true;
  entry.incarnation = ended.incarnation;
  entry.named = true;
  entry.launch = ended.launch;
  entry.number = ended.id;
  std::erase_if(ended_, [&](const Ended& each) { return &each == &ended; });
  return &entry;
}

bool JobTable::Expects(const Entry& entry, uint32_t rank) {
  const Job* const job = entry.state.job().get();
  if (entry.launch.Finished(rank) ||
      (job != nullptr &&
       (job->failed() || job->Locked(&Delivery::ToldTheEnd, rank)))) {
    return false;
  }
  // A rank that left early comes back only while others are still there.
  if (entry.deserted && entry.launch.HasLeft(rank)) return false;
  return entry.launch.Expects(rank) || WaitsFor(entry, rank);
}

StatusOr<JobTable::Entry*> JobTable::EntryFor(AttachRequest* asked) {
  const AttachRequest& request = *asked;
  if (request.incarnation) return EntryOf(request);
  const uint32_t rank = request.joining.rank;
  Entry* entry = nullptr;
  uint64_t expecting = UINT64_MAX;  // of the incarnation that expects the rank
  for (Entry& each : entries_) {
    if (!(each.key == request.key) || each.state.over()) continue;
    HearFormer(each);
    if (TakeUpUnanswered(each, asked)) return &each;
    // Not the newest, which others may have begun, but the oldest whose end
    // this rank has not been told.
    if (!request.options.start && Expects(each, rank)) {
      if (each.incarnation.number > expecting) continue;
      expecting = each.incarnation.number;
      entry = &each;
    } else if (expecting == UINT64_MAX) {
      entry = &each;
    }
  }
  if (const Ended* ended = AwaitedBy(request, expecting)) {
    PENSTOCK_RETURN_IF_ERROR(CheckLimits(request.key.uid));
    return Reopen(*ended, request);
  }
  if (entry == nullptr) return nullptr;
  // Ranks of one launch agree and begin at the same state.
  const bool begins_there = request.options.start == entry->options.start;
  const auto agrees = [&] {
    return DifferingOption(request.options, entry->options).empty();
  };
  const bool begins_another =
      request.options.start && !(request.asked_before && begins_there);
  if (!begins_another) {
    if (entry->forgotten) {
      PENSTOCK_RETURN_IF_ERROR(CheckForgotten(*entry, request));
    }
    if (entry->launch.Finished(rank)) return nullptr;
    if ((entry->deserted || FormerIsDeserted(*entry)) &&
        entry->launch.HasLeft(rank)) {
      End(*entry, Format("rank {} left it and begins anew", NameOf(request)));
      return nullptr;
    }
  }
  if (entry->state.stage() == State::kUnopened) {
    // As below: the broker died while the ranks of a launch came.
    const bool joins = begins_there && !entry->launch.Knows(rank) &&
                       !FormerIsDeserted(*entry) && agrees();
    if (!begins_another || joins) {
      const Status status = CheckFormer(*entry, request);
      if (status.ok()) return entry;
      if (status.code() != StatusCode::kNotFound) return status;
    }
    End(*entry, "");
    return nullptr;
  }
  if (entry->state.stage() == State::kOpening) {
    // The launcher starts again where all ranks died while the job opened.
    if (begins_another &&
        (entry->former != nullptr || !begins_there || !agrees()) &&
        OpenersAreDead(*entry)) {
      GiveUpOpening(entry);
      return nullptr;
    }
    if (begins_there) return entry;
    return FailedPreconditionError(
        "{} disagrees with the ranks of job '{}' that are attaching: they "
        "begin at another state",
        WhoJoins(request), entry->key.name);
  }
  const Job& job = *entry->state.job();
  const bool knows = job.Locked(&Delivery::Knows, rank);
  if (begins_another) {
    // Ranks that begin at the same state meet in one incarnation; a rank that
    // comes once more with a state begins another. So does the first of another
    // launch, when all that came of the one before are dead: the launcher
    // starts again where no checkpoint has been written since. With shrink,
    // others go on without the dead.
    const bool may_be_late =
        (entry->launch.AnyLeft() ||
         entry->options.delivery.on_rank_death == OnRankDeath::kShrink) &&
        entry->launch.Expects(rank) && agrees();
    if (begins_there && !knows &&
        (may_be_late || job.Locked(&Delivery::AnyAttached))) {
      return entry;
    }
    End(*entry, Format("{} opened a newer incarnation of job '{}' with a "
                       "state: attach or reset with it",
                       WhoJoins(request), entry->key.name));
    return nullptr;
  }
  if (job.Locked(&Delivery::Finished, rank)) return nullptr;
  if (job.failed() && !job.Locked(&Delivery::AnyAttached)) {
    End(*entry, "over");
    return nullptr;
  }
  if (entry->options.start && !request.options.start && !knows &&
      rank != Delivery::kAnyRank) {
    return FailedPreconditionError(
        "rank {} gives no state, but job '{}' was begun at one: all its ranks "
        "have to give it",
        NameOf(request), entry->key.name);
  }
  return entry;
}

uint64_t JobTable::Attach(AttachRequest request, AttachDone done) {
  const uint64_t number = next_number_++;
  Route({number, std::move(request), std::move(done)});
  return number;
}

void JobTable::Route(Pending attach) {
  AttachRequest& request = attach.request;
  if (request.options.delivery.mode == DeliveryMode::kIndependent) {
    // Each consumer is the only rank of a job of its own.
    const uint32_t number = request.joining.rank;
    const uint32_t replicas = request.options.replicas;
    request.numbered = number != Delivery::kAnyRank;
    uint32_t consumer = request.numbered ? number / replicas : 0;
    if (!request.numbered) {
      const auto taken = [&] {
        return std::any_of(
            entries_.begin(), entries_.end(), [&](const Entry& entry) {
              return entry.key.uid == request.key.uid && !entry.state.over() &&
                     entry.key.name == request.key.name &&
                     entry.key.dataset == request.key.dataset &&
                     entry.key.consumer == consumer;
            });
      };
      while (taken()) ++consumer;
    }
    request.key.consumer = consumer;
    request.options.consumer = consumer;
    request.joining.rank = request.numbered ? number % replicas : 0;
  }
  StatusOr<Entry*> which = EntryFor(&request);
  if (!which.ok()) {
    attach.done(which.status());
    return;
  }
  Entry* const found = *which;
  if (found == nullptr) {
    Status status = CheckLimits(request.key.uid);
    if (status.ok()) status = CheckConsumers(request);
    if (!status.ok()) {
      attach.done(status);
      return;
    }
    const Incarnation incarnation = request.incarnation.has_value()
                                        ? *request.incarnation
                                        : NextIncarnation(request.key);
    Entry* entry = &entries_.emplace_back();
    entry->key = request.key;
    entry->options = request.options;
    entry->named = request.named;
    entry->launch = LaunchOf(request.options);
    entry->incarnation = incarnation;
    if (request.incarnation) {
      entry->forgotten = std::chrono::steady_clock::now();
    }
    const uint64_t number = attach.number;
    entry->pending.push_back(std::move(attach));
    OpenFor(entry, number);
    return;
  }
  if (const Status status = CheckAgreement(*found, request); !status.ok()) {
    attach.done(status);
    return;
  }
  if (found->state.stage() == State::kUnopened) {
    const uint64_t number = attach.number;
    found->pending.push_back(std::move(attach));
    OpenFor(found, number);
    return;
  }
  Opening* const opening = found->state.opening();
  if (opening == nullptr && !MustWait(*found, request)) {
    attach.done(AttachTo(*found, std::move(request)));
    return;
  }
  for (const Pending& pending : found->pending) {
    if (pending.request.joining.rank == request.joining.rank &&
        request.joining.rank != Delivery::kAnyRank) {
      attach.done(AlreadyExistsError(
          "rank {} of job '{}' is attaching already: give each process its "
          "own rank, or another job name",
          NameOf(request), request.key.name));
      return;
    }
  }
  if (opening == nullptr) {
    Postpone(*found, std::move(attach));
  } else {
    NoteNode(opening, request);
    opening->waiting.push_back(attach.number);
    found->pending.push_back(std::move(attach));
  }
}

void JobTable::OpenFor(Entry* entry, uint64_t attach) {
  if (const Status status = Open(entry); !status.ok()) {
    Opened(entry, status);
  } else {
    entry->state.opening()->waiting.push_back(attach);
  }
}

Status JobTable::CheckLimits(uint32_t uid) const {
  const auto of_uid =
      std::count_if(entries_.begin(), entries_.end(),
                    [uid](const Entry& entry) { return entry.key.uid == uid; });
  if (entries_.size() >= limits_.jobs) {
    return ResourceExhaustedError("the broker has reached its limit of {} jobs",
                                  limits_.jobs);
  }
  if (static_cast<uint32_t>(of_uid) >= limits_.jobs_per_uid) {
    return ResourceExhaustedError("user {} has {} jobs, all one user may have",
                                  uid, limits_.jobs_per_uid);
  }
  return OkStatus();
}

StatusOr<JobTable::Attached> JobTable::AttachTo(Entry& entry,
                                                AttachRequest request) {
  // The request was still on its way: the dead process's batches may have been
  // given to others already.
  if (IsDead(request.pidfd)) {
    return UnavailableError("rank {} is dead", NameOf(request));
  }
  const std::shared_ptr<Job>& job = entry.state.job();
  const bool reconnects = request.incarnation.has_value();
  if (reconnects && request.joining.phase >= job->Locked(&Delivery::phases)) {
    // The rank was told of a change of ranks that the journal has lost: every
    // rank batch differs now.
    const Status status = ForgottenError(entry.key.name);
    job->Fail(status);
    return status;
  }
  const auto cursor = request.joining.cursor;
  const uint32_t rank = request.joining.rank;
  if (reconnects && entry.former != nullptr) {
    entry.reconnected[rank] = {request.joining.former, request.former_inode,
                               request.joining.position.value_or(0)};
  }
  if (const PlanStart& start = job->plan().start();
      request.asked_before && request.joining.position == start.position) {
    for (const RowRange& owed : start.owed) {
      request.joining.owed.push_back(StepId(owed.position, 0));
    }
  }
  RestoreDead(entry);
  if (!reconnects && entry.former != nullptr &&
      !job->Locked(&Delivery::Knows, rank)) {
    PENSTOCK_RETURN_IF_ERROR(CheckFormer(entry, request));
    // Its last process may have died between the two calls above.
    RestoreDead(entry);
    PENSTOCK_RETURN_IF_ERROR(CheckRestored(entry, rank));
  }
  uint64_t attach = 0;
  const auto record = [&](const Delivery::Joined& joined) {
    const auto recorded =
        journal_->RankAttached(entry.number, joined.rank, joined.position,
                               request.cursor_fd.get(), request.pidfd);
    if (recorded.ok()) attach = *recorded;
    // Refused if the next broker instance would not know the rank, which has
    // had nothing yet. A rank that reconnects goes on all the same.
    return reconnects ? OkStatus() : recorded.status();
  };
  const auto attached = job->Attach(std::move(request.joining), record);
  if (!attached.ok()) {
    if (reconnects && !job->Locked(&Delivery::Knows, rank)) {
      entry.reconnected.erase(rank);
    }
    return attached.status();
  }
  const Delivery::Joined& joined = *attached;
  entry.deserted.reset();
  entry.attachments[joined.seat] = {attach, joined.rank, cursor,
                                    CursorInode(request.cursor_fd.get())};
  entry.launch.Attached(joined.rank);
  KillPoint("attach.recorded");
  if (job->StartMoving()) StartMover(job);
  if (!job->Locked(&Delivery::gathering)) RetireFormer(entry, joined.rank);
  TryGather(entry);
  FinishFormer(entry);
  // A replacement gets the same incarnation number: the one process it could
  // fence is dead and cannot ask any more, and ranks that reconnect later are
  // recognised by the number.
  return Attached{
      job, joined, entry.incarnation,
      reconnects ? FormerMemoryOf(entry, rank, request.pidfd) : nullptr};
}

const DatasetSpec* JobTable::SpecOf(
    const JobKey& key, uint32_t rank,
    std::optional<Incarnation> incarnation) const {
  for (const Entry& entry : entries_) {
    if (!(entry.key == key) || entry.state.over()) continue;
    if (incarnation ? entry.incarnation.token == incarnation->token
                    : Expects(entry, rank)) {
      return &entry.options.spec;
    }
  }
  return nullptr;
}

// Gives nobody anything of the entry any more.
void JobTable::End(Entry& entry, const std::string& reason, bool awaited) {
  if (entry.state.over()) return;
  entry.state.End();
  if (!awaited && entry.number != 0) journal_->JobEnded(entry.number);
  NoteEnded(entry, awaited);
  if (entry.state.job() == nullptr) return;
  entry.state.job()->Recall(reason);
  entry.state.job()->memory().WillReturn();
}

void JobTable::CancelAttach(uint64_t attach) {
  const auto is_it = [attach](const Pending& pending) {
    return pending.number == attach;
  };
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) {
        return std::any_of(each.pending.begin(), each.pending.end(), is_it);
      });
  if (entry == entries_.end()) return;
  std::erase_if(entry->pending, is_it);
  // Not given up with its first rank if others know of it.
  if (entry->state.stage() != State::kOpening || !entry->pending.empty() ||
      entry->former != nullptr || entry->options.at_end || entry->forgotten) {
    return;
  }
  GiveUpOpening(&*entry);
}

// The next request opens another entry, and Opened() drops this one.
void JobTable::GiveUpOpening(Entry* entry) {
  for (Pending& each : std::exchange(entry->pending, {})) {
    each.done(UnavailableError("rank {} is dead", NameOf(each.request)));
  }
  if (Cancel(*entry->state.Cancel())) {
    Opened(entry, CancelledError("nobody waits any more"));
  }
}

void JobTable::Leave(const std::shared_ptr<Job>& job, uint32_t seat,
                     bool orderly) {
  const bool is_rank = job->Locked(&Delivery::RankAt, seat).has_value();
  if (orderly) {
    job->Leave(seat);
  } else {
    job->Died(seat);
  }
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(),
                   [&](const Entry& each) { return each.state.job() == job; });
  if (entry == entries_.end()) return;
  if (auto attachment = entry->attachments.extract(seat)) {
    const Entry::Attachment& left = attachment.mapped();
    if (orderly && is_rank) {
      const bool finished = job->Locked(&Delivery::Finished, left.rank);
      entry->launch.Left(left.rank, finished);
      journal_->RankLeft(entry->number, left.attach, finished);
    }
    journal_->Unmapped(entry->number, left.attach);
    entry->retired.push_back(left);
  }
  if (!job->Locked(&Delivery::AnyAttached)) Deserted(*entry);
  // For a job that goes on, the next tick sweeps: a thousand ranks may leave
  // one by one.
  if (entry->state.over()) Sweep();
}

void JobTable::Deserted(Entry& entry) {
  if (entry.state.over()) return;
  const JobKey& key = entry.key;
  const Job& job = *entry.state.job();
  if (job.failed() || (entry.launch.Complete() && !OwesAnybody(entry))) {
    End(entry, "all ranks have left");
    return;
  }
  const bool delivered = job.Locked(&Delivery::AllDelivered);
  if (!entry.named) {
    if (!delivered) Log<"job-undelivered">(key, key.dataset);
    End(entry, "all ranks have left");
  } else if (delivered) {
    Log<"job-delivered">(key, entry.incarnation.number, kAwaitedKept.count());
    End(entry, "all of its data are delivered", true);
  } else if (!entry.deserted) {
    entry.deserted = std::chrono::steady_clock::now();
  }
}

std::vector<std::shared_ptr<Job>> JobTable::Find(const JobQuery& query) const {
  std::vector<std::shared_ptr<Job>> jobs;
  for (const Entry& entry : entries_) {
    if (entry.state.stage() == State::kOpen && !entry.options.at_end &&
        query.Matches(entry.key)) {
      jobs.push_back(entry.state.job());
    }
  }
  return jobs;
}

std::vector<std::shared_ptr<Job>> JobTable::Running() const {
  std::vector<std::shared_ptr<Job>> jobs;
  for (const Entry& entry : entries_) {
    if (entry.state.stage() == State::kOpen && !entry.options.at_end) {
      jobs.push_back(entry.state.job());
    }
  }
  return jobs;
}

bool JobTable::MayOpen(const JobQuery& query) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.state.stage() < State::kOpen && query.Matches(entry.key);
  });
}

void JobTable::CheckTimeouts() {
  const PoolUse pool = RecentPoolUse();
  for (Entry& entry : entries_) {
    if (entry.state.stage() != State::kOpen) continue;
    Job& job = *entry.state.job();
    job.CheckTimeouts(workers_->UseOfFunctionWorkers(job));
    job.TunePrefetch(pool);
  }
}

void JobTable::Sweep() {
  StartWaiting();
  CheckHolders();
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    HearFormer(*entry);
    // From a former broker instance, and nobody comes.
    if (entry->state.stage() == State::kUnopened && FormerIsOver(*entry)) {
      End(*entry, "");
    }
    if (entry->state.job() != nullptr) SweepRanks(*entry);
    entry = Release(*entry) ? entries_.erase(entry) : std::next(entry);
  }
}

void JobTable::SweepRanks(Entry& entry) {
  std::vector<Entry::Attachment> needed;
  for (const Entry::Attachment& dead : entry.retired) {
    if (!Superseded(entry, dead) ||
        entry.state.job()->Locked(&Delivery::OwesPredecessor, dead.rank)) {
      needed.push_back(dead);
    } else {
      journal_->RankForgotten(entry.number, dead.attach);
    }
  }
  entry.retired = std::move(needed);
  if (entry.former_memory != nullptr && Away(entry).empty()) {
    entry.former_memory.reset();
  }
  if (entry.state.over()) return;
  TryGather(entry);
  FinishFormer(entry);
  // It may have failed since, or turn out to be delivered.
  if (entry.deserted) Deserted(entry);
  if (entry.deserted &&
      std::chrono::steady_clock::now() - *entry.deserted > kDesertedJobKept) {
    End(entry, "nobody came back");
  }
}

bool JobTable::Release(Entry& entry) {
  if (entry.state.stage() != State::kOver) return false;
  for (Pending& each : std::exchange(entry.pending, {})) {
    Route(std::move(each));
  }
  std::shared_ptr<Job> job = entry.state.job();
  if (job == nullptr) return true;
  if (!job->Abandoned()) return false;
  workers_->Remove(job.get());
  // Relaxed: no worker is on it any more.
  rows_of_ended_jobs_ += job->counters().rows.load(std::memory_order_relaxed);
  deferred_->Destroy(std::move(job));
  return true;
}

PoolUse JobTable::RecentPoolUse() const {
  PoolUse use;
  use.workers = workers_->workers();
  use.idle = workers_->recently_idle();
  for (const Entry& entry : entries_) {
    const Job* const job = entry.state.job().get();
    // Those of a job with workers of its own are not in the pool's time.
    if (job == nullptr || job->has_function_workers()) continue;
    const Job::Recent recent = job->recent();
    use.decoding += recent.decoding / use.workers;
    use.storage += recent.storage / use.workers;
  }
  return use;
}

std::optional<double> JobTable::KeptFor(const Entry& entry) const {
  auto since = entry.deserted;
  const bool is_former = entry.state.stage() == State::kUnopened;
  if (!since && FormerIsDeserted(entry)) {
    since = std::chrono::steady_clock::now();
  }
  const Job* const job = entry.state.job().get();
  if (entry.state.over() || !since || (job != nullptr && job->failed())) {
    return std::nullopt;
  }
  std::chrono::duration<double> kept =
      is_former ? DesertedKept(entry) : kDesertedJobKept;
  kept -= std::chrono::steady_clock::now() - *since;
  return std::max(kept.count(), 0.0);
}

nlohmann::json JobTable::StatusJson(
    const ProcessIds* pids,
    const std::function<bool(uint32_t)>& accepts) const {
  const PoolUse pool = RecentPoolUse();
  nlohmann::json jobs = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    if (!accepts(entry.key.uid)) continue;
    const std::map<uint32_t, const RecordedRank*> away = Away(entry);
    AbsentRanks absent;
    absent.replicas = entry.options.replicas;
    for (const auto& [rank, former] : away) absent.to_reconnect.push_back(rank);
    if (const std::shared_ptr<Job>& open = entry.state.job()) {
      nlohmann::json& job =
          jobs.emplace_back(open->StatusJson(pids != nullptr, KeptFor(entry)));
      job["incarnation"] = entry.incarnation.number;
      if (open->has_function_workers()) {
        std::string why;
        job["processes"] = workers_->ProcessesOf(*open, &why);
        job["processes_chosen"] = why;
      }
      if (pids != nullptr) {
        const auto pid_of = [&](uint32_t seat) {
          const auto pid = pids->of_seats.find({open.get(), seat});
          return pid == pids->of_seats.end() ? 0 : pid->second;
        };
        job["bottleneck"] = open->FindBottleneck(pool, absent, pid_of).ToJson();
        const auto put = [&](const char* list, const char* number,
                             const auto& from) {
          if (!job.contains(list)) return;
          for (nlohmann::json& each : job[list]) {
            if (!each[number].is_number()) continue;
            const auto pid =
                from.find({open.get(), each[number].get<int64_t>()});
            // 0: it is in a PID namespace that is not visible here.
            if (pid != from.end() && pid->second > 0) each["pid"] = pid->second;
          }
        };
        put("ranks", "seat", pids->of_seats);
        put("producers", "producer", pids->of_producers);
      }
      if (entry.state.over() && !open->failed()) job["state"] = "ending";
    } else {
      const bool unopened = entry.state.stage() == State::kUnopened;
      nlohmann::json& job = jobs.emplace_back(nlohmann::json{
          {"job", entry.key.name},
          {"dataset", entry.key.dataset},
          {"uid", entry.key.uid},
          {"state",
           unopened ? "waiting for its ranks to reconnect" : "opening"},
          {"world_size", entry.options.world_size},
          {"replicas", entry.options.replicas}});
      if (const std::optional<double> kept_s = KeptFor(entry)) {
        const uint32_t replicas = entry.options.replicas;
        std::set<uint32_t> dead;
        for (const auto& [attach, rank] : entry.former->ranks) {
          if (!rank.left) dead.insert(entry.key.ProcessOf(rank.rank, replicas));
        }
        const std::vector<uint32_t> waits_for(dead.begin(), dead.end());
        job["state"] = AllGoneText(waits_for, *kept_s, replicas);
        job["waits_for"] = RanksOf(waits_for, replicas);
        job["kept_s"] = *kept_s;
      } else if (pids != nullptr && unopened) {
        job["bottleneck"] = Bottleneck::Of(RecentUse(), pool, absent).ToJson();
      }
    }
    nlohmann::json& job = jobs.back();
    if (!entry.state.over() && job["state"] != "failed" &&
        job["state"] != "opening") {
      AddAway(away, pids != nullptr, entry.options.replicas, &job);
    }
  }
  return jobs;
}

uint64_t JobTable::RowsMade() const {
  uint64_t rows = rows_of_ended_jobs_;
  for (const Entry& entry : entries_) {
    if (Job* const job = entry.state.job().get()) {
      rows += job->counters().rows.load(std::memory_order_relaxed);
    }
  }
  return rows;
}

void JobTable::SetLimits(const Limits& limits) {
  datasets_.Set(limits.functions, limits.data, limits.snapshots);
  limits_ = limits;
  reserved_->SetLimits(limits.memory);
}

void JobTable::Shutdown() {
  for (Entry& entry : entries_) {
    for (Pending& pending : entry.pending) {
      pending.done(UnavailableError("the broker was stopped"));
    }
    entry.pending.clear();
  }
  for (auto& [number, done] : inspects_) {
    done(UnavailableError("the broker was stopped"));
  }
  inspects_.clear();
}

}  // namespace penstock
