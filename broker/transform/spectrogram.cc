#include "broker/transform/spectrogram.h"

#include <kiss_fft.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "broker/transform/op_declaration.h"
#include "broker/transform/row_builder.h"
#include "broker/transform/values.h"
#include "common/layout.h"

namespace penstock {
namespace {

constexpr int64_t kFftMin = 16;
constexpr int64_t kFftMax = 1 << 16;
constexpr int64_t kMelsMax = 1024;
constexpr int64_t kBandsMax = 100;
constexpr double kDecibelsMax = 120;

double Mels(double hz, MelSpectrogramOp::Scale scale) {
  if (scale == MelSpectrogramOp::Scale::kHtk) {
    return 2595 * std::log10(1 + hz / 700);
  }
  return hz < 1000 ? hz * 3 / 200
                   : 15 + 27 * std::log(hz / 1000) / std::log(6.4);
}

double Hz(double mels, MelSpectrogramOp::Scale scale) {
  if (scale == MelSpectrogramOp::Scale::kHtk) {
    return 700 * (std::pow(10, mels / 2595) - 1);
  }
  return mels < 15 ? mels * 200 / 3
                   : 1000 * std::exp((mels - 15) * std::log(6.4) / 27);
}

// A triangle over some of a spectrum.
struct MelFilter {
  size_t first = 0;
  std::vector<float> weights;
};

// As torchaudio's melscale_fbanks, whose nodes are equally far apart in mels.
std::vector<MelFilter> FiltersOf(const MelSpectrogramOp& op, double max_hz) {
  const double low = Mels(op.min_hz, op.scale);
  const double step =
      (Mels(max_hz, op.scale) - low) / static_cast<double>(op.mels + 1);
  const auto node = [&](int64_t i) {
    return Hz(low + step * static_cast<double>(i), op.scale);
  };
  const double bin_hz =
      static_cast<double>(op.rate) / static_cast<double>(op.fft);
  std::vector<MelFilter> filters;
  for (int64_t mel = 0; mel < op.mels; ++mel) {
    const double left = node(mel), middle = node(mel + 1),
                 right = node(mel + 2);
    const double height = op.equal_area ? 2 / (right - left) : 1;
    MelFilter filter;
    for (int64_t bin = 0; bin <= op.fft / 2; ++bin) {
      const double hz = bin_hz * static_cast<double>(bin);
      const double weight = std::min((hz - left) / (middle - left),
                                     (right - hz) / (right - middle));
      if (weight <= 0) continue;
      if (filter.weights.empty()) filter.first = static_cast<size_t>(bin);
      filter.weights.push_back(static_cast<float>(weight * height));
    }
    filters.push_back(std::move(filter));
  }
  return filters;
}

// A periodic Hann window in the middle of a spectrum's samples.
std::vector<float> HannWindow(int64_t length, int64_t fft) {
  std::vector<float> window(static_cast<size_t>(fft), 0.0F);
  for (int64_t i = 0; i < length; ++i) {
    const double turn = static_cast<double>(i) / static_cast<double>(length);
    window[static_cast<size_t>((fft - length) / 2 + i)] =
        static_cast<float>(0.5 - 0.5 * std::cos(2 * std::numbers::pi * turn));
  }
  return window;
}

class MelStage final : public RowStage {
 public:
  // samples: of a row, or its room if it is a list.
  MelStage(const MelSpectrogramOp& op, std::string name, int64_t samples)
      : op_(op),
        name_(std::move(name)),
        samples_(samples),
        margin_(op.pad == MelSpectrogramOp::Pad::kNone ? 0 : op.fft / 2),
        window_(HannWindow(op.window.value_or(op.fft), op.fft)),
        filters_(FiltersOf(
            op, op.max_hz.value_or(static_cast<double>(op.rate) / 2))),
        fft_(kiss_fft_alloc(static_cast<int>(op.fft), 0, nullptr, nullptr)) {}

