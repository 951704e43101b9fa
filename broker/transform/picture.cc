#include "broker/transform/picture.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "broker/declare/value_type.h"
#include "common/exact_max.h"

namespace penstock {

ValueType<ImageSize> ImageSizeType() {
  constexpr int64_t kImageSideMax = 65535;  // JPEG's limit
  const ValueType<int64_t> side = WholeNumber<int64_t>(1, kImageSideMax);
  return {
      "[height, width] or one number for a square",
      [side](const YamlValue& value, std::string_view wanted, ImageSize* out) {
        if (value.IsScalar()) {
          PENSTOCK_RETURN_IF_ERROR(side.Read(value, &out->height));
          out->width = out->height;
          return OkStatus();
        }
        PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(2, 2, wanted));
        PENSTOCK_RETURN_IF_ERROR(side.Read(value.Item(0), &out->height));
        return side.Read(value.Item(1), &out->width);
      },
      [side](const ImageSize& size, nlohmann::ordered_json* out) {
        WriteList(
            2,
            [&](size_t i, auto* each) {
              side.write(i == 0 ? size.height : size.width, each);
            },
            out);
      }};
}

ValueType<FeatureNames> FeatureNamesType() {
  constexpr size_t kFeaturesMax = 64;
  const ValueType<std::string> name = Name();
  const ValueType<FeatureNames> list =
      List(name, 0, kFeaturesMax, "a name of a feature, or a list of them");
  return {list.wanted,
          [name, list](const YamlValue& value, std::string_view wanted,
                       FeatureNames* out) {
            out->clear();
            if (value.IsScalar()) return name.Read(value, &out->emplace_back());
            PENSTOCK_RETURN_IF_ERROR(list.read(value, wanted, out));
            for (auto each = out->begin(); each != out->end(); ++each) {
              if (std::find(out->begin(), each, *each) == each) continue;
              return value.Error(Format("'{}' is in it twice", *each));
            }
            return OkStatus();
          },
          [name, list](const FeatureNames& names, nlohmann::ordered_json* out) {
            names.size() == 1 ? name.write(names[0], out)
                              : list.write(names, out);
          }};
}

// Absent if there is none.
ValueType<FeatureNames> MaskNamesType() {
  ValueType<FeatureNames> type = FeatureNamesType();
  type.write = [write = type.write](const FeatureNames& names, auto* out) {
    if (!names.empty()) write(names, out);
  };
  return type;
}

ValueType<Layout> LayoutType() {
  return Words<Layout>({{"hwc", Layout::kHwc}, {"chw", Layout::kChw}});
}

ValueType<Range> Interval(double min, double max) {
  const ValueType<double> number = Number(min, max);
  return {
      "a list [low, high]",
      [number](const YamlValue& value, std::string_view wanted, Range* out) {
        PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(2, 2, wanted));
        for (size_t i = 0; i < 2; ++i) {
          PENSTOCK_RETURN_IF_ERROR(number.Read(value.Item(i), &(*out)[i]));
        }
        if ((*out)[0] <= (*out)[1]) return OkStatus();
        return value.Error(
            Format("[low, high]: {} is above {}", (*out)[0], (*out)[1]));
      },
      [number](const Range& interval, nlohmann::ordered_json* out) {
        WriteList(
            2, [&](size_t i, auto* each) { number.write(interval[i], each); },
            out);
      }};
}

ValueType<Range> IntervalAround(double centre, double min, double max) {
  const ValueType<double> number = Number(0, max - centre);
  ValueType<Range> type = Interval(min, max);
  type.wanted = "a number, or a list [low, high]";
  type.read = [centre, min, number, list = type.read](
                  const YamlValue& value, std::string_view wanted, Range* out) {
    if (!value.IsScalar()) return list(value, wanted, out);
    double reach = 0;
    PENSTOCK_RETURN_IF_ERROR(number.Read(value, &reach));
    *out = {std::max(min, centre - reach), centre + reach};
    return OkStatus();
  };
  return type;
}

ValueType<Interpolation> InterpolationType(
    std::initializer_list<Interpolation> allowed) {
  std::vector<std::pair<std::string_view, Interpolation>> words;
  for (const auto& [word, value] :
       {std::pair{"nearest", Interpolation::kNearest},
        std::pair{"bilinear", Interpolation::kBilinear},
        std::pair{"bicubic", Interpolation::kBicubic},
        std::pair{"lanczos", Interpolation::kLanczos}}) {
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) {
      words.emplace_back(word, value);
    }
  }
  return Words(std::move(words));
}

ValueType<PadMode> PadModeType() {
  return Words<PadMode>({{"constant", PadMode::kConstant},
                         {"edge", PadMode::kEdge},
                         {"reflect", PadMode::kReflect},
                         {"symmetric", PadMode::kSymmetric}});
}

namespace {

// N numbers, or one for all.
template <size_t N>
ValueType<std::array<int64_t, N>> Several(std::string wanted,
                                          ValueType<int64_t> number) {
  using Numbers = std::array<int64_t, N>;
  return {
      std::move(wanted),
      [number](const YamlValue& value, std::string_view wanted, Numbers* out) {
        if (value.IsScalar()) {
          const Status status = number.Read(value, &(*out)[0]);
          out->fill((*out)[0]);
          return status;
        }
        PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(N, N, wanted));
        for (size_t i = 0; i < N; ++i) {
          PENSTOCK_RETURN_IF_ERROR(number.Read(value.Item(i), &(*out)[i]));
        }
        return OkStatus();
      },
      [number](const Numbers& numbers, nlohmann::ordered_json* out) {
        WriteList(
            N, [&](size_t i, auto* each) { number.write(numbers[i], each); },
            out);
      }};
}

}  // namespace

ValueType<std::array<int64_t, 4>> FourSides() {
  return Several<4>("a list [left, top, right, bottom], or one number",
                    WholeNumber<int64_t>(0, 65535));
}

ValueType<std::array<int64_t, 2>> WholeRange(int64_t min, int64_t max) {
  auto range = Several<2>("a whole number, or a list [low, high]",
                          WholeNumber<int64_t>(min, max));
  range.read = [read = range.read](const YamlValue& value,
                                   std::string_view wanted,
                                   std::array<int64_t, 2>* out) {
    PENSTOCK_RETURN_IF_ERROR(read(value, wanted, out));
    if ((*out)[0] <= (*out)[1]) return OkStatus();
    return value.Error(
        Format("[low, high]: {} is above {}", (*out)[0], (*out)[1]));
  };
  return range;
}

ValueType<Fill> FillType() {
  ValueType<Fill> type =
      OneOrList(WholeNumber<int64_t>(0, 255), "a number from 0 to 255", 3);
  type.read = [read = type.read](const YamlValue& value,
                                 std::string_view wanted, Fill* out) {
    out->clear();  // the default
    return read(value, wanted, out);
  };
  return type;
}

ValueType<int64_t> MaskFillType() {
  constexpr auto kMax = static_cast<int64_t>(kExactMax);
  return WholeNumber<int64_t>(-kMax, kMax);
}

ValueType<double> ProbabilityType() { return Number(0, 1); }

}  // namespace penstock
