// The upper half of the dataset spec's parser: the grammar. README.md of this
// folder has it as a table; change both together.
#include "common/dataset_spec.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "common/dataset_spec_tensors.h"
#include "common/dataset_spec_yaml.h"

namespace penstock {
namespace {

constexpr uint64_t kRecordsMax = uint64_t{1} << 53;  // the plan's limit
constexpr size_t kNameCharsMax = 64;
constexpr size_t kFeaturesMax = 64;
constexpr size_t kFilesMax = 256;            // each keeps a descriptor
constexpr uint64_t kProducersMax = 1 << 20;  // over the whole job, not at once
constexpr size_t kDimensionsMax = 8;
constexpr int64_t kDimensionMax = std::numeric_limits<int32_t>::max();
constexpr uint64_t kRowBytesMax = uint64_t{1} << 40;
constexpr uint64_t kCostUsMax = 1'000'000;  // a second for one record
constexpr size_t kMapOpsMax = 64;
constexpr size_t kFunctionNameBytesMax = 256;
constexpr int64_t kImageSideMax = 65535;  // JPEG's limit
constexpr size_t kChannelsMax = 16;
constexpr double kCropFractionMin = 0.001;
constexpr double kCropAreaMin = 0.0001;
constexpr double kCropRatioMax = 100;
constexpr double kMeanMax = 1e6;
constexpr double kStdMin = 1e-6;  // normalization multiplies by its reciprocal
constexpr uint64_t kBatchRowsMax = uint64_t{1} << 24;
constexpr uint64_t kEpochsMax = uint64_t{1} << 40;
constexpr uint64_t kStepsMax = uint64_t{1} << 40;
constexpr uint64_t kPrefetchMax = 64;
constexpr uint64_t kHoldMax = 64;
constexpr uint64_t kUint64Max = std::numeric_limits<uint64_t>::max();

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kNameCharsMax && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
         });
}

std::string NameRule() {
  return Format(
      "a name of 1 to {} letters, digits, '.', '_' and '-', not beginning with "
      "'.'",
      kNameCharsMax);
}

Status ReadName(const SpecValue& value, std::string* out) {
  std::string name;
  if (!value.present()) return value.Absent();
  if (!value.String(&name).ok() || !IsName(name)) {
    return value.Wanted(NameRule());
  }
  *out = std::move(name);
  return OkStatus();
}

Status CheckFeatureName(const SpecValue& features, size_t i) {
  if (IsName(features.Key(i))) return OkStatus();
  return features.KeyError(
      i, Format("{} is not {}", Quoted(features.Key(i)), NameRule()));
}

Status ReadDType(const SpecValue& value, DType* out) {
  return value.Word<DType>({{"uint8", DType::kUint8},
                            {"int8", DType::kInt8},
                            {"int16", DType::kInt16},
                            {"int32", DType::kInt32},
                            {"int64", DType::kInt64},
                            {"float16", DType::kFloat16},
                            {"bfloat16", DType::kBFloat16},
                            {"float32", DType::kFloat32},
                            {"float64", DType::kFloat64},
                            {"bool", DType::kBool}},
                           out);
}

Status ReadLayout(const SpecValue& value, Layout* out) {
  return value.Word<Layout>({{"hwc", Layout::kHwc}, {"chw", Layout::kChw}},
                            out);
}

// ---- sources ---------------------------------------------------------------

Status ReadIo(const SpecValue& value, Io* out) {
  return value.Word<Io>({{"auto", Io::kAuto},
                         {"buffered", Io::kBuffered},
                         {"direct", Io::kDirect}},
                        out);
}

Status ReadImageFolder(const SpecValue& value, const std::string& base_dir,
                       ImageFolderSource* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"path", "io"}));
  PENSTOCK_RETURN_IF_ERROR(value.Required("path").Path(base_dir, &out->path));
  return ReadIo(value.Optional("io"), &out->io);
}

Status ReadIdx(const SpecValue& value, const std::string& base_dir,
               IdxSource* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"images", "labels", "io"}));
  PENSTOCK_RETURN_IF_ERROR(
      value.Required("images").Path(base_dir, &out->images));
  PENSTOCK_RETURN_IF_ERROR(
      value.Optional("labels").Path(base_dir, &out->labels));
  return ReadIo(value.Optional("io"), &out->io);
}

