// All kinds of source, in the order in which people are told of them. A new one
// is a struct with its Declared and its Open, which are in a file of its own,
// and an alternative of SourceSpec.
#ifndef BROKER_SOURCE_KINDS_H_
#define BROKER_SOURCE_KINDS_H_

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "broker/declare/value_type.h"
#include "broker/index/data_file.h"
#include "broker/index/file_patterns.h"
#include "broker/plan/mix.h"
#include "broker/plan/select.h"
#include "broker/source/record_feature.h"
#include "broker/source/source.h"
#include "broker/source/text_field.h"
#include "broker/user_code/trusted_code.h"

namespace penstock {

struct PartSpec;

// What becomes of a sample that lacks a part: a member, a mask, a file.
enum class OnMissing {
  kError,
  kSkip,  // it is left out of the dataset
};
inline ValueType<OnMissing> OnMissingType() {
  return Words<OnMissing>(
      {{"error", OnMissing::kError}, {"skip", OnMissing::kSkip}});
}

// ---- image_folder.cc

// The mask of a picture has its path, with suffix for the extension.
struct MaskFolder {
  std::string path;
  std::string suffix = ".png";
  OnMissing on_missing = OnMissing::kError;
  bool operator==(const MaskFolder&) const = default;

  static const Declaration<MaskFolder>& Declared();
};

// The pictures of a folder are the samples: one sub-folder per class, or
// without labels; with masks from a second folder. A record is one whole file,
// or two.
struct ImageFolderSource {
  enum class Labels { kFolders, kNone };

  std::string path;              // absolute after parsing
  std::optional<Labels> labels;  // absent: kFolders
  std::optional<MaskFolder> masks;
  std::optional<uint64_t> max_path_bytes;  // room for the feature `path`
  Io io = Io::kAuto;
  bool operator==(const ImageFolderSource&) const = default;

  static const Declaration<ImageFolderSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// The same of sounds.
struct AudioFolderSource {
  std::string path;
  std::optional<ImageFolderSource::Labels> labels;
  std::optional<uint64_t> max_path_bytes;
  Io io = Io::kAuto;
  bool operator==(const AudioFolderSource&) const = default;

  static const Declaration<AudioFolderSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- image_list.cc

// A file of comma-separated values names pictures and has their labels: one
// sample per row. A record is one whole file for each picture.
struct ImageListSource {
  std::string file;
  FeatureValues<TextField> columns;  // from: a name of the header, or a number
  std::string folder;  // "": that of file, and absolute paths may be in it
  char delimiter = ',';
  bool header = true;
  Longer longer = Longer::kFail;
  OnMissing on_missing = OnMissing::kError;
  Io io = Io::kAuto;
  bool operator==(const ImageListSource&) const = default;

  static const Declaration<ImageListSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- coco.cc

// Pictures and the boxes of their objects, of COCO's annotations: one sample
// per picture. A record is one whole file.
struct CocoSource {
  enum class Labels { kFrom0, kFrom1, kIds };
  enum class Crowd { kKeep, kDrop };

  std::string annotations;
  std::string images;  // their folder
  Labels labels = Labels::kFrom0;
  Crowd crowd = Crowd::kKeep;
  bool segmentation = false;           // masks, too
  std::optional<uint64_t> max_length;  // absent: the most of a picture
  Longer longer = Longer::kFail;
  OnMissing on_missing = OnMissing::kError;
  Io io = Io::kAuto;
  bool operator==(const CocoSource&) const = default;

  static const Declaration<CocoSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- idx.cc

// The MNIST file format.
struct IdxSource {
  std::string images;
  std::string labels;  // empty: no label feature
  Io io = Io::kAuto;   // of images; labels are held in memory
  bool operator==(const IdxSource&) const = default;

  static const Declaration<IdxSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- fixed_length_records.cc

// Records of one size, back to back in one or several files. A record holds its
// features back to back, little-endian, without gaps.
struct FixedLengthRecordsSource {
  FilePatterns files;
  ElementSpec features;
  uint64_t header_bytes = 0;  // skipped at the start of each file
  uint64_t footer_bytes = 0;  // skipped at the end of each file
  Io io = Io::kAuto;
  bool operator==(const FixedLengthRecordsSource&) const = default;

