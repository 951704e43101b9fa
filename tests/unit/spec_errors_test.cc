// Promise: what is wrong with a step of `map` or `select`, a part, the shuffle
// or the batch is told before any row is made, where the text has it, with the
// step's path and the way out. Method: each step of the declarations with every
// kind of wrong value of each key, on features of every dtype and shape; and a
// table of what is wrong with each in its own way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/job/dataset.h"
#include "broker/plan/plan.h"
#include "common/kept_records.h"

namespace penstock::spec_errors_test {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kFeatures[] =
    "image: {dtype: uint8, shape: [8, 8, 3]}, gray: {dtype: uint8, shape: [8, "
    "9]}, five: {dtype: uint8, shape: [8, 8, 5]}, real: {dtype: float32, "
    "shape: [8, 8, 3]}, x: {dtype: float32, shape: [4]}, one: {dtype: "
    "float32, shape: []}, label: {dtype: int64, shape: []}, labels: {dtype: "
    "int64, shape: [3]}, flags: {dtype: bool, shape: [4]}, s: {dtype: uint8, "
    "shape: [16]}, s_bytes: {dtype: int64, shape: []}";
// Column value: 0, 1, 2, 0, 1, 2.
constexpr char kSource[] =
    "{concat: {parts: [{source: {range: 3}}, {source: {range: 3}}]}}";

// The first record is mapped, if it is made without reading.
void RunFirst(const Dataset& dataset, const std::string& text) {
  ReadRequest request;
  dataset.source->Locate(0, &request);
  if (request.kind != ReadRequest::Kind::kNone) return;
  std::vector<std::byte> memory;
  RawRecord raw;
  const Status unpacked = dataset.source->Unpack(0, {}, &memory, &raw);
  EXPECT_TRUE(unpacked.ok()) << unpacked.message();
  std::vector<std::vector<std::byte>> row;
  std::vector<std::byte*> out;
  const size_t program = dataset.ProgramOf(0);
  for (const Feature& each : dataset.programs[program]->element_spec()) {
    if (each.RowBytes() > (4 << 20)) return;
    row.emplace_back(each.RowBytes());
  }
  for (auto& each : row) out.push_back(each.data());
  const auto scratch = dataset.programs[program]->MakeScratch({});
  const Status ran = dataset.programs[program]->Run(raw, {}, *scratch, out);
  EXPECT_TRUE(ran.ok() || ran.code() == StatusCode::kDataLoss)
      << ran.message() << "\n"
      << text;
}

// What `penstock check` says of the spec before it tries a row; "": nothing.
std::string ErrorOf(const std::string& text, const std::string& folder = "/") {
  const StatusOr<DatasetSpec> spec = ParseDatasetSpec(text, "a.yaml", folder);
  if (!spec.ok()) return spec.status().message();
  OpenProgress progress;
  const auto dataset = OpenDataset(*spec, {}, &progress);
  if (!dataset.ok()) return dataset.status().message();
  const auto plan = PlanOf(*spec, **dataset, 1, 1);
  if (!plan.ok()) return Located(*spec, plan.status()).message();
  RunFirst(**dataset, text);
  return "";
}

std::string WithMap(const std::string& steps, const std::string& features) {
  return "dataset: d\nsource: {synthetic: {records: 10, features: {" +
         features + "}}}\nbatch: {size: 1}\nmap:\n" + steps + "\n";
}
std::string WithSelect(const std::string& steps) {
  return std::string("dataset: d\nsource: ") + kSource +
         "\nbatch: {size: 1}\nselect:\n" + steps + "\n";
}

// The place and the path of what is wrong, or what is wrong with the message.
void ExpectTold(const std::string& message, const std::string& path,
                const std::string& text) {
  static const std::regex form(R"(a\.yaml:[1-9][0-9]*:[1-9][0-9]*: ([^\n]*))");
  std::smatch found;
  ASSERT_TRUE(std::regex_match(message, found, form)) << message << "\n"
                                                      << text;
  EXPECT_THAT(found[1].str(), StartsWith(path)) << text;
  EXPECT_LT(message.size(), 1200u) << message;
  // A remedy, or what is wanted in its place.
  static const std::regex remedy(
      "wants|wanted|missing|give|put |use |change|choose|known here|did you "
      "mean|at most|at least|keep|needs|exclude|has to|write|say|such as|fewer|"
      "more than|it has|column '.*' has|goes forward|`|none of the parts|twice|"
      "is above|is not a name|is for|no such file|no whole "
      "number|once|mount|take |need |leave ");
  EXPECT_TRUE(std::regex_search(message, remedy))
      << "no way out: " << message << "\n"
      << text;
}

// ---- every key of every step

// Written as they are.
const char* const kWrong[] = {"{}",
                              "[]",
                              "[[]]",
                              "[1]",
                              "[1, 2]",
                              "[2, 1]",
                              "[-1, -2]",
                              "[.nan]",
                              "[1, 2, 3, 4, 5, 6, 7, 8, 9]",
                              "[a, a]",
                              "{a: 1}",
                              "{a: {b: c}}",
                              "{1: 1}",
                              "text",
                              "'1'",
                              "true",
                              "-1",
                              "-0.5",
                              "0",
                              "0.5",
                              "1.5",
                              "1",
                              "2",
                              "1e300",
                              "-1e300",
                              "1e999",
                              ".nan",
                              ".inf",
                              "nan",
                              "1000000000",
                              "9223372036854775807",
                              "9223372036854775808",
                              "18446744073709551616",
                              "99999999999999999999999",
                              "'a b'",
                              "''",
                              "../../x",
                              "s3://b/k",
                              "~"};

std::string Replaced(std::string text, const std::string& with) {
  const std::string place = "\"@\"";
  text.replace(text.find(place), place.size(), with);
  return text;
}

// {NAME: example} of a step, as JSON, by way of the parser.
template <typename Variant>
Json ExampleOf(const Kind& kind) {
  const bool is_map = std::is_same_v<Variant, TransformSpec>;
  const std::string step =
      "- " + kind.declared->name() + ": " + kind.declared->example();
  const std::string text = is_map ? WithMap(step, kFeatures) : WithSelect(step);
  const auto spec = ParseDatasetSpec(text, "a.yaml", "/");
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return DatasetSpecToJson(*spec).at(is_map ? "map" : "select").at(0);
}

bool TakesText(const std::string& name) {
  return name == "lookup" || name == "hash" || name == "parse_json" ||
         name == "tokenize" || name == "vectorize_text" ||
         name == "encode_bytes";
}

// Returns how many values were refused.
template <typename Variant>
int TryWrongValues(const Kind& kind, const DeclarationBase::Field& field) {
  const std::string list =
      std::is_same_v<Variant, TransformSpec> ? "map" : "select";
  const std::string name = kind.declared->name();
  int refused = 0;
  const Json example = ExampleOf<Variant>(kind);
  for (const char* wrong : kWrong) {
    Json step = example;
    Json& keys = step.at(name);
    if (keys.contains("feature") && keys["feature"] != "image") {
      keys["feature"] = name == "one_hot" ? "label"
                        : TakesText(name) ? "s"
                                          : "x";
    }
    for (const char* column : {"column", "by"}) {
      if (keys.contains(column)) keys[column] = "value";
    }
    if (keys.contains("label")) keys["label"] = Json::array();
    // The choices of a crop exclude each other.
    for (const auto& other : kind.declared->fields()) {
      if (field.one_of && other.one_of) keys.erase(other.key);
    }
    keys[field.key] = "@";
    const std::string item = "- " + Replaced(step.dump(), wrong);
    const std::string text =
        list == "map" ? WithMap(item, kFeatures) : WithSelect(item);
    const std::string message = ErrorOf(text);
    if (message.empty()) continue;
    ++refused;
    ExpectTold(message, Format("{}[0].{}", list, name), text);
  }
  return refused;
}

template <typename Variant>
void TryEveryKey() {
  for (const Kind& kind : KindsOf<Variant>()) {
    for (const auto& field : kind.declared->fields()) {
      EXPECT_GT(TryWrongValues<Variant>(kind, field), 0)
          << kind.declared->name() << "." << field.key << " takes anything";
    }
  }
}

TEST(SpecErrorsTest, EveryKeyOfEveryStepOfMap) { TryEveryKey<TransformSpec>(); }
TEST(SpecErrorsTest, EveryKeyOfEveryStepOfSelect) { TryEveryKey<SelectSpec>(); }

TEST(SpecErrorsTest, EveryKeyOfTheOrderTheBatchAndTheCache) {
  setenv("PENSTOCK_CACHE_DIR", testing::TempDir().c_str(), 1);
  const auto try_all = [](const DeclarationBase& declared) {
    for (const auto& field : declared.fields()) {
      int refused = 0;
      for (const char* wrong : kWrong) {
        const std::string text = Format(
            "dataset: d\nsource: {{range: 9}}\n{}\n{}: {{{}{}: {}}}\n",
            declared.name() == "batch" ? "" : "batch: {size: 1}",
            declared.name(),
            declared.name() == "shuffle" && field.key != "seed" ? "seed: 1, "
            : field.key == "last"                               ? "size: 1, "
            : field.key == "at"                                 ? "memory: 1M, "
            : field.key == "zstd"                               ? "disk: 1M, "
                                                                : "",
            field.key, wrong);
        const std::string message = ErrorOf(text);
        if (message.empty()) continue;
        ++refused;
        ExpectTold(message, declared.name(), text);
      }
      EXPECT_GT(refused, 0) << field.key;
    }
  };
  try_all(ShuffleSpec::Declared());
  try_all(BatchSpec::Declared());
  try_all(CacheSpec::Declared());
}

// ---- every dtype and shape

// A step's example, on feature x.
std::string OnX(const Kind& kind) {
  const std::string name = kind.declared->name();
  Json step = ExampleOf<TransformSpec>(kind);
  Json& keys = step.at(name);
  if (name == "concatenate") keys["features"] = {"x", "y"};
  if (name == "select" || name == "drop") keys["features"] = {"x"};
  if (name == "rename" || name == "copy") keys["features"] = {{"x", "z"}};
  if (name == "reshape") keys["shape"] = {-1};
  if (name == "blur") keys["kernel"] = 3;
  if (keys.contains("feature")) keys["feature"] = "x";
  if (keys.contains("label")) keys["label"] = Json::array();
  return step.dump();
}

TEST(SpecErrorsTest, EveryStepOnEveryDTypeAndShape) {
  const char* const dtypes[] = {"uint8",   "int8",    "int16",    "int32",
                                "int64",   "float16", "bfloat16", "float32",
                                "float64", "bool"};
  const char* const shapes[] = {
      "",        "1",       "7",          "9, 8",
      "8, 9, 1", "8, 9, 3", "8, 9, 4",    "8, 9, 5",
      "1, 1, 3", "7, 4",    "2, 2, 2, 3", "1, 1, 1, 1, 1, 1, 1, 1"};
  for (const Kind& kind : KindsOf<TransformSpec>()) {
    const std::string& name = kind.declared->name();
    const std::string step = OnX(kind);
    bool accepted = false;
    for (const char* dtype : dtypes) {
      for (const char* shape : shapes) {
        const std::string text = WithMap(
            "- " + step,
            Format("y: {{dtype: int64, shape: []}}, x: {{dtype: {}, shape: "
                   "[{}]}}",
                   dtype, shape));
        const std::string message = ErrorOf(text);
        accepted |= message.empty();
        if (!message.empty()) ExpectTold(message, "map[0]." + name, text);
      }
    }
    // Those that take what this test has none of.
    const std::set<std::string> other = {
        "decode_image",   "decode_audio", "noise", "tokenize",
        "sanitize_boxes", "python",       "plugin"};
    EXPECT_EQ(accepted, !other.contains(name)) << step;
  }
}

// ---- a step at a time

// What is wrong, where, and some of the words. The place is the step's name
// and key, or the whole path where it is not of the first step.
struct Case {
  const char* step;
  const char* text;
  const char* place;
  const char* words;
};

constexpr Case kMapCases[] = {
    {"decode_image", "decode_image: {size: 4}", "decode_image",
     "wants a picture file, found image uint8 [8, 8, 3]; use resize"},
    {"decode_image", "decode_image: {size: 0}", "decode_image.size",
     "from 1 to 65535"},
    {"decode_image", "decode_image: {size: 4, crop: at}", "decode_image.crop",
     "give its {top, left, height, width}"},
    {"decode_image",
     "decode_image: {size: 4, crop: {random_resized: {scale: [1, 0.5]}}}",
     "decode_image.crop.random_resized.scale", "1 is above 0.5"},
    {"decode_audio",
     "decode_audio: {rate: 8000, seconds: 1, mono: true, feature: x}",
     "decode_audio", "wants a sound file, found x float32"},
    {"decode_audio", "decode_audio: {rate: 8000, seconds: 1}", "decode_audio",
     "needs `mono: true`, or `channels`"},
    {"decode_audio",
     "decode_audio: {rate: 8000, seconds: 1, mono: true, channels: 1}",
     "decode_audio.channels", "mono has one: leave one of them out"},
    {"decode_audio", "decode_audio: {rate: 999, seconds: 1, mono: true}",
     "decode_audio.rate", "from 1000 to 768000"},
    {"decode_audio", "decode_audio: {rate: 8000, seconds: 0, mono: true}",
     "decode_audio.seconds", "from 0.001 to 86400"},
    {"mel_spectrogram", "mel_spectrogram: {rate: 8000, feature: image}",
     "mel_spectrogram", "wants float32 [samples], found image uint8"},
    {"mel_spectrogram", "mel_spectrogram: {rate: 8000, window: 500}",
     "mel_spectrogram.window", "500 is more than fft, 400"},
    {"mel_spectrogram", "mel_spectrogram: {rate: 8000, max_hz: 4001}",
     "mel_spectrogram.max_hz", "4001 is more than half the rate, 4000"},
    {"mel_spectrogram", "mel_spectrogram: {rate: 8000, min_hz: 4000}",
     "mel_spectrogram.min_hz", "wanted less than max_hz, 4000, found 4000"},
    {"mel_spectrogram", "mel_spectrogram: {rate: 8000, mels: 0}",
     "mel_spectrogram.mels", "from 1 to 1024"},
    {"mask_spectrogram", "mask_spectrogram: {time: 3, feature: image}",
     "mask_spectrogram", "wants float32 [frames, mels], found image uint8"},
    {"mask_spectrogram", "mask_spectrogram: {share: 1.5}",
     "mask_spectrogram.share", "from 0 to 1"},
    {"noise",
     "noise: {files: gone.wav, rate: 8000, snr: [0, 9], feature: real}",
     "noise", "wants float32 [samples], found real float32 [8, 8, 3]"},
    {"noise", "noise: {files: gone.wav, rate: 8000, snr: [0, 9], feature: x}",
     "noise", "gone.wav"},
    {"noise", "noise: {files: a.wav, rate: 8000, snr: [9, 0]}", "noise.snr",
     "9 is above 0"},
    {"gain", "gain: {decibels: 3, feature: image}", "gain",
     "wants float32, found image uint8"},
    {"gain", "gain: {decibels: [3, 2]}", "gain.decibels", "3 is above 2"},
    {"crop", "crop: {size: 4}", "crop", "needs one of"},
    {"crop", "crop: {at: {top: 5, left: 0, height: 5, width: 1}, size: 4}",
     "crop", "takes rows to 10 and columns to 1 of a picture of 8 x 8"},
    {"crop", "crop: {center: {fraction: 0}, size: 4}", "crop.center.fraction",
     "from 0.001 to 1"},
    {"crop", "crop: {feature: real, center: {}, size: 4}", "crop",
     "put crop before the op that changes them"},
    {"crop", "crop: {feature: five, center: {}, size: 4}", "crop",
     "wants pixels of 1 to 4 channels"},
    {"crop", "crop: {random_pixels: {padding: -1}, size: 4}",
     "crop.random_pixels.padding", "from 0 to 65535"},
    {"crop", "crop: {random_pixels: {shorter: [9, 3]}, size: 4}",
     "crop.random_pixels.shorter", "9 is above 3"},
    {"crop", "crop: {fit: {fill: [1, 2]}, size: 4}", "crop.fill",
     "give one, or one for each of 3 channels"},
    {"resize", "resize: {}", "resize",
     "give exactly one of size, shorter, within"},
    {"resize", "resize: {size: 4, shorter: 4}", "resize",
     "give exactly one of"},
    {"resize", "resize: {shorter: 65536}", "resize.shorter", "from 1 to 65535"},
    {"resize", "resize: {feature: x, size: 4}", "resize",
     "wants an image [h, w] or [h, w, c], found x float32 [4]"},
    {"resize", "resize: {feature: gone, size: 4}", "resize",
     "no feature 'gone': give one of image, gray"},
    {"pad", "pad: {}", "pad", "give exactly one of by (above 0), size"},
    {"pad", "pad: {size: 4}", "pad",
     "size 4 x 4 is smaller than image uint8 [8, 8, 3]; use crop"},
    {"pad", "pad: {by: 65535}", "pad", "a side has at most 65535"},
    {"pad", "pad: {by: 1, fill: 256}", "pad.fill",
     "wanted a whole number from 0 to 255"},
    {"flip", "flip: {horizontal: 1.01}", "flip.horizontal", "from 0 to 1"},
    {"flip", "flip: {feature: label}", "flip", "wants an image"},
    {"flip", "flip: {feature: [image, image]}", "flip.feature",
     "'image' is in it twice"},
    {"flip", "flip: {feature: []}", "flip", "names no feature"},
    {"rotate", "rotate: {}", "rotate.degrees", "is missing"},
    {"rotate", "rotate: {degrees: [20, 10]}", "rotate.degrees",
     "20 is above 10"},
    {"rotate", "rotate: {degrees: 1e9}", "rotate.degrees", "from 0 to 3600"},
    {"rotate", "rotate: {degrees: 5, center: [1]}", "rotate.center",
     "a list [x, y]"},
    {"rotate", "rotate: {degrees: 5, feature: five}", "rotate",
     "wants pixels of 1 or 3 channels"},
    {"rotate", "rotate: {degrees: 5, mask: label}", "rotate", "wants an image"},
    {"rotate", "rotate: {degrees: 5, feature: image, mask: gray}", "rotate",
     "pictures of one size together"},
    {"affine", "affine: {scale: [0, 1]}", "affine.scale", "from 0.01 to 100"},
    {"affine", "affine: {shear: 90}", "affine.shear", "from 0 to 89"},
    {"affine", "affine: {translate: 0.5}", "affine.translate", "a list of two"},
    {"affine", "affine: {translate: [0.5, 2]}", "affine.translate[1]",
     "from 0 to 1"},
    {"perspective", "perspective: {distortion: 2}", "perspective.distortion",
     "from 0 to 1"},
    {"perspective", "perspective: {corners: [0, 0, 1, 1, 2, 2, 3, 3]}",
     "perspective", "give four points of which no three are on a line"},
    {"perspective", "perspective: {boxes: real}", "perspective",
     "wants boxes float32 [n, 4], found real float32"},
    {"convert_boxes", "convert_boxes: {from: xywh}", "convert_boxes.to",
     "is missing"},
    {"convert_boxes", "convert_boxes: {from: yxyx, to: xyxy}",
     "convert_boxes.from", "known here: xyxy, xywh, cxcywh"},
    {"convert_boxes", "convert_boxes: {feature: image, from: xywh, to: xyxy}",
     "convert_boxes",
     "wants boxes float32 [n, 4], found image uint8 [8, 8, 3]; `cast`"},
    {"sanitize_boxes", "sanitize_boxes: {feature: x}", "sanitize_boxes.labels",
     "is missing"},
    {"sanitize_boxes", "sanitize_boxes: {feature: x, labels: []}",
     "sanitize_boxes", "found x float32 [4] without a 'x.length'"},
    {"sanitize_boxes", "sanitize_boxes: {feature: x, labels: [], min_size: -1}",
     "sanitize_boxes.min_size", "from 0 to 65535"},
    {"color_jitter", "color_jitter: {hue: 0.6}", "color_jitter.hue",
     "from 0 to 0.5"},
    {"color_jitter", "color_jitter: {brightness: -1}",
     "color_jitter.brightness", "from 0"},
    {"color_jitter", "color_jitter: {contrast: [2, 1]}",
     "color_jitter.contrast", "2 is above 1"},
    {"grayscale", "grayscale: {probability: -0.1}", "grayscale.probability",
     "from 0 to 1"},
    {"grayscale", "grayscale: {feature: flags}", "grayscale", "wants an image"},
    {"blur", "blur: {kernel: 4}", "blur.kernel", "wanted an odd number"},
    {"blur", "blur: {kernel: 17}", "blur",
     "a kernel of 17 reaches across image uint8 [8, 8, 3]: at most 15"},
    {"blur", "blur: {kernel: 3, sigma: [0, 1]}", "blur.sigma[0]", "from 0.001"},
    {"sharpness", "sharpness: {factor: -1}", "sharpness.factor",
     "from 0 to 100"},
    {"solarize", "solarize: {threshold: 257}", "solarize.threshold",
     "from 0 to 256"},
    {"posterize", "posterize: {bits: 9}", "posterize.bits", "from 0 to 8"},
    {"posterize", "posterize: {bits: 1.5}", "posterize.bits", "whole number"},
    {"equalize", "equalize: {probability: nan}", "equalize.probability",
     "from 0 to 1"},
    {"equalize", "equalize:", "equalize",
     "write `equalize: {}` for the defaults"},
    {"autocontrast", "autocontrast: {feature: real}", "autocontrast",
     "wants uint8 values"},
    {"invert", "invert: {probability: 2}", "invert.probability", "from 0 to 1"},
    {"invert", "normalize: {mean: 0, std: 1}\n- invert: {}", "map[1].invert",
     "put invert before the op that changes them"},
    {"rand_augment", "rand_augment: {magnitude: 31, bins: 31}",
     "rand_augment.magnitude",
     "31 of 31 bins, which begin with 0: wanted at most 30"},
    {"rand_augment", "rand_augment: {bins: 3}", "rand_augment.magnitude",
     "wanted at most 2"},
    {"rand_augment", "rand_augment: {operations: -1}",
     "rand_augment.operations", "from 0 to 64"},
    {"trivial_augment", "trivial_augment: {bins: 0}", "trivial_augment.bins",
     "from 1 to 1000"},
    {"trivial_augment", "trivial_augment: {interpolation: lanczos}",
     "trivial_augment.interpolation", "known here"},
    {"aug_mix", "aug_mix: {severity: 11}", "aug_mix.severity", "from 1 to 10"},
    {"aug_mix", "aug_mix: {alpha: 0}", "aug_mix.alpha", "from 0.01 to 100"},
    {"aug_mix", "aug_mix: {mask: gray}", "aug_mix", "unknown key 'mask'"},
    {"timm_rand_augment", "timm_rand_augment: {bins: 31}", "timm_rand_augment",
     "unknown key 'bins'"},
    {"timm_rand_augment", "timm_rand_augment: {operations: 65}",
     "timm_rand_augment.operations", "from 0 to 64"},
    {"timm_rand_augment", "timm_rand_augment: {magnitude: -1}",
     "timm_rand_augment.magnitude", "from 0 to 100"},
    {"timm_rand_augment", "timm_rand_augment: {magnitude_std: .inf}",
     "timm_rand_augment.magnitude_std", "from 0 to 100"},
    {"timm_rand_augment", "timm_rand_augment: {magnitude_max: 0}",
     "timm_rand_augment.magnitude_max", "from 1 to 100"},
    {"timm_rand_augment", "timm_rand_augment: {increasing: 1}",
     "timm_rand_augment.increasing", "true or false"},
    {"timm_rand_augment", "timm_rand_augment: {probability: 1.5}",
     "timm_rand_augment.probability", "from 0 to 1"},
    {"timm_rand_augment", "timm_rand_augment: {interpolation: random}",
     "timm_rand_augment.interpolation", "known here"},
    {"timm_rand_augment", "timm_rand_augment: {fill: [1, 2]}",
     "timm_rand_augment.fill", "has 2 values"},
    {"timm_rand_augment", "timm_rand_augment: {feature: real}",
     "timm_rand_augment", "wants uint8 values"},
    {"normalize", "normalize: {}", "normalize.mean", "is missing"},
    {"normalize", "normalize: {feature: x, mean: [1, 2], std: 1}", "normalize",
     "wants one finite number, or one for each of its 4 channels"},
    {"normalize", "normalize: {mean: 0, std: 0}", "normalize.std",
     "to divide by"},
    {"normalize", "normalize: {mean: 0, std: -1}", "normalize.std",
     "to divide by"},
    {"normalize", "normalize: {mean: 0, std: 1, from: few.json}",
     "normalize.mean", "`from` says it"},
    {"normalize", "normalize: {feature: x, from: few.json}", "normalize",
     "run `penstock analyze` again"},
    {"normalize", "normalize: {feature: x, from: nan.json}", "normalize",
     "one finite number"},
    {"normalize", "normalize: {feature: x, from: gone.json}", "normalize",
     "gone.json"},
    {"normalize", "normalize: {feature: x, from: other.json}", "normalize",
     "`penstock analyze SPEC.yaml --out FILE` writes it"},
    {"normalize", "normalize: {feature: one, from: few.json}", "normalize",
     "has no feature 'one', but x"},
    {"normalize", "normalize: {feature: flags, mean: 0, std: 1}", "normalize",
     "put `cast` before it"},
    {"normalize", "normalize: {feature: x, mean: 0, std: 1, layout: chw}",
     "normalize", "wants an image"},
    {"random_erasing", "random_erasing: {value: random}",
     "random_erasing.value", "put it after normalize"},
    {"random_erasing", "random_erasing: {value: 300}", "random_erasing.value",
     "put it after normalize"},
    {"random_erasing", "random_erasing: {value: [1, 2]}",
     "random_erasing.value", "wants 1 or 3"},
    {"random_erasing", "random_erasing: {ratio: [0, 1]}",
     "random_erasing.ratio[0]", "from 0.01"},
    {"random_erasing", "random_erasing: {feature: x}", "random_erasing",
     "wants an image"},
    {"mixup", "mixup: {}", "mixup", "put one_hot before it"},
    {"mixup", "mixup: {label: [], alpha: 0}", "mixup", "give one of them"},
    {"mixup", "mixup: {label: [], alpha: 0.0001}", "mixup.alpha",
     "at least 0.001, or 0"},
    {"mixup", "mixup: {label: [], alpha: -1}", "mixup.alpha", "from 0 to 1000"},
    {"mixup", "mixup: {label: [], feature: labels}", "mixup",
     "put `cast` before it"},
    {"mixup", "mixup: {label: [], feature: x, cutmix_alpha: 1}", "mixup",
     "wants an image"},
    {"mixup", "mixup: {label: [], feature: [image, gray], cutmix_alpha: 1}",
     "mixup", "use resize before it"},
    {"mixup", "mixup: {label: x, feature: [x, image]}", "mixup", "twice"},
    {"mixup", "mixup: {label: []}\n- invert: {}", "map[1].invert",
     "put it before mixup and cutmix"},
    {"cutmix", "cutmix: {alpha: 0}", "cutmix.alpha", "from 0.001"},
    {"cutmix", "cutmix: {label: [], probability: 2}", "cutmix.probability",
     "from 0 to 1"},
    {"cutmix", "cutmix: {label: [], feature: x}", "cutmix", "wants an image"},
    {"cutmix", "cutmix: {label: []}\n- cast: {feature: x, dtype: int8}",
     "map[1].cast", "put it before mixup and cutmix"},
    {"cast", "cast: {dtype: float}", "cast.dtype", "did you mean 'float32'"},
    {"cast", "cast: {feature: x, dtype: int8, layout: chw}", "cast",
     "wants an image"},
    {"rescale", "rescale: {offset: 1}", "rescale.scale", "is missing"},
    {"rescale", "rescale: {scale: 1e31}", "rescale.scale",
     "from -1e+30 to 1e+30"},
    {"rescale", "rescale: {scale: 1, feature: flags}", "rescale",
     "put `cast` before it"},
    {"rescale", "rescale: {scale: 1, dtype: int8}", "rescale.dtype",
     "known here: float16"},
    {"clip", "clip: {feature: x}", "clip", "give min, max or both"},
    {"clip", "clip: {feature: x, min: 2, max: 1}", "clip.min",
     "2 is more than max, 1"},
    {"clip", "clip: {feature: label, max: 0.5}", "clip.max",
     "0.5 is no value of label int64 []; put `cast` before it"},
    {"clip", "clip: {feature: image, min: -1}", "clip.min",
     "-1 is no value of image"},
    {"clip", "clip: {feature: x, min: nan}", "clip.min", "wanted a number"},
    {"bucketize", "bucketize: {feature: x, boundaries: []}",
     "bucketize.boundaries", "a list of 1 to 4096 numbers"},
    {"bucketize", "bucketize: {feature: x, boundaries: [1, 1]}",
     "bucketize.boundaries[1]", "does not increase, after 1: give"},
    {"bucketize", "bucketize: {feature: flags, boundaries: [1]}", "bucketize",
     "put `cast` before it"},
    {"one_hot", "one_hot: {feature: label, classes: 0}", "one_hot.classes",
     "from 1 to 16777216"},
    {"one_hot", "one_hot: {feature: x, classes: 5}", "one_hot",
     "put `cast: {dtype: int64}` before it"},
    {"one_hot", "one_hot: {feature: image, classes: 10000000}", "one_hot",
     "more than 268435456 bytes"},
    {"label_smoothing", "label_smoothing: {feature: label}", "label_smoothing",
     "put one_hot before it"},
    {"label_smoothing", "label_smoothing: {feature: one}", "label_smoothing",
     "put one_hot before it"},
    {"label_smoothing", "label_smoothing: {feature: x, smoothing: 1.5}",
     "label_smoothing.smoothing", "from 0 to 1"},
    {"lookup", "lookup: {feature: s, vocabulary: []}", "lookup.vocabulary",
     "a list of words"},
    {"lookup", "lookup: {feature: s, vocabulary: [a, b, a]}",
     "lookup.vocabulary[2]", "'a' is there before: each token once"},
    {"lookup", "lookup: {feature: s, vocabulary: gone.txt}", "lookup",
     "gone.txt"},
    {"lookup", "lookup: {feature: s, vocabulary: empty.txt}", "lookup",
     "wanted a token a line"},
    {"lookup", "lookup: {feature: s, vocabulary: twice.txt}", "lookup",
     "twice.txt:3: 'a' is there before"},
    {"lookup", "lookup: {feature: s, vocabulary: huge.txt}", "lookup",
     "a vocabulary of 10737418240 bytes; at most 4294967296"},
    {"lookup", "lookup: {feature: label, vocabulary: words.txt}", "lookup",
     "'a' is no whole number of 64 bits"},
    {"lookup", "lookup: {feature: x, vocabulary: [a]}", "lookup",
     "wants integers, found x float32 [4]"},
    {"lookup", "lookup: {feature: s, vocabulary: [a], default: 1}",
     "lookup.default", "it is for oov_buckets: 0"},
    {"lookup", "lookup: {feature: s, vocabulary: [a], mask: a}", "lookup.mask",
     "take it out of one of them"},
    {"lookup", "lookup: {feature: s, vocabulary: {from: few.json, feature: x}}",
     "lookup", "has no vocabulary of 'x'"},
    {"hash", "hash: {feature: s, bins: 0}", "hash.bins", "from 1 to"},
    {"hash", "hash: {feature: s, bins: 1, mask: ''}", "hash.bins",
     "wanted 2 at least"},
    {"hash", "hash: {feature: x, bins: 5}", "hash",
     "bucketize makes integers of them"},
    {"parse_json", "parse_json: {feature: x, fields: {a: {dtype: int64}}}",
     "parse_json", "wants text, uint8 [bytes], found x float32 [4]"},
    {"parse_json", "parse_json: {feature: gray, fields: {a: {dtype: int64}}}",
     "parse_json", "wants one text of at most"},
    {"parse_json", "parse_json: {feature: s, fields: {}}", "parse_json.fields",
     "wanted"},
    {"parse_json", "parse_json: {feature: s, fields: {label: {dtype: int64}}}",
     "parse_json", "two features are then named 'label'"},
    {"tokenize", "tokenize: {feature: s, file: a.json}", "tokenize.max_length",
     "is missing"},
    {"tokenize", "tokenize: {feature: [], file: a.json, max_length: 9}",
     "tokenize.feature", "wanted a text, or a pair of two, found 0"},
    {"tokenize", "tokenize: {feature: x, file: a.json, max_length: 9}",
     "tokenize", "wants text, uint8 [bytes], found x float32 [4]"},
    {"tokenize", "tokenize: {feature: gray, file: a.json, max_length: 9}",
     "tokenize", "wants one text, uint8 [bytes], found gray uint8 [8, 9]"},
    {"tokenize", "tokenize: {feature: s, file: a.json, max_length: 9, to: x}",
     "tokenize", "two features are then named 'x'"},
    {"tokenize", "tokenize: {feature: s, file: a.json, max_length: 9}",
     "tokenize", "python_path"},
    {"tokenize", "tokenize: {feature: s, file: a, max_length: 9, chat: {}}",
     "tokenize.chat", "wants a template: that of `config: tokenizer_config"},
    {"tokenize",
     "tokenize: {feature: [s, t], file: a, max_length: 9, chat: {config: a}}",
     "tokenize.feature", "a pair, and a chat is one text"},
    {"tokenize",
     "tokenize: {feature: s, file: a, max_length: 9, type_ids: t, chat: "
     "{config: a}}",
     "tokenize.type_ids", "is of a pair, and a chat is one text"},
    {"tokenize",
     "tokenize: {feature: s, file: a, max_length: 9, chat: {config: a, "
     "train_on: []}}",
     "tokenize.chat.train_on", "a list of 1 to 64 roles"},
    {"tokenize",
     "tokenize: {feature: s, file: a, max_length: 9, chat: {config: a, mask: "
     "x}}",
     "tokenize", "two features are then named 'x'"},
    {"tokenize",
     "tokenize: {feature: s, file: a, max_length: 9, chat: {config: a, roles: "
     "{a: 'b c'}}}",
     "tokenize.chat.roles", "a name of 1 to 64"},
    {"tokenize",
     "tokenize: {feature: s, file: a, max_length: 9, chat: {config: a, "
     "variables: [x]}}",
     "tokenize.chat.variables", "wanted a mapping"},
    {"vectorize_text", "vectorize_text: {feature: s, vocabulary: [a]}",
     "vectorize_text.max_length", "is missing: give the room of a row"},
    {"vectorize_text",
     "vectorize_text: {feature: s, vocabulary: [a], output: count, max_length: "
     "9}",
     "vectorize_text.max_length", "is for `output: int`"},
    {"vectorize_text",
     "vectorize_text: {feature: s, vocabulary: [a], output: tf_idf}",
     "vectorize_text.idf", "tf_idf needs a file of weights"},
    {"vectorize_text",
     "vectorize_text: {feature: s, vocabulary: [a], max_length: 9, idf: "
     "words.txt}",
     "vectorize_text.idf", "is for `output: tf_idf`"},
    {"vectorize_text",
     "vectorize_text: {feature: s, vocabulary: [a, b], output: tf_idf, idf: "
     "words.txt}",
     "vectorize_text", "words.txt:1: 'a' is no number; wanted a weight a line"},
    {"vectorize_text",
     "vectorize_text: {feature: s, vocabulary: {from: few.json, feature: x}, "
     "output: tf_idf}",
     "vectorize_text", "has no vocabulary of 'x'"},
    {"vectorize_text",
     "vectorize_text: {feature: s, vocabulary: [a], max_length: 9, split: "
     "none, "
     "ngrams: 2}",
     "vectorize_text.ngrams", "has no neighbours: leave it out"},
    {"vectorize_text",
     "vectorize_text: {feature: s, vocabulary: [a], max_length: 9, ngrams: 17}",
     "vectorize_text.ngrams", "from 1 to 16"},
    {"vectorize_text",
     "vectorize_text: {feature: s, vocabulary: [a, ''], max_length: 9}",
     "vectorize_text", "has '', which has number 0: take it out"},
    {"vectorize_text",
     "vectorize_text: {feature: x, vocabulary: [a], max_length: 9}",
     "vectorize_text", "wants text, uint8 [bytes], found x float32 [4]"},
    {"encode_bytes", "encode_bytes: {feature: s, begin: 1, max_length: 1}",
     "encode_bytes", "has no room beside begin and end: give more"},
    {"encode_bytes", "encode_bytes: {feature: s, offset: -1}",
     "encode_bytes.offset", "from 0 to"},
    {"encode_bytes", "encode_bytes: {feature: gray}", "encode_bytes",
     "wants one text, uint8 [bytes], found gray uint8 [8, 9]"},
    {"pad_sequence", "pad_sequence: {feature: x, length: 0}",
     "pad_sequence.length", "from 1 to"},
    {"pad_sequence", "pad_sequence: {feature: x, length: -3}",
     "pad_sequence.length", "from 1 to"},
    {"pad_sequence", "pad_sequence: {feature: labels, length: 5, value: 0.5}",
     "pad_sequence.value",
     "0.5 is no value of labels int64 [3]; put `cast` before it"},
    {"pad_sequence", "pad_sequence: {feature: one, length: 5}", "pad_sequence",
     "`reshape: {shape: [1]}` makes one"},
    {"pad_sequence", "pad_sequence: {feature: image, length: 268435456}",
     "pad_sequence", "more than 268435456 bytes"},
    {"concatenate", "concatenate: {features: [x], to: z}",
     "concatenate.features", "a list of 2 to 64 names"},
    {"concatenate", "concatenate: {features: [x, x], to: z}", "concatenate",
     "names feature 'x' twice"},
    {"concatenate", "concatenate: {features: [x, label], to: z}", "concatenate",
     "(`cast` and `reshape` change them)"},
    {"concatenate", "concatenate: {features: [x, one], to: s}", "concatenate",
     "two features are then named 's'"},
    {"concatenate", "concatenate: {features: [x, gone], to: z}", "concatenate",
     "no feature 'gone'"},
    {"reshape", "reshape: {feature: x, shape: [3]}", "reshape.shape",
     "x float32 [4] has 4 values, which [3] does not hold: give dimensions"},
    {"reshape", "reshape: {feature: x, shape: [-1, -1]}", "reshape.shape",
     "does not hold"},
    {"reshape", "reshape: {feature: x, shape: [0]}", "reshape.shape",
     "does not hold"},
    {"reshape", "reshape: {feature: x, shape: [-2]}", "reshape.shape[0]",
     "from -1 to"},
    {"select", "select: {features: []}", "select.features",
     "names no feature: give one"},
    {"select", "select: {features: [x, gone]}", "select", "no feature 'gone'"},
    {"drop",
     "drop: {features: [image, gray, five, real, x, one, label, labels, flags, "
     "s]}",
     "drop", "leaves a row no feature: keep one"},
    {"drop", "drop: {features: gone}", "drop", "no feature 'gone'"},
    {"rename", "rename: {features: {}}", "rename.features",
     "a mapping of 1 to 64 names, OLD: NEW"},
    {"rename", "rename: {features: {x: label}}", "rename",
     "two features are then named 'label'"},
    {"rename", "rename: {features: [x, y]}", "rename.features", "OLD: NEW"},
    {"rename", "rename: {features: {x: 'a b'}}", "rename.features.x",
     "a name of 1 to 64 letters"},
    {"copy", "copy: {features: {x: []}}", "copy.features.x",
     "a list of 1 to 64"},
    {"copy", "copy: {features: {x: [z, z]}}", "copy",
     "two features are then named 'z'"},
    {"copy", "copy: {features: {gone: z}}", "copy", "no feature 'gone'"},
    {"copy", "copy: {features: [x, z]}", "copy.features", "OLD: [NEW, ...]"},
    {"keep_encoded", "keep_encoded: {max_bytes: 0}", "keep_encoded.max_bytes",
     "from 1 to 268435456"},
    {"python", "python: {function: rotate}", "python.function",
     "package.module:function"},
    {"python", "python: {function: 'a:b'}", "python: a:b", "python_path"},
    {"python",
     "python: {function: 'a:b', features: {x: {dtype: int8, shape: [-1]}}}",
     "python.features.x.shape[0]", "from 1 to"},
    {"plugin", "plugin: {library: ../a.so, function: f}", "plugin.library",
     "the name of a file"},
    {"plugin", "plugin: {library: a.so, function: f}", "plugin: f of a.so",
     "`plugin_dir` in its configuration"},
};

constexpr Case kSelectCases[] = {
    {"filter", "filter: {column: value}", "filter",
     "wanted one of in, except, min, max, matches as well"},
    {"filter", "filter: {column: gone, in: [1]}", "filter", "no column 'gone'"},
    {"filter", "filter: {column: value, in: [7]}", "filter",
     "none of 6 records has such a value; column 'value' has '0', '1', '2'"},
    {"filter", "filter: {column: value, min: 2, max: 1}", "filter.min",
     "2 is more than max, 1"},
    {"filter", "filter: {column: value, min: nan}", "filter.min",
     "wanted a number"},
    {"filter", "filter: {column: value, in: []}", "filter.in",
     "an empty list keeps nothing: give values"},
    {"filter", "filter: {column: value, in: 3}", "filter.in",
     "a list of at most"},
    {"filter", "filter: {in: [3]}", "filter",
     "wanted a column, or records, a file that `penstock filter` writes"},
    {"filter", "filter: {column: value, records: kept.records}", "filter",
     "not both: a filter for each"},
    {"filter", "filter: {records: kept.records, in: [1]}", "filter.in",
     "is of a column, and `records` has none"},
    {"filter", "filter: {records: gone.records}", "filter.records", "gone"},
    {"filter", "filter: {records: empty.txt}", "filter.records",
     "is no file of kept records: its first line has no end; `penstock filter` "
     "writes one"},
    {"filter", "filter: {records: huge.txt}", "filter.records",
     "is no file of kept records"},
    {"filter", "filter: {records: words.txt}", "filter.records",
     "its first line has no header"},
    {"filter", "filter: {records: newer.records}", "filter.records",
     "is of version 2, and this Penstock reads version 1"},
    {"filter", "filter: {records: cut.records}", "filter.records",
     "it is not whole; run `penstock filter` again"},
    {"filter", "filter: {records: damaged.records}", "filter.records",
     "its bits are not those of its checksum; run `penstock filter` again"},
    {"filter", "filter: {records: more.records}", "filter.records",
     "was made of 7 records, and the source has 6: the data have changed"},
    {"filter", "filter: {records: other.records}", "filter.records",
     "was made of other data, or of these before they changed"},
    {"exclude", "exclude: gone.txt", "exclude", "there is no such file"},
    {"exclude", "exclude: words.txt", "exclude",
     "line 1: wanted the number of a record, and a blank before anything else, "
     "found 'a'"},
    {"exclude", "exclude: [1, 2]", "exclude", "wanted a path"},
    {"exclude", "exclude: huge.txt", "exclude", "a list has at most 268435456"},
    {"exclude", "sample: {rows: 9}\n- exclude: words.txt", "select[1].exclude",
     "line 1"},
    {"exclude", "sample: {rows: 9}\n- exclude: empty.txt", "select[1].exclude",
     "put `exclude` before it"},
    {"filter", "sample: {rows: 9}\n- filter: {column: value, min: 1}",
     "select[1].filter",
     "a sample has other records at the same place in each pass: put `filter` "
     "before it"},
    {"filter", "balance: {by: value}\n- filter: {column: value, min: 1}",
     "select[1].filter",
     "put `filter` before it, or into the `select` of each part"},
    {"shard", "balance: {by: value}\n- shard: {index: 0, of: 2, by: value}",
     "select[1].shard", "put `shard` before it"},
    {"sample", "sample: {rows: 9}\n- sample: {by: value, weights: {0: 2}}",
     "select[1].sample", "put `sample` before it"},
    {"balance", "balance: {by: value}\n- balance: {by: value}",
     "select[1].balance", "put `balance` before it"},
    {"take", "take: 0", "take", "a whole number from 1"},
    {"take", "take: -1", "take", "a whole number from 1"},
    {"take", "take: [5]", "take", "wanted"},
    {"skip", "skip: 6", "skip",
     "nothing is left of 6 records; leave fewer out"},
    {"skip", "skip: -6", "skip", "a whole number from 0"},
    {"shard", "shard: {index: 4, of: 4}", "shard.index", "wanted less than 4"},
    {"shard", "shard: {index: 6, of: 7}", "shard",
     "nothing is left of 6 records"},
    {"shard", "shard: {index: 0, of: 0}", "shard.of", "from 1 to"},
    {"shard", "shard: {index: 0, of: 2, by: gone}", "shard",
     "no column 'gone'"},
    {"repeat", "repeat: 0", "repeat", "from 1 to"},
    {"repeat", "repeat: 1000000\n- repeat: 1000000\n- repeat: 1000000",
     "select[2].repeat", "more than"},
    {"split", "split: {of: [0.9, 0.1], part: train}", "split.of",
     "{train: 0.9, test: 0.1}, found a list of 2"},
    {"split", "split: {of: {}, part: train}", "split.of",
     "{NAME: a fraction, ...}"},
    {"split", "split: {of: {train: 0.9, test: 0.2}, part: train}", "split.of",
     "add up to 1.1, more than 1"},
    {"split", "split: {of: {train: 1, test: 0}, part: test}", "split.part",
     "'test' has the fraction 0"},
    {"split", "split: {of: {train: 0.9}, part: tset}", "split.part",
     "'tset' is none of the parts: train"},
    {"split", "split: {of: {train: 1.5}, part: train}", "split.of.train",
     "from 0 to 1"},
    {"split", "split: {of: {train: 0.999, test: 0.001}, part: test}", "split",
     "none of 6 records is left"},
    {"split", "repeat: 2\n- split: {of: {a: 0.5, b: 0.5}, part: a}",
     "select[1].split", "put `split` before what repeats it"},
    {"fold", "fold: {number: 5, of: 5}", "fold.number", "wanted less than 5"},
    {"fold", "fold: {number: 0, of: 1}", "fold.of", "from 2 to"},
    {"fold", "fold: {number: 0, of: 7}", "fold",
     "7 folds of 6 records: at most"},
    {"balance", "balance: {by: gone}", "balance", "no column 'gone'"},
    {"balance", "balance: {by: value, weights: {7: 1}}", "balance.weights",
     "no record has '7' in column 'value'; it has '0', '1', '2'"},
    {"balance", "balance: {by: value, weights: {'a b': 1}}", "balance.weights",
     "no record has 'a b'"},
    {"balance", "balance: {by: value, weights: {0: 0, 1: 0, 2: 0}}", "balance",
     "all weights are 0: one at least has to be more"},
    {"sample", "sample: {by: value, weights: {7: 1}}", "sample.weights",
     "no record has '7' in column 'value'; it has '0', '1', '2'"},
    {"sample", "sample: {weights: {0: 1}}", "sample.weights",
     "wanted `by` as well"},
    {"sample", "sample: {weight: x, by: value}", "sample.weight", "not both"},
    {"sample", "sample: {weight: gone}", "sample", "no column 'gone'"},
    {"sample", "sample: {by: value, weights: {0: 0, 1: 0, 2: 0}}", "sample",
     "all weights are 0: one at least has to be more"},
    {"sample", "sample: {rows: 0}", "sample.rows", "from 1 to"},
    {"interleave", "interleave: {files: 0}", "interleave.files",
     "from 1 to 1024"},
    {"interleave", "interleave: {block: -1}", "interleave.block", "from 1 to"},
    {"interleave", "interleave: {files: 2}", "interleave", "file"},
    {"balance", "balance: {by: value, weights: {0: -1}}", "balance.weights",
     "from 0 to"},
    {"balance", "balance: {by: value, weights: [1, 2]}", "balance.weights",
     "{VALUE: a weight, ...}, found a list of 2"},
    {"balance", "balance: {by: value, when_out: never}", "balance.when_out",
     "known here: stop, drop, repeat"},
};

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/spec_errors_XXXXXX";
    path_ = mkdtemp(name);
    Write("empty.txt", "");
    Write("twice.txt", "a\nb\na\n");
    Write("words.txt", "a\nb\n");
    Write("nan.json", R"({"penstock_statistics": 1, "features": {"x": {"mean":
        [null, 1, 1, 1], "std": [1, 1, 1, 1]}}})");
    Write("few.json", R"({"penstock_statistics": 1, "features": {"x": {"mean":
        [1, 1], "std": [1, 1]}}})");
    Write("other.json", R"({"x": 1})");
    KeptRecordsHeader header = {.records = 6, .data = "others"};
    const std::string kept = KeptRecordsText(&header, "\x07");
    Write("other.records", kept);
    Write("cut.records", kept.substr(0, kept.size() - 1));
    Write("damaged.records", kept.substr(0, kept.size() - 1) + "\x03");
    header.records = 7;
    Write("more.records", KeptRecordsText(&header, "\x07"));
    Write("newer.records", R"({"penstock_kept_records": 2})"
                           "\n");
    // A vocabulary that says it has 10 GB, and holds nothing.
    Write("huge.txt", "");
    std::filesystem::resize_file(path_ + "/huge.txt", uint64_t{10} << 30);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(path_ + "/" + name) << text;
  }
  std::string path_;
};