Status ReadRange(const SpecValue& value, RangeSource* out) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  if (value.IsScalar()) return value.Int(1, kRecordsMax, &out->stop);
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping(
      {"start", "stop", "step"}, "a number of records, or a mapping of"));
  PENSTOCK_RETURN_IF_ERROR(
      value.Optional("start").Int(kMin, kMax, &out->start));
  PENSTOCK_RETURN_IF_ERROR(value.Required("stop").Int(kMin, kMax, &out->stop));
  const SpecValue step = value.Optional("step");
  PENSTOCK_RETURN_IF_ERROR(step.Int(kMin, kMax, &out->step));
  if (out->step == 0) return step.Error("0 never reaches stop");
  if (out->step > 0 ? out->start >= out->stop : out->start <= out->stop) {
    return value.Error(Format("no value from {} to below {} in steps of {}",
                              out->start, out->stop, out->step));
  }
  // Unsigned, so that neither the distance nor -INT64_MIN overflows.
  const uint64_t start = static_cast<uint64_t>(out->start);
  const uint64_t stop = static_cast<uint64_t>(out->stop);
  const uint64_t step_size =
      out->step > 0 ? static_cast<uint64_t>(out->step)
                    : uint64_t{0} - static_cast<uint64_t>(out->step);
  const uint64_t distance = out->step > 0 ? stop - start : start - stop;
  if ((distance - 1) / step_size >= kRecordsMax) {
    return value.Error(Format("more than {} values", kRecordsMax));
  }
  return OkStatus();
}

// Adds a feature's bytes to *row_bytes.
Status AddRowBytes(const SpecValue& value, const Feature& feature,
                   uint64_t* row_bytes) {
  uint64_t bytes = DTypeBytes(feature.dtype);
  for (const int64_t dimension : feature.shape) {
    // Divide: the product of hostile dimensions overflows.
    if (bytes > kRowBytesMax / static_cast<uint64_t>(dimension)) {
      bytes = kRowBytesMax + 1;
      break;
    }
    bytes *= static_cast<uint64_t>(dimension);
  }
  *row_bytes += bytes;
  if (*row_bytes > kRowBytesMax) {
    return value.Error(Format("a record of more than {} bytes", kRowBytesMax));
  }
  return OkStatus();
}

Status CheckFeatures(const SpecValue& features) {
  if (!features.present()) return features.Absent();
  if (!features.IsMapping() || features.size() == 0 ||
      features.size() > kFeaturesMax) {
    return features.Wanted(
        Format("a mapping of 1 to {} feature names", kFeaturesMax));
  }
  for (size_t i = 0; i < features.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(CheckFeatureName(features, i));
  }
  return OkStatus();
}

Status ReadTensors(const SpecValue& value, TensorsSource* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"features", "repeat"}));
  const SpecValue features = value.Required("features");
  PENSTOCK_RETURN_IF_ERROR(CheckFeatures(features));
  for (size_t i = 0; i < features.size(); ++i) {
    const std::string& name = features.Key(i);
    const SpecValue feature = features.Required(name);
    std::optional<DType> dtype;
    SpecValue values = feature;
    if (feature.IsMapping()) {
      PENSTOCK_RETURN_IF_ERROR(feature.CheckMapping({"dtype", "values"}));
      PENSTOCK_RETURN_IF_ERROR(
          ReadDType(feature.Required("dtype"), &dtype.emplace()));
      values = feature.Required("values");
    }
    TensorsSource::Tensor tensor;
    uint64_t rows = 0;
    tensor.feature.name = name;
    PENSTOCK_RETURN_IF_ERROR(
        ReadTensor(values, dtype, kDimensionsMax, &tensor, &rows));
    if (i > 0 && rows != out->rows) {
      return values.Error(
          Format("{} rows, but '{}' has {}", rows, features.Key(0), out->rows));
    }
    out->rows = rows;
    out->tensors.push_back(std::move(tensor));
  }
  return value.Optional("repeat").Uint(1, kRecordsMax / out->rows,
                                       &out->repeat);
}

