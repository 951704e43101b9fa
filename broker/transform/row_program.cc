#include "broker/transform/row_program.h"

#include <algorithm>
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

struct WorkerScratch : RowProgram::Scratch {
  StepClock* clock = nullptr;
  std::unique_ptr<FeaturePaths::Scratch> paths = FeaturePaths::MakeScratch();
  std::vector<std::unique_ptr<RowFunction::Caller>> callers;  // by section
  std::vector<uint64_t> input_bytes;
  // What the head makes.
  std::vector<std::vector<std::byte>> made;  // by feature
  std::vector<std::byte*> places;
  RawRecord record;
};

bool IsOfFeatures(const MapStep& step) {
  return std::visit(
      [](const auto& each) { return !IsFunction<decltype(each)>; }, *step.op);
}

class CompiledRowProgram : public RowProgram {
 public:
  CompiledRowProgram(std::unique_ptr<FeaturePaths> head, RawSpec head_spec,
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
    return (head_ == nullptr || head_->Copies(feature)) && RestCopies(feature);
  }

  uint64_t wait_ns() const override {
    uint64_t wait_ns = 0;
    for (const Section& section : sections_) {
      if (section.function) wait_ns += section.function->wait_ns();
    }
    return wait_ns;
  }

  std::unique_ptr<Scratch> MakeScratch(Cancelled cancelled,
                                       StepClock* clock) const override {
    auto scratch = std::make_unique<WorkerScratch>();
    scratch->clock = scratch->paths->clock = clock;
    for (const Section& section : sections_) {
      if (!section.function) continue;
      scratch->callers.push_back(section.function->MakeCaller(cancelled));
    }
    return scratch;
  }

  Status Run(const RawRecord& raw, const AugmentationKey& key, Scratch& scratch,
             std::span<std::byte* const> out) const override {
    if (head_ == nullptr) return RunRest(raw, key, scratch, out);
    RawRecord& made = static_cast<WorkerScratch&>(scratch).record;
    PENSTOCK_RETURN_IF_ERROR(RunHead(raw, scratch, out, &made));
    return RunRest(made, key, scratch, out);
  }

  const RawSpec& head_spec() const override { return head_spec_; }
  size_t head_files() const override { return head_files_; }

  Status RunHead(const RawRecord& raw, Scratch& scratch,
                 std::span<std::byte* const> out,
                 RawRecord* made) const override {
    *made = raw;
    if (head_ == nullptr) return OkStatus();
    auto& worker = static_cast<WorkerScratch&>(scratch);
    made->resize(head_spec_.size());
    worker.made.resize(head_spec_.size());
    worker.places.resize(head_spec_.size());
    for (size_t i = 0; i < head_spec_.size(); ++i) {
      if (head_->Copies(i)) {
        // Stays where it is: what is already there is not written.
        worker.places[i] = const_cast<std::byte*>(raw[i].data());
        continue;
      }
      const uint64_t bytes = head_->OutBytes(i, raw);
      if (RestCopies(i)) {
        worker.places[i] = out[i];
      } else {
        if (worker.made[i].size() < bytes) worker.made[i].resize(bytes);
        worker.places[i] = worker.made[i].data();
      }
      (*made)[i] = {worker.places[i], bytes};
    }
    return head_->Run(raw, {}, *worker.paths, worker.places);
  }

  Status RunRest(const RawRecord& made, const AugmentationKey& key,
                 Scratch& scratch,
                 std::span<std::byte* const> out) const override {
    auto& worker = static_cast<WorkerScratch&>(scratch);
    const RawRecord* in = &made;
    for (size_t i = 0; i + 1 < sections_.size(); ++i) {
      const Status status =
          RunFunction(sections_[i], *worker.callers[i], key, worker, &in);
      if (!status.ok()) return status;
    }
    return sections_.back().paths->Run(*in, key, *worker.paths, out);
  }

  bool mixes_pairs() const override {
    return sections_.back().paths->mixes_pairs();
  }
  void MixPair(const AugmentationKey& pair, std::span<std::byte* const> row,
               std::span<std::byte* const> partner) const override {
    sections_.back().paths->MixPair(pair, row, partner);
  }

