// A producer in C++, which makes rows instead of reading them, and a trainer
// that takes them.
//
//   penstock run --dataset pendulums.yaml --ranks 2 --
//       sh -c '[ "$RANK" = 0 ] && ./producer make 1000 & ./producer learn'
//
// It simulates pendulums: each row is a pendulum's angle and angular velocity,
// now and a moment later. The trainer fits next = weights * state.
// client/python/examples/producer.py is the same in Python, and the two sides
// may be in different languages.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "penstock.hpp"

namespace {

constexpr int kPendulums = 64;
constexpr float kMomentS = 0.05f;
constexpr float kGravity = 9.81f;  // m/s^2, of a pendulum of one metre

struct State {
  float angle;
  float speed;
};

State Simulate(State state) {
  state.speed -= kGravity * std::sin(state.angle) * kMomentS;
  state.angle += state.speed * kMomentS;
  return state;
}

int Make(int steps) {
  penstock::Producer producer({.features = {{"state", PENSTOCK_FLOAT32, {2}},
                                            {"next", PENSTOCK_FLOAT32, {2}}},
                               .rows = kPendulums});
  State states[kPendulums];
  for (int i = 0; i < kPendulums; ++i) {
    states[i] = {static_cast<float>(i) / kPendulums, 0};
  }
  for (int step = 0; step < steps; ++step) {
    producer.reserve(kPendulums);  // waits while the ranks are behind
    auto* const now = producer.data<State>(0);
    auto* const next = producer.data<State>(1);
    for (int i = 0; i < kPendulums; ++i) {
      now[i] = states[i];
      next[i] = states[i] = Simulate(states[i]);
    }
    producer.put(kPendulums);
  }
  producer.finish();
  return 0;
}

int Learn() {
  penstock::Reader reader({});  // dataset, rank and job: from the launcher
  float weights[2][2] = {};     // from, to
  uint64_t rows = 0;
  double error = 0;
  for (penstock::Epoch epoch : reader.epochs()) {
    for (penstock::Batch& batch : epoch) {
      const auto state = batch.get<float>("state");
      const auto next = batch.get<float>("next");
      double gradient[2][2] = {};
      double squares = 0;
      for (uint64_t row = 0; row < batch.rows(); ++row) {
        for (int to = 0; to < 2; ++to) {
          const double found = state[2 * row] * weights[0][to] +
                               state[2 * row + 1] * weights[1][to];
          const double off = found - next[2 * row + to];
          squares += off * off;
          for (int from = 0; from < 2; ++from) {
            gradient[from][to] += state[2 * row + from] * off;
          }
        }
      }
      if (batch.rows() == 0) continue;
      const auto count = static_cast<double>(batch.rows());
      for (int from = 0; from < 2; ++from) {
        for (int to = 0; to < 2; ++to) {
          weights[from][to] -=
              static_cast<float>(0.1 * gradient[from][to] / count);
        }
      }
      rows += batch.rows();
      error = 0.9 * error + 0.1 * squares / (2 * count);
    }
  }
  std::printf("rank %d: %llu rows, squared error %.4f\n", reader.rank(),
              static_cast<unsigned long long>(rows), error);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "make" && argc == 3) return Make(std::atoi(argv[2]));
    if (what == "learn" && argc == 2) return Learn();
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "producer: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: producer make STEPS | producer learn\n");
  return 2;
}
