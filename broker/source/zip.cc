#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/index/fingerprint.h"
#include "broker/plan/orders.h"
#include "broker/plan/select.h"
#include "broker/source/kinds.h"
#include "broker/source/parts.h"
#include "broker/source/selection.h"
#include "common/printable.h"
#include "common/quantity.h"

namespace penstock {
namespace {

// The reads of a record's part.
size_t RangesOf(const ReadRequest& request) {
  return request.kind == ReadRequest::Kind::kNone ? 0 : 1 + request.more.size();
}

class Zip final : public SourceOfParts {
 public:
  // lonely: records of the first part that a join leaves out.
  Zip(std::vector<OpenedPart> parts, RawSpec raw_spec, uint64_t lonely,
      std::string join)
      : SourceOfParts(std::move(parts)),
        raw_spec_(std::move(raw_spec)),
        lonely_(lonely),
        join_(std::move(join)) {
    records_ = opened()[0].order->size();
    for (const OpenedPart& part : opened()) {
      records_ = std::min(records_, part.order->size());
    }
    for (size_t i = 0; i < opened().size(); ++i) {
      for (size_t f = 0; f < opened()[i].source->raw_spec().size(); ++f) {
        features_.emplace_back(i, f);
      }
    }
  }

  uint64_t record_count() const override { return records_; }
  const RawSpec& raw_spec() const override { return raw_spec_; }

  bool KnownNumber(uint64_t record, size_t feature,
                   std::byte* number) const override {
    const auto [part, number_of] = features_[feature];
    return opened()[part].source->KnownNumber(opened()[part].RecordOf(record),
                                              number_of, number);
  }
  // The columns of each part that no part before it has.
  Columns columns(uint64_t first) const override {
    Columns columns;
    for (const OpenedPart& part : opened()) {
      for (Column& column : part.source->columns(0)) {
        column.name = part.prefix + column.name;
        const bool known = std::any_of(
            columns.begin(), columns.end(),
            [&](const Column& other) { return other.name == column.name; });
        if (known) continue;
        column.value = [&part, first,
                        value = std::move(column.value)](uint64_t record) {
          return value(part.RecordOf(record - first));
        };
        columns.push_back(std::move(column));
      }
    }
    return columns;
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    static_cast<ReadPart&>(*request) = {};
    for (const OpenedPart& part : opened()) {
      ReadRequest of_part;
      part.source->Locate(part.RecordOf(record), &of_part);
      if (of_part.kind == ReadRequest::Kind::kNone) continue;
      if (request->kind == ReadRequest::Kind::kNone) {
        static_cast<ReadPart&>(*request) = std::move(of_part);
      } else {
        request->more.push_back(std::move(of_part));
      }
      std::move(of_part.more.begin(), of_part.more.end(),
                std::back_inserter(request->more));
    }
  }
  void Expect(uint64_t record) const override {
    for (const OpenedPart& part : opened()) {
      part.source->Expect(part.RecordOf(record));
    }
  }
  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    raw->clear();
    scratch->clear();
    // Features that are in the scratch of their part, and their places in the
    // scratch of all.
    std::vector<std::pair<size_t, size_t>> unpacked;
    size_t range = 0;
    for (const OpenedPart& part : opened()) {
      const uint64_t of_part = part.RecordOf(record);
      ReadRequest request;
      part.source->Locate(of_part, &request);
      const size_t ranges = RangesOf(request);
      std::vector<uint64_t> ends;
      const ReadBytes bytes = BytesOf(read, range, ranges, &ends);
      range += ranges;
      std::vector<std::byte> own;
      RawRecord features;
      if (Status status = part.source->Unpack(of_part, bytes, &own, &features);
          !status.ok()) {
        return status.Prepend(part.source->Describe(of_part));
      }
      const std::less_equal<const std::byte*> before;
      for (const std::span<const std::byte> feature : features) {
        if (!own.empty() && before(own.data(), feature.data()) &&
            before(feature.data(), own.data() + own.size())) {
          unpacked.emplace_back(
              raw->size(), scratch->size() + static_cast<size_t>(
                                                 feature.data() - own.data()));
        }
        raw->push_back(feature);
      }
      scratch->insert(scratch->end(), own.begin(), own.end());
    }
    for (const auto& [feature, place] : unpacked) {
      (*raw)[feature] = std::span<const std::byte>(*scratch).subspan(
          place, (*raw)[feature].size());
    }
    return OkStatus();
  }

  std::string Describe(uint64_t record) const override {
    return JoinText(opened(), "; ", [record](const OpenedPart& part) {
      return part.source->Describe(part.RecordOf(record));
    });
  }
  std::vector<std::string> class_names() const override {
    for (const OpenedPart& part : opened()) {
      if (auto names = part.source->class_names(); !names.empty()) return names;
    }
    return {};
  }
  std::string warning() const override {
    std::string text = Joined(&Source::warning, "; ");
    for (size_t i = 0; i < opened().size(); ++i) {
      const uint64_t records = opened()[i].order->size();
      if (records == records_) continue;
      return text + (text.empty() ? "" : "; ") +
             Format(
                 "parts[{}] has {}, and the zip ends with the shortest part, "
                 "after {}",
                 i, Counted(records, "record", "records"), records_);
    }
    return text;
  }
  std::string left_out() const override {
    const std::string text = SourceOfParts::left_out();
    if (lonely_ == 0) return text;
    return text + (text.empty() ? "" : "; ") +
           Format("{} of parts[0] without one in each other part",
                  Counted(lonely_, "record"));
  }
  std::string fingerprint() const override {
    Fingerprint all("zip" + join_);
    for (const OpenedPart& part : opened()) {
      all.Add(part.source->fingerprint());
      all.Add(part.source->record_count());
    }
    return all.Hex();
  }

