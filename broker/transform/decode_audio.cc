#include "broker/transform/decode_audio.h"

#include <soxr.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "broker/transform/op_declaration.h"
#include "broker/transform/row_builder.h"
#include "broker/transform/sound_file.h"
#include "common/layout.h"

namespace penstock {
namespace {

constexpr int64_t kBlockValues = int64_t{1} << 14;

// Frames to a row, resampled if its rate is another one.
class RowOfFrames {
 public:
  RowOfFrames(int64_t room, int64_t channels, float* out)
      : room_(room), channels_(channels), out_(out) {}

  Status Begin(int64_t from, int64_t to) {
    if (from == to) return OkStatus();
    const soxr_io_spec_t floats = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    const soxr_runtime_spec_t one_thread = soxr_runtime_spec(1);
    soxr_error_t error = nullptr;
    resampler_.reset(soxr_create(static_cast<double>(from),
                                 static_cast<double>(to),
                                 static_cast<unsigned>(channels_), &error,
                                 &floats, &quality, &one_thread));
    return resampler_ != nullptr
               ? OkStatus()
               : ResourceExhaustedError(
                     "soxr: {}", error == nullptr ? "no resampler" : error);
  }

  Status Add(const float* frames, int64_t count) {
    if (resampler_ == nullptr) {
      count = std::min(count, room_ - length_);
      std::copy_n(frames, count * channels_, out_ + length_ * channels_);
      length_ += count;
      return OkStatus();
    }
    while (count > 0 && length_ < room_) {
      size_t taken = 0;
      PENSTOCK_RETURN_IF_ERROR(
          Process(frames, static_cast<size_t>(count), &taken).status());
      frames += static_cast<int64_t>(taken) * channels_;
      count -= static_cast<int64_t>(taken);
    }
    return OkStatus();
  }

  // The rest of the row becomes zeros. Returns how many frames it has.
  StatusOr<int64_t> Finish() {
    while (resampler_ != nullptr && length_ < room_) {
      PENSTOCK_ASSIGN_OR_RETURN(const size_t made,
                                Process(nullptr, 0, nullptr));
      if (made == 0) break;
    }
    std::fill(out_ + length_ * channels_, out_ + room_ * channels_, 0.0F);
    return length_;
  }

 private:
  struct Deleter {
    void operator()(soxr* resampler) const { soxr_delete(resampler); }
  };

  StatusOr<size_t> Process(const float* in, size_t count, size_t* taken) {
    size_t made = 0;
    const soxr_error_t error = soxr_process(
        resampler_.get(), in, count, taken, out_ + length_ * channels_,
        static_cast<size_t>(room_ - length_), &made);
    if (error != nullptr) return ResourceExhaustedError("soxr: {}", error);
    length_ += static_cast<int64_t>(made);
    return made;
  }

  const int64_t room_;
  const int64_t channels_;
  float* const out_;
  int64_t length_ = 0;
  std::unique_ptr<soxr, Deleter> resampler_;
};

// In place; rounded once.
void MixDown(int64_t count, int64_t channels, float* frames) {
  for (int64_t i = 0; i < count; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < channels; ++c) sum += frames[i * channels + c];
    frames[i] = static_cast<float>(sum / static_cast<double>(channels));
  }
}

Status TooLong(const DecodeAudioOp& op, std::string_view more, int64_t frames,
               int64_t rate) {
  return DataLossError(
      "a sound of {}{:.6g} seconds; at most {:.6g} fit (`seconds`, or `crop`)",
      more, static_cast<double>(frames) / static_cast<double>(rate),
      op.seconds);
}

StatusOr<int64_t> FirstFrame(const DecodeAudioOp& op, const SoundFile& file,
                             int64_t wanted, const AugmentationDraws& draws) {
  using Crop = DecodeAudioOp::Crop;
  const std::optional<int64_t> frames = file.frames();
  if (op.crop.value_or(Crop::kStart) != Crop::kStart && !frames) {
    return DataLossError(
        "its header does not say how long it is: `crop: start`, or write it "
        "anew");
  }
  const int64_t rest = frames.value_or(wanted) - wanted;
  if (rest <= 0) return 0;
  if (!op.crop) return TooLong(op, "", *frames, file.rate());
  switch (*op.crop) {
    case Crop::kStart:
      return 0;
    case Crop::kCenter:
      return rest / 2;
    case Crop::kRandom:
      return draws.Choice(0, rest + 1);
  }
  return 0;
}

class DecodeAudioStage final : public RowStage {
 public:
  DecodeAudioStage(const DecodeAudioOp& op, int64_t room, uint32_t number)
      : op_(op), room_(room), number_(number) {}

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey& key,
             std::span<std::byte* const> out) const override {
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t length,
                              DecodeSound(op_, in[0], room_, {key, number_},
                                          reinterpret_cast<float*>(out[0])));
    Store(length, out[1]);
    return OkStatus();
  }

 private:
  const DecodeAudioOp op_;
  const int64_t room_;
  const uint32_t number_;
};