  static const Declaration<FixedLengthRecordsSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- text_lines.cc

// One row per line of one or several text files: its bytes, without the end of
// the line, in a shape of max_bytes, and their number.
struct TextLinesSource {
  FilePatterns files;
  uint64_t max_bytes = 0;
  Longer longer = Longer::kFail;  // a line of more than max_bytes
  bool operator==(const TextLinesSource&) const = default;

  static const Declaration<TextLinesSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- json_lines.cc

// One row per line of JSON: named values of it.
struct JsonLinesSource {
  FilePatterns files;
  FeatureValues<TextField> fields;  // from: a JSON Pointer (RFC 6901)
  Longer longer = Longer::kFail;
  bool operator==(const JsonLinesSource&) const = default;

  static const Declaration<JsonLinesSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- csv.cc

// One row per row of files of comma-separated values (RFC 4180): named columns
// of it.
struct CsvSource {
  FilePatterns files;
  FeatureValues<TextField> columns;  // from: a name of the header, or a number
  char delimiter = ',';
  bool header = true;
  Longer longer = Longer::kFail;
  bool operator==(const CsvSource&) const = default;

  static const Declaration<CsvSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- tokens.cc

// The token that each document of a file of tokens ends with, or begins with.
struct TokenDocuments {
  std::optional<int64_t> end;
  std::optional<int64_t> begin;
  std::optional<uint64_t> max_length;  // absent: that of the longest
  bool operator==(const TokenDocuments&) const = default;
};

// Sequences of tokens from flat files, raw or .npy, or documents: none crosses
// from one file to the next.
struct TokensSource {
  enum class Stored { kUint16, kUint32, kInt32, kInt64 };
  enum class Targets { kShifted, kNone };

  FilePatterns files;
  std::optional<Stored> dtype;     // absent: what a .npy file says, else uint16
  uint64_t header_bytes = 0;       // skipped at the start of each raw file
  uint64_t sequence_length = 0;    // 0: rows are documents
  std::optional<uint64_t> stride;  // absent: sequence_length
  Targets targets = Targets::kShifted;
  DType output_dtype = DType::kInt64;  // or kInt32
  std::optional<TokenDocuments> documents;
  Io io = Io::kAuto;
  bool operator==(const TokensSource&) const = default;

  static const Declaration<TokensSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- arrays.cc

// Rows of NumPy's arrays, one or several files for each feature.
struct NpySource {
  FeatureValues<FilePatterns> features;  // their files
  Io io = Io::kAuto;
  bool operator==(const NpySource&) const = default;

  static const Declaration<NpySource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// Rows of the arrays in a file of numpy.savez.
struct NpzSource {
  std::string file;
  FeatureValues<std::string> features;  // their arrays
  Io io = Io::kAuto;
  bool operator==(const NpzSource&) const = default;

  static const Declaration<NpzSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- tfrecord.cc

// Records of TFRecord files, each a tf.train.Example.
struct TfrecordSource {
  FilePatterns files;
  RecordFeatures features;  // empty: asks which
  Io io = Io::kAuto;
  bool operator==(const TfrecordSource&) const = default;

  static const Declaration<TfrecordSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- webdataset.cc

// Samples of tar files: files with one base name, such as 0001.jpg and
// 0001.cls, are one sample.
struct WebdatasetSource {
  // Where the extension begins: a.b.jpg is of sample a, or of a.b.
  enum class Extension { kFirstDot, kLastDot };

  FilePatterns files;
  RecordFeatures features;
  Extension extension = Extension::kFirstDot;
  OnMissing on_missing = OnMissing::kError;  // a member
  Io io = Io::kAuto;
  bool operator==(const WebdatasetSource&) const = default;

  static const Declaration<WebdatasetSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- mds.cc

// Samples of a folder of MDS shards and the index.json that lists them
// (MosaicML Streaming).
struct MdsSource {
  std::string path;         // absolute after parsing
  RecordFeatures features;  // empty: every column
  bool verify = false;      // the shards' hashes, when the dataset is opened
  Io io = Io::kAuto;
  bool operator==(const MdsSource&) const = default;

  static const Declaration<MdsSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- lmdb.cc

// Values of LMDB files. A sample has a value for each feature, whose keys have
// one text in the place of `*`.
struct LmdbSource {
  FilePatterns files;
  RecordFeatures features;                   // empty: asks which
  std::optional<std::string> database;       // nullopt: the main one
  OnMissing on_missing = OnMissing::kError;  // a key
  Io io = Io::kAuto;
  bool operator==(const LmdbSource&) const = default;