  // 0: too few samples for one.
  int64_t Frames(int64_t samples) const {
    const int64_t beyond = samples + 2 * margin_ - op_.fft;
    return samples == 0 || beyond < 0 ? 0 : beyond / op_.hop + 1;
  }

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey&,
             std::span<std::byte* const> out) const override {
    int64_t samples = samples_;
    if (in.size() > 1) {
      PENSTOCK_ASSIGN_OR_RETURN(samples, ItemsOf(name_, samples_, in[1]));
    }
    const int64_t frames = Frames(samples);
    const bool reflects = op_.pad == MelSpectrogramOp::Pad::kReflect;
    const int64_t least = reflects ? margin_ + 1 : op_.fft - 2 * margin_;
    if (frames == 0 || samples < least) {
      return DataLossError("{} samples are too few for a spectrum: at least {}",
                           samples, std::max<int64_t>(least, 1));
    }
    const auto mels = static_cast<size_t>(op_.mels);
    // Each worker keeps its memory.
    thread_local Scratch scratch;
    scratch.Prepare(in[0].first(static_cast<size_t>(samples) * sizeof(float)),
                    margin_, reflects, op_.fft);
    std::byte* row = out[0];
    for (int64_t frame = 0; frame < frames; frame += 2) {
      // Two frames are one transform, as its real and its imaginary part.
      const bool both = frame + 1 < frames;
      Transform(frame, both, &scratch);
      for (int part = 0; part < (both ? 2 : 1); ++part) {
        Power(part, &scratch);
        for (const MelFilter& filter : filters_) {
          Store(Value(filter, scratch.power), row);
          row += sizeof(float);
        }
      }
    }
    if (in.size() > 1) {
      std::memset(row, 0,
                  static_cast<size_t>(Frames(samples_) - frames) * mels *
                      sizeof(float));
      Store(frames, out[1]);
    }
    return OkStatus();
  }

 private:
  struct Scratch {
    std::vector<float> samples;  // with margins
    std::vector<kiss_fft_cpx> in;
    std::vector<kiss_fft_cpx> out;
    std::vector<float> power;

    void Prepare(std::span<const std::byte> values, int64_t margin,
                 bool reflects, int64_t fft) {
      const size_t count = values.size() / sizeof(float);
      const auto beside = static_cast<size_t>(margin);
      samples.assign(count + 2 * beside, 0.0F);
      std::memcpy(samples.data() + beside, values.data(), values.size());
      for (size_t i = 1; reflects && i <= beside; ++i) {
        samples[beside - i] = samples[beside + i];
        samples[beside + count - 1 + i] = samples[beside + count - 1 - i];
      }
      in.resize(static_cast<size_t>(fft));
      out.resize(in.size());
      power.resize(in.size() / 2 + 1);
    }
  };

  void Transform(int64_t frame, bool both, Scratch* scratch) const {
    const float* const first = scratch->samples.data() + frame * op_.hop;
    const float* const second = first + (both ? op_.hop : 0);
    for (size_t i = 0; i < window_.size(); ++i) {
      scratch->in[i] = {window_[i] * first[i], window_[i] * second[i]};
    }
    // It only reads fft_, as the result lies elsewhere.
    kiss_fft(fft_.get(), scratch->in.data(), scratch->out.data());
  }

  void Power(int part, Scratch* scratch) const {
    const std::vector<kiss_fft_cpx>& both = scratch->out;
    for (size_t k = 0; k < scratch->power.size(); ++k) {
      const kiss_fft_cpx a = both[k], b = both[k == 0 ? 0 : both.size() - k];
      const float real = part == 0 ? a.r + b.r : a.i + b.i;
      const float imaginary = part == 0 ? a.i - b.i : b.r - a.r;
      const float square = 0.25F * (real * real + imaginary * imaginary);
      scratch->power[k] =
          op_.power == 2 ? square
                         : std::pow(square, static_cast<float>(op_.power / 2));
    }
  }

