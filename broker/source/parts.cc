#include "broker/source/parts.h"

#include <algorithm>
#include <set>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/index/concatenation.h"
#include "broker/index/fingerprint.h"
#include "broker/plan/orders.h"
#include "broker/plan/select.h"
#include "broker/plan/select_fields.h"
#include "broker/source/kinds.h"
#include "broker/source/selection.h"
#include "common/class_names.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// Each worker has a process for each of those that processes make.
constexpr size_t kMadePartsMax = 16;
constexpr size_t kScheduleMax = 256;
constexpr uint64_t kBlockMax = uint64_t{1} << 24;  // as rows of a batch
constexpr double kWeightMax = 1e6;

// How the orders of the parts become one.
using Combine = std::function<StatusOr<std::unique_ptr<Order>>(
    std::vector<std::unique_ptr<Order>>, const OrderBudget&)>;

// ---- the source ------------------------------------------------------------

std::string PartKey(const PartSpec& spec, const OpenedPart& part) {
  SourceSpec source = spec.source;
  // The file of an object has another name in each job.
  if (auto* const python = std::get_if<PythonDatasetSource>(&source)) {
    python->object.reset();
  }
  FileDigests digests;
  part.source->AddDigests(&digests);
  part.selection.AddDigests(&digests);
  const std::string data = part.source->fingerprint();
  Fingerprint key("part");
  key.Add(SelectionDigest(source, data, spec.select, digests));
  key.Add(data);
  return key.Hex().substr(0, 16);
}

class PartsMaker final : public Source::Maker {
 public:
  PartsMaker(const Concatenation& places,
             std::vector<std::unique_ptr<Source::Maker>> makers)
      : places_(places), makers_(std::move(makers)), wanted_(makers_.size()) {}

  void Expect(uint64_t seed, std::span<const Source::Wanted> wanted) override {
    for (auto& each : wanted_) each.clear();
    for (const Source::Wanted& each : wanted) {
      const auto [part, record] = places_.Find(each.record);
      wanted_[part].push_back({record, each.pass});
    }
    for (size_t part = 0; part < makers_.size(); ++part) {
      if (!wanted_[part].empty()) makers_[part]->Expect(seed, wanted_[part]);
    }
  }
  Status Make(uint64_t seed, const Source::Wanted& wanted,
              RawRecord* raw) override {
    const auto [part, record] = places_.Find(wanted.record);
    return makers_[part]->Make(seed, {record, wanted.pass}, raw);
  }
  // All: the processes of other parts live and have begun theirs.
  size_t begun() const override { return SIZE_MAX; }

 private:
  const Concatenation& places_;
  const std::vector<std::unique_ptr<Source::Maker>> makers_;
  std::vector<std::vector<Source::Wanted>> wanted_;  // by part
};

class Parts final : public SourceOfParts {
 public:
  Parts(std::string kind, std::vector<PartSpec> specs,
        std::vector<OpenedPart> parts, Concatenation places, Status alike,
        Combine combine)
      : SourceOfParts(std::move(parts)),
        kind_(std::move(kind)),
        specs_(std::move(specs)),
        places_(std::move(places)),
        alike_(std::move(alike)),
        combine_(std::move(combine)) {
    ReadRequest request;
    for (const OpenedPart& part : opened()) {
      part.source->Locate(0, &request);
      any_is_read_ |= request.kind != ReadRequest::Kind::kNone;
    }
  }

