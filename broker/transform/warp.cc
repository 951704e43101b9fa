#include "broker/transform/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "broker/declare/value_type.h"

namespace penstock {
namespace {

struct Sides {
  int64_t height;
  int64_t width;
};

// The whole pixel of a place, as Pillow truncates it.
int64_t Whole(double place) {
  return place < 0 ? -1 : static_cast<int64_t>(place);
}

bool Inside(double x, double y, const Sides& sides) {
  // False of NaN too.
  return x >= 0 && x < static_cast<double>(sides.width) && y >= 0 &&
         y < static_cast<double>(sides.height);
}

// kPixel: the bytes of a pixel; 0: pixel_bytes.
template <int kPixel>
void CopyPixel(const std::byte* from, std::byte* to, int64_t pixel_bytes) {
  std::memcpy(to, from, kPixel == 0 ? pixel_bytes : kPixel);
}

// ---- nearest: in the arithmetic of Pillow, whose sums round otherwise than
// products.

// A map that keeps rows and columns.
template <int kPixel>
void NearestScaled(const Projection& projection, const std::byte* fill,
                   Canvas& canvas) {
  const std::byte* const in = canvas.Pixels();
  std::byte* out = canvas.Next();
  const auto [height, width] = canvas.size();
  const int64_t bytes = canvas.pixel_bytes();
  const std::array<double, 8>& a = projection.a;
  std::vector<int64_t>& columns = canvas.columns();
  columns.resize(width);
  double x_place = a[2] + a[0] * 0.5;
  for (int64_t& column : columns) {
    const int64_t x = Whole(x_place);
    column = x < width ? x : -1;
    x_place += a[0];
  }
  double y_place = a[5] + a[4] * 0.5;
  for (int64_t row = 0; row < height; ++row, y_place += a[4]) {
    const int64_t y = Whole(y_place);
    const bool is_inside = y >= 0 && y < height;
    const std::byte* const from = in + (is_inside ? y * width * bytes : 0);
    for (const int64_t x : columns) {
      CopyPixel<kPixel>(is_inside && x >= 0 ? from + x * bytes : fill, out,
                        bytes);
      out += bytes;
    }
  }
}

template <int kPixel>
void NearestAffine(const Projection& projection, const std::byte* fill,
                   Canvas& canvas) {
  const std::byte* const in = canvas.Pixels();
  std::byte* out = canvas.Next();
  const auto [height, width] = canvas.size();
  const int64_t bytes = canvas.pixel_bytes();
  const std::array<double, 8>& a = projection.a;
  // 16 bits after the point.
  const auto fixed = [](double v) {
    return static_cast<int64_t>(std::floor(v * 65536.0 + 0.5));
  };
  const int64_t x_by_x = fixed(a[0]);
  const int64_t x_by_y = fixed(a[1]);
  const int64_t y_by_x = fixed(a[3]);
  const int64_t y_by_y = fixed(a[4]);
  int64_t x_row = fixed(a[2] + a[0] * 0.5 + a[1] * 0.5);
  int64_t y_row = fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
  for (int64_t row = 0; row < height; ++row) {
    int64_t x_place = x_row;
    int64_t y_place = y_row;
    for (int64_t column = 0; column < width; ++column) {
      const int64_t x = x_place >> 16;
      const int64_t y = y_place >> 16;
      const bool is_inside =
          static_cast<uint64_t>(x) < static_cast<uint64_t>(width) &&
          static_cast<uint64_t>(y) < static_cast<uint64_t>(height);
      CopyPixel<kPixel>(is_inside ? in + (y * width + x) * bytes : fill, out,
                        bytes);
      out += bytes;
      x_place += x_by_x;
      y_place += y_by_x;
    }
    x_row += x_by_y;
    y_row += y_by_y;
  }
}

// ---- any place in the picture

// Calls sample(x, y, out) for the source of each pixel that is inside.
template <int kPixel, typename Sample>
void EachPixel(const Projection& projection, const std::byte* fill,
               Canvas& canvas, const Sample& sample) {
  std::byte* out = canvas.Next();
  const auto [height, width] = canvas.size();
  const int64_t bytes = canvas.pixel_bytes();
  const std::array<double, 8> a = projection.a;
  const bool is_affine = projection.is_affine();
  for (int64_t row = 0; row < height; ++row) {
    const double y_out = static_cast<double>(row) + 0.5;
    for (int64_t column = 0; column < width; ++column, out += bytes) {
      const double x_out = static_cast<double>(column) + 0.5;
      double x = a[0] * x_out + a[1] * y_out + a[2];
      double y = a[3] * x_out + a[4] * y_out + a[5];
      if (!is_affine) {
        const double w = a[6] * x_out + a[7] * y_out + 1;
        x /= w;
        y /= w;
      }
      if (Inside(x, y, {height, width})) {
        sample(x, y, out);
      } else {
        CopyPixel<kPixel>(fill, out, bytes);
      }
    }
  }
}

template <int kPixel>
void NearestProjected(const Projection& projection, const std::byte* fill,
                      Canvas& canvas) {
  const std::byte* const in = canvas.Pixels();
  const int64_t width = canvas.size().width;
  const int64_t bytes = canvas.pixel_bytes();
  EachPixel<kPixel>(
      projection, fill, canvas, [=](double x, double y, std::byte* out) {
        CopyPixel<kPixel>(
            in + (static_cast<int64_t>(y) * width + static_cast<int64_t>(x)) *
                     bytes,
            out, bytes);
      });
}

// The whole pixel at or before a place counted from pixel centres, which is
// -0.5 or more.
int64_t Before(double place) { return static_cast<int64_t>(place + 1) - 1; }

template <int kPixel>
void Bilinear(const Projection& projection, const std::byte* fill,
              Canvas& canvas) {
  constexpr int kBits = 11;
  constexpr int32_t kOne = 1 << kBits;
  const auto* const in = reinterpret_cast<const uint8_t*>(canvas.Pixels());
  const auto [height, width] = canvas.size();
  const int64_t right = width - 1;
  const int64_t bottom = height - 1;
  const int64_t row_bytes = width * kPixel;
  EachPixel<kPixel>(
      projection, fill, canvas, [=](double x, double y, std::byte* out) {
        x -= 0.5;
        y -= 0.5;
        const int64_t x0 = Before(x);
        const int64_t y0 = Before(y);
        const auto dx =
            static_cast<int32_t>((x - static_cast<double>(x0)) * kOne);
        const auto dy =
            static_cast<int32_t>((y - static_cast<double>(y0)) * kOne);
        const int64_t left = std::max<int64_t>(x0, 0) * kPixel;
        const int64_t after = std::min(x0 + 1, right) * kPixel;
        const uint8_t* const up = in + std::max<int64_t>(y0, 0) * row_bytes;
        const uint8_t* const down = in + std::min(y0 + 1, bottom) * row_bytes;
        for (int c = 0; c < kPixel; ++c) {
          const int32_t above = up[left + c] * (kOne - dx) + up[after + c] * dx;
          const int32_t below =
              down[left + c] * (kOne - dx) + down[after + c] * dx;
          out[c] = static_cast<std::byte>((above * (kOne - dy) + below * dy) >>
                                          (2 * kBits));
        }
      });
}

double Cubic(double v1, double v2, double v3, double v4, double d) {
  const double p2 = -v1 + v3;
  const double p3 = 2 * (v1 - v2) + v3 - v4;
  const double p4 = -v1 + v2 - v3 + v4;
  return v2 + d * (p2 + d * (p3 + d * p4));
}

template <int kPixel>
void Bicubic(const Projection& projection, const std::byte* fill,
             Canvas& canvas) {
  const auto* const in = reinterpret_cast<const uint8_t*>(canvas.Pixels());
  const auto [height, width] = canvas.size();
  const int64_t row_bytes = width * kPixel;
  const int64_t right = width - 1;
  const int64_t bottom = height - 1;
  EachPixel<kPixel>(
      projection, fill, canvas, [=](double x, double y, std::byte* out) {
        x -= 0.5;
        y -= 0.5;
        const int64_t x0 = Before(x);
        const int64_t y0 = Before(y);
        const double dx = x - static_cast<double>(x0);
        const double dy = y - static_cast<double>(y0);
        int64_t columns[4];
        const uint8_t* rows[4];
        for (int64_t i = 0; i < 4; ++i) {
          columns[i] = std::clamp<int64_t>(x0 - 1 + i, 0, right) * kPixel;
          rows[i] = in + std::clamp<int64_t>(y0 - 1 + i, 0, bottom) * row_bytes;
        }
        for (int c = 0; c < kPixel; ++c) {
          double of_row[4];
          for (int i = 0; i < 4; ++i) {
            const uint8_t* const row = rows[i] + c;
            of_row[i] = Cubic(row[columns[0]], row[columns[1]], row[columns[2]],
                              row[columns[3]], dx);
          }
          const double value =
              Cubic(of_row[0], of_row[1], of_row[2], of_row[3], dy);
          out[c] = static_cast<std::byte>(
              static_cast<int>(std::clamp(value, 0.0, 255.0)));
        }
      });
}

template <int kPixel>
void Nearest(const Projection& projection, const std::byte* fill,
             Canvas& canvas) {
  const std::array<double, 8>& a = projection.a;
  if (!projection.is_affine()) {
    NearestProjected<kPixel>(projection, fill, canvas);
  } else if (a[1] == 0 && a[3] == 0) {
    NearestScaled<kPixel>(projection, fill, canvas);
  } else {
    NearestAffine<kPixel>(projection, fill, canvas);
  }
}

double Radians(double degrees) { return degrees * (std::numbers::pi / 180); }

}  // namespace

ValueType<Interpolation> WarpInterpolationType() {
  return InterpolationType({Interpolation::kNearest, Interpolation::kBilinear,
                            Interpolation::kBicubic});
}

Projection AffineProjection(const AffineParts& parts,
                            const std::array<double, 2>& centre) {
  const double angle = Radians(parts.degrees);
  const double sx = Radians(parts.shear_x);
  const double sy = Radians(parts.shear_y);
  // Rotation by the angle after the shears; its determinant is 1.
  const double a = std::cos(angle - sy) / std::cos(sy);
  const double b =
      -std::cos(angle - sy) * std::tan(sx) / std::cos(sy) - std::sin(angle);
  const double c = std::sin(angle - sy) / std::cos(sy);
  const double d =
      -std::sin(angle - sy) * std::tan(sx) / std::cos(sy) + std::cos(angle);
  Projection inverse;
  inverse.a = {d / parts.scale,
               -b / parts.scale,
               0,
               -c / parts.scale,
               a / parts.scale,
               0,
               0,
               0};
  const double x = -centre[0] - parts.right;
  const double y = -centre[1] - parts.down;
  inverse.a[2] = inverse.a[0] * x + inverse.a[1] * y + centre[0];
  inverse.a[5] = inverse.a[3] * x + inverse.a[4] * y + centre[1];
  return inverse;
}

Projection RotationProjection(double degrees,
                              const std::array<double, 2>& centre) {
  // Exact at the quarters of a turn.
  const auto rounded = [](double v) { return std::nearbyint(v * 1e15) / 1e15; };
  const double angle = -Radians(std::fmod(degrees, 360));
  const double cosine = rounded(std::cos(angle));
  const double sine = rounded(std::sin(angle));
  Projection inverse;
  inverse.a = {cosine, sine, 0, -sine, cosine, 0, 0, 0};
  inverse.a[2] = cosine * -centre[0] + sine * -centre[1] + centre[0];
  inverse.a[5] = -sine * -centre[0] + cosine * -centre[1] + centre[1];
  return inverse;
}

std::optional<Projection> PerspectiveProjection(
    const ImageSize& size, const std::array<double, 8>& corners) {
  const auto right = static_cast<double>(size.width - 1);
  const auto bottom = static_cast<double>(size.height - 1);
  const double from[8] = {0, 0, right, 0, right, bottom, 0, bottom};
  // Eight equations; the last column is their right side.
  double rows[8][9];
  for (int i = 0; i < 4; ++i) {
    const double x = corners[2 * i];
    const double y = corners[2 * i + 1];
    const double u = from[2 * i];
    const double v = from[2 * i + 1];
    const double both[2][9] = {{x, y, 1, 0, 0, 0, -u * x, -u * y, u},
                               {0, 0, 0, x, y, 1, -v * x, -v * y, v}};
    std::memcpy(rows[2 * i], both, sizeof(both));
  }
  for (int i = 0; i < 8; ++i) {
    int pivot = i;
    for (int r = i + 1; r < 8; ++r) {
      if (std::abs(rows[r][i]) > std::abs(rows[pivot][i])) pivot = r;
    }
    if (std::abs(rows[pivot][i]) < 1e-9) return std::nullopt;
    for (int k = 0; k < 9; ++k) std::swap(rows[i][k], rows[pivot][k]);
    for (int r = 0; r < 8; ++r) {
      if (r == i) continue;
      const double factor = rows[r][i] / rows[i][i];
      for (int k = i; k < 9; ++k) rows[r][k] -= factor * rows[i][k];
    }
  }
  Projection projection;
  for (int i = 0; i < 8; ++i) {
    // torchvision passes them on in single precision.
    projection.a[i] = static_cast<float>(rows[i][8] / rows[i][i]);
  }
  return projection;
}

void Warp(const Projection& projection, Interpolation interpolation,
          std::span<const std::byte> fill, Canvas* canvas) {
  const auto with = [&]<int kPixel>() {
    const auto run =
        canvas->is_mask() || interpolation == Interpolation::kNearest
            ? &Nearest<kPixel>
        : interpolation == Interpolation::kBilinear ? &Bilinear<kPixel>
                                                    : &Bicubic<kPixel>;
    run(projection, fill.data(), *canvas);
  };
  switch (canvas->pixel_bytes()) {
    case 1:
      with.operator()<1>();
      break;
    case 3:
      with.operator()<3>();
      break;
    case 4:
      with.operator()<4>();
      break;
    default:
      // Only masks have such pixels.
      Nearest<0>(projection, fill.data(), *canvas);
  }
  canvas->TakeNext();
}

}  // namespace penstock
