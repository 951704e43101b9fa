// A record is: length u64, its masked CRC-32C u32, data, its masked CRC-32C u32
// (tensorflow/core/lib/io/record_writer.h). The scan reads lengths and checks
// their checksums; a read checks the data's.
#include <algorithm>

#include "broker/declare/declaration.h"
#include "broker/index/values.h"
#include "broker/io/read.h"
#include "broker/source/example.h"
#include "broker/source/indexed_source.h"
#include "broker/source/kinds.h"
#include "broker/source/text_field.h"
#include "common/crc32c.h"
#include "common/quantity.h"

namespace penstock {
namespace {

constexpr uint64_t kHeaderBytes = 12;  // length and its checksum
constexpr uint64_t kFooterBytes = 4;   // the data's checksum
constexpr uint64_t kDataBytesMax = kRecordBytesMax - kFooterBytes;

uint32_t MaskedCrc(std::span<const std::byte> bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

Status NotARecordError(const std::string& path, uint64_t number,
                       uint64_t offset, std::span<const std::byte> header) {
  const auto byte = [&header](size_t i) {
    return std::to_integer<unsigned>(header[i]);
  };
  // zlib with any level (RFC 1950), which a record may begin like.
  if (offset == 0 && byte(0) == 0x78 && (byte(0) * 256 + byte(1)) % 31 == 0) {
    return InvalidArgumentError(
        "{} is compressed as a whole by zlib, which has no mark of its own; "
        "write it with GZIP or without compression (pictures are compressed "
        "already), or unpack it",
        path);
  }
  return DataLossError(
      "{}, record {} at offset {}: the checksum of its length is wrong; {}",
      path, number, offset,
      offset == 0 ? "it is no TFRecord file, or damaged"
                  : "the file is damaged from there on");
}

Status FindTfrecords(ScannedFile* file, RecordSink* records) {
  uint64_t number = 0;
  for (uint64_t at = 0; at < file->bytes(); ++number) {
    const uint64_t left = file->bytes() - at;
    const auto truncated = [&](uint64_t bytes) {
      return DataLossError(
          "{}, record {} at offset {}: the file ends within it, {} bytes where "
          "{} are wanted; write the file again, or cut it there (truncate -s "
          "{})",
          file->path(), number, at, left, bytes, at);
    };
    if (left < kHeaderBytes) return truncated(kHeaderBytes);
    PENSTOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> header,
                              file->At(at, kHeaderBytes));
    if (MaskedCrc(header.first(8)) != ValueAt<uint32_t>(&header[8])) {
      return NotARecordError(file->path(), number, at, header);
    }
    const auto bytes = ValueAt<uint64_t>(header.data());
    constexpr uint64_t kAround = kHeaderBytes + kFooterBytes;
    if (left < kAround || bytes > left - kAround) {
      return truncated(bytes < UINT64_MAX - kAround ? bytes + kAround
                                                    : UINT64_MAX);
    }
    PENSTOCK_RETURN_IF_ERROR(records->Add(at + kHeaderBytes, bytes));
    at += bytes + kAround;
  }
  return OkStatus();
}

// ---- the source

class Tfrecord final : public IndexedSource {
 public:
  Tfrecord(const RecordFeatures& features, Index index)
      : IndexedSource(std::move(index), RawSpecOf(features)),
        features_(features) {}

  void Locate(uint64_t record, ReadRequest* request) const override {
    const Index::Record place = index().At(record);
    const uint64_t bytes = place.bytes[0];
    place.file->Locate(place.offsets[0],
                       bytes > kDataBytesMax ? 0 : bytes + kFooterBytes,
                       request);
  }

