#include "broker/transform/row_program.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "broker/transform/feature_paths.h"

namespace penstock {
namespace {

// Per-feature ops, then a whole-row function; the last section has none.
struct Section {
  std::unique_ptr<FeaturePaths> paths;
  std::unique_ptr<RowFunction> function;
  uint64_t step = 0;  // the function's number in the map
  std::string name;   // the function's, for messages
};

struct WorkerScratch : RowProgram::Scratch {
  std::unique_ptr<FeaturePaths::Scratch> paths = FeaturePaths::MakeScratch();
  std::vector<std::unique_ptr<RowFunction::Caller>> callers;  // by section
  std::vector<uint64_t> input_bytes;
};

bool IsOfOneFeature(const TransformSpec& op) {
  return std::visit(
      [](const auto& each) {
        return requires { each.feature; };
      },
      op);
}

class CompiledRowProgram : public RowProgram {
 public:
  explicit CompiledRowProgram(std::vector<Section> sections)
      : sections_(std::move(sections)) {
    for (const RawFeature& out : sections_.back().paths->out()) {
      spec_.push_back(out.feature);
    }
  }

  const ElementSpec& element_spec() const override { return spec_; }

  bool Copies(size_t feature) const override {
    return sections_.size() == 1 && sections_[0].paths->Copies(feature);
  }

  uint64_t wait_ns() const override {
    uint64_t wait_ns = 0;
    for (const Section& section : sections_) {
      if (section.function) wait_ns += section.function->wait_ns();
    }
    return wait_ns;
  }

  std::unique_ptr<Scratch> MakeScratch(Cancelled cancelled) const override {
    auto scratch = std::make_unique<WorkerScratch>();
    for (const Section& section : sections_) {
      if (!section.function) continue;
      scratch->callers.push_back(section.function->MakeCaller(cancelled));
    }
    return scratch;
  }

  Status Run(const RawRecord& raw, const AugmentationKey& key, Scratch& scratch,
             std::span<std::byte* const> out) const override {
    auto& worker = static_cast<WorkerScratch&>(scratch);
    const RawRecord* in = &raw;
    for (size_t i = 0; i + 1 < sections_.size(); ++i) {
      const Status status =
          RunFunction(sections_[i], *worker.callers[i], key, worker, &in);
      if (!status.ok()) return status;
    }
    return sections_.back().paths->Run(*in, key, *worker.paths, out);
  }

 private:
  static Status RunFunction(const Section& section, RowFunction::Caller& caller,
                            const AugmentationKey& key, WorkerScratch& worker,
                            const RawRecord** row) {
    const RawSpec& inputs = section.paths->out();
    worker.input_bytes.clear();
    for (size_t i = 0; i < inputs.size(); ++i) {
      worker.input_bytes.push_back(
          inputs[i].encoded ? (**row)[i].size() : inputs[i].feature.RowBytes());
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
      called = caller.Call(key, section.step);
    }
    if (!called.ok()) {
      const Status& status = called.status();
      const bool died = status.code() == StatusCode::kUnavailable;
      return Status(
          died ? StatusCode::kDataLoss : status.code(),
          Format("map[{}] {}: {}{}", section.step, section.name,
                 status.message(), died ? ", twice at this sample" : ""));
    }
    *row = *called;
    return OkStatus();
  }

  const std::vector<Section> sections_;
  ElementSpec spec_;
};

Status CheckDecoded(const RawSpec& out) {
  for (const RawFeature& feature : out) {
    if (!feature.encoded) continue;
    return InvalidArgumentError(
        "feature '{}' holds picture files, each of its own size; put "
        "decode_image with a size into map",
        feature.feature.name);
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<RowProgram>> RowProgram::Compile(
    const std::vector<TransformSpec>& map, const RawSpec& raw,
    const FunctionOptions& options, const Cancelled& cancelled) {
  if (map.size() >= kAugmentationOpsMax) {
    return InvalidArgumentError("map has {} ops; at most {}", map.size(),
                                kAugmentationOpsMax);
  }
  std::vector<Section> sections;
  RawSpec in = raw;
  for (size_t begin = 0;;) {
    size_t end = begin;
    while (end < map.size() && IsOfOneFeature(map[end])) {
      ++end;
    }
    Section& section = sections.emplace_back();
    PENSTOCK_ASSIGN_OR_RETURN(
        section.paths,
        FeaturePaths::Compile(std::span(map).subspan(begin, end - begin), begin,
                              in));
    if (end == map.size()) break;
    if (sections.size() > kFunctionsMax) {
      return InvalidArgumentError("map[{}]: at most {} functions", end,
                                  kFunctionsMax);
    }
    section.step = end;
    StatusOr<std::unique_ptr<RowFunction>> function = std::visit(
        [&](const auto& op) -> StatusOr<std::unique_ptr<RowFunction>> {
          if constexpr (requires { op.feature; }) {
            return InternalError("it is of one feature");
          } else {
            section.name = op.Name();
            return op.Open(section.paths->out(), options, cancelled);
          }
        },
        map[end]);
    if (!function.ok()) {
      return function.status().Prepend(Format("map[{}] {}", end, section.name));
    }
    section.function = *std::move(function);
    in.clear();
    for (const Feature& feature : section.function->outputs()) {
      in.push_back({feature, false});
    }
    begin = end + 1;
  }
  PENSTOCK_RETURN_IF_ERROR(CheckDecoded(sections.back().paths->out()));
  return std::unique_ptr<RowProgram>(
      new CompiledRowProgram(std::move(sections)));
}

}  // namespace penstock
