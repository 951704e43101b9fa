// Promise: nothing of one record reaches another. Method: decodes damaged
// copies of pictures, each alone and after others (decode_twice.h); the
// exit status is 1 if a pixel or an error differs.
//
// They are parts of the photographs in Debian's mate-backgrounds, as JPEGs of
// every kind there is, and the corpus's files of other formats. Mutant n is the
// same on every machine.
//
//   mutants [--count N] [--first N] [--write FOLDER]
//
//   --count N       number of mutants (default: 100000)
//   --first N       number of the first mutant (default: 0)
//   --write FOLDER  writes them there instead, in folders of 1,000, for
//                   `penstock bench --verify` to read; every fourth is sound
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "broker/transform/feature_paths.h"
#include "tests/fuzz/decode_twice.h"
#include "tests/fuzz/mutate_picture.h"
#include "tests/support/encode_jpeg.h"

namespace penstock {
namespace {

using Bytes = std::vector<std::byte>;

constexpr char kPictures[] = "/usr/share/backgrounds/mate";

struct Arguments {
  uint64_t count = 100'000;
  uint64_t first = 0;
  std::string write;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "mutants: %s\n", why.c_str());
  std::exit(2);
}

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::filesystem::path> Photographs() {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path folder = kPictures;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder / "nature", none)) {
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  }
  if (none || paths.empty()) {
    Fail(Format("no photographs in {}: apt-get install mate-backgrounds",
                kPictures));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// One for each difference between JPEGs that a decoder must handle.
std::vector<JpegKind> Kinds() {
  return {
      {.height = 96, .width = 128, .optimized = true},
      {.height = 120, .width = 80, .quality = 60},  // the standard's tables
      {.height = 75, .width = 100, .progressive = true},
      {.height = 64, .width = 99, .space = JCS_GRAYSCALE, .optimized = true},
      {.height = 72,
       .width = 72,
       .quality = 97,
       .luma_across = 1,
       .luma_down = 1},
      {.height = 83, .width = 61, .optimized = true, .restart_rows = 1},
      {.height = 100, .width = 110, .luma_across = 2, .luma_down = 1},
      {.height = 90, .width = 141, .luma_across = 4, .luma_down = 2},
      {.height = 141, .width = 90, .luma_across = 2, .luma_down = 4},
      {.height = 80, .width = 96, .arithmetic = true},
      {.height = 56, .width = 72, .progressive = true, .arithmetic = true},
      {.height = 70, .width = 90, .file_space = JCS_RGB, .optimized = true},
  };
}

// Parts of each photograph, each as another kind of JPEG; and the small files
// of other formats in the corpus.
std::vector<Bytes> SoundFiles() {
  std::vector<Bytes> files;
  const std::vector<JpegKind> kinds = Kinds();
  const auto scratch = FeaturePaths::MakeScratch();
  for (const std::filesystem::path& path : Photographs()) {
    const Bytes photograph = ReadFile(path);
    for (int i = 0; i < 2; ++i) {
      const JpegKind& kind = kinds[files.size() % kinds.size()];
      DecodeImageOp op;
      op.size = {.height = kind.height, .width = kind.width};
      op.crop = RandomResizedCrop{};
      op.channels = kind.space == JCS_GRAYSCALE ? 1 : 3;
      const std::vector<TransformSpec> map = {op};
      const auto paths = FeaturePaths::Compile(
          StepsOf(map), {{{"image", DType::kUint8, {}}, true}});
      if (!paths.ok()) Fail(paths.status().message());
      Bytes pixels((*paths)->out()[0].feature.RowBytes());
      std::byte* const output = pixels.data();
      const RawRecord record = {photograph};
      const Status status = (*paths)->Run(record, {.sample = files.size()},
                                          *scratch, {&output, 1});
      if (!status.ok()) {
        Fail(Format("{}: {}", path.string(), status.message()));
      }
      files.push_back(EncodeJpeg(pixels, kind));
    }
  }
  std::vector<std::filesystem::path> others;
  for (const auto& entry :
       std::filesystem::directory_iterator(PENSTOCK_PICTURES)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("png_") || name.starts_with("tiff_") ||
        name.starts_with("webp_")) {
      others.push_back(entry.path());
    }
  }
  std::sort(others.begin(), others.end());
  for (const auto& path : others) files.push_back(ReadFile(path));
  return files;
}

// Three of four are JPEGs: of the others most are refused.
Bytes Mutant(const std::vector<Bytes>& sound, uint64_t number) {
  // A generator's first numbers are similar for similar seeds.
  std::mt19937_64 random(number);
  random.discard(8);
  const auto is_jpeg = [](const Bytes& file) {
    return file[0] == std::byte{0xff};
  };
  size_t which = number % sound.size();
  while (is_jpeg(sound[which]) != (number % 4 != 0)) {
    which = random() % sound.size();
  }
  Bytes file = sound[which];
  MutatePicture(&file, sound[random() % sound.size()], random);
  return file;
}

void Write(const std::vector<Bytes>& sound, const Arguments& arguments) {
  for (uint64_t i = 0; i < arguments.count; ++i) {
    const std::filesystem::path folder =
        std::filesystem::path(arguments.write) / Format("{:03}", i / 1000);
    std::filesystem::create_directories(folder);
    const Bytes file = i % 4 == 0 ? sound[i / 4 % sound.size()]
                                  : Mutant(sound, arguments.first + i);
    std::ofstream out(folder / Format("{:06}.jpg", arguments.first + i),
                      std::ios::binary);
    out.write(reinterpret_cast<const char*>(file.data()),
              static_cast<std::streamsize>(file.size()));
    if (!out.flush()) Fail("cannot write in " + folder.string());
  }
}

int Check(const std::vector<Bytes>& sound, const Arguments& arguments) {
  DecodeTwice twice;
  uint64_t differ = 0;
  const auto check = [&](const char* what, uint64_t number, const Bytes& file) {
    const std::string difference = twice.Check(file, number);
    if (difference.empty()) return;
    ++differ;
    std::printf("%s %lu: %s\n", what, number, difference.c_str());
    std::fflush(stdout);
  };
  for (uint64_t i = 0; i < sound.size(); ++i) check("picture", i, sound[i]);
  for (uint64_t i = 0; i < arguments.count; ++i) {
    const uint64_t number = arguments.first + i;
    check("mutant", number, Mutant(sound, number));
  }
  std::printf(
      "%lu mutants of %zu pictures: decoded %lu times, refused %lu "
      "times, %lu differences\n",
      arguments.count, sound.size(), twice.decoded(), twice.refused(), differ);
  return differ == 0 ? 0 : 1;
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    char* end = nullptr;
    const uint64_t number = std::strtoull(value.c_str(), &end, 10);
    const bool is_number = !value.empty() && *end == '\0';
    if (name == "--count" && is_number && number > 0) {
      arguments.count = number;
    } else if (name == "--first" && is_number) {
      arguments.first = number;
    } else if (name == "--write" && !value.empty()) {
      arguments.write = value;
    } else {
      Fail("wanted [--count N] [--first N] [--write FOLDER]");
    }
  }
  return arguments;
}

int Main(int argc, char** argv) {
  const Arguments arguments = Parse(argc, argv);
  const std::vector<Bytes> sound = SoundFiles();
  if (arguments.write.empty()) return Check(sound, arguments);
  Write(sound, arguments);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
