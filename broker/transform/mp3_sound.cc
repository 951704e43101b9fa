// MP3 by libmpg123 itself: libsndfile, which asks it too, lets it print what it
// thinks of damaged files.
#include <mpg123.h>

#include "broker/transform/sound_file.h"
#include "broker/transform/sound_memory.h"

namespace penstock {
namespace {

struct Deleter {
  void operator()(mpg123_handle* handle) const { mpg123_delete(handle); }
};

class Mp3Sound final : public SoundFile {
 public:
  explicit Mp3Sound(std::span<const std::byte> bytes) : memory_(bytes) {}

  Status Open() {
    int error = MPG123_OK;
    handle_.reset(mpg123_new(nullptr, &error));
    if (handle_ == nullptr) {
      return ResourceExhaustedError("libmpg123: {}",
                                    mpg123_plain_strerror(error));
    }
    mpg123_handle* const handle = handle_.get();
    const auto read = [](void* memory, void* out, size_t count) -> ssize_t {
      return static_cast<SoundMemory*>(memory)->Read(
          out, static_cast<int64_t>(count));
    };
    const auto seek = [](void* memory, off_t offset, int whence) -> off_t {
      return static_cast<SoundMemory*>(memory)->Seek(offset, whence);
    };
    // The scan counts the frames: what a header says of them does not count.
    if (mpg123_param(handle, MPG123_ADD_FLAGS,
                     MPG123_QUIET | MPG123_FORCE_FLOAT, 0) != MPG123_OK ||
        mpg123_replace_reader_handle(handle, read, seek, nullptr) !=
            MPG123_OK ||
        mpg123_open_handle(handle, &memory_) != MPG123_OK ||
        mpg123_scan(handle) != MPG123_OK ||
        mpg123_getformat(handle, &rate_, &channels_, &encoding_) != MPG123_OK) {
      return Damaged();
    }
    frames_ = mpg123_length(handle);
    return CheckForm();
  }

  int64_t rate() const override { return rate_; }
  int64_t channels() const override { return channels_; }
  std::optional<int64_t> frames() const override { return frames_; }

  // What a frame decodes to depends on those before it.
  Status SkipTo(int64_t frame) override { return Pass(frame); }

  StatusOr<int64_t> Read(int64_t frames, float* out) override {
    const int64_t frame_bytes = channels_ * int64_t{sizeof(float)};
    size_t bytes = 0;
    while (true) {
      const int result =
          mpg123_read(handle_.get(), out,
                      static_cast<size_t>(frames * frame_bytes), &bytes);
      if (result == MPG123_NEW_FORMAT && bytes == 0) {
        PENSTOCK_RETURN_IF_ERROR(CheckUnchanged());
        continue;
      }
      if (result != MPG123_OK && result != MPG123_DONE &&
          result != MPG123_NEW_FORMAT) {
        return Damaged();
      }
      return static_cast<int64_t>(bytes) / frame_bytes;
    }
  }

 private:
  Status Damaged() const {
    return DataLossError("a damaged MP3: {}", mpg123_strerror(handle_.get()));
  }
  Status CheckUnchanged() const {
    long rate = 0;
    int channels = 0;
    int encoding = 0;
    if (mpg123_getformat(handle_.get(), &rate, &channels, &encoding) ==
            MPG123_OK &&
        rate == rate_ && channels == channels_ && encoding == encoding_) {
      return OkStatus();
    }
    return DataLossError("an MP3 whose rate or channels change within it");
  }

  SoundMemory memory_;
  std::unique_ptr<mpg123_handle, Deleter> handle_;
  long rate_ = 0;
  int channels_ = 0;
  int encoding_ = 0;
  int64_t frames_ = 0;
};

}  // namespace

StatusOr<std::unique_ptr<SoundFile>> OpenMp3(std::span<const std::byte> file) {
  auto sound = std::make_unique<Mp3Sound>(file);
  PENSTOCK_RETURN_IF_ERROR(sound->Open());
  return std::unique_ptr<SoundFile>(std::move(sound));
}

}  // namespace penstock