  float Value(const MelFilter& filter, const std::vector<float>& power) const {
    double sum = 0;
    for (size_t i = 0; i < filter.weights.size(); ++i) {
      sum += filter.weights[i] * power[filter.first + i];
    }
    if (!op_.log) return static_cast<float>(sum);
    sum = std::max(sum, op_.floor);
    return static_cast<float>(*op_.log == MelSpectrogramOp::Log::kNatural
                                  ? std::log(sum)
                                  : 10 * std::log10(sum));
  }

  struct Free {
    void operator()(kiss_fft_state* state) const { kiss_fft_free(state); }
  };

  const MelSpectrogramOp op_;
  const std::string name_;
  const int64_t samples_;
  const int64_t margin_;
  const std::vector<float> window_;
  const std::vector<MelFilter> filters_;
  const std::unique_ptr<kiss_fft_state, Free> fft_;
};

Status CheckMel(const YamlValue& value, MelSpectrogramOp* op) {
  const double half = static_cast<double>(op->rate) / 2;
  if (op->window && *op->window > op->fft) {
    return value.Required("window").Error(
        Format("{} is more than fft, {}", *op->window, op->fft));
  }
  if (op->max_hz.value_or(half) > half) {
    return value.Required("max_hz").Error(
        Format("{} is more than half the rate, {}", *op->max_hz, half));
  }
  if (op->min_hz >= op->max_hz.value_or(half)) {
    return value.Required("min_hz").Error(
        Format("wanted less than max_hz, {}, found {}",
               op->max_hz.value_or(half), op->min_hz));
  }
  return OkStatus();
}

class MaskStage final : public RowStage {
 public:
  MaskStage(const MaskSpectrogramOp& op, Feature made, uint32_t number)
      : op_(op), made_(std::move(made)), number_(number) {}

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey& key,
             std::span<std::byte* const> out) const override {
    std::memcpy(out[0], in[0].data(), in[0].size());
    int64_t frames = made_.shape[0];
    if (in.size() > 1) {
      PENSTOCK_ASSIGN_OR_RETURN(frames, ItemsOf(made_.name, frames, in[1]));
      std::memcpy(out[1], in[1].data(), in[1].size());
    }
    const int64_t mels = made_.shape[1];
    const AugmentationDraws draws(key, number_);
    uint32_t draw = 0;
    const double most = op_.share * static_cast<double>(frames);
    for (int64_t i = 0; i < op_.times; ++i) {
      const auto [begin, end] = Band(
          draws, &draw, std::min(static_cast<double>(op_.time), most), frames);
      Fill(begin * mels, (end - begin) * mels, out[0]);
    }
    for (int64_t i = 0; i < op_.frequencies; ++i) {
      const auto [begin, end] =
          Band(draws, &draw, static_cast<double>(op_.frequency), mels);
      for (int64_t frame = 0; frame < frames; ++frame) {
        Fill(frame * mels + begin, end - begin, out[0]);
      }
    }
    return OkStatus();
  }

 private:
  // torchaudio's mask_along_axis.
  static std::pair<int64_t, int64_t> Band(const AugmentationDraws& draws,
                                          uint32_t* draw, double widest,
                                          int64_t size) {
    const double width = draws.Uniform((*draw)++) * widest;
    const double room = std::max(0.0, static_cast<double>(size) - width);
    const auto begin = static_cast<int64_t>(draws.Uniform((*draw)++) * room);
    return {begin, std::min(size, begin + static_cast<int64_t>(width))};
  }
  void Fill(int64_t first, int64_t count, std::byte* out) const {
    const auto value = static_cast<float>(op_.value);
    for (int64_t i = 0; i < count; ++i) {
      Store(value, out + (first + i) * int64_t{sizeof(value)});
    }
  }

  const MaskSpectrogramOp op_;
  const Feature made_;
  const uint32_t number_;
};

class GainStage final : public Stage {
 public:
  GainStage(const GainOp& op, uint32_t number) : op_(op), number_(number) {}

