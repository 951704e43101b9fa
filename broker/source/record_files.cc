#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "broker/declare/declaration.h"
#include "broker/declare/spec_path.h"
#include "broker/index/data_file.h"
#include "broker/index/fingerprint.h"
#include "broker/index/side_file.h"
#include "broker/source/selection.h"
#include "common/kept_records.h"
#include "common/quantity.h"
#include "common/record_list.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kWayOut[] = "run `penstock filter` again";
constexpr char kListWayOut[] = "run `penstock check --all` again";
constexpr char kOtherData[] =
    "was made of other data, or of these before they changed";

// The path of the step's file in the spec.
std::string PathOfStep(size_t i, const SelectSpec& step) {
  return Format(
      "select[{}].{}", i,
      std::holds_alternative<ExcludeStep>(step) ? "exclude" : "filter.records");
}

Json ToJson(const SourceSpec& source) {
  Json json;
  WriteKind(KindsOf<SourceSpec>(), &source, &json);
  return json;
}

void ReplacePaths(const FileDigests& digests, Json* select) {
  for (Json& step : *select) {
    for (const char* const name : {"filter", "exclude"}) {
      const auto named = step.find(name);
      if (named == step.end() || !named->contains("records")) continue;
      Json& file = named->at("records");
      const auto found = digests.find(file.get<std::string>());
      if (found != digests.end()) file = found->second;
    }
  }
}

// A source without what may differ from host to host, such as paths.
Json Skeleton(const Json& source, const FileDigests& digests) {
  const std::string kind = source.begin().key();
  if (kind != "concat" && kind != "mix" && kind != "zip") return kind;
  Json skeleton = source;
  for (Json& part : skeleton.at(kind).at("parts")) {
    part.at("source") = Skeleton(part.at("source"), digests);
    const auto select = part.find("select");
    if (select != part.end()) ReplacePaths(digests, &*select);
  }
  return skeleton;
}

}  // namespace

// A bit for each record of the source.
class RecordFiles::File final : public SideFile {
 public:
  // A file of `penstock filter`. *header: its own.
  static StatusOr<std::shared_ptr<const File>> OpenKept(
      const std::string& path, const Source& source, OpenProgress* progress,
      KeptRecordsHeader* header) {
    PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, *progress));
    std::string line(
        std::min<uint64_t>(file.bytes(), KeptRecordsHeader::kLineBytesMax),
        '\0');
    PENSTOCK_RETURN_IF_ERROR(
        Fill(file, 0, std::as_writable_bytes(std::span(line)), progress));
    size_t bits_at = 0;
    auto parsed = ParseKeptRecordsHeader(line, &bits_at);
    if (!parsed.ok()) {
      return Status(parsed.status().code(),
                    Format("{}: {}; `penstock filter` writes one", path,
                           parsed.status().message()));
    }
    *header = *std::move(parsed);
    PENSTOCK_RETURN_IF_ERROR(
        CheckRecords(path, header->records, source, kWayOut));
    if (file.bytes() - bits_at != header->BitBytes()) {
      return DataLossError(
          "{}: has {} bytes, and its header says {}: it is not whole; {}", path,
          file.bytes(), bits_at + header->BitBytes(), kWayOut);
    }
    PENSTOCK_RETURN_IF_ERROR(progress->reserve(header->BitBytes()));
    std::vector<std::byte> bits(header->BitBytes());
    PENSTOCK_RETURN_IF_ERROR(Fill(file, bits_at, bits, progress));
    if (const Status whole = CheckKeptRecords(*header, bits); !whole.ok()) {
      return Status(whole.code(),
                    Format("{}: {}; {}", path, whole.message(), kWayOut));
    }
    return std::shared_ptr<const File>(new File(
        std::move(file), "kept records", header->records, std::move(bits)));
  }

  // A list. data: DataDigest of the source.
  static StatusOr<std::shared_ptr<const File>> OpenList(
      const std::string& path, const Source& source, const std::string& data,
      OpenProgress* progress) {
    PENSTOCK_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, *progress));
    if (file.bytes() > kRecordListBytesMax) {
      return InvalidArgumentError(
          "{}: has {} bytes, and a list has at most {}: leave out what is "
          "behind the numbers (cut -f1)",
          path, file.bytes(), kRecordListBytesMax);
    }
    const uint64_t records = source.record_count();
    PENSTOCK_RETURN_IF_ERROR(
        progress->reserve(file.bytes() + BytesOfBits(records)));
    std::string text(file.bytes(), '\0');
    PENSTOCK_RETURN_IF_ERROR(
        Fill(file, 0, std::as_writable_bytes(std::span(text)), progress));
    const auto header = ParseRecordListHeader(text);
    if (!header.ok()) {
      return Status(
          header.status().code(),
          Format("{}: {}; {}", path, header.status().message(), kListWayOut));
    }
    if (*header) {
      PENSTOCK_RETURN_IF_ERROR(
          CheckRecords(path, (*header)->records, source, kListWayOut));
      if ((*header)->data != data) {
        return FailedPreconditionError("{}: {}; {}", path, kOtherData,
                                       kListWayOut);
      }
    }
    std::vector<std::byte> bits(BytesOfBits(records));
    const Status listed = ForEachListed(text, records, [&](uint64_t record) {
      bits[record / 8] |= std::byte{1} << (record % 8);
    });
    if (!listed.ok()) {
      return Status(listed.code(), Format("{}: {}", path, listed.message()));
    }
    return std::shared_ptr<const File>(new File(
        std::move(file), "excluded records", records, std::move(bits)));
  }

  bool Has(uint64_t record) const {
    return (std::to_integer<unsigned>(bits_[record / 8]) >> (record % 8)) & 1;
  }

  bool Changed() const override { return file_.Changed(); }
  uint64_t memory_bytes() const override { return bits_.capacity(); }
  std::string digest() const override {
    Fingerprint fingerprint(kind_);
    fingerprint.Add(records_);
    fingerprint.Add(bits_);
    return fingerprint.Hex();
  }

 private:
  File(DataFile file, std::string_view kind, uint64_t records,
       std::vector<std::byte> bits)
      : file_(std::move(file)),
        kind_(kind),
        records_(records),
        bits_(std::move(bits)) {}

  static uint64_t BytesOfBits(uint64_t records) {
    return records / 8 + (records % 8 != 0);
  }
  static Status CheckRecords(const std::string& path, uint64_t records,
                             const Source& source, std::string_view way_out) {
    if (records == source.record_count()) return OkStatus();
    return FailedPreconditionError(
        "{}: was made of {}, and the source has {}: the data have changed "
        "since; {}",
        path, Counted(records, "record", "records"), source.record_count(),
        way_out);
  }
  static Status Fill(const DataFile& file, uint64_t at,
                     std::span<std::byte> into, OpenProgress* progress) {
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t got,
                              file.Read(at, into, progress));
    if (got == into.size()) return OkStatus();
    return DataLossError(
        "{}: ends at {} of {} bytes: it has changed since it was opened",
        file.path(), at + got, file.bytes());
  }

  const DataFile file_;
  const std::string_view kind_;
  const uint64_t records_;
  const std::vector<std::byte> bits_;
};

