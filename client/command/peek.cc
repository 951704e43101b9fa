// penstock peek: shows one batch to a person.
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/command/batch_sheet.h"
#include "client/command/contact_sheet.h"
#include "client/command/first_batch.h"
#include "client/command/npz_file.h"
#include "client/command/output_file.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/control_call.h"
#include "client/private_broker/json_field.h"
#include "client/private_broker/private_broker.h"
#include "common/command_line.h"
#include "common/printable.h"
#include "common/quantity.h"
#include "common/text_file.h"

namespace penstock {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct PeekOptions {
  std::string spec;
  std::string out = "sheet.png";
  bool out_given = false;
  std::string npz;
  std::string feature;
  uint64_t rows = 64;
  std::optional<uint64_t> epoch;
  std::optional<uint64_t> row;
  std::optional<uint64_t> record;
  int world_size = 1;
  bool text = false;
  PrivateBrokerOptions broker;
};

struct PeekTask {
  const PeekOptions& options;
  const DatasetIndex& index;
  std::string out;        // the file of options.out
  std::string temporary;  // in the same folder
  // One row: how it is called, and where the broker says it is (`row` of the
  // answer to `index`).
  std::string title = {};
  Json row = {};
};

Status NothingToDraw(const PeekTask& task) {
  return FailedPreconditionError(
      "no feature is a picture, so there is nothing to write to '{}': omit "
      "--out, or name a feature of [height, width] with --feature",
      task.options.out);
}

Status ShowBatch(const PeekTask& task, const ElementSpec& features,
                 const penstock_batch* batch) {
  std::vector<size_t> drawn;
  if (!task.options.text) {
    PENSTOCK_ASSIGN_OR_RETURN(drawn,
                              FeaturesToDraw(features, task.options.feature));
  }
  const uint64_t all = penstock_batch_rows(batch);
  uint64_t rows = std::min(all, task.options.rows);
  if (!drawn.empty()) {
    std::string names;
    for (const size_t i : drawn) {
      names += (names.empty() ? "feature " : " and ") + features[i].ToString();
    }
    const ContactSheet sheet =
        DrawContactSheet(Drawn(features, batch, drawn), rows);
    rows = sheet.rows;
    if (rows > 0) {
      PENSTOCK_RETURN_IF_ERROR(WritePng(sheet, task.out, task.temporary));
      Print(stdout, "{}: {} of {} of {}, {} x {} pixels\n\n", task.options.out,
            rows, Counted(all, "row"), names, sheet.width, sheet.height);
    }
  } else if (task.options.out_given) {
    return NothingToDraw(task);
  } else if (!task.options.text) {
    Print(stdout, "no feature is a picture; no PNG written\n\n");
  }
  Print(stdout, "{}",
        RowsTable(features, batch, rows, drawn, task.index.class_names));
  return OkStatus();
}

// ---- one row

// Why the job left out or replaced this record; "": nothing is known of it.
std::string WhyNot(const std::string& socket, const std::string& job,
                   uint64_t record) {
  const auto answer = CallBroker(socket, {{"op", "failures"}, {"job", job}});
  if (!answer.ok()) return "";
  for (const Json& each : ArrayField(*answer, "failures")) {
    if (each.is_array() && each.size() == 2 && each[0] == record) {
      return each[1].get<std::string>();
    }
  }
  return "";
}

// Where the row is in its batch, some of whose rows may be left out. left_out:
// why it is.
StatusOr<uint64_t> FindInBatch(const PeekTask& task,
                               const penstock_batch* batch,
                               const std::string& left_out) {
  const uint64_t at = CountField(task.row, "row_of_step").value_or(0);
  const auto sample =
      static_cast<int64_t>(CountField(task.row, "sample").value_or(0));
  const uint64_t rows = penstock_batch_valid_rows(batch);
  const int64_t* const ids = penstock_batch_ids(batch);
  if (rows == penstock_batch_global_rows(batch) && at < rows) return at;
  const auto found = std::find(ids, ids + rows, sample);
  if (found != ids + rows &&
      std::find(found + 1, ids + rows, sample) == ids + rows) {
    return static_cast<uint64_t>(found - ids);
  }
  return DataLossError(
      "{}: is left out (on_error: skip): {}", task.title,
      left_out.empty() ? "it could not be read or made" : left_out);
}

Status WriteNpz(const PeekTask& task, const ElementSpec& features,
                const penstock_batch* batch, uint64_t row) {
  std::vector<NpzArray> arrays;
  for (uint32_t i = 0; i < features.size(); ++i) {
    const uint64_t bytes = features[i].RowBytes();
    arrays.push_back(
        {features[i],
         {static_cast<const char*>(penstock_batch_data(batch, i)) + row * bytes,
          bytes}});
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, NpzText(arrays));
  PENSTOCK_RETURN_IF_ERROR(WriteWhole(task.options.npz, text));
  Print(stdout, "{}: {}, as they are delivered\n", task.options.npz,
        Counted(features.size(), "array"));
  return OkStatus();
}

Status ShowRow(const PeekTask& task, const ElementSpec& features,
               const penstock_batch* batch, const std::string& why) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t row, FindInBatch(task, batch, why));
  std::vector<size_t> drawn;
  if (!task.options.text) {
    PENSTOCK_ASSIGN_OR_RETURN(drawn,
                              FeaturesToDraw(features, task.options.feature));
  }
  if (drawn.empty() && task.options.out_given) return NothingToDraw(task);
  const uint64_t planned = CountField(task.row, "sample").value_or(0);
  const int64_t sample = penstock_batch_ids(batch)[row];
  Print(stdout, "{}\nsample {} in {}\n", task.title, planned,
        Printable(TextField(task.row, "place")));
  if (sample != static_cast<int64_t>(planned)) {
    Print(stdout, "in its place: sample {} (on_error: substitute): {}\n",
          sample, PrintableLines(why));
  }
  if (!drawn.empty()) {
    const ContactSheet sheet =
        DrawContactSheet(Drawn(features, batch, drawn, row), 1);
    PENSTOCK_RETURN_IF_ERROR(WritePng(sheet, task.out, task.temporary));
    Print(stdout, "{}: {} x {} pixels\n", task.options.out, sheet.width,
          sheet.height);
  }
  if (!task.options.npz.empty()) {
    PENSTOCK_RETURN_IF_ERROR(WriteNpz(task, features, batch, row));
  }
  Print(stdout, "\n{}", RowTable(features, batch, row, task.index.class_names));
  return OkStatus();
}