  Status Run(std::span<const std::byte> in, const AugmentationKey& key,
             PathScratch&, std::byte* out) const override {
    const double decibels =
        AugmentationDraws(key, number_).Within(0, op_.decibels);
    const auto factor = static_cast<float>(std::pow(10, decibels / 20));
    for (size_t at = 0; at < in.size(); at += sizeof(float)) {
      Store(ValueAt<float>(&in[at]) * factor, out + at);
    }
    return OkStatus();
  }

 private:
  const GainOp op_;
  const uint32_t number_;
};

}  // namespace

// ---- mel_spectrogram

const Declaration<MelSpectrogramOp>& MelSpectrogramOp::Declared() {
  constexpr double kPowerMin = 0.1;
  constexpr double kPowerMax = 4;
  constexpr double kHzMax = 1e6;
  constexpr double kFloorMin = 1e-38;
  static const auto declared =
      FeatureOp<MelSpectrogramOp>(
          "mel_spectrogram",
          "Mel filters over the spectra of frames, as torchaudio's "
          "MelSpectrogram; librosa's with scale: slaney, equal_area: true, "
          "pad: zeros.")
          .Gives(
              "float32 [samples] → [frames, mels], a list if it was one: "
              "NAME.length becomes how many frames it has")
          .Example("{rate: 16000, mels: 80, log: natural}")
          .Required("rate", &MelSpectrogramOp::rate,
                    WholeNumber<int64_t>(1, 1 << 20),
                    "samples a second of the sound")
          .Optional("mels", &MelSpectrogramOp::mels,
                    WholeNumber<int64_t>(1, kMelsMax), "filters")
          .Optional("fft", &MelSpectrogramOp::fft,
                    WholeNumber<int64_t>(kFftMin, kFftMax),
                    "samples of a spectrum")
          .Optional("hop", &MelSpectrogramOp::hop,
                    WholeNumber<int64_t>(1, kFftMax),
                    "samples from one frame to the next")
          .Optional("window", &MelSpectrogramOp::window,
                    Maybe(WholeNumber<int64_t>(1, kFftMax)),
                    "samples of the Hann window, by default fft")
          .Optional("min_hz", &MelSpectrogramOp::min_hz, Number(0, kHzMax),
                    "where the first filter begins")
          .Optional("max_hz", &MelSpectrogramOp::max_hz,
                    Maybe(Number(0, kHzMax)),
                    "where the last one ends, by default half the rate")
          .Optional("power", &MelSpectrogramOp::power,
                    Number(kPowerMin, kPowerMax),
                    "of a spectrum's magnitude: 1, or 2 for the energy")
          .Optional(
              "scale", &MelSpectrogramOp::scale,
              Words<Scale>({{"htk", Scale::kHtk}, {"slaney", Scale::kSlaney}}),
              "the formula of a mel")
          .Optional("equal_area", &MelSpectrogramOp::equal_area, Bool(),
                    "each filter has the area of 1 Hz (norm: slaney)")
          .Optional(
              "pad", &MelSpectrogramOp::pad,
              Words<Pad>({{"reflect", Pad::kReflect},
                          {"zeros", Pad::kZeros},
                          {"none", Pad::kNone}}),
              "what is before the first sample and behind the last, half "
              "a spectrum each, so that frame n is around sample n * hop; "
              "none: frames lie within")
          .Optional("log", &MelSpectrogramOp::log,
                    Maybe(Words<Log>({{"natural", Log::kNatural},
                                      {"decibel", Log::kDecibel}})),
                    "the logarithm of each value; decibel: 10 log10")
          .Optional("floor", &MelSpectrogramOp::floor, Number(kFloorMin, 1),
                    "the least value that it is taken of")
          .Check(CheckMel);
  return declared;
}