 private:
  static Status RunFunction(const Section& section, RowFunction::Caller& caller,
                            const AugmentationKey& key, WorkerScratch& worker,
                            const RawRecord** row) {
    const RawSpec& inputs = section.paths->out();
    worker.input_bytes.clear();
    for (size_t i = 0; i < inputs.size(); ++i) {
      worker.input_bytes.push_back(section.paths->OutBytes(i, **row));
    }
    StatusOr<const RawRecord*> called = UnavailableError("not called");
    // One retry, in case someone killed the process. A second failure is blamed
    // on the row.
    for (int i = 0; i < 2 && called.status().code() == StatusCode::kUnavailable;
         ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(const auto places,
                                caller.Inputs(worker.input_bytes));
      PENSTOCK_RETURN_IF_ERROR(
          section.paths->Run(**row, key, *worker.paths, places));
      const auto part = static_cast<uint32_t>(kFirstStep + section.step);
      const StepClock::In in(worker.clock, part);
      called = caller.Call(key, section.step);
      const auto own_ns = caller.own_ns();
      if (own_ns && worker.clock != nullptr && worker.clock->on()) {
        worker.clock->Split(*own_ns, kHandingOver);
      }
    }
    if (!called.ok()) {
      const Status& status = called.status();
      const bool died = status.code() == StatusCode::kUnavailable;
      return Status(
          died ? StatusCode::kDataLoss : status.code(),
          Format("{} {} {}: {}{}", section.path, section.kind, section.name,
                 status.message(), died ? ", twice at this sample" : ""));
    }
    *row = *called;
    return OkStatus();
  }

  bool RestCopies(size_t feature) const {
    return sections_.size() == 1 && sections_[0].paths->Copies(feature);
  }

  const std::unique_ptr<FeaturePaths> head_;  // nullptr: it has no steps
  const RawSpec head_spec_;
  const size_t head_files_;
  const std::vector<Section> sections_;
  ElementSpec spec_;
};

Status CheckDecoded(const RawSpec& out) {
  for (const RawFeature& feature : out) {
    if (!feature.encoded) continue;
    return InvalidArgumentError(
        "map: feature '{0}' holds files, each of its own size; put "
        "decode_image "
        "with a size into it, of sounds decode_audio, of other bytes "
        "keep_encoded; parquet makes such a column a list by `max_length: "
        "{{{0}: N}}`",
        feature.feature.name);
  }
  return OkStatus();
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
  std::vector<Section> sections;
  RawSpec in = raw;
  std::unique_ptr<FeaturePaths> head;
  const size_t first = head_steps.value_or(0);
  if (first > 0) {
    // What holds of all steps together, a picture and its masks for example, is
    // checked of the whole map.
    MapOpening checked = {opening->progress};
    checked.fingerprint = opening->fingerprint;
    const auto all =
        std::find_if_not(steps.begin(), steps.end(), IsOfFeatures) -
        steps.begin();
    PENSTOCK_RETURN_IF_ERROR(
        FeaturePaths::Compile(steps.first(static_cast<size_t>(all)), in,
                              &checked)
            .status());
    PENSTOCK_ASSIGN_OR_RETURN(
        head, FeaturePaths::Compile(steps.first(first), in, opening));
    in = head->out();
  }
  const RawSpec head_spec = in;
  const size_t head_files = opening->files.size();
  for (size_t begin = first;;) {
    size_t end = begin;
    while (end < steps.size() && IsOfFeatures(steps[end])) {
      ++end;
    }
    Section& section = sections.emplace_back();
    PENSTOCK_ASSIGN_OR_RETURN(
        section.paths,
        FeaturePaths::Compile(steps.subspan(begin, end - begin), in, opening));
    if (end == steps.size()) break;
    section.step = steps[end].number;
    section.path = steps[end].path;
    if (sections.size() > kFunctionsMax) {
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
  PENSTOCK_RETURN_IF_ERROR(CheckDecoded(sections.back().paths->out()));
  return std::unique_ptr<RowProgram>(new CompiledRowProgram(
      std::move(head), head_spec, head_files, std::move(sections)));
}

}  // namespace penstock
