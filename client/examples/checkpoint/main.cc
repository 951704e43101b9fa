// Checkpoint and resume: a trainer that may be killed at any moment and
// restarted with another number of ranks, and gets the same result.
//
//   penstock run --dataset numbers.yaml --ranks 4 -- ./checkpoint ckpt
//   (kill it)
//   penstock run --dataset numbers.yaml --ranks 3 -- ./checkpoint ckpt
//
// It "trains" a checksum over all samples of all epochs, each with its epoch
// and its global step: a sample that is lost, comes twice or comes in another
// step changes it. Each rank keeps its own part. A checkpoint is a folder with
// the parts of all ranks at one step, complete with the last file.
//
// Penstock adds two things: reader.state() next to the model's parameters, and
// options.state at the start. The rest is any trainer's.
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "penstock.hpp"

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kStepsBetweenCheckpoints = 10;

struct Model {
  uint64_t checksum = 0;
  uint64_t samples = 0;

  void Train(const penstock::Batch& batch) {
    for (const int64_t id : batch.ids()) {
      // splitmix64 of (sample, epoch, step): sums are the same in any order.
      uint64_t x = static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15 +
                   batch.epoch() * 0xbf58476d1ce4e5b9 +
                   batch.step() * 0x94d049bb133111eb;
      x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
      x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
      checksum += x ^ (x >> 31);
      ++samples;
    }
  }
};

// DIR/000000000040-of-4/2: rank 2 of 4 after 40 steps.
fs::path FolderOf(const fs::path& directory, uint64_t steps, int world_size) {
  char name[64];
  std::snprintf(name, sizeof(name), "%012llu-of-%d",
                static_cast<unsigned long long>(steps), world_size);
  return directory / name;
}

void Save(const fs::path& folder, int rank, const Model& model, uint64_t steps,
          const std::string& state) {
  fs::create_directories(folder);
  const fs::path part = folder / (std::to_string(rank) + ".part");
  {
    std::ofstream file(part);
    file << model.checksum << ' ' << model.samples << ' ' << steps << '\n'
         << state << '\n';
    if (!file.flush()) throw std::runtime_error("write " + part.string());
  }
  // The file appears whole or not at all.
  fs::rename(part, folder / std::to_string(rank));
}

struct Checkpoint {
  Model model;  // sum over all ranks
  uint64_t steps = 0;
  std::string state;
};

// The newest checkpoint with the parts of all ranks.
std::optional<Checkpoint> LoadNewest(const fs::path& directory) {
  std::optional<Checkpoint> newest;
  if (!fs::exists(directory)) return newest;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    const size_t of = name.find("-of-");
    if (of == std::string::npos) continue;
    const int world_size = std::stoi(name.substr(of + 4));
    Checkpoint checkpoint;
    int parts = 0;
    for (; parts < world_size; ++parts) {
      std::ifstream file(entry.path() / std::to_string(parts));
      Model part;
      if (!(file >> part.checksum >> part.samples >> checkpoint.steps)) break;
      file.ignore(1);
      // Every rank wrote the same state.
      std::getline(file, checkpoint.state);
      checkpoint.model.checksum += part.checksum;
      checkpoint.model.samples += part.samples;
    }
    if (parts == world_size && (!newest || checkpoint.steps > newest->steps)) {
      newest = checkpoint;
    }
  }
  return newest;
}

int Run(const fs::path& directory, uint64_t die_after) {
  penstock::Options options;  // rank, world size, dataset: from the launcher
  const std::optional<Checkpoint> checkpoint = LoadNewest(directory);
  if (checkpoint) options.state = checkpoint->state;
  penstock::Reader reader(options);

  Model model;
  uint64_t steps = 0;
  if (checkpoint) {
    steps = checkpoint->steps;
    // One rank starts with the sum of the former ranks' parts.
    if (reader.rank() == 0) model = checkpoint->model;
  }
  for (penstock::Epoch epoch : reader.epochs()) {
    for (penstock::Batch& batch : epoch) {
      model.Train(batch);
      ++steps;
      batch.release();
      if (steps % kStepsBetweenCheckpoints == 0) {
        Save(FolderOf(directory, steps, reader.world_size()), reader.rank(),
             model, steps, reader.state());
      }
      if (steps == die_after) raise(SIGKILL);
    }
  }
  Save(FolderOf(directory, steps, reader.world_size()), reader.rank(), model,
       steps, reader.state());
  return 0;
}

// Prints the result, after the last rank has ended.
int Print(const fs::path& directory) {
  const std::optional<Checkpoint> checkpoint = LoadNewest(directory);
  if (!checkpoint) {
    std::fprintf(stderr, "checkpoint: none in '%s'\n", directory.c_str());
    return 1;
  }
  std::printf("steps %llu samples %llu checksum %016llx\n",
              static_cast<unsigned long long>(checkpoint->steps),
              static_cast<unsigned long long>(checkpoint->model.samples),
              static_cast<unsigned long long>(checkpoint->model.checksum));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string second = argc > 2 ? argv[2] : "";
  if (argc < 2 || argc > 4 || (argc == 4 && second != "--die-after") ||
      (argc == 3 && second != "--print")) {
    std::fprintf(
        stderr,
        "checkpoint DIR [--die-after STEPS] | checkpoint DIR --print\n"
        "Run it with `penstock run --dataset SPEC --ranks N -- ...`.\n");
    return 2;
  }
  try {
    if (second == "--print") return Print(argv[1]);
    return Run(argv[1], argc == 4 ? std::stoull(argv[3]) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint: %s\n", error.what());
    return 1;
  }
}