 private:
  // What was read for `ranges` ranges of a request from this one on.
  static ReadBytes BytesOf(const ReadBytes& read, size_t first, size_t ranges,
                           std::vector<uint64_t>* ends) {
    if (ranges == 0) return {};
    if (read.ends.empty()) return read;  // the only one
    const uint64_t begin = first == 0 ? 0 : read.ends[first - 1];
    const uint64_t end = read.ends[first + ranges - 1];
    if (ranges > 1) {
      for (size_t i = first; i < first + ranges; ++i) {
        ends->push_back(read.ends[i] - begin);
      }
    }
    return {read.bytes.subspan(begin, end - begin), *ends};
  }

  const RawSpec raw_spec_;
  const uint64_t lonely_;
  const std::string join_;  // "": as they come
  uint64_t records_ = 0;
  std::vector<std::pair<size_t, size_t>> features_;  // part, feature of it
};

// ---- by a column -----------------------------------------------------------

std::string TextOf(const ColumnValue& value) {
  return std::visit(
      [](const auto& each) { return Printable(Format("{}", each)); }, value);
}

// The values of a part's records in the column.
StatusOr<std::function<ColumnValue(uint64_t row)>> ColumnOf(
    const OpenedPart& part, const std::string& name,
    const OrderBudget& budget) {
  const SelectContext context = part.selection.Context(*part.source, 0, budget);
  for (const Column& column : context.columns) {
    if (column.name != name) continue;
    return std::function<ColumnValue(uint64_t)>(
        [&part, value = column.value](uint64_t row) {
          return value(part.RecordOf(row));
        });
  }
  return InvalidArgumentError(
      "has no column '{}' to join by: a number or a text (`max_bytes`) of its "
      "records (of tar files and LMDB, the member __key__)",
      name);
}

// The orders become those of records that belong together. Returns how many of
// the first part are left out.
StatusOr<uint64_t> Join(const std::string& by, OnMissing on_missing,
                        const OrderBudget& budget,
                        std::vector<OpenedPart>* parts) {
  constexpr uint64_t kRowBytes = 96;  // of an entry of the map, about
  constexpr size_t kNamed = 5;
  const uint64_t all = (*parts)[0].order->size();
  PENSTOCK_RETURN_IF_ERROR(
      budget.reserve(all * parts->size() * sizeof(uint64_t)));
  // Rows of each part, by those of the first.
  std::vector<std::shared_ptr<std::vector<uint64_t>>> rows;
  for (size_t i = 0; i < parts->size(); ++i) {
    rows.push_back(std::make_shared<std::vector<uint64_t>>(all));
  }
  std::iota(rows[0]->begin(), rows[0]->end(), uint64_t{0});
  std::string lonely_names;
  uint64_t lonely = 0;
  const auto path = [](size_t i) { return Format("zip.parts[{}]", i); };
  std::vector<std::function<ColumnValue(uint64_t row)>> columns;
  for (size_t i = 0; i < parts->size(); ++i) {
    auto column = ColumnOf((*parts)[i], by, budget);
    if (!column.ok()) return AtPath(path(i), column.status());
    columns.push_back(*std::move(column));
  }
  std::vector<bool> is_lonely(all);
  for (size_t i = 1; i < parts->size(); ++i) {
    const uint64_t count = (*parts)[i].order->size();
    PENSTOCK_RETURN_IF_ERROR(budget.reserve(count * kRowBytes));
    std::unordered_map<ColumnValue, uint64_t> places;
    PENSTOCK_RETURN_IF_ERROR(
        ForEachRow(count, budget, [&](uint64_t row) -> Status {
          const auto [place, is_new] = places.emplace(columns[i](row), row);
          if (is_new) return OkStatus();
          return AtPath(path(i),
                        InvalidArgumentError(
                            "two of its records have {} '{}': {} and {}", by,
                            TextOf(place->first), place->second, row));
        }));
    PENSTOCK_RETURN_IF_ERROR(
        ForEachRow(all, budget, [&](uint64_t row) -> Status {
          const ColumnValue value = columns[0](row);
          const auto found = places.find(value);
          if (found != places.end()) (*rows[i])[row] = found->second;
          if (found != places.end() || is_lonely[row]) return OkStatus();
          is_lonely[row] = true;
          if (++lonely <= kNamed) {
            lonely_names += Format("{}'{}' (not in parts[{}])",
                                   lonely == 1 ? "" : ", ", TextOf(value), i);
          }
          return OkStatus();
        }));
  }
  if (lonely > 0 && (on_missing == OnMissing::kError || lonely == all)) {
    return InvalidArgumentError(
        "zip: {} of parts[0] {} no record of the same {} in another part: "
        "{}{}{}",
        Counted(lonely, "record"), lonely == 1 ? "has" : "have", by,
        lonely_names, lonely > kNamed ? ", ..." : "",
        lonely == all ? "" : "; `on_missing: skip` leaves them out");
  }
  for (size_t i = 0; i < parts->size(); ++i) {
    uint64_t kept = 0;
    for (uint64_t row = 0; row < all; ++row) {
      if (!is_lonely[row]) (*rows[i])[kept++] = (*rows[i])[row];
    }
    (*parts)[i].order =
        ListRows(std::move((*parts)[i].order), rows[i], 0, kept);
  }
  return lonely;
}

}  // namespace

