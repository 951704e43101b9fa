#include "broker/transform/sound_file.h"

#include <ogg/ogg.h>
#include <sndfile.h>
#include <vorbis/codec.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "broker/transform/sound_memory.h"

namespace penstock {
namespace {

// What is decoded only to be passed over: some seconds of work at most.
constexpr int64_t kPassedValuesMax = int64_t{1} << 30;
constexpr int64_t kPassedAtOnce = 4096;  // values

uint32_t ByteAt(std::string_view text, size_t at) {
  return static_cast<unsigned char>(text[at]);
}

uint32_t LittleEndian(std::string_view text, size_t at) {
  return ByteAt(text, at) | ByteAt(text, at + 1) << 8 |
         ByteAt(text, at + 2) << 16 | ByteAt(text, at + 3) << 24;
}

// libsndfile takes a WAV file that was cut off for a shorter one.
Status CheckWhole(std::string_view file) {
  constexpr size_t kHeader = 8;  // of a chunk: its name and size
  // Writers into pipes, which do not know their size, say such ones.
  constexpr uint32_t kUnknown = 0x7fff'0000;
  if (!file.starts_with("RIFF") || file.size() < 12 ||
      file.substr(8, 4) != "WAVE") {
    return OkStatus();
  }
  for (uint64_t at = 12; at + kHeader <= file.size();) {
    const uint64_t bytes = LittleEndian(file, at + 4);
    const uint64_t left = file.size() - at - kHeader;
    if (file.substr(at, 4) == "data") {
      if (bytes <= left || bytes >= kUnknown) return OkStatus();
      return DataLossError(
          "truncated: its samples have {} bytes, of which {} are there", bytes,
          left);
    }
    at += kHeader + bytes + bytes % 2;
  }
  return OkStatus();
}

// Frames of MPEG audio, perhaps behind ID3 tags. libsndfile sees no more of
// them.
bool IsMp3(std::string_view file) {
  constexpr size_t kTagHeader = 10;
  while (file.starts_with("ID3") && file.size() >= kTagHeader) {
    uint64_t bytes = kTagHeader;
    for (size_t i = 6; i < kTagHeader; ++i) {
      bytes += uint64_t{ByteAt(file, i) & 127} << 7 * (9 - i);
    }
    file.remove_prefix(std::min<uint64_t>(bytes, file.size()));
  }
  return file.size() >= 2 && ByteAt(file, 0) == 0xff && ByteAt(file, 1) >= 0xe0;
}

// The headers of an Ogg Vorbis file.
class VorbisHeaders {
 public:
  VorbisHeaders() {
    ogg_sync_init(&sync_);
    vorbis_info_init(&info_);
    vorbis_comment_init(&comment_);
  }
  ~VorbisHeaders() {
    vorbis_comment_clear(&comment_);
    vorbis_info_clear(&info_);
    if (has_stream_) ogg_stream_clear(&stream_);
    ogg_sync_clear(&sync_);
  }
  VorbisHeaders(const VorbisHeaders&) = delete;
  VorbisHeaders& operator=(const VorbisHeaders&) = delete;

  bool AreSound(std::string_view file) {
    constexpr size_t kBlock = size_t{1} << 16;
    for (int headers = 0; headers < 3;) {
      ogg_packet packet;
      if (has_stream_) {
        const int found = ogg_stream_packetout(&stream_, &packet);
        if (found < 0) return false;
        if (found > 0) {
          if (vorbis_synthesis_headerin(&info_, &comment_, &packet) != 0) {
            return false;
          }
          ++headers;
          continue;
        }
      }
      ogg_page page;
      const int found = ogg_sync_pageout(&sync_, &page);
      if (found < 0) return false;
      if (found > 0) {
        if (!has_stream_) {
          if (ogg_stream_init(&stream_, ogg_page_serialno(&page)) != 0) {
            return false;
          }
          has_stream_ = true;
        }
        // Pages of other streams are none of it.
        (void)ogg_stream_pagein(&stream_, &page);
        continue;
      }
      const size_t bytes = std::min(kBlock, file.size());
      char* const buffer = ogg_sync_buffer(
          &sync_, static_cast<long>(std::max(bytes, size_t{1})));
      if (bytes == 0 || buffer == nullptr) return false;
      file.copy(buffer, bytes);
      file.remove_prefix(bytes);
      ogg_sync_wrote(&sync_, static_cast<long>(bytes));
    }
    return true;
  }

