// The input is the body of a request that one link sends another: read as one
// for a dataset and as one for rows. What is taken comes back from what would
// be sent as the same, and every feature of a row lies within its bytes.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "client/link/wire.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

void CheckDataset(const std::string& text) {
  const auto request =
      DatasetRequest::FromJson(nlohmann::json::parse(text, nullptr, false));
  if (!request.ok()) return;
  Require(request->rows <= kRowsOfRequestMax, "few rows");
  Require(request->row_bytes <= kRowsBytesMax / request->rows, "small rows");
  for (size_t i = 0; i < request->features.size(); ++i) {
    Require(request->offsets[i] <= request->row_bytes &&
                request->features[i].RowBytes() <=
                    request->row_bytes - request->offsets[i],
            "features within their row");
  }
  const auto again = DatasetRequest::FromJson(request->ToJson());
  Require(again.ok() && again->ToJson() == request->ToJson(), "the same");
  auto spec = ParseSpecOfLink(request->spec);
  if (spec.ok()) MapPaths({{"/a", "/b"}}, &*spec);
}

void CheckRows(const std::string& bytes) {
  const auto request = RowsRequest::FromBytes(bytes);
  if (!request.ok()) return;
  Require(!request->rows.empty() && request->rows.size() <= kRowsOfRequestMax,
          "as many as there may be");
  Require(request->ToBytes() == bytes, "the same");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  penstock::CheckDataset(bytes);
  penstock::CheckRows(bytes);
  return 0;
}
