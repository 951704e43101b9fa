// A trainer in C++: prints a line for each batch, its epoch, whether it was
// redelivered, and the ids of its rows. Its argument: milliseconds for a step.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <penstock.hpp>
#include <thread>

int main(int argc, char** argv) try {
  const std::chrono::milliseconds step(argc > 1 ? std::atoi(argv[1]) : 0);
  penstock::Reader reader({});
  for (penstock::Epoch epoch : reader.epochs()) {
    for (penstock::Batch& batch : epoch) {
      std::cout << batch.epoch() << ' ' << batch.redelivered();
      for (uint64_t i = 0; i < batch.valid_rows(); ++i) {
        std::cout << ' ' << batch.ids()[i];
      }
      std::cout << std::endl;
      std::this_thread::sleep_for(step);
    }
  }
  return 0;
} catch (const penstock::Error& error) {
  std::cerr << "rank: " << error.what() << '\n';
  return 1;
}
