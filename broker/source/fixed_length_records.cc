#include <algorithm>
#include <bit>

#include "broker/declare/declaration.h"
#include "broker/index/fingerprint.h"
#include "broker/io/read.h"
#include "broker/source/kinds.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

class FixedLengthRecords final : public Source {
 public:
  FixedLengthRecords(const FixedLengthRecordsSource& spec,
                     uint64_t record_bytes, DataFiles files,
                     std::vector<uint64_t> ends)
      : header_bytes_(spec.header_bytes),
        record_bytes_(record_bytes),
        files_(std::move(files)),
        ends_(std::move(ends)) {
    for (const Feature& feature : spec.features) {
      raw_spec_.push_back({feature, false});
    }
  }

  uint64_t record_count() const override { return ends_.back(); }
  const RawSpec& raw_spec() const override { return raw_spec_; }
  uint64_t memory_bytes() const override { return 0; }
  bool Changed() const override { return files_.Changed(); }
  std::string io() const override { return IoText(files_[0].align()); }
  std::string fingerprint() const override {
    Fingerprint fingerprint("fixed_length_records");
    fingerprint.Add(header_bytes_);
    fingerprint.Add(record_bytes_);
    fingerprint.Add(files_);
    return fingerprint.Hex();
  }
  void AddTimes(Fingerprint* to) const override { files_.AddTimes(to); }
  std::optional<size_t> plain_feature() const override {
    if (raw_spec_.size() != 1) return std::nullopt;
    return 0;
  }

  void Locate(uint64_t record, ReadRequest* request) const override {
    const size_t file = FileNumber(record);
    files_[file].Locate(Offset(file, record), record_bytes_, request);
  }

  Status Unpack(uint64_t, const ReadBytes& read, std::vector<std::byte>*,
                RawRecord* raw) const override {
    raw->resize(raw_spec_.size());
    uint64_t at = 0;
    for (size_t i = 0; i < raw_spec_.size(); ++i) {
      const uint64_t bytes = raw_spec_[i].feature.RowBytes();
      (*raw)[i] = read.bytes.subspan(at, bytes);
      at += bytes;
    }
    return OkStatus();
  }

  std::string_view FileOf(uint64_t record) const override {
    return files_[FileNumber(record)].path();
  }
  std::string Describe(uint64_t record) const override {
    const size_t file = FileNumber(record);
    return Format("{}, offset {}", files_[file].path(), Offset(file, record));
  }

 private:
  size_t FileNumber(uint64_t record) const {
    return static_cast<size_t>(
        std::upper_bound(ends_.begin(), ends_.end(), record) - ends_.begin());
  }
  uint64_t Offset(size_t file, uint64_t record) const {
    const uint64_t first = file == 0 ? 0 : ends_[file - 1];
    return header_bytes_ + (record - first) * record_bytes_;
  }

  const uint64_t header_bytes_;
  const uint64_t record_bytes_;
  RawSpec raw_spec_;
  const DataFiles files_;
  const std::vector<uint64_t> ends_;  // one past each file's last record
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
  PENSTOCK_ASSIGN_OR_RETURN(DataFiles opened,
                            DataFiles::Open(files, *progress));
  std::vector<uint64_t> ends;
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
    ends.push_back((ends.empty() ? 0 : ends.back()) + data / record_bytes);
  }
  PENSTOCK_RETURN_IF_ERROR(opened.ChooseIo(io, record_bytes));
  return std::unique_ptr<Source>(new FixedLengthRecords(
      *this, record_bytes, std::move(opened), std::move(ends)));
}

}  // namespace penstock
