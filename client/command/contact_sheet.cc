#include "client/command/contact_sheet.h"

#include <png.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>

namespace penstock {
namespace {

constexpr uint8_t kBackground = 32;
constexpr uint8_t kOneValue = 128;
// Those of a picture's boxes in turn.
constexpr uint8_t kFrames[][3] = {{255, 64, 64}, {64, 220, 64}, {96, 128, 255},
                                  {255, 208, 0}, {255, 0, 255}, {0, 224, 224}};

template <typename T>
T Load(const void* data, uint64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T),
              sizeof(T));
  return value;
}

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits.
double FromHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const double fraction = bits & 0x3FF;
  double value;
  if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else if (exponent == 31) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else {
    value = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

// Index of a value in its row.
uint64_t ValueIndex(const PictureLayout& layout, int64_t y, int64_t x,
                    int64_t c) {
  return layout.channels_first ? (c * layout.height + y) * layout.width + x
                               : (y * layout.width + x) * layout.channels + c;
}

// Maps a channel's values to 0-255.
struct Stretch {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();

  void Include(double value) {
    if (!std::isfinite(value)) return;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  uint8_t operator()(double value) const {
    if (!std::isfinite(value)) return 0;
    if (greatest <= least) return kOneValue;
    // Halves: the difference of two doubles may overflow.
    const double part = (value / 2 - least / 2) / (greatest / 2 - least / 2);
    return static_cast<uint8_t>(std::lround(part * 255));
  }
};

// Calls visit(row, y, x, channel, value) for all values of the first rows.
template <typename Visit>
void ForEachValue(const DrawnFeature& drawn, uint64_t rows,
                  const Visit& visit) {
  const PictureLayout& layout = drawn.layout;
  const uint64_t row_values = layout.height * layout.width * layout.channels;
  for (uint64_t row = 0; row < rows; ++row) {
    const int64_t height =
        drawn.lengths == nullptr
            ? layout.height
            : std::clamp<int64_t>(drawn.lengths[row], 0, layout.height);
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < layout.width; ++x) {
        for (int64_t c = 0; c < layout.channels; ++c) {
          visit(row, y, x, c,
                ValueAt(drawn.feature.dtype, drawn.data,
                        row * row_values + ValueIndex(layout, y, x, c)));
        }
      }
    }
  }
}

// Draws the frames of a row's boxes, whose picture is at left, top.
void DrawFrames(const DrawnFeature& drawn, uint64_t row, int64_t left,
                int64_t top, ContactSheet* sheet) {
  const DrawnBoxes& boxes = drawn.boxes;
  const auto [height, width, channels, channels_first] = drawn.layout;
  const int64_t count =
      boxes.lengths == nullptr
          ? boxes.room
          : std::clamp<int64_t>(boxes.lengths[row], 0, boxes.room);
  // A pixel at or beside the picture; NaN is beside it.
  const auto pixel = [](float place, int64_t side) {
    const auto end = static_cast<float>(side);
    return place >= 0 ? static_cast<int64_t>(std::min(place, end))
                      : int64_t{-1};
  };
  for (int64_t i = 0; i < count; ++i) {
    const float* const box =
        boxes.data + (static_cast<int64_t>(row) * boxes.room + i) * 4;
    const int64_t x[] = {pixel(box[0], width),
                         pixel(std::ceil(box[2]) - 1, width)};
    const int64_t y[] = {pixel(box[1], height),
                         pixel(std::ceil(box[3]) - 1, height)};
    const auto put = [&](int64_t at_y, int64_t at_x) {
      if (at_y < 0 || at_y >= height || at_x < 0 || at_x >= width) return;
      std::copy_n(kFrames[i % std::ssize(kFrames)], 3,
                  &sheet->pixels[((top + at_y) * sheet->width + left + at_x) *
                                 sheet->channels]);
    };
    for (int64_t at = x[0]; at <= x[1]; ++at) {
      put(y[0], at);
      put(y[1], at);
    }
    for (int64_t at = y[0]; at <= y[1]; ++at) {
      put(at, x[0]);
      put(at, x[1]);
    }
  }
}

}  // namespace

std::optional<PictureLayout> PictureLayoutOf(const Feature& feature) {
  const std::vector<int64_t>& s = feature.shape;
  const auto is_channels = [](int64_t n) { return n == 1 || n == 3; };
  std::optional<PictureLayout> layout;
  if (s.size() == 2) {
    layout = {s[0], s[1], 1, false};
  } else if (s.size() == 3 && is_channels(s[2])) {
    layout = {s[0], s[1], s[2], false};
  } else if (s.size() == 3 && is_channels(s[0])) {
    layout = {s[1], s[2], s[0], true};
  }
  if (!layout || layout->height < 1 || layout->width < 1 ||
      layout->height > kSheetPixelsMax || layout->width > kSheetPixelsMax) {
    return std::nullopt;
  }
  return layout;
}

