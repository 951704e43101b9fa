// A spec as canonical JSON in the grammar of the spec itself (specs without a
// `tensors` source can be parsed again), and the difference of two specs.
#include <nlohmann/json.hpp>

#include "common/dataset_spec.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytesMax = 120;

// FNV-1a, 128 bits: distinguishes tensors, but not against an adversary (who
// could only fool his own datasets).
std::string Digest(const std::vector<std::byte>& data) {
  using Uint128 = unsigned __int128;
  Uint128 hash =
      Uint128{0x6c62'272e'07bb'0142} << 64 | Uint128{0x62b8'2175'6295'c58d};
  constexpr Uint128 kPrime = Uint128{1} << 88 | Uint128{0x13b};
  for (const std::byte byte : data) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * kPrime;
  }
  return Format("{:016x}{:016x}", static_cast<uint64_t>(hash >> 64),
                static_cast<uint64_t>(hash));
}

std::string_view LayoutName(Layout layout) {
  return layout == Layout::kChw ? "chw" : "hwc";
}

std::string_view IoName(Io io) {
  constexpr std::string_view kNames[] = {"auto", "buffered", "direct"};
  return kNames[static_cast<size_t>(io)];
}

Json ToJson(const ElementSpec& element) {
  Json features = Json::object();
  for (const Feature& feature : element) {
    features[feature.name] = {{"dtype", DTypeName(feature.dtype)},
                              {"shape", feature.shape}};
  }
  return features;
}

Json ToJson(const ImageFolderSource& source) {
  return {{"image_folder", {{"path", source.path}, {"io", IoName(source.io)}}}};
}

Json ToJson(const IdxSource& source) {
  Json idx = {{"images", source.images}};
  if (!source.labels.empty()) idx["labels"] = source.labels;
  idx["io"] = IoName(source.io);
  return {{"idx", idx}};
}

Json ToJson(const FixedLengthRecordsSource& source) {
  return {{"fixed_length_records",
           {{"path", source.files},
            {"features", ToJson(source.features)},
            {"header_bytes", source.header_bytes},
            {"footer_bytes", source.footer_bytes},
            {"io", IoName(source.io)}}}};
}

Json ToJson(const RangeSource& source) {
  return {{"range",
           {{"start", source.start},
            {"stop", source.stop},
            {"step", source.step}}}};
}

Json ToJson(const TensorsSource& source) {
  Json features = Json::object();
  for (const TensorsSource::Tensor& tensor : source.tensors) {
    features[tensor.feature.name] = {{"dtype", DTypeName(tensor.feature.dtype)},
                                     {"shape", tensor.feature.shape},
                                     {"rows", source.rows},
                                     {"fnv1a_128", Digest(tensor.data)}};
  }
  return {{"tensors", {{"features", features}, {"repeat", source.repeat}}}};
}

Json ToJson(const SyntheticSource& source) {
  return {{"synthetic",
           {{"records", source.records},
            {"features", ToJson(source.features)},
            {"cost_us", source.cost_us}}}};
}

Json ToJson(const StreamSource& source) {
  return {{"stream",
           {{"features", ToJson(source.features)},
            {"producers", source.producers}}}};
}

Json ToJson(const CropSpec& crop) {
  if (const auto* center = std::get_if<CenterCrop>(&crop)) {
    return {{"center", {{"fraction", center->fraction}}}};
  }
  const auto& random = std::get<RandomResizedCrop>(crop);
  return {
      {"random_resized", {{"scale", random.scale}, {"ratio", random.ratio}}}};
}

Json ToJson(const ImageSize& size) {
  return Json::array({size.height, size.width});
}

Json ToJson(const DecodeImageOp& op) {
  Json json = {{"feature", op.feature}};
  if (op.crop) json["crop"] = ToJson(*op.crop);
  json["size"] = ToJson(op.size);
  json["channels"] = op.channels == 1 ? "gray" : "rgb";
  json["exact"] = op.exact;
  return {{"decode_image", json}};
}

Json ToJson(const CropOp& op) {
  Json json = {{"feature", op.feature}};
  json.update(ToJson(op.crop));
  json["size"] = ToJson(op.size);
  return {{"crop", json}};
}

Json ToJson(const ResizeOp& op) {
  return {{"resize", {{"feature", op.feature}, {"size", ToJson(op.size)}}}};
}

Json ToJson(const FlipOp& op) {
  return {{"flip", {{"feature", op.feature}, {"horizontal", op.horizontal}}}};
}

Json ToJson(const NormalizeOp& op) {
  return {{"normalize",
           {{"feature", op.feature},
            {"mean", op.mean},
            {"std", op.std},
            {"dtype", DTypeName(op.dtype)},
            {"layout", LayoutName(op.layout)}}}};
}