template <typename Variant>
void TryCases(std::span<const Case> cases, const std::string& list) {
  const Folder folder;
  std::set<std::string> tried;
  for (const Case& each : cases) {
    tried.insert(each.step);
    const std::string step = "- " + std::string(each.text);
    const std::string text =
        list == "map" ? WithMap(step, kFeatures) : WithSelect(step);
    const std::string message = ErrorOf(text, folder.path());
    ExpectTold(message,
               std::string(each.place).starts_with(list + "[")
                   ? each.place
                   : Format("{}[0].{}", list, each.place),
               text);
    EXPECT_THAT(message, HasSubstr(each.words)) << text;
  }
  for (const Kind& kind : KindsOf<Variant>()) {
    EXPECT_TRUE(tried.contains(kind.declared->name()))
        << "no wrong " << kind.declared->name() << " in the table";
  }
}

TEST(SpecErrorsTest, EachStepOfMapInItsOwnWay) {
  TryCases<TransformSpec>(kMapCases, "map");
}
TEST(SpecErrorsTest, EachStepOfSelectInItsOwnWay) {
  TryCases<SelectSpec>(kSelectCases, "select");
}

// ---- parts, and the spec as a whole

struct SpecCase {
  const char* lines;
  const char* place;
  const char* words;
};

constexpr SpecCase kSpecCases[] = {
    {"source: {zip: {parts: [{source: {range: 9}}, {source: {range: "
     "9}}]}}\nbatch: {size: 1}",
     "source.zip.parts[1]",
     "has a feature 'value', as a part before it: give it a prefix"},
    {"source: {zip: {parts: [{source: {range: 9}, select: [skip: "
     "9]}]}}\nbatch: {size: 1}",
     "source.zip.parts[0].select[0].skip", "leave fewer out"},
    {"source: {zip: {parts: [{source: {range: 9}, weight: 2}]}}\nbatch: {size: "
     "1}",
     "source.zip.parts[0].weight", "leave it out"},
    {"source: {concat: {parts: [{source: {range: 9}, prefix: a}]}}\nbatch: "
     "{size: 1}",
     "source.concat.parts[0].prefix",
     "only parts of a zip have a prefix; `rename`"},
    {"source: {mix: {parts: [{source: {range: 9}}], block: 10}}\nbatch: {size: "
     "1}",
     "source.mix.parts[0]",
     "has 9 records, less than a block, 10: leave the part out, or give a "
     "smaller block"},
    {"source: {mix: {parts: [{source: {range: 9}}], block: 2, schedule: [{row: "
     "3, weights: [1]}]}}\nbatch: {size: 1}",
     "source.mix.schedule[0].row", "wanted a multiple of the block, 2"},
    {"source: {mix: {parts: [{source: {range: 9}}], block: 0}}\nbatch: {size: "
     "1}",
     "source.mix.block", "from 1 to"},
    {"source: {range: 9}\nbatch: {size: 1}\nshuffle: {seed: 1, window_files: "
     "4}",
     "shuffle.window_files", "no column 'file'"},
    {"source: {range: 9}\nbatch: {size: 1}\nselect: {take: 5}", "select",
     "a list of at most 16 steps, such as [take: 1000], found a mapping"},
    {"source: {range: 9}\nbatch: {size: 1}\nmap: {cast: {dtype: int8}}", "map",
     "such as [flip: {}], found a mapping"},
    {"source: {range: 9}\nbatch: {size: 1}\nshuffle: [5]", "shuffle",
     "found a list of 1"},
    {"source: {range: 9}\nbatch: [8]", "batch",
     "a mapping of size, per_rank, tokens, tokens_per_rank, by_part, buckets, "
     "pack, last, found a list of 1"},
    {"source: {range: 9}\nbatch: {size: 0}", "batch.size", "from 1 to"},
    {"source: {range: 9}\nbatch: {size: 10, last: drop}", "batch",
     "use a smaller batch, last: partial"},
    {"source: {range: 9}\nbatch: {size: 1, per_rank: 1}", "batch",
     "exclude each other"},
    {"source: [range: 9]\nbatch: {size: 1}", "source", "found a list of 1"},
    {"source: {concat: {parts: []}}\nbatch: {size: 1}", "source.concat.parts",
     "a list of 1 to 256"},
    {"source: {concat: [{source: {range: 9}}]}\nbatch: {size: 1}",
     "source.concat", "a mapping of parts, found a list of 1"},
    {"source: {concat: {parts: [{range: 9}]}}\nbatch: {size: 1}",
     "source.concat.parts[0]",
     "a part has its source below `source`: {source: {range: ...}}"},
    {"source: {mix: {parts: {source: {range: 9}}}}\nbatch: {size: 1}",
     "source.mix.parts", "such as [{source: {range: 10}}], found a mapping"},
    {"source: {concat: {parts: [{source: {range: 9}, weight: 2}]}}\nbatch: "
     "{size: 1}",
     "source.concat.parts[0].weight",
     "only parts of a mix have a weight: leave it out"},
    {"source: {concat: {parts: [{source: {stream: {features: {x: {dtype: int8, "
     "shape: []}}}}}]}}\nbatch: {size: 1}",
     "source.concat.parts[0].source", "a stream cannot be a part"},
    {"source: {concat: {parts: [{source: {range: 9}, select: [skip: "
     "9]}]}}\nbatch: {size: 1}",
     "source.concat.parts[0].select[0].skip", "leave fewer out"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {concat: {parts: "
     "[{source: {range: 9}, select: [{filter: {column: gone, min: "
     "1}}]}]}}}]}}\nbatch: {size: 1}",
     "source.mix.parts[1].source.concat.parts[0].select[0].filter",
     "it has value"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {tensors: "
     "{features: {value: [0.5]}}}}]}}\nbatch: {size: 1}",
     "source.mix.parts[1]", "all parts need the same features"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {tensors: "
     "{features: {value: [1], x: [1]}}}}]}}\nbatch: {size: 1}",
     "source.mix.parts[1]", "has 2 features, and parts[0] has 1 feature"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {text_lines: "
     "{files: /gone, max_bytes: 9}}}]}}\nbatch: {size: 1}",
     "source.mix.parts[1].source", "/gone"},
    {"source: {mix: {parts: [{source: {range: 9}, weight: 0}]}}\nbatch: {size: "
     "1}",
     "source.mix", "all weights are 0: of one part at least"},
    {"source: {mix: {parts: [{source: {range: 9}, weight: -1}]}}\nbatch: "
     "{size: 1}",
     "source.mix.parts[0].weight", "from 0 to"},
    {"source: {mix: {parts: [{source: {range: 9}, weight: nan}]}}\nbatch: "
     "{size: 1}",
     "source.mix.parts[0].weight", "from 0 to"},
    {"source: {mix: {parts: [{source: {range: 9}, weight: "
     "0.1234567}]}}\nbatch: {size: 1}",
     "source.mix", "give whole numbers in the same proportion"},
    {"source: {mix: {parts: [{source: {range: 9}, weight: 1000000}, {source: "
     "{range: 9}, weight: 999999}]}}\nbatch: {size: 1}",
     "source.mix", "round them"},
    {"source: {mix: {parts: [{source: {range: 9}}], schedule: {0: "
     "[1]}}}\nbatch: {size: 1}",
     "source.mix.schedule",
     "such as [{row: 100, weights: [1, 4]}], found a mapping"},
    {"source: {mix: {parts: [{source: {range: 9}}], schedule: [{row: 0, "
     "weights: [1]}]}}\nbatch: {size: 1}",
     "source.mix.schedule[0].row",
     "a row from 1 to 9007199254740992 (row 0 has the `weight` of each part), "
     "found '0'"},
    {"source: {mix: {parts: [{source: {range: 9}}], schedule: [{row: 5, "
     "weights: [1]}, {row: 5, weights: [2]}]}}\nbatch: {size: 1}",
     "source.mix.schedule[1].row",
     "row 5 after row 5: a schedule goes forward"},
    {"source: {mix: {parts: [{source: {range: 9}}], schedule: [{row: 9, "
     "weights: [2]}]}}\nbatch: {size: 1}",
     "source.mix.schedule[0].row",
     "9, and a pass has 9 rows: these weights never hold; give a row of the "
     "pass"},
    {"source: {zip: {parts: [{source: {range: 9}}, {source: {range: 9}, "
     "select: [sample: {}], prefix: a_}]}}\nbatch: {size: 1}",
     "source.zip.parts[1]", "put `sample` into the `select` of the zip"},
    {"source: {mix: {parts: [{source: {range: 9}}], schedule: [{row: 5, "
     "weights: [1, 2]}]}}\nbatch: {size: 1}",
     "source.mix.schedule[0].weights",
     "2 weights for 1 part: give one for each"},
    {"source: {mix: {parts: [{source: {range: 9}}], schedule: [{row: 5, "
     "weights: [0]}]}}\nbatch: {size: 1}",
     "source.mix.schedule[0]", "all weights are 0"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {range: 3}, "
     "weight: 0}], when_out: drop, schedule: [{row: 20, weights: [1, "
     "1]}]}}\nbatch: {size: 1}",
     "source.mix.schedule", "from row 9 on: give another part a weight there"},
    {"source: {range: 9}\nbatch: {size: 1}\nmap: [{flip: {}}]", "map[0].flip",
     "wants an image"},
    // ---- sequences of several documents
    {"source: {range: 9}\nbatch: {size: 1, pack: {}}", "batch.pack.length",
     "is missing"},
    {"source: {range: 9}\nbatch: {size: 1, pack: {length: 0}}",
     "batch.pack.length", "from 1 to 4194304"},
    {"source: {range: 9}\nbatch: {size: 1, pack: {length: 8, with: [masks]}}",
     "batch.pack.with[0]", "known here: position_ids, document_ids"},
    {"source: {range: 9}\nbatch: {size: 1, pack: {length: 8, with: [records, "
     "records]}}",
     "batch.pack.with[0]", "is named twice"},
    {"source: {range: 9}\nbatch: {size: 1, pack: {length: 8, method: split, "
     "longer: drop}}",
     "batch.pack.longer", "leave this out"},
    {"source: {range: 9}\nbatch: {size: 1, pack: {length: 8, mask_first: "
     "true}}",
     "batch.pack.mask_first", "add it to `with`"},
    {"source: {range: 9}\nbatch: {size: 1, pack: {length: 8, documents: 9}}",
     "batch.pack.documents", "has no room for 9"},
    {"source: {range: 9}\nbatch: {tokens: 8, pack: {length: 8}}",
     "batch.tokens", "wanted `buckets: {by: COLUMN}` too"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {by_part: [1], "
     "pack: {length: 8}}",
     "batch.pack", "leave out `by_part`"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nshuffle: {seed: 1, "
     "window_files: 2}\nbatch: {size: 1, pack: {length: 8}}",
     "batch.pack", "leave out shuffle.window_files"},
    {"source: {stream: {features: {x: {dtype: uint8, shape: []}}}}\nbatch: "
     "{size: 1, "
     "pack: {length: 8}}",
     "batch.pack", "let the producer put sequences"},
    // ---- parts with steps and batches of their own
    {"source: {range: 9}\nbatch: {size: 1}\nmap_by_part: [[]]", "map_by_part",
     "the source has no parts: leave it out, or use `mix`"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {range: "
     "9}}]}}\nbatch: {size: 1}\nmap_by_part: [[]]",
     "map_by_part",
     "1 list for 2 parts: give one for each, [] for one without"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {size: "
     "1}\nmap_by_part: []",
     "map_by_part", "wanted a list of 1 to 256 lists of steps"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {size: "
     "1}\nmap_by_part: [[mixup: {}]]",
     "map_by_part[0][0]", "mixes rows of all parts: put it into `map`"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {range: "
     "9}}]}}\nbatch: {size: 1}\nmap_by_part: [[], [flip: {}]]",
     "map_by_part[1][0].flip", "wants an image"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {range: "
     "9}}]}}\nbatch: {size: 1}\nmap_by_part: [[], [cast: {dtype: float32}]]",
     "map_by_part[1]",
     "makes feature 0 value float32 [], and of part 0 it is value int64 []: "
     "all parts need the same; `rename`, `cast` and `reshape` make them so"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {range: "
     "9}}]}}\nbatch: {size: 1}\nmap_by_part: [[reshape: {shape: [1]}], "
     "[one_hot: {classes: 9, dtype: int64}]]",
     "map_by_part[1]", "with batch.by_part, a batch size for each part"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {tensors: "
     "{features: {value: [1], x: [1]}}}}]}}\nbatch: {size: 1}\nmap_by_part: "
     "[[], []]",
     "map_by_part[1]", "`select` and `drop` leave some out"},
    {"source: {mix: {parts: [{source: {mix: {parts: [{source: {range: 9}}, "
     "{source: {tensors: {features: {x: [1]}}}}]}}}]}}\nbatch: {size: "
     "1}\nmap_by_part: [[]]",
     "source.mix.parts[0].source.mix.parts[1]", "all parts need the same"},
    {"source: {range: 9}\nbatch: {by_part: [1]}", "batch.by_part",
     "the source has no parts"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {size: 1, "
     "by_part: "
     "[1]}",
     "batch", "exclude each other: give exactly one of"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {by_part: [0]}",
     "batch.by_part[0]", "from 1 to"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {by_part: [1, 1]}",
     "batch.by_part", "2 sizes for 1 part: give one for each"},
    {"source: {concat: {parts: [{source: {range: 9}}]}}\nbatch: {by_part: [1]}",
     "batch.by_part", "use `mix` instead of `concat`"},
    {"source: {mix: {parts: [{source: {range: 9}}], block: 2}}\nbatch: "
     "{by_part: [1]}",
     "batch.by_part", "leave out mix.block"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {by_part: "
     "[1]}\nselect: [take: 3]",
     "batch.by_part", "put it into the parts"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {by_part: "
     "[1]}\nshard: 'off'",
     "batch.by_part", "use `shard: data`"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {by_part: [10]}",
     "source.mix.parts[0]", "9 records, less than a batch of it, 10"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {range: "
     "9}}]}}\nbatch: {by_part: [4, 2]}\nmap_by_part: [[reshape: {shape: [1]}, "
     "cast: {dtype: float32}], [one_hot: {classes: 9}]]\nmap: [mixup: "
     "{feature: "
     "value, label: []}]",
     "batch.by_part", "2 rows: mixup and cutmix mix neighbours"},
    {"source: {mix: {parts: [{source: {range: 9}}]}}\nbatch: {size: "
     "1}\nmap_by_part: [[python: {function: 'm:f'}]]\ncache: {memory: 1M}",
     "cache", "map_by_part[0][0].python is a function"},
    {"source: {mix: {parts: [{source: {range: 9}}, {source: {range: "
     "9}}]}}\nbatch: {size: 1}\nmap_by_part: [[], [cast: {dtype: "
     "float32}]]\nmap: [cast: {dtype: float32}]\ncache: {memory: 1M, at: 0}",
     "cache", "the rows of part 1 have other features than those of part 0"},
    // ---- what is kept
    {"source: {range: 9}\nbatch: {size: 1}\ncache: {}", "cache",
     "wanted `memory` or `disk`, one of them"},
    {"source: {range: 9}\nbatch: {size: 1}\ncache: {memory: 1M, disk: 1M}",
     "cache", "wanted `memory` or `disk`, one of them"},
    {"source: {range: 9}\nbatch: {size: 1}\ncache: {memory: 17T}",
     "cache.memory", "at most 16T"},
    {"source: {range: 9}\nbatch: {size: 1}\ncache: {memory: 1M, zstd: 3}",
     "cache.zstd", "leave it out, or use `disk`"},
    {"source: {range: 9}\nbatch: {size: 1}\ncache: {memory: 1M, at: 1}",
     "cache.at", "1 steps, and `map` has 0: use at most that"},
    {"source: {synthetic: {records: 9, features: {image: {dtype: uint8, shape: "
     "[8, 8, 3]}}}}\nbatch: {size: 1}\nmap: [{resize: {size: 4}}, {flip: "
     "{}}]\ncache: {memory: 1M, at: 2}",
     "cache.at",
     "map[1].flip draws random numbers, and what is kept is the same each "
     "time: "
     "use at most 1"},
    {"source: {range: 9}\nbatch: {size: 1}\nmap: [{python: {function: "
     "'m:f'}}]\ncache: {memory: 1M, at: 1}",
     "cache.at", "map[0].python is a function, which may draw random numbers"},
    {"source: {synthetic: {records: 9, features: {image: {dtype: uint8, shape: "
     "[8, 8, 3]}}}}\nbatch: {size: 1}\nmap: [{cast: {dtype: float32, layout: "
     "chw}}, {random_erasing: {}}]\ncache: {memory: 1M, at: 1}",
     "cache.at", "map[0].cast puts channels first"},
    {"source: {stream: {features: {x: {dtype: uint8, shape: "
     "[]}}}}\nbatch: {size: 1}\ncache: {memory: 1M}",
     "cache", "rows of a stream come once: leave it out"},
    {"source: {range: 9}\nbatch: {size: 1}\nshuffle: {seed: 1}\nasked: true",
     "shuffle", "rows are asked for one by one"},
    {"source: {range: 9}\nbatch: {size: 1}\nselect: [take: 2]\nasked: true",
     "select", "rows are asked for one by one"},
    {"source: {range: 9}\nbatch: {size: 1}\nepochs: 2\nasked: true", "epochs",
     "rows are asked for one by one"},
    {"source: {python: {dataset: 'm:f'}}\nbatch: {size: 1}\ncache: {memory: "
     "1M}",
     "cache", "may draw random numbers for each record: leave it out"},
    {"source: {range: 9}\nbatch: {size: 1}\ncache: {memory: 1M}\nsnapshot: "
     "{path: /s}",
     "cache", "there is a snapshot too: leave one of them out"},
    {"source: {range: 9}\nbatch: {size: 1}\nsnapshot: {path: /s, at: 1}",
     "snapshot.at", "use at most that"},
    {"source: {range: 9}\nbatch: {size: 1}\nsnapshot: {path: /s, zstd: 20}",
     "snapshot.zstd", "from 1 to 19"},
    {"source: {range: 9}\nbatch: {size: 1}\nsnapshot: {}", "snapshot", "path"},
};

TEST(SpecErrorsTest, PartsAndTheOrder) {
  for (const SpecCase& each : kSpecCases) {
    const std::string text = std::string("dataset: d\n") + each.lines + "\n";
    const std::string message = ErrorOf(text);
    ExpectTold(message, each.place, text);
    EXPECT_THAT(message, HasSubstr(each.words)) << text;
  }
}

// ---- where

TEST(SpecErrorsTest, AnErrorOfOpeningIsWhereTheTextHasIt) {
  const std::string text =
      "dataset: d\n"
      "source: {range: 9}\n"
      "map:\n"
      "  - cast: {dtype: int64}\n"
      "  - clip:\n"
      "      max: 0.5\n"
      "batch: {size: 1}\n";
  EXPECT_THAT(ErrorOf(text),
              StartsWith("a.yaml:6:7: map[1].clip.max: 0.5 is no value of"));
  // A program wrote it: no line is of use.
  const auto spec = ParseDatasetSpec(text, "", "/");
  OpenProgress progress;
  EXPECT_THAT(OpenDataset(*spec, {}, &progress).status().message(),
              StartsWith("dataset 'd': map[1].clip.max: 0.5"));
}

TEST(SpecErrorsTest, MemoryIsRefusedToTheStepThatWantsIt) {
  const std::string text =
      WithSelect("- take: 5\n- balance: {by: value}\n- repeat: 2");
  const auto spec = ParseDatasetSpec(text, "a.yaml", "/");
  OpenProgress progress;
  const auto dataset = OpenDataset(*spec, {}, &progress);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  const OrderBudget none = {[](uint64_t bytes) {
                              return ResourceExhaustedError("no {} bytes",
                                                            bytes);
                            },
                            [] { return false; }};
  const Status status = PlanOf(*spec, **dataset, 1, 1, none).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Located(*spec, status).message(),
              StartsWith("a.yaml:6:3: select[1].balance: no 120 bytes"));
}

TEST(SpecErrorsTest, PartsWhoseClassesDifferAreAWarningWhateverTheySelect) {
  const Folder folder;
  for (const char* name : {"a/cat", "a/dog", "b/dog", "c/cat"}) {
    std::filesystem::create_directories(folder.path() + "/" + name);
    std::ofstream(folder.path() + "/" + name + "/1.jpg") << "any";
  }
  const auto warning = [&](const std::string& first,
                           const std::string& second) {
    const std::string text =
        "dataset: d\nbatch: {size: 1}\nmap: [decode_image: {size: 8}]\n"
        "source: {concat: {parts: [{source: {image_folder: {path: " +
        first + "}}}, {source: {image_folder: {path: " + second +
        "}}, select: [filter: {column: class, in: [dog, cat]}]}]}}\n";
    const auto spec = ParseDatasetSpec(text, "a.yaml", folder.path());
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    OpenProgress progress;
    const auto dataset = OpenDataset(*spec, {}, &progress);
    EXPECT_TRUE(dataset.ok()) << dataset.status().message();
    return dataset.ok() ? (*dataset)->warning() : "";
  };
  const std::string dog =
      "class 'dog' is label 1 in the first and label 0 in "
      "the second";
  EXPECT_THAT(warning("a", "b"), HasSubstr(dog));
  EXPECT_THAT(warning("c", "b"), HasSubstr("have different classes"));
  EXPECT_EQ(warning("a", "c"), "");  // its labels mean the same
}

TEST(SpecErrorsTest, WhatTheFilesDoNotHaveIsAnError) {
  const Folder folder;
  for (const char* name : {"cat", "dog", "owl"}) {
    std::filesystem::create_directories(folder.path() + "/" + name);
    std::ofstream(folder.path() + "/" + name + "/1.jpg") << "any";
  }
  std::ofstream(folder.path() + "/a.bin") << "12";
  std::ofstream(folder.path() + "/b.bin") << "34";
  const auto error = [&](const std::string& text) {
    const auto spec = ParseDatasetSpec("dataset: d\nbatch: {size: 1}\n" + text,
                                       "a.yaml", folder.path());
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    OpenProgress progress;
    const auto dataset = OpenDataset(*spec, {}, &progress);
    if (!dataset.ok()) return dataset.status().message();
    return Located(*spec, PlanOf(*spec, **dataset, 1, 1).status()).message();
  };
  const auto one_hot = [](int classes) {
    return Format(
        "source: {{image_folder: {{path: .}}}}\nmap: [decode_image: {{size: "
        "8}}, "
        "one_hot: {{feature: label, classes: {}}}]\n",
        classes);
  };
  EXPECT_THAT(error(one_hot(2)),
              HasSubstr("map[1].one_hot.classes: 2, and the data have 3 "
                        "classes: give that many"));
  EXPECT_EQ(error(one_hot(3)), "");
  const auto windows = [](int files) {
    return Format(
        "source: {{fixed_length_records: {{files: '*.bin', "
        "features: {{x: {{dtype: uint8, shape: []}}}}}}}}\nshuffle: {{seed: 1, "
        "window_files: {}}}\n",
        files);
  };
  EXPECT_THAT(error(windows(3)),
              HasSubstr("shuffle.window_files: windows of 3 files, and there "
                        "are 2: give fewer, or leave window_files out"));
  EXPECT_EQ(error(windows(2)), "");
}

TEST(SpecErrorsTest, AMixThatEndsEarlyIsAWarning) {
  const auto warning = [](const std::string& when_out) {
    const auto spec = ParseDatasetSpec(
        "dataset: d\nbatch: {size: 1}\nsource: {mix: {parts: [{source: {range: "
        "3}}, {source: {range: 1000}}], when_out: " +
            when_out + "}}\nselect: [skip: 1]\n",
        "a.yaml", "/");
    OpenProgress progress;
    const auto dataset = OpenDataset(*spec, {}, &progress);
    EXPECT_TRUE(dataset.ok()) << dataset.status().message();
    const auto plan = PlanOf(*spec, **dataset, 1, 1);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? plan->warning() : "";
  };
  EXPECT_THAT(warning("stop"),
              HasSubstr("a pass has 6 of their 1003 records; `when_out: drop` "
                        "or `repeat` goes on"));
  EXPECT_EQ(warning("drop"), "");
  EXPECT_EQ(warning("repeat"), "");
}

TEST(SpecErrorsTest, APathIsWhatAMessageBeginsWith) {
  for (const char* path : {"map[2].rotate", "map", "select[0].take.records",
                           "source.mix.parts[11].select[0]"}) {
    EXPECT_EQ(PathOf(std::string(path) + ": wrong: x"), path);
    EXPECT_EQ(AtPath("a[1]", InvalidArgumentError("{}: b", path)).message(),
              Format("a[1].{}: b", path));
  }
  for (const char* none :
       {"", "wrong", "[1]: x", "a b: x", "/a/b: x", "map[]: x", "map[x]: x",
        "map.: x", "map[1: x", "a:x", ": x", "map..x: y"}) {
    EXPECT_EQ(PathOf(none), "") << none;
    EXPECT_EQ(AtPath("a", InvalidArgumentError("{}", none)).message(),
              Format("a: {}", none));
  }
  EXPECT_TRUE(AtPath("a", OkStatus()).ok());
}

}  // namespace penstock::spec_errors_test