  uint64_t record_count() const override { return places_.count(); }
  const RawSpec& raw_spec() const override {
    return opened()[0].source->raw_spec();
  }
  size_t parts() const override { return opened().size(); }
  size_t PartOf(uint64_t record) const override {
    return places_.Find(record).part;
  }
  const RawSpec& RawSpecOfPart(size_t part) const override {
    return opened()[part].source->raw_spec();
  }
  std::string KeyOfPart(size_t part) const override {
    return PartKey(specs_[part], opened()[part]);
  }
  Status CheckAlike() const override { return alike_; }
  StatusOr<std::unique_ptr<Order>> OrderOf(
      uint64_t first, const OrderBudget& budget) const override {
    PENSTOCK_ASSIGN_OR_RETURN(Orders orders, OrdersOfParts(first, budget));
    return Combined(std::move(orders), budget);
  }
  StatusOr<Orders> OrdersOfParts(uint64_t first,
                                 const OrderBudget& budget) const override {
    Orders orders;
    for (size_t i = 0; i < opened().size(); ++i) {
      auto order = opened()[i].source->OrderOf(first, budget);
      if (!order.ok()) {
        return AtPath(Format("{}.parts[{}].source", kind_, i), order.status());
      }
      order = Select(
          specs_[i].select, *std::move(order),
          opened()[i].selection.Context(*opened()[i].source, first, budget));
      if (!order.ok()) {
        return AtPath(Format("{}.parts[{}]", kind_, i), order.status());
      }
      orders.push_back(*std::move(order));
      first += opened()[i].source->record_count();
    }
    return orders;
  }
  StatusOr<std::unique_ptr<Order>> Combined(
      Orders orders, const OrderBudget& budget) const override {
    auto order = combine_(std::move(orders), budget);
    if (!order.ok()) return AtPath(kind_, order.status());
    return order;
  }

  // Those that all parts have.
  Columns columns(uint64_t first) const override {
    std::vector<Columns> of_parts;
    for (const OpenedPart& part : opened())
      of_parts.push_back(part.source->columns(0));
    Columns columns;
    for (const Column& column : of_parts[0]) {
      std::vector<Column> same;
      for (const Columns& each : of_parts) {
        const auto found = std::find_if(
            each.begin(), each.end(),
            [&](const Column& other) { return other.name == column.name; });
        if (found != each.end()) same.push_back(*found);
      }
      if (same.size() < opened().size()) continue;
      columns.push_back({column.name, [this, first, same](uint64_t record) {
                           const auto [part, number] =
                               places_.Find(record - first);
                           return same[part].value(number);
                         }});
    }
    return columns;
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    const auto [part, number] = places_.Find(record);
    opened()[part].source->Locate(number, request);
    if (any_is_read_ && request->kind == ReadRequest::Kind::kNone) {
      // Records of a source are all read, or none is.
      static_cast<ReadPart&>(*request) = {.kind = ReadPart::Kind::kRange};
    }
  }
  std::optional<SharedRanges> SharedRangesOf(uint64_t record) const override {
    const auto [part, number] = places_.Find(record);
    return opened()[part].source->SharedRangesOf(number);
  }
  void Expect(uint64_t record) const override {
    const auto [part, number] = places_.Find(record);
    opened()[part].source->Expect(number);
  }
  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const auto [part, number] = places_.Find(record);
    return opened()[part].source->Unpack(number, read, scratch, raw);
  }

  std::unique_ptr<Maker> MakeMaker(Cancelled cancelled) const override {
    if (wait_ns() == 0) return nullptr;
    std::vector<std::unique_ptr<Maker>> makers;
    for (const OpenedPart& part : opened())
      makers.push_back(part.source->MakeMaker(cancelled));
    return std::make_unique<PartsMaker>(places_, std::move(makers));
  }
  uint64_t wait_ns() const override {
    uint64_t wait = 0;
    for (const OpenedPart& part : opened())
      wait = std::max(wait, part.source->wait_ns());
    return wait;
  }
  uint32_t processes() const override {
    uint32_t processes = 0;
    for (const OpenedPart& part : opened()) {
      processes = std::max(processes, part.source->processes());
    }
    return processes;
  }

  std::string Describe(uint64_t record) const override {
    const auto [part, number] = places_.Find(record);
    return opened()[part].source->Describe(number);
  }
  std::optional<size_t> plain_feature() const override {
    const std::optional<size_t> first = opened()[0].source->plain_feature();
    const bool all =
        std::all_of(opened().begin(), opened().end(), [&](const auto& part) {
          return part.source->plain_feature() == first;
        });
    return all ? first : std::nullopt;
  }
  std::vector<std::string> class_names() const override {
    return SameClasses() ? opened()[0].source->class_names()
                         : std::vector<std::string>();
  }
  std::string warning() const override {
    const std::string text = Joined(&Source::warning, "; ");
    const std::string of_classes = ClassWarning();
    return text + (text.empty() || of_classes.empty() ? "" : "; ") + of_classes;
  }
  std::string shuffle_warning() const override {
    for (const OpenedPart& part : opened()) {
      std::string text = part.source->shuffle_warning();
      if (!text.empty()) return text;
    }
    return "";
  }
  std::string fingerprint() const override {
    Fingerprint all("parts");
    for (const OpenedPart& part : opened()) {
      const std::string of_part = part.source->fingerprint();
      if (of_part.empty() && part.source->wait_ns() > 0) return "";
      all.Add(of_part);
      all.Add(part.source->record_count());
    }
    return all.Hex();
  }

 private:
  // As `penstock check` of two datasets; also where they have few classes in
  // common, as their labels meet in one dataset.
  std::string ClassWarning() const {
    const std::vector<std::string> first = opened()[0].source->class_names();
    for (size_t i = 1; i < opened().size(); ++i) {
      const std::vector<std::string> here = opened()[i].source->class_names();
      // Labels that both have mean the same.
      const size_t both = std::min(first.size(), here.size());
      if (std::equal(first.begin(), first.begin() + both, here.begin())) {
        continue;
      }
      const std::string part = Format("parts[{}]", i);
      const std::string text =
          LabelsThatDiffer({"parts[0]", first}, {part, here});
      return !text.empty()
                 ? text
                 : Format(
                       "parts[0] and {} have different classes: one label "
                       "means one class in the first and another in the "
                       "second",
                       part);
    }
    return "";
  }
  bool SameClasses() const {
    return std::all_of(opened().begin(), opened().end(), [&](const auto& part) {
      return part.source->class_names() == opened()[0].source->class_names();
    });
  }

  const std::string kind_;
  const std::vector<PartSpec> specs_;
  const Concatenation places_;
  const Status alike_;  // as CheckAlike
  const Combine combine_;
  bool any_is_read_ = false;
};

