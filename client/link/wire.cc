#include "client/link/wire.h"

#include <algorithm>
#include <cstring>

#include "common/quantity.h"

namespace penstock {
namespace {

constexpr uint64_t kRowBytesMax = kRowsBytesMax;

Status CheckForm(const DatasetRequest& request) {
  const auto wrong = [](std::string_view what) {
    return InvalidArgumentError("a dataset with {}", what);
  };
  if (request.rows == 0 || request.rows > kRowsOfRequestMax) {
    return wrong("too many rows in a request");
  }
  if (request.row_bytes == 0 || request.row_bytes > kRowBytesMax ||
      request.row_bytes > kRowsBytesMax / request.rows) {
    return wrong("rows that are too large");
  }
  if (request.features.empty() ||
      request.features.size() != request.offsets.size()) {
    return wrong("features without places");
  }
  uint64_t end = 0;
  for (size_t i = 0; i < request.features.size(); ++i) {
    const uint64_t bytes = request.features[i].RowBytes();
    if (request.offsets[i] < end || request.offsets[i] > request.row_bytes ||
        bytes > request.row_bytes - request.offsets[i]) {
      return wrong("features beyond the end of a row");
    }
    end = request.offsets[i] + bytes;
  }
  return OkStatus();
}

}  // namespace

nlohmann::json DatasetRequest::ToJson() const {
  return {{"spec", spec},       {"fingerprint", fingerprint},
          {"records", records}, {"element_spec", ElementSpecToJson(features)},
          {"offsets", offsets}, {"row_bytes", row_bytes},
          {"rows", rows}};
}

StatusOr<DatasetRequest> DatasetRequest::FromJson(const nlohmann::json& json) {
  DatasetRequest request;
  if (!json.is_object()) {
    return InvalidArgumentError("a request for a dataset that is no JSON");
  }
  try {
    request.spec = json.at("spec");
    request.fingerprint = json.at("fingerprint");
    request.records = json.at("records");
    PENSTOCK_ASSIGN_OR_RETURN(request.features,
                              ElementSpecFromJson(json.at("element_spec")));
    request.offsets = json.at("offsets").get<std::vector<uint64_t>>();
    request.row_bytes = json.at("row_bytes");
    request.rows = json.at("rows");
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgumentError("a request for a dataset: {}", error.what());
  }
  PENSTOCK_RETURN_IF_ERROR(CheckForm(request));
  return request;
}

std::string RowsRequest::ToBytes() const {
  const uint32_t head[] = {dataset, static_cast<uint32_t>(rows.size())};
  std::string bytes(sizeof(head) + rows.size() * sizeof(RowKey), '\0');
  std::memcpy(bytes.data(), head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), rows.data(),
              rows.size() * sizeof(RowKey));
  return bytes;
}

StatusOr<RowsRequest> RowsRequest::FromBytes(std::string_view bytes) {
  uint32_t head[2];
  if (bytes.size() < sizeof(head)) {
    return InvalidArgumentError("a request for rows of {} bytes", bytes.size());
  }
  std::memcpy(head, bytes.data(), sizeof(head));
  if (head[1] == 0 || head[1] > kRowsOfRequestMax ||
      bytes.size() != sizeof(head) + head[1] * sizeof(RowKey)) {
    return InvalidArgumentError("a request for {} rows of {} bytes", head[1],
                                bytes.size());
  }
  RowsRequest request;
  request.dataset = head[0];
  request.rows.resize(head[1]);
  std::memcpy(request.rows.data(), bytes.data() + sizeof(head),
              head[1] * sizeof(RowKey));
  return request;
}

std::vector<int64_t> FindAsked(std::span<const RowKey> asked,
                               std::span<const int64_t> ids) {
  std::vector<int64_t> found(asked.size(), -1);
  const auto same = [](const RowKey& row, int64_t id) {
    return static_cast<int64_t>(row.record) == id;
  };
  size_t at = 0;
  for (size_t i = 0; i < asked.size() && at < ids.size(); ++i) {
    if (same(asked[i], ids[at])) found[i] = static_cast<int64_t>(at++);
  }
  if (at == asked.size()) return found;
  // One of a record's rows is missing: which one?
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto times = std::count_if(
        asked.begin(), asked.end(),
        [&](const RowKey& other) { return other.record == asked[i].record; });
    if (times > 1) found[i] = -1;
  }
  return found;
}

StatusOr<nlohmann::ordered_json> ParseSpecOfLink(const std::string& text) {
  constexpr int kDepthMax = 64;
  bool is_deep = false;
  auto spec = nlohmann::ordered_json::parse(
      text,
      [&is_deep](int depth, auto, auto&) {
        is_deep |= depth > kDepthMax;
        return !is_deep;
      },
      false);
  if (is_deep || !spec.is_object()) {
    return InvalidArgumentError("{}", kNotOfLink);
  }
  return spec;
}

void MapPaths(const std::vector<std::pair<std::string, std::string>>& paths,
              nlohmann::ordered_json* spec) {
  if (spec->is_structured()) {
    for (auto& each : *spec) MapPaths(paths, &each);
    return;
  }
  if (!spec->is_string()) return;
  const auto& text = spec->get_ref<const std::string&>();
  for (const auto& [here, there] : paths) {
    if (!text.starts_with(here) ||
        (text.size() > here.size() && text[here.size()] != '/')) {
      continue;
    }
    *spec = there + text.substr(here.size());
    return;
  }
}

StatusOr<std::pair<std::string, std::string>> ParsePathMap(
    const std::string& text) {
  const size_t equals = text.find('=');
  std::string here = text.substr(0, equals);
  std::string there =
      equals == std::string::npos ? "" : text.substr(equals + 1);
  while (here.ends_with('/')) here.pop_back();
  while (there.ends_with('/')) there.pop_back();
  if (here.empty() || there.empty()) {
    return InvalidArgumentError(
        "'{}': wanted /THERE=/HERE, a folder of the other host and what it is "
        "called on this one",
        text);
  }
  return std::pair(std::move(here), std::move(there));
}

}  // namespace penstock
