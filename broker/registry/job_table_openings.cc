// The part of JobTable for lengthy work on threads of its own: opening a
// dataset, alone (Inspect) or for a job, whose memory is then reserved and
// populated; moving that memory later.

#include <algorithm>
#include <chrono>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "broker/base/log.h"
#include "broker/base/text.h"
#include "broker/job/remote_data.h"
#include "broker/registry/job_table.h"
#include "common/class_names.h"
#include "common/message.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Unmapping takes about 0.1 s a gigabyte.
constexpr std::chrono::seconds kMemoryReturn{10};

// Records the events of one job in the journal.
class JobInJournal : public JobRecord {
 public:
  JobInJournal(RecoveryJournal* journal, uint64_t number)
      : journal_(journal), number_(number) {}
  void Completed(uint64_t position, uint64_t next) override {
    journal_->Completed(number_, position, next);
  }
  void HandedOver(uint32_t rank, uint64_t step) override {
    journal_->HandedOver(number_, rank, step);
  }
  void Opened(uint64_t position) override {
    journal_->Opened(number_, position);
  }
  Status WeightsChanged(const WeightsChange& change) override {
    return journal_->WeightsChanged(number_, change);
  }
  void PhaseBegun(const FormerPhase& phase) override {
    journal_->PhaseBegun(number_, phase);
  }
  Status ProducerJoined(const StreamLedger& before,
                        const StreamLedger::Producer& producer, int memory,
                        int pidfd) override {
    return journal_->ProducerJoined(number_, before, producer, memory, pidfd);
  }
  void RowsPut(uint32_t producer, uint64_t ring_position, uint64_t rows,
               uint64_t first) override {
    journal_->RowsPut(number_, producer, ring_position, rows, first);
  }
  void ProducerLeft(uint32_t producer, bool finished) override {
    journal_->ProducerLeft(number_, producer, finished);
  }
  void RowsReleased(uint64_t row) override {
    journal_->RowsReleased(number_, row);
  }
  Status RetainedOpened(uint64_t rows, int memory) override {
    return journal_->RetainedOpened(number_, rows, memory);
  }
  void RowsMoved(uint64_t row,
                 const std::vector<StreamLedger::Chunk>& needed) override {
    journal_->RowsMoved(number_, row, needed);
  }

 private:
  RecoveryJournal* const journal_;
  const uint64_t number_;
};

std::string WarningOf(const DatasetSpec& spec, const Dataset& dataset,
                      const Job::Layout& layout) {
  const bool together = spec.shuffle && !spec.shuffle->window_files;
  std::string all;
  for (const std::string& text :
       {dataset.warning(), layout.plan.warning(), layout.news,
        together ? dataset.source->shuffle_warning() : ""}) {
    if (!text.empty()) all += (all.empty() ? "" : "; ") + text;
  }
  return all;
}

// What runs out of memory is the opening, not the daemon.
template <typename Body>
auto Guarded(const Body& body) -> decltype(body()) {
  const auto failed = [] {
    return ResourceExhaustedError(
        "the memory that it needs cannot be had: select fewer records, or give "
        "the broker more");
  };
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return failed();
  } catch (const std::length_error&) {
    return failed();
  }
}

// Errors name the place in the spec, or the dataset.
StatusOr<Job::Layout> PlanLayout(const JobOptions& options,
                                 const Dataset& dataset, size_t nodes,
                                 bool replicate, bool ahead,
                                 const OrderBudget& budget) {
  auto layout = Guarded([&] {
    return Job::PlanLayout(options, dataset, static_cast<uint32_t>(nodes),
                           replicate, ahead, budget);
  });
  if (layout.ok()) return layout;
  return Located(options.spec, layout.status());
}

class PromisedMemory final : public MemoryPromise {
 public:
  explicit PromisedMemory(MemoryReservation memory)
      : memory_(std::move(memory)) {}
  void Populated(uint64_t bytes) override { memory_.Populated(bytes); }

 private:
  MemoryReservation memory_;
};

