#include "broker/transform/boxes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "broker/transform/op_declaration.h"
#include "broker/transform/row_builder.h"

namespace penstock {
namespace {

constexpr double kBoxAreaMax = 1e9;
constexpr const char* kFormats[] = {"xyxy", "xywh", "cxcywh"};

// NaN stays, as in torch.clamp.
float Limit(float value, float side) {
  return std::min(std::max(value, 0.0f), side);
}

void Clamp(const ImageSize& picture, std::span<Box> boxes) {
  const auto width = static_cast<float>(picture.width);
  const auto height = static_cast<float>(picture.height);
  for (Box& box : boxes) {
    box = {Limit(box.left, width), Limit(box.top, height),
           Limit(box.right, width), Limit(box.bottom, height)};
  }
}

// The picture becomes the part of it of this size, or what is beside it too.
void Crop(int64_t left, int64_t top, const ImageSize& size,
          std::span<Box> boxes) {
  const auto x = static_cast<float>(left);
  const auto y = static_cast<float>(top);
  for (Box& box : boxes) {
    box = {box.left - x, box.top - y, box.right - x, box.bottom - y};
  }
  Clamp(size, boxes);
}

void Scale(const ImageSize& from, const ImageSize& to, std::span<Box> boxes) {
  const auto ratio = [](int64_t of, int64_t by) {
    return static_cast<float>(static_cast<double>(of) /
                              static_cast<double>(by));
  };
  const float x = ratio(to.width, from.width);
  const float y = ratio(to.height, from.height);
  for (Box& box : boxes) {
    box = {box.left * x, box.top * y, box.right * x, box.bottom * y};
  }
}

// The boxes of a feature that is made: it is aligned to its dtype.
std::span<Box> BoxesAt(std::byte* bytes, size_t count) {
  static_assert(sizeof(Box) == 4 * sizeof(float));
  return {reinterpret_cast<Box*>(bytes), count};
}

StatusOr<size_t> LengthIn(std::span<const std::byte> length,
                          const Feature& list) {
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t items,
                            ItemsOf(list.name, list.shape[0], length));
  return static_cast<size_t>(items);
}

// in: the boxes, their length if they are a list, the file if the op decodes
// it. out: the same without the file.
class MoveBoxesStage final : public RowStage {
 public:
  MoveBoxesStage(Feature boxes, bool is_list, bool is_file, std::string picture,
                 BoxMove move)
      : boxes_(std::move(boxes)),
        is_list_(is_list),
        is_file_(is_file),
        picture_(std::move(picture)),
        move_(std::move(move)) {}

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey& key,
             std::span<std::byte* const> out) const override {
    std::copy(in[0].begin(), in[0].end(), out[0]);
    size_t count = in[0].size() / sizeof(Box);
    if (is_list_) {
      PENSTOCK_ASSIGN_OR_RETURN(count, LengthIn(in[1], boxes_));
      std::copy(in[1].begin(), in[1].end(), out[1]);
    }
    const std::span<const std::byte> file =
        is_file_ ? in.back() : std::span<const std::byte>();
    const Status status = move_(key, file, BoxesAt(out[0], count));
    return status.ok() ? status
                       : status.Prepend(Format("its picture '{}'", picture_));
  }

 private:
  const Feature boxes_;
  const bool is_list_;
  const bool is_file_;
  const std::string picture_;
  const BoxMove move_;
};

// ---- convert_boxes

void Convert(BoxFormat from, BoxFormat to, std::span<Box> boxes) {
  if (from == to) return;
  for (auto& [left, top, right, bottom] : boxes) {
    if (from == BoxFormat::kXyxy) {
      right -= left;
      bottom -= top;
    }
    if (from == BoxFormat::kCxcywh) {
      left -= right / 2;
      top -= bottom / 2;
    }
    if (to == BoxFormat::kCxcywh) {
      left += right / 2;
      top += bottom / 2;
    }
    if (to == BoxFormat::kXyxy) {
      right += left;
      bottom += top;
    }
  }
}

