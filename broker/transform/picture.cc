#include "broker/transform/picture.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "broker/declare/value_type.h"

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

}  // namespace penstock
