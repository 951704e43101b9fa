// penstock peek: shows one batch to a person.
#include <unistd.h>

#include <algorithm>

#include "client/command/batch_sheet.h"
#include "client/command/contact_sheet.h"
#include "client/command/first_batch.h"
#include "client/command/output_file.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/private_broker/private_broker.h"
#include "common/command_line.h"
#include "common/quantity.h"

namespace penstock {
namespace {

struct PeekOptions {
  std::string spec;
  std::string out = "sheet.png";
  bool out_given = false;
  std::string feature;
  uint64_t rows = 64;
  bool text = false;
  PrivateBrokerOptions broker;
};

struct PeekTask {
  const PeekOptions& options;
  const DatasetIndex& index;
  std::string out;        // the file of options.out
  std::string temporary;  // in the same folder
};

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
    return FailedPreconditionError(
        "no feature is a picture, so there is nothing to write to '{}': omit "
        "--out, or name a feature of [height, width] with --feature",
        task.options.out);
  } else if (!task.options.text) {
    Print(stdout, "no feature is a picture; no PNG written\n\n");
  }
  Print(stdout, "{}",
        RowsTable(features, batch, rows, drawn, task.index.class_names));
  return OkStatus();
}

StatusOr<int> Peek(const PeekOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.spec));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string out, OutputFile(options.out));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateBroker> broker,
                            PrivateBroker::Start(options.broker));
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetIndex index,
                            IndexDataset(broker->AsCall(), file, 1));
  PENSTOCK_RETURN_IF_ERROR(index.CheckHasRows(file));
  const PeekTask task{options, index, out, Format("{}.{}.tmp", out, getpid())};
  const auto shown = WithFirstBatch(
      broker.get(), {file.path, "", UniqueJobName("peek")},
      [&task](const ElementSpec& features,
              const penstock_batch* batch) -> StatusOr<std::string> {
        PENSTOCK_RETURN_IF_ERROR(ShowBatch(task, features, batch));
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
  peek.AddFlag("--text", &options->text, "Print values only")
      .Excludes(out)
      .Excludes(feature);
  options->broker.AddTo(peek);
  peek.SetFooter(R"(
The batch is the first of the first epoch, as rank 0 of 1 gets it.
Pictures that are not uint8 are scaled, each channel from its least to
its greatest value in the rows drawn. The feature boxes is drawn as
frames of corners. Text in UTF-8 is shown as text.

Examples:
  penstock peek train.yaml --out first-batch.png
  penstock peek train.yaml --text --rows 10)");
  return {peek, [options, out] {
            options->out_given = out.given();
            return Peek(*options);
          }};
}

}  // namespace penstock
