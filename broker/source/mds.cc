// A shard is: the number of samples u32, the offsets of all and of their end
// u32, its columns as JSON, the samples (MosaicML Streaming 0.13,
// streaming/base/format/mds). A sample: the sizes u32 of its columns of any
// size, then the values of all.
#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/indexed_source.h"
#include "broker/source/kinds.h"
#include "broker/source/mds_columns.h"
#include "broker/source/mds_index.h"
#include "broker/source/text_field.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr uint64_t kWord = sizeof(uint32_t);

// sample_bytes: of each, if all have as many.
Status FindSamples(std::optional<uint64_t> sample_bytes, ScannedFile* file,
                   RecordSink* records) {
  if (file->bytes() < 2 * kWord) {
    return DataLossError("{}: {} bytes; a shard has at least {}", file->path(),
                         file->bytes(), 2 * kWord);
  }
  const auto word = [file](uint64_t i) -> StatusOr<uint64_t> {
    PENSTOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                              file->At(i * kWord, kWord));
    return uint64_t{ValueAt<uint32_t>(bytes.data())};
  };
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t samples, word(0));
  const uint64_t head = (samples + 2) * kWord;
  if (head > file->bytes()) {
    return DataLossError(
        "{}: it says that it has {} samples, whose offsets alone would have {} "
        "bytes; the file has {}",
        file->path(), samples, head, file->bytes());
  }
  PENSTOCK_ASSIGN_OR_RETURN(uint64_t begin, word(1));
  if (begin < head) {
    return DataLossError("{}: sample 0 begins at {}, within the offsets",
                         file->path(), begin);
  }
  for (uint64_t i = 0; i < samples; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t end, word(i + 2));
    if (end < begin || end > file->bytes()) {
      return DataLossError(
          "{}: sample {} begins at {} and ends at {}; the file has {} bytes "
          "and is damaged, or is no MDS shard",
          file->path(), i, begin, end, file->bytes());
    }
    if (sample_bytes && end - begin != *sample_bytes) {
      return DataLossError(
          "{}, sample {} at offset {}: {} bytes; its columns have {}",
          file->path(), i, begin, end - begin, *sample_bytes);
    }
    PENSTOCK_RETURN_IF_ERROR(records->Add(begin, end - begin));
    begin = end;
  }
  return OkStatus();
}

// What an index of shards depends on besides the files.
std::string OptionsOf(const MdsColumns& columns) {
  std::string options;
  for (const MdsColumn& each : columns) {
    options +=
        Format("{} {} {}\n", each.bytes.value_or(0), each.encoding, each.name);
  }
  return options;
}

class Mds final : public IndexedSource {
 public:
  Mds(DataFile index_file, Index index, MdsFeatures features)
      : IndexedSource(std::move(index), RawSpecOf(features.features())),
        index_file_(std::move(index_file)),
        features_(std::move(features)) {}

  bool Changed() const override {
    return index_file_.Changed() || IndexedSource::Changed();
  }
  void AddTimes(Fingerprint* to) const override {
    index_file_.AddTime(to);
    IndexedSource::AddTimes(to);
  }
  std::optional<size_t> plain_feature() const override {
    return features_.is_plain() ? std::optional<size_t>(0) : std::nullopt;
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    const Index::Record place = index().At(record);
    const uint64_t bytes = place.bytes[0];
    if (const auto& part = features_.part()) {
      place.file->Locate(place.offsets[0] + part->begin, part->bytes, request);
      return;
    }
    place.file->Locate(place.offsets[0], bytes > kRecordBytesMax ? 0 : bytes,
                       request);
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const uint64_t bytes = index().At(record).bytes[0];
    const Status status =
        features_.part() || bytes <= kRecordBytesMax
            ? features_.Unpack(read.bytes, scratch, raw)
            : DataLossError("{} bytes; a record has at most {}", bytes,
                            kRecordBytesMax);
    return status.ok() ? status : status.Prepend(Describe(record));
  }

  std::string Describe(uint64_t record) const override {
    const Index::Record place = index().At(record);
    return Format("{}, sample {} at offset {}", place.file->path(),
                  place.number, place.offsets[0]);
  }

 private:
  const DataFile index_file_;
  const MdsFeatures features_;
};

// What samples have, for a spec that says too little.
Status AskFeaturesError(std::string_view why, const MdsColumns& columns,
                        const Index& index, OpenProgress* progress) {
  constexpr uint64_t kLookedAt = 64;  // from all shards
  MdsProposal proposal(columns);
  std::vector<std::byte> sample;
  const uint64_t count = std::min(index.records(), kLookedAt);
  for (uint64_t i = 0; i < count; ++i) {
    const Index::Record place = index.At(index.records() * i / count);
    sample.resize(std::min<uint64_t>(place.bytes[0], kRecordBytesMax));
    PENSTOCK_ASSIGN_OR_RETURN(
        const uint64_t found,
        place.file->Read(place.offsets[0], sample, progress));
    const Status status = proposal.Add(std::span(sample).first(found));
    if (!status.ok()) {
      return status.Prepend(Format("{}, sample {} at offset {}",
                                   place.file->path(), place.number,
                                   place.offsets[0]));
    }
  }
  const std::string left_out = proposal.LeftOut();
  return InvalidArgumentError(
      "mds: say what a row has: {}; by {}: features: {{{}}}{}", why,
      Counted(count, "sample"), proposal.Features(),
      left_out.empty() ? "" : Format("; not {}", left_out));
}

