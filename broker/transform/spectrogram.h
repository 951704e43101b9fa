// map: mel_spectrogram, mask_spectrogram, gain. float32 [samples], a list or of
// one length -> [frames, mels], which is a list where the samples are one.
#ifndef BROKER_TRANSFORM_SPECTROGRAM_H_
#define BROKER_TRANSFORM_SPECTROGRAM_H_

#include <array>
#include <cstdint>
#include <optional>

#include "broker/transform/picture.h"

namespace penstock {

class PathBuilder;
class RowBuilder;

// Mel filters over the spectra of frames, as torchaudio's MelSpectrogram and
// librosa's melspectrogram.
struct MelSpectrogramOp {
  enum class Scale { kHtk, kSlaney };
  enum class Pad { kReflect, kZeros, kNone };
  enum class Log { kNatural, kDecibel };

  FeatureNames feature = {kDefaultSound};
  int64_t rate = 0;  // Hz
  int64_t mels = 80;
  int64_t fft = 400;              // samples of a spectrum
  int64_t hop = 160;              // between two frames
  std::optional<int64_t> window;  // samples of the Hann window; absent: fft
  double min_hz = 0;
  std::optional<double> max_hz;  // absent: half the rate
  double power = 2;
  Scale scale = Scale::kHtk;
  bool equal_area = false;  // Slaney's norm
  Pad pad = Pad::kReflect;  // half a spectrum at both ends
  std::optional<Log> log;
  double floor = 1e-10;  // of the logarithm
  bool operator==(const MelSpectrogramOp&) const = default;

  static const Declaration<MelSpectrogramOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

// Park et al., "SpecAugment", 2019: bands of frames and of mels become `value`.
// Draws, in turn: width and begin of each band, those of time first.
struct MaskSpectrogramOp {
  FeatureNames feature = {kDefaultSound};
  int64_t time = 0;  // the widest band; a width is uniform in [0, time]
  int64_t frequency = 0;
  int64_t times = 1;  // how many bands
  int64_t frequencies = 1;
  double share = 1;  // of the frames, the most that one band takes
  double value = 0;
  bool operator==(const MaskSpectrogramOp&) const = default;

  static const Declaration<MaskSpectrogramOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

// Louder, or less loud: draw 0.
struct GainOp {
  FeatureNames feature = {kDefaultSound};
  std::array<double, 2> decibels = {0, 0};
  bool operator==(const GainOp&) const = default;

  static const Declaration<GainOp>& Declared();
  Status AddTo(PathBuilder* path, uint32_t number) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_SPECTROGRAM_H_
