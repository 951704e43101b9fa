#include "broker/transform/statistics_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/printable.h"

namespace penstock {
namespace {

constexpr MapFileKind kStatistics = {
    .name = "statistics", .bytes_max = uint64_t{256} << 20, .stays = false};
constexpr int kVersion = 1;
constexpr char kVersionKey[] = "penstock_statistics";

}  // namespace

StatusOr<nlohmann::json> StatisticsOf(const std::string& path,
                                      const std::string& feature,
                                      MapOpening* opening) {
  constexpr char kRemedy[] =
      "`penstock analyze SPEC.yaml --out FILE` writes it";
  StatusOr<std::string> read = ReadMapFile(path, kStatistics, opening);
  if (read.status().code() == StatusCode::kNotFound) {
    return NotFoundError("{}; {}", read.status().message(), kRemedy);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, std::move(read));
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
  return nlohmann::json(std::move(*found));
}

}  // namespace penstock
