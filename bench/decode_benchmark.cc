// Question: what does a row of a picture cost compared with bare decoding of
// the same pixels, and how close is it to the exact row?
//
// Method: JPEG files in memory; random-resized-crop to 224 x 224, flip, and
// either uint8 channels last or float16 channels first, normalised. The same
// boxes of the same files, one thread, its CPU time. Bare is libjpeg-turbo
// alone, with its default settings, decoder and row buffer reused: of the box's
// rows and columns only (jpeg_skip_scanlines, jpeg_crop_scanline), or of the
// whole picture. A ratio below 1.11 to the former is 0.9 x its speed. It makes
// a difference of 1.1 to 1.2 where the row buffer lies: to rows on a vector's
// boundary libjpeg-turbo writes past the caches. The baseline is the faster.
// The baseline for files of other formats is their decoder (*_decoder.h), which
// writes RGB rows of the whole picture.
// Isolation: no file is read, no broker runs; `penstock bench` shows those.
// Quality: peak signal-to-noise ratio of each row against `exact: true`, over
// 8-bit values.
//
//   bench/make_photographs.py --out photographs
//   build/dev/bench/decode_benchmark --pictures photographs
//   build/dev/bench/decode_benchmark --pictures /usr/share/backgrounds/mate
//   bench/make_photographs.py --out pngs --format png
//   build/dev/bench/decode_benchmark --pictures pngs --format png
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
// After <cstdio>: it uses FILE without including it.
#include <jpeglib.h>

#include "bench/side_by_side.h"
#include "broker/transform/crop.h"
#include "broker/transform/picture_decoder.h"
#include "broker/transform/row_program.h"

namespace penstock {
namespace {

constexpr ImageSize kTarget = {.height = 224, .width = 224};
constexpr size_t kRowBytesMax = size_t{kTarget.height * kTarget.width * 3 * 4};

struct Picture {
  std::vector<std::byte> file;
  CropBox box;
};

[[noreturn]] void Fail(const Status& status) {
  Print(stderr, "decode_benchmark: {}\n", status.message());
  std::exit(1);
}

double ThreadCpuUs() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 +
         static_cast<double>(time.tv_nsec) * 1e-3;
}

// libjpeg-turbo called directly. A file that it cannot read ends the program,
// its default.
class BareDecoder {
 public:
  // past_caches: to rows on a vector's boundary.
  explicit BareDecoder(bool past_caches) : past_caches_(past_caches) {
    info_.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&info_);
  }
  ~BareDecoder() { jpeg_destroy_decompress(&info_); }
  BareDecoder(const BareDecoder&) = delete;
  BareDecoder& operator=(const BareDecoder&) = delete;

  void Whole(const Picture& picture) {
    ReadHeader(picture);
    jpeg_start_decompress(&info_);
    ReadRows(info_.output_height);
    jpeg_finish_decompress(&info_);
  }

  // shrinks: at the smallest of 1/2, 1/4, 1/8 (in the DCT) at which the box is
  // no smaller than the target.
  void Crop(const Picture& picture, bool shrinks) {
    ReadHeader(picture);
    const CropBox& box = picture.box;
    int64_t by = shrinks ? 8 : 1;
    while (by > 1 && (box.width < kTarget.width * by ||
                      box.height < kTarget.height * by)) {
      by /= 2;
    }
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(by);
    jpeg_start_decompress(&info_);
    auto left = static_cast<JDIMENSION>(box.left / by);
    auto width = static_cast<JDIMENSION>(box.width / by);
    jpeg_crop_scanline(&info_, &left, &width);
    jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(box.top / by));
    ReadRows(static_cast<JDIMENSION>((box.top + box.height) / by));
    jpeg_abort_decompress(&info_);
  }

 private:
  void ReadHeader(const Picture& picture) {
    jpeg_abort_decompress(&info_);
    jpeg_mem_src(&info_,
                 reinterpret_cast<const unsigned char*>(picture.file.data()),
                 picture.file.size());
    jpeg_read_header(&info_, TRUE);
  }
  void ReadRows(JDIMENSION end) {
    constexpr size_t kVector = 64;
    row_.resize(size_t{info_.output_width} * 3 + 2 * kVector);
    const auto address = reinterpret_cast<uintptr_t>(row_.data());
    JSAMPROW row =
        row_.data() + (kVector - address % kVector) + (past_caches_ ? 0 : 8);
    while (info_.output_scanline < end) jpeg_read_scanlines(&info_, &row, 1);
  }

  jpeg_decompress_struct info_ = {};
  jpeg_error_mgr errors_ = {};
  const bool past_caches_;
  std::vector<JSAMPLE> row_;
};

// The `map` of a spec, run on one picture after the other.
class Program {
 public:
  Program(bool exact, bool normalize) {
    std::vector<TransformSpec> map = {
        DecodeImageOp{
            .crop = RandomResizedCrop{}, .size = kTarget, .exact = exact},
        FlipOp{}};
    if (normalize) {
      map.push_back(NormalizeOp{.mean = {0.485, 0.456, 0.406},
                                .std = {0.229, 0.224, 0.225},
                                .dtype = DType::kFloat16,
                                .layout = Layout::kChw});
    }
    auto program =
        RowProgram::Compile(map, {{{"image", DType::kUint8, {}}, true}});
    if (!program.ok()) Fail(program.status());
    program_ = *std::move(program);
    scratch_ = program_->MakeScratch({});
    out_.resize(kRowBytesMax);
  }

  const std::vector<std::byte>& Run(const Picture& picture, uint64_t sample) {
    std::byte* const out = out_.data();
    const Status status =
        program_->Run({picture.file}, {.sample = sample}, *scratch_, {&out, 1});
    if (!status.ok()) Fail(status);
    return out_;
  }