// The zeros behind the end of a list stay.
class ConvertStage final : public Stage {
 public:
  ConvertStage(BoxFormat from, BoxFormat to) : from_(from), to_(to) {}
  Status Run(std::span<const std::byte> in, const AugmentationKey&,
             PathScratch&, std::byte* out) const override {
    std::copy(in.begin(), in.end(), out);
    Convert(from_, to_, BoxesAt(out, in.size() / sizeof(Box)));
    return OkStatus();
  }

 private:
  const BoxFormat from_;
  const BoxFormat to_;
};

ValueType<BoxFormat> BoxFormatType() {
  return Words<BoxFormat>({{kFormats[0], BoxFormat::kXyxy},
                           {kFormats[1], BoxFormat::kXywh},
                           {kFormats[2], BoxFormat::kCxcywh}});
}

// ---- sanitize_boxes

// in: the boxes and their length, each other list and its length. out: the
// same.
class SanitizeStage final : public RowStage {
 public:
  SanitizeStage(const SanitizeBoxesOp& op, const ImageSize& picture,
                std::vector<Feature> lists)
      : op_(op), picture_(picture), lists_(std::move(lists)) {}

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey&,
             std::span<std::byte* const> out) const override {
    PENSTOCK_ASSIGN_OR_RETURN(const size_t count, LengthIn(in[1], lists_[0]));
    for (size_t i = 0; i < lists_.size(); ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(const size_t items,
                                LengthIn(in[2 * i + 1], lists_[i]));
      if (items != count) {
        return DataLossError("{} of '{}' for {} of '{}'", items, lists_[i].name,
                             count, lists_[0].name);
      }
      std::copy(in[2 * i].begin(), in[2 * i].end(), out[2 * i]);
    }
    const std::span<Box> boxes = BoxesAt(out[0], count);
    if (op_.clamp) Clamp(picture_, boxes);
    size_t kept = 0;
    for (size_t item = 0; item < count; ++item) {
      if (!IsSound(boxes[item])) continue;
      for (size_t i = 0; kept < item && i < lists_.size(); ++i) {
        const size_t bytes = ItemBytes(i);
        std::copy_n(out[2 * i] + item * bytes, bytes,
                    out[2 * i] + kept * bytes);
      }
      ++kept;
    }
    for (size_t i = 0; i < lists_.size(); ++i) {
      const size_t bytes = ItemBytes(i);
      std::fill(out[2 * i] + kept * bytes, out[2 * i] + count * bytes,
                std::byte{0});
      Store(static_cast<int64_t>(kept), out[2 * i + 1]);
    }
    return OkStatus();
  }

 private:
  size_t ItemBytes(size_t list) const {
    return lists_[list].RowBytes() /
           static_cast<uint64_t>(lists_[list].shape[0]);
  }

  // False of NaN.
  bool IsSound(const Box& box) const {
    const float width = box.right - box.left;
    const float height = box.bottom - box.top;
    return width >= static_cast<float>(op_.min_size) &&
           height >= static_cast<float>(op_.min_size) &&
           width * height >= static_cast<float>(op_.min_area) &&
           box.left >= 0 && box.top >= 0 &&
           box.right <= static_cast<float>(picture_.width) &&
           box.bottom <= static_cast<float>(picture_.height);
  }

  const SanitizeBoxesOp op_;
  const ImageSize picture_;
  const std::vector<Feature> lists_;
};

}  // namespace

void MoveIntoView(const std::optional<CropSpec>& crop, const CropView& view,
                  const ImageSize& from, const ImageSize& target,
                  std::span<Box> boxes) {
  // These resize first, and then cut out.
  const bool of_pixels = crop && (std::holds_alternative<CenterPixels>(*crop) ||
                                  std::holds_alternative<RandomPixels>(*crop) ||
                                  std::holds_alternative<FitCrop>(*crop));
  ImageSize size = from;
  if (crop && !of_pixels) {
    size = {.height = view.box.height, .width = view.box.width};
    Crop(view.box.left, view.box.top, size, boxes);
  }
  if (view.scaled != size) Scale(size, view.scaled, boxes);
  if (of_pixels) Crop(view.left, view.top, target, boxes);
}

