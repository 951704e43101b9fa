// Promise: sound files of every format give the samples that were written,
// resampled within 19 bits and 0.01 dB, the part that the step says, and what
// is damaged, hostile or too long becomes an error of its sample that says why,
// in bounded memory and without a word on the terminal. Method: files that
// libsndfile writes here, cut at many bytes and changed by hand.
#include "broker/transform/decode_audio.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sndfile.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "broker/transform/draws.h"
#include "broker/transform/feature_paths.h"
#include "common/layout.h"

namespace penstock::decode_audio_test {

using testing::HasSubstr;
using Crop = DecodeAudioOp::Crop;

struct Kind {
  const char* name;
  int format;
  int rate;
};
constexpr Kind kWav = {"wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000};
constexpr Kind kFlac = {"flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 16000};
constexpr Kind kFormats[] = {
    kWav,
    kFlac,
    {"float wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000},
    {"vorbis", SF_FORMAT_OGG | SF_FORMAT_VORBIS, 16000},
    {"opus", SF_FORMAT_OGG | SF_FORMAT_OPUS, 16000},
    {"mp3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 16000},
    {"aiff", SF_FORMAT_AIFF | SF_FORMAT_PCM_24, 16000},
    {"u-law", SF_FORMAT_AU | SF_FORMAT_ULAW, 16000},
    {"adpcm", SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM, 16000},
    {"gsm", SF_FORMAT_WAV | SF_FORMAT_GSM610, 8000}};

// Interleaved: a sine of another frequency in each channel, in steps of 2^-15.
std::vector<float> Waves(int64_t frames, int64_t channels, int64_t rate,
                         double hertz = 440) {
  std::vector<float> values;
  for (int64_t i = 0; i < frames; ++i) {
    for (int64_t c = 0; c < channels; ++c) {
      const double turn =
          hertz * static_cast<double>((c + 1) * i) / static_cast<double>(rate);
      values.push_back(static_cast<float>(
          std::round(std::sin(2 * std::numbers::pi * turn) * 16000) / 32768));
    }
  }
  return values;
}

struct Memory {
  std::string bytes;
  size_t at = 0;
};

std::string Encode(const Kind& format, std::span<const float> values,
                   int channels = 1) {
  SF_VIRTUAL_IO io = {
      [](void* of) {
        return static_cast<sf_count_t>(static_cast<Memory*>(of)->bytes.size());
      },
      [](sf_count_t offset, int whence, void* of) {
        auto& memory = *static_cast<Memory*>(of);
        const size_t base = whence == SEEK_SET   ? 0
                            : whence == SEEK_CUR ? memory.at
                                                 : memory.bytes.size();
        memory.at = base + static_cast<size_t>(offset);
        return static_cast<sf_count_t>(memory.at);
      },
      [](void* out, sf_count_t count, void* of) {
        auto& memory = *static_cast<Memory*>(of);
        const size_t read = memory.bytes.copy(
            static_cast<char*>(out), static_cast<size_t>(count), memory.at);
        memory.at += read;
        return static_cast<sf_count_t>(read);
      },
      [](const void* in, sf_count_t count, void* of) {
        auto& memory = *static_cast<Memory*>(of);
        const auto size = static_cast<size_t>(count);
        if (memory.bytes.size() < memory.at + size) {
          memory.bytes.resize(memory.at + size);
        }
        memory.bytes.replace(memory.at, size, static_cast<const char*>(in),
                             size);
        memory.at += size;
        return count;
      },
      [](void* of) {
        return static_cast<sf_count_t>(static_cast<Memory*>(of)->at);
      }};
  Memory memory;
  SF_INFO info = {};
  info.samplerate = format.rate;
  info.channels = channels;
  info.format = format.format;
  SNDFILE* const file = sf_open_virtual(&io, SFM_WRITE, &info, &memory);
  EXPECT_NE(file, nullptr) << format.name << ": " << sf_strerror(nullptr);
  if (file == nullptr) return "";
  const auto count = static_cast<sf_count_t>(values.size());
  EXPECT_EQ(sf_write_float(file, values.data(), count), count);
  sf_close(file);
  return memory.bytes;
}

struct Row {
  std::vector<float> values;  // the room
  int64_t length = 0;
};

StatusOr<Row> RowOf(const std::string& file, const DecodeAudioOp& op,
                    const AugmentationKey& key = {}) {
  const std::vector<TransformSpec> map = {op};
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<FeaturePaths> paths,
      FeaturePaths::Compile(StepsOf(map),
                            {{{"audio", DType::kUint8, {}}, true}}));
  EXPECT_EQ(paths->out()[1].feature.ToString(), "audio.length int64 []");
  Row row;
  // What is not written would show.
  row.values.assign(paths->out()[0].feature.RowBytes() / sizeof(float), 7);
  std::byte* const out[] = {reinterpret_cast<std::byte*>(row.values.data()),
                            reinterpret_cast<std::byte*>(&row.length)};
  const auto scratch = FeaturePaths::MakeScratch();
  PENSTOCK_RETURN_IF_ERROR(
      paths->Run({std::as_bytes(std::span(file))}, key, *scratch, out));
  return row;
}

DecodeAudioOp Mono(double seconds, std::optional<Crop> crop = std::nullopt,
                   int64_t rate = 16000) {
  DecodeAudioOp op;
  op.rate = rate;
  op.seconds = seconds;
  op.mono = true;
  op.crop = crop;
  return op;
}

DecodeAudioOp Channels(int64_t channels, double seconds) {
  DecodeAudioOp op = Mono(seconds);
  op.mono = false;
  op.channels = channels;
  return op;
}

std::string ErrorOf(const std::string& file, const DecodeAudioOp& op) {
  const StatusOr<Row> row = RowOf(file, op);
  if (row.ok()) return "decoded";
  EXPECT_EQ(row.status().code(), StatusCode::kDataLoss);
  return row.status().message();
}

std::string With(std::string file, size_t at, std::string_view bytes) {
  return file.replace(at, bytes.size(), bytes);
}

TEST(DecodeAudioTest, AShorterFileIsAListOfItsSamplesAndZerosFollow) {
  const std::vector<float> wave = Waves(1000, 1, 16000);
  for (const Kind& format : {kWav, kFlac}) {
    const auto row = RowOf(Encode(format, wave), Mono(0.1));
    ASSERT_TRUE(row.ok()) << row.status().message();
    EXPECT_EQ(row->length, 1000);
    ASSERT_EQ(row->values.size(), 1600u);
    EXPECT_TRUE(std::equal(wave.begin(), wave.end(), row->values.begin()))
        << format.name;
    EXPECT_TRUE(std::all_of(row->values.begin() + 1000, row->values.end(),
                            [](float value) { return value == 0; }));
  }
}

TEST(DecodeAudioTest, ChannelsLieBesideEachOtherOrAreMixed) {
  const std::vector<float> wave = Waves(500, 2, 16000);
  const std::string file = Encode(kFlac, wave, 2);
  const auto both = RowOf(file, Channels(2, 0.1));
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both->length, 500);
  EXPECT_EQ(both->values.size(), 3200u);
  EXPECT_TRUE(std::equal(wave.begin(), wave.end(), both->values.begin()));
  const auto mono = RowOf(file, Mono(0.1));
  ASSERT_TRUE(mono.ok()) << mono.status().message();
  EXPECT_EQ(mono->length, 500);
  for (size_t i = 0; i < 500; ++i) {
    ASSERT_EQ(mono->values[i], (wave[2 * i] + wave[2 * i + 1]) / 2);
  }
  EXPECT_THAT(ErrorOf(file, Channels(1, 0.1)),
              HasSubstr("2 channels, and the step says `channels: 1`"));
}

TEST(DecodeAudioTest, ACropIsThatPartOfTheWholeInEveryFormat) {
  for (const Kind& format : kFormats) {
    const int64_t rate = format.rate;
    const std::string file = Encode(format, Waves(3 * rate, 1, rate, 97));
    const auto whole = RowOf(file, Mono(4, {}, rate));
    ASSERT_TRUE(whole.ok()) << format.name << ": " << whole.status().message();
    EXPECT_GE(whole->length, 3 * rate) << format.name;
    const int64_t room = rate / 2;
    const auto is_at = [&](const Row& row, int64_t first) {
      return std::equal(row.values.begin(), row.values.end(),
                        whole->values.begin() + first);
    };
    const auto start = RowOf(file, Mono(0.5, Crop::kStart, rate));
    ASSERT_TRUE(start.ok()) << start.status().message();
    EXPECT_EQ(start->length, room);
    EXPECT_TRUE(is_at(*start, 0)) << format.name;
    const auto center = RowOf(file, Mono(0.5, Crop::kCenter, rate));
    ASSERT_TRUE(center.ok()) << center.status().message();
    EXPECT_TRUE(is_at(*center, (whole->length - room) / 2)) << format.name;
    for (uint64_t sample = 0; sample < 20; ++sample) {
      const AugmentationKey key = {.seed = 3, .epoch = 1, .sample = sample};
      const auto random = RowOf(file, Mono(0.5, Crop::kRandom, rate), key);
      ASSERT_TRUE(random.ok()) << random.status().message();
      EXPECT_TRUE(is_at(*random, AugmentationDraws(key, 0).Choice(
                                     0, whole->length - room + 1)))
          << format.name << ", sample " << sample;
    }
  }
}

TEST(DecodeAudioTest,
     AnotherRateIsResampledWithin19BitsAndAHundredthOfADecibel) {
  for (const auto& [from, to] : std::vector<std::pair<int, int>>{
           {44100, 16000}, {8000, 16000}, {48000, 44100}, {22050, 22051}}) {
    // In the pass band of both: soxr's ends at 0.91 of the lower half rate.
    const double hertz = 0.4 * std::min(from, to);
    std::vector<float> wave;
    for (int i = 0; i < from; ++i) {
      wave.push_back(static_cast<float>(
          0.5 * std::sin(2 * std::numbers::pi * hertz * i / from)));
    }
    const Kind format = {"", SF_FORMAT_WAV | SF_FORMAT_FLOAT, from};
    const auto row = RowOf(Encode(format, wave), Mono(2, {}, to));
    ASSERT_TRUE(row.ok()) << row.status().message();
    EXPECT_EQ(row->length, to);
    // The same sine, but for its gain.
    const double turn = 2 * std::numbers::pi * hertz / to;
    const auto wanted = [&](int i) { return std::sin(turn * i); };
    const auto made = [&](int i) {
      return double{row->values[static_cast<size_t>(i)]};
    };
    double product = 0;
    double square = 0;
    for (int i = to / 4; i < to * 3 / 4; ++i) {
      product += made(i) * wanted(i);
      square += wanted(i) * wanted(i);
    }
    const double gain = product / square;
    EXPECT_LT(std::abs(20 * std::log10(gain / 0.5)), 0.01)
        << from << " to " << to;
    double worst = 0;
    for (int i = to / 4; i < to * 3 / 4; ++i) {
      worst = std::max(worst, std::abs(made(i) - gain * wanted(i)));
    }
    EXPECT_LT(worst, 0x1p-19) << from << " to " << to;
  }
}

TEST(DecodeAudioTest, APartIsResampledAlone) {
  const Kind format = {"", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 44100};
  const std::vector<float> wave = Waves(44100, 1, 44100);
  // 0.5 s of 16 kHz are 22,050 of the file's.
  const std::vector<float> part(wave.begin() + 11025, wave.end() - 11025);
  const auto alone = RowOf(Encode(format, part), Mono(0.5));
  const auto center = RowOf(Encode(format, wave), Mono(0.5, Crop::kCenter));
  ASSERT_TRUE(alone.ok() && center.ok());
  EXPECT_EQ(center->length, 8000);
  EXPECT_EQ(alone->values, center->values);
}

TEST(DecodeAudioTest, ALongerFileIsAnErrorUnlessACropIsSaid) {
  const std::string file = Encode(kWav, Waves(16001, 1, 16000));
  EXPECT_THAT(ErrorOf(file, Mono(1)),
              HasSubstr("a sound of 1.00006 seconds; at most 1 fit (`seconds`, "
                        "or `crop`)"));
  EXPECT_EQ(ErrorOf(file, Mono(1, Crop::kStart)), "decoded");
}

TEST(DecodeAudioTest, AFlacOfUnknownLengthIsReadToItsEnd) {
  std::string file = Encode(kFlac, Waves(16000, 1, 16000));
  // The last 36 bits of what STREAMINFO says in bytes 10 to 17 of its content.
  constexpr size_t kStreamInfo = 8;
  file[kStreamInfo + 13] = static_cast<char>(file[kStreamInfo + 13] & 0xf0);
  file = With(file, kStreamInfo + 14, std::string(4, '\0'));
  const auto whole = RowOf(file, Mono(1.5));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(whole->length, 16000);
  EXPECT_EQ(ErrorOf(file, Mono(1)), "decoded");
  EXPECT_EQ(ErrorOf(file, Mono(0.5, Crop::kStart)), "decoded");
  EXPECT_THAT(ErrorOf(file, Mono(0.5)), HasSubstr("more than 0.5 seconds"));
  EXPECT_THAT(ErrorOf(file, Mono(0.5, Crop::kRandom)),
              HasSubstr("does not say how long it is: `crop: start`"));
}

TEST(DecodeAudioTest, HeadersThatLieAreErrors) {
  const std::string wav = Encode(kWav, Waves(1000, 1, 16000));
  ASSERT_EQ(wav.substr(12, 4), "fmt ");
  constexpr size_t kWavChannels = 22;
  constexpr size_t kWavRate = 24;
  EXPECT_THAT(ErrorOf("", Mono(1)), HasSubstr("not a WAV, FLAC"));
  EXPECT_THAT(ErrorOf("GIF89a of no sound", Mono(1)), HasSubstr("not a WAV"));
  EXPECT_THAT(ErrorOf(Encode(kWav, {}), Mono(1)), HasSubstr("0 samples"));
  EXPECT_THAT(ErrorOf(Encode(kWav, Waves(2000, 1000, 16000), 1000), Mono(1)),
              HasSubstr("1000 channels; at most 64"));
  EXPECT_NE(ErrorOf(With(wav, kWavChannels, {"\0\0", 2}), Mono(1)), "decoded");
  EXPECT_NE(ErrorOf(With(wav, kWavRate, {"\0\0\0\0", 4}), Mono(1)), "decoded");
  EXPECT_NE(ErrorOf(With(wav, kWavRate, {"\0\0\0\x80", 4}), Mono(1)),
            "decoded");
  EXPECT_THAT(ErrorOf(With(wav, kWavRate, {"\xff\xff\xff\x7f", 4}), Mono(1)),
              HasSubstr("a rate of 2147483647 Hz; wanted 1000 to 768000"));
  // 2^36 - 1 samples, of which 1,000 are there; and 2^62 of a W64 file.
  std::string flac = Encode(kFlac, Waves(1000, 1, 16000));
  flac[8 + 13] = static_cast<char>(flac[8 + 13] | 0x0f);
  flac = With(flac, 8 + 14, "\xff\xff\xff\xff");
  for (const Crop crop : {Crop::kStart, Crop::kCenter, Crop::kRandom}) {
    EXPECT_NE(ErrorOf(flac, Mono(1, crop)), "decoded");
  }
  const Kind w64 = {"", SF_FORMAT_W64 | SF_FORMAT_PCM_16, 16000};
  std::string big = Encode(w64, Waves(1000, 1, 16000));
  const size_t data = big.find("data");
  ASSERT_NE(data, big.npos);
  big = With(big, data + 16, {"\0\0\0\0\0\0\0\x40", 8});
  for (const Crop crop : {Crop::kStart, Crop::kCenter, Crop::kRandom}) {
    const auto row = RowOf(big, Mono(1, crop));
    EXPECT_TRUE(!row.ok() || row->length <= 1000);
  }
}

TEST(DecodeAudioTest, TruncatedAndDamagedFilesAreErrorsOrShorterInSilence) {
  // What the library would print goes into a file.
  const int printed = memfd_create("printed", 0);
  const int terminal[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
  std::fflush(stdout);
  dup2(printed, STDOUT_FILENO);
  dup2(printed, STDERR_FILENO);
  std::mt19937_64 random(1);
  std::vector<std::string> wrong;
  for (const Kind& format : kFormats) {
    const std::string whole = Encode(format, Waves(9000, 1, format.rate));
    const DecodeAudioOp op = Mono(2, {}, format.rate);
    const auto right = RowOf(whole, op);
    const bool is_plain = &format == &kFormats[0] || &format == &kFormats[1];
    for (size_t bytes = 0; bytes < whole.size(); bytes += 1 + bytes / 16) {
      const auto row = RowOf(whole.substr(0, bytes), op);
      if (is_plain && row.ok()) {
        wrong.push_back(Format("{} cut at {}", format.name, bytes));
      }
      // An MP3 that lost its end does not know what only fills it up.
      constexpr int64_t kFilling = 2304;
      if (row.ok() && row->length > right->length + kFilling) {
        wrong.push_back(Format("{} at {} is longer", format.name, bytes));
      }
    }
    for (int i = 0; i < 50; ++i) {
      std::string damaged = whole;
      for (int j = 0; j < 4; ++j) {
        damaged[random() % (i % 2 == 0 ? damaged.size() : 100)] =
            static_cast<char>(random());
      }
      (void)RowOf(damaged, op);
      (void)RowOf(damaged, Mono(0.2, Crop::kRandom));
    }
  }
  std::fflush(stdout);
  dup2(terminal[0], STDOUT_FILENO);
  dup2(terminal[1], STDERR_FILENO);
  const off_t bytes = lseek(printed, 0, SEEK_END);
  std::string text(static_cast<size_t>(std::min<off_t>(bytes, 500)), '\0');
  EXPECT_GE(pread(printed, text.data(), text.size(), 0), 0);
  for (const int fd : {printed, terminal[0], terminal[1]}) close(fd);
  EXPECT_EQ(text, "");
  EXPECT_THAT(wrong, testing::IsEmpty());
}

TEST(DecodeAudioTest, OnlyARandomCropDraws) {
  EXPECT_TRUE(Draws(Mono(1, Crop::kRandom)));
  EXPECT_FALSE(Draws(Mono(1, Crop::kStart)));
  EXPECT_FALSE(Draws(Mono(1)));
}

}  // namespace penstock::decode_audio_test
