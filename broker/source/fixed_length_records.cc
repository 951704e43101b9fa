#include <algorithm>
#include <bit>

#include "broker/declare/declaration.h"
#include "broker/index/fingerprint.h"
#include "broker/io/read.h"
#include "broker/source/indexed_source.h"
#include "broker/source/kinds.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

class FixedLengthRecords final : public EvenSource {
 public:
  FixedLengthRecords(const FixedLengthRecordsSource& spec, DataFiles files,
                     Layout layout)
      : EvenSource(std::move(files), std::move(layout),
                   RawSpecOf(spec.features)),
        header_bytes_(spec.header_bytes) {}

  std::string fingerprint() const override {
    Fingerprint fingerprint("fixed_length_records");
    fingerprint.Add(header_bytes_);
    fingerprint.Add(layout().record_bytes);
    fingerprint.Add(files());
    return fingerprint.Hex();
  }
  std::optional<size_t> plain_feature() const override {
    if (raw_spec().size() != 1) return std::nullopt;
    return 0;
  }

  Status Unpack(uint64_t, const ReadBytes& read, std::vector<std::byte>*,
                RawRecord* raw) const override {
    raw->resize(raw_spec().size());
    uint64_t at = 0;
    for (size_t i = 0; i < raw_spec().size(); ++i) {
      const uint64_t bytes = raw_spec()[i].feature.RowBytes();
      (*raw)[i] = read.bytes.subspan(at, bytes);
      at += bytes;
    }
    return OkStatus();
  }

 private:
  const uint64_t header_bytes_;
};

}  // namespace

const Declaration<FixedLengthRecordsSource>&
FixedLengthRecordsSource::Declared() {
  const auto bytes = WholeNumber<uint64_t>(0, kRowBytesMax);
  static const auto declared =
      Declaration<FixedLengthRecordsSource>(
          "fixed_length_records",
          "Records of one size in one or several files, little-endian, without "
          "gaps.")
          .Gives("as given")
          .Example(
              "{files: train.bin, features: {x: {dtype: float32, shape: "
              "[8]}, label: {dtype: int64, shape: []}}}")
          .Required("files", &FixedLengthRecordsSource::files, Files(),
                    kFilesText)
          .Required("features", &FixedLengthRecordsSource::features, Features(),
                    "in the order of a record, " + std::string(kFeaturesText))
          .Optional("header_bytes", &FixedLengthRecordsSource::header_bytes,
                    bytes, "left out at the start of each file")
          .Optional("footer_bytes", &FixedLengthRecordsSource::footer_bytes,
                    bytes, "left out at the end of each file")
          .Optional("io", &FixedLengthRecordsSource::io, IoType(), kIoText);
  return declared;
}

OpenedSource FixedLengthRecordsSource::Open(OpenProgress* progress) const {
  uint64_t record_bytes = 0;
  for (const Feature& feature : features) {
    record_bytes += feature.RowBytes();
  }
  if (record_bytes == 0 || record_bytes > kRecordBytesMax) {
    return InvalidArgumentError(
        "fixed_length_records: a record of {} bytes; wanted 1 to {}",
        record_bytes, kRecordBytesMax);
  }
  PENSTOCK_ASSIGN_OR_RETURN(
      DataFiles opened, DataFiles::Open(files, *progress, InflateBy::kName));
  EvenSource::Layout layout = {
      .record_bytes = record_bytes,
      .step_bytes = record_bytes,
      .data_at = std::vector<uint64_t>(opened.size(), header_bytes)};
  for (const DataFile& file : opened) {
    const uint64_t around = header_bytes + footer_bytes;
    const uint64_t data = file.bytes() - std::min(file.bytes(), around);
    if (data == 0 || data % record_bytes != 0) {
      return DataLossError(
          "{} has {} bytes; wanted {}a multiple of {}, the bytes of a record "
          "({})",
          file.path(), file.bytes(),
          around == 0 ? "" : Format("{} and ", around), record_bytes,
          data == 0 ? "it holds no record"
                    : Format("{} are left over", data % record_bytes));
    }
    PENSTOCK_RETURN_IF_ERROR(layout.records.Append(data / record_bytes));
  }
  PENSTOCK_RETURN_IF_ERROR(opened.ChooseIo(io, record_bytes));
  return std::unique_ptr<Source>(
      new FixedLengthRecords(*this, std::move(opened), std::move(layout)));
}

}  // namespace penstock
