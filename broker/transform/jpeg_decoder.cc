#include "broker/transform/jpeg_decoder.h"

#include <cassert>
#include <csetjmp>
#include <cstdio>
#include <optional>
#include <string_view>
#include <vector>
// After <cstdio>: they use FILE and size_t without including them.
#include <jerror.h>
#include <jpeglib.h>

#include "broker/transform/sample_rows.h"

namespace penstock {
namespace {

using std::string_view_literals::operator""sv;

constexpr int kEndOfImageMarker = 0xd9;

}  // namespace

// libjpeg reports an error by calling a function that must not return: ours
// longjmps into the method that called libjpeg. No object with a destructor
// lives in a skipped frame.
struct JpegDecoder::State {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf jump = {};
  int failure_code = 0;
  char failure[JMSG_LENGTH_MAX] = {};
  bool whole = false;  // the file's last bytes are an end marker
  int channels = 3;
  std::optional<SampleRows> rows;  // of CMYK or YCCK, or to values
  std::vector<std::byte> samples;  // a row of them

  static State* Of(j_common_ptr info) {
    return static_cast<State*>(info->client_data);
  }

  [[noreturn]] static void Fail(j_common_ptr info) {
    State* state = Of(info);
    state->failure_code = state->errors.msg_code;
    state->errors.format_message(info, state->failure);
    std::longjmp(state->jump, 1);
  }

  // level < 0 is a warning: the data are damaged and libjpeg would invent some.
  // The first warning that costs pixels is an error here.
  static void Message(j_common_ptr info, int level) {
    if (level >= 0) return;
    const State* state = Of(info);
    switch (state->errors.msg_code) {
      case JWRN_JFIF_MAJOR:
      case JWRN_ADOBE_XFORM:
      case JWRN_NOT_SEQUENTIAL:
        return;
      case JWRN_EXTRANEOUS_DATA:
        // Common in pictures collected from the web. Elsewhere in a scan it
        // indicates corruption.
        if (state->errors.msg_parm.i[1] == kEndOfImageMarker ||
            state->info.input_scan_number == 0) {
          return;
        }
        break;
      default:
        break;
    }
    Fail(info);
  }

  static void LimitScans(j_common_ptr info) {
    State* state = Of(info);
    if (state->info.input_scan_number <= kPictureScansMax) return;
    state->failure_code = 0;
    std::snprintf(state->failure, sizeof(state->failure),
                  "more than %d scans; no encoder writes so many",
                  kPictureScansMax);
    std::longjmp(state->jump, 1);
  }

  Status ReadScanline(std::byte* row) {
    JSAMPROW target = reinterpret_cast<JSAMPROW>(row);
    if (setjmp(jump) != 0) return Failure();
    jpeg_read_scanlines(&info, &target, 1);
    return OkStatus();
  }

  Status Failure() const {
    if (failure_code == JERR_OUT_OF_MEMORY) {
      return ResourceExhaustedError("no memory to decode a JPEG: {}", failure);
    }
    return DataLossError("damaged JPEG: {}", failure);
  }
};

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}

// Does nothing if nothing was created: info.mem is null.
JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->info); }

Status JpegDecoder::Begin(std::span<const std::byte> file) {
  State& state = *state_;
  jpeg_decompress_struct& info = state.info;
  assert(info.mem == nullptr);
  const std::string_view text(reinterpret_cast<const char*>(file.data()),
                              file.size());
  if (text.size() < 4) {
    return DataLossError("a JPEG that ends after {} bytes", text.size());
  }
  info.err = jpeg_std_error(&state.errors);
  state.errors.error_exit = &State::Fail;
  state.errors.emit_message = &State::Message;
  info.client_data = &state;
  if (setjmp(state.jump) != 0) return state.Failure();
  jpeg_create_decompress(&info);  // keeps err and client_data, zeroes the rest
  state.progress.progress_monitor = &State::LimitScans;
  info.progress = &state.progress;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()),
               file.size());
  jpeg_read_header(&info, TRUE);
  PENSTOCK_RETURN_IF_ERROR(
      CheckPictureSize(info.image_height, info.image_width));
  state.whole = text.ends_with("\xff\xd9"sv);
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  return OkStatus();
}

ImageSize JpegDecoder::size() const {
  return {.height = state_->info.image_height,
          .width = state_->info.image_width};
}

