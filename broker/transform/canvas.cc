#include "broker/transform/canvas.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>

namespace penstock {
namespace {

// Pixels that are split into their channels at once.
constexpr int64_t kChunk = 256;

// The channels of some pixels, for loops that the compiler vectorises.
struct Chunk {
  uint8_t red[kChunk];
  uint8_t green[kChunk];
  uint8_t blue[kChunk];
};

ByteTable Identity() {
  ByteTable table;
  std::iota(table.begin(), table.end(), uint8_t{0});
  return table;
}

template <typename Formula>
ByteTable TableOf(const Formula& formula) {
  ByteTable table;
  for (int v = 0; v < 256; ++v) table[v] = static_cast<uint8_t>(formula(v));
  return table;
}

const uint8_t* Bytes(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}
uint8_t* Bytes(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }

// Pillow's convert("L"), of ITU-R 601-2.
int Gray(int red, int green, int blue) {
  return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

// Image.blend: trunc(from + factor * (to - from)), within 0 to 255.
uint8_t Blend(int from, int to, float factor) {
  const float value =
      static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<uint8_t>(
      static_cast<int>(std::min(std::max(value, 0.0f), 255.0f)));
}

// Image.convert("HSV"), the hue turned by `turn` of 256 parts, and back.
void TurnHues(Chunk* chunk, int64_t n, int turn) {
  for (int64_t i = 0; i < n; ++i) {
    const int red = chunk->red[i];
    const int green = chunk->green[i];
    const int blue = chunk->blue[i];
    const int value = std::max(red, std::max(green, blue));
    const int range = value - std::min(red, std::min(green, blue));
    if (range == 0) continue;
    const auto difference = static_cast<float>(range);
    const float from_red = static_cast<float>(value - red) / difference;
    const float from_green = static_cast<float>(value - green) / difference;
    const float from_blue = static_cast<float>(value - blue) / difference;
    float place;
    if (red == value) {
      place = from_blue - from_green;
    } else if (green == value) {
      place = static_cast<float>(2.0 + from_red - from_blue);
    } else {
      place = static_cast<float>(4.0 + from_green - from_red);
    }
    double around = place / 6.0 + 1.0;
    if (around >= 1.0) around -= 1.0;
    const int hue =
        (static_cast<int>(static_cast<double>(static_cast<float>(around)) *
                          255.0) +
         turn) &
        255;
    const float saturated = difference / static_cast<float>(value);
    const int saturation = static_cast<int>(saturated * 255.0);
    if (saturation == 0) {
      chunk->red[i] = chunk->green[i] = chunk->blue[i] =
          static_cast<uint8_t>(value);
      continue;
    }
    const int sixth = static_cast<int>(static_cast<float>(hue) * 6.0 / 255.0);
    const auto part = static_cast<float>(static_cast<float>(hue) * 6.0 / 255.0 -
                                         static_cast<float>(sixth));
    const auto strength =
        static_cast<float>(static_cast<float>(saturation) / 255.0);
    const auto of = [&](double factor) {
      return static_cast<uint8_t>(
          static_cast<int>(static_cast<float>(value) * factor + 0.5));
    };
    const uint8_t low = of(1.0 - strength);
    const uint8_t falling = of(1.0 - static_cast<double>(strength * part));
    const uint8_t rising = of(1.0 - strength * (1.0 - part));
    const auto high = static_cast<uint8_t>(value);
    const uint8_t colours[6][3] = {{high, rising, low}, {falling, high, low},
                                   {low, high, rising}, {low, falling, high},
                                   {rising, low, high}, {high, low, falling}};
    const uint8_t* const colour = colours[sixth % 6];
    chunk->red[i] = colour[0];
    chunk->green[i] = colour[1];
    chunk->blue[i] = colour[2];
  }
}

}  // namespace

void Canvas::Begin(const std::byte* in, const ImageSize& size, int64_t channels,
                   int64_t pixel_bytes) {
  assert(channels <= kChannelsMax);
  assert(channels == 0 || channels == pixel_bytes);
  size_ = size;
  channels_ = channels;
  pixel_bytes_ = pixel_bytes;
  current_ = in;
  has_tables_ = false;
}

void Canvas::MapChannel(int64_t channel, const ByteTable& table) {
  if (!has_tables_) {
    tables_.fill(Identity());
    has_tables_ = true;
  }
  for (uint8_t& value : tables_[channel]) value = table[value];
}

void Canvas::Map(const ByteTable& table) {
  for (int64_t c = 0; c < channels_; ++c) MapChannel(c, table);
}

void Canvas::Invert() {
  Map(TableOf([](int v) { return 255 - v; }));
}

void Canvas::Solarize(double threshold) {
  Map(TableOf([threshold](int v) { return v < threshold ? v : 255 - v; }));
}

void Canvas::SolarizeAdd(int64_t addition) {
  Map(TableOf([addition](int v) {
    return v < 128 ? std::min<int64_t>(v + addition, 255) : v;
  }));
}

void Canvas::Posterize(int64_t bits) {
  Map(TableOf([bits](int v) { return v & ~((1 << (8 - bits)) - 1); }));
}

void Canvas::Brightness(double factor) {
  Map(TableOf(
      [factor](int v) { return Blend(0, v, static_cast<float>(factor)); }));
}

void Canvas::Contrast(double factor) {
  if (is_mask()) return;
  const uint8_t* const pixels = Bytes(current_);
  const int64_t count = size_.height * size_.width;
  int64_t sum = 0;
  if (channels_ == 3) {
    // Gray is linear in each channel's value.
    const ByteTable same = Identity();
    int32_t parts[3][256];
    constexpr int32_t kWeights[3] = {19595, 38470, 7471};
    for (int c = 0; c < 3; ++c) {
      const ByteTable& table = has_tables_ ? tables_[c] : same;
      for (int v = 0; v < 256; ++v) parts[c][v] = table[v] * kWeights[c];
    }
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* const pixel = pixels + 3 * i;
      sum += (parts[0][pixel[0]] + parts[1][pixel[1]] + parts[2][pixel[2]] +
              0x8000) >>
             16;
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      sum += has_tables_ ? tables_[0][pixels[i]] : pixels[i];
    }
  }
  const int mean = static_cast<int>(
      static_cast<double>(sum) / static_cast<double>(count) + 0.5);
  Map(TableOf([mean, factor](int v) {
    return Blend(mean, v, static_cast<float>(factor));
  }));
}

void Canvas::Count(Histogram* histogram) const {
  *histogram = {};
  Histogram raw = {};
  const uint8_t* const pixels = Bytes(current_);
  const int64_t count = size_.height * size_.width;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < channels_; ++c) {
      ++raw[c][pixels[i * channels_ + c]];
    }
  }
  if (!has_tables_) {
    *histogram = raw;
    return;
  }
  for (int64_t c = 0; c < channels_; ++c) {
    for (int v = 0; v < 256; ++v) {
      (*histogram)[c][tables_[c][v]] += raw[c][v];
    }
  }
}

