// The dataset spec: source, order, transforms and batches, written in YAML
// (JSON is YAML). Parsing is strict: an unknown key, a wrong type or a value
// out of range is an error with line and column.
#ifndef COMMON_DATASET_SPEC_H_
#define COMMON_DATASET_SPEC_H_

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

// ---- sources: the records --------------------------------------------------

// Read through the page cache or bypass it (O_DIRECT). kAuto bypasses it when
// the file is too large for the page cache and its records are large enough.
enum class Io { kAuto, kBuffered, kDirect };

// One sub-folder per class; its files are the samples.
//   features: image (encoded file), label int64 [] (index of the class in the
//   sorted list of sub-folder names)
struct ImageFolderSource {
  std::string path;  // absolute after parsing
  Io io = Io::kAuto;
  bool operator==(const ImageFolderSource&) const = default;
};

// The MNIST file format, plain or gzip (detected by its magic, not its name).
//   features: image (dtype and shape from the file), label (likewise, cast to
//   int64 []) when labels is given
struct IdxSource {
  std::string images;
  std::string labels;  // empty: no label feature
  Io io = Io::kAuto;   // of images; labels are held in memory
  bool operator==(const IdxSource&) const = default;
};

// Records of one fixed size, back to back in one or several files. A record
// holds its features back to back, little-endian, without gaps.
//   features: as given
struct FixedLengthRecordsSource {
  std::vector<std::string> files;
  ElementSpec features;
  uint64_t header_bytes = 0;  // skipped at the start of each file
  uint64_t footer_bytes = 0;  // skipped at the end of each file
  Io io = Io::kAuto;
  bool operator==(const FixedLengthRecordsSource&) const = default;
};

// value int64 []: start, start + step, ... below (above) stop.
struct RangeSource {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  bool operator==(const RangeSource&) const = default;
};

// Values written in the spec itself. The outermost list holds the rows; every
// feature has the same number of rows. data holds rows * RowBytes bytes.
struct TensorsSource {
  struct Tensor {
    Feature feature;
    std::vector<std::byte> data;
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor> tensors;
  uint64_t rows = 0;
  uint64_t repeat = 1;  // rows * repeat records
  bool operator==(const TensorsSource&) const = default;
};

// Records made without I/O, to measure everything but I/O.
//   features: as given; the bytes are a function of the record's number
struct SyntheticSource {
  uint64_t records = 0;
  ElementSpec features;
  uint64_t cost_us = 0;  // CPU microseconds burnt per record
  bool operator==(const SyntheticSource&) const = default;
};

// Rows that producers put while the job runs (penstock_produce). Each row is
// delivered once, in put order: no shuffle, one epoch, no seek.
//   features: as given
struct StreamSource {
  ElementSpec features;
  // The data end when this many producers have finished, or more if more were
  // at work at once.
  uint64_t producers = 1;
  bool operator==(const StreamSource&) const = default;
};

using SourceSpec =
    std::variant<ImageFolderSource, IdxSource, FixedLengthRecordsSource,
                 RangeSource, TensorsSource, SyntheticSource, StreamSource>;

// ---- transforms: applied to each row ---------------------------------------

// The largest centred rectangle of the target's aspect ratio, with its sides
// multiplied by fraction.
struct CenterCrop {
  double fraction = 1.0;
  bool operator==(const CenterCrop&) const = default;
};

// Ranges of area and aspect ratio (width / height), drawn like torchvision's
// RandomResizedCrop.
struct RandomResizedCrop {
  std::array<double, 2> scale = {0.08, 1.0};
  std::array<double, 2> ratio = {0.75, 4.0 / 3.0};
  bool operator==(const RandomResizedCrop&) const = default;
};

using CropSpec = std::variant<CenterCrop, RandomResizedCrop>;

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  bool operator==(const ImageSize&) const = default;
};

// Encoded image -> uint8 [height, width, channels].
struct DecodeImageOp {
  std::string feature = "image";
  std::optional<CropSpec> crop;  // absent: the whole picture
  ImageSize size;
  int channels = 3;    // 3: RGB, 1: gray
  bool exact = false;  // decode the whole image, match Pillow's values
  bool operator==(const DecodeImageOp&) const = default;
};

