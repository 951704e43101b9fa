// penstock peek: shows one batch to a person.
//
// A forked process (rank 0 of 1) takes the batch and the parent only waits, so
// that Ctrl-C ends it at any point.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "client/command/contact_sheet.h"
#include "client/command/interrupt.h"
#include "client/command/output_file.h"
#include "client/command/private_broker.h"
#include "client/command/process.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/command/table.h"
#include "client/penstock.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr int64_t kValuesShown = 6;  // of each row of a feature
constexpr size_t kTextShown = 60;    // bytes of each row of a text
// Smaller matrices count as pictures only when --feature names them.
constexpr int64_t kPictureSideMin = 4;

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
  const SpecFile& file;
  const DatasetIndex& index;
  std::string socket;
  std::string out;        // the file of options.out
  std::string temporary;  // in the same folder
};

// The features to draw: the one that is named, or a picture and those of its
// size, such as its mask. Empty: none is a picture.
StatusOr<std::vector<size_t>> FeaturesToDraw(const PeekOptions& options,
                                             const ElementSpec& features) {
  if (options.text) return std::vector<size_t>();
  std::string names;
  std::vector<size_t> pictures;
  for (size_t i = 0; i < features.size(); ++i) {
    const std::optional<PictureLayout> layout = PictureLayoutOf(features[i]);
    if (features[i].name == options.feature) {
      if (layout) return std::vector<size_t>{i};
      return InvalidArgumentError(
          "feature {} is not a picture: a picture is [height, width], with 1 "
          "or 3 channels before or after; --text prints its values",
          features[i].ToString());
    }
    names += (names.empty() ? "" : ", ") + features[i].name;
    const bool drawable = layout && layout->height >= kPictureSideMin &&
                          layout->width >= kPictureSideMin;
    if (!drawable) continue;
    const auto place =
        features[i].name == "image" ? pictures.begin() : pictures.end();
    pictures.insert(place, i);
  }
  if (!options.feature.empty()) {
    return NotFoundError("there is no feature '{}'; there are: {}",
                         options.feature, names);
  }
  if (pictures.empty()) return pictures;
  const PictureLayout first = *PictureLayoutOf(features[pictures[0]]);
  std::erase_if(pictures, [&](size_t i) {
    const PictureLayout layout = *PictureLayoutOf(features[i]);
    return layout.height != first.height || layout.width != first.width;
  });
  return pictures;
}

std::string ValueText(const Feature& feature, const void* data,
                      uint64_t index) {
  if (feature.dtype == DType::kInt64) {  // double cannot hold them all
    return std::to_string(static_cast<const int64_t*>(data)[index]);
  }
  return Format("{:.6g}", ValueAt(feature.dtype, data, index));
}

// A row of bytes without the zeros that fill it: "the text", shortened at the
// end of a character.
std::string LineText(const char* bytes, size_t size) {
  std::string_view text(bytes, size);
  text = text.substr(0, text.find_last_not_of('\0') + 1);
  const bool whole = text.size() <= kTextShown;
  if (!whole) {
    size_t end = kTextShown;
    while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
    text = text.substr(0, end);
  }
  return "'" + Printable(text) + (whole ? "'" : "...'");
}

// One row of a feature as a cell: "7 (boot)", "[0.1, 0.2]", "[1, 2, ...]".
std::string RowText(const Feature& feature, const void* data, uint64_t row,
                    const std::vector<std::string>& class_names) {
  const uint64_t values = feature.RowBytes() / DTypeBytes(feature.dtype);
  if (feature.shape.empty()) {
    std::string text = ValueText(feature, data, row);
    const double value = ValueAt(feature.dtype, data, row);
    if (feature.name == "label" && value >= 0 &&
        value < static_cast<double>(class_names.size()) &&
        value == std::floor(value)) {
      text += " (" + class_names[static_cast<size_t>(value)] + ")";
    }
    return text;
  }
  std::string text;
  const uint64_t shown = std::min<uint64_t>(values, kValuesShown);
  for (uint64_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "" : ", ") + ValueText(feature, data, row * values + i);
  }
  return "[" + text + (shown < values ? ", ...]" : "]");
}

void PrintRows(const PeekTask& task, const ElementSpec& features,
               const penstock_batch* batch, uint64_t rows,
               const std::vector<size_t>& drawn) {
  const auto is_drawn = [&drawn](size_t f) {
    return std::find(drawn.begin(), drawn.end(), f) != drawn.end();
  };
  std::vector<std::string> headings = {">row", ">sample"};
  for (size_t f = 0; f < features.size(); ++f) {
    if (!is_drawn(f)) headings.push_back(features[f].name);
  }
  Table table(headings);
  const bool of_lines = task.index.SourceOf("text_lines").is_object();
  const int64_t* ids = penstock_batch_ids(batch);
  for (uint64_t row = 0; row < rows; ++row) {
    std::vector<std::string> cells = {
        std::to_string(row),
        ids[row] == PENSTOCK_PADDING_ID ? "padding" : std::to_string(ids[row])};
    for (size_t f = 0; f < features.size(); ++f) {
      if (is_drawn(f)) continue;
      const void* data = penstock_batch_data(batch, static_cast<uint32_t>(f));
      if (of_lines && features[f].name == "text" &&
          features[f].dtype == DType::kUint8 && features[f].shape.size() == 1) {
        const uint64_t bytes = features[f].RowBytes();
        cells.push_back(LineText(static_cast<const char*>(data) + row * bytes,
                                 static_cast<size_t>(bytes)));
        continue;
      }
      cells.push_back(RowText(features[f], data, row, task.index.class_names));
    }
    table.AddRow(cells);
  }
  Print(stdout, "{}", table.ToString());
}

