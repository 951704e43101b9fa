// The model of the example: a perceptron with one hidden layer,
//
//   logits = relu(image · W1 + b1) · W2 + b2        softmax cross-entropy
//
// and the optimizer that trains it. Nothing here knows of Penstock or MPI.
//
// Weights and gradients are each one flat vector in the same order (W1, b1, W2,
// b2), so that one MPI_Allreduce sums the gradients of all ranks.
// Threads: one thread at a time uses an object.
#ifndef CLIENT_EXAMPLES_FASHION_MNIST_NETWORK_H_
#define CLIENT_EXAMPLES_FASHION_MNIST_NETWORK_H_

#include <cstdint>
#include <span>
#include <vector>

namespace fashion_mnist {

class Network {
 public:
  static constexpr int kInputs = 28 * 28;
  static constexpr int kHidden = 256;
  static constexpr int kClasses = 10;
  static constexpr int kWeights =
      kInputs * kHidden + kHidden + kHidden * kClasses + kClasses;

  // Sums over rows, which ranks can add up.
  struct Score {
    double loss = 0;
    int64_t correct = 0;
    Score& operator+=(const Score& other) {
      loss += other.loss;
      correct += other.correct;
      return *this;
    }
  };

  // He initialisation; the same seed gives the same weights.
  explicit Network(uint32_t seed);

  // kWeights values.
  std::span<float> weights() { return weights_; }

  // images: [rows, kInputs] float32; labels: [rows], each in [0, kClasses),
  // else std::out_of_range. rows may be 0.
  //
  // Adds the gradient of the rows' summed loss to gradients (kWeights values).
  Score AddGradients(std::span<const float> images,
                     std::span<const int64_t> labels,
                     std::span<float> gradients);
  // Loss and hits only.
  Score Evaluate(std::span<const float> images,
                 std::span<const int64_t> labels);

 private:
  // Fills hidden_ and output_gradients_ (softmax minus the true class).
  Score Forward(std::span<const float> images, std::span<const int64_t> labels);

  std::vector<float> weights_;
  // Scratch, one row per image; kept between steps.
  std::vector<float> hidden_;            // [rows, kHidden], after ReLU
  std::vector<float> hidden_gradients_;  // [rows, kHidden], before ReLU
  std::vector<float> output_gradients_;  // [rows, kClasses]
};

// Adam: Kingma and Ba, https://arxiv.org/abs/1412.6980, algorithm 1.
class Adam {
 public:
  // weights += update(gradients); both have the same size at every call.
  void Step(std::span<float> weights, std::span<const float> gradients,
            float learning_rate);

 private:
  std::vector<float> mean_;
  std::vector<float> square_;
  int64_t steps_ = 0;
};

}  // namespace fashion_mnist
#endif  // CLIENT_EXAMPLES_FASHION_MNIST_NETWORK_H_
