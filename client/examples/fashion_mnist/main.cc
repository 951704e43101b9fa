// A data-parallel MPI trainer: every rank computes the gradients of its rows of
// each global batch, MPI_Allreduce sums them, and every rank takes the same
// step. Penstock appears in three places: the Reader, the loop over its epochs,
// and a second Reader for the test set.
//
// It also checks what a trainer need not check, and fails if one does not hold:
// each sample exactly once per epoch, the same number of steps and the same
// weights on all ranks, and the accuracy that this network should reach.
//
//   penstock run --dataset client/examples/fashion_mnist/train.yaml
//     --ranks 0 -- mpirun -np 4 fashion_mnist
//
// Exit status: 0, or 1 when something failed or a check does not hold.
#define OMPI_SKIP_MPICXX  // the C API is enough
#include <fmt/core.h>
#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "client/examples/fashion_mnist/network.h"
#include "client/penstock.hpp"

namespace fashion_mnist {
namespace {

struct Arguments {
  std::string train = "client/examples/fashion_mnist/train.yaml";
  std::string test = "client/examples/fashion_mnist/test.yaml";
  std::string json;  // output path; empty: none
  double min_accuracy = 0.86;
  float learning_rate = 0.001f;
};

// MPI_COMM_WORLD and the collectives used here, which every rank must call in
// the same order. No call returns an error: MPI's default handler ends the job.
class World {
 public:
  World() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Sums over the ranks in place, value by value.
  void Sum(std::span<float> values) const {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), values.size(), MPI_FLOAT,
                  MPI_SUM, MPI_COMM_WORLD);
  }
  void Sum(std::span<int32_t> values) const {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), values.size(), MPI_INT32_T,
                  MPI_SUM, MPI_COMM_WORLD);
  }
  // The value of each rank, in the order of ranks.
  template <typename T>
  std::vector<T> Gather(T value) const {
    std::vector<T> values(size_);
    MPI_Allgather(&value, sizeof(T), MPI_BYTE, values.data(), sizeof(T),
                  MPI_BYTE, MPI_COMM_WORLD);
    return values;
  }
  // The text of each rank.
  std::vector<std::string> Gather(const std::string& text) const {
    const std::vector<int> bytes = Gather(static_cast<int>(text.size()));
    std::vector<int> begins(size_, 0);
    std::partial_sum(bytes.begin(), bytes.end() - 1, begins.begin() + 1);
    std::string all(begins.back() + bytes.back(), ' ');
    MPI_Allgatherv(text.data(), bytes[rank_], MPI_BYTE, all.data(),
                   bytes.data(), begins.data(), MPI_BYTE, MPI_COMM_WORLD);
    std::vector<std::string> texts;
    for (int i = 0; i < size_; ++i) {
      texts.push_back(all.substr(begins[i], bytes[i]));
    }
    return texts;
  }
  std::string host() const {
    std::array<char, MPI_MAX_PROCESSOR_NAME> name;
    int bytes = 0;
    MPI_Get_processor_name(name.data(), &bytes);
    return {name.data(), static_cast<size_t>(bytes)};
  }
  void CopyFromRank0(std::span<float> values) const {
    MPI_Bcast(values.data(), values.size(), MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
  void Wait() const { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  int rank_ = 0;
  int size_ = 1;
};

template <typename T>
T Total(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), T{});
}

// User and system time of this process.
double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Checks the output of the parent, mpirun, which gives its ranks a
// pseudo-terminal even when its own output goes to a file.
bool OnTerminal() {
  if (!isatty(STDOUT_FILENO)) return false;
  const std::string link = fmt::format("/proc/{}/fd/1", getppid());
  std::array<char, 256> target{};
  const ssize_t size = readlink(link.c_str(), target.data(), target.size());
  const std::string name(target.data(), std::max<ssize_t>(size, 0));
  return name.starts_with("/dev/pts/") || name.starts_with("/dev/tty");
}

// Output of rank 0: lines, and on a terminal a bar below them.
class Progress {
 public:
  explicit Progress(const World& world)
      : speaks_(world.rank() == 0), has_bar_(speaks_ && OnTerminal()) {}