 private:
  std::unique_ptr<RowProgram> program_;
  std::unique_ptr<RowProgram::Scratch> scratch_;
  std::vector<std::byte> out_;
};

// Any of our decoders alone.
void DecodeWhole(const Picture& picture, std::vector<std::byte>* row) {
  const auto decoder = OpenPicture(picture.file);
  if (!decoder.ok()) Fail(decoder.status());
  const ImageSize size = (*decoder)->size();
  row->resize(static_cast<size_t>(size.width * 3));
  Status status = (*decoder)->Start(3);
  for (int64_t y = 0; y < size.height && status.ok(); ++y) {
    status = (*decoder)->ReadRow(row->data());
  }
  if (status.ok()) status = (*decoder)->Finish();
  if (!status.ok()) Fail(status);
}

std::vector<Picture> ReadPictures(const std::string& folder,
                                  const std::string& format, size_t count) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == "." + format) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  paths.resize(std::min(paths.size(), count));
  std::vector<Picture> pictures;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto bytes = std::as_bytes(std::span(text));
    pictures.push_back({{bytes.begin(), bytes.end()}, {}});
  }
  return pictures;
}

// The box that the program's op, the first of map, will choose.
void ChooseBoxes(std::vector<Picture>& pictures) {
  const CropSpec crop = RandomResizedCrop{};
  for (size_t i = 0; i < pictures.size(); ++i) {
    const AugmentationKey key = {.sample = i};
    const auto decoder = OpenPicture(pictures[i].file);
    if (!decoder.ok()) Fail(decoder.status());
    pictures[i].box = ChooseCrop(crop, (*decoder)->size(), kTarget, {key, 0});
  }
}

// In decibels: 10 log10(255^2 / mean square difference).
double PeakSignalToNoise(const std::vector<std::byte>& a,
                         const std::vector<std::byte>& b, size_t values) {
  double squares = 0;
  for (size_t i = 0; i < values; ++i) {
    const double difference =
        std::to_integer<int>(a[i]) - std::to_integer<int>(b[i]);
    squares += difference * difference;
  }
  return 10 * std::log10(255.0 * 255.0 * static_cast<double>(values) /
                         std::max(squares, 1e-9));
}

void PrintQuality(const std::vector<Picture>& pictures) {
  Program fast(false, false);
  Program exact(true, false);
  double sum = 0;
  double worst = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < pictures.size(); ++i) {
    const double ratio = PeakSignalToNoise(
        fast.Run(pictures[i], i), exact.Run(pictures[i], i),
        static_cast<size_t>(kTarget.height * kTarget.width * 3));
    sum += ratio;
    worst = std::min(worst, ratio);
  }
  Print(stdout, "quality against exact: mean {:.1f} dB, worst {:.1f} dB\n",
        sum / static_cast<double>(pictures.size()), worst);
}

int Main(int argc, char** argv) {
  CommandLine line(
      "decode_benchmark",
      "The cost of a row of a picture, compared with bare decoding");
  SideBySideOptions options;
  std::string folder;
  std::string format = "jpg";
  size_t count = 200;
  line.AddOption("--pictures", &folder, "A folder of pictures").Required();
  line.AddOption("--format", &format, "How the names of the files end")
      .OneOf({"jpg", "png", "webp", "tif"})
      .ShowDefault();
  line.AddOption("--count", &count, "Number of files to take").ShowDefault();
  AddSideBySideOptions(line, &options);
  line.ParseOrExit(argc, argv);
  std::vector<Picture> pictures =
      ReadPictures(folder, format, options.tiny ? 2 : count);
  if (pictures.empty()) {
    Print(stderr, "decode_benchmark: no *.{} in {}\n", format, folder);
    return 1;
  }
  ChooseBoxes(pictures);

  BareDecoder bare(false);
  BareDecoder bare_past_caches(true);
  std::vector<std::byte> row;
  Program bytes(false, false), halves(false, true);
  Program exact_bytes(true, false), exact_halves(true, true);
  const auto cost = [&](auto run) {
    return [&pictures, run] {
      const double begin = ThreadCpuUs();
      for (size_t i = 0; i < pictures.size(); ++i) run(i);
      return (ThreadCpuUs() - begin) / static_cast<double>(pictures.size());
    };
  };
  SideBySide table(Format("{} pictures, one thread", pictures.size()),
                   "us of CPU a picture");
  if (format == "jpg") {
    table.Add("bare, the box only",
              cost([&](size_t i) { bare.Crop(pictures[i], false); }));
    table.Add("bare, the box, past the caches", cost([&](size_t i) {
                bare_past_caches.Crop(pictures[i], false);
              }));
    table.Add("bare, the box, shrunk by the DCT",
              cost([&](size_t i) { bare.Crop(pictures[i], true); }));
    table.Add("bare, whole picture",
              cost([&](size_t i) { bare.Whole(pictures[i]); }));
  } else {
    table.Add("decoder alone, whole picture",
              cost([&](size_t i) { DecodeWhole(pictures[i], &row); }));
  }
  table.Add("uint8 hwc", cost([&](size_t i) { bytes.Run(pictures[i], i); }));
  table.Add("float16 chw, normalised",
            cost([&](size_t i) { halves.Run(pictures[i], i); }));
  table.Add("exact, uint8 hwc",
            cost([&](size_t i) { exact_bytes.Run(pictures[i], i); }));
  table.Add("exact, float16 chw, normalised",
            cost([&](size_t i) { exact_halves.Run(pictures[i], i); }));
  RunSideBySide({&table}, options);
  if (!options.json) PrintQuality(pictures);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