Status CheckSameReading(const Source& first, const Source& part) {
  if ((part.wait_ns() > 0) == (first.wait_ns() > 0)) return OkStatus();
  return InvalidArgumentError(
      "its records or those of parts[0] are made by processes (python), those "
      "of the other are read: all parts need the same");
}

Status CheckSameFeatures(const Source& first, const Source& part) {
  const RawSpec& here = part.raw_spec();
  const RawSpec& there = first.raw_spec();
  if (here.size() != there.size()) {
    return InvalidArgumentError(
        "has {}, and parts[0] has {}: all parts need the same, or steps of "
        "their own (map_by_part) that make the same of them",
        Counted(here.size(), "feature"), Counted(there.size(), "feature"));
  }
  for (size_t f = 0; f < here.size(); ++f) {
    if (here[f] == there[f]) continue;
    const auto text = [](const RawFeature& raw) {
      return raw.encoded ? "the picture " + raw.feature.name
                         : raw.feature.ToString();
    };
    return InvalidArgumentError(
        "feature {} is {}, and that of parts[0] is {}: all parts need the same "
        "features in the same order, or steps of their own (map_by_part) that "
        "make the same of them",
        f, text(here[f]), text(there[f]));
  }
  return OkStatus();
}

OpenedSource OpenParts(const std::string& kind,
                       const std::vector<PartSpec>& specs,
                       OpenProgress* progress, const FunctionOptions& functions,
                       Combine combine) {
  std::vector<OpenedPart> parts;
  Concatenation places;
  Status alike;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string path = Format("{}.parts[{}]", kind, i);
    auto part = OpenPart(specs[i], path, progress, functions);
    if (!part.ok()) return part.status();
    if (i > 0) {
      const Status same = CheckSameReading(*parts[0].source, **part);
      if (!same.ok()) return AtPath(path, same);
      if (alike.ok()) {
        alike = AtPath(path, CheckSameFeatures(*parts[0].source, **part));
      }
    }
    auto selection =
        Selection::Open(specs[i].select, specs[i].source, **part, progress);
    if (!selection.ok()) return AtPath(path, selection.status());
    PENSTOCK_RETURN_IF_ERROR(places.Append((*part)->record_count()));
    parts.push_back({*std::move(part), *std::move(selection), nullptr, ""});
  }
  if (parts.size() > kMadePartsMax && parts[0].source->wait_ns() > 0) {
    return InvalidArgumentError(
        "{}.parts: {} that processes make (python), each with processes of its "
        "own; at most {} may be: concatenate datasets in Python",
        kind, parts.size(), kMadePartsMax);
  }
  return std::unique_ptr<Source>(
      std::make_unique<Parts>(kind, specs, std::move(parts), std::move(places),
                              std::move(alike), std::move(combine)));
}