  void Step(uint64_t epoch, uint64_t step, uint64_t steps) {
    constexpr uint64_t kWidth = 40;
    const uint64_t filled = step * kWidth / std::max<uint64_t>(steps, 1);
    if (!has_bar_ || filled == filled_) return;
    filled_ = filled;
    fmt::print("\repoch {} [{:-<40}] {}/{} steps", epoch + 1,
               std::string(filled, '#'), step, steps);
    std::fflush(stdout);
  }
  template <typename... Values>
  void Line(fmt::format_string<Values...> format, Values&&... values) {
    if (!speaks_) return;
    if (has_bar_) fmt::print("\r\33[K");
    fmt::print(format, std::forward<Values>(values)...);
    fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  bool speaks_;
  bool has_bar_;
  uint64_t filled_ = ~uint64_t{0};
};

// Counts how often each sample came in an epoch, on all ranks together.
class Roll {
 public:
  struct Tally {
    uint64_t missing = 0;
    uint64_t duplicated = 0;
  };

  explicit Roll(uint64_t samples) : times_(samples, 0) {}

  void Add(std::span<const int64_t> ids) {
    for (const int64_t id : ids) {
      if (id < 0 || static_cast<uint64_t>(id) >= times_.size()) {
        throw std::runtime_error(
            fmt::format("sample id {} in a dataset of {}", id, times_.size()));
      }
      ++times_[id];
    }
  }
  // Returns the same on every rank, and starts the next epoch's count.
  Tally Close(const World& world) {
    world.Sum(times_);
    Tally tally;
    for (int32_t& times : times_) {
      tally.missing += times == 0;
      tally.duplicated += times > 1;
      times = 0;
    }
    return tally;
  }

 private:
  std::vector<int32_t> times_;
};

// Gathered results, the same on every rank. Vectors have one value per rank.
struct Outcome {
  uint64_t epochs = 0;
  uint64_t samples_per_epoch = 0;
  Roll::Tally tally;                   // over all epochs
  double seconds = 0;                  // in the training loop
  std::vector<uint64_t> steps;         // over all epochs
  std::vector<double> wait_s;          // for input, in the training loop
  std::vector<double> cpu_s;           // user and system, in the loop
  std::vector<uint64_t> weights_hash;  // after the last step
  int64_t test_samples = 0;
  double accuracy = 0;  // on the test set

  uint64_t Samples() const { return epochs * samples_per_epoch; }
  bool SameSteps() const {
    return std::ranges::count(steps, steps[0]) == std::ssize(steps);
  }
  bool SameWeights() const {
    return std::ranges::count(weights_hash, weights_hash[0]) ==
           std::ssize(weights_hash);
  }
  bool ExactlyOnce() const {
    return tally.missing == 0 && tally.duplicated == 0;
  }
};

// The feature's values in the rows that are samples.
template <typename T>
std::span<const T> Values(const penstock::Batch& batch,
                          const std::string& feature, uint64_t values_per_row) {
  const std::span<const T> values = batch.get<T>(feature);
  if (values.size() != batch.rows() * values_per_row) {
    throw std::runtime_error(
        fmt::format("feature '{}' has {} values a row, this network takes {}",
                    feature, values.size() / batch.rows(), values_per_row));
  }
  return values.first(batch.valid_rows() * values_per_row);
}

// FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/
uint64_t Hash(std::span<const float> values) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : std::as_bytes(values)) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

// The number of the first item in which two lists differ; -1: none.
int64_t FirstDifference(const nlohmann::json& a, const nlohmann::json& b) {
  const size_t items = std::max(a.size(), b.size());
  for (size_t i = 0; i < items; ++i) {
    if (i >= a.size() || i >= b.size() || a[i] != b[i]) return i;
  }
  return -1;
}

// Brokers of several hosts do not talk to each other: their ranks compare what
// has to be the same on all. Throws on all ranks, with the first difference.
void CompareHosts(const World& world, penstock::Reader& reader) {
  if (!reader.several_hosts()) return;
  const std::vector<std::string> hosts = world.Gather(world.host());
  const std::vector<std::string> told = world.Gather(reader.fingerprint());
  const auto other = std::ranges::find_if(
      told, [&](const std::string& text) { return text != told[0]; });
  if (other == told.end()) return;
  const size_t rank = other - told.begin();
  const auto at = [](const nlohmann::json& list, int64_t i) {
    return i < static_cast<int64_t>(list.size()) ? list[i].dump() : "nothing";
  };
  // All ranks ask alike, as each step is a collective.
  nlohmann::json here = nlohmann::json::parse(told[0]);
  nlohmann::json there = nlohmann::json::parse(*other);
  int64_t i = FirstDifference(here, there);
  if (i >= 0 && here[i][0] == "data") {
    int64_t first = 0;
    for (int64_t count = int64_t{1} << 30; i >= 0; count /= 64) {
      const auto files = world.Gather(
          reader.fingerprint(fmt::format("files {} {}", first, count)));
      const char* const key = count <= 64 ? "names" : "digests";
      here = nlohmann::json::parse(files[0]).at(key);
      there = nlohmann::json::parse(files[rank]).at(key);
      i = FirstDifference(here, there);
      if (count <= 64) break;
      first += i * (count / 64);
    }
  }
  throw std::runtime_error(
      fmt::format("the hosts disagree: {} on {}, {} on {} (rank {})",
                  i < 0 ? "other records" : at(here, i), hosts[0],
                  i < 0 ? "in files of the same names and sizes" : at(there, i),
                  hosts[rank], rank));
}

