#include "client/command/all_records.h"

#include <algorithm>

#include "client/command/first_batch.h"
#include "client/command/subcommand.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/progress_bar.h"
#include "client/private_broker/table.h"
#include "common/quantity.h"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr uint64_t kBatchBytes = uint64_t{8} << 20;
constexpr uint64_t kBatchRowsMax = 4096;

// The records that the job with this name left out.
OrderedJson BrokenRecords(const std::string& socket, const std::string& job) {
  OrderedJson broken = {{"count", 0}};
  const auto answer = CallBroker(socket, {{"op", "status"}});
  if (!answer.ok()) return broken;
  for (const nlohmann::json& each : ArrayField(*answer, "jobs")) {
    if (TextField(each, "job") != job) continue;
    broken["count"] = CountField(each, "rows_skipped").value_or(0);
    const nlohmann::json& kinds = FieldOf(each, "rows_failed");
    if (kinds.is_object()) {
      for (const auto& [kind, count] : kinds.items()) broken[kind] = count;
    }
    broken["first"] = ArrayField(each, "rows_failed_first");
  }
  return broken;
}

// Tells all.failed what the job left out since the last time.
Status TellFailures(const AllRecords& all) {
  if (!all.failed) return OkStatus();
  for (bool more = true; more;) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const nlohmann::json answer,
        CallBroker(all.socket, {{"op", "failures"}, {"job", all.job}}));
    for (const nlohmann::json& each : ArrayField(answer, "failures")) {
      if (!each.is_array() || each.size() != 2 ||
          !each[0].is_number_unsigned() || !each[1].is_string()) {
        return InternalError(
            "the broker's answer does not follow the protocol");
      }
      all.failed(each[0].get<uint64_t>(), each[1].get<std::string>());
    }
    more = FieldOf(answer, "more") == true;
  }
  return OkStatus();
}

}  // namespace

void ReadAllOnce(OrderedJson* spec, uint64_t batch_rows) {
  (*spec)["shuffle"] = "none";
  (*spec)["batch"] = {{"size", batch_rows}, {"last", "partial"}};
  (*spec)["epochs"] = 1;
  spec->erase("steps_per_epoch");
  (*spec)["on_error"] = "skip";
}

StatusOr<OrderedJson> ParsedSpec(PrivateBroker* broker, const SpecFile& file,
                                 std::set<uint64_t>* random) {
  PENSTOCK_ASSIGN_OR_RETURN(const nlohmann::json parsed,
                            broker->Call(file.Request("parse")));
  OrderedJson spec = OrderedJson::parse(TextField(parsed, "spec"), nullptr,
                                        /*exceptions=*/false);
  if (!spec.is_object()) {
    return InternalError("the broker's answer to 'parse' has no 'spec'");
  }
  if (random != nullptr) {
    for (const nlohmann::json& step : ArrayField(parsed, "random_steps")) {
      if (step.is_number_unsigned()) random->insert(step.get<uint64_t>());
    }
  }
  return spec;
}

StatusOr<OrderedJson> TakeAllRecords(
    const AllRecords& all,
    const std::function<void(const ElementSpec& features)>& begin,
    const std::function<Status(const penstock_batch* batch)>& add) {
  PENSTOCK_ASSIGN_OR_RETURN(
      penstock_reader* const reader,
      AttachAlone(all.socket, {"", all.spec, all.job, all.state}));
  begin(FeaturesOf(reader, nullptr));
  ProgressBar bar(all.label, "rows");
  int code = PENSTOCK_OK;
  uint64_t rows = 0;
  OrderedJson broken = {{"count", 0}};
  while (code != PENSTOCK_END_OF_DATA) {
    penstock_batch* batch = nullptr;
    code = penstock_next(reader, &batch);
    Status error = code < 0 ? LibraryError(code) : OkStatus();
    // The job is over once the end of the data is told.
    if (code != PENSTOCK_END_OF_DATA) {
      const Status told = TellFailures(all);
      if (error.ok()) error = told;
    }
    if (!error.ok()) {
      penstock_detach(reader);
      return error;
    }
    if (code == PENSTOCK_END_OF_EPOCH) {
      broken = BrokenRecords(all.socket, all.job);
    }
    if (code != PENSTOCK_OK) continue;
    rows += penstock_batch_rows(batch);
    error = add(batch);
    penstock_release(batch);
    if (!error.ok()) {
      penstock_detach(reader);
      return error;
    }
    bar.Update(rows, all.records);
  }
  penstock_detach(reader);
  return broken;
}

void ReportBroken(const OrderedJson& broken, const std::string& what,
                  const std::string& could_not) {
  const uint64_t count = broken.value("count", uint64_t{0});
  if (count == 0) return;
  const uint64_t gone = broken.value("missing", uint64_t{0});
  const OrderedJson first = broken.value("first", OrderedJson::array());
  PrintError(Format(
      "{}: {} that could not {}{}{}", what,
      Counted(FormatCount(count), "record"), could_not,
      gone > 0 ? Format(" (the files of {} are gone)", FormatCount(gone)) : "",
      first.empty()          ? ""
      : first.size() < count ? "; the first of them:"
                             : ":"));
  for (const OrderedJson& each : first)
    PrintError("  " + each.get<std::string>());
}

void ReportWarning(const DatasetIndex& index) {
  const std::string text = TextField(index.answer, "source_warning");
  if (text.empty()) return;
  PrintError(Format("warning: dataset '{}': {}", index.dataset, text));
}

StatusOr<int> WithJsonError(StatusOr<int> result, bool json) {
  if (result.ok() || !json ||
      result.status().code() == StatusCode::kCancelled) {
    return result;
  }
  PrintJsonInOrder({{"error", result.status().message()},
                    {"code", static_cast<int>(result.status().code())}});
  return kExitFailure;
}

uint64_t RowsAtOnce(const DatasetIndex& index) {
  uint64_t row_bytes = 1;
  for (const Feature& each : index.element_spec) row_bytes += each.RowBytes();
  return std::clamp<uint64_t>(
      kBatchBytes / row_bytes, 1,
      std::min(kBatchRowsMax, std::max<uint64_t>(1, index.records)));
}

}  // namespace penstock