// ---- declarations ----------------------------------------------------------

// A part holds any kind of source, also one made of parts: its kinds are looked
// up when it is read, as they are not all declared before.
ValueType<SourceSpec> SourceOfPart() {
  return {
      "a mapping with one kind of source",
      [](const YamlValue& value, std::string_view wanted, SourceSpec* source) {
        PENSTOCK_RETURN_IF_ERROR(
            ReadKind(KindsOf<SourceSpec>(), value, wanted, source));
        if (std::holds_alternative<StreamSource>(*source)) {
          return value.Error(
              "a stream cannot be a part: give it a dataset of its own");
        }
        return OkStatus();
      },
      [](const SourceSpec& source, nlohmann::ordered_json* out) {
        WriteKind(KindsOf<SourceSpec>(), &source, out);
      }};
}

const Declaration<PartSpec>& DeclaredPart() {
  static const auto declared =
      Declaration<PartSpec>("part", "A source within another.")
          .Example("{source: {range: 10}, select: [take: 5], weight: 0.5}")
          .Required("source", &PartSpec::source, SourceOfPart(), "its records")
          .Optional("select", &PartSpec::select, SelectSteps(), kSelectText)
          .Optional("weight", &PartSpec::weight, Number(0, kWeightMax),
                    "of a mix: its share of the rows, in proportion to those "
                    "of the others")
          .Optional("prefix", &PartSpec::prefix, Maybe(Name()),
                    "of a zip: what the names of its features begin with");
  return declared;
}

// Where a kind of source stands instead of `source`, the remedy is told.
ValueType<PartSpec> Part() {
  ValueType<PartSpec> type = MappingOf(DeclaredPart());
  type.read = [read = type.read](const YamlValue& value,
                                 std::string_view wanted, PartSpec* out) {
    const std::vector<std::string_view> kinds = NamesOf(KindsOf<SourceSpec>());
    for (size_t i = 0; value.IsMapping() && i < value.size(); ++i) {
      if (std::count(kinds.begin(), kinds.end(), value.Key(i)) == 0) continue;
      return value.KeyError(
          i, Format("a part has its source below `source`: {{source: {{{}: "
                    "...}}}}",
                    value.Key(i)));
    }
    return read(value, wanted, out);
  };
  return type;
}

Status CheckConcat(const YamlValue& value, ConcatSource* concat) {
  return CheckPartKeys(value, concat->parts, {});
}

Status CheckMix(const YamlValue& value, MixSource* mix) {
  PENSTOCK_RETURN_IF_ERROR(CheckPartKeys(value, mix->parts, {.weight = true}));
  std::vector<double> weights;
  for (const PartSpec& part : mix->parts) weights.push_back(part.weight);
  uint64_t row = 0;
  const YamlValue schedule = value.Optional("schedule");
  for (size_t i = 0; i <= mix->schedule.size(); ++i) {
    const YamlValue where = i == 0 ? value : schedule.Item(i - 1);
    if (i > 0) {
      const WeightsFrom& change = mix->schedule[i - 1];
      weights = change.weights;
      if (change.row <= row) {
        return where.Required("row").Error(Format(
            "row {} after row {}: a schedule goes forward", change.row, row));
      }
      row = change.row;
      if (row % mix->block != 0) {
        return where.Required("row").Error(Format(
            "row {}: wanted a multiple of the block, {}", row, mix->block));
      }
    }
    if (weights.size() != mix->parts.size()) {
      return where.Required("weights").Error(
          Format("{} for {}: give one for each",
                 Counted(weights.size(), "weight", "weights"),
                 Counted(mix->parts.size(), "part", "parts")));
    }
    const auto whole = WholeWeights(weights);
    if (!whole.ok()) return where.Error(whole.status().message());
    if (std::all_of(whole->begin(), whole->end(),
                    [](uint32_t weight) { return weight == 0; })) {
      return where.Error(
          "all weights are 0: of one part at least it has to be more");
    }
  }
  return OkStatus();
}

}  // namespace