Status MoveIntoView(const std::optional<CropSpec>& crop, const ImageSize& from,
                    const ImageSize& target, const AugmentationDraws& draws,
                    std::span<Box> boxes) {
  PENSTOCK_ASSIGN_OR_RETURN(const CropView view,
                            ChooseView(crop, from, target, draws));
  MoveIntoView(crop, view, from, target, boxes);
  return OkStatus();
}

void Mirror(const ImageSize& picture, bool horizontal, bool vertical,
            std::span<Box> boxes) {
  const auto mirror = [](float* low, float* high, int64_t side) {
    const float begin = static_cast<float>(side) - *high;
    *high = static_cast<float>(side) - *low;
    *low = begin;
  };
  for (Box& box : boxes) {
    if (horizontal) mirror(&box.left, &box.right, picture.width);
    if (vertical) mirror(&box.top, &box.bottom, picture.height);
  }
}

void Project(const Projection& projection, const ImageSize& picture,
             std::span<Box> boxes) {
  // A projection says where pixels come from. Its inverse, up to a factor that
  // the division takes away, is its matrix' adjugate.
  const std::array<double, 8>& a = projection.a;
  const double inverse[3][3] = {
      {a[4] - a[5] * a[7], a[2] * a[7] - a[1], a[1] * a[5] - a[2] * a[4]},
      {a[5] * a[6] - a[3], a[0] - a[2] * a[6], a[2] * a[3] - a[0] * a[5]},
      {a[3] * a[7] - a[4] * a[6], a[1] * a[6] - a[0] * a[7],
       a[0] * a[4] - a[1] * a[3]}};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (Box& box : boxes) {
    Box around = {kInfinity, kInfinity, -kInfinity, -kInfinity};
    for (const float x : {box.left, box.right}) {
      for (const float y : {box.top, box.bottom}) {
        std::array<double, 3> to;
        for (size_t i = 0; i < 3; ++i) {
          to[i] = inverse[i][0] * x + inverse[i][1] * y + inverse[i][2];
        }
        const auto x_to = static_cast<float>(to[0] / to[2]);
        const auto y_to = static_cast<float>(to[1] / to[2]);
        around = {std::min(around.left, x_to), std::min(around.top, y_to),
                  std::max(around.right, x_to), std::max(around.bottom, y_to)};
      }
    }
    box = around;
  }
  Clamp(picture, boxes);
}

Status CheckBoxes(const PathBuilder& path, BoxFormat format,
                  std::string_view remedy) {
  PENSTOCK_RETURN_IF_ERROR(path.CheckDecoded());
  const Feature& feature = path.feature();
  const size_t dimensions = feature.shape.size();
  if (feature.dtype != DType::kFloat32 || dimensions < 1 || dimensions > 2 ||
      feature.shape.back() != 4) {
    return InvalidArgumentError(
        "wants boxes float32 [n, 4], found {}{}", feature.ToString(),
        feature.dtype == DType::kFloat32 ? "" : "; `cast` changes the dtype");
  }
  const BoxFormat known = path.known().boxes.value_or(format);
  if (known == format) return OkStatus();
  return InvalidArgumentError("wants {} boxes, but '{}' are {} by now: {}",
                              kFormats[static_cast<size_t>(format)],
                              feature.name,
                              kFormats[static_cast<size_t>(known)], remedy);
}

Status AddBoxMove(PathBuilder* picture, bool is_file, PathBuilder* boxes,
                  BoxMove move, RowBuilder* row) {
  std::vector<PathBuilder*> taken = {boxes};
  ElementSpec put = {boxes->feature()};
  const bool is_list = row->IsList(*boxes);
  if (is_list) {
    taken.push_back(row->LengthOf(*boxes));
    put.push_back(taken.back()->feature());
  }
  std::vector<size_t> beside;
  if (is_file) beside.push_back(picture->slot());
  auto stage = std::make_unique<MoveBoxesStage>(
      boxes->feature(), is_list, is_file, picture->name(), std::move(move));
  const std::string name = boxes->feature().name;
  PENSTOCK_RETURN_IF_ERROR(
      row->AddStep(taken, put, std::move(stage), false, std::move(beside)));
  PathBuilder::Known& known = row->Named(name)->known();
  known.boxes = BoxFormat::kXyxy;
  if (known.picture == nullptr) known.picture = picture;
  return OkStatus();
}

