// The input is a sound file, from any user of the host. decode_audio refuses it
// as a bad record, or makes a row of at most its room with zeros behind the
// end, the same once more.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "broker/transform/feature_paths.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

struct Way {
  std::unique_ptr<FeaturePaths> paths;
  std::vector<float> row;
  std::vector<float> again;

  Way(bool mono, int64_t rate, double seconds,
      std::optional<DecodeAudioOp::Crop> crop) {
    DecodeAudioOp op;
    op.rate = rate;
    op.seconds = seconds;
    op.mono = mono;
    if (!mono) op.channels = 2;
    op.crop = crop;
    const std::vector<TransformSpec> map = {op};
    auto compiled = FeaturePaths::Compile(
        StepsOf(map), {{{"audio", DType::kUint8, {}}, true}});
    Require(compiled.ok(), "the step compiles");
    paths = *std::move(compiled);
    row.resize(paths->out()[0].feature.RowBytes() / sizeof(float));
    again.resize(row.size());
  }
};

StatusOr<int64_t> Decode(const Way& way, std::span<const std::byte> file,
                         float unwritten, std::vector<float>& row) {
  std::fill(row.begin(), row.end(), unwritten);
  int64_t length = -1;
  std::byte* const out[] = {reinterpret_cast<std::byte*>(row.data()),
                            reinterpret_cast<std::byte*>(&length)};
  static const auto scratch = FeaturePaths::MakeScratch();
  PENSTOCK_RETURN_IF_ERROR(
      way.paths->Run({file}, {.seed = 7, .sample = 9}, *scratch, out));
  return length;
}

void Check(Way& way, std::span<const std::byte> file) {
  const StatusOr<int64_t> length = Decode(way, file, 1, way.row);
  const StatusOr<int64_t> again = Decode(way, file, 2, way.again);
  Require(length.ok() == again.ok(), "it decodes alike, or not at all");
  if (!length.ok()) {
    Require(length.status().code() == StatusCode::kDataLoss,
            "a bad file is an error of its record");
    return;
  }
  const std::vector<int64_t>& shape = way.paths->out()[0].feature.shape;
  Require(*length >= 1 && *length <= shape[0] && *length == *again,
          "the length is within the room");
  Require(std::memcmp(way.row.data(), way.again.data(),
                      way.row.size() * sizeof(float)) == 0,
          "the same row, all of it written");
  const auto end =
      way.row.begin() + *length * (shape.size() == 2 ? shape[1] : 1);
  Require(std::all_of(end, way.row.end(), [](float x) { return x == 0; }),
          "zeros follow");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::DecodeAudioOp;
  static penstock::Way ways[] = {
      {true, 16000, 0.05, DecodeAudioOp::Crop::kRandom},
      {true, 8000, 1, std::nullopt},
      {false, 16000, 0.02, DecodeAudioOp::Crop::kStart}};
  for (penstock::Way& way : ways) {
    penstock::Check(way, std::as_bytes(std::span(data, size)));
  }
  return 0;
}