ValueType<std::vector<PartSpec>> ListOfParts() {
  return List(Part(), 1, kSourcePartsMax,
              Format("a list of 1 to {} mappings of source, select, weight, "
                     "prefix, such as [{{source: {{range: 10}}}}]",
                     kSourcePartsMax));
}

Status CheckPartKeys(const YamlValue& value, const std::vector<PartSpec>& parts,
                     const PartKeys& allowed) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const YamlValue part = value.Required("parts").Item(i);
    if (parts[i].weight != 1 && !allowed.weight) {
      return part.Required("weight").Error(
          "only parts of a mix have a weight: leave it out");
    }
    if (parts[i].prefix && !allowed.prefix) {
      return part.Required("prefix").Error(
          "only parts of a zip have a prefix; `rename` in map gives features "
          "other names");
    }
  }
  return OkStatus();
}

OpenedSource OpenPart(const PartSpec& spec, const std::string& path,
                      OpenProgress* progress,
                      const FunctionOptions& functions) {
  auto part = OpenSource(spec.source, progress, functions);
  const Status status = part.ok() ? (*part)->CheckAlike() : part.status();
  if (!status.ok()) return AtPath(path + ".source", status);
  return part;
}

uint64_t SourceOfParts::memory_bytes() const {
  uint64_t bytes = 0;
  for (const OpenedPart& part : parts_) {
    bytes += part.source->memory_bytes() + part.selection.memory_bytes() +
             (part.order == nullptr ? 0 : part.order->memory_bytes());
  }
  return bytes;
}

bool SourceOfParts::Changed() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const OpenedPart& part) {
    return part.source->Changed() || part.selection.Changed();
  });
}

void SourceOfParts::AddDigests(FileDigests* digests) const {
  for (const OpenedPart& part : parts_) {
    part.source->AddDigests(digests);
    part.selection.AddDigests(digests);
  }
}

void SourceOfParts::AddTimes(Fingerprint* to) const {
  for (const OpenedPart& part : parts_) part.source->AddTimes(to);
}

void SourceOfParts::ListFiles(const FileVisit& visit) const {
  for (const OpenedPart& part : parts_) part.source->ListFiles(visit);
}

std::string SourceOfParts::Joined(std::string (Source::*text)() const,
                                  const char* between) const {
  std::set<std::string> texts;
  for (const OpenedPart& part : parts_) {
    texts.insert((part.source.get()->*text)());
  }
  texts.erase("");
  return JoinText(texts, between);
}

bool ConcatSource::operator==(const ConcatSource& other) const {
  return parts == other.parts;
}

const Declaration<ConcatSource>& ConcatSource::Declared() {
  static const auto declared =
      Declaration<ConcatSource>("concat",
                                "The records of several sources with the same "
                                "features, one after the other.")
          .Gives("the features of the parts")
          .Example(
              "{parts: [{source: {range: 10}}, {source: {range: 5}, select: "
              "[take: 2]}]}")
          .Required("parts", &ConcatSource::parts, ListOfParts(),
                    "each with a selection of its own")
          .Check(CheckConcat);
  return declared;
}

OpenedSource ConcatSource::Open(OpenProgress* progress,
                                const FunctionOptions& functions) const {
  return OpenParts("concat", parts, progress, functions,
                   [](auto orders, const OrderBudget&) {
                     return Concatenate(std::move(orders));
                   });
}