  StatusOr<std::span<const std::byte>> Data(uint64_t record,
                                            const ReadBytes& read) const {
    const uint64_t bytes = index().At(record).bytes[0];
    if (bytes > kDataBytesMax) {
      return DataLossError("{} bytes{}; a record has at most {}", bytes,
                           bytes == UINT32_MAX ? " or more" : "",
                           kDataBytesMax);
    }
    if (read.bytes.size() != bytes + kFooterBytes) {
      return InternalError("{} bytes were read", read.bytes.size());
    }
    const std::span<const std::byte> data = read.bytes.first(bytes);
    if (MaskedCrc(data) != ValueAt<uint32_t>(&read.bytes[bytes])) {
      return DataLossError("the checksum of its data is wrong");
    }
    return data;
  }

  Status Unpack(uint64_t record, const ReadBytes& read,
                std::vector<std::byte>* scratch,
                RawRecord* raw) const override {
    const auto data = Data(record, read);
    const Status status =
        data.ok() ? features_.Unpack(*data, scratch, raw) : data.status();
    return status.ok() ? status : status.Prepend(Describe(record));
  }

  std::string Describe(uint64_t record) const override {
    const Index::Record place = index().At(record);
    return Format("{}, record {} at offset {}", place.file->path(),
                  place.number, place.offsets[0] - kHeaderBytes);
  }

 private:
  const ExampleFeatures features_;
};

// What records have, for a spec without features.
Status AskFeaturesError(const Tfrecord& source) {
  constexpr uint64_t kLookedAt = 64;  // from all files
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<StorageReader> reader,
                            MakeStorageReader(ReadBackend::kPread, 1));
  FeatureProposal proposal;
  const uint64_t count = std::min(source.record_count(), kLookedAt);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t record = source.record_count() * i / count;
    ReadRequest request;
    source.Locate(record, &request);
    reader->Start(0, request, {}, kNotPinned);
    StorageReader::Done done;
    if (!reader->Next(kWaitForever, &done)) return InternalError("lost a read");
    PENSTOCK_RETURN_IF_ERROR(done.status);
    const auto data = source.Data(record, done.read());
    const Status status = data.ok() ? proposal.Add(*data) : data.status();
    if (!status.ok()) return status.Prepend(source.Describe(record));
  }
  const std::string left_out = proposal.LeftOut();
  return InvalidArgumentError(
      "tfrecord: say which features a row has; by {}{}: features: {{{}}}",
      Counted(count, "record"),
      left_out.empty()
          ? ""
          : Format(", without those of no single size: {}", left_out),
      proposal.Features());
}

}  // namespace

const Declaration<TfrecordSource>& TfrecordSource::Declared() {
  static const auto declared =
      Declaration<TfrecordSource>(
          "tfrecord", "Records of TFRecord files, each a tf.train.Example.")
          .Gives(kFieldsAndListsGive)
          .Example(
              "{files: \"/data/train-*\", features: {image: {key: "
              "image/encoded, encoded: true}, label: {key: "
              "image/class/label, dtype: int64, shape: []}}}")
          .Required("files", &TfrecordSource::files, Files(), kFilesText)
          .Optional(
              "features", &TfrecordSource::features,
              RecordFeaturesType("key", {"default"}),
              "{NAME: {encoded: true}} of a picture or sound, {NAME: {dtype, "
              "shape}} of "
              "numbers or raw bytes, {NAME: {max_bytes}} of text, {NAME: "
              "{dtype, "
              "max_length}} of a list of numbers, each of `shape` ([]); for "
              "these two `longer`, fail or cut; with `key`, its name in the "
              "record (NAME), and for numbers `default`, the values where a "
              "record lacks it (an error of the sample), of a list []. Left "
              "out, an error proposes them")
          .Optional("io", &TfrecordSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource TfrecordSource::Open(OpenProgress* progress) const {
  PENSTOCK_ASSIGN_OR_RETURN(
      Index index,
      Index::Open(files, {.kind = "tfrecord", .scan = FindTfrecords},
                  progress));
  PENSTOCK_RETURN_IF_ERROR(index.ChooseIo(io));
  auto source = std::make_unique<Tfrecord>(features, std::move(index));
  if (features.empty()) return AskFeaturesError(*source);
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace penstock
