#include "broker/job/steps_of_makers.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "broker/transform/draws.h"
#include "broker/transform/map_file.h"
#include "broker/transform/mixup.h"

namespace penstock {
namespace {

bool MixesRows(const MapStep& step) {
  return std::holds_alternative<MixupOp>(*step.op) ||
         std::holds_alternative<CutmixOp>(*step.op);
}

bool IsOfUser(const MapStep& step) {
  return std::holds_alternative<PythonOp>(*step.op) ||
         std::holds_alternative<PluginOp>(*step.op);
}

// Steps that change the values of features and not what they are of: whatever
// comes before them can be run elsewhere. A step that is none draws the same
// numbers there.
bool ChangesValues(const MapStep& step) {
  return std::holds_alternative<NormalizeOp>(*step.op) ||
         std::holds_alternative<CastOp>(*step.op) ||
         std::holds_alternative<RescaleOp>(*step.op) ||
         std::holds_alternative<ClipOp>(*step.op) ||
         std::holds_alternative<OneHotOp>(*step.op) ||
         std::holds_alternative<LabelSmoothingOp>(*step.op) ||
         std::holds_alternative<RandomErasingOp>(*step.op) || MixesRows(step);
}

// All of one size.
std::optional<uint64_t> BytesOf(const RawSpec& features) {
  uint64_t bytes = 0;
  for (const RawFeature& raw : features) {
    if (raw.encoded || raw.feature.room > 0) return std::nullopt;
    bytes += raw.feature.RowBytes();
  }
  return bytes;
}

}  // namespace

bool IsForMakers(const DatasetSpec& spec) {
  return !spec.batch.pack && !spec.batch.buckets &&
         spec.batch.by_part.empty() && spec.map_by_part.empty() &&
         !KeptSteps(spec) && !spec.asked &&
         !AnySource(spec.source, [](const SourceSpec& each) {
           return std::holds_alternative<StreamSource>(each) ||
                  std::holds_alternative<PythonDatasetSource>(each);
         });
}

size_t StepsOfFunctions(std::span<const MapStep> steps) {
  const auto last = std::find_if(steps.rbegin(), steps.rend(), IsOfUser);
  return static_cast<size_t>(steps.rend() - last);
}

std::shared_ptr<const StepsOfMakers> ChooseStepsOfMakers(
    const DatasetSpec& spec, const Dataset& dataset, OpenProgress* progress) {
  if (!IsForMakers(spec)) return nullptr;
  const std::vector<MapStep> steps = MapOf(spec, 0);
  if (const size_t head = StepsOfFunctions(steps); head > 0) {
    const RowProgram* const program = dataset.programs[0].get();
    if (!BytesOf(program->head_spec())) return nullptr;
    return std::make_shared<StepsOfMakers>(StepsOfMakers{head, program, {}});
  }
  std::shared_ptr<StepsOfMakers> chosen;
  uint64_t least = UINT64_MAX;
  for (size_t head = steps.size();; --head) {
    const auto end = steps.begin() + static_cast<ptrdiff_t>(head);
    // What comes after them wants channels last.
    const bool ends = head == steps.size() ||
                      std::none_of(steps.begin(), end, [](const MapStep& step) {
                        return PutsChannelsFirst(*step.op);
                      });
    if (ends && std::none_of(steps.begin(), end, MixesRows)) {
      MapOpening opening = {progress};
      opening.fingerprint = [&] { return dataset.source->fingerprint(); };
      auto program = RowProgram::Compile(
          steps, dataset.source->RawSpecOfPart(0), {}, &opening, head);
      const auto bytes = program.ok() ? BytesOf((*program)->head_spec())
                                      : std::optional<uint64_t>();
      if (bytes && *bytes < least) {
        least = *bytes;
        const RowProgram* const own = program->get();
        chosen = std::make_shared<StepsOfMakers>(
            StepsOfMakers{head, own, *std::move(program)});
      }
    }
    if (head == 0 || !ChangesValues(steps[head - 1])) return chosen;
  }
}

}  // namespace penstock