// Every column, as index.json tells it.
RecordFeatures AllColumns(const MdsColumns& columns) {
  RecordFeatures features;
  for (const MdsColumn& each : columns) {
    RecordFeature& feature = features.emplace_back();
    feature.feature.name = ProposedName(each.name);
    feature.key = each.name;
    feature.by_source = true;
  }
  return features;
}

// That no two columns become one name.
bool AreNames(const RecordFeatures& features) {
  return std::all_of(
      features.begin(), features.end(), [](const RecordFeature& each) {
        return each.feature.name == each.key && !each.key.starts_with('.');
      });
}

}  // namespace

const Declaration<MdsSource>& MdsSource::Declared() {
  static const auto declared =
      Declaration<MdsSource>(
          "mds", "Samples of an MDS dataset, as MosaicML Streaming writes it.")
          .Gives(std::string("every column, or ") + kFieldsAndListsGive)
          .Example(
              "{path: /data/c4/train, features: {tokens: {dtype: int32, "
              "max_length: 2048}, label: {}}}")
          .Required("path", &MdsSource::path, PathOrAddress(),
                    "a folder with index.json and its shards; compressed by "
                    "zstd, gz or bz2 they are inflated, by br or snappy they "
                    "have to be unpacked beside the compressed ones")
          .Optional(
              "features", &MdsSource::features,
              RecordFeaturesType("column", {"item"}, /*source_knows=*/true),
              "{NAME: {}} of a column whose size index.json tells (int, uint8, "
              "..., ndarray:DTYPE:SHAPE, str_int, str_float, jpeg, png), "
              "{NAME: {encoded: true}} of a picture or sound, {NAME: {dtype, "
              "shape}} of "
              "numbers or raw bytes, {NAME: {max_bytes}} of str, json, "
              "str_decimal or bytes, {NAME: {dtype, max_length}} of an ndarray "
              "or bytes of any length, each of `shape` ([]); for these two "
              "`longer`, fail or cut; with `column`, its name (NAME), and "
              "`item`, which picture of jpeg_array or list[jpeg]. Left out, "
              "every column, or an error proposes them")
          .Optional("verify", &MdsSource::verify, Bool(),
                    "compares each shard with its xxh3_64, xxh64, xxh128 or "
                    "xxh32 in index.json when the dataset is opened, which "
                    "reads all of it")
          .Optional("io", &MdsSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource MdsSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(DataFile index_file,
                            DataFile::Open(path + "/index.json", *progress));
  PENSTOCK_ASSIGN_OR_RETURN(const MdsIndex listed,
                            MdsIndex::Read(index_file, progress));
  const RecordFeatures wanted =
      features.empty() ? AllColumns(listed.columns) : features;
  StatusOr<MdsFeatures> made = MdsFeatures::Make(wanted, listed.columns);
  const bool asks = features.empty()
                        ? !made.ok() || !AreNames(wanted)
                        : made.status().code() == StatusCode::kNotFound;
  if (!made.ok() && !asks) return made.status().Prepend("mds");
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles shards, listed.OpenShards(*progress));
  PENSTOCK_ASSIGN_OR_RETURN(
      Index index,
      Index::Open(std::move(shards),
                  {.kind = "mds",
                   .options = OptionsOf(listed.columns),
                   .scan =
                       [bytes = listed.columns.sample_bytes()](
                           ScannedFile* file, RecordSink* records) {
                         return FindSamples(bytes, file, records);
                       }},
                  progress));
  for (size_t i = 0; i < listed.shards.size(); ++i) {
    if (index.RecordsOf(i) == listed.shards[i].samples) continue;
    return DataLossError(
        "{} has {} samples, by index.json {}; they are of two datasets, or one "
        "is damaged: copy both again",
        index.files()[i].path(), index.RecordsOf(i), listed.shards[i].samples);
  }
  if (asks) {
    return AskFeaturesError(made.ok() ? "a column's name is none of a feature"
                                      : made.status().message(),
                            listed.columns, index, progress);
  }
  if (verify) {
    PENSTOCK_RETURN_IF_ERROR(listed.Verify(index.files(), progress));
  }
  PENSTOCK_RETURN_IF_ERROR(index.ChooseIo(io));
  return std::unique_ptr<Source>(
      new Mds(std::move(index_file), std::move(index), *std::move(made)));
}

}  // namespace penstock