Json ToJson(const CastOp& op) {
  return {{"cast",
           {{"feature", op.feature},
            {"dtype", DTypeName(op.dtype)},
            {"layout", LayoutName(op.layout)}}}};
}

Json ToJson(const PythonOp& op) {
  Json json = {{"function", op.function}};
  if (op.features) json["features"] = ToJson(*op.features);
  return {{"python", json}};
}

Json ToJson(const PluginOp& op) {
  Json json = {{"library", op.library}, {"function", op.function}};
  if (op.features) json["features"] = ToJson(*op.features);
  return {{"plugin", json}};
}

std::string_view LastBatchName(LastBatch last) {
  switch (last) {
    case LastBatch::kPartial:
      return "partial";
    case LastBatch::kDrop:
      return "drop";
    case LastBatch::kPad:
      break;
  }
  return "pad";
}

std::string_view OnErrorName(OnError on_error) {
  switch (on_error) {
    case OnError::kFail:
      return "fail";
    case OnError::kSkip:
      return "skip";
    case OnError::kSubstitute:
      break;
  }
  return "substitute";
}

// For a message: one line, truncated.
std::string Shown(const Json& json) {
  std::string text = json.is_string()
                         ? json.get<std::string>()
                         : json.dump(-1, ' ', /*ensure_ascii=*/false,
                                     Json::error_handler_t::replace);
  if (text.size() > kShownBytesMax) {
    text.resize(kShownBytesMax);
    text += "...";
  }
  return text;
}

std::string KeysShown(const Json& object) {
  std::string keys;
  for (const auto& [key, value] : object.items()) {
    keys += (keys.empty() ? "" : ", ") + key;
  }
  return keys;
}

std::string Differ(const std::string& path, const std::string& here,
                   const std::string& there) {
  return Format("{}: {} here, {} there", path, here, there);
}

// The first difference below path, or "".
std::string FirstDifference(const std::string& path, const Json& here,
                            const Json& there) {
  if (here == there) return "";
  if (here.is_array() && there.is_array()) {
    if (here.size() != there.size()) {
      return Differ(path, Format("{} entries", here.size()),
                    Format("{} entries", there.size()));
    }
    for (size_t i = 0; i < here.size(); ++i) {
      std::string difference =
          FirstDifference(Format("{}[{}]", path, i), here[i], there[i]);
      if (!difference.empty()) return difference;
    }
  }
  if (!here.is_object() || !there.is_object()) {
    return Differ(path, Shown(here), Shown(there));
  }
  // The kind of source, of transform, of crop.
  if (here.size() == 1 && there.size() == 1 &&
      here.begin().key() != there.begin().key()) {
    return Differ(path, here.begin().key(), there.begin().key());
  }
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const auto& [key, value] : here.items()) {
    const auto other = there.find(key);
    if (other == there.end()) {
      return Differ(prefix + key, Shown(value), "nothing");
    }
    std::string difference = FirstDifference(prefix + key, value, *other);
    if (!difference.empty()) return difference;
  }
  for (const auto& [key, value] : there.items()) {
    if (!here.contains(key)) {
      return Differ(prefix + key, "nothing", Shown(value));
    }
  }
  return Differ(path, "order " + KeysShown(here), "order " + KeysShown(there));
}

}  // namespace

nlohmann::ordered_json DatasetSpecToJson(const DatasetSpec& spec) {
  Json json;
  json["dataset"] = spec.name;
  json["source"] = std::visit([](const auto& source) { return ToJson(source); },
                              spec.source);
  if (spec.shuffle) {
    json["shuffle"] = {{"seed", spec.shuffle->seed},
                       {"each_epoch", spec.shuffle->each_epoch}};
  } else {
    json["shuffle"] = "none";
  }
  json["seed"] = spec.seed;
  json["map"] = Json::array();
  for (const TransformSpec& transform : spec.map) {
    json["map"].push_back(
        std::visit([](const auto& op) { return ToJson(op); }, transform));
  }
  json["batch"] = {{spec.batch.per_rank ? "per_rank" : "size", spec.batch.size},
                   {"last", LastBatchName(spec.batch.last)}};
  if (spec.epochs) {
    json["epochs"] = *spec.epochs;
  } else {
    json["epochs"] = "forever";
  }
  if (spec.steps_per_epoch) json["steps_per_epoch"] = *spec.steps_per_epoch;
  json["prefetch"] = spec.prefetch;
  json["hold"] = spec.hold;
  json["on_error"] = OnErrorName(spec.on_error);
  return json;
}

std::string DifferingField(const DatasetSpec& here, const DatasetSpec& there) {
  return FirstDifference("", DatasetSpecToJson(here), DatasetSpecToJson(there));
}

}  // namespace penstock
