// Runs the map that map_against_pillow.py compares with Pillow. A line of
// standard input is a request in JSON:
//
//   {"map": [...], "features": [{"name", "dtype", "shape", "encoded", "file"}],
//    "seed", "epoch", "sample", "repeat", "out": FILE}
//
// It makes the row whose features the files hold, `repeat` times, and writes
// its features to `out`, one after another. The answer is {"features":
// [{"name", "dtype", "shape"}], "seconds": of one row}, or {"error": TEXT}.
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "broker/spec/dataset_spec.h"
#include "broker/transform/row_program.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

StatusOr<Json> Run(const Json& request) {
  const Json spec_json = {{"dataset", "probe"},
                          {"source", {{"range", 1}}},
                          {"map", request["map"]},
                          {"batch", {{"size", 1}}}};
  PENSTOCK_ASSIGN_OR_RETURN(const DatasetSpec spec,
                            ParseDatasetSpec(spec_json.dump(), "", "/"));
  RawSpec raw;
  std::vector<std::vector<std::byte>> files;
  for (const Json& each : request["features"]) {
    PENSTOCK_ASSIGN_OR_RETURN(const DType dtype,
                              DTypeFromName(each["dtype"].get<std::string>()));
    raw.push_back(
        {{each["name"], dtype, each["shape"]}, each.value("encoded", false)});
    files.push_back(ReadFile(each["file"]));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<RowProgram> program,
                            RowProgram::Compile(spec.map, raw));
  const auto scratch = program->MakeScratch({});
  const RawRecord record(files.begin(), files.end());
  std::vector<std::vector<std::byte>> rows;
  std::vector<std::byte*> places;
  Json features = Json::array();
  for (const Feature& feature : program->element_spec()) {
    rows.emplace_back(feature.RowBytes());
    places.push_back(rows.back().data());
    features.push_back({{"name", feature.name},
                        {"dtype", DTypeName(feature.dtype)},
                        {"shape", feature.shape}});
  }
  AugmentationKey key = {.seed = request.value("seed", uint64_t{0}),
                         .epoch = request.value("epoch", uint64_t{0}),
                         .sample = request.value("sample", uint64_t{0})};
  const int repeat = request.value("repeat", 1);
  const auto begin = std::chrono::steady_clock::now();
  // The last of several, each with the draws of a sample of its own.
  for (int i = 0; i < repeat; ++i, ++key.sample) {
    PENSTOCK_RETURN_IF_ERROR(program->Run(record, key, *scratch, places));
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  std::ofstream out(request["out"].get<std::string>(), std::ios::binary);
  for (const std::vector<std::byte>& row : rows) {
    out.write(reinterpret_cast<const char*>(row.data()),
              static_cast<std::streamsize>(row.size()));
  }
  return Json{{"features", features}, {"seconds", seconds.count() / repeat}};
}

int Main() {
  for (std::string line; std::getline(std::cin, line);) {
    const StatusOr<Json> answer = Run(Json::parse(line));
    std::cout << (answer.ok() ? *answer
                              : Json{{"error", answer.status().message()}})
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace penstock

int main() { return penstock::Main(); }
