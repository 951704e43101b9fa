// Decodes one file alone and after others with the same decoder, and compares
// the results; mutants.cc and decode_fuzz.cc use it.
#include "tests/fuzz/decode_twice.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "broker/transform/picture_decoder.h"
#include "tests/support/encode_jpeg.h"

namespace penstock {
namespace {

using Bytes = std::vector<std::byte>;

// A damaged header can claim any size. Larger ones cost seconds and show
// nothing more.
constexpr int64_t kPixelsMax = int64_t{1} << 18;

// A picture that uses every table of its file; no two files share a table.
Bytes Busy(JpegKind kind, unsigned seed) {
  Bytes pixels = Gradients(kind.height, kind.width, ChannelsOf(kind.space));
  std::mt19937_64 random(seed);
  for (std::byte& value : pixels) {
    value = static_cast<std::byte>(std::to_integer<unsigned>(value) / 2 +
                                   random() % 128);
  }
  return EncodeJpeg(pixels, kind);
}

// Offset of the first segment of this kind, after its length.
size_t PayloadOf(const Bytes& file, uint8_t marker) {
  const std::byte wanted[] = {std::byte{0xff}, std::byte{marker}};
  return static_cast<size_t>(
      std::search(file.begin(), file.end(), wanted, wanted + 2) + 4 -
      file.begin());
}

// A file of the corpus.
Bytes FileOf(const std::string& name) {
  std::ifstream file(PENSTOCK_PICTURES "/" + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) {
    std::fprintf(stderr, "no file %s/%s\n", PENSTOCK_PICTURES, name.c_str());
    std::abort();
  }
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<Bytes> Predecessors() {
  std::vector<Bytes> files;
  const Bytes sound =
      Busy({.height = 64, .width = 96, .optimized = true, .quality = 35}, 1);
  files.push_back(sound);
  files.push_back(Busy({.height = 80, .width = 56, .progressive = true}, 2));
  files.push_back(Busy({.height = 72,
                        .width = 72,
                        .space = JCS_GRAYSCALE,
                        .optimized = true,
                        .quality = 99},
                       3));
  files.push_back(Busy({.space = JCS_CMYK, .optimized = true}, 4));
  files.push_back(Busy({.restart_rows = 1, .quality = 60}, 5));
  files.push_back(
      Busy({.optimized = true, .luma_across = 4, .luma_down = 2}, 6));
  files.push_back(Busy({.arithmetic = true, .quality = 50}, 7));
  files.push_back(Busy({.progressive = true, .arithmetic = true}, 8));
  // Truncated in its data, and inside its tables.
  files.emplace_back(sound.begin(), sound.begin() + sound.size() / 2);
  files.emplace_back(sound.begin(),
                     sound.begin() + PayloadOf(sound, 0xc4) + 30);
  // Other quantisation; numbers of tables that do not exist.
  Bytes damaged = sound;
  std::fill_n(damaged.begin() + PayloadOf(sound, 0xdb) + 1, 64, std::byte{200});
  files.push_back(damaged);
  damaged = sound;
  damaged[PayloadOf(sound, 0xdb)] = std::byte{7};
  files.push_back(damaged);
  damaged = sound;
  damaged[PayloadOf(sound, 0xc4) + 1] = std::byte{255};
  files.push_back(damaged);
  files.push_back({std::byte{0xff}, std::byte{0xd8}, std::byte{0xff}});
  for (const char* name :
       {"png_colour_3_of_4_bits", "png_colour_6_of_16_bits_interlaced",
        "tiff_palette_1_of_8_bits", "tiff_separate_tiles", "tiff_by_jpeg",
        "tiff_ycbcr_by_lzw", "webp_rgb", "webp_rgba_lossless"}) {
    files.push_back(FileOf(name));
    files.emplace_back(
        files.back().begin(),
        files.back().begin() + static_cast<ptrdiff_t>(files.back().size() / 2));
  }
  return files;
}

// Rare, because it costs as much as a hundred of the others.
Bytes Huge() { return EncodeJpeg({.height = 900, .width = 1200}); }
constexpr uint64_t kHugeEvery = 512;

}  // namespace

DecodeTwice::DecodeTwice() : predecessors_(Predecessors()) {
  predecessors_.push_back(Huge());
  const CropSpec part = RandomResizedCrop{};
  const CropSpec centre = CenterCrop{.fraction = 0.8};
  const FlipOp flip;
  NormalizeOp normalize;
  normalize.mean = {0.5, 0.4, 0.3};
  normalize.std = {0.2, 0.3, 0.25};
  normalize.dtype = DType::kFloat16;
  normalize.layout = Layout::kChw;
  CastOp cast;
  cast.dtype = DType::kInt16;
  ResizeOp resize;
  resize.size = {.height = 17, .width = 23};
  DecodeImageOp upright;
  upright.crop = part;
  upright.size = {.height = 30, .width = 20};
  upright.applies_orientation = true;
  const auto decode = [](const std::optional<CropSpec>& crop, int64_t height,
                         int64_t width, int channels, bool exact) {
    DecodeImageOp op;
    op.crop = crop;
    op.size = {.height = height, .width = width};
    op.channels = channels;
    op.exact = exact;
    return op;
  };
  AddWay("whole", {decode({}, 40, 40, 3, false)});
  AddWay("part, flip, normalize",
         {decode(part, 32, 24, 3, false), flip, normalize});
  AddWay("part, smaller", {decode(part, 9, 7, 3, false), cast});
  AddWay("centre, larger", {decode(centre, 150, 170, 3, false), flip});
  AddWay("exact", {decode({}, 64, 48, 3, true)});
  AddWay("exact part, flip, normalize",
         {decode(part, 20, 33, 3, true), flip, normalize});
  AddWay("gray", {decode(part, 31, 29, 1, false), flip});
  AddWay("upright", {upright});
  DecodeImageOp mask = upright;
  mask.feature.clear();
  mask.mask = {"image"};
  mask.mask_dtype = DType::kInt32;
  AddWay("mask", {mask});
  DecodeImageOp padded;
  RandomPixels pixels;
  pixels.shorter = {20, 60};
  pixels.padding = {3, 0, 9, 4};
  pixels.mode = PadMode::kReflect;
  padded.crop = pixels;
  padded.size = {.height = 33, .width = 41};
  AddWay("padded, augmented", {padded, RandAugmentOp(), normalize});
  padded.crop = FitCrop();
  padded.interpolation = Interpolation::kLanczos;
  AddWay("fitted", {padded, AugMixOp(), ColorJitterOp()});
  AddWay("resized twice",
         {decode(centre, 48, 52, 3, false), resize, flip, cast});
}

void DecodeTwice::AddWay(const std::string& name,
                         std::vector<TransformSpec> map) {
  const RawSpec raw = {{{"image", DType::kUint8, {}}, true}};
  StatusOr<std::unique_ptr<FeaturePaths>> paths =
      FeaturePaths::Compile(StepsOf(map), raw);
  if (!paths.ok()) {
    std::fprintf(stderr, "%s\n", paths.status().message().c_str());
    std::abort();
  }
  const uint64_t row_bytes = (*paths)->out()[0].feature.RowBytes();
  ways_.push_back({name, *std::move(paths), row_bytes});
}

DecodeTwice::Outcome DecodeTwice::Decode(const Way& way,
                                         std::span<const std::byte> file,
                                         uint64_t turn, std::byte unwritten,
                                         FeaturePaths::Scratch& scratch) {
  Outcome outcome;
  outcome.row.assign(way.row_bytes, unwritten);
  const RawRecord record = {file};
  std::byte* const output = outcome.row.data();
  const Status status = way.paths->Run(record, {.seed = 7, .sample = turn},
                                       scratch, {&output, 1});
  if (status.ok()) return outcome;
  outcome.failure =
      Format("{}: {}", static_cast<int>(status.code()), status.message());
  outcome.row.clear();
  return outcome;
}

std::string DecodeTwice::Check(std::span<const std::byte> file, uint64_t turn) {
  {
    const StatusOr<std::unique_ptr<PictureDecoder>> decoder = OpenPicture(file);
    if (decoder.ok() &&
        (*decoder)->size().height * (*decoder)->size().width > kPixelsMax) {
      return "";
    }
  }
  const uint64_t of_turn = turn % kHugeEvery == 0
                               ? predecessors_.size() - 1
                               : turn % (predecessors_.size() - 1);
  for (size_t i = 0; i < ways_.size(); ++i) {
    const Way& way = ways_[i];
    const std::unique_ptr<FeaturePaths::Scratch> fresh =
        FeaturePaths::MakeScratch();
    mallopt(M_PERTURB, 0x5a);
    const Outcome alone = Decode(way, file, turn, std::byte{0x11}, *fresh);
    mallopt(M_PERTURB, 0xa5);
    // The predecessor uses another path: all paths share the objects.
    (void)Decode(ways_[(i + turn) % ways_.size()], predecessors_[of_turn], turn,
                 std::byte{0}, *used_);
    const Outcome after = Decode(way, file, turn, std::byte{0xee}, *used_);
    ++(alone.failure.empty() ? decoded_ : refused_);
    if (alone == after) continue;
    if (alone.failure != after.failure) {
      return Format("{}, after predecessor {}: '{}', alone '{}'", way.name,
                    of_turn, after.failure, alone.failure);
    }
    const auto [byte, other] =
        std::mismatch(alone.row.begin(), alone.row.end(), after.row.begin());
    return Format("{}, after predecessor {}: byte {} of {} is {}, alone {}",
                  way.name, of_turn, byte - alone.row.begin(), alone.row.size(),
                  std::to_integer<int>(*other), std::to_integer<int>(*byte));
  }
  return "";
}

}  // namespace penstock