void Canvas::Equalize() {
  if (is_mask()) return;
  Histogram histogram;
  Count(&histogram);
  const int64_t pixels = size_.height * size_.width;
  for (int64_t c = 0; c < channels_; ++c) {
    const auto last = std::find_if(histogram[c].rbegin(), histogram[c].rend(),
                                   [](uint32_t count) { return count > 0; });
    const int64_t step = (pixels - *last) / 255;
    if (step == 0) continue;
    int64_t sum = step / 2;
    MapChannel(c, TableOf([&](int v) {
                 const int64_t before = sum;
                 sum += histogram[c][v];
                 return std::min<int64_t>(before / step, 255);
               }));
  }
}

void Canvas::AutoContrast() {
  if (is_mask()) return;
  Histogram histogram;
  Count(&histogram);
  for (int64_t c = 0; c < channels_; ++c) {
    const auto& counts = histogram[c];
    int low = 0;
    int high = 255;
    while (low < 255 && counts[low] == 0) ++low;
    while (high > 0 && counts[high] == 0) --high;
    if (high <= low) continue;
    const double scale = 255.0 / (high - low);
    const double offset = -low * scale;
    MapChannel(c, TableOf([&](int v) {
                 return std::clamp(static_cast<int>(v * scale + offset), 0,
                                   255);
               }));
  }
}