  static const Declaration<LmdbSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- megatron.cc

// Samples of Megatron's IndexedDatasets, as its GPTDataset and BlendedDataset
// make them: windows of documents.
struct MegatronSource {
  enum class Use { kTrain, kValid, kTest };
  enum class Order { kMegatron, kPenstock, kCyclic, kCyclicUnsharded };
  enum class LastPartial { kDrop, kPad };
  enum class Feature { kTokens, kLabels, kLossMask, kPositionIds, kDatasetId };
  struct Part {
    std::optional<double> weight;
    std::string prefix;
    bool operator==(const Part&) const = default;
  };

  std::string prefix;  // or
  std::vector<Part> blend;
  uint64_t sequence_length = 0;
  std::optional<uint64_t> samples;
  std::optional<std::string> split;
  Use use = Use::kTrain;
  Order order = Order::kMegatron;
  std::optional<uint64_t> seed;   // nullopt: kSeed
  std::string cache;              // a folder; "": none
  std::optional<double> surplus;  // nullopt: kSurplus
  bool extra_token = true;
  LastPartial last_partial = LastPartial::kDrop;
  std::vector<Feature> features = {Feature::kTokens, Feature::kLabels};
  std::optional<int64_t> pad;
  std::optional<int64_t> eod_mask_loss;       // the token
  std::optional<int64_t> reset_position_ids;  // likewise
  std::optional<int64_t> vocab_size;
  Io io = Io::kAuto;
  bool operator==(const MegatronSource&) const = default;

  // Megatron's defaults.
  static constexpr uint64_t kSeed = 1234;
  static constexpr double kSurplus = 0.005;

  static const Declaration<MegatronSource>& Declared();
  OpenedSource Open(OpenProgress* progress) const;
};

// ---- python_dataset.cc

// A map-style dataset of Python (`__len__`, `__getitem__`): each worker has a
// process that makes its records.
struct PythonDatasetSource {
  std::optional<std::string> dataset;  // "package.module:factory"
  std::string args = "{}";             // JSON, its keyword arguments
  std::optional<std::string> object;   // instead: file of a pickled dataset
  std::optional<std::vector<std::string>> names;
  uint64_t max_bytes = 0;  // of a text; 0: by the first sample
  std::optional<FeatureValues<uint64_t>> max_length;  // of lists
  Longer longer = Longer::kFail;
  uint32_t processes = 0;  // 0: one per worker
  bool operator==(const PythonDatasetSource&) const = default;

  static const Declaration<PythonDatasetSource>& Declared();
  // python_dataset.py.
  static std::string_view Program();
  OpenedSource Open(OpenProgress* progress,
                    const FunctionOptions& options) const;
};

// ---- parquet.cc

// Rows of Parquet and Arrow files, which processes of Python read with pyarrow.
struct ParquetSource {
  FilePatterns files;
  std::optional<std::vector<std::string>> columns;  // nullopt: all
  std::optional<FeatureValues<uint64_t>> max_length;
  uint64_t max_bytes = 0;        // of a text; 0: by the first ones
  std::string fallbacks = "{}";  // JSON, by column
  Longer longer = Longer::kFail;
  uint32_t processes = 0;  // 0: one per worker
  bool operator==(const ParquetSource&) const = default;

  static const Declaration<ParquetSource>& Declared();
  OpenedSource Open(OpenProgress* progress,
                    const FunctionOptions& options) const;
};

// ---- range.cc

// Computed numbers; no memory, no reads.
struct RangeSource {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  bool operator==(const RangeSource&) const = default;

  static const Declaration<RangeSource>& Declared();
  OpenedSource Open(OpenProgress*) const;
};

// ---- tensors.cc

// Values written in the spec, kept in memory; record r is row r modulo the
// number of rows.
struct TensorsSource {
  struct Tensor {
    Feature feature;
    std::vector<std::byte> data;  // rows * RowBytes
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor> tensors;
  uint64_t rows = 0;    // of every tensor
  uint64_t repeat = 1;  // rows * repeat records
  bool operator==(const TensorsSource&) const = default;

