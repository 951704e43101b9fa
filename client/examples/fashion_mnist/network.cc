#include "client/examples/fashion_mnist/network.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>

// Compiled twice and chosen at load time: the build targets any x86-64.
#if defined(__x86_64__)
#define FASHION_MNIST_CLONES \
  __attribute__((target_clones("arch=haswell", "default")))
#else
#define FASHION_MNIST_CLONES
#endif

namespace fashion_mnist {
namespace {

// Offsets in the flat vectors.
constexpr int kBias1 = Network::kInputs * Network::kHidden;
constexpr int kWeights2 = kBias1 + Network::kHidden;
constexpr int kBias2 = kWeights2 + Network::kHidden * Network::kClasses;
static_assert(kBias2 + Network::kClasses == Network::kWeights);

// sum[i, j] += Σ_k left(i, k) · right[k, j] for one row-major [.., kHidden]
// matrix pair and left(i, k) = left[i * row_stride + k * inner_stride], so that
// the same loop multiplies by left and by its transpose.
//
// A tile of 4 × 16 sums stays in registers; the compiler vectorises the loops
// of constant length.
FASHION_MNIST_CLONES
void AddProduct(int64_t rows, int64_t inner, const float* left,
                int64_t row_stride, int64_t inner_stride, const float* right,
                float* sum) {
  constexpr int kTileRows = 4;
  constexpr int kTileColumns = 16;
  static_assert(Network::kHidden % kTileColumns == 0);
  for (int64_t i0 = 0; i0 < rows; i0 += kTileRows) {
    // A short last tile repeats its last row and drops the copies.
    const int64_t height = std::min<int64_t>(kTileRows, rows - i0);
    const float* row[kTileRows];
    for (int i = 0; i < kTileRows; ++i) {
      row[i] = left + (i0 + std::min<int64_t>(i, height - 1)) * row_stride;
    }
    for (int64_t j0 = 0; j0 < Network::kHidden; j0 += kTileColumns) {
      float tile[kTileRows][kTileColumns] = {};
      for (int64_t k = 0; k < inner; ++k) {
        const float* line = right + k * Network::kHidden + j0;
        for (int i = 0; i < kTileRows; ++i) {
          const float factor = row[i][k * inner_stride];
          for (int j = 0; j < kTileColumns; ++j) {
            tile[i][j] += factor * line[j];
          }
        }
      }
      for (int64_t i = 0; i < height; ++i) {
        float* out = sum + (i0 + i) * Network::kHidden + j0;
        for (int j = 0; j < kTileColumns; ++j) out[j] += tile[i][j];
      }
    }
  }
}

// Replaces logits [kClasses] by the loss's gradient, softmax minus the true
// class, and adds the loss and the hit to score.
void Softmax(float* logits, int64_t label, Network::Score* score) {
  if (label < 0 || label >= Network::kClasses) {
    throw std::out_of_range("label " + std::to_string(label) +
                            ": this network tells 0 to " +
                            std::to_string(Network::kClasses - 1) + " apart");
  }
  const float* best = std::max_element(logits, logits + Network::kClasses);
  if (best - logits == label) ++score->correct;
  const float highest = *best;  // subtracted: exp cannot overflow
  const float at_label = logits[label] - highest;
  float total = 0;
  for (int c = 0; c < Network::kClasses; ++c) {
    logits[c] = std::exp(logits[c] - highest);
    total += logits[c];
  }
  for (int c = 0; c < Network::kClasses; ++c) logits[c] /= total;
  score->loss += std::log(total) - at_label;
  logits[label] -= 1;
}

}  // namespace

Network::Network(uint32_t seed) : weights_(kWeights, 0.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> first(0, std::sqrt(2.0f / kInputs));
  std::normal_distribution<float> second(0, std::sqrt(2.0f / kHidden));
  for (int i = 0; i < kBias1; ++i) weights_[i] = first(random);
  for (int i = kWeights2; i < kBias2; ++i) weights_[i] = second(random);
}

Network::Score Network::Forward(std::span<const float> images,
                                std::span<const int64_t> labels) {
  const int64_t rows = labels.size();
  hidden_.resize(rows * kHidden);
  output_gradients_.resize(rows * kClasses);
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(&weights_[kBias1], kHidden, &hidden_[i * kHidden]);
  }
  AddProduct(rows, kInputs, images.data(), kInputs, 1, weights_.data(),
             hidden_.data());
  Score score;
  for (int64_t i = 0; i < rows; ++i) {
    float* logits = &output_gradients_[i * kClasses];
    std::copy_n(&weights_[kBias2], kClasses, logits);
    for (int h = 0; h < kHidden; ++h) {
      float& value = hidden_[i * kHidden + h];
      value = std::max(value, 0.0f);
      const float* line = &weights_[kWeights2 + h * kClasses];
      for (int c = 0; c < kClasses; ++c) logits[c] += value * line[c];
    }
    Softmax(logits, labels[i], &score);
  }
  return score;
}

Network::Score Network::Evaluate(std::span<const float> images,
                                 std::span<const int64_t> labels) {
  return Forward(images, labels);
}

Network::Score Network::AddGradients(std::span<const float> images,
                                     std::span<const int64_t> labels,
                                     std::span<float> gradients) {
  const Score score = Forward(images, labels);
  const int64_t rows = labels.size();
  hidden_gradients_.resize(rows * kHidden);
  for (int64_t i = 0; i < rows; ++i) {
    const float* output = &output_gradients_[i * kClasses];
    for (int c = 0; c < kClasses; ++c) gradients[kBias2 + c] += output[c];
    for (int h = 0; h < kHidden; ++h) {
      const float value = hidden_[i * kHidden + h];
      float& gradient = hidden_gradients_[i * kHidden + h];
      gradient = 0;
      if (value <= 0) continue;  // ReLU passes neither value nor gradient
      const float* line = &weights_[kWeights2 + h * kClasses];
      float* line_gradient = &gradients[kWeights2 + h * kClasses];
      for (int c = 0; c < kClasses; ++c) {
        gradient += output[c] * line[c];
        line_gradient[c] += value * output[c];
      }
      gradients[kBias1 + h] += gradient;
    }
  }
  AddProduct(kInputs, rows, images.data(), 1, kInputs, hidden_gradients_.data(),
             gradients.data());
  return score;
}

void Adam::Step(std::span<float> weights, std::span<const float> gradients,
                float learning_rate) {
  constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kEpsilon = 1e-8f;
  mean_.resize(weights.size());
  square_.resize(weights.size());
  ++steps_;
  const float mean_scale = 1 / (1 - std::pow(kBeta1, steps_));
  const float square_scale = 1 / (1 - std::pow(kBeta2, steps_));
  for (size_t i = 0; i < weights.size(); ++i) {
    mean_[i] = kBeta1 * mean_[i] + (1 - kBeta1) * gradients[i];
    square_[i] =
        kBeta2 * square_[i] + (1 - kBeta2) * gradients[i] * gradients[i];
    weights[i] -= learning_rate * mean_[i] * mean_scale /
                  (std::sqrt(square_[i] * square_scale) + kEpsilon);
  }
}

}  // namespace fashion_mnist
