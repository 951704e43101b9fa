#include "client/command/job_batch.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "client/command/batch_sheet.h"
#include "client/command/first_batch.h"
#include "client/command/spec_file.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "common/format.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kPixelsShown = uint64_t{4} << 20;

// A row and the number of rows from there on, of the epoch of the state.
struct Rows {
  uint64_t epoch = 0;
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t batch = 0;  // rows of a global batch; 0: they differ
};

// The batch before a state. Where an epoch has just begun, and with steps of
// the plan's own: the rows that come next.
StatusOr<Rows> RowsBefore(const Json& state, const Json& spec,
                          uint64_t world_size) {
  const auto epoch = CountField(state, "epoch");
  const auto row = CountField(state, "row");
  const Json& batch = FieldOf(spec, "batch");
  const auto size = CountField(batch, "size");
  const auto per_rank = CountField(batch, "per_rank");
  const bool own_steps = batch.is_object() && HasOwnSteps(spec);
  if (!epoch || !row || (!size && !per_rank && !own_steps)) {
    return InternalError("the broker's answer does not follow the protocol");
  }
  // The batch before has a size that only the plan knows.
  if (own_steps) return Rows{*epoch, *row, kBatchRowsShown};
  const uint64_t all = size ? *size : *per_rank * world_size;
  return Rows{*epoch, *row - std::min(*row, all),
              std::clamp<uint64_t>(all, 1, kBatchRowsShown), all};
}

std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = std::min<size_t>(3, bytes.size() - i);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (k < left ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += k <= left ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

// In a forked process: the sheet as a file, the rest as JSON.
StatusOr<std::string> Show(const ElementSpec& features,
                           const penstock_batch* batch, uint64_t rows,
                           const DatasetIndex& index, const std::string& png) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<size_t> which,
                            FeaturesToDraw(features, ""));
  rows = std::min(rows, penstock_batch_rows(batch));
  if (!which.empty()) {
    const std::vector<DrawnFeature> drawn = Drawn(features, batch, which);
    const PictureLayout& layout = drawn[0].layout;
    const uint64_t pixels = std::max<uint64_t>(
        static_cast<uint64_t>(layout.height * layout.width) * drawn.size(), 1);
    rows = std::clamp<uint64_t>(kPixelsShown / pixels, 1, rows);
    const ContactSheet sheet = DrawContactSheet(drawn, rows);
    rows = sheet.rows;
    PENSTOCK_RETURN_IF_ERROR(WritePng(sheet, png, png + ".tmp"));
  }
  // A table has no bytes that are not UTF-8: it is printable.
  return JsonLine(
      {{"rows", rows},
       {"table", RowsTable(features, batch, rows, which, index.class_names)}});
}

}  // namespace

StatusOr<Json> LastBatch(const std::string& socket, const BatchOfJob& job) {
  PENSTOCK_ASSIGN_OR_RETURN(const Json answer,
                            CallBroker(socket, {{"op", "state"},
                                                {"job", job.job},
                                                {"dataset", job.dataset},
                                                {"spec", true}}));
  Json state = FieldOf(answer, "state");
  Json spec = Json::parse(TextField(answer, "spec"), nullptr, false);
  PENSTOCK_ASSIGN_OR_RETURN(const Rows rows,
                            RowsBefore(state, spec, job.world_size));
  // The same rows, in a batch of their own if that leaves an epoch its rows.
  state["row"] = rows.first;
  state["owed"] = Json::array();
  state["delivery"] = "split";
  if (rows.batch > 0) {
    SetBatchSize(&spec,
                 spec.contains("steps_per_epoch") ? rows.batch : rows.count);
  }
  spec["prefetch"] = 1;
  spec["hold"] = 1;
  spec["epochs"] = "forever";
  SpecFile file;
  file.name = Format("job '{}'", job.job);
  file.path = file.base = "/";
  file.text = JsonLine(spec);

  PrivateBrokerOptions options;
  options.workers = 1;  // the job goes on meanwhile
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateBroker> broker,
                            PrivateBroker::Start(options));
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetIndex index,
                            IndexDataset(broker->AsCall(), file, 1));
  PENSTOCK_RETURN_IF_ERROR(index.CheckHasRows(file));
  const std::string png = broker->folder() + "/batch.png";
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::string shown,
      WithFirstBatch(
          broker.get(), {"", file.text, UniqueJobName("view"), JsonLine(state)},
          [&](const ElementSpec& features, const penstock_batch* batch) {
            return Show(features, batch, rows.count, index, png);
          }));
  const Json made = Json::parse(shown, nullptr, false);
  const uint64_t count = CountField(made, "rows").value_or(0);
  std::ifstream picture(png, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(picture)),
                          std::istreambuf_iterator<char>());
  return Json{{"text", Format("rows {} to {} of epoch {}", rows.first,
                              rows.first + std::max<uint64_t>(count, 1) - 1,
                              rows.epoch)},
              {"picture",
               bytes.empty() ? "" : "data:image/png;base64," + Base64(bytes)},
              {"table", TextField(made, "table")}};
}

}  // namespace penstock
