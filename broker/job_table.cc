#include "broker/job_table.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>

namespace penstock {

// ---- OpenDatasets
// ---------------------------------------------------------------

StatusOr<std::shared_ptr<const Dataset>> OpenDatasets::Get(
    const DatasetSpec& spec, OpenProgress* progress) {
  const std::string key = DatasetKey(spec);
  {
    MutexLock lock(&mutex_);
    for (;;) {
      Entry& entry = entries_[key];
      if (auto dataset = entry.dataset.lock()) return dataset;
      if (!entry.opening) {
        entry.opening = true;
        break;
      }
      if (progress->cancel.load()) return CancelledError("cancelled");
      opened_.Wait(&mutex_);
    }
  }
  StatusOr<std::shared_ptr<const Dataset>> dataset =
      OpenDataset(spec, progress);
  MutexLock lock(&mutex_);
  Entry& entry = entries_[key];
  entry.opening = false;
  if (dataset.ok()) entry.dataset = *dataset;
  std::erase_if(entries_, [](const auto& item) {
    return !item.second.opening && item.second.dataset.expired();
  });
  opened_.NotifyAll();
  return dataset;
}

void OpenDatasets::NoticeCancel() {
  MutexLock lock(&mutex_);
  opened_.NotifyAll();
}

// ---- JobTable
// -------------------------------------------------------------------

uint64_t JobTable::NewLifeId() {
  uint64_t id = 0;
  while (id == 0 && getrandom(&id, sizeof(id), 0) != sizeof(id)) {
  }
  return id;
}

JobTable::~JobTable() {
  for (Opening& opening : openings_) opening.progress.cancel.store(true);
  datasets_.NoticeCancel();
  for (Opening& opening : openings_) opening.thread.join();
}

Status JobTable::CheckAgreement(const Entry& entry,
                                const AttachRequest& request) {
  const auto disagree = [&](const std::string& what) {
    return FailedPreconditionError(
        "rank {} disagrees with the ranks of job '{}' that are attached: {}",
        request.rank, entry.key.name, what);
  };
  const JobOptions& there = entry.options;
  const JobOptions& here = request.options;
  if (here.world_size != there.world_size) {
    return disagree(fmt::format("world size: {} here, {} there",
                                here.world_size, there.world_size));
  }
  if (here.local_world_size != there.local_world_size) {
    return disagree(fmt::format("local world size: {} here, {} there",
                                here.local_world_size, there.local_world_size));
  }
  if (here.repeat_first != there.repeat_first) {
    return disagree(fmt::format("repeat_first: {} here, {} there",
                                here.repeat_first, there.repeat_first));
  }
  const std::string field = DifferingField(here.spec, there.spec);
  return field.empty() ? OkStatus() : disagree("spec: " + field);
}

uint64_t JobTable::Attach(AttachRequest request, AttachDone done) {
  const uint64_t number = next_number_++;
  // The newest incarnation of the job that this rank is not through with.
  Entry* found = nullptr;
  for (Entry& entry : entries_) {
    if (entry.key == request.key) found = &entry;
  }
  if (found != nullptr &&
      (found->job != nullptr
           ? found->job->Finished(request.rank) || !found->job->HasAttached()
           : found->opening->progress.cancel.load())) {
    found = nullptr;
  }
  if (found == nullptr) {
    if (const Status status = CheckLimits(request.key.uid); !status.ok()) {
      done(status);
      return number;
    }
    entries_.push_back({request.key, request.options, nullptr, nullptr, {}});
    Entry* entry = &entries_.back();
    entry->pending.push_back({number, std::move(request), std::move(done)});
    if (const Status status = Open(entry); !status.ok()) {
      Opened(entry, status);
    } else {
      entry->opening->waiting.push_back(number);
    }
    return number;
  }
  if (const Status status = CheckAgreement(*found, request); !status.ok()) {
    done(status);
    return number;
  }
  if (found->job == nullptr) {
    for (const Pending& pending : found->pending) {
      if (pending.request.rank == request.rank) {
        done(AlreadyExistsError(
            "rank {} of job '{}' is attaching already: give each process its "
            "own rank, or another job name",
            request.rank, request.key.name));
        return number;
      }
    }
    found->opening->waiting.push_back(number);
    found->pending.push_back({number, std::move(request), std::move(done)});
    return number;
  }
  done(AttachTo(*found, std::move(request)));
  return number;
}

Status JobTable::CheckLimits(uint32_t uid) const {
  const auto of_uid =
      std::count_if(entries_.begin(), entries_.end(),
                    [uid](const Entry& entry) { return entry.key.uid == uid; });
  if (entries_.size() >= limits_.jobs) {
    return ResourceExhaustedError("the broker has {} jobs, all it may have",
                                  limits_.jobs);
  }
  if (static_cast<uint32_t>(of_uid) >= limits_.jobs_per_uid) {
    return ResourceExhaustedError("user {} has {} jobs, all one user may have",
                                  uid, limits_.jobs_per_uid);
  }
  return OkStatus();
}

StatusOr<std::thread> JobTable::StartOpening(std::function<void()> body) {
  if (openings_.size() > limits_.openings) {
    return ResourceExhaustedError(
        "the broker opens {} datasets already, all it may at once: try again "
        "when they are open",
        limits_.openings);
  }
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return ResourceExhaustedError("cannot start a thread: {}", error.what());
  }
}

