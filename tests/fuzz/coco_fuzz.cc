// The input is a file of COCO's instances. It is opened as source coco in every
// format, for pictures that are there and for all: refused as documented, or
// every path is in the folder, every box is finite and no smaller than nothing,
// every label has its name and every feature its size.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "broker/source/kinds.h"
#include "tests/fuzz/file_of.h"
#include "tests/fuzz/picture_folder.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

constexpr uint64_t kRoom = 3;

template <typename T>
std::vector<T> Values(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void CheckSource(const CocoSource& spec) {
  OpenProgress progress;
  const auto source = spec.Open(&progress);
  if (!source.ok()) {
    const StatusCode code = source.status().code();
    Require(code == StatusCode::kInvalidArgument ||
                code == StatusCode::kDataLoss || code == StatusCode::kNotFound,
            "a file is refused as documented");
    return;
  }
  const std::vector<std::string> names = (*source)->class_names();
  const std::string read = "x";
  std::vector<std::byte> scratch;
  RawRecord raw;
  int64_t last_id = 0;
  for (uint64_t i = 0; i < (*source)->record_count(); ++i) {
    ReadRequest request;
    (*source)->Locate(i, &request);
    const auto path =
        std::filesystem::path(request.path).lexically_normal().string();
    Require(path.starts_with(Pictures() + "/") &&
                std::filesystem::is_regular_file(path),
            "a picture is in the folder");
    Require(
        (*source)
            ->Unpack(i, {std::as_bytes(std::span(read)), {}}, &scratch, &raw)
            .ok(),
        "a picture is whole");
    for (size_t f = 1; f < raw.size(); ++f) {
      Require(raw[f].size() == (*source)->raw_spec()[f].feature.RowBytes(),
              "a feature has its size");
    }
    const auto count = Values<int64_t>(raw[2])[0];
    const auto labels = Values<int64_t>(raw[3]);
    Require(count >= 0 && static_cast<size_t>(count) <= labels.size(),
            "the boxes fit");
    const auto boxes = Values<float>(raw[1]);
    for (size_t b = 0; b < labels.size(); ++b) {
      const float* const box = &boxes[4 * b];
      for (int side = 0; side < 2; ++side) {
        Require(std::isfinite(box[side]) && box[side + 2] >= box[side],
                "a box is no smaller than nothing");
      }
      Require(spec.labels == CocoSource::Labels::kIds ||
                  static_cast<size_t>(count) <= b ||
                  static_cast<uint64_t>(labels[b]) < names.size(),
              "a label has a name");
    }
    Require(!spec.segmentation || Values<int64_t>(raw[11])[0] <=
                                      static_cast<int64_t>(raw[10].size()),
            "the masks fit");
    const int64_t id = Values<int64_t>(raw[9])[0];
    Require(i == 0 || id > last_id, "pictures come by their ids");
    last_id = id;
  }
}

void Check(std::string_view text) {
  CocoSource spec;
  spec.annotations = FileOf(text);
  spec.images = Pictures();
  CheckSource(spec);
  spec.labels = CocoSource::Labels::kIds;
  spec.on_missing = OnMissing::kSkip;
  CheckSource(spec);
  spec.segmentation = true;
  CheckSource(spec);
  spec.labels = CocoSource::Labels::kFrom1;
  spec.crowd = CocoSource::Crowd::kDrop;
  spec.max_length = kRoom;
  spec.longer = Longer::kCut;
  CheckSource(spec);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
