// The input is the text of a dataset's spec, from any user of the host. What is
// refused is refused with its place; what is read has a canonical form, which
// reads as the same spec: the broker's journal keeps datasets and jobs in it. A
// dataset that needs no file is opened: its parts, its selection, its steps,
// and its first row; what is wrong with them is told with its place.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "broker/declare/spec_path.h"
#include "broker/plan/plan.h"
#include "broker/spec/dataset_spec.h"
#include "broker/transform/row_program.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint64_t kRecordsMax = 10'000;
constexpr uint64_t kOrderBytesMax = 16 << 20;
constexpr uint64_t kRowBytesMax = 1 << 20;

bool IsInMemory(const SourceSpec& source) {
  return !AnySource(source, [](const SourceSpec& each) {
    return !std::holds_alternative<RangeSource>(each) &&
           !std::holds_alternative<SyntheticSource>(each) &&
           !std::holds_alternative<TensorsSource>(each) &&
           !std::holds_alternative<ConcatSource>(each) &&
           !std::holds_alternative<MixSource>(each);
  });
}

// An error of opening: with its place, if it is at a path.
void RequireTold(const DatasetSpec& spec, const Status& status) {
  Require(status.code() != StatusCode::kInternal, "no error is a bug's");
  if (PathOf(status.message()).empty()) return;
  const std::string told = Located(spec, status).message();
  Require(told.rfind("a.yaml:", 0) == 0 || told.rfind("dataset '", 0) == 0,
          "an error begins with its place, or with the dataset");
}

void RunFirstRow(const RowProgram& program, const Source& source) {
  ReadRequest request;
  source.Locate(0, &request);
  if (request.kind != ReadRequest::Kind::kNone) return;
  uint64_t bytes = 0;
  for (const RawFeature& each : source.raw_spec()) {
    bytes += each.feature.RowBytes();
  }
  for (const Feature& each : program.element_spec()) bytes += each.RowBytes();
  if (bytes > kRowBytesMax) return;
  std::vector<std::byte> scratch;
  RawRecord raw;
  Require(source.Unpack(0, {}, &scratch, &raw).ok(), "a record is made");
  std::vector<std::vector<std::byte>> row;
  std::vector<std::byte*> out;
  for (const Feature& each : program.element_spec()) {
    row.emplace_back(each.RowBytes());
  }
  for (auto& each : row) out.push_back(each.data());
  const Status status = program.Run(raw, {}, *program.MakeScratch({}), out);
  Require(status.ok() || status.code() == StatusCode::kDataLoss,
          "a row is refused as documented");
}

void Open(const DatasetSpec& spec) {
  if (!IsInMemory(spec.source)) return;
  OpenProgress progress;
  const auto source = OpenSource(spec.source, &progress);
  if (!source.ok()) return RequireTold(spec, source.status());
  if ((*source)->record_count() > kRecordsMax) return;
  uint64_t order_bytes = 0;
  int turns = 0;
  const OrderBudget budget = {[&](uint64_t bytes) {
                                order_bytes += bytes;
                                return order_bytes <= kOrderBytesMax
                                           ? OkStatus()
                                           : ResourceExhaustedError("enough");
                              },
                              [&] { return ++turns > 64; }};
  auto order = (*source)->OrderOf(0, budget);
  if (!order.ok()) return RequireTold(spec, AtPath("source", order.status()));
  order =
      Select(spec.select, *std::move(order), {(*source)->columns(0), budget});
  if (!order.ok()) return RequireTold(spec, order.status());
  const uint64_t rows = (*order)->size();
  for (const uint64_t at : {uint64_t{0}, rows / 2, rows - 1}) {
    if (rows == 0) break;
    Require((*order)->At(at, 1, {}).record < (*source)->record_count(),
            "a row is of a record");
  }
  if (const MixOrder* const mix = (*order)->mix();
      mix != nullptr && !spec.batch.by_part.empty()) {
    order = mix->InBatches(spec.batch.by_part, budget);
    if (!order.ok()) {
      return RequireTold(spec, AtPath("source.mix", order.status()));
    }
  }
  const auto plan =
      Plan::Make(spec, std::shared_ptr<const Order>(*std::move(order)), 3);
  if (!plan.ok()) RequireTold(spec, plan.status());
  OpenProgress opened;
  MapOpening opening = {&opened};
  for (size_t part = 0; part < MapsOf(spec); ++part) {
    const auto program = RowProgram::Compile(
        MapOf(spec, part), (*source)->RawSpecOfPart(part), {}, &opening);
    if (!program.ok()) return RequireTold(spec, program.status());
    if ((*source)->PartOf(0) == part) RunFirstRow(**program, **source);
  }
}

void Check(std::string_view text) {
  const StatusOr<DatasetSpec> spec = ParseDatasetSpec(text, "a.yaml", "/base");
  if (!spec.ok()) {
    Require(spec.status().code() == StatusCode::kInvalidArgument,
            "a text that is refused is an invalid argument");
    Require(spec.status().message().rfind("a.yaml:", 0) == 0,
            "a refusal begins with file and place");
    const Status generated = ParseDatasetSpec(text, "", "/base").status();
    Require(generated.message().rfind("spec: ", 0) == 0,
            "a refusal of a text without lines begins so");
    return;
  }
  Open(*spec);
  const nlohmann::ordered_json json = DatasetSpecToJson(*spec);
  // Throws where a text in it is not UTF-8.
  const std::string canonical = json.dump();
  Require(DifferingField(*spec, *spec).empty(), "a spec is equal to itself");
  // The canonical form has only a digest of their values.
  if (std::holds_alternative<TensorsSource>(spec->source)) return;
  const StatusOr<DatasetSpec> again =
      ParseDatasetSpec(canonical, "journal", "/");
  if (!again.ok()) {
    std::fprintf(stderr, "%s\n%s\n", canonical.c_str(),
                 again.status().message().c_str());
  }
  Require(again.ok(), "the canonical form is a spec");
  Require(DifferingField(*spec, *again).empty(), "of the same dataset");
  Require(*spec == *again, "with the same values");
  Require(DatasetSpecToJson(*again) == json, "and the same canonical form");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