// The dataset counts what it keeps in memory as long as it is open.
StatusOr<std::shared_ptr<const Dataset>> OpenCounted(
    const DatasetSpec& spec, const FunctionOptions& functions,
    OpenProgress* progress, const std::shared_ptr<ReservedMemory>& reserved,
    uint32_t uid, CacheHost host) {
  auto memory = std::make_shared<MemoryReservation>(reserved, uid);
  host.promise =
      [&](uint64_t bytes) -> StatusOr<std::unique_ptr<MemoryPromise>> {
    MemoryReservation promised(reserved, uid);
    PENSTOCK_RETURN_IF_ERROR(promised.GrowUnpopulated(bytes));
    return std::unique_ptr<MemoryPromise>(
        std::make_unique<PromisedMemory>(std::move(promised)));
  };
  progress->reserve = [memory](uint64_t bytes) { return memory->Grow(bytes); };
  PENSTOCK_ASSIGN_OR_RETURN(
      std::shared_ptr<const Dataset> dataset,
      Guarded([&] { return OpenDataset(spec, functions, progress, host); }));
  const Status status = memory->Settle(dataset->memory_bytes());
  if (!status.ok()) return status.Prepend("dataset '" + spec.name + "'");
  // Not when the last weak reference goes, with which a deleter goes.
  const Dataset* const opened = dataset.get();
  return std::shared_ptr<const Dataset>(
      opened, [dataset = std::move(dataset),
               memory = std::move(memory)](const Dataset*) mutable {
        dataset.reset();
        memory.reset();
      });
}

}  // namespace