// uint8 [h, w] or [h, w, c] -> the same with size's height and width.
struct CropOp {
  std::string feature = "image";
  CropSpec crop;
  ImageSize size;
  bool operator==(const CropOp&) const = default;
};

// The same of the whole picture.
struct ResizeOp {
  std::string feature = "image";
  ImageSize size;
  bool operator==(const ResizeOp&) const = default;
};

// Mirrors [h, w] or [h, w, c] left to right with this probability.
struct FlipOp {
  std::string feature = "image";
  double horizontal = 0.5;
  bool operator==(const FlipOp&) const = default;
};

enum class Layout { kHwc, kChw };

// uint8 -> (value / 255 - mean[c]) / std[c]; one mean for all channels or one
// each. Layout::kChw turns [h, w, c] into [c, h, w]; [h, w] is unchanged.
struct NormalizeOp {
  std::string feature = "image";
  std::vector<double> mean;
  std::vector<double> std;
  DType dtype = DType::kFloat32;  // float16, bfloat16 or float32
  Layout layout = Layout::kHwc;
  bool operator==(const NormalizeOp&) const = default;
};

// Converts each value. To an integer: rounds to nearest even and saturates.
struct CastOp {
  std::string feature = "image";
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kHwc;  // kChw: as in NormalizeOp
  bool operator==(const CastOp&) const = default;
};

// User's functions of whole rows: all features in, all features out. features:
// those it returns; absent: the same as its input.

// "package.module:function", run in separate processes.
struct PythonOp {
  std::string function;
  std::optional<ElementSpec> features;
  bool operator==(const PythonOp&) const = default;
};

// From a shared library, run in the workers (penstock_plugin.h).
struct PluginOp {
  std::string library;  // a file name
  std::string function;
  std::optional<ElementSpec> features;
  bool operator==(const PluginOp&) const = default;
};

using TransformSpec = std::variant<DecodeImageOp, CropOp, ResizeOp, FlipOp,
                                   NormalizeOp, CastOp, PythonOp, PluginOp>;

// ---- batches, epochs -------------------------------------------------------

struct ShuffleSpec {
  uint64_t seed = 0;
  bool each_epoch = true;  // a new order every epoch
  bool operator==(const ShuffleSpec&) const = default;
};

enum class LastBatch { kPartial, kDrop, kPad };
enum class OnError { kFail, kSkip, kSubstitute };

struct BatchSpec {
  uint64_t size = 1;      // rows; of the global batch unless per_rank
  bool per_rank = false;  // global batch = size * world size
  LastBatch last = LastBatch::kPartial;
  bool operator==(const BatchSpec&) const = default;
};

struct DatasetSpec {
  std::string name;
  SourceSpec source;
  std::optional<ShuffleSpec> shuffle;  // absent: source order
  uint64_t seed = 0;                   // of augmentation; default: shuffle's
  std::vector<TransformSpec> map;
  BatchSpec batch;
  std::optional<uint64_t> epochs = 1;  // nullopt: forever
  std::optional<uint64_t> steps_per_epoch;
  uint32_t prefetch = 2;  // finished batches per rank
  // Batches a rank may hold at once: the loop's current one, one that the loop
  // keeps, and the one being requested.
  uint32_t hold = 3;
  OnError on_error = OnError::kFail;
  bool operator==(const DatasetSpec&) const = default;
};

// Parses and checks text. Error messages start with file ("train.yaml:7:3:
// unknown key 'shufle'; did you mean 'shuffle'?"). file "": a program wrote the
// text, and errors name the key's path ("spec: map[0].cast.dtype: ...").
// Relative paths are resolved against base_dir. Opens no file: only the text is
// checked. Errors: InvalidArgument only.
StatusOr<DatasetSpec> ParseDatasetSpec(std::string_view text,
                                       const std::string& file,
                                       const std::string& base_dir);

// Every field, defaults included, in a fixed order. Two specs describe the same
// dataset if and only if their JSON is equal.
nlohmann::ordered_json DatasetSpecToJson(const DatasetSpec& spec);

// The first differing field with both values ("batch.size: 256 here, 128
// there"), or "" if the specs are equal.
std::string DifferingField(const DatasetSpec& here, const DatasetSpec& there);

}  // namespace penstock
#endif  // COMMON_DATASET_SPEC_H_