// {NAME: {dtype, shape}, ...}
Status ReadElementSpec(const SpecValue& features, ElementSpec* out) {
  PENSTOCK_RETURN_IF_ERROR(CheckFeatures(features));
  uint64_t row_bytes = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    Feature feature;
    feature.name = features.Key(i);
    const SpecValue as_written = features.Required(feature.name);
    PENSTOCK_RETURN_IF_ERROR(as_written.CheckMapping({"dtype", "shape"}));
    PENSTOCK_RETURN_IF_ERROR(
        ReadDType(as_written.Required("dtype"), &feature.dtype));
    const SpecValue shape = as_written.Required("shape");
    PENSTOCK_RETURN_IF_ERROR(shape.CheckSequence(
        0, kDimensionsMax,
        Format("a list of at most {} dimensions", kDimensionsMax)));
    for (size_t d = 0; d < shape.size(); ++d) {
      PENSTOCK_RETURN_IF_ERROR(
          shape.Item(d).Int(1, kDimensionMax, &feature.shape.emplace_back()));
    }
    PENSTOCK_RETURN_IF_ERROR(AddRowBytes(shape, feature, &row_bytes));
    out->push_back(std::move(feature));
  }
  return OkStatus();
}

// One file, or a list of them.
Status ReadFiles(const SpecValue& value, const std::string& base_dir,
                 std::vector<std::string>* out) {
  if (!value.present()) return value.Absent();
  if (value.IsScalar()) return value.Path(base_dir, &out->emplace_back());
  PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(
      1, kFilesMax, Format("a file, or a list of 1 to {}", kFilesMax)));
  for (size_t i = 0; i < value.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(
        value.Item(i).Path(base_dir, &out->emplace_back()));
  }
  return OkStatus();
}

Status ReadFixedLengthRecords(const SpecValue& value,
                              const std::string& base_dir,
                              FixedLengthRecordsSource* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping(
      {"path", "features", "header_bytes", "footer_bytes", "io"}));
  PENSTOCK_RETURN_IF_ERROR(
      ReadFiles(value.Required("path"), base_dir, &out->files));
  PENSTOCK_RETURN_IF_ERROR(
      ReadElementSpec(value.Required("features"), &out->features));
  PENSTOCK_RETURN_IF_ERROR(
      value.Optional("header_bytes").Uint(0, kRowBytesMax, &out->header_bytes));
  PENSTOCK_RETURN_IF_ERROR(
      value.Optional("footer_bytes").Uint(0, kRowBytesMax, &out->footer_bytes));
  return ReadIo(value.Optional("io"), &out->io);
}

Status ReadSynthetic(const SpecValue& value, SyntheticSource* out) {
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckMapping({"records", "features", "cost_us"}));
  PENSTOCK_RETURN_IF_ERROR(
      value.Required("records").Uint(1, kRecordsMax, &out->records));
  PENSTOCK_RETURN_IF_ERROR(
      ReadElementSpec(value.Required("features"), &out->features));
  return value.Optional("cost_us").Uint(0, kCostUsMax, &out->cost_us);
}

Status ReadStream(const SpecValue& value, StreamSource* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"features", "producers"}));
  PENSTOCK_RETURN_IF_ERROR(
      ReadElementSpec(value.Required("features"), &out->features));
  return value.Optional("producers").Uint(1, kProducersMax, &out->producers);
}

Status ReadSource(const SpecValue& value, const std::string& base_dir,
                  SourceSpec* out) {
  if (!value.present()) return value.Absent();
  const std::vector<std::string_view> kinds = {
      "image_folder", "idx",   "fixed_length_records", "range", "tensors",
      "synthetic",    "stream"};
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckMapping(kinds, "a mapping with one of the keys"));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view kind, value.OneOf(kinds));
  const SpecValue source = value.Required(kind);
  if (kind == "image_folder") {
    return ReadImageFolder(source, base_dir,
                           &out->emplace<ImageFolderSource>());
  }
  if (kind == "idx") {
    return ReadIdx(source, base_dir, &out->emplace<IdxSource>());
  }
  if (kind == "fixed_length_records") {
    return ReadFixedLengthRecords(source, base_dir,
                                  &out->emplace<FixedLengthRecordsSource>());
  }
  if (kind == "range") return ReadRange(source, &out->emplace<RangeSource>());
  if (kind == "tensors") {
    return ReadTensors(source, &out->emplace<TensorsSource>());
  }
  if (kind == "synthetic") {
    return ReadSynthetic(source, &out->emplace<SyntheticSource>());
  }
  return ReadStream(source, &out->emplace<StreamSource>());
}