StatusOr<JobTable::Attached> JobTable::AttachTo(Entry& entry,
                                                AttachRequest request) {
  Attached attached{entry.job, 0};
  PENSTOCK_RETURN_IF_ERROR(
      entry.job->Attach(request.rank, std::move(request.cursor),
                        request.wake_socket, &attached.seat));
  return attached;
}

void JobTable::CancelAttach(uint64_t attach) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    std::erase_if(entry->pending, [attach](const Pending& pending) {
      return pending.number == attach;
    });
    if (entry->job == nullptr && entry->pending.empty() &&
        entry->opening != nullptr) {
      // Nobody waits any more; Opened() finds no pending and drops the job.
      entry->opening->progress.cancel.store(true);
      datasets_.NoticeCancel();
    }
  }
}

Status JobTable::Open(Entry* entry) {
  Opening* opening = &openings_.emplace_back();
  entry->opening = opening;
  StatusOr<std::thread> thread = StartOpening(
      [this, entry, opening, key = entry->key, options = entry->options] {
        StatusOr<std::shared_ptr<Job>> job =
            MakeJob(key, options, &opening->progress);
        if (!job.ok()) {
          loop_->Post([this, entry, opening, status = job.status()] {
            Opened(entry, status);
            EndOpening(opening);
          });
          return;
        }
        // Its first slots first; the ranks attach, the rest follows while the
        // first batches are made.
        bool told = false;
        const Status populated = PopulateJob(**job, opening->progress, [&] {
          told = true;
          loop_->Post([this, entry, job = *job] { Opened(entry, job); });
        });
        loop_->Post([this, entry, opening, populated, told, job = *job] {
          if (!populated.ok()) {
            job->Fail(populated);
            if (!told) Opened(entry, populated);
          }
          EndOpening(opening);
        });
      });
  if (!thread.ok()) {
    openings_.pop_back();
    return thread.status();
  }
  opening->thread = *std::move(thread);
  return OkStatus();
}

StatusOr<std::shared_ptr<Job>> JobTable::MakeJob(const JobKey& key,
                                                 const JobOptions& options,
                                                 OpenProgress* progress) {
  progress->promise = [this](uint64_t bytes) { return CheckSource(bytes); };
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset,
                            datasets_.Get(options.spec, progress));
  if (progress->cancel.load()) return CancelledError("nobody waits any more");
  auto layout = Job::PlanLayout(options, *dataset);
  if (!layout.ok()) {
    return layout.status().Prepend("dataset '" + options.spec.name + "'");
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<void> memory,
                            PromiseMemory(key.name, options, *layout));
  auto segment =
      Segment::Create(layout->segment, life_id_, job_ids_.fetch_add(1));
  if (!segment.ok()) {
    promised_bytes_.fetch_sub(layout->segment.segment_bytes);
    return segment.status();
  }
  return std::make_shared<Job>(key, options, std::move(dataset),
                               *std::move(layout), *std::move(segment),
                               std::move(memory), workers_->workers());
}