  static const Declaration<TensorsSource>& Declared();
  OpenedSource Open(OpenProgress*) const;
};

// ---- synthetic.cc

// Records made without I/O and memory, to measure everything but I/O, and to
// know every byte that a test must receive.
struct SyntheticSource {
  uint64_t records = 0;
  ElementSpec features;
  uint64_t cost_us = 0;  // CPU microseconds burnt per record
  bool operator==(const SyntheticSource&) const = default;

  static const Declaration<SyntheticSource>& Declared();
  OpenedSource Open(OpenProgress*) const;
};

// ---- stream.cc

// Rows that producers put while the job runs (penstock_produce). Each row is
// delivered once, in put order: no shuffle, one epoch, no seek.
struct StreamSource {
  ElementSpec features;
  // The data end when this many producers have finished, or more if more were
  // at work at once.
  uint64_t producers = 1;
  bool operator==(const StreamSource&) const = default;

  static const Declaration<StreamSource>& Declared();
  OpenedSource Open(OpenProgress*) const;
};

// ---- parts.cc

// Sources made of others: concat, one after the other, and mix, in proportion.
// Each part is a source with a selection of its own. Their records are numbered
// through; the order of a pass (plan/order.h) says which come when.

struct ConcatSource {
  std::vector<PartSpec> parts;
  bool operator==(const ConcatSource&) const;

  static const Declaration<ConcatSource>& Declared();
  OpenedSource Open(OpenProgress* progress,
                    const FunctionOptions& functions) const;
};

// Weights of the parts from a row of the pass on.
struct WeightsFrom {
  uint64_t row = 1;
  std::vector<double> weights;
  bool operator==(const WeightsFrom&) const = default;

  static const Declaration<WeightsFrom>& Declared();
};

struct MixSource {
  std::vector<PartSpec> parts;
  WhenOut when_out = WhenOut::kStop;
  std::vector<WeightsFrom> schedule;
  uint64_t block = 1;  // rows of one part at a time
  bool operator==(const MixSource&) const;

  static const Declaration<MixSource>& Declared();
  OpenedSource Open(OpenProgress* progress,
                    const FunctionOptions& functions) const;
};

// ---- zip.cc

// As tf.data.Dataset.zip: record i has the features of record i of each part,
// after its selection; it ends with the shortest. With `by`, a join: record i
// of the first part has the features of the record of each other part that has
// the same value in that column.
struct ZipSource {
  std::vector<PartSpec> parts;
  std::optional<std::string> by;
  OnMissing on_missing = OnMissing::kError;  // a record of another part
  bool operator==(const ZipSource&) const;

  static const Declaration<ZipSource>& Declared();
  OpenedSource Open(OpenProgress* progress,
                    const FunctionOptions& functions) const;
};

// ----

using SourceSpec = std::variant<  //
    ImageFolderSource,            //
    ImageListSource,              //
    CocoSource,                   //
    AudioFolderSource,            //
    IdxSource,                    //
    FixedLengthRecordsSource,     //
    TextLinesSource,              //
    JsonLinesSource,              //
    CsvSource,                    //
    TokensSource,                 //
    NpySource,                    //
    NpzSource,                    //
    TfrecordSource,               //
    WebdatasetSource,             //
    MdsSource,                    //
    LmdbSource,                   //
    MegatronSource,               //
    ParquetSource,                //
    PythonDatasetSource,          //
    RangeSource,                  //
    TensorsSource,                //
    SyntheticSource,              //
    StreamSource,                 //
    ConcatSource,                 //
    MixSource,                    //
    ZipSource>;

// A source within another.
struct PartSpec {
  SourceSpec source;
  std::vector<SelectSpec> select;
  double weight = 1;                  // of a mix
  std::optional<std::string> prefix;  // of a zip: of the names of features
  bool operator==(const PartSpec&) const = default;
};

// Whether this source, or one within it, is such.
bool AnySource(const SourceSpec& source,
               const std::function<bool(const SourceSpec&)>& is_such);

// Opens the source of a spec, whose values its declaration has checked: scans
// folders, reads headers, checks sizes.
// Errors name the file and a remedy: NotFound, PermissionDenied (with the
// broker's user, and `penstock run` as a remedy), DataLoss, InvalidArgument (an
// empty folder, files that do not belong together), Cancelled.
// functions: the code that it may run.
OpenedSource OpenSource(const SourceSpec& spec, OpenProgress* progress,
                        const FunctionOptions& functions = {});

}  // namespace penstock
#endif  // BROKER_SOURCE_KINDS_H_