// Trains all epochs and fills the training fields of outcome.
void Train(const World& world, const Arguments& arguments,
           penstock::Reader& reader, Network& network, Progress& progress,
           Outcome& outcome) {
  Adam adam;
  Roll roll(reader.sample_count());
  std::vector<float> gradients(Network::kWeights);
  const uint64_t steps_total =
      reader.steps_per_epoch() * std::max<uint64_t>(reader.epoch_count(), 1);
  uint64_t steps = 0;
  double cpu_s = 0;
  world.CopyFromRank0(network.weights());

  for (penstock::Epoch epoch : reader.epochs()) {
    world.Wait();
    const double start_s = MPI_Wtime(), cpu_start_s = CpuSeconds();
    Network::Score score;
    for (penstock::Batch& batch : epoch) {
      std::ranges::fill(gradients, 0.0f);
      // A rank without rows (fewer are left than there are ranks) adds nothing,
      // and takes the step with the others.
      if (batch.valid_rows() > 0) {
        score += network.AddGradients(
            Values<float>(batch, "image", Network::kInputs),
            Values<int64_t>(batch, "label", 1), gradients);
      }
      roll.Add(batch.ids().first(batch.valid_rows()));
      const float global_rows = batch.global_rows();
      batch.release();  // the broker can refill it during the sum

      world.Sum(gradients);
      // The mean over the global batch, however it was divided.
      for (float& gradient : gradients) gradient /= global_rows;
      const float left = 1.0f - static_cast<float>(steps) / steps_total;
      adam.Step(network.weights(), gradients, arguments.learning_rate * left);
      ++steps;
      progress.Step(outcome.epochs, steps % reader.steps_per_epoch(),
                    reader.steps_per_epoch());
    }
    world.Wait();
    const double seconds = MPI_Wtime() - start_s;
    outcome.seconds += seconds;
    cpu_s += CpuSeconds() - cpu_start_s;

    ++outcome.epochs;
    const Roll::Tally tally = roll.Close(world);
    outcome.tally.missing += tally.missing;
    outcome.tally.duplicated += tally.duplicated;
    const double samples = reader.sample_count();
    progress.Line(
        "epoch {} of {}: loss {:.3f}, training accuracy {:.3f}, {:.1f} s; "
        "samples: {:.0f}, missing {}, duplicated {}",
        outcome.epochs, reader.epoch_count(),
        Total(world.Gather(score.loss)) / samples,
        Total(world.Gather(score.correct)) / samples, seconds, samples,
        tally.missing, tally.duplicated);
  }
  outcome.samples_per_epoch = reader.sample_count();
  outcome.steps = world.Gather(steps);
  outcome.wait_s = world.Gather(reader.stats().wait_s);
  outcome.cpu_s = world.Gather(cpu_s);
  outcome.weights_hash = world.Gather(Hash(network.weights()));
}

// Evaluates the test set, divided over the ranks like the training set.
void Test(const World& world, penstock::Reader& reader, Network& network,
          Outcome& outcome) {
  Network::Score score;
  int64_t samples = 0;
  for (penstock::Epoch epoch : reader.epochs()) {
    for (penstock::Batch& batch : epoch) {
      if (batch.valid_rows() == 0) continue;
      score += network.Evaluate(Values<float>(batch, "image", Network::kInputs),
                                Values<int64_t>(batch, "label", 1));
      samples += batch.valid_rows();
    }
  }
  outcome.test_samples = Total(world.Gather(samples));
  outcome.accuracy =
      outcome.test_samples == 0
          ? 0
          : static_cast<double>(Total(world.Gather(score.correct))) /
                outcome.test_samples;
}