StatusOr<RecordFiles> RecordFiles::Open(const std::vector<SelectSpec>& steps,
                                        const SourceSpec& spec,
                                        const Source& source,
                                        OpenProgress* progress) {
  RecordFiles files;
  FileDigests digests;
  std::optional<std::string> fingerprint;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string* const path = FileOf(steps[i]);
    if (path == nullptr) continue;
    if (!fingerprint) {
      fingerprint = source.fingerprint();
      source.AddDigests(&digests);
    }
    const bool is_list = std::holds_alternative<ExcludeStep>(steps[i]);
    KeptRecordsHeader header;
    auto opened = is_list
                      ? File::OpenList(*path, source,
                                       DataDigest(spec, *fingerprint), progress)
                      : File::OpenKept(*path, source, progress, &header);
    if (!opened.ok()) return AtPath(PathOfStep(i, steps[i]), opened.status());
    const auto refused = [&](std::string_view why) {
      return AtPath(PathOfStep(i, steps[i]),
                    FailedPreconditionError("{}: {}; {}", *path, why, kWayOut));
    };
    if (!is_list && header.data != *fingerprint) return refused(kOtherData);
    if (!is_list && header.selection !=
                        SelectionDigest(spec, *fingerprint,
                                        std::span(steps).first(i), digests)) {
      return refused(
          "was made with another `source` or with other steps of `select` "
          "before it, so that nobody has judged some of the records");
    }
    digests[*path] = (*opened)->digest();
    files.files_[*path] = *std::move(opened);
  }
  return files;
}

std::function<bool(const std::string& path, uint64_t record)>
RecordFiles::Lookup(uint64_t first) const {
  return [this, first](const std::string& path, uint64_t record) {
    return files_.at(path)->Has(record - first);
  };
}

bool RecordFiles::Changed() const {
  return std::any_of(files_.begin(), files_.end(),
                     [](const auto& file) { return file.second->Changed(); });
}

uint64_t RecordFiles::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [path, file] : files_) bytes += file->memory_bytes();
  return bytes;
}

void RecordFiles::AddDigests(FileDigests* digests) const {
  for (const auto& [path, file] : files_) (*digests)[path] = file->digest();
}

std::string SelectionText(const SourceSpec& source,
                          std::span<const SelectSpec> steps,
                          const FileDigests& digests) {
  const Json skeleton = Skeleton(ToJson(source), digests);
  if (steps.empty() && skeleton.is_string()) return "";
  std::string text = skeleton.dump();
  if (!steps.empty()) {
    Json select;
    SelectSteps().write({steps.begin(), steps.end()}, &select);
    ReplacePaths(digests, &select);
    text += select.dump();
  }
  return text;
}

std::string SelectionDigest(const SourceSpec& source,
                            const std::string& fingerprint,
                            std::span<const SelectSpec> steps,
                            const FileDigests& digests) {
  Fingerprint digest("selection");
  digest.Add(SelectionText(source, steps, digests));
  // Then the spec says what the data are, as far as anything does.
  if (fingerprint.empty()) digest.Add(ToJson(source).dump());
  return digest.Hex();
}

std::string DataDigest(const SourceSpec& source,
                       const std::string& fingerprint) {
  return fingerprint.empty() ? SelectionDigest(source, "", {}, {})
                             : fingerprint;
}

}  // namespace penstock
