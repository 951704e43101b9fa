#include "client/command/check_all.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "client/command/all_records.h"
#include "client/command/first_batch.h"
#include "client/command/output_file.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/table.h"
#include "common/quantity.h"
#include "common/record_list.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// Messages of a list; behind these its lines are numbers alone.
constexpr size_t kMessageBytesMax = kRecordListBytesMax / 2;

// Steps of `select` that repeat records, draw some of them or change their
// order. At its end they choose none.
bool OnlyRepeats(const OrderedJson& step) {
  for (const char* const name : {"repeat", "sample", "balance", "interleave"}) {
    if (step.contains(name)) return true;
  }
  return false;
}

OrderedJson SpecToCheck(const DatasetIndex& index, uint64_t batch_rows) {
  OrderedJson spec = OrderedJson::parse(index.text);
  ReadAllOnce(&spec, batch_rows);
  // What is in a cache would not be read.
  for (const char* const key : {"shard", "cache", "snapshot"}) spec.erase(key);
  OrderedJson select = spec.value("select", OrderedJson::array());
  while (!select.empty() && OnlyRepeats(select.back())) {
    select.erase(select.size() - 1);
  }
  spec.erase("select");
  if (!select.empty()) spec["select"] = std::move(select);
  return spec;
}

// The broken records, with their messages.
using Broken = std::map<uint64_t, std::string>;

// In a process of its own: a line of JSON, and the lines of the list.
StatusOr<std::string> ReadAll(AllRecords all, const std::string& dataset) {
  Broken broken;
  size_t message_bytes = 0;
  const std::string of_dataset = Format("dataset '{}': ", dataset);
  all.failed = [&](uint64_t record, std::string message) {
    if (message.starts_with(of_dataset)) message.erase(0, of_dataset.size());
    if (message_bytes > kMessageBytesMax) message.clear();
    const auto [place, is_new] = broken.emplace(record, std::move(message));
    if (is_new) message_bytes += place->second.size();
  };
  uint64_t rows = 0;
  StatusOr<OrderedJson> counts = TakeAllRecords(
      all, [](const ElementSpec&) {},
      [&](const penstock_batch* batch) {
        rows += penstock_batch_rows(batch);
        return OkStatus();
      });
  if (!counts.ok()) {
    // A job without a single row fails.
    if (rows > 0 || broken.size() < all.records) return counts.status();
    counts = OrderedJson::object();
  }
  OrderedJson head = {{"rows", rows}, {"broken", *std::move(counts)}};
  head["broken"]["count"] = broken.size();
  if (!head["broken"].contains("first")) {
    OrderedJson& first = head["broken"]["first"] = OrderedJson::array();
    for (const auto& [record, message] : broken) {
      constexpr size_t kFirst = 5;
      if (first.size() == kFirst) break;
      first.push_back(of_dataset + message);
    }
  }
  std::string text = JsonLineInOrder(head) + "\n";
  for (const auto& [record, message] : broken) {
    text += RecordListLine(record, message);
  }
  return text;
}

SpecFile Without(const SpecFile& file, const OrderedJson& spec) {
  SpecFile without = file;
  without.name = "";
  without.text = spec.dump();
  return without;
}

}  // namespace

StatusOr<SpecFile> WithoutList(PrivateBroker* broker, const SpecFile& file,
                               const std::string& list) {
  PENSTOCK_ASSIGN_OR_RETURN(OrderedJson spec, ParsedSpec(broker, file));
  const std::string path = fs::absolute(list).lexically_normal();
  OrderedJson select = OrderedJson::array();
  for (const OrderedJson& step : spec.value("select", OrderedJson::array())) {
    const auto exclude = step.find("exclude");
    if (exclude != step.end() && exclude->value("records", "") == path)
      continue;
    select.push_back(step);
  }
  // As it is, its errors name lines.
  if (select.size() == spec.value("select", OrderedJson::array()).size()) {
    return file;
  }
  spec["select"] = std::move(select);
  return Without(file, spec);
}

StatusOr<SpecFile> OfAllRecords(PrivateBroker* broker, const SpecFile& file) {
  PENSTOCK_ASSIGN_OR_RETURN(OrderedJson spec, ParsedSpec(broker, file));
  spec.erase("select");
  ReadAllOnce(&spec, 1);
  return Without(file, spec);
}

StatusOr<AllChecked> CheckAllRecords(PrivateBroker* broker,
                                     const SpecFile& file,
                                     const DatasetIndex& index,
                                     const std::string& list) {
  PENSTOCK_RETURN_IF_ERROR(index.CheckHasRows(file));
  if (!index.SourceOf("mix").is_null()) {
    return FailedPreconditionError(
        "'{}' is a mix, of which no record is left out by its number: check "
        "each part by a spec of its own, and put `exclude` into the `select` "
        "of that part",
        file.name);
  }
  SpecFile to_check = file;
  to_check.name = "";
  to_check.base = "/";
  to_check.text = SpecToCheck(index, 1).dump();
  StatusOr<DatasetIndex> once = IndexDataset(broker->AsCall(), to_check, 1);
  if (!once.ok()) {
    std::vector<size_t> steps(FieldOf(index.spec, "map").size());
    std::iota(steps.begin(), steps.end(), size_t{0});
    return InFile(once.status(), file, steps);
  }
  const OrderedJson spec = SpecToCheck(index, RowsAtOnce(*once));
  const AllRecords all = {broker->socket(), spec.dump(), UniqueJobName("check"),
                          once->records, "checking"};
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::string result,
      InTakingProcess(broker, [&] { return ReadAll(all, index.dataset); }));
  const size_t line = result.find('\n');
  const OrderedJson head =
      OrderedJson::parse(result.substr(0, line), nullptr, false);
  AllChecked checked;
  checked.broken = head["broken"];
  checked.count = checked.broken["count"].get<uint64_t>();
  checked.records = head["rows"].get<uint64_t>() + checked.count;
  // With a `repeat` in the middle of `select` a broken record is several rows.
  const bool repeats =
      spec.contains("select") &&
      std::any_of(spec["select"].begin(), spec["select"].end(), OnlyRepeats);
  if (!repeats && checked.records < once->records) {
    return UnavailableError(
        "penstockd died on the way, and {} are not known of: run it again",
        Counted(FormatCount(once->records - checked.records), "record"));
  }
  RecordListHeader header;
  header.records = CountField(once->answer, "source_records").value_or(0);
  header.data = TextField(once->answer, "data");
  PENSTOCK_RETURN_IF_ERROR(
      WriteWhole(list, RecordListHeaderLine(header) + result.substr(line + 1)));
  return checked;
}

void TellChecked(const AllChecked& checked, const SpecFile& file,
                 const DatasetIndex& index, const std::string& list) {
  const std::string all = Counted(FormatCount(checked.records), "record");
  if (checked.count == 0) {
    Print(stdout, "\nall {} can be read and made\n", all);
    return;
  }
  std::fflush(stdout);
  ReportBroken(checked.broken, index.dataset, "be read or made");
  // The spec's paths start from its folder.
  const fs::path path = fs::absolute(list).lexically_normal();
  const fs::path folder = fs::absolute(file.path).parent_path();
  Print(
      stdout,
      "\n{}: {} of {} are broken; leave them out with this first step\n"
      "  select: [exclude: {}]\n",
      list, FormatCount(checked.count), all,
      path.parent_path() == folder ? path.filename().string() : path.string());
}

}  // namespace penstock
