#include "broker/transform/row_program.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "broker/declare/declaration.h"
#include "broker/transform/feature_paths.h"

namespace penstock {
namespace {

// Per-feature ops, then a whole-row function; the last section has none.
struct Section {
  std::unique_ptr<FeaturePaths> paths;
  std::unique_ptr<RowFunction> function;
  uint32_t step = 0;  // the function's number
  // For messages.
  std::string path;
  std::string kind;
  std::string name;
};

using Callers = std::vector<std::unique_ptr<RowFunction::Caller>>;

struct WorkerScratch : RowProgram::Scratch {
  StepClock* clock = nullptr;
  std::unique_ptr<FeaturePaths::Scratch> paths = FeaturePaths::MakeScratch();
  // By section.
  Callers head_callers;
  Callers callers;
  std::vector<uint64_t> input_bytes;
  // What the head makes.
  std::vector<std::vector<std::byte>> made;  // by feature
  std::vector<std::byte*> places;
  RawRecord record;
  std::vector<Status> added;  // what became of rows that were called together
};

bool IsOfFeatures(const MapStep& step) {
  return std::visit(
      [](const auto& each) { return !IsFunction<decltype(each)>; }, *step.op);
}

class CompiledRowProgram : public RowProgram {
 public:
  // head: empty if it has no steps.
  CompiledRowProgram(std::vector<Section> head, RawSpec head_spec,
                     size_t head_files, std::vector<Section> sections)
      : head_(std::move(head)),
        head_spec_(std::move(head_spec)),
        head_files_(head_files),
        sections_(std::move(sections)) {
    for (const RawFeature& out : sections_.back().paths->out()) {
      spec_.push_back(out.feature);
    }
  }

  const ElementSpec& element_spec() const override { return spec_; }

  bool Copies(size_t feature) const override {
    return (head_.empty() || HeadCopies(feature)) && RestCopies(feature);
  }

  uint64_t wait_ns() const override {
    uint64_t wait_ns = 0;
    for (const std::vector<Section>* const part : {&head_, &sections_}) {
      for (const Section& section : *part) {
        if (section.function) wait_ns += section.function->wait_ns();
      }
    }
    return wait_ns;
  }

  std::string made_by() const override {
    std::string made_by;
    for (const std::vector<Section>* const part : {&head_, &sections_}) {
      for (const Section& section : *part) {
        const std::string each =
            section.function ? section.function->made_by() : "";
        if (!each.empty()) made_by += each + "; ";
      }
    }
    return made_by;
  }

  std::unique_ptr<Scratch> MakeScratch(Cancelled cancelled,
                                       StepClock* clock) const override {
    auto scratch = std::make_unique<WorkerScratch>();
    scratch->clock = scratch->paths->clock = clock;
    const auto add = [&](const std::vector<Section>& part, Callers* callers) {
      for (const Section& section : part) {
        if (!section.function) continue;
        callers->push_back(section.function->MakeCaller(cancelled));
      }
    };
    add(head_, &scratch->head_callers);
    add(sections_, &scratch->callers);
    return scratch;
  }

  Status Run(const RawRecord& raw, const AugmentationKey& key, Scratch& scratch,
             std::span<std::byte* const> out) const override {
    if (head_.empty()) return RunRest(raw, key, scratch, out);
    RawRecord& made = static_cast<WorkerScratch&>(scratch).record;
    PENSTOCK_RETURN_IF_ERROR(RunHead(raw, key, scratch, out, &made));
    return RunRest(made, key, scratch, out);
  }

  const RawSpec& head_spec() const override { return head_spec_; }
  size_t head_files() const override { return head_files_; }

  Status RunHead(const RawRecord& raw, const AugmentationKey& key,
                 Scratch& scratch, std::span<std::byte* const> out,
                 RawRecord* made) const override {
    auto& worker = static_cast<WorkerScratch&>(scratch);
    const RawRecord* in = &raw;
    if (!head_.empty()) {
      PENSTOCK_RETURN_IF_ERROR(
          RunFunctions(head_, worker.head_callers, 0, key, worker, &in));
    }
    return EndHead(*in, key, worker, out, made);
  }