void PrintTable(const Outcome& outcome, const Arguments& arguments) {
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("  {:<30} {}\n", name, value);
  };
  const auto [steps_min, steps_max] = std::ranges::minmax(outcome.steps);
  fmt::print("\n");
  row("ranks", fmt::format("{}", outcome.steps.size()));
  row("steps per rank",
      outcome.SameSteps()
          ? fmt::format("{}, the same on all", steps_min)
          : fmt::format("NOT THE SAME: {} to {}", steps_min, steps_max));
  row("epochs", fmt::format("{}", outcome.epochs));
  row("samples per epoch",
      outcome.ExactlyOnce()
          ? fmt::format("{}, each exactly once", outcome.samples_per_epoch)
          : fmt::format("{}, NOT EXACTLY ONCE: {} missing, {} duplicated",
                        outcome.samples_per_epoch, outcome.tally.missing,
                        outcome.tally.duplicated));
  row("weights", outcome.SameWeights() ? "the same on all ranks"
                                       : "NOT THE SAME on all ranks");
  row("test accuracy",
      fmt::format(
          "{:.4f} of {} samples, {} {}", outcome.accuracy, outcome.test_samples,
          outcome.accuracy >= arguments.min_accuracy ? "at least" : "BELOW",
          arguments.min_accuracy));
  row("samples/s, training",
      fmt::format("{:.0f}", outcome.Samples() / outcome.seconds));
  row("CPU-seconds per 1,000 samples",
      fmt::format("{:.3f}, of the ranks alone, without the broker's",
                  1000 * Total(outcome.cpu_s) / outcome.Samples()));
  row("waiting for input",
      fmt::format(
          "{:.1f} % of the training time, {:.1f} % on the worst rank",
          100 * Total(outcome.wait_s) / outcome.wait_s.size() / outcome.seconds,
          100 * std::ranges::max(outcome.wait_s) / outcome.seconds));
}

// Uses the names of `penstock bench --json` where it has the same values.
void WriteJson(const Outcome& outcome, const std::string& path) {
  const nlohmann::ordered_json json = {
      {"ranks", outcome.steps.size()},
      {"epochs", outcome.epochs},
      {"samples", outcome.Samples()},
      {"samples_per_epoch", outcome.samples_per_epoch},
      {"missing", outcome.tally.missing},
      {"duplicated", outcome.tally.duplicated},
      {"steps_per_rank", outcome.steps},
      {"same_weights", outcome.SameWeights()},
      {"test_samples", outcome.test_samples},
      {"test_accuracy", outcome.accuracy},
      {"seconds", outcome.seconds},
      {"samples_per_s", outcome.Samples() / outcome.seconds},
      {"ranks_cpu_s_per_1k_samples",
       1000 * Total(outcome.cpu_s) / outcome.Samples()},
      {"rank_wait_s", outcome.wait_s}};
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

// Returns the exit status.
int Run(const World& world, const Arguments& arguments) {
  Network network(/*seed=*/1);
  Progress progress(world);
  Outcome outcome;
  std::string test_job;
  {
    penstock::Reader reader({.dataset = arguments.train});
    CompareHosts(world, reader);
    progress.Line("training on {} samples, {} ranks, {} steps an epoch",
                  reader.sample_count(), reader.world_size(),
                  reader.steps_per_epoch());
    Train(world, arguments, reader, network, progress, outcome);
    test_job = std::string(penstock_job(reader.c_reader())) + "-test";
  }
  {
    penstock::Reader reader({.dataset = arguments.test, .job = test_job});
    Test(world, reader, network, outcome);
  }
  if (world.rank() == 0) {
    PrintTable(outcome, arguments);
    if (!arguments.json.empty()) WriteJson(outcome, arguments.json);
  }
  return outcome.ExactlyOnce() && outcome.SameSteps() &&
                 outcome.SameWeights() &&
                 outcome.accuracy >= arguments.min_accuracy
             ? 0
             : 1;
}

}  // namespace
}  // namespace fashion_mnist

int main(int argc, char** argv) {
  using namespace fashion_mnist;
  MPI_Init(&argc, &argv);
  const World world;
  Arguments arguments;
  CLI::App app("Trains a small network on Fashion-MNIST; start it with mpirun");
  app.add_option("train", arguments.train, "training dataset: spec or name")
      ->capture_default_str();
  app.add_option("--test", arguments.test, "test dataset: spec or name")
      ->capture_default_str();
  app.add_option("--json", arguments.json, "also write the table to this file");
  app.add_option("--min-accuracy", arguments.min_accuracy,
                 "exit with 1 below this accuracy on the test set")
      ->capture_default_str();
  app.add_option("--learning-rate", arguments.learning_rate,
                 "at the first step; it falls to zero over the run")
      ->capture_default_str();
  int status = 0;
  try {
    app.parse(argc, argv);
    status = Run(world, arguments);
  } catch (const CLI::ParseError& error) {
    status = world.rank() == 0 ? app.exit(error) : error.get_exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "fashion_mnist: rank {}: {}\n", world.rank(),
               error.what());
    // The other ranks may wait for this one: end them too.
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return status;
}