StatusOr<std::shared_ptr<const Dataset>> OpenDatasets::Get(
    const DatasetSpec& spec, uint32_t uid,
    const std::shared_ptr<ReservedMemory>& reserved, OpenProgress* progress) {
  DataPolicy data;
  {
    MutexLock lock(&mutex_);
    data = data_;
  }
  // Without the lock: it asks for the groups of the user.
  progress->access = data.AccessOf(uid, RunsFunctions(spec));
  const std::string key = progress->access->key() + DatasetKey(spec);
  std::shared_ptr<const Dataset> open;
  FunctionOptions functions;
  CacheHost host;
  bool waited = false;
  {
    MutexLock lock(&mutex_);
    while (entries_[key].opening) {
      if (progress->cancel.load()) return CancelledError("cancelled");
      opened_.Wait(&mutex_);
      waited = true;
    }
    Entry& entry = entries_[key];
    open = entry.dataset.lock();
    // It was opened or checked while this thread waited.
    if (open != nullptr && waited) return open;
    entry.opening = true;
    functions = functions_;
    host.snapshots = snapshots_;
  }
  StatusOr<std::shared_ptr<const Dataset>> dataset =
      open != nullptr && !open->Changed()
          ? open
          : OpenCounted(spec, functions, progress, reserved, uid, host);
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

std::shared_ptr<const StepsOfMakers> OpenDatasets::ChooseSteps(
    const DatasetSpec& spec, const Dataset& dataset, uint32_t uid,
    const std::shared_ptr<ReservedMemory>& reserved, OpenProgress* progress) {
  DataPolicy data;
  {
    MutexLock lock(&mutex_);
    data = data_;
  }
  progress->access = data.AccessOf(uid, RunsFunctions(spec));
  auto memory = std::make_shared<MemoryReservation>(reserved, uid);
  progress->reserve = [memory](uint64_t bytes) { return memory->Grow(bytes); };
  const auto steps =
      Guarded([&]() -> StatusOr<std::shared_ptr<const StepsOfMakers>> {
        return ChooseStepsOfMakers(spec, dataset, progress);
      });
  return steps.ok() ? *steps : nullptr;
}

void OpenDatasets::Set(FunctionOptions functions, DataPolicy data,
                       std::optional<std::vector<std::string>> snapshots) {
  MutexLock lock(&mutex_);
  snapshots_ = std::move(snapshots);
  functions_ = std::move(functions);
  data_ = std::move(data);
}

void OpenDatasets::NoticeCancel() {
  MutexLock lock(&mutex_);
  opened_.NotifyAll();
}

void JobTable::Start(Opening* opening, uint32_t uid,
                     std::function<void()> body) {
  opening->uid = uid;
  opening->body = std::move(body);
  StartWaiting();
}

void JobTable::StartWaiting() {
  for (;;) {
    std::map<uint32_t, uint32_t> running_of;
    uint32_t running = 0;
    Opening* next = nullptr;
    for (const Opening& opening : openings_) {
      if (opening.body) continue;
      ++running;
      ++running_of[opening.uid];
    }
    if (running >= limits_.openings) return;
    for (Opening& opening : openings_) {
      if (opening.body && running_of[opening.uid] < limits_.openings_per_uid &&
          (next == nullptr ||
           running_of[opening.uid] < running_of[next->uid])) {
        next = &opening;
      }
    }
    if (next == nullptr) return;
    std::function<void()> body = std::exchange(next->body, nullptr);
    try {
      next->thread = std::thread(body);
    } catch (const std::system_error& error) {
      // Sweep tries again.
      Log<"opening-delayed">(error.what());
      next->body = std::move(body);
      return;
    }
  }
}

Status JobTable::Open(Entry* entry) {
  Opening* opening = &openings_.emplace_back();
  // The number must be known before the job, which records under it. An entry
  // at its end has its record already.
  if (!entry->options.at_end) {
    const auto recorded = journal_->JobOpened(
        entry->key, entry->options, entry->incarnation, entry->named,
        entry->former != nullptr ? std::optional(entry->number) : std::nullopt);
    if (!recorded.ok()) {
      openings_.pop_back();
      return recorded.status();
    }
    entry->number = *recorded;
  }
  entry->state.Begin(opening);
  for (const Pending& each : entry->pending) NoteNode(opening, each.request);
  Start(opening, entry->key.uid,
        [this, entry, opening, key = entry->key, options = entry->options,
         number = entry->number] {
          uint64_t returns = reserved_->returns();
          StatusOr<std::shared_ptr<Job>> job =
              MakeJob(key, options, number, opening);
          // Perhaps it fits when jobs that end have returned their memory.
          const auto latest = std::chrono::steady_clock::now() + kMemoryReturn;
          while (job.status().code() == StatusCode::kResourceExhausted &&
                 reserved_->AwaitReturn(&returns, latest,
                                        opening->progress.cancel)) {
            job = MakeJob(key, options, number, opening);
          }
          if (!job.ok()) {
            loop_->Post([this, entry, opening, status = job.status()] {
              Opened(entry, status);
              EndOpening(opening);
            });
            return;
          }
          // The first slots come first: the ranks attach, and the rest follows
          // while the first batches are made.
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
  return OkStatus();
}

StatusOr<std::shared_ptr<Job>> JobTable::MakeJob(const JobKey& key,
                                                 const JobOptions& options,
                                                 uint64_t number,
                                                 Opening* opening) {
  OpenProgress* const progress = &opening->progress;
  PENSTOCK_ASSIGN_OR_RETURN(
      std::shared_ptr<const Dataset> dataset,
      datasets_.Get(options.spec, key.uid, reserved_, progress));
  if (progress->cancel.load()) return CancelledError("nobody waits any more");
  const std::vector<uint32_t> nodes = workers_->topology().node_numbers();
  MemoryReservation memory;
  const auto plan = [&](bool replicate, bool ahead) -> StatusOr<Job::Layout> {
    PENSTOCK_ASSIGN_OR_RETURN(
        Job::Layout layout,
        PlanLayout(options, *dataset, nodes.size(), replicate, ahead,
                   BudgetOf(key.uid, *progress)));
    PENSTOCK_ASSIGN_OR_RETURN(memory, ReserveMemory(key, options, layout));
    return layout;
  };
  // With room to make more ahead, and with a copy on each node, if there is
  // memory.
  const bool replicate = workers_->topology().unbound().empty();
  auto layout = plan(replicate, true);
  for (const bool copies : {replicate, false}) {
    if (layout.status().code() != StatusCode::kResourceExhausted) break;
    layout = plan(copies, false);
  }
  if (!layout.ok()) return layout.status();
  if (layout->segment.bank_slots > 0) {
    MutexLock lock(&opening->mutex);
    layout->bank_nodes = NodesOfBanks(options, *layout, nodes, opening->known);
    for (const auto& [node, workers] : workers_->workers_of_nodes()) {
      layout->worker_nodes.push_back(node);
    }
  }
  journal_->Begun(number, layout->plan.start().position,
                  layout->segment.segment_bytes);
  auto segment = Segment::Create(layout->segment, instance_id_, number);
  if (!segment.ok()) return segment.status();
  auto job = std::make_shared<Job>(
      key, options, std::move(dataset), *std::move(layout), *std::move(segment),
      std::move(memory), workers_->workers(),
      std::make_unique<JobInJournal>(journal_, number));
  // Ranks will ask for it at once: it may be long in the making.
  if (options.several_hosts()) job->agreement();
  return job;
}

void JobTable::NoteNode(Opening* opening, const AttachRequest& request) {
  if (!request.joining.node) return;
  MutexLock lock(&opening->mutex);
  opening->known.push_back({request.joining.rank, *request.joining.node});
}

void JobTable::StartMover(const std::shared_ptr<Job>& job) {
  Opening* opening = &openings_.emplace_back();
  Start(opening, job->key().uid, [this, opening, job] {
    placement_.Move(*job);
    loop_->Post([this, opening] { EndOpening(opening); });
  });
}

StatusOr<MemoryReservation> JobTable::ReserveMemory(const JobKey& key,
                                                    const JobOptions& options,
                                                    const Job::Layout& layout) {
  const uint64_t needed = layout.memory_bytes();
  const auto [limit, limit_of_uid] = reserved_->limits();
  // Retained rows get their pages only when ranks are slow: until the job ends
  // all of them count as not populated.
  ReservedMemory::Taken taken =
      reserved_->Take(key.uid, needed, needed - layout.order_bytes);
  const auto refuse = [&](const std::string& why) {
    // Those at their least value cannot help.
    const bool broadcast = options.delivery.mode == DeliveryMode::kBroadcast;
    std::string smaller = "batch.size";
    if (broadcast && options.delivery.window > 1) smaller += " or window";
    if (!broadcast && layout.prefetch.most() > 1) smaller += " or prefetch";
    if (options.spec.hold > 1) smaller += " or hold";
    if (layout.order_bytes > needed / 2) {
      smaller = (options.spec.batch.pack ? "pack.window or "
                                         : "the selection (select, mix) or ") +
                smaller;
    }
    return ResourceExhaustedError(
        "job '{}' needs {} ({}, prefetch {} and hold {} for each of {}, x {} x "
        "{}{}{}), {}; make {} smaller",
        key.name, BytesText(needed),
        Counted(layout.segment.slot_count, "batch", "batches"),
        layout.prefetch.most(), options.spec.hold,
        Counted(options.consumers_max, "rank"),
        Counted(layout.segment.rows_max, "row"), BytesText(layout.row_bytes),
        layout.retained_bytes == 0
            ? ""
            : Format(", and {} for rows of the stream whose batches are "
                     "held for long",
                     BytesText(layout.retained_bytes)),
        layout.order_bytes == 0
            ? ""
            : Format(", and {} for the records that it selects and packs",
                     BytesText(layout.order_bytes)),
        why, smaller);
  };
  const auto over = [needed](const std::optional<uint64_t>& most,
                             uint64_t used) {
    return most && needed > *most - std::min(*most, used);
  };
  if (over(limit, taken.before)) {
    return refuse(
        Format("the broker's memory_limit is {}, {} of it are "
               "taken by other jobs and their indexes",
               BytesText(*limit), BytesText(taken.before)));
  }
  if (over(limit_of_uid, taken.before_of_uid)) {
    return refuse(Format(
        "memory_limit_per_user is {}, {} of it are taken by user {}'s other "
        "jobs and their indexes",
        BytesText(*limit_of_uid), BytesText(taken.before_of_uid), key.uid));
  }
  const AvailableMemory room = FindAvailableMemory(SystemFiles{});
  const uint64_t left =
      room.bytes - std::min(room.bytes, taken.before_unpopulated);
  if (needed > left) {
    return refuse(
        Format("only {} are left by {}", BytesText(left), room.limit));
  }
  return std::move(taken.reservation);
}

OrderBudget JobTable::BudgetOf(uint32_t uid, const OpenProgress& progress) {
  auto memory = std::make_shared<MemoryReservation>(reserved_, uid);
  return {[memory](uint64_t bytes) -> Status {
            const Status status = memory->Grow(bytes);
            if (status.ok()) return status;
            return ResourceExhaustedError(
                "{}: select fewer records before it, or give the broker more "
                "memory",
                status.message());
          },
          [&progress] { return progress.cancel.load(); }};
}

Status JobTable::PopulateJob(Job& job, const OpenProgress& progress,
                             const std::function<void()>& on_first) {
  const SegmentPlan& plan = job.segment().plan();
  std::byte* base = job.segment().base();
  const uint32_t lanes = job.layout().copies * job.layout().lanes;
  const uint32_t levels = job.layout().slots_per_lane;
  std::vector<std::shared_ptr<void>> on_nodes = placement_.Bind(job);
  std::vector<PopulateRange> ranges = {{base, plan.slots_offset}};
  for (uint32_t level = 0; level < levels; ++level) {
    // Copies of a lane are populated like lanes.
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      ranges.push_back({base + job.segment().slot_offset(lane * levels + level),
                        plan.populated});
    }
  }
  const Status status = Populate(
      ranges,
      [&](size_t done) {
        if (done < 1 + lanes || (done - 1) % lanes != 0) return;
        const auto level = static_cast<uint32_t>((done - 1) / lanes);
        job.SetUsableSlots(level);
        if (level == 1) on_first();
      },
      [&] { return progress.cancel.load() || job.Cancelled(); });
  on_nodes.clear();
  job.memory().Populated(plan.PopulatedBytes());
  if (status.ok()) placement_.Move(job);
  return status;
}

std::string JobTable::ClassWarning(const Job& job) const {
  const auto classes_of = [](const Job& of) {
    const SourceSpec& source = of.options().spec.source;
    std::string path;
    if (const auto* pictures = std::get_if<ImageFolderSource>(&source)) {
      path = pictures->path;
    } else if (const auto* sounds = std::get_if<AudioFolderSource>(&source)) {
      path = sounds->path;
    } else if (const auto* list = std::get_if<ImageListSource>(&source)) {
      path = list->file;
    } else if (const auto* coco = std::get_if<CocoSource>(&source)) {
      path = coco->annotations;
    } else {
      return ClassNames();
    }
    return ClassNames{std::move(path), of.dataset().source->class_names()};
  };
  const ClassNames here = classes_of(job);
  if (here.names.empty()) return "";
  for (const Entry& other : entries_) {
    const std::shared_ptr<Job>& open = other.state.job();
    if (other.state.stage() != State::kOpen || open.get() == &job ||
        other.key.uid != job.key().uid) {
      continue;
    }
    std::string differs = LabelsThatDiffer(classes_of(*open), here);
    if (!differs.empty()) return differs;
  }
  return "";
}

void JobTable::Opened(Entry* entry, StatusOr<std::shared_ptr<Job>> opened) {
  std::vector<Pending> pending = std::exchange(entry->pending, {});
  const bool restored = entry->former != nullptr;
  if (pending.empty()) {
    // Whoever had it opened is gone: it waits for the next.
    if (restored && !entry->state.over()) {
      entry->deserted.reset();
      return entry->state.Return();
    }
    if (opened.ok()) opened = CancelledError("nobody waits any more");
  }
  if (opened.ok()) {
    entry->state.Open(*opened);
    if (restored) {
      if (const Status status = Restore(*entry); !status.ok()) opened = status;
    }
  }
  if (!opened.ok()) {
    if (entry->options.at_end) {
      NoteEnded(*entry, true);
    } else {
      journal_->JobEnded(entry->number);
    }
    entries_.remove_if([entry](const Entry& item) { return &item == entry; });
    for (Pending& each : pending) each.done(opened.status());
    return;
  }
  const std::shared_ptr<Job> job = *std::move(opened);
  std::string warning =
      WarningOf(job->options().spec, job->dataset(), job->layout());
  if (const std::string classes = ClassWarning(*job); !classes.empty()) {
    warning += (warning.empty() ? "" : "; ") + classes;
  }
  if (!warning.empty()) {
    Log<"job-warning">(entry->key, warning);
    job->SetWarning(std::move(warning));
  }
  if (job->stream() != nullptr) {
    auto posted = std::make_shared<std::atomic<bool>>(false);
    job->SetOnFreed([this, posted, weak = std::weak_ptr<Job>(job)] {
      if (posted->exchange(true)) return;
      loop_->Post([this, posted, weak] {
        posted->store(false);
        if (const std::shared_ptr<Job> same = weak.lock()) on_producers_(same);
      });
    });
  }
  if (job->remote() != nullptr) {
    auto posted = std::make_shared<std::atomic<bool>>(false);
    job->SetOnHungry([this, posted, weak = std::weak_ptr<Job>(job)] {
      if (posted->exchange(true)) return;
      loop_->Post([this, posted, weak] {
        posted->store(false);
        if (const std::shared_ptr<Job> same = weak.lock()) on_hungry_(same);
      });
    });
  }
  if (job->stream() != nullptr && entry->forgotten) {
    job->Fail(DataLossError(
        "job '{}': the broker was restarted and has no record of the rows that "
        "its producers put and nobody took: it has no state directory "
        "(--state-dir), or its journal there is missing or damaged; begin "
        "ranks and producers at a state",
        entry->key.name));
  }
  if (entry->forgotten) job->Locked(&Delivery::BeginRecovery);
  workers_->Add(job);
  for (Pending& each : pending) {
    if (MustWait(*entry, each.request)) {
      Postpone(*entry, std::move(each));
    } else {
      each.done(AttachTo(*entry, std::move(each.request)));
    }
  }
  if (job->Locked(&Delivery::AnyAttached)) return;
  if (restored) {
    entry->deserted = std::chrono::steady_clock::now();
  } else {
    End(*entry, "nobody attached", entry->options.at_end);
  }
}

void JobTable::EndOpening(Opening* opening) {
  opening->thread.join();
  openings_.remove_if(
      [opening](const Opening& item) { return &item == opening; });
  StartWaiting();
}

uint64_t JobTable::Inspect(uint32_t uid, JobOptions options,
                           std::optional<Job::Place> row, bool scan,
                           InspectDone done) {
  const uint64_t number = next_number_++;
  inspects_[number] = std::move(done);
  Opening* opening = &openings_.emplace_back();
  opening->waiting.push_back(number);
  opening->progress.scans_remote = scan;
  Start(
      opening, uid,
      [this, uid, number, opening, row, options = std::move(options)] {
        StatusOr<nlohmann::json> answer = [&]() -> StatusOr<nlohmann::json> {
          PENSTOCK_ASSIGN_OR_RETURN(
              const std::shared_ptr<const Dataset> dataset,
              datasets_.Get(options.spec, uid, reserved_, &opening->progress));
          PENSTOCK_ASSIGN_OR_RETURN(
              const Job::Layout layout,
              PlanLayout(options, *dataset, workers_->topology().nodes().size(),
                         false, true, BudgetOf(uid, opening->progress)));
          nlohmann::json json = OkReply();
          json["dataset"] = options.spec.name;
          json["spec"] = DatasetSpecToJson(options.spec).dump();
          // The length of a stream is unknown.
          const bool endless =
              std::holds_alternative<StreamSource>(options.spec.source);
          json["records"] = endless ? 0 : layout.plan.records();
          dataset->DescribeRows(&json);
          json["class_names"] = dataset->source->class_names();
          json["left_out"] = dataset->source->left_out();
          json["source_warning"] = WarningOf(options.spec, *dataset, layout);
          json["fingerprint"] = dataset->fingerprint();
          const std::string fingerprint = dataset->source->fingerprint();
          json["source_fingerprint"] = fingerprint;
          json["source_records"] =
              endless ? 0 : dataset->source->record_count();
          json["data"] = DataDigest(options.spec.source, fingerprint);
          json["selection"] =
              SelectionDigest(options.spec.source, fingerprint,
                              options.spec.select, dataset->FilesOfSelection());
          if (row && !endless) {
            PENSTOCK_ASSIGN_OR_RETURN(
                json["row"], Job::FindRow(options, *dataset, layout, *row));
          }
          json["global_batch"] = layout.plan.global_batch();
          json["steps_per_epoch"] = endless ? 0 : layout.plan.steps_per_epoch();
          json["rows_per_epoch"] = layout.plan.rows_per_epoch();
          json["epochs"] = layout.plan.epochs().value_or(0);
          json["memory_bytes"] = layout.memory_bytes();
          json["retained_bytes"] = layout.retained_bytes;
          json["index_bytes"] = dataset->memory_bytes();
          json["copied_files"] = dataset->copied_files;
          json["copied_bytes"] = dataset->copied_bytes;
          if (!endless) {
            if (auto remote = RemoteDataJson(*dataset, layout.plan);
                !remote.is_null()) {
              json["remote"] = std::move(remote);
            }
          }
          if (dataset->cache != nullptr) {
            json["cache"] = dataset->cache->where();
            json["cache_steps"] = KeptSteps(options.spec).value_or(0);
            json["cache_bytes"] = dataset->cache->capacity_bytes();
            json["cache_entry_bytes"] =
                EntryFormat(dataset->programs[0]->head_spec())
                    .fixed_bytes()
                    .value_or(0);
          }
          json["slots"] = layout.segment.slot_count;
          json["slot_rows"] = layout.segment.rows_max;
          json["row_bytes"] = layout.row_bytes;
          json["prefetch"] = layout.prefetch.number();
          json["prefetch_most"] = layout.prefetch.most();
          json["hold"] = options.spec.hold;
          const AvailableMemory room = reserved_->AvailableFor(uid);
          json["memory_left_bytes"] = room.bytes;
          json["memory_left_by"] = room.limit;
          return json;
        }();
        loop_->Post([this, number, opening, answer = std::move(answer)] {
          if (auto found = inspects_.extract(number); !found.empty()) {
            found.mapped()(answer);
          }
          EndOpening(opening);
        });
      });
  return number;
}

void JobTable::ChooseStepsOfMakers(const std::shared_ptr<Job>& job) {
  Opening* opening = &openings_.emplace_back();
  const uint32_t uid = job->key().uid;
  // The job does not end with a thread that opens.
  Start(opening, uid,
        [this, opening, uid, spec = job->options().spec,
         dataset = job->shared_dataset(), weak = std::weak_ptr<Job>(job)] {
          auto steps = datasets_.ChooseSteps(spec, *dataset, uid, reserved_,
                                             &opening->progress);
          loop_->Post([this, opening, weak, steps = std::move(steps)] {
            if (const auto same = weak.lock()) same->remote()->SetSteps(steps);
            EndOpening(opening);
          });
        });
}

void JobTable::CancelInspect(uint64_t inspect) {
  if (inspects_.erase(inspect) == 0) return;
  for (Opening& opening : openings_) {
    if (std::find(opening.waiting.begin(), opening.waiting.end(), inspect) !=
        opening.waiting.end()) {
      Cancel(opening);
      return;
    }
  }
}

bool JobTable::Cancel(Opening& opening) {
  if (opening.body) {
    openings_.remove_if(
        [&opening](const Opening& each) { return &each == &opening; });
    return true;
  }
  opening.progress.cancel.store(true);
  datasets_.NoticeCancel();
  return false;
}

bool JobTable::Progress(uint64_t number, uint64_t* done, uint64_t* total,
                        uint64_t* fetches) const {
  for (const Opening& opening : openings_) {
    if (std::find(opening.waiting.begin(), opening.waiting.end(), number) ==
        opening.waiting.end()) {
      continue;
    }
    *done = opening.progress.done.load();
    *total = opening.progress.total.load();
    *fetches = opening.progress.remote.scanned_bytes.load();
    return true;
  }
  return false;
}

}  // namespace penstock
