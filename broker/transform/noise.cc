#include "broker/transform/noise.h"

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "broker/base/mutex.h"
#include "broker/transform/decode_audio.h"
#include "broker/transform/op_declaration.h"
#include "broker/transform/row_builder.h"
#include "broker/transform/sound_file.h"
#include "broker/transform/values.h"
#include "common/layout.h"

namespace penstock {
namespace {

// Each keeps a descriptor (DataFile).
constexpr size_t kNoisesMax = 4096;
constexpr uint64_t kNoiseBytesMax = uint64_t{4} << 30;
constexpr double kDecibelsMax = 120;

struct Noise {
  std::string path;
  std::string file;  // its bytes
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(file));
  }
};
using Noises = std::vector<Noise>;

// One copy for all jobs and parts.
struct OpenNoises {
  Mutex mutex;
  std::map<std::string, std::weak_ptr<const Noises>> by_content
      ABSL_GUARDED_BY(mutex);
};
std::shared_ptr<const Noises> Shared(const std::string& content,
                                     std::shared_ptr<const Noises> noises) {
  static OpenNoises open;
  MutexLock lock(&open.mutex);
  std::erase_if(open.by_content,
                [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<const Noises>& known = open.by_content[content];
  if (auto before = known.lock()) return before;
  known = noises;
  return noises;
}

Status CheckNoise(const Noise& noise) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<SoundFile> sound,
                            SoundFile::Open(noise.bytes()));
  if (sound->frames().value_or(0) > 0) return OkStatus();
  return InvalidArgumentError(
      "its header does not say how long it is, or says 0: write it anew");
}

// As they are stored: decoded, they would take several times the memory, and a
// row needs a part of one.
StatusOr<std::shared_ptr<const Noises>> ReadNoises(const FilePatterns& files,
                                                   MapOpening* opening) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                            files.Expand(*opening->progress->access));
  if (paths.size() > kNoisesMax) {
    return InvalidArgumentError("files: {} noises; at most {}", paths.size(),
                                kNoisesMax);
  }
  auto noises = std::make_shared<Noises>();
  std::string content;  // and the paths, for messages
  uint64_t left = kNoiseBytesMax;
  for (const std::string& path : paths) {
    const MapFileKind kind = {
        .name = "noise", .bytes_max = left, .stays = true};
    PENSTOCK_ASSIGN_OR_RETURN(std::string file,
                              ReadMapFile(path, kind, opening));
    left -= file.size();
    content += Format("{} {}\n", opening->files.back()->digest(), path);
    noises->push_back({path, std::move(file)});
    PENSTOCK_RETURN_IF_ERROR(CheckNoise(noises->back()).Prepend(path));
  }
  return Shared(content, std::move(noises));
}

// Eight sums: one alone waits for each addition, and takes 2.4 times as long.
double Energy(std::span<const float> samples) {
  std::array<double, 8> sums = {};
  const size_t whole = samples.size() / sums.size() * sums.size();
  for (size_t i = 0; i < whole; i += sums.size()) {
    for (size_t lane = 0; lane < sums.size(); ++lane) {
      const double sample = samples[i + lane];
      sums[lane] += sample * sample;
    }
  }
  for (size_t i = whole; i < samples.size(); ++i) {
    sums[i - whole] += static_cast<double>(samples[i]) * samples[i];
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

class NoiseStage final : public RowStage {
 public:
  NoiseStage(const NoiseOp& op, std::shared_ptr<const Noises> noises,
             Feature sound, uint32_t number)
      : op_(op),
        noises_(std::move(noises)),
        sound_(std::move(sound)),
        number_(number) {
    part_.rate = op.rate;
    part_.mono = true;
    part_.crop = DecodeAudioOp::Crop::kRandom;
  }

  Status Run(std::span<const std::span<const std::byte>> in,
             const AugmentationKey& key,
             std::span<std::byte* const> out) const override {
    std::memcpy(out[0], in[0].data(), in[0].size());
    int64_t length = sound_.shape[0];
    if (in.size() > 1) {
      PENSTOCK_ASSIGN_OR_RETURN(length, ItemsOf(sound_.name, length, in[1]));
      std::memcpy(out[1], in[1].data(), in[1].size());
    }
    const AugmentationDraws draws(key, number_);
    if (length == 0 || draws.Uniform(1) >= op_.probability) return OkStatus();
    const Noise& noise = (*noises_)[static_cast<size_t>(
        draws.Choice(2, static_cast<int64_t>(noises_->size())))];
    // Each worker keeps its memory.
    thread_local std::vector<float> memory;
    const auto room = static_cast<size_t>(length);
    memory.resize(2 * room);
    const std::span<float> samples = std::span(memory).first(room);
    const std::span<float> added = std::span(memory).last(room);
    std::memcpy(samples.data(), in[0].data(), samples.size_bytes());
    StatusOr<int64_t> found =
        DecodeSound(part_, noise.bytes(), length, draws, added.data());
    if (!found.ok()) return found.status().Prepend(noise.path);
    for (auto i = static_cast<size_t>(*found); i < added.size(); ++i) {
      added[i] = added[i - static_cast<size_t>(*found)];
    }
    const double energy = Energy(added);
    // No factor makes silence heard.
    if (energy == 0) return OkStatus();
    const double factor =
        std::sqrt(Energy(samples) / energy *
                  std::pow(10, -draws.Within(3, op_.snr) / 10));
    for (size_t i = 0; i < samples.size(); ++i) {
      Store(static_cast<float>(samples[i] + factor * added[i]),
            out[0] + i * sizeof(float));
    }
    return OkStatus();
  }

 private:
  const NoiseOp op_;
  const std::shared_ptr<const Noises> noises_;
  const Feature sound_;
  const uint32_t number_;
  DecodeAudioOp part_;
};

}  // namespace

const Declaration<NoiseOp>& NoiseOp::Declared() {
  static const auto declared =
      FeatureOp<NoiseOp>("noise",
                         "Adds a random part of a recorded noise at a random "
                         "ratio, as torchaudio's add_noise. It is mono, and "
                         "repeated if it is shorter than the sound.")
          .Gives("float32 [samples] → the same")
          .Example("{files: noise/*.wav, rate: 16000, snr: [0, 20]}")
          .Required("files", &NoiseOp::files, Files(),
                    Format("{}; at most {} files, kept in memory as they are",
                           kFilesText, kNoisesMax))
          .Required("rate", &NoiseOp::rate,
                    WholeNumber<int64_t>(kSoundRateMin, kSoundRateMax),
                    "samples a second of the sound; noise of another rate is "
                    "resampled")
          .Required("snr", &NoiseOp::snr, Interval(-kDecibelsMax, kDecibelsMax),
                    "decibels that the sound is louder than the noise")
          .Optional("probability", &NoiseOp::probability, Number(0, 1),
                    "that of adding any");
  return declared;
}

Status NoiseOp::AddToRow(RowBuilder* row) const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<PathBuilder*> found,
                            row->FindAll(feature));
  for (const PathBuilder* each : found) {
    PENSTOCK_RETURN_IF_ERROR(each->CheckSound(rate));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const Noises> noises,
                            ReadNoises(files, row->opening()));
  for (PathBuilder* const path : found) {
    const std::vector<PathBuilder*> taken = row->WithLength(path);
    ElementSpec made;
    for (const PathBuilder* each : taken) made.push_back(each->feature());
    PENSTOCK_RETURN_IF_ERROR(
        row->AddStep(taken, made,
                     std::make_unique<NoiseStage>(*this, noises, made[0],
                                                  row->opening()->step)));
  }
  return OkStatus();
}

}  // namespace penstock