Status CheckChannels(const YamlValue& value, DecodeAudioOp* op) {
  if (op->mono && op->channels) {
    return value.Required("channels")
        .Error("mono has one: leave one of them out");
  }
  if (op->mono || op->channels) return OkStatus();
  return value.Error(
      "needs `mono: true`, or `channels`: how many each file has");
}

}  // namespace

StatusOr<int64_t> DecodeSound(const DecodeAudioOp& op,
                              std::span<const std::byte> bytes, int64_t room,
                              const AugmentationDraws& draws, float* out) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<SoundFile> file,
                            SoundFile::Open(bytes));
  const int64_t channels = file->channels();
  if (op.channels && channels != *op.channels) {
    return DataLossError(
        "{} channels, and the step says `channels: {}` (`mono: true` takes "
        "any)",
        channels, *op.channels);
  }
  // So many of the file fill the room.
  const int64_t wanted = (room * file->rate() + op.rate - 1) / op.rate;
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t first,
                            FirstFrame(op, *file, wanted, draws));
  PENSTOCK_RETURN_IF_ERROR(file->SkipTo(first));
  RowOfFrames row(room, op.mono ? 1 : channels, out);
  PENSTOCK_RETURN_IF_ERROR(row.Begin(file->rate(), op.rate));
  // It keeps its memory; one for each worker.
  thread_local std::vector<float> block(kBlockValues);
  const int64_t frames = file->frames().value_or(first + wanted) - first;
  int64_t left = std::min(frames, wanted);
  while (left > 0) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const int64_t read,
        file->Read(std::min(left, kBlockValues / channels), block.data()));
    if (read == 0) break;
    if (op.mono) MixDown(read, channels, block.data());
    PENSTOCK_RETURN_IF_ERROR(row.Add(block.data(), read));
    left -= read;
  }
  if (!file->frames() && left == 0 && !op.crop) {
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t more, file->Read(1, block.data()));
    if (more > 0) return TooLong(op, "more than ", wanted, file->rate());
  }
  if (file->frames() && left > 0) {
    return DataLossError("truncated: it ends {} samples before its header says",
                         left);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t length, row.Finish());
  if (length == 0) return DataLossError("a sound of 0 samples");
  return length;
}

const Declaration<DecodeAudioOp>& DecodeAudioOp::Declared() {
  constexpr double kSecondsMin = 0.001;
  constexpr double kSecondsMax = 86'400;
  static const auto declared =
      FeatureOp<DecodeAudioOp>(
          "decode_audio",
          "Decodes a sound (WAV, FLAC, MP3, Ogg Vorbis, Opus, AIFF and what "
          "else libsndfile reads) and resamples it.")
          .Gives(
              "encoded → float32 [samples], or [samples, channels], a list: "
              "NAME.length int64 is how many are the row's, zeros follow")
          .Example("{rate: 16000, mono: true, seconds: 10, crop: random}")
          .Required("rate", &DecodeAudioOp::rate,
                    WholeNumber<int64_t>(kSoundRateMin, kSoundRateMax),
                    "samples a second of the result; a file of another rate is "
                    "resampled")
          .Required("seconds", &DecodeAudioOp::seconds,
                    Number(kSecondsMin, kSecondsMax),
                    "the room of a row: samples = seconds * rate")
          .Optional("mono", &DecodeAudioOp::mono, Bool(),
                    Format("the mean of the channels, however many there are, "
                           "up to {}",
                           kSoundChannelsMax))
          .Optional("channels", &DecodeAudioOp::channels,
                    Maybe(WholeNumber<int64_t>(1, kSoundChannelsMax)),
                    "unless mono: how many each file has; another number is an "
                    "error of its sample (on_error applies)")
          .Optional("crop", &DecodeAudioOp::crop,
                    Maybe(Words<Crop>({{"start", Crop::kStart},
                                       {"center", Crop::kCenter},
                                       {"random", Crop::kRandom}})),
                    "the part of a longer file that is used; by default that "
                    "is an error of its sample")
          .Check(CheckChannels);
  return declared;
}

Status DecodeAudioOp::AddToRow(RowBuilder* row) const {
  const auto room =
      static_cast<int64_t>(std::llround(seconds * static_cast<double>(rate)));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<PathBuilder*> found,
                            row->FindAll(feature));
  for (PathBuilder* const path : found) {
    const std::string name = path->feature().name;
    if (!path->encoded()) {
      return InvalidArgumentError("wants a sound file, found {}",
                                  path->feature().ToString());
    }
    std::vector<int64_t> shape = {room};
    if (channels) shape.push_back(*channels);
    const ElementSpec made = {{name, DType::kFloat32, std::move(shape)},
                              {name + kLengthSuffix, DType::kInt64, {}}};
    PENSTOCK_RETURN_IF_ERROR(row->AddStep(
        {path}, made,
        std::make_unique<DecodeAudioStage>(*this, room, row->opening()->step),
        /*decodes=*/true));
    row->Named(name)->known().rate = rate;
  }
  return OkStatus();
}

}  // namespace penstock