// ---- transforms ------------------------------------------------------------

// [low, high] with min <= low <= high <= max.
Status ReadInterval(const SpecValue& value, double min, double max,
                    std::array<double, 2>* out) {
  if (!value.present()) return value.Absent();
  PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(2, 2, "a list [low, high]"));
  PENSTOCK_RETURN_IF_ERROR(value.Item(0).Double(min, max, &(*out)[0]));
  PENSTOCK_RETURN_IF_ERROR(value.Item(1).Double(min, max, &(*out)[1]));
  if ((*out)[0] > (*out)[1]) {
    return value.Error(
        Format("[low, high]: {} is above {}", (*out)[0], (*out)[1]));
  }
  return OkStatus();
}

// value has exactly one of the keys center and random_resized.
Status ReadCropKind(const SpecValue& value, CropSpec* out) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view kind,
                            value.OneOf({"center", "random_resized"}));
  const SpecValue crop = value.Required(kind);
  if (kind == "center") {
    PENSTOCK_RETURN_IF_ERROR(crop.CheckMapping({"fraction"}));
    return crop.Optional("fraction")
        .Double(kCropFractionMin, 1, &out->emplace<CenterCrop>().fraction);
  }
  auto& random = out->emplace<RandomResizedCrop>();
  PENSTOCK_RETURN_IF_ERROR(crop.CheckMapping({"scale", "ratio"}));
  PENSTOCK_RETURN_IF_ERROR(
      ReadInterval(crop.Optional("scale"), kCropAreaMin, 1, &random.scale));
  return ReadInterval(crop.Optional("ratio"), 1 / kCropRatioMax, kCropRatioMax,
                      &random.ratio);
}

// The value of decode_image's key crop, where the word alone is allowed too.
Status ReadCrop(const SpecValue& value, std::optional<CropSpec>* out) {
  if (!value.present()) return value.Absent();
  if (value.IsScalar()) {
    return value.Word<CropSpec>(
        {{"center", CenterCrop()}, {"random_resized", RandomResizedCrop()}},
        &out->emplace());
  }
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping(
      {"center", "random_resized"},
      "center, random_resized, or a mapping with one of the keys"));
  return ReadCropKind(value, &out->emplace());
}

// [height, width], or one number for both.
Status ReadImageSize(const SpecValue& value, ImageSize* out) {
  if (!value.present()) return value.Absent();
  if (value.IsScalar()) {
    PENSTOCK_RETURN_IF_ERROR(value.Int(1, kImageSideMax, &out->height));
    out->width = out->height;
    return OkStatus();
  }
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckSequence(2, 2, "[height, width] or one number for a square"));
  PENSTOCK_RETURN_IF_ERROR(value.Item(0).Int(1, kImageSideMax, &out->height));
  return value.Item(1).Int(1, kImageSideMax, &out->width);
}

Status ReadDecodeImage(const SpecValue& value, DecodeImageOp* out) {
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckMapping({"feature", "crop", "size", "channels", "exact"}));
  PENSTOCK_RETURN_IF_ERROR(ReadName(value.Optional("feature"), &out->feature));
  PENSTOCK_RETURN_IF_ERROR(ReadCrop(value.Optional("crop"), &out->crop));
  PENSTOCK_RETURN_IF_ERROR(ReadImageSize(value.Required("size"), &out->size));
  PENSTOCK_RETURN_IF_ERROR(
      value.Optional("channels")
          .Word<int>({{"rgb", 3}, {"gray", 1}}, &out->channels));
  return value.Optional("exact").Bool(&out->exact);
}

