#include "client/command/batch_sheet.h"

#include <algorithm>
#include <cmath>

#include "client/private_broker/table.h"
#include "common/printable.h"

namespace penstock {
namespace {

// How much is shown of a feature in a row: values, bytes of a text.
struct CellRoom {
  uint64_t values;
  size_t text_bytes;
};
constexpr CellRoom kInTable = {6, 60};
constexpr CellRoom kOfOneRow = {64, 2000};
// Smaller matrices count as pictures only when they are named.
constexpr int64_t kPictureSideMin = 4;
// A list of rows of fewer numbers is no spectrogram: boxes have 4 or 5.
constexpr int64_t kSpectrogramWidthMin = 8;

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
std::optional<std::string> Utf8Text(std::string_view text, size_t bytes_max) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t bytes = Utf8Bytes(text, end);
    if (bytes == 0 && !IsCutCharacter(text.substr(end))) return std::nullopt;
    if (bytes == 0 || end + bytes > bytes_max) break;
    end += bytes;
  }
  if (end == 0 && !text.empty()) return std::nullopt;
  return "'" + Printable(text.substr(0, end)) +
         (end == text.size() ? "'" : "...'");
}

// One row of a feature as a cell: "7 (boot)", "[0.1, 0.2]", "[1, 2, ...]".
// length: how much of its first dimension is the row's.
std::string RowText(const Feature& feature, const void* data, uint64_t row,
                    std::optional<uint64_t> length, uint64_t values_max,
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
  const uint64_t shown = std::min(own, values_max);
  for (uint64_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "" : ", ") + ValueText(feature, data, row * values + i);
  }
  return "[" + text + (shown < own ? ", ...]" : "]");
}

// feature: a list.
bool IsSpectrogram(const Feature& feature) {
  const DType dtype = feature.dtype;
  const bool is_float = dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
                        dtype == DType::kFloat32 || dtype == DType::kFloat64;
  return is_float && feature.shape.size() == 2 &&
         feature.shape[1] >= kSpectrogramWidthMin;
}

std::string CellText(const ElementSpec& features, const penstock_batch* batch,
                     uint64_t row, size_t f, const CellRoom& room,
                     const std::vector<std::string>& class_names) {
  const void* data = penstock_batch_data(batch, static_cast<uint32_t>(f));
  std::optional<uint64_t> length;
  if (const std::optional<uint32_t> lengths = LengthOf(features, features[f])) {
    const auto found =
        static_cast<const int64_t*>(penstock_batch_data(batch, *lengths))[row];
    length = std::min(static_cast<uint64_t>(found),
                      static_cast<uint64_t>(features[f].shape[0]));
    if (MayBeText(features[f])) {
      std::optional<std::string> text =
          Utf8Text(std::string_view(static_cast<const char*>(data) +
                                        row * features[f].RowBytes(),
                                    *length),
                   room.text_bytes);
      if (text) return *std::move(text);
    }
  }
  return RowText(features[f], data, row, length, room.values, class_names);
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
    const bool drawable =
        layout && layout->height >= kPictureSideMin &&
        layout->width >= kPictureSideMin &&
        (!LengthOf(features, features[i]) || IsSpectrogram(features[i]));
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

DrawnBoxes BoxesOf(const ElementSpec& features, const penstock_batch* batch,
                   uint64_t first) {
  for (size_t i = 0; i < features.size(); ++i) {
    const Feature& each = features[i];
    if (each.name != "boxes" || each.dtype != DType::kFloat32 ||
        each.shape.size() != 2 || each.shape[1] != 4) {
      continue;
    }
    const auto data = [batch](size_t feature) {
      return penstock_batch_data(batch, static_cast<uint32_t>(feature));
    };
    const auto room = static_cast<uint64_t>(each.shape[0]);
    DrawnBoxes boxes = {
        .data = static_cast<const float*>(data(i)) + first * room * 4,
        .room = each.shape[0]};
    if (const std::optional<uint32_t> lengths = LengthOf(features, each)) {
      boxes.lengths = static_cast<const int64_t*>(data(*lengths)) + first;
    }
    return boxes;
  }
  return {};
}

}  // namespace

std::vector<DrawnFeature> Drawn(const ElementSpec& features,
                                const penstock_batch* batch,
                                const std::vector<size_t>& which,
                                uint64_t first) {
  std::vector<DrawnFeature> drawn;
  for (const size_t i : which) {
    const auto* const rows = static_cast<const std::byte*>(
        penstock_batch_data(batch, static_cast<uint32_t>(i)));
    DrawnFeature& each = drawn.emplace_back(
        DrawnFeature{features[i], *PictureLayoutOf(features[i]),
                     rows + first * features[i].RowBytes()});
    const std::optional<uint32_t> lengths = LengthOf(features, features[i]);
    if (lengths && !each.layout.channels_first) {
      each.lengths =
          static_cast<const int64_t*>(penstock_batch_data(batch, *lengths)) +
          first;
    }
  }
  if (!drawn.empty()) drawn[0].boxes = BoxesOf(features, batch, first);
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
      cells.push_back(CellText(features, batch, row, f, kInTable, class_names));
    }
    table.AddRow(cells);
  }
  return table.ToString();
}

std::string RowTable(const ElementSpec& features, const penstock_batch* batch,
                     uint64_t row,
                     const std::vector<std::string>& class_names) {
  Table table({"feature", "dtype", "shape", "values"});
  for (size_t f = 0; f < features.size(); ++f) {
    table.AddRow({features[f].name, std::string(DTypeName(features[f].dtype)),
                  "[" + JoinText(features[f].shape, ", ") + "]",
                  CellText(features, batch, row, f, kOfOneRow, class_names)});
  }
  return table.ToString();
}

}  // namespace penstock