Status MelSpectrogramOp::AddToRow(RowBuilder* row) const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<PathBuilder*> found,
                            row->FindAll(feature));
  for (PathBuilder* const path : found) {
    const Feature& sound = path->feature();
    PENSTOCK_RETURN_IF_ERROR(path->CheckSound(rate));
    auto stage = std::make_unique<MelStage>(*this, sound.name, sound.shape[0]);
    const int64_t frames = stage->Frames(sound.shape[0]);
    if (frames == 0) {
      return InvalidArgumentError(
          "a row of {} samples has room for no spectrum of {}", sound.shape[0],
          fft);
    }
    const std::vector<PathBuilder*> taken = row->WithLength(path);
    ElementSpec made = {{sound.name, DType::kFloat32, {frames, mels}}};
    if (taken.size() > 1) made.push_back(taken[1]->feature());
    PENSTOCK_RETURN_IF_ERROR(row->AddStep(taken, made, std::move(stage)));
  }
  return OkStatus();
}

// ---- mask_spectrogram

const Declaration<MaskSpectrogramOp>& MaskSpectrogramOp::Declared() {
  constexpr int64_t kWidthMax = int64_t{1} << 24;
  constexpr double kValueMax = 1e30;
  static const auto declared =
      FeatureOp<MaskSpectrogramOp>(
          "mask_spectrogram",
          "SpecAugment: bands of frames and of filters become one value, as "
          "torchaudio's TimeMasking and FrequencyMasking.")
          .Gives("float32 [frames, mels] → the same")
          .Example("{time: 100, times: 2, frequency: 27, frequencies: 2}")
          .Optional("time", &MaskSpectrogramOp::time,
                    WholeNumber<int64_t>(0, kWidthMax),
                    "the widest band of frames; widths are uniform from 0 on")
          .Optional("frequency", &MaskSpectrogramOp::frequency,
                    WholeNumber<int64_t>(0, kMelsMax),
                    "the widest band of filters")
          .Optional("times", &MaskSpectrogramOp::times,
                    WholeNumber<int64_t>(0, kBandsMax), "bands of frames")
          .Optional("frequencies", &MaskSpectrogramOp::frequencies,
                    WholeNumber<int64_t>(0, kBandsMax), "bands of filters")
          .Optional("share", &MaskSpectrogramOp::share, Number(0, 1),
                    "the most of a row's frames that one band takes")
          .Optional("value", &MaskSpectrogramOp::value,
                    Number(-kValueMax, kValueMax), "what they become");
  return declared;
}

Status MaskSpectrogramOp::AddToRow(RowBuilder* row) const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<PathBuilder*> found,
                            row->FindAll(feature));
  for (PathBuilder* const path : found) {
    const Feature made = path->feature();
    PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
    if (made.dtype != DType::kFloat32 || made.shape.size() != 2) {
      return InvalidArgumentError(
          "wants float32 [frames, mels], found {}; mel_spectrogram makes it",
          made.ToString());
    }
    const std::vector<PathBuilder*> taken = row->WithLength(path);
    ElementSpec put = {made};
    if (taken.size() > 1) put.push_back(taken[1]->feature());
    PENSTOCK_RETURN_IF_ERROR(row->AddStep(
        taken, put,
        std::make_unique<MaskStage>(*this, made, row->opening()->step)));
  }
  return OkStatus();
}

// ---- gain

const Declaration<GainOp>& GainOp::Declared() {
  static const auto declared =
      FeatureOp<GainOp>("gain",
                        "Makes a sound louder or less loud. It is not clipped; "
                        "`clip` does that.")
          .Gives("float32 → the same")
          .Example("{decibels: [-6, 6]}")
          .Required(
              "decibels", &GainOp::decibels,
              IntervalAround(0, -kDecibelsMax, kDecibelsMax),
              "the range, or how far it is from 0; 6 is twice the amplitude");
  return declared;
}

Status GainOp::AddTo(PathBuilder* path, uint32_t number) const {
  PENSTOCK_RETURN_IF_ERROR(path->CheckDecoded());
  const Feature sound = path->feature();
  if (sound.dtype != DType::kFloat32) {
    return InvalidArgumentError("wants float32, found {}", sound.ToString());
  }
  path->AddStage(std::make_unique<GainStage>(*this, number), sound.shape,
                 sound.dtype);
  return OkStatus();
}

}  // namespace penstock
