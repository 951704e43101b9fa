#include "broker/transform/picture.h"

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

ValueType<Layout> LayoutType() {
  return Words<Layout>({{"hwc", Layout::kHwc}, {"chw", Layout::kChw}});
}

}  // namespace penstock