bool ZipSource::operator==(const ZipSource& other) const {
  return parts == other.parts && by == other.by &&
         on_missing == other.on_missing;
}

const Declaration<ZipSource>& ZipSource::Declared() {
  static const auto declared =
      Declaration<ZipSource>(
          "zip",
          "Records made of one record of each of several sources: record i has "
          "the features of record i of each. It ends with the shortest. Its "
          "records are shuffled as they are: a mix of zips keeps its "
          "proportions, a zip of a mix does not.")
          .Gives("the features of all parts")
          .Example(
              "{parts: [{source: {range: 10}}, {source: {range: {start: 100, "
              "stop: 110}}, prefix: other_}]}")
          .Required("parts", &ZipSource::parts, ListOfParts(),
                    "each with a selection of its own, and a prefix for the "
                    "names of its features")
          .Optional(
              "by", &ZipSource::by,
              Maybe(Text("the name of a column",
                         [](std::string_view name) { return !name.empty(); })),
              "a join: to each record of parts[0], the record of each "
              "other part with the same number or text in this column, "
              "which each part has before its prefix")
          .Optional("on_missing", &ZipSource::on_missing, OnMissingType(),
                    "a record of parts[0] without such a one is an error that "
                    "names it, or is left out")
          .Check([](const YamlValue& value, ZipSource* zip) {
            return CheckPartKeys(value, zip->parts, {.prefix = true});
          });
  return declared;
}

OpenedSource ZipSource::Open(OpenProgress* progress,
                             const FunctionOptions& functions) const {
  std::vector<OpenedPart> zipped;
  RawSpec raw_spec;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string path = Format("zip.parts[{}]", i);
    auto source = OpenPart(parts[i], path, progress, functions);
    if (!source.ok()) return source.status();
    if ((*source)->wait_ns() > 0) {
      return InvalidArgumentError(
          "{}: is made by processes (python): zip datasets in Python", path);
    }
    const OrderBudget budget = {progress->reserve,
                                [progress] { return progress->cancel.load(); }};
    auto order = (*source)->OrderOf(0, budget);
    if (!order.ok()) return AtPath(path + ".source", order.status());
    std::vector<ColumnUse> uses;
    if (by) uses.push_back({"by", *by});
    auto selection = Selection::Open(parts[i].select, parts[i].source, **source,
                                     progress, std::move(uses));
    if (!selection.ok()) return AtPath(path, selection.status());
    order = Select(parts[i].select, *std::move(order),
                   selection->Context(**source, 0, budget));
    if (!order.ok()) return AtPath(path, order.status());
    if ((*order)->draws()) {
      return InvalidArgumentError(
          "{}: a sample has other records at the same place in each pass, and "
          "a record of a zip is the same in all: put `sample` into the "
          "`select` of the zip, which draws from its records",
          path);
    }
    const std::string prefix = parts[i].prefix.value_or("");
    for (RawFeature raw : (*source)->raw_spec()) {
      raw.feature.name = prefix + raw.feature.name;
      if (!raw.picture.empty()) raw.picture = prefix + raw.picture;
      if (raw.feature.name.size() > kNameCharsMax) {
        return InvalidArgumentError(
            "{}.prefix: '{}' has more than {} characters: give a shorter one",
            path, raw.feature.name, kNameCharsMax);
      }
      for (const RawFeature& other : raw_spec) {
        if (other.feature.name != raw.feature.name) continue;
        return InvalidArgumentError(
            "{}: has a feature '{}', as a part before it: give it a prefix",
            path, raw.feature.name);
      }
      raw_spec.push_back(std::move(raw));
    }
    zipped.push_back(
        {*std::move(source), *std::move(selection), *std::move(order), prefix});
  }
  uint64_t lonely = 0;
  if (by) {
    const OrderBudget budget = {progress->reserve,
                                [progress] { return progress->cancel.load(); }};
    PENSTOCK_ASSIGN_OR_RETURN(lonely, Join(*by, on_missing, budget, &zipped));
  }
  return std::unique_ptr<Source>(std::make_unique<Zip>(
      std::move(zipped), std::move(raw_spec), lonely,
      by ? Format(" by {}{}", *by, lonely > 0 ? " skip" : "") : ""));
}

}  // namespace penstock
