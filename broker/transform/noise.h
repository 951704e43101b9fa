// map: noise. float32 [samples], a list or of one length -> the same, with a
// part of a recorded noise added.
#ifndef BROKER_TRANSFORM_NOISE_H_
#define BROKER_TRANSFORM_NOISE_H_

#include <cstdint>

#include "broker/index/file_patterns.h"
#include "broker/transform/picture.h"

namespace penstock {

class RowBuilder;

// As torchaudio's add_noise: the energy of the row's samples over that of the
// noise's part is the ratio. Draws: 0 as decode_audio's, the place of the part;
// 1: whether to add some; 2: which file; 3: the ratio.
struct NoiseOp {
  FeatureNames feature = {kDefaultSound};
  FilePatterns files;
  int64_t rate = 0;    // Hz, of the sound
  Range snr = {0, 0};  // dB
  double probability = 1;
  bool operator==(const NoiseOp&) const = default;

  static const Declaration<NoiseOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

}  // namespace penstock
#endif  // BROKER_TRANSFORM_NOISE_H_