Status ReadCropOp(const SpecValue& value, CropOp* out) {
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckMapping({"feature", "center", "random_resized", "size"}));
  PENSTOCK_RETURN_IF_ERROR(ReadName(value.Optional("feature"), &out->feature));
  PENSTOCK_RETURN_IF_ERROR(ReadCropKind(value, &out->crop));
  return ReadImageSize(value.Required("size"), &out->size);
}

Status ReadResize(const SpecValue& value, ResizeOp* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"feature", "size"}));
  PENSTOCK_RETURN_IF_ERROR(ReadName(value.Optional("feature"), &out->feature));
  return ReadImageSize(value.Required("size"), &out->size);
}

Status ReadFlip(const SpecValue& value, FlipOp* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"feature", "horizontal"}));
  PENSTOCK_RETURN_IF_ERROR(ReadName(value.Optional("feature"), &out->feature));
  return value.Optional("horizontal").Double(0, 1, &out->horizontal);
}

// One number for all channels, or a list with one for each.
Status ReadPerChannel(const SpecValue& value, std::vector<double>* out) {
  if (!value.present()) return value.Absent();
  if (value.IsScalar()) {
    return value.Double(-kMeanMax, kMeanMax, &out->emplace_back());
  }
  PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(
      1, kChannelsMax, Format("a number, or a list of 1 to {}", kChannelsMax)));
  for (size_t i = 0; i < value.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(
        value.Item(i).Double(-kMeanMax, kMeanMax, &out->emplace_back()));
  }
  return OkStatus();
}

Status ReadNormalize(const SpecValue& value, NormalizeOp* out) {
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckMapping({"feature", "mean", "std", "dtype", "layout"}));
  PENSTOCK_RETURN_IF_ERROR(ReadName(value.Optional("feature"), &out->feature));
  PENSTOCK_RETURN_IF_ERROR(ReadPerChannel(value.Required("mean"), &out->mean));
  const SpecValue std_value = value.Required("std");
  PENSTOCK_RETURN_IF_ERROR(ReadPerChannel(std_value, &out->std));
  if (out->std.size() != out->mean.size() && out->std.size() > 1 &&
      out->mean.size() > 1) {
    return std_value.Error(Format("{} values, but mean has {}", out->std.size(),
                                  out->mean.size()));
  }
  for (size_t i = 0; i < out->std.size(); ++i) {
    if (out->std[i] >= kStdMin) continue;
    return (std_value.IsScalar() ? std_value : std_value.Item(i))
        .Error(Format("{}: wanted a number from {} up, to divide by",
                      out->std[i], kStdMin));
  }
  PENSTOCK_RETURN_IF_ERROR(
      value.Optional("dtype").Word<DType>({{"float16", DType::kFloat16},
                                           {"bfloat16", DType::kBFloat16},
                                           {"float32", DType::kFloat32}},
                                          &out->dtype));
  return ReadLayout(value.Optional("layout"), &out->layout);
}

Status ReadCast(const SpecValue& value, CastOp* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"feature", "dtype", "layout"}));
  PENSTOCK_RETURN_IF_ERROR(ReadName(value.Optional("feature"), &out->feature));
  PENSTOCK_RETURN_IF_ERROR(ReadDType(value.Required("dtype"), &out->dtype));
  return ReadLayout(value.Optional("layout"), &out->layout);
}

// Words of letters, digits and underscores, with dots between them.
bool IsDottedName(std::string_view text) {
  bool in_word = false;
  for (const char c : text) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) || c == '_';
    const bool digit = c >= '0' && c <= '9';
    if (c == '.' ? !in_word : !letter && !(digit && in_word)) return false;
    in_word = c != '.';
  }
  return in_word && text.size() <= kFunctionNameBytesMax;
}

Status ReadFunctionFeatures(const SpecValue& features,
                            std::optional<ElementSpec>* out) {
  if (!features.present()) return OkStatus();
  return ReadElementSpec(features, &out->emplace());
}

Status ReadPython(const SpecValue& value, PythonOp* out) {
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"function", "features"}));
  const SpecValue function = value.Required("function");
  PENSTOCK_RETURN_IF_ERROR(function.String(&out->function));
  const std::string_view text = out->function;
  const size_t colon = text.find(':');
  if (colon == text.npos || !IsDottedName(text.substr(0, colon)) ||
      !IsDottedName(text.substr(colon + 1))) {
    return function.Wanted("\"package.module:function\"");
  }
  return ReadFunctionFeatures(value.Optional("features"), &out->features);
}