Status ShowBatch(const PeekTask& task, const ElementSpec& features,
                 const penstock_batch* batch) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<size_t> drawn,
                            FeaturesToDraw(task.options, features));
  const uint64_t all = penstock_batch_rows(batch);
  uint64_t rows = std::min(all, task.options.rows);
  if (!drawn.empty()) {
    std::vector<DrawnFeature> pictures;
    std::string names;
    for (const size_t i : drawn) {
      pictures.push_back(
          {features[i], *PictureLayoutOf(features[i]),
           penstock_batch_data(batch, static_cast<uint32_t>(i))});
      names += (names.empty() ? "feature " : " and ") + features[i].ToString();
    }
    const ContactSheet sheet = DrawContactSheet(pictures, rows);
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
  PrintRows(task, features, batch, rows, drawn);
  return OkStatus();
}

// Runs in the forked process.
Status TakeAndShow(const PeekTask& task) {
  const std::string job = UniqueJobName("peek");
  penstock_options options = PENSTOCK_OPTIONS_INIT;
  options.rank = 0;
  options.world_size = 1;
  options.local_world_size = 1;
  options.dataset = task.file.path.c_str();
  options.job = job.c_str();
  options.socket = task.socket.c_str();
  const auto error = [](int code) {
    return Status(static_cast<StatusCode>(-code), penstock_error());
  };
  penstock_reader* reader = nullptr;
  if (const int code = penstock_attach(&options, &reader);
      code != PENSTOCK_OK) {
    return error(code);
  }
  penstock_batch* batch = nullptr;
  const int code = penstock_next(reader, &batch);
  Status status;
  if (code == PENSTOCK_OK) {
    // Read the memory by the library's description of the features, which is of
    // this mapping, not by the broker's earlier answer.
    ElementSpec features;
    for (uint32_t i = 0; i < penstock_feature_count(reader); ++i) {
      penstock_feature feature;
      penstock_feature_at(reader, i, &feature);
      features.push_back({feature.name,
                          static_cast<DType>(feature.dtype),
                          {feature.shape, feature.shape + feature.dimensions}});
    }
    status = ShowBatch(task, features, batch);
    penstock_release(batch);
  } else if (code < 0) {
    status = error(code);
  } else {
    status = NotFoundError("'{}' has no batch: it has {}", task.file.name,
                           Counted(task.index.records, "record"));
  }
  penstock_detach(reader);
  return status;
}

StatusOr<int> Peek(const PeekOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const SpecFile file, ReadSpecFile(options.spec));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string out, OutputFile(options.out));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PrivateBroker> broker,
                            PrivateBroker::Start(options.broker));
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetIndex index,
                            IndexDataset(broker->AsCall(), file, 1));
  PENSTOCK_RETURN_IF_ERROR(index.CheckHasRows(file));
  const PeekTask task{options, file,
                      index,   broker->socket(),
                      out,     Format("{}.{}.tmp", out, getpid())};
  ProcessSpec spec;
  spec.body = [&task, &broker] {
    broker->ForgetInFork();
    const Status status = TakeAndShow(task);
    return ExitStatus(status.ok() ? StatusOr<int>(0) : status);
  };
  PENSTOCK_ASSIGN_OR_RETURN(Process process, Process::Start(spec));
  std::optional<ProcessExit> ended;
  Status tended;
  while (!(ended = process.Ended()) && InterruptSignal() == 0) {
    tended = broker->Tend(PrintError);
    if (!tended.ok()) break;
    std::vector<pollfd> entries = {{process.pidfd(), POLLIN, 0},
                                   {InterruptFd(), POLLIN, 0}};
    broker->AddTo(&entries);
    constexpr int kRound_ms = 100;  // for a restart that is due
    poll(entries.data(), entries.size(), kRound_ms);
  }
  process.Reap();
  unlink(task.temporary.c_str());  // exists only after an interrupt
  PENSTOCK_RETURN_IF_ERROR(CheckInterrupt());
  PENSTOCK_RETURN_IF_ERROR(tended);
  if (ended->signaled) {
    return InternalError("the process that took the batch {}",
                         ended->ToString());
  }
  return ended->number;
}

}  // namespace

Subcommand AddPeek(CLI::App& app) {
  CLI::App* const peek = app.add_subcommand(
      "peek", "Show one batch: a PNG of its pictures, and its values");
  const auto options = std::make_shared<PeekOptions>();
  peek->add_option("SPEC.yaml", options->spec, "Spec of the dataset")
      ->required();
  CLI::Option* const out =
      peek->add_option("--out", options->out, "The PNG to write")
          ->type_name("FILE.png")
          ->capture_default_str();
  CLI::Option* const feature =
      peek->add_option("--feature", options->feature,
                       "The feature to draw (default: image, else the first "
                       "picture, and those of its size)")
          ->type_name("NAME");
  peek->add_option("--rows", options->rows, "Rows to show")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20).description(""));
  peek->add_flag("--text", options->text, "Print values only")
      ->excludes(out)
      ->excludes(feature);
  options->broker.AddTo(peek);
  peek->footer(
      "The batch is the first of the first epoch, as rank 0 of 1 gets it.\n"
      "Pictures that are not uint8 are scaled, each channel from its least to\n"
      "its greatest value in the rows drawn. Lines of text are shown as text.\n"
      "\n"
      "Examples:\n"
      "  penstock peek train.yaml --out first-batch.png\n"
      "  penstock peek train.yaml --text --rows 10");
  return {peek, [options, out] {
            options->out_given = out->count() > 0;
            return Peek(*options);
          }};
}

}  // namespace penstock