// Makes one row a batch, in epochs of as many rows as they had: a row's place
// in the order, and so its random numbers and its neighbour in a mixup, does
// not depend on batches.
void MakeOneRow(OrderedJson* spec, uint64_t rows_per_epoch) {
  SetBatchSize(spec, 1);
  (*spec)["steps_per_epoch"] = rows_per_epoch;
  (*spec)["prefetch"] = (*spec)["hold"] = 1;
  spec->erase("shard");
}

// The spec of one record alone, whatever `select` says of it.
StatusOr<OrderedJson> SpecOfRecord(const DatasetIndex& index,
                                   const SpecFile& file, uint64_t record) {
  const uint64_t records =
      CountField(index.answer, "source_records").value_or(0);
  if (record >= records) {
    return InvalidArgumentError(
        "--record {}: the source of '{}' has {}, numbered from 0", record,
        file.name, Counted(records, "record"));
  }
  if (!index.SourceOf("mix").is_null()) {
    return FailedPreconditionError(
        "--record: '{}' is a mix, whose records have no place of their own: "
        "give the spec of a part, or --row",
        file.name);
  }
  OrderedJson spec = OrderedJson::parse(index.text);
  spec["select"] = OrderedJson::array(
      {{{"skip", {{"records", record}}}}, {{"take", {{"records", 1}}}}});
  spec["shuffle"] = "none";
  spec["epochs"] = 1;
  spec["on_error"] = "fail";
  spec["batch"].erase("pack");
  MakeOneRow(&spec, 1);
  return spec;
}

// The job whose first batch has what is wanted; sets title and row of *task.
StatusOr<JobToTake> JobToPeek(const SpecFile& file, const BrokerCall& call,
                              PeekTask* task) {
  const PeekOptions& options = task->options;
  const DatasetIndex& index = task->index;
  JobToTake job = {file.path, "", UniqueJobName("peek")};
  const uint64_t epoch = options.epoch.value_or(0);
  if (!options.row && !options.record) {
    if (options.epoch) {
      job.state = JsonLine(FieldOf(FieldOf(index.answer, "row"), "state"));
    }
    return job;
  }
  OrderedJson spec = OrderedJson::parse(index.text);
  Json state = FieldOf(FieldOf(index.answer, "row"), "state");
  if (options.record) {
    PENSTOCK_ASSIGN_OR_RETURN(spec, SpecOfRecord(index, file, *options.record));
    task->title = Format("record {}, as epoch 0 has it", *options.record);
  } else {
    task->row = FieldOf(index.answer, "row");
    task->title =
        Format("row {} of epoch {}, row {} of step {}", *options.row, epoch,
               CountField(task->row, "row_of_step").value_or(0),
               CountField(task->row, "step").value_or(0));
  }
  if (options.record || !HasOwnSteps(spec)) {
    if (options.row) MakeOneRow(&spec, index.rows_per_epoch);
    SpecFile one = file;
    one.name = "";
    one.base = "/";
    one.text = spec.dump();
    auto indexed = IndexDataset(
        call, one, 1, {{"epoch", epoch}, {"row", options.row.value_or(0)}});
    if (!indexed.ok()) return indexed.status().Prepend(file.name);
    task->row = FieldOf(indexed->answer, "row");
    state = FieldOf(task->row, "state");
  }
  job.dataset = "";
  job.spec = spec.dump();
  job.state = JsonLine(state);
  if (job.spec.size() > kSpecBytesMax) {
    return ResourceExhaustedError(
        "'{}', with all keys and whole paths, is longer than the {} KiB of a "
        "job's spec",
        file.name, kSpecBytesMax / 1024);
  }
  return job;
}