Status ReadPlugin(const SpecValue& value, PluginOp* out) {
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckMapping({"library", "function", "features"}));
  const SpecValue library = value.Required("library");
  PENSTOCK_RETURN_IF_ERROR(library.String(&out->library));
  if (out->library.find('/') != std::string::npos ||
      !out->library.ends_with(".so")) {
    return library.Wanted(
        "the name of a file in the broker's plugin_dir, \"name.so\"");
  }
  const SpecValue function = value.Required("function");
  PENSTOCK_RETURN_IF_ERROR(function.String(&out->function));
  if (!IsDottedName(out->function) ||
      out->function.find('.') != std::string::npos) {
    return function.Wanted("the name of a C function");
  }
  return ReadFunctionFeatures(value.Optional("features"), &out->features);
}

Status ReadTransform(const SpecValue& value, TransformSpec* out) {
  const std::vector<std::string_view> ops = {
      "decode_image", "crop", "resize", "flip",
      "normalize",    "cast", "python", "plugin"};
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckMapping(ops, "a mapping with one of the keys"));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view op, value.OneOf(ops));
  const SpecValue arguments = value.Required(op);
  if (op == "decode_image") {
    return ReadDecodeImage(arguments, &out->emplace<DecodeImageOp>());
  }
  if (op == "crop") return ReadCropOp(arguments, &out->emplace<CropOp>());
  if (op == "resize") return ReadResize(arguments, &out->emplace<ResizeOp>());
  if (op == "flip") return ReadFlip(arguments, &out->emplace<FlipOp>());
  if (op == "normalize") {
    return ReadNormalize(arguments, &out->emplace<NormalizeOp>());
  }
  if (op == "python") return ReadPython(arguments, &out->emplace<PythonOp>());
  if (op == "plugin") return ReadPlugin(arguments, &out->emplace<PluginOp>());
  return ReadCast(arguments, &out->emplace<CastOp>());
}

Status ReadMap(const SpecValue& value, std::vector<TransformSpec>* out) {
  if (!value.present()) return value.Absent();
  PENSTOCK_RETURN_IF_ERROR(value.CheckSequence(
      0, kMapOpsMax, Format("a list of at most {} steps", kMapOpsMax)));
  for (size_t i = 0; i < value.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(
        ReadTransform(value.Item(i), &out->emplace_back()));
  }
  return OkStatus();
}

// ---- order, batches, epochs ------------------------------------------------

Status ReadShuffle(const SpecValue& value, std::optional<ShuffleSpec>* out) {
  if (!value.present()) return value.Absent();
  if (value.IsWord("none")) return OkStatus();
  PENSTOCK_RETURN_IF_ERROR(
      value.CheckMapping({"seed", "each_epoch"}, "none, or a mapping of"));
  ShuffleSpec& shuffle = out->emplace();
  PENSTOCK_RETURN_IF_ERROR(
      value.Required("seed").Uint(0, kUint64Max, &shuffle.seed));
  return value.Optional("each_epoch").Bool(&shuffle.each_epoch);
}

Status ReadBatch(const SpecValue& value, BatchSpec* out) {
  if (!value.present()) return value.Absent();
  PENSTOCK_RETURN_IF_ERROR(value.CheckMapping({"size", "per_rank", "last"}));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view size_key,
                            value.OneOf({"size", "per_rank"}));
  out->per_rank = size_key == "per_rank";
  PENSTOCK_RETURN_IF_ERROR(
      value.Required(size_key).Uint(1, kBatchRowsMax, &out->size));
  return value.Optional("last").Word<LastBatch>(
      {{"partial", LastBatch::kPartial},
       {"drop", LastBatch::kDrop},
       {"pad", LastBatch::kPad}},
      &out->last);
}