void Canvas::ApplyTables(std::byte* out) const {
  const uint8_t* const from = Bytes(current_);
  uint8_t* const to = Bytes(out);
  const int64_t pixels = size_.height * size_.width;
  if (channels_ == 3) {
    for (int64_t i = 0; i < 3 * pixels; i += 3) {
      to[i] = tables_[0][from[i]];
      to[i + 1] = tables_[1][from[i + 1]];
      to[i + 2] = tables_[2][from[i + 2]];
    }
    return;
  }
  for (int64_t i = 0; i < pixels; ++i) {
    for (int64_t c = 0; c < channels_; ++c) {
      to[i * channels_ + c] = tables_[c][from[i * channels_ + c]];
    }
  }
}

const std::byte* Canvas::Pixels() {
  if (has_tables_) {
    ApplyTables(Next());
    TakeNext();
  }
  return current_;
}

std::byte* Canvas::Next() {
  std::vector<std::byte>& buffer =
      buffers_[current_ == buffers_[0].data() ? 1 : 0];
  if (buffer.size() < bytes()) buffer.resize(bytes());
  return buffer.data();
}

void Canvas::TakeNext() {
  current_ = Next();
  has_tables_ = false;
}

void Canvas::Keep() {
  if (kept_.size() < bytes()) kept_.resize(bytes());
  Finish(kept_.data());
}

void Canvas::Restore() {
  current_ = kept_.data();
  has_tables_ = false;
}

void Canvas::Finish(std::byte* out) {
  if (has_tables_) return ApplyTables(out);
  std::memcpy(out, current_, bytes());
}

template <typename Change>
void Canvas::ChangeColours(const Change& change) {
  if (channels_ != 3) return;
  const uint8_t* from = Bytes(current_);
  uint8_t* to = Bytes(Next());
  const int64_t pixels = size_.height * size_.width;
  Chunk chunk = {};
  for (int64_t first = 0; first < pixels; first += kChunk) {
    const int64_t n = std::min(kChunk, pixels - first);
    if (has_tables_) {
      for (int64_t i = 0; i < n; ++i, from += 3) {
        chunk.red[i] = tables_[0][from[0]];
        chunk.green[i] = tables_[1][from[1]];
        chunk.blue[i] = tables_[2][from[2]];
      }
    } else {
      for (int64_t i = 0; i < n; ++i, from += 3) {
        chunk.red[i] = from[0];
        chunk.green[i] = from[1];
        chunk.blue[i] = from[2];
      }
    }
    change(&chunk, n);
    for (int64_t i = 0; i < n; ++i, to += 3) {
      to[0] = chunk.red[i];
      to[1] = chunk.green[i];
      to[2] = chunk.blue[i];
    }
  }
  TakeNext();
}

void Canvas::Saturation(double factor) {
  const auto blend = static_cast<float>(factor);
  ChangeColours([blend](Chunk* chunk, int64_t) {
    for (int64_t i = 0; i < kChunk; ++i) {
      const int gray = Gray(chunk->red[i], chunk->green[i], chunk->blue[i]);
      chunk->red[i] = Blend(gray, chunk->red[i], blend);
      chunk->green[i] = Blend(gray, chunk->green[i], blend);
      chunk->blue[i] = Blend(gray, chunk->blue[i], blend);
    }
  });
}