double ValueAt(DType dtype, const void* data, uint64_t index) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUint8:
      return Load<uint8_t>(data, index);
    case DType::kInt8:
      return Load<int8_t>(data, index);
    case DType::kInt16:
      return Load<int16_t>(data, index);
    case DType::kInt32:
      return Load<int32_t>(data, index);
    case DType::kInt64:
      return static_cast<double>(Load<int64_t>(data, index));
    case DType::kFloat16:
      return FromHalf(Load<uint16_t>(data, index));
    case DType::kBFloat16:
      return std::bit_cast<float>(
          static_cast<uint32_t>(Load<uint16_t>(data, index)) << 16);
    case DType::kFloat32:
      return Load<float>(data, index);
    case DType::kFloat64:
      return Load<double>(data, index);
  }
  return 0;
}

ContactSheet DrawContactSheet(std::span<const DrawnFeature> features,
                              uint64_t rows) {
  ContactSheet sheet;
  int64_t cell_height = 0;
  int64_t cell_width = 0;
  for (const DrawnFeature& each : features) {
    cell_height = std::max(cell_height, each.layout.height + kSheetGapPixels);
    cell_width += each.layout.width + kSheetGapPixels;
    sheet.channels =
        std::max({sheet.channels, each.layout.channels,
                  each.boxes.data == nullptr ? int64_t{1} : int64_t{3}});
  }
  const uint64_t fit = static_cast<uint64_t>(
      std::max<int64_t>(1, kSheetPixelsMax / cell_height / cell_width));
  rows = std::min(rows, fit);
  sheet.rows = rows;
  if (rows == 0) return sheet;
  const double square =
      std::sqrt(static_cast<double>(rows) * static_cast<double>(cell_height) /
                static_cast<double>(cell_width));
  const int64_t columns = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(square)), 1, static_cast<int64_t>(rows));
  const int64_t lines = (static_cast<int64_t>(rows) + columns - 1) / columns;
  sheet.width = columns * cell_width + kSheetGapPixels;
  sheet.height = lines * cell_height + kSheetGapPixels;
  sheet.pixels.assign(sheet.width * sheet.height * sheet.channels, kBackground);

  int64_t left = kSheetGapPixels;  // of the feature in its cell
  for (const DrawnFeature& each : features) {
    const bool is_mask = &each != features.data() && each.layout.channels == 1;
    const bool as_is = each.feature.dtype == DType::kUint8 && !is_mask;
    std::vector<Stretch> stretch(each.layout.channels);
    if (!as_is) {
      ForEachValue(each, rows,
                   [&](uint64_t, int64_t, int64_t, int64_t c, double value) {
                     stretch[c].Include(value);
                   });
    }
    ForEachValue(
        each, rows,
        [&](uint64_t row, int64_t y, int64_t x, int64_t c, double value) {
          const int64_t column = static_cast<int64_t>(row) % columns;
          const int64_t line = static_cast<int64_t>(row) / columns;
          const int64_t sheet_y = kSheetGapPixels + line * cell_height + y;
          const int64_t sheet_x = left + column * cell_width + x;
          uint8_t* const pixel =
              &sheet.pixels[(sheet_y * sheet.width + sheet_x) * sheet.channels];
          const uint8_t shown =
              as_is ? static_cast<uint8_t>(value) : stretch[c](value);
          if (each.layout.channels == sheet.channels) {
            pixel[c] = shown;
          } else {
            std::fill_n(pixel, sheet.channels, shown);
          }
        });
    for (uint64_t row = 0; each.boxes.data != nullptr && row < rows; ++row) {
      const auto cell = static_cast<int64_t>(row);
      DrawFrames(each, row, left + cell % columns * cell_width,
                 kSheetGapPixels + cell / columns * cell_height, &sheet);
    }
    left += each.layout.width + kSheetGapPixels;
  }
  return sheet;
}

Status WritePng(const ContactSheet& sheet, const std::string& path,
                const std::string& temporary) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(
      std::fopen(temporary.c_str(), "wbe"),
      [](FILE* f) { return f == nullptr ? 0 : std::fclose(f); });
  if (file == nullptr) return ErrnoError(errno, "cannot write '" + path + "'");
  // libpng's simplified interface returns errors as text, without longjmp.
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(sheet.width);
  image.height = static_cast<png_uint_32>(sheet.height);
  image.format = sheet.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  Status status;
  if (png_image_write_to_stdio(&image, file.get(), 0, sheet.pixels.data(), 0,
                               nullptr) == 0) {
    status = InternalError("cannot write '{}': {}", path, image.message);
  } else if (std::fflush(file.get()) != 0) {
    status = ErrnoError(errno, "cannot write '" + path + "'");
  } else if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoError(errno, "cannot write '" + path + "'");
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace penstock
