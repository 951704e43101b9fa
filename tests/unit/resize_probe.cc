// Runs the decoding and resizing that resize_against_pillow.py and
// decode_against_pillow.py compare with Pillow. One request per line of
// standard input is answered with "ok" or the error:
//
//   decode FILE CHANNELS OUT
//     FILE's pixels at full size, as its decoder gives them
//     (of 2 channels: its values, uint16)
//   mask FILE HEIGHT WIDTH OUT
//     the row of decode_image with it as a mask, of that size, int32
//   upright FILE HEIGHT WIDTH CHANNELS EXACT OUT
//     the row of decode_image with orientation: apply, of that size
//   resize IN IN_HEIGHT IN_WIDTH CHANNELS LEFT TOP WIDTH HEIGHT
//       OUT_HEIGHT OUT_WIDTH OUT
//     the box of the raw picture IN, resized
//
// OUT gets raw bytes, channels last. No path may hold a space.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "broker/transform/feature_paths.h"
#include "broker/transform/picture_decoder.h"
#include "broker/transform/resampler.h"
#include "common/format.h"

namespace penstock {
namespace {

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

std::span<const std::byte> Bytes(const std::vector<char>& chars) {
  return std::as_bytes(std::span(chars));
}

Status Decode(std::istream& arguments) {
  std::string in, out;
  int channels = 0;
  arguments >> in >> channels >> out;
  const std::vector<char> file = ReadFile(in);
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PictureDecoder> decoder,
                            OpenPicture(Bytes(file)));
  PENSTOCK_RETURN_IF_ERROR(decoder->Start(channels));
  const ImageSize size = decoder->size();
  std::vector<std::byte> pixels(size.height * size.width * channels);
  for (int64_t y = 0; y < size.height; ++y) {
    PENSTOCK_RETURN_IF_ERROR(
        decoder->ReadRow(pixels.data() + y * size.width * channels));
  }
  PENSTOCK_RETURN_IF_ERROR(decoder->Finish());
  WriteFile(out, pixels);
  return OkStatus();
}

Status Row(const std::string& in, const DecodeImageOp& op, size_t bytes,
           const std::string& out, FeaturePaths::Scratch& scratch) {
  const std::vector<char> file = ReadFile(in);
  const std::vector<TransformSpec> map = {op};
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<FeaturePaths> paths,
      FeaturePaths::Compile(StepsOf(map),
                            {{{"image", DType::kUint8, {}}, true}}));
  std::vector<std::byte> row(bytes);
  std::byte* const output = row.data();
  PENSTOCK_RETURN_IF_ERROR(
      paths->Run({Bytes(file)}, {}, scratch, {&output, 1}));
  WriteFile(out, row);
  return OkStatus();
}

Status DecodeUpright(std::istream& arguments, FeaturePaths::Scratch& scratch) {
  std::string in, out;
  DecodeImageOp op;
  op.applies_orientation = true;
  arguments >> in >> op.size.height >> op.size.width >> op.channels >>
      op.exact >> out;
  return Row(in, op, op.size.height * op.size.width * op.channels, out,
             scratch);
}

Status DecodeMask(std::istream& arguments, FeaturePaths::Scratch& scratch) {
  std::string in, out;
  DecodeImageOp op = {
      .feature = {}, .mask = {"image"}, .mask_dtype = DType::kInt32};
  arguments >> in >> op.size.height >> op.size.width >> out;
  return Row(in, op, op.size.height * op.size.width * sizeof(int32_t), out,
             scratch);
}

Status Resize(std::istream& arguments, Resampler& resampler) {
  std::string in, out;
  ImageSize from, to;
  CropBox box;
  int channels = 0;
  arguments >> in >> from.height >> from.width >> channels >> box.left >>
      box.top >> box.width >> box.height >> to.height >> to.width >> out;
  const std::vector<char> picture = ReadFile(in);
  if (static_cast<int64_t>(picture.size()) !=
      from.height * from.width * channels) {
    return DataLossError("{} has {} bytes", in, picture.size());
  }
  std::vector<std::byte> pixels(to.height * to.width * channels);
  PENSTOCK_RETURN_IF_ERROR(resampler.Begin(box, to, channels, pixels.data()));
  for (int64_t y = resampler.first_row(); y < resampler.end_row(); ++y) {
    resampler.AddRow(y, Bytes(picture).data() + y * from.width * channels);
  }
  WriteFile(out, pixels);
  return OkStatus();
}

int Main() {
  Resampler resampler;  // one for all requests, as a worker has
  const auto scratch = FeaturePaths::MakeScratch();
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream arguments(line);
    std::string what;
    arguments >> what;
    const Status status = what == "decode" ? Decode(arguments)
                          : what == "upright"
                              ? DecodeUpright(arguments, *scratch)
                          : what == "mask"   ? DecodeMask(arguments, *scratch)
                          : what == "resize" ? Resize(arguments, resampler)
                                             : InvalidArgumentError("{}", what);
    std::cout << (status.ok() ? "ok" : status.message()) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace penstock

int main() { return penstock::Main(); }
