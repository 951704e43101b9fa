#include "common/kept_records.h"

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
#include "common/quantity.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kWayOut[] = "run `penstock filter` again";

std::string PathOfStep(size_t i) {
  return Format("select[{}].filter.records", i);
}

const std::string* FileOf(const SelectSpec& step) {
  const auto* filter = std::get_if<FilterStep>(&step);
  return filter == nullptr || filter->records.empty() ? nullptr
                                                      : &filter->records;
}

Json ToJson(const SourceSpec& source) {
  Json json;
  WriteKind(KindsOf<SourceSpec>(), &source, &json);
  return json;
}

void ReplacePaths(const FileDigests& digests, Json* select) {
  for (Json& step : *select) {
    const auto filter = step.find("filter");
    if (filter == step.end() || !filter->contains("records")) continue;
    Json& file = filter->at("records");
    const auto found = digests.find(file.get<std::string>());
    if (found != digests.end()) file = found->second;
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

class KeptFiles::File final : public SideFile {
 public:
  static StatusOr<std::shared_ptr<const File>> Open(const std::string& path,
                                                    const Source& source,
                                                    OpenProgress* progress) {
    PENSTOCK_ASSIGN_OR_RETURN(DataFile file,
                              DataFile::Open(path, *progress->access));
    std::string line(
        std::min<uint64_t>(file.bytes(), KeptRecordsHeader::kLineBytesMax),
        '\0');
    PENSTOCK_RETURN_IF_ERROR(
        Fill(file, 0, std::as_writable_bytes(std::span(line)), progress));
    size_t bits_at = 0;
    auto header = ParseKeptRecordsHeader(line, &bits_at);
    if (!header.ok()) {
      return Status(header.status().code(),
                    Format("{}: {}; `penstock filter` writes one", path,
                           header.status().message()));
    }
    if (header->records != source.record_count()) {
      return FailedPreconditionError(
          "{}: was made of {}, and the source has {}: the data have changed "
          "since; {}",
          path, Counted(header->records, "record", "records"),
          source.record_count(), kWayOut);
    }
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
    return std::shared_ptr<const File>(
        new File(std::move(file), *std::move(header), std::move(bits)));
  }

  bool Has(uint64_t record) const {
    return (std::to_integer<unsigned>(bits_[record / 8]) >> (record % 8)) & 1;
  }
  const KeptRecordsHeader& header() const { return header_; }

  bool Changed() const override { return file_.Changed(); }
  uint64_t memory_bytes() const override { return bits_.capacity(); }
  std::string digest() const override {
    Fingerprint fingerprint("kept records");
    fingerprint.Add(header_.records);
    fingerprint.Add(bits_);
    return fingerprint.Hex();
  }

 private:
  File(DataFile file, KeptRecordsHeader header, std::vector<std::byte> bits)
      : file_(std::move(file)),
        header_(std::move(header)),
        bits_(std::move(bits)) {}

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
  const KeptRecordsHeader header_;
  const std::vector<std::byte> bits_;
};

StatusOr<KeptFiles> KeptFiles::Open(const std::vector<SelectSpec>& steps,
                                    const SourceSpec& spec,
                                    const Source& source,
                                    OpenProgress* progress) {
  KeptFiles kept;
  FileDigests digests;
  std::optional<std::string> fingerprint;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string* const path = FileOf(steps[i]);
    if (path == nullptr) continue;
    if (!fingerprint) {
      fingerprint = source.fingerprint();
      source.AddDigests(&digests);
    }
    auto opened = File::Open(*path, source, progress);
    if (!opened.ok()) return AtPath(PathOfStep(i), opened.status());
    const KeptRecordsHeader& header = (*opened)->header();
    const auto refused = [&](std::string_view why) {
      return AtPath(PathOfStep(i),
                    FailedPreconditionError("{}: {}; {}", *path, why, kWayOut));
    };
    if (header.data != *fingerprint) {
      return refused("was made of other data, or of these before they changed");
    }
    if (header.selection != SelectionDigest(spec, *fingerprint,
                                            std::span(steps).first(i),
                                            digests)) {
      return refused(
          "was made with another `source` or with other steps of `select` "
          "before it, so that nobody has judged some of the records");
    }
    digests[*path] = (*opened)->digest();
    kept.files_[*path] = *std::move(opened);
  }
  return kept;
}

std::function<bool(const std::string& path, uint64_t record)> KeptFiles::Lookup(
    uint64_t first) const {
  return [this, first](const std::string& path, uint64_t record) {
    return files_.at(path)->Has(record - first);
  };
}

bool KeptFiles::Changed() const {
  return std::any_of(files_.begin(), files_.end(),
                     [](const auto& file) { return file.second->Changed(); });
}

uint64_t KeptFiles::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [path, file] : files_) bytes += file->memory_bytes();
  return bytes;
}

void KeptFiles::AddDigests(FileDigests* digests) const {
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

}  // namespace penstock