StatusOr<int> Peek(const PeekOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.spec));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string out, OutputFile(options.out));
  const bool one_row = options.row || options.record;
  if (!options.npz.empty()) {
    if (!one_row) {
      return InvalidArgumentError(
          "--npz writes one row: name it with --row or --record");
    }
    PENSTOCK_RETURN_IF_ERROR(
        CheckReplaces(options.npz, "PK\x03\x04", ".npz file"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateBroker> broker,
                            PrivateBroker::Start(options.broker));
  Json place = Json::object();
  if (options.epoch || options.row) {
    place = {{"epoch", options.epoch.value_or(0)},
             {"row", options.row.value_or(0)}};
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      const DatasetIndex index,
      IndexDataset(broker->AsCall(), file, options.world_size, place));
  PENSTOCK_RETURN_IF_ERROR(index.CheckHasRows(file));
  PeekTask task{options, index, out, Format("{}.{}.tmp", out, getpid())};
  PENSTOCK_ASSIGN_OR_RETURN(const JobToTake job,
                            JobToPeek(file, broker->AsCall(), &task));
  const auto shown = WithFirstBatch(
      broker.get(), job,
      [&](const ElementSpec& features,
          const penstock_batch* batch) -> StatusOr<std::string> {
        if (one_row) {
          const std::string why =
              WhyNot(broker->socket(), job.name,
                     CountField(task.row, "sample").value_or(0));
          PENSTOCK_RETURN_IF_ERROR(ShowRow(task, features, batch, why));
        } else {
          PENSTOCK_RETURN_IF_ERROR(ShowBatch(task, features, batch));
        }
        return std::string();
      });
  unlink(task.temporary.c_str());  // exists only after an interrupt
  PENSTOCK_RETURN_IF_ERROR(shown.status());
  return 0;
}

}  // namespace

Subcommand AddPeek(Command parent) {
  Command peek = parent.AddCommand(
      "peek", "Show one batch: a PNG of its pictures, and its values");
  const auto options = std::make_shared<PeekOptions>();
  peek.AddOption("SPEC.yaml", &options->spec, "Spec of the dataset").Required();
  const CommandOption out =
      peek.AddOption("--out", &options->out, "The PNG to write")
          .Type("FILE.png")
          .ShowDefault();
  const CommandOption feature =
      peek.AddOption("--feature", &options->feature,
                     "The feature to draw (default: image, else the first "
                     "picture, and those of its size)")
          .Type("NAME");
  peek.AddOption("--rows", &options->rows, "Rows to show")
      .Type("N")
      .ShowDefault()
      .InRange(1, 1 << 20);
  const CommandOption epoch =
      peek.AddOption("--epoch", &options->epoch, "The epoch, from 0").Type("E");
  const CommandOption row =
      peek.AddOption("--row", &options->row,
                     "One row, counted from 0 in the epoch's order over all "
                     "ranks: step x global batch + row of the batch")
          .Type("N");
  peek.AddOption("--record", &options->record,
                 "One record of the source, whatever `select` says")
      .Type("N")
      .Excludes(epoch)
      .Excludes(row);
  peek.AddOption("--npz", &options->npz,
                 "Write the row's arrays, bit for bit, for numpy.load")
      .Type("FILE.npz");
  peek.AddOption("--ranks,--world-size", &options->world_size,
                 "Ranks of the job: with batch.per_rank and shard: file its "
                 "order depends on it")
      .Type("N")
      .ShowDefault()
      .InRange(1, kRanksMax);
  peek.AddFlag("--text", &options->text, "Print values only")
      .Excludes(out)
      .Excludes(feature);
  options->broker.AddTo(peek);
  peek.SetFooter(R"(
The batch is the first of the epoch, as rank 0 of 1 gets it. A row is made
again as the epoch has it, with the same random numbers, without the rows
before it. Weights of a mix that were changed while a job ran do not count.
Pictures that are not uint8 are scaled, each channel from its least to
its greatest value in the rows drawn. The feature boxes is drawn as
frames of corners. Text in UTF-8 is shown as text.

Examples:
  penstock peek train.yaml --out first-batch.png
  penstock peek train.yaml --text --rows 10
  penstock peek train.yaml --epoch 3 --row 81920 --npz row.npz)");
  return {peek, [options, out] {
            options->out_given = out.given();
            return Peek(*options);
          }};
}

}  // namespace penstock