void Canvas::Grayscale() { Saturation(0); }

void Canvas::Hue(double turns) {
  const int turn = static_cast<int>(turns * 255) & 255;
  ChangeColours([turn](Chunk* chunk, int64_t n) { TurnHues(chunk, n, turn); });
}

void Canvas::Sharpness(double factor) {
  if (is_mask()) return;
  const int64_t height = size_.height;
  const int64_t width = size_.width;
  if (height < 3 || width < 3) return;
  const uint8_t* const from = Bytes(Pixels());
  uint8_t* const to = Bytes(Next());
  const int64_t c = channels_;
  const int64_t row_bytes = width * c;
  const auto blend = static_cast<float>(factor);
  std::memcpy(to, from, row_bytes);
  for (int64_t y = 1; y + 1 < height; ++y) {
    const uint8_t* const row = from + y * row_bytes;
    const uint8_t* const above = row - row_bytes;
    const uint8_t* const below = row + row_bytes;
    uint8_t* const out = to + y * row_bytes;
    std::memcpy(out, row, c);
    for (int64_t x = c; x < row_bytes - c; ++x) {
      const int sum = above[x - c] + above[x] + above[x + c] + row[x - c] +
                      5 * row[x] + row[x + c] + below[x - c] + below[x] +
                      below[x + c];
      // Rounded to the nearest; never a tie.
      const int smooth = (2 * sum + 13) / 26;
      out[x] = Blend(smooth, row[x], blend);
    }
    std::memcpy(out + row_bytes - c, row + row_bytes - c, c);
  }
  std::memcpy(to + (height - 1) * row_bytes, from + (height - 1) * row_bytes,
              row_bytes);
  TakeNext();
}

void Canvas::Blur(std::span<const float> weights) {
  if (is_mask()) return;
  const auto taps = static_cast<int64_t>(weights.size());
  const int64_t reach = taps / 2;
  const int64_t height = size_.height;
  const int64_t c = channels_;
  const int64_t row_values = size_.width * c;
  assert(reach < height && reach < size_.width);
  const uint8_t* const from = Bytes(Pixels());
  uint8_t* const to = Bytes(Next());
  const int64_t border = reach * c;
  if (static_cast<int64_t>(row_.size()) < 2 * row_values + 2 * border) {
    row_.resize(2 * row_values + 2 * border);
  }
  float* const sums = row_.data() + border;  // of the columns, with a border
  float* const results = sums + row_values + border;
  const auto mirrored = [](int64_t i, int64_t n) {
    return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i;
  };
  for (int64_t y = 0; y < height; ++y) {
    std::fill_n(sums, row_values, 0.0f);
    for (int64_t t = 0; t < taps; ++t) {
      const uint8_t* const row =
          from + mirrored(y + t - reach, height) * row_values;
      const float weight = weights[t];
      for (int64_t x = 0; x < row_values; ++x) {
        sums[x] += weight * static_cast<float>(row[x]);
      }
    }
    for (int64_t i = 1; i <= reach; ++i) {
      std::copy_n(sums + i * c, c, sums - i * c);
      std::copy_n(sums + row_values - (i + 1) * c, c,
                  sums + row_values + (i - 1) * c);
    }
    std::fill_n(results, row_values, 0.0f);
    for (int64_t t = 0; t < taps; ++t) {
      const float* const shifted = sums + (t - reach) * c;
      const float weight = weights[t];
      for (int64_t x = 0; x < row_values; ++x) {
        results[x] += weight * shifted[x];
      }
    }
    uint8_t* const out = to + y * row_values;
    for (int64_t x = 0; x < row_values; ++x) {
      out[x] = static_cast<uint8_t>(
          static_cast<int>(std::min(results[x], 255.0f) + 0.5f));
    }
  }
  TakeNext();
}

}  // namespace penstock
