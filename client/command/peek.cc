// penstock peek: shows one batch to a person.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "client/command/contact_sheet.h"
#include "client/command/first_batch.h"
#include "client/command/output_file.h"
#include "client/command/private_broker.h"
#include "client/command/spec_file.h"
#include "client/command/subcommand.h"
#include "client/command/table.h"
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
  const DatasetIndex& index;
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

// The feature that says how many bytes of a text count: NAME_bytes of NAME, and
// of lines (text_lines) bytes of text. nullopt: the feature is no text.
std::optional<size_t> LengthOf(const ElementSpec& features, size_t text) {
  const Feature& feature = features[text];
  if (feature.dtype != DType::kUint8 || feature.shape.size() != 1) {
    return std::nullopt;
  }
  for (size_t i = 0; i < features.size(); ++i) {
    const std::string& name = features[i].name;
    if (features[i].dtype == DType::kInt64 && features[i].shape.empty() &&
        (name == feature.name + "_bytes" ||
         (name == "bytes" && feature.name == "text"))) {
      return i;
    }
  }
  return std::nullopt;
}

// The beginning of a character of several bytes, as a text that was cut ends.
bool IsCutCharacter(std::string_view text) {
  const auto is_continuation = [](char c) { return (c & 0xC0) == 0x80; };
  return text.size() < 4 && (text[0] & 0xC0) == 0xC0 &&
         std::all_of(text.begin() + 1, text.end(), is_continuation);
}

// "'the text'", shortened at the end of a character; nullopt: no UTF-8.
std::optional<std::string> Utf8Text(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t bytes = Utf8Bytes(text, end);
    if (bytes == 0 && !IsCutCharacter(text.substr(end))) return std::nullopt;
    if (bytes == 0 || end + bytes > kTextShown) break;
    end += bytes;
  }
  if (end == 0 && !text.empty()) return std::nullopt;
  return "'" + Printable(text.substr(0, end)) +
         (end == text.size() ? "'" : "...'");
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
  const int64_t* ids = penstock_batch_ids(batch);
  for (uint64_t row = 0; row < rows; ++row) {
    std::vector<std::string> cells = {
        std::to_string(row),
        ids[row] == PENSTOCK_PADDING_ID ? "padding" : std::to_string(ids[row])};
    for (size_t f = 0; f < features.size(); ++f) {
      if (is_drawn(f)) continue;
      const void* data = penstock_batch_data(batch, static_cast<uint32_t>(f));
      std::optional<std::string> text;
      if (const std::optional<size_t> length = LengthOf(features, f)) {
        const uint64_t room = features[f].RowBytes();
        const auto bytes = static_cast<const int64_t*>(
            penstock_batch_data(batch, static_cast<uint32_t>(*length)))[row];
        text = Utf8Text(
            std::string_view(static_cast<const char*>(data) + row * room,
                             std::min(static_cast<uint64_t>(bytes), room)));
      }
      cells.push_back(
          text ? *text
               : RowText(features[f], data, row, task.index.class_names));
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
      "its greatest value in the rows drawn. Text in UTF-8 is shown as text.\n"
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
