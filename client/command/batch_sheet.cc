#include "client/command/batch_sheet.h"

#include <algorithm>
#include <cmath>

#include "client/private_broker/table.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr int64_t kValuesShown = 6;  // of each row of a feature
constexpr size_t kTextShown = 60;    // bytes of each row of a text
// Smaller matrices count as pictures only when they are named.
constexpr int64_t kPictureSideMin = 4;

std::string ValueText(const Feature& feature, const void* data,
                      uint64_t index) {
  if (feature.dtype == DType::kInt64) {  // double cannot hold them all
    return std::to_string(static_cast<const int64_t*>(data)[index]);
  }
  return Format("{:.6g}", ValueAt(feature.dtype, data, index));
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
// length: how much of its first dimension is the row's.
std::string RowText(const Feature& feature, const void* data, uint64_t row,
                    std::optional<uint64_t> length,
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
  const uint64_t own =
      length ? values / static_cast<uint64_t>(feature.shape[0]) * *length
             : values;
  const uint64_t shown = std::min<uint64_t>(own, kValuesShown);
  for (uint64_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "" : ", ") + ValueText(feature, data, row * values + i);
  }
  return "[" + text + (shown < own ? ", ...]" : "]");
}

}  // namespace

StatusOr<std::vector<size_t>> FeaturesToDraw(const ElementSpec& features,
                                             const std::string& named) {
  std::string names;
  std::vector<size_t> pictures;
  for (size_t i = 0; i < features.size(); ++i) {
    const std::optional<PictureLayout> layout = PictureLayoutOf(features[i]);
    if (features[i].name == named) {
      if (layout) return std::vector<size_t>{i};
      return InvalidArgumentError(
          "feature {} is not a picture: a picture is [height, width], with 1 "
          "or 3 channels before or after; --text prints its values",
          features[i].ToString());
    }
    names += (names.empty() ? "" : ", ") + features[i].name;
    const bool drawable = layout && !LengthOf(features, features[i]) &&
                          layout->height >= kPictureSideMin &&
                          layout->width >= kPictureSideMin;
    if (!drawable) continue;
    const auto place =
        features[i].name == "image" ? pictures.begin() : pictures.end();
    pictures.insert(place, i);
  }
  if (!named.empty()) {
    return NotFoundError("there is no feature '{}'; there are: {}", named,
                         names);
  }
  if (pictures.empty()) return pictures;
  const PictureLayout first = *PictureLayoutOf(features[pictures[0]]);
  std::erase_if(pictures, [&](size_t i) {
    const PictureLayout layout = *PictureLayoutOf(features[i]);
    return layout.height != first.height || layout.width != first.width;
  });
  return pictures;
}

namespace {

DrawnBoxes BoxesOf(const ElementSpec& features, const penstock_batch* batch) {
  for (size_t i = 0; i < features.size(); ++i) {
    const Feature& each = features[i];
    if (each.name != "boxes" || each.dtype != DType::kFloat32 ||
        each.shape.size() != 2 || each.shape[1] != 4) {
      continue;
    }
    const auto data = [batch](size_t feature) {
      return penstock_batch_data(batch, static_cast<uint32_t>(feature));
    };
    DrawnBoxes boxes = {.data = static_cast<const float*>(data(i)),
                        .room = each.shape[0]};
    if (const std::optional<uint32_t> lengths = LengthOf(features, each)) {
      boxes.lengths = static_cast<const int64_t*>(data(*lengths));
    }
    return boxes;
  }
  return {};
}

}  // namespace

std::vector<DrawnFeature> Drawn(const ElementSpec& features,
                                const penstock_batch* batch,
                                const std::vector<size_t>& which) {
  std::vector<DrawnFeature> drawn;
  for (const size_t i : which) {
    drawn.push_back({features[i], *PictureLayoutOf(features[i]),
                     penstock_batch_data(batch, static_cast<uint32_t>(i))});
  }
  if (!drawn.empty()) drawn[0].boxes = BoxesOf(features, batch);
  return drawn;
}

std::string RowsTable(const ElementSpec& features, const penstock_batch* batch,
                      uint64_t rows, const std::vector<size_t>& left_out,
                      const std::vector<std::string>& class_names) {
  const auto is_left_out = [&left_out](size_t f) {
    return std::find(left_out.begin(), left_out.end(), f) != left_out.end();
  };
  std::vector<std::string> headings = {">row", ">sample"};
  for (size_t f = 0; f < features.size(); ++f) {
    if (!is_left_out(f)) headings.push_back(features[f].name);
  }
  Table table(headings);
  const int64_t* ids = penstock_batch_ids(batch);
  for (uint64_t row = 0; row < rows; ++row) {
    std::vector<std::string> cells = {
        std::to_string(row),
        ids[row] == PENSTOCK_PADDING_ID ? "padding" : std::to_string(ids[row])};
    for (size_t f = 0; f < features.size(); ++f) {
      if (is_left_out(f)) continue;
      const void* data = penstock_batch_data(batch, static_cast<uint32_t>(f));
      std::optional<std::string> text;
      std::optional<uint64_t> length;
      if (const std::optional<uint32_t> lengths =
              LengthOf(features, features[f])) {
        const auto found = static_cast<const int64_t*>(
            penstock_batch_data(batch, *lengths))[row];
        length = std::min(static_cast<uint64_t>(found),
                          static_cast<uint64_t>(features[f].shape[0]));
        if (MayBeText(features[f])) {
          text = Utf8Text(std::string_view(
              static_cast<const char*>(data) + row * features[f].RowBytes(),
              *length));
        }
      }
      cells.push_back(
          text ? *text : RowText(features[f], data, row, length, class_names));
    }
    table.AddRow(cells);
  }
  return table.ToString();
}

}  // namespace penstock
