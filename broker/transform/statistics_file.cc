#include "broker/transform/statistics_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "broker/index/data_file.h"
#include "broker/index/fingerprint.h"
#include "common/printable.h"

namespace penstock {
namespace {

constexpr uint64_t kStatisticsBytesMax = uint64_t{256} << 20;
constexpr int kVersion = 1;
constexpr char kVersionKey[] = "penstock_statistics";

class StatisticsFile final : public SideFile {
 public:
  StatisticsFile(DataFile file, std::string digest)
      : file_(std::move(file)), digest_(std::move(digest)) {}
  bool Changed() const override { return file_.Changed(); }
  uint64_t memory_bytes() const override { return 0; }
  std::string digest() const override { return digest_; }

 private:
  const DataFile file_;
  const std::string digest_;
};

StatusOr<std::string> ReadAll(const DataFile& file, OpenProgress* progress) {
  if (file.bytes() > kStatisticsBytesMax) {
    return InvalidArgumentError("{}: statistics of {} bytes; at most {}",
                                file.path(), file.bytes(), kStatisticsBytesMax);
  }
  PENSTOCK_RETURN_IF_ERROR(progress->reserve(file.bytes()));
  std::string text(file.bytes(), '\0');
  PENSTOCK_ASSIGN_OR_RETURN(
      const uint64_t got,
      file.Read(0, std::as_writable_bytes(std::span(text)), progress));
  text.resize(got);
  return text;
}

}  // namespace

StatusOr<nlohmann::json> StatisticsOf(const std::string& path,
                                      const std::string& feature,
                                      MapOpening* opening) {
  constexpr char kRemedy[] =
      "`penstock analyze SPEC.yaml --out FILE` writes it";
  StatusOr<DataFile> opened = DataFile::Open(path, *opening->progress->access);
  if (opened.status().code() == StatusCode::kNotFound) {
    return NotFoundError("{}; {}", opened.status().message(), kRemedy);
  }
  PENSTOCK_ASSIGN_OR_RETURN(DataFile file, std::move(opened));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text,
                            ReadAll(file, opening->progress));
  // find() of what is no object finds nothing.
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  // No copy, no text of foreign values: they may be nested too deeply for that.
  const auto features = json.find("features");
  const auto version = json.find(kVersionKey);
  if (version == json.end() || !version->is_number() || *version != kVersion ||
      features == json.end() || !features->is_object()) {
    return InvalidArgumentError("{}: holds no statistics of version {}; {}",
                                path, kVersion, kRemedy);
  }
  const auto found = features->find(feature);
  if (found == features->end() || !found->is_object()) {
    std::string known;
    for (const auto& [name, of] : features->items()) {
      known += (known.empty() ? "" : ", ") + Printable(name);
    }
    return InvalidArgumentError("{}: has no feature '{}', but {}; {}", path,
                                feature, known, kRemedy);
  }
  const auto data = json.find("fingerprint");
  const std::string own = opening->fingerprint();
  if (data != json.end() && data->is_string() && !own.empty() && *data != "" &&
      *data != own) {
    opening->Warn(
        Format("{} has the statistics of other data: right for a validation or "
               "test set of the same; if these are the data meant, run "
               "`penstock analyze` again",
               path));
  }
  Fingerprint fingerprint("statistics");
  fingerprint.Add(text);
  opening->files.push_back(
      std::make_shared<StatisticsFile>(std::move(file), fingerprint.Hex()));
  return nlohmann::json(std::move(*found));
}

}  // namespace penstock