Status JpegDecoder::Start(int channels) {
  State& state = *state_;
  jpeg_decompress_struct& info = state.info;
  if (channels == kValueChannels) {
    if (info.jpeg_color_space != JCS_GRAYSCALE) return CheckHasValues({});
    state.rows.emplace(
        SampleLayout{.color = SampleLayout::Color::kGray, .samples = 1},
        nullptr);
    state.samples.resize(info.image_width);
  }
  state.channels = channels;
  switch (info.jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_YCbCr:
    case JCS_RGB:
      info.out_color_space =
          channels <= kValueChannels ? JCS_GRAYSCALE : JCS_RGB;
      break;
    case JCS_CMYK:
    case JCS_YCCK:
      info.out_color_space = JCS_CMYK;
      state.rows.emplace(SampleLayout{.color = SampleLayout::Color::kCmyk,
                                      .samples = 4,
                                      .inverted = true},
                         nullptr);
      state.samples.resize(size_t{info.image_width} * 4);
      break;
    default:
      return DataLossError(
          "a JPEG of {} colour components; known are gray, colour and CMYK "
          "pictures, of 1, 3 and 4",
          info.num_components);
  }
  if (setjmp(state.jump) != 0) return state.Failure();
  jpeg_start_decompress(&info);
  return OkStatus();
}

bool JpegDecoder::HasParts() const {
  const J_COLOR_SPACE space = state_->info.jpeg_color_space;
  return space == JCS_GRAYSCALE || space == JCS_YCbCr || space == JCS_RGB;
}

Status JpegDecoder::StartPart(int denominator, int64_t* first_column,
                              int64_t* end_column) {
  State& state = *state_;
  jpeg_decompress_struct& info = state.info;
  info.out_color_space = JCS_EXT_RGBX;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(denominator);
  if (setjmp(state.jump) != 0) return state.Failure();
  jpeg_start_decompress(&info);
  JDIMENSION left = static_cast<JDIMENSION>(*first_column);
  JDIMENSION width = static_cast<JDIMENSION>(*end_column - *first_column);
  jpeg_crop_scanline(&info, &left, &width);
  // As libjpeg-turbo computes it from 3.0 on. Earlier versions forget that
  // chroma of 4 x 2 or 2 x 4 pixels is scaled by less than luma: they upsample
  // half of each row and take the rest from memory of an earlier picture.
  const int64_t across =
      int64_t{info.max_h_samp_factor} * info.min_DCT_scaled_size;
  for (int i = 0; i < info.num_components; ++i) {
    jpeg_component_info& component = info.comp_info[i];
    const int64_t samples = int64_t{info.output_width} *
                            component.h_samp_factor * component.DCT_scaled_size;
    component.downsampled_width =
        static_cast<JDIMENSION>((samples + across - 1) / across);
  }
  *first_column = left;
  *end_column = int64_t{left} + width;
  return OkStatus();
}

ImageSize JpegDecoder::PartSize(int denominator) const {
  const ImageSize whole = size();
  return {.height = (whole.height + denominator - 1) / denominator,
          .width = (whole.width + denominator - 1) / denominator};
}

Status JpegDecoder::SkipRows(int64_t rows) {
  State& state = *state_;
  if (rows == 0) return OkStatus();
  if (setjmp(state.jump) != 0) return state.Failure();
  jpeg_skip_scanlines(&state.info, static_cast<JDIMENSION>(rows));
  return OkStatus();
}

Status JpegDecoder::ReadRow(std::byte* row) {
  State& state = *state_;
  if (!state.rows.has_value()) return state.ReadScanline(row);
  PENSTOCK_RETURN_IF_ERROR(state.ReadScanline(state.samples.data()));
  state.rows->Convert(state.samples.data(), state.info.image_width,
                      state.channels, row);
  return OkStatus();
}

Status JpegDecoder::Finish() {
  State& state = *state_;
  if (setjmp(state.jump) != 0) return state.Failure();
  jpeg_finish_decompress(&state.info);
  return OkStatus();
}

Status JpegDecoder::FinishPart(std::byte* row) {
  const jpeg_decompress_struct& info = state_->info;
  if (state_->whole) return OkStatus();
  while (info.output_scanline < info.output_height) {
    PENSTOCK_RETURN_IF_ERROR(ReadRow(row));
  }
  return Finish();
}

}  // namespace penstock