Status JobTable::CheckSource(uint64_t bytes) const {
  const MemoryRoom room = FindMemoryRoom(SystemFiles{});
  uint64_t left = room.bytes - std::min(room.bytes, promised_bytes_.load());
  std::string limit = room.limit;
  if (limits_.memory_bytes && *limits_.memory_bytes < left) {
    left = *limits_.memory_bytes;
    limit = "the broker's memory_limit";
  }
  if (bytes <= left) return OkStatus();
  return ResourceExhaustedError("needs {} in memory, only {} are left by {}",
                                BytesText(bytes), BytesText(left), limit);
}

StatusOr<std::shared_ptr<void>> JobTable::PromiseMemory(
    const std::string& job, const JobOptions& options,
    const Job::Layout& layout) {
  const uint64_t needed = layout.segment.segment_bytes;
  // Taken first and judged then, so that two jobs that open at once cannot both
  // be promised the same bytes.
  const uint64_t taken = segment_bytes_->fetch_add(needed);
  std::shared_ptr<void> promise(
      nullptr,
      [bytes = segment_bytes_, needed](void*) { bytes->fetch_sub(needed); });
  const uint64_t promised = promised_bytes_.fetch_add(needed);
  const auto refuse = [&](const std::string& why) {
    promised_bytes_.fetch_sub(needed);
    return ResourceExhaustedError(
        "job '{}' needs {} ({} ranks x (prefetch {} + hold {}) batches x {} "
        "rows x {}), {}; make batch.size or prefetch smaller",
        job, BytesText(needed), options.local_world_size, options.spec.prefetch,
        options.spec.hold, layout.segment.rows_max, BytesText(layout.row_bytes),
        why);
  };
  if (limits_.memory_bytes &&
      needed > *limits_.memory_bytes - std::min(*limits_.memory_bytes, taken)) {
    return refuse(
        fmt::format("the broker's memory_limit is {}, {} of it are "
                    "taken by other jobs",
                    BytesText(*limits_.memory_bytes), BytesText(taken)));
  }
  const MemoryRoom room = FindMemoryRoom(SystemFiles{});
  const uint64_t left = room.bytes - std::min(room.bytes, promised);
  if (needed > left) {
    return refuse(
        fmt::format("only {} are left by {}", BytesText(left), room.limit));
  }
  return promise;
}

Status JobTable::PopulateJob(Job& job, const OpenProgress& progress,
                             const std::function<void()>& on_first) {
  const SegmentPlan& plan = job.segment().plan();
  std::byte* base = job.segment().base();
  const uint32_t seats = plan.seats;
  const uint32_t levels = job.slots_per_seat();
  std::vector<PopulateRange> ranges = {{base, plan.slots_offset}};
  for (uint32_t level = 0; level < levels; ++level) {
    for (uint32_t seat = 0; seat < seats; ++seat) {
      ranges.push_back({base + job.segment().slot_offset(seat * levels + level),
                        plan.slot_stride});
    }
  }
  const Status status = Populate(
      ranges,
      [&](size_t done) {
        if (done < 1 + seats || (done - 1) % seats != 0) return;
        const auto level = static_cast<uint32_t>((done - 1) / seats);
        job.SetUsableSlots(level);
        if (level == 1) on_first();
      },
      [&] { return progress.cancel.load() || job.Pointless(); });
  promised_bytes_.fetch_sub(plan.segment_bytes);
  return status;
}

void JobTable::Opened(Entry* entry, StatusOr<std::shared_ptr<Job>> job) {
  std::vector<Pending> pending = std::move(entry->pending);
  entry->pending.clear();
  if (!job.ok() || pending.empty()) {
    entries_.remove_if([entry](const Entry& item) { return &item == entry; });
    const Status status =
        job.ok() ? CancelledError("nobody waits any more") : job.status();
    for (Pending& each : pending) each.done(status);
    return;
  }
  entry->job = *job;
  (*job)->SetOnMore([loop = loop_, weak = std::weak_ptr<Job>(*job)] {
    loop->Post([weak] {
      if (const std::shared_ptr<Job> same = weak.lock()) same->Advance();
    });
  });
  workers_->Add(*job);
  for (Pending& each : pending) {
    each.done(AttachTo(*entry, std::move(each.request)));
  }
}

void JobTable::EndOpening(Opening* opening) {
  opening->thread.join();
  openings_.remove_if(
      [opening](const Opening& item) { return &item == opening; });
}

void JobTable::Detach(const std::shared_ptr<Job>& job, uint32_t seat) {
  job->Detach(seat);
  leaving_.push_back(job);
  Sweep();
}