  Status RunRest(const RawRecord& made, const AugmentationKey& key,
                 Scratch& scratch,
                 std::span<std::byte* const> out) const override {
    auto& worker = static_cast<WorkerScratch&>(scratch);
    const RawRecord* in = &made;
    PENSTOCK_RETURN_IF_ERROR(
        RunFunctions(sections_, worker.callers, 0, key, worker, &in));
    return sections_.back().paths->Run(*in, key, *worker.paths, out);
  }

  Several SeveralIn(Scratch& scratch) const override {
    const auto& worker = static_cast<WorkerScratch&>(scratch);
    const Callers& callers =
        worker.head_callers.empty() ? worker.callers : worker.head_callers;
    if (callers.empty() || callers[0]->several() == nullptr) {
      return Several::kNever;
    }
    return worker.head_callers.empty() ? Several::kInRest : Several::kInHead;
  }

  Status Add(const RawRecord& in, const AugmentationKey& key,
             Scratch& scratch) const override {
    auto& worker = static_cast<WorkerScratch&>(scratch);
    const Section& section = FirstOf(worker);
    SeveralRows& rows = *FirstCaller(worker).several();
    MeasureInputs(section, in, worker);
    PENSTOCK_ASSIGN_OR_RETURN(const auto places, rows.Add(worker.input_bytes));
    Status status = section.paths->Run(in, key, *worker.paths, places);
    if (status.ok()) {
      status = rows.CheckInputs();
      if (!status.ok()) status = FailureOf(section, status);
    }
    if (!status.ok()) rows.DropLast();
    return status;
  }

  bool IsFull(Scratch& scratch) const override {
    return FirstCaller(static_cast<WorkerScratch&>(scratch))
        .several()
        ->IsFull();
  }

  void CallAdded(Scratch& scratch) const override {
    auto& worker = static_cast<WorkerScratch&>(scratch);
    SeveralRows& rows = *FirstCaller(worker).several();
    const auto call = [&](size_t first, size_t count) {
      return Measured(FirstOf(worker), FirstCaller(worker), worker,
                      [&] { return rows.CallOf(first, count); });
    };
    const Status all = call(0, rows.size());
    worker.added.assign(rows.size(), all);
    if (all.ok() || all.code() == StatusCode::kCancelled) return;
    for (size_t row = 0; row < rows.size(); ++row) {
      Status& status = worker.added[row];
      status = call(row, 1);
      if (status.code() == StatusCode::kUnavailable) status = call(row, 1);
    }
  }

  Status FinishHead(size_t row, const AugmentationKey& key, Scratch& scratch,
                    std::span<std::byte* const> out,
                    RawRecord* made) const override {
    auto& worker = static_cast<WorkerScratch&>(scratch);
    const RawRecord* in = nullptr;
    PENSTOCK_RETURN_IF_ERROR(TakeAdded(row, worker, &in));
    PENSTOCK_RETURN_IF_ERROR(
        RunFunctions(head_, worker.head_callers, 1, key, worker, &in));
    return EndHead(*in, key, worker, out, made);
  }

  Status Finish(size_t row, const AugmentationKey& key, Scratch& scratch,
                std::span<std::byte* const> out) const override {
    auto& worker = static_cast<WorkerScratch&>(scratch);
    const RawRecord* in = nullptr;
    PENSTOCK_RETURN_IF_ERROR(TakeAdded(row, worker, &in));
    PENSTOCK_RETURN_IF_ERROR(
        RunFunctions(sections_, worker.callers, 1, key, worker, &in));
    return sections_.back().paths->Run(*in, key, *worker.paths, out);
  }

  void Forget(Scratch& scratch) const override {
    FirstCaller(static_cast<WorkerScratch&>(scratch)).several()->Clear();
  }

  bool mixes_pairs() const override {
    return sections_.back().paths->mixes_pairs();
  }
  void MixPair(const AugmentationKey& pair, std::span<std::byte* const> row,
               std::span<std::byte* const> partner) const override {
    sections_.back().paths->MixPair(pair, row, partner);
  }

 private:
  // The section of the first function.
  const Section& FirstOf(const WorkerScratch& worker) const {
    return worker.head_callers.empty() ? sections_[0] : head_[0];
  }
  static RowFunction::Caller& FirstCaller(const WorkerScratch& worker) {
    return *(worker.head_callers.empty() ? worker.callers
                                         : worker.head_callers)[0];
  }

