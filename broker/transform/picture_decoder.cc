#include "broker/transform/picture_decoder.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "broker/transform/jpeg_decoder.h"

namespace penstock {
namespace {

using std::string_view_literals::operator""sv;

struct Signature {
  size_t offset;
  std::string_view bytes;
  std::string_view looks;
};
constexpr Signature kSignatures[] = {
    {0, "GIF8"sv, "begins with GIF's signature"},
    {0, "P1"sv, "begins with PBM's signature"},
    {0, "P4"sv, "begins with PBM's signature"},
    {4, "jP  "sv, "begins with JPEG 2000's signature"},
    {0, "\xff\x4f\xff\x51"sv, "begins with JPEG 2000's signature"},
    {0, "\xff\x0a"sv, "begins with JPEG XL's signature"},
    {4, "JXL "sv, "begins with JPEG XL's signature"},
    {4, "ftypavif"sv, "begins with AVIF's signature"},
    {4, "ftyp"sv, "begins with HEIF's or MP4's signature"},
    {0, "\x1f\x8b"sv, "begins with gzip's signature"},
    {0, "%PDF"sv, "begins with PDF's signature"},
    {0, "<!DOCTYPE"sv, "begins like a web page"},
    {0, "<html"sv, "begins like a web page"},
    {0, "<?xml"sv, "begins with an XML declaration"},
    {0, "version https://git-lfs"sv, "is a Git LFS pointer, not its file"},
    {0, "\0\0\0\0\0\0\0\0"sv, "begins with zeros"},
};

// Names the format of a file that no decoder takes.
std::string Looks(std::string_view file) {
  for (const Signature& signature : kSignatures) {
    if (file.size() >= signature.offset &&
        file.substr(signature.offset).starts_with(signature.bytes)) {
      return std::string(signature.looks);
    }
  }
  std::string hex = "begins with";
  for (const char byte : file.substr(0, 8)) {
    hex += Format(" {:02x}", static_cast<unsigned char>(byte));
  }
  return hex;
}

std::unique_ptr<PictureDecoder> DecoderOf(std::string_view file) {
  if (file.starts_with("\xff\xd8\xff"sv) || file == "\xff\xd8"sv) {
    return std::make_unique<JpegDecoder>();
  }
  if (file.starts_with("\x89PNG"sv)) return MakePngDecoder();
  if (file.starts_with("RIFF"sv) && file.substr(0, 12).ends_with("WEBP"sv)) {
    return MakeWebpDecoder();
  }
  for (const std::string_view tiff :
       {"II*\0"sv, "MM\0*"sv, "II+\0"sv, "MM\0+"sv}) {
    if (file.starts_with(tiff)) return MakeTiffDecoder();
  }
  if (file.starts_with("BM"sv)) return MakeBmpDecoder();
  if (file.size() > 2 && file[0] == 'P' &&
      "2356"sv.find(file[1]) != file.npos &&
      " \t\n\v\f\r#"sv.find(file[2]) != file.npos) {
    return MakePnmDecoder();
  }
  return nullptr;
}

}  // namespace

StatusOr<std::unique_ptr<PictureDecoder>> OpenPicture(
    std::span<const std::byte> file) {
  if (file.empty()) return DataLossError("the file is empty");
  const std::string_view text(reinterpret_cast<const char*>(file.data()),
                              file.size());
  std::unique_ptr<PictureDecoder> decoder = DecoderOf(text);
  if (decoder == nullptr) {
    return DataLossError("not a JPEG, PNG, WebP, TIFF, BMP, PGM or PPM: {}",
                         Looks(text));
  }
  PENSTOCK_RETURN_IF_ERROR(decoder->Begin(file));
  return decoder;
}

Status CheckPictureSize(uint64_t height, uint64_t width) {
  if (height == 0 || width == 0) {
    return DataLossError("a picture of {} x {} pixels", width, height);
  }
  if (std::max(height, width) > kPictureSideMax) {
    return DataLossError(
        "a picture of {} x {} pixels; at most {} a side are decoded", width,
        height, kPictureSideMax);
  }
  if (height * width > kPicturePixelsMax) {
    return DataLossError("a picture of {} x {} pixels; at most {} are decoded",
                         width, height, kPicturePixelsMax);
  }
  return OkStatus();
}

Status CheckHeldBytes(const char* what, uint64_t bytes,
                      std::span<const std::byte> file) {
  if (bytes <= HeldBytesMax(file)) return OkStatus();
  return DataLossError(
      "{} of {} bytes in memory; at most {} may be, for a file of {} bytes",
      what, bytes, HeldBytesMax(file), file.size());
}

}  // namespace penstock