void JobTable::Sweep() {
  std::erase_if(leaving_, [this](const std::shared_ptr<Job>& job) {
    const bool known =
        std::any_of(entries_.begin(), entries_.end(),
                    [&](const Entry& entry) { return entry.job == job; });
    if (!known) return true;
    if (!job->Abandoned()) return job->HasAttached();
    workers_->Remove(job.get());
    // Relaxed: no worker is on it any more.
    rows_of_ended_jobs_ += job->counters().rows.load(std::memory_order_relaxed);
    entries_.remove_if([&](const Entry& entry) { return entry.job == job; });
    return true;
  });
}

uint64_t JobTable::Inspect(JobOptions options, InspectDone done) {
  const uint64_t number = next_number_++;
  inspects_[number] = std::move(done);
  Opening* opening = &openings_.emplace_back();
  opening->waiting.push_back(number);
  StatusOr<std::thread> thread =
      StartOpening([this, number, opening, options = std::move(options)] {
        opening->progress.promise = [this](uint64_t bytes) {
          return CheckSource(bytes);
        };
        StatusOr<nlohmann::json> answer = [&]() -> StatusOr<nlohmann::json> {
          PENSTOCK_ASSIGN_OR_RETURN(
              const std::shared_ptr<const Dataset> dataset,
              datasets_.Get(options.spec, &opening->progress));
          PENSTOCK_ASSIGN_OR_RETURN(const Job::Layout layout,
                                    Job::PlanLayout(options, *dataset));
          nlohmann::json json = OkReply();
          json["dataset"] = options.spec.name;
          json["records"] = dataset->source->record_count();
          json["element_spec"] =
              ElementSpecToJson(dataset->program->element_spec());
          json["class_names"] = dataset->source->class_names();
          json["global_batch"] = layout.plan.global_batch();
          json["steps_per_epoch"] = layout.plan.steps_per_epoch();
          json["rows_per_epoch"] = layout.plan.rows_per_epoch();
          json["epochs"] = layout.plan.epochs().value_or(0);
          json["memory_bytes"] = layout.segment.segment_bytes;
          json["index_bytes"] = dataset->source->memory_bytes();
          return json;
        }();
        loop_->Post([this, number, opening, answer = std::move(answer)] {
          if (auto found = inspects_.extract(number); !found.empty()) {
            found.mapped()(answer);
          }
          EndOpening(opening);
        });
      });
  if (!thread.ok()) {
    openings_.pop_back();
    inspects_.extract(number).mapped()(thread.status());
    return number;
  }
  opening->thread = *std::move(thread);
  return number;
}

void JobTable::CancelInspect(uint64_t inspect) {
  if (inspects_.erase(inspect) == 0) return;
  for (Opening& opening : openings_) {
    if (std::find(opening.waiting.begin(), opening.waiting.end(), inspect) !=
        opening.waiting.end()) {
      opening.progress.cancel.store(true);
      datasets_.NoticeCancel();
    }
  }
}

bool JobTable::Progress(uint64_t number, uint64_t* done,
                        uint64_t* total) const {
  for (const Opening& opening : openings_) {
    if (std::find(opening.waiting.begin(), opening.waiting.end(), number) ==
        opening.waiting.end()) {
      continue;
    }
    *done = opening.progress.done.load();
    *total = opening.progress.total.load();
    return true;
  }
  return false;
}

nlohmann::json JobTable::StatusJson(bool with_ranks) const {
  nlohmann::json jobs = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    if (entry.job != nullptr) {
      jobs.push_back(entry.job->StatusJson(with_ranks));
    } else {
      jobs.push_back({{"job", entry.key.name},
                      {"dataset", entry.key.dataset},
                      {"uid", entry.key.uid},
                      {"state", "opening"},
                      {"world_size", entry.options.world_size}});
    }
  }
  return jobs;
}

uint64_t JobTable::RowsMade() const {
  uint64_t rows = rows_of_ended_jobs_;
  for (const Entry& entry : entries_) {
    if (entry.job != nullptr) {
      rows += entry.job->counters().rows.load(std::memory_order_relaxed);
    }
  }
  return rows;
}

void JobTable::Shutdown() {
  for (Entry& entry : entries_) {
    if (entry.job != nullptr) entry.job->Shutdown();
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