Status ReadEpochs(const SpecValue& value, std::optional<uint64_t>* out) {
  if (!value.present()) return value.Absent();
  if (value.IsWord("forever")) {
    out->reset();
    return OkStatus();
  }
  uint64_t epochs = 0;
  if (!value.Uint(1, kEpochsMax, &epochs).ok()) {
    return value.Wanted(
        Format("forever, or a whole number from 1 to {}", kEpochsMax));
  }
  *out = epochs;
  return OkStatus();
}

Status ReadSmallCount(const SpecValue& value, uint64_t max, uint32_t* out) {
  uint64_t count = *out;
  PENSTOCK_RETURN_IF_ERROR(value.Uint(1, max, &count));
  *out = static_cast<uint32_t>(count);
  return OkStatus();
}

// Rejects options that make no sense for a stream's rows.
Status CheckStream(const SpecValue& root, const DatasetSpec& spec) {
  if (!std::holds_alternative<StreamSource>(spec.source)) return OkStatus();
  if (spec.shuffle) {
    return root.Optional("shuffle").Error(
        "a stream comes in the order in which its producers put it: shuffle "
        "there");
  }
  if (spec.epochs != 1) {
    return root.Optional("epochs").Error(
        "a stream comes once: its epoch ends when its producers finish");
  }
  if (spec.steps_per_epoch) {
    return root.Optional("steps_per_epoch")
        .Error("a stream is one epoch, as long as its producers make it");
  }
  if (spec.on_error != OnError::kFail) {
    return root.Optional("on_error")
        .Error("rows of a stream are in memory, none can be unreadable");
  }
  return OkStatus();
}

Status ReadSpec(const SpecValue& root, const std::string& base_dir,
                DatasetSpec* spec) {
  PENSTOCK_RETURN_IF_ERROR(root.CheckMapping(
      {"dataset", "source", "shuffle", "seed", "map", "batch", "epochs",
       "steps_per_epoch", "prefetch", "hold", "on_error"}));
  PENSTOCK_RETURN_IF_ERROR(ReadName(root.Required("dataset"), &spec->name));
  PENSTOCK_RETURN_IF_ERROR(
      ReadSource(root.Required("source"), base_dir, &spec->source));
  PENSTOCK_RETURN_IF_ERROR(
      ReadShuffle(root.Optional("shuffle"), &spec->shuffle));
  if (spec->shuffle) spec->seed = spec->shuffle->seed;
  PENSTOCK_RETURN_IF_ERROR(
      root.Optional("seed").Uint(0, kUint64Max, &spec->seed));
  PENSTOCK_RETURN_IF_ERROR(ReadMap(root.Optional("map"), &spec->map));
  PENSTOCK_RETURN_IF_ERROR(ReadBatch(root.Required("batch"), &spec->batch));
  PENSTOCK_RETURN_IF_ERROR(ReadEpochs(root.Optional("epochs"), &spec->epochs));
  if (const SpecValue steps = root.Optional("steps_per_epoch");
      steps.present()) {
    PENSTOCK_RETURN_IF_ERROR(
        steps.Uint(1, kStepsMax, &spec->steps_per_epoch.emplace()));
  }
  PENSTOCK_RETURN_IF_ERROR(
      ReadSmallCount(root.Optional("prefetch"), kPrefetchMax, &spec->prefetch));
  PENSTOCK_RETURN_IF_ERROR(
      ReadSmallCount(root.Optional("hold"), kHoldMax, &spec->hold));
  PENSTOCK_RETURN_IF_ERROR(
      root.Optional("on_error")
          .Word<OnError>({{"fail", OnError::kFail},
                          {"skip", OnError::kSkip},
                          {"substitute", OnError::kSubstitute}},
                         &spec->on_error));
  return CheckStream(root, *spec);
}

}  // namespace

StatusOr<DatasetSpec> ParseDatasetSpec(std::string_view text,
                                       const std::string& file,
                                       const std::string& base_dir) {
  PENSTOCK_ASSIGN_OR_RETURN(const YamlNode root, ReadYaml(text, file));
  if (root.kind == YamlNode::Kind::kNull) {
    return SpecValue(root, file).Error("the spec is empty");
  }
  DatasetSpec spec;
  PENSTOCK_RETURN_IF_ERROR(ReadSpec(SpecValue(root, file), base_dir, &spec));
  return spec;
}

}  // namespace penstock