  // What the functions from number `first` on make of *in.
  static Status RunFunctions(const std::vector<Section>& sections,
                             const Callers& callers, size_t first,
                             const AugmentationKey& key, WorkerScratch& worker,
                             const RawRecord** in) {
    for (size_t i = first; i + 1 < sections.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(
          RunFunction(sections[i], *callers[i], key, worker, in));
    }
    return OkStatus();
  }

  static void MeasureInputs(const Section& section, const RawRecord& row,
                            WorkerScratch& worker) {
    const RawSpec& inputs = section.paths->out();
    worker.input_bytes.clear();
    for (size_t i = 0; i < inputs.size(); ++i) {
      worker.input_bytes.push_back(section.paths->OutBytes(i, row));
    }
  }

  template <typename Call>
  static std::invoke_result_t<Call> Measured(const Section& section,
                                             RowFunction::Caller& caller,
                                             WorkerScratch& worker,
                                             const Call& call) {
    const auto part = static_cast<uint32_t>(kFirstStep + section.step);
    const StepClock::In in(worker.clock, part);
    auto called = call();
    const auto own_ns = caller.own_ns();
    if (own_ns && worker.clock != nullptr && worker.clock->on()) {
      worker.clock->Split(*own_ns, kHandingOver);
    }
    return called;
  }

  static Status FailureOf(const Section& section, const Status& status) {
    const bool died = status.code() == StatusCode::kUnavailable;
    return Status(
        died ? StatusCode::kDataLoss : status.code(),
        Format("{} {} {}: {}{}", section.path, section.kind, section.name,
               status.message(), died ? ", twice at this sample" : ""));
  }

  static Status RunFunction(const Section& section, RowFunction::Caller& caller,
                            const AugmentationKey& key, WorkerScratch& worker,
                            const RawRecord** row) {
    MeasureInputs(section, **row, worker);
    StatusOr<const RawRecord*> called = UnavailableError("not called");
    // One retry, in case someone killed the process. A second failure is blamed
    // on the row.
    for (int i = 0; i < 2 && called.status().code() == StatusCode::kUnavailable;
         ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(const auto places,
                                caller.Inputs(worker.input_bytes));
      PENSTOCK_RETURN_IF_ERROR(
          section.paths->Run(**row, key, *worker.paths, places));
      called = Measured(section, caller, worker,
                        [&] { return caller.Call(key, section.step); });
    }
    if (!called.ok()) return FailureOf(section, called.status());
    *row = *called;
    return OkStatus();
  }

  Status TakeAdded(size_t row, WorkerScratch& worker,
                   const RawRecord** in) const {
    const Status& status = worker.added[row];
    if (!status.ok()) return FailureOf(FirstOf(worker), status);
    *in = &FirstCaller(worker).several()->MadeOf(row);
    return OkStatus();
  }

  // in: what the head's last function has made, or a record.
  Status EndHead(const RawRecord& in, const AugmentationKey& key,
                 WorkerScratch& worker, std::span<std::byte* const> out,
                 RawRecord* made) const {
    *made = in;
    if (head_.empty()) return OkStatus();
    const FeaturePaths& paths = *head_.back().paths;
    made->resize(head_spec_.size());
    worker.made.resize(head_spec_.size());
    worker.places.resize(head_spec_.size());
    for (size_t i = 0; i < head_spec_.size(); ++i) {
      if (paths.Copies(i)) {
        // Stays where it is: what is already there is not written.
        worker.places[i] = const_cast<std::byte*>(in[i].data());
        continue;
      }
      const uint64_t bytes = paths.OutBytes(i, in);
      if (RestCopies(i)) {
        worker.places[i] = out[i];
      } else {
        if (worker.made[i].size() < bytes) worker.made[i].resize(bytes);
        worker.places[i] = worker.made[i].data();
      }
      (*made)[i] = {worker.places[i], bytes};
    }
    return paths.Run(in, key, *worker.paths, worker.places);
  }

  bool HeadCopies(size_t feature) const {
    return head_.size() == 1 && head_[0].paths->Copies(feature);
  }
  bool RestCopies(size_t feature) const {
    return sections_.size() == 1 && sections_[0].paths->Copies(feature);
  }

