// map: decode_audio. An encoded sound -> float32 [samples] or [samples,
// channels], a list: how many samples a row has is NAME.length.
#ifndef BROKER_TRANSFORM_DECODE_AUDIO_H_
#define BROKER_TRANSFORM_DECODE_AUDIO_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "broker/transform/picture.h"
#include "common/status.h"

namespace penstock {

class RowBuilder;

// The part that is used is chosen in the samples of the file and resampled
// alone: what is beside it does not count.
struct DecodeAudioOp {
  // kRandom: draw 0, uniform; sounds of one length of one row have one part.
  enum class Crop { kStart, kCenter, kRandom };

  FeatureNames feature = {kDefaultSound};
  int64_t rate = 0;                 // Hz, of the result
  double seconds = 0;               // the room
  bool mono = false;                // the mean of the channels
  std::optional<int64_t> channels;  // unless mono: what each file has
  std::optional<Crop> crop;         // absent: a longer file is an error
  bool operator==(const DecodeAudioOp&) const = default;

  static const Declaration<DecodeAudioOp>& Declared();
  Status AddToRow(RowBuilder* row) const;
};

// What op makes of a file: room samples of each channel, of which so many are
// the sound's, as it returns, and the rest zeros. draws: as Crop says. Errors
// are DataLoss.
StatusOr<int64_t> DecodeSound(const DecodeAudioOp& op,
                              std::span<const std::byte> file, int64_t room,
                              const AugmentationDraws& draws, float* out);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_DECODE_AUDIO_H_
