#include "broker/transform/picture.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "broker/transform/op_declaration.h"
#include "common/exact_max.h"

namespace penstock {

namespace {

// [low, high].
template <typename V>
ValueType<std::array<V, 2>> Ordered(ValueType<std::array<V, 2>> type) {
  type.read = [read = type.read](const YamlValue& value,
                                 std::string_view wanted,
                                 std::array<V, 2>* out) {
    PENSTOCK_RETURN_IF_ERROR(read(value, wanted, out));
    const auto [low, high] = *out;
    if (low <= high) return OkStatus();
    return value.Error(Format("[low, high]: {} is above {}", low, high));
  };
  return type;
}

// N items, or one for all.
template <size_t N, typename V>
ValueType<std::array<V, N>> OneForAll(ValueType<V> item, std::string wanted) {
  ValueType<std::array<V, N>> type = Several<N>(item, std::move(wanted));
  type.read = [item, list = type.read](const YamlValue& value,
                                       std::string_view wanted,
                                       std::array<V, N>* out) {
    if (!value.IsScalar()) return list(value, wanted, out);
    const Status status = item.Read(value, &(*out)[0]);
    out->fill((*out)[0]);
    return status;
  };
  return type;
}

}  // namespace

ValueType<ImageSize> ImageSizeType() {
  const auto sides = OneForAll<2>(WholeNumber<int64_t>(1, kImageSideMax),
                                  "[height, width] or one number for a square");
  return {
      sides.wanted,
      [sides](const YamlValue& value, std::string_view wanted, ImageSize* out) {
        std::array<int64_t, 2> read = {out->height, out->width};
        const Status status = sides.read(value, wanted, &read);
        *out = {.height = read[0], .width = read[1]};
        return status;
      },
      [sides](const ImageSize& size, nlohmann::ordered_json* out) {
        sides.write({size.height, size.width}, out);
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

ValueType<FeatureNames> MaskNamesType() {
  return LeftOutAt({}, FeatureNamesType());
}

ValueType<Layout> LayoutType() {
  return Words<Layout>({{"hwc", Layout::kHwc}, {"chw", Layout::kChw}});
}

ValueType<Range> Interval(double min, double max) {
  return Ordered(Several<2>(Number(min, max), "a list [low, high]"));
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

ValueType<std::array<int64_t, 4>> FourSides() {
  return OneForAll<4>(WholeNumber<int64_t>(0, kImageSideMax),
                      "a list [left, top, right, bottom], or one number");
}

ValueType<std::array<int64_t, 2>> WholeRange(int64_t min, int64_t max) {
  return Ordered(OneForAll<2>(WholeNumber<int64_t>(min, max),
                              "a whole number, or a list [low, high]"));
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

}  // namespace penstock