  const std::vector<Section> head_;
  const RawSpec head_spec_;
  const size_t head_files_;
  const std::vector<Section> sections_;
  ElementSpec spec_;
};

Status CheckDecoded(const RawSpec& out) {
  for (const RawFeature& feature : out) {
    if (!feature.encoded) continue;
    return InvalidArgumentError(
        "map: feature '{0}' holds files of different sizes: add decode_image "
        "with a size for pictures, decode_audio for sounds, keep_encoded for "
        "other bytes; a column of parquet becomes a list by `max_length: "
        "{{{0}: N}}`",
        feature.feature.name);
  }
  return OkStatus();
}

// Compiles the first `count` steps. functions: how many there are before them,
// and then there.
StatusOr<std::vector<Section>> CompileSections(std::span<const MapStep> steps,
                                               size_t count, RawSpec in,
                                               const FunctionOptions& options,
                                               MapOpening* opening,
                                               size_t* functions) {
  std::vector<Section> sections;
  for (size_t begin = 0;;) {
    const auto run_end = static_cast<size_t>(
        std::find_if_not(steps.begin() + static_cast<ptrdiff_t>(begin),
                         steps.end(), IsOfFeatures) -
        steps.begin());
    const size_t end = std::min(run_end, count);
    if (end < run_end && begin < end) {
      // What holds of a run of steps together, a picture and its masks for
      // example, is checked of all of it.
      MapOpening checked = {opening->progress};
      checked.fingerprint = opening->fingerprint;
      PENSTOCK_RETURN_IF_ERROR(
          FeaturePaths::Compile(steps.subspan(begin, run_end - begin), in,
                                &checked)
              .status());
    }
    Section& section = sections.emplace_back();
    PENSTOCK_ASSIGN_OR_RETURN(
        section.paths,
        FeaturePaths::Compile(steps.subspan(begin, end - begin), in, opening));
    if (end == count) return sections;
    section.step = steps[end].number;
    section.path = steps[end].path;
    if (++*functions > kFunctionsMax) {
      return InvalidArgumentError("{}: at most {} functions", section.path,
                                  kFunctionsMax);
    }
    if (section.paths->mixes_pairs()) {
      return InvalidArgumentError(
          "{}: a function of rows that are mixed already: put it before mixup "
          "and cutmix",
          section.path);
    }
    StatusOr<std::unique_ptr<RowFunction>> function = std::visit(
        [&](const auto& op) -> StatusOr<std::unique_ptr<RowFunction>> {
          if constexpr (IsFunction<decltype(op)>) {
            section.kind = op.Declared().name();
            section.name = op.Name();
            return op.Open(section.paths->out(), options, opening);
          } else {
            return InternalError("it is of features");
          }
        },
        *steps[end].op);
    if (!function.ok()) {
      return function.status()
          .Prepend(section.name)
          .Prepend(section.path + "." + section.kind);
    }
    section.function = *std::move(function);
    in = section.function->outputs();
    begin = end + 1;
  }
}

}  // namespace

StatusOr<std::unique_ptr<RowProgram>> RowProgram::Compile(
    const std::vector<TransformSpec>& map, const RawSpec& raw,
    const FunctionOptions& options) {
  OpenProgress progress;
  MapOpening opening = {&progress};
  return Compile(StepsOf(map), raw, options, &opening);
}

StatusOr<std::unique_ptr<RowProgram>> RowProgram::Compile(
    std::span<const MapStep> steps, const RawSpec& raw,
    const FunctionOptions& options, MapOpening* opening,
    std::optional<size_t> head_steps) {
  if (steps.size() >= kAugmentationOpsMax) {
    return InvalidArgumentError("map has {} ops; at most {}", steps.size(),
                                kAugmentationOpsMax);
  }
  RawSpec in = raw;
  std::vector<Section> head;
  size_t functions = 0;
  const size_t first = head_steps.value_or(0);
  if (first > 0) {
    PENSTOCK_ASSIGN_OR_RETURN(
        head, CompileSections(steps, first, in, options, opening, &functions));
    in = head.back().paths->out();
  }
  const RawSpec head_spec = in;
  const size_t head_files = opening->files.size();
  PENSTOCK_ASSIGN_OR_RETURN(
      std::vector<Section> sections,
      CompileSections(steps.subspan(first), steps.size() - first, in, options,
                      opening, &functions));
  PENSTOCK_RETURN_IF_ERROR(CheckDecoded(sections.back().paths->out()));
  return std::unique_ptr<RowProgram>(new CompiledRowProgram(
      std::move(head), head_spec, head_files, std::move(sections)));
}

}  // namespace penstock