const Declaration<WeightsFrom>& WeightsFrom::Declared() {
  static const auto row = [] {
    auto type = WholeNumber<uint64_t>(1, kRecordsMax);
    type.wanted = Format(
        "a row from 1 to {} (row 0 has the `weight` of each "
        "part)",
        kRecordsMax);
    return type;
  }();
  static const auto declared =
      Declaration<WeightsFrom>("weights", "Weights from a row of the pass on.")
          .Example("{row: 100000, weights: [1, 4]}")
          .Required("row", &WeightsFrom::row, row,
                    "the first with these weights")
          .Required("weights", &WeightsFrom::weights,
                    List(Number(0, kWeightMax), 1, kSourcePartsMax,
                         Format("a list of 1 to {} numbers", kSourcePartsMax)),
                    "one for each part");
  return declared;
}

bool MixSource::operator==(const MixSource& other) const {
  return parts == other.parts && when_out == other.when_out &&
         schedule == other.schedule && block == other.block;
}

const Declaration<MixSource>& MixSource::Declared() {
  static const auto declared =
      Declaration<MixSource>(
          "mix",
          "Records of several sources with the same features, in proportion: "
          "of any number of rows each part has its share, less than one row "
          "more or less. `shuffle` shuffles each part alone.")
          .Gives("the features of the parts")
          .Example(
              "{parts: [{source: {range: 10}, weight: 0.7}, {source: {range: "
              "5}, weight: 0.3}], when_out: repeat}")
          .Required("parts", &MixSource::parts, ListOfParts(),
                    "each with a weight and a selection of its own")
          .Optional("when_out", &MixSource::when_out, WhenOutWords(),
                    "when a part has no more records: the pass ends; the "
                    "others go on, until all records came once; it begins "
                    "anew, until each part was complete once")
          .Optional("schedule", &MixSource::schedule,
                    List(MappingOf(WeightsFrom::Declared()), 0, kScheduleMax,
                         Format("a list of at most {} mappings of row, "
                                "weights, such as [{{row: 100, weights: [1, "
                                "4]}}]",
                                kScheduleMax)),
                    "other weights from rows of the pass on")
          .Optional("block", &MixSource::block,
                    WholeNumber<uint64_t>(1, kBlockMax),
                    "so many rows at a time are of one part: with batch.size "
                    "each batch is of one part; rows that fill no block are "
                    "left out of a pass over their part")
          .Check(CheckMix);
  return declared;
}

OpenedSource MixSource::Open(OpenProgress* progress,
                             const FunctionOptions& functions) const {
  std::vector<double> first;
  for (const PartSpec& part : parts) first.push_back(part.weight);
  std::vector<MixWeights> weights;
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<uint32_t> whole, WholeWeights(first));
  weights.push_back({0, std::move(whole)});
  for (const WeightsFrom& change : schedule) {
    PENSTOCK_ASSIGN_OR_RETURN(whole, WholeWeights(change.weights));
    weights.push_back({change.row, std::move(whole)});
  }
  return OpenParts(
      "mix", parts, progress, functions,
      [weights, when_out = when_out, block = block](
          auto orders,
          const OrderBudget& budget) -> StatusOr<std::unique_ptr<Order>> {
        uint64_t records = 0;
        for (const auto& order : orders) records += order->size();
        PENSTOCK_ASSIGN_OR_RETURN(
            std::unique_ptr<Order> mix,
            Mix(std::move(orders), weights, when_out, budget, block));
        const uint64_t last = weights.back().from;
        if (last >= mix->size()) {
          return InvalidArgumentError(
              "schedule[{}].row: {}, and a pass has {}: these weights never "
              "hold; give a row of the pass",
              weights.size() - 2, last, Counted(mix->size(), "row"));
        }
        if (when_out == WhenOut::kStop && mix->size() < records / 2) {
          mix->Warn(Format(
              "the mix ends where a part has no more records: a pass has {} of "
              "their {}; `when_out: drop` or `repeat` goes on with the others",
              mix->size(), Counted(records, "record")));
        }
        return mix;
      });
}

}  // namespace penstock
