// What a dataset is: its source, order, transforms and batches, as a person
// writes it in YAML (JSON is YAML). Parsed strictly: an unknown key, a wrong
// type or a value out of range is an error with line and column.
#ifndef COMMON_DATASET_SPEC_H_
#define COMMON_DATASET_SPEC_H_

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

// Bounds of a spec's text; a spec comes from any user of the host.
inline constexpr size_t kSpecBytesMax = 64 * 1024;
inline constexpr int kSpecDepthMax = 32;

// ---- sources: which records there are -------------------------------------

// Through the page cache, or past it (O_DIRECT). kAuto: past it when the file
// is too large for the page cache and its records large enough.
enum class Io { kAuto, kBuffered, kDirect };

// One sub-folder per class, its files are the samples.
//   features: image (encoded file), label int64 [] (index of the class in the
//   sorted list of sub-folder names)
struct ImageFolderSource {
  std::string path;  // absolute after parsing
  Io io = Io::kAuto;
  bool operator==(const ImageFolderSource&) const = default;
};

// The MNIST file format, plain or gzip (seen by its magic, not its name).
//   features: image (dtype and shape from the file), label (likewise, cast to
//   int64 []) when labels is given
struct IdxSource {
  std::string images;
  std::string labels;  // empty: no label feature
  Io io = Io::kAuto;   // of images; labels are kept in memory
  bool operator==(const IdxSource&) const = default;
};

// Records of one size, one after the other in one or several files; each holds
// its features one after the other, little-endian, without gaps.
//   features: as given
struct FixedLengthRecordsSource {
  std::vector<std::string> files;
  ElementSpec features;
  uint64_t header_bytes = 0;  // at the start of each file, passed over
  uint64_t footer_bytes = 0;  // likewise at its end
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

// Values written in the spec itself. Every feature has the same number of
// rows: the outermost list. data holds rows * RowBytes bytes.
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

// Records made without I/O, to measure what is not I/O.
//   features: as given; the bytes are a function of the record's number
struct SyntheticSource {
  uint64_t records = 0;
  ElementSpec features;
  uint64_t cost_us = 0;  // CPU microseconds burnt per record
  bool operator==(const SyntheticSource&) const = default;
};

// Rows that producers put while the job runs (penstock_produce). They come once
// and in the order in which they were put: no shuffle, one epoch, no seek.
//   features: as given
struct StreamSource {
  ElementSpec features;
  // The data are over when so many have finished; more, if more were at work at
  // once.
  uint64_t producers = 1;
  bool operator==(const StreamSource&) const = default;
};

using SourceSpec =
    std::variant<ImageFolderSource, IdxSource, FixedLengthRecordsSource,
                 RangeSource, TensorsSource, SyntheticSource, StreamSource>;

// ---- transforms: what happens to each row ---------------------------------

struct CropSpec {
  enum class Kind { kNone, kCenter, kRandomResized };
  Kind kind = Kind::kNone;
  // kCenter: the largest centred rectangle of the target's aspect, its sides
  // times fraction.
  double fraction = 1.0;
  // kRandomResized: area and aspect ratio (width / height) ranges, drawn as
  // torchvision's RandomResizedCrop draws them.
  double scale[2] = {0.08, 1.0};
  double ratio[2] = {0.75, 4.0 / 3.0};
  bool operator==(const CropSpec&) const = default;
};

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  bool operator==(const ImageSize&) const = default;
};

// Encoded picture -> uint8 [height, width, channels].
struct DecodeImageOp {
  std::string feature = "image";
  CropSpec crop;
  ImageSize size;
  int channels = 3;    // 3: RGB, 1: gray
  bool exact = false;  // decode all of it, and give Pillow's values
  bool operator==(const DecodeImageOp&) const = default;
};

// uint8 [h, w] or [h, w, c] -> the same with size's height and width.
// crop.kind == kNone: a plain resize.
struct ResizeOp {
  std::string feature = "image";
  CropSpec crop;
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
// for each. [h, w, c] becomes [c, h, w] with Layout::kChw; [h, w] stays.
struct NormalizeOp {
  std::string feature = "image";
  std::vector<double> mean;
  std::vector<double> std;
  DType dtype = DType::kFloat32;  // float16, bfloat16 or float32
  Layout layout = Layout::kHwc;
  bool operator==(const NormalizeOp&) const = default;
};

// Value by value; to an integer: rounds to nearest even and saturates.
struct CastOp {
  std::string feature = "image";
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kHwc;  // kChw: as in NormalizeOp
  bool operator==(const CastOp&) const = default;
};

// A function of whole rows that is not ours: all features in, all features out.
struct FunctionOp {
  enum class Kind {
    kPython,  // "package.module:function", run in processes of its own
    kPlugin   // of a shared library, run in the workers (penstock_plugin.h)
  };
  Kind kind = Kind::kPython;
  std::string library;  // kPlugin: a file name
  std::string function;
  // What it returns; absent: what it is given.
  std::optional<ElementSpec> features;
  bool operator==(const FunctionOp&) const = default;
};

using TransformSpec = std::variant<DecodeImageOp, ResizeOp, FlipOp, NormalizeOp,
                                   CastOp, FunctionOp>;

// ---- batches, epochs --------------------------------------------------------

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
  std::optional<ShuffleSpec> shuffle;  // absent: the source's own order
  uint64_t seed = 0;                   // of augmentation; default: shuffle's
  std::vector<TransformSpec> map;
  BatchSpec batch;
  std::optional<uint64_t> epochs = 1;  // nullopt: forever
  std::optional<uint64_t> steps_per_epoch;
  uint32_t prefetch = 2;  // finished batches per rank
  // Batches a rank may hold at once: that of the loop's variable, one that the
  // loop keeps back, and the one it asks for.
  uint32_t hold = 3;
  OnError on_error = OnError::kFail;
  bool operator==(const DatasetSpec&) const = default;
};

// Parses and checks text. file stands in front of every error message
// ("train.yaml:7:3: unknown key 'shufle'; did you mean 'shuffle'?"). file "":
// a program wrote the text, and errors name the key's path instead ("spec:
// map[0].cast.dtype: ..."). Relative paths are taken from base_dir. Checks what
// the text alone can tell; it opens no file. Errors: InvalidArgument only.
StatusOr<DatasetSpec> ParseDatasetSpec(std::string_view text,
                                       const std::string& file,
                                       const std::string& base_dir);

// Every field, defaults included, in a fixed order: two specs are the same
// dataset if and only if these are equal.
nlohmann::ordered_json DatasetSpecToJson(const DatasetSpec& spec);

// The first field in which they differ, with both values
// ("batch.size: 256 here, 128 there"), or "" when they are equal.
std::string DifferingField(const DatasetSpec& here, const DatasetSpec& there);

}  // namespace penstock
#endif  // COMMON_DATASET_SPEC_H_