const Declaration<ConvertBoxesOp>& ConvertBoxesOp::Declared() {
  static const auto declared =
      FeatureOp<ConvertBoxesOp>("convert_boxes",
                                "Boxes in another format: torchvision's "
                                "ConvertBoundingBoxFormat.")
          .Gives("float32 [n, 4] → the same")
          .Example("{from: xywh, to: xyxy}")
          .Required("from", &ConvertBoxesOp::from, BoxFormatType(),
                    "what they are: two corners, a corner and the sides, or "
                    "the centre and the sides")
          .Required("to", &ConvertBoxesOp::to, BoxFormatType(),
                    "what they become");
  return declared;
}

Status ConvertBoxesOp::AddTo(PathBuilder* path, uint32_t) const {
  PENSTOCK_RETURN_IF_ERROR(CheckBoxes(*path, from, "name that in `from`"));
  const Feature& feature = path->feature();
  path->AddStage(std::make_unique<ConvertStage>(from, to), feature.shape,
                 feature.dtype);
  path->known().boxes = to;
  return OkStatus();
}

const Declaration<SanitizeBoxesOp>& SanitizeBoxesOp::Declared() {
  static const auto declared =
      Declaration<SanitizeBoxesOp>(
          "sanitize_boxes",
          "Removes boxes that are too small, and what belongs to them: "
          "torchvision's SanitizeBoundingBoxes, after its "
          "ClampBoundingBoxes.")
          .Gives("lists → the same, NAME.length how many are left")
          .Example("{labels: [labels, area, iscrowd]}")
          .Optional("feature", &SanitizeBoxesOp::feature, Name(),
                    "the boxes, a list of corners")
          .Optional("picture", &SanitizeBoxesOp::picture, Name(),
                    "whose boxes they are, decoded")
          .Required("labels", &SanitizeBoxesOp::labels, FeatureNamesType(),
                    "the lists that have an item for each box, and lose the "
                    "same ones; [] if there are none, or none but coco's, "
                    "which need no naming")
          .Optional("min_size", &SanitizeBoxesOp::min_size,
                    Number(0, kImageSideMax), "of the width and of the height")
          .Optional("min_area", &SanitizeBoxesOp::min_area,
                    Number(0, kBoxAreaMax), "of their product")
          .Optional("clamp", &SanitizeBoxesOp::clamp, Bool(),
                    "boxes are cut off at the sides of the picture before; "
                    "false: those that reach beyond are removed");
  return declared;
}

Status SanitizeBoxesOp::AddToRow(RowBuilder* row) const {
  PENSTOCK_ASSIGN_OR_RETURN(PathBuilder* const of, row->Find(picture));
  PENSTOCK_ASSIGN_OR_RETURN(const ImageSize size, of->PictureSize());
  FeatureNames names = labels;
  names.insert(names.begin(), feature);
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<PathBuilder*> found,
                            row->FindAll(names));
  PENSTOCK_RETURN_IF_ERROR(CheckBoxes(*found[0]));
  for (size_t i = 0; i < row->size(); ++i) {
    PathBuilder* const each = &(*row)[i];
    const PathBuilder::Known& known = each->known();
    if (known.picture != nullptr && !known.boxes &&
        known.picture == found[0]->known().picture &&
        std::find(found.begin(), found.end(), each) == found.end()) {
      found.push_back(each);
    }
  }
  std::vector<PathBuilder*> taken;
  std::vector<Feature> lists;
  ElementSpec put;
  for (PathBuilder* const each : found) {
    if (!row->IsList(*each)) {
      return InvalidArgumentError(
          "wants lists, whose length may become another, found {} without a "
          "'{}{}'",
          each->feature().ToString(), each->feature().name, kLengthSuffix);
    }
    lists.push_back(each->feature());
    for (PathBuilder* const taking : {each, row->LengthOf(*each)}) {
      taken.push_back(taking);
      put.push_back(taking->feature());
    }
  }
  return row->AddStep(
      taken, put,
      std::make_unique<SanitizeStage>(*this, size, std::move(lists)));
}

}  // namespace penstock