 private:
  ogg_sync_state sync_;
  ogg_stream_state stream_;
  bool has_stream_ = false;
  vorbis_info info_;
  vorbis_comment comment_;
};

// libsndfile 1.2 leaks 6 KB of each Ogg Vorbis file whose headers are damaged.
bool HasBadVorbisHeaders(std::string_view file) {
  constexpr size_t kPageHeaderMax = 27 + 255;
  return file.starts_with("OggS") &&
         file.substr(0, kPageHeaderMax + 7).find("vorbis") != file.npos &&
         !VorbisHeaders().AreSound(file);
}

struct Closer {
  void operator()(SNDFILE* file) const { sf_close(file); }
};

class SndfileSound final : public SoundFile {
 public:
  explicit SndfileSound(std::span<const std::byte> bytes) : memory_(bytes) {}

  Status Open() {
    SF_VIRTUAL_IO io = {
        .get_filelen = [](void* of) -> sf_count_t { return Of(of).size(); },
        .seek = [](sf_count_t offset, int whence, void* of) -> sf_count_t {
          return Of(of).Seek(offset, whence);
        },
        .read = [](void* out, sf_count_t count, void* of) -> sf_count_t {
          return Of(of).Read(out, count);
        },
        .write = [](const void*, sf_count_t, void*) { return sf_count_t{0}; },
        .tell = [](void* of) -> sf_count_t { return Of(of).at(); }};
    file_.reset(sf_open_virtual(&io, SFM_READ, &info_, &memory_));
    if (file_ == nullptr) {
      // libsndfile keeps its reason for the whole process: it may be that of
      // another worker's file.
      return DataLossError(
          "not a WAV, FLAC, MP3, Ogg Vorbis, Opus, AIFF or other sound file "
          "that libsndfile reads, or its header is damaged");
    }
    return CheckForm();
  }

  int64_t rate() const override { return info_.samplerate; }
  int64_t channels() const override { return info_.channels; }
  std::optional<int64_t> frames() const override {
    return info_.frames == SF_COUNT_MAX ? std::nullopt
                                        : std::optional<int64_t>(info_.frames);
  }

  Status SkipTo(int64_t frame) override {
    // What Opus decodes depends on what was before.
    if (info_.seekable == 0 ||
        (info_.format & SF_FORMAT_SUBMASK) == SF_FORMAT_OPUS) {
      return Pass(frame);
    }
    if (frame == 0 || sf_seek(file_.get(), frame, SEEK_SET) == frame) {
      return OkStatus();
    }
    return DataLossError("no sample {}, though its header says it has {}",
                         frame, info_.frames);
  }

  StatusOr<int64_t> Read(int64_t frames, float* out) override {
    const sf_count_t read = sf_readf_float(file_.get(), out, frames);
    if (const int error = sf_error(file_.get()); error != SF_ERR_NO_ERROR) {
      return DataLossError("damaged: {}", sf_error_number(error));
    }
    return read;
  }

 private:
  static SoundMemory& Of(void* memory) {
    return *static_cast<SoundMemory*>(memory);
  }

  SoundMemory memory_;
  SF_INFO info_ = {};
  std::unique_ptr<SNDFILE, Closer> file_;
};

}  // namespace

StatusOr<std::unique_ptr<SoundFile>> SoundFile::Open(
    std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()),
                              file.size());
  if (IsMp3(text)) return OpenMp3(file);
  if (HasBadVorbisHeaders(text)) {
    return DataLossError("an Ogg Vorbis file whose headers are damaged");
  }
  auto sound = std::make_unique<SndfileSound>(file);
  PENSTOCK_RETURN_IF_ERROR(sound->Open());
  PENSTOCK_RETURN_IF_ERROR(CheckWhole(text));
  return std::unique_ptr<SoundFile>(std::move(sound));
}

Status SoundFile::CheckForm() const {
  if (channels() < 1 || channels() > kSoundChannelsMax) {
    return DataLossError("{} channels; at most {}", channels(),
                         kSoundChannelsMax);
  }
  if (rate() < kSoundRateMin || rate() > kSoundRateMax) {
    return DataLossError("a rate of {} Hz; wanted {} to {}", rate(),
                         kSoundRateMin, kSoundRateMax);
  }
  if (frames().value_or(1) <= 0) return DataLossError("a sound of 0 samples");
  return OkStatus();
}

Status SoundFile::Pass(int64_t frames) {
  if (frames > kPassedValuesMax / channels()) {
    return DataLossError(
        "sample {} of a file that has to be decoded from its start; at most {} "
        "may be before it (`crop: start` takes none)",
        frames, kPassedValuesMax / channels());
  }
  std::vector<float> passed(kPassedAtOnce);
  while (frames > 0) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const int64_t read,
        Read(std::min(frames, kPassedAtOnce / channels()), passed.data()));
    if (read == 0) return DataLossError("it ends before its header says");
    frames -= read;
  }
  return OkStatus();
}

}  // namespace penstock
