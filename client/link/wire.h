// What links say to each other: HTTP/1.1 with keep-alive, one request after the
// other on a connection.
//
//   POST /penstock/1/hello     {"version": of Penstock}, first; answer: {}
//   POST /penstock/1/dataset   JSON (DatasetRequest); answer: {"dataset": n}
//   POST /penstock/1/rows      RowsRequest; answer: one RowResult per row,
//                              then the bytes of the rows that were made
//
// An error is {"error": text} with a status that is not 200. Numbers are in
// little-endian order.
//
// Pure functions. All input is untrusted.
#ifndef CLIENT_LINK_WIRE_H_
#define CLIENT_LINK_WIRE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::string_view kHelloTarget = "/penstock/1/hello";
inline constexpr std::string_view kDatasetTarget = "/penstock/1/dataset";
inline constexpr std::string_view kRowsTarget = "/penstock/1/rows";
inline constexpr uint64_t kHeaderBytesMax = 8 << 10;
inline constexpr uint64_t kBodyBytesMax = 1 << 20;  // of a request
inline constexpr uint32_t kRowsOfRequestMax = 1024;
inline constexpr size_t kDatasetsMax = 8;  // of a connection
inline constexpr uint64_t kRowsBytesMax = uint64_t{64} << 20;

// A dataset of which rows will be asked for, and how they are sent.
struct DatasetRequest {
  std::string spec;         // JSON; its rows are asked for by number
  std::string fingerprint;  // of its source
  uint64_t records = 0;
  ElementSpec features;
  std::vector<uint64_t> offsets;  // of each feature in a row
  uint64_t row_bytes = 0;
  uint32_t rows = 0;  // of a request, at most

  nlohmann::json ToJson() const;
  // InvalidArgument: it is none, or rows would lie outside of their bytes.
  static StatusOr<DatasetRequest> FromJson(const nlohmann::json& json);
};

struct RowKey {
  uint64_t record = 0;
  uint64_t pass = 0;
  bool operator==(const RowKey&) const = default;
};
static_assert(sizeof(RowKey) == 16);

struct RowsRequest {
  uint32_t dataset = 0;
  std::vector<RowKey> rows;

  std::string ToBytes() const;
  static StatusOr<RowsRequest> FromBytes(std::string_view bytes);
};

struct RowResult {
  uint32_t is_made = 0;
  uint32_t checksum = 0;  // CRC-32C of its RowKey and its bytes
};
static_assert(sizeof(RowResult) == 8);

// Which of the asked rows a batch has, which leaves out those that could not be
// made: the index in the batch, -1: it has not, or cannot be told from another.
std::vector<int64_t> FindAsked(std::span<const RowKey> asked,
                               std::span<const int64_t> ids);

inline constexpr char kNotOfLink[] = "not a spec sent by `penstock link use`";
// InvalidArgument: no JSON object, or one that is nested too deeply.
StatusOr<nlohmann::ordered_json> ParseSpecOfLink(const std::string& text);

// Puts "/there/x" in the place of every string "/here/x" of a spec.
void MapPaths(const std::vector<std::pair<std::string, std::string>>& paths,
              nlohmann::ordered_json* spec);
// "/here=/there".
StatusOr<std::pair<std::string, std::string>> ParsePathMap(
    const std::string& text);

}  // namespace penstock
#endif  // CLIENT_LINK_WIRE_H_
