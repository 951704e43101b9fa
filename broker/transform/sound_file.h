// A sound file to samples, from memory: what libsndfile reads, and MP3.
// Untrusted input: what its header says is checked before it counts.
#ifndef BROKER_TRANSFORM_SOUND_FILE_H_
#define BROKER_TRANSFORM_SOUND_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/status.h"

namespace penstock {

// Rates of the file and of the result: no resampling by more than 768.
inline constexpr int64_t kSoundRateMin = 1000;
inline constexpr int64_t kSoundRateMax = 768'000;
inline constexpr int64_t kSoundChannelsMax = 64;

// Not thread-safe. Errors are DataLoss: the file is bad.
class SoundFile {
 public:
  // file: outlives it.
  static StatusOr<std::unique_ptr<SoundFile>> Open(
      std::span<const std::byte> file);
  virtual ~SoundFile() = default;

  virtual int64_t rate() const = 0;
  virtual int64_t channels() const = 0;
  // As the header says, or the pages; a file may have fewer. nullopt: it does
  // not say.
  virtual std::optional<int64_t> frames() const = 0;

  // Called before Read. Seeks where the same samples follow as without.
  virtual Status SkipTo(int64_t frame) = 0;
  // A sample of each channel is a frame: the next ones, interleaved, up to
  // `frames`. Fewer than that: the file has ended.
  virtual StatusOr<int64_t> Read(int64_t frames, float* out) = 0;

 protected:
  // What the header says.
  Status CheckForm() const;
  // Reads so many frames for nothing.
  Status Pass(int64_t frames);
};

StatusOr<std::unique_ptr<SoundFile>> OpenMp3(std::span<const std::byte> file);

}  // namespace penstock
#endif  // BROKER_TRANSFORM_SOUND_FILE_H_
