// A trainer of the checks in the virtual machine: prints a line for each batch:
// its epoch, whether it was redelivered, the NUMA node of its pages (+ between
// several), and the ids of its rows.
//
//   rank STEP_MS HURRY  one job, from the environment; a step takes that long
//                       until the file HURRY exists
//   rank jobs NAME N    N jobs one after another, NAME-0, NAME-1, ...; prints
//                       their number of rows
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <penstock.hpp>
#include <set>
#include <string>
#include <thread>

namespace {

std::string NodesOf(const penstock::Batch& batch) {
  // Eight bytes a row. An untouched page is on no node.
  const auto* const data = static_cast<const volatile char*>(batch.data(0));
  std::set<int> nodes;
  for (uint64_t at = 0; at < batch.valid_rows() * 8; at += 4096) {
    (void)data[at];
    void* page = const_cast<char*>(data + at);
    page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(page) & ~4095ul);
    int node = -1;
    syscall(SYS_move_pages, 0, 1ul, &page, nullptr, &node, 0);
    nodes.insert(node);
  }
  std::string text;
  for (const int node : nodes) {
    text += (text.empty() ? "" : "+") + std::to_string(node);
  }
  return text.empty() ? "none" : text;
}

void Train(std::chrono::milliseconds step, const char* hurry) {
  penstock::Reader reader({});
  for (penstock::Epoch epoch : reader.epochs()) {
    for (penstock::Batch& batch : epoch) {
      std::cout << batch.epoch() << ' ' << batch.redelivered() << ' '
                << NodesOf(batch);
      for (uint64_t i = 0; i < batch.valid_rows(); ++i) {
        std::cout << ' ' << batch.ids()[i];
      }
      std::cout << std::endl;
      if (access(hurry, F_OK) != 0) std::this_thread::sleep_for(step);
    }
  }
}

uint64_t RowsOfJobs(const std::string& name, int jobs) {
  uint64_t rows = 0;
  for (int i = 0; i < jobs; ++i) {
    penstock::Options options;
    options.job = name + "-" + std::to_string(i);
    penstock::Reader reader(options);
    for (penstock::Epoch epoch : reader.epochs()) {
      for (penstock::Batch& batch : epoch) rows += batch.valid_rows();
    }
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 4 && argv[1] == std::string("jobs")) {
    std::cout << RowsOfJobs(argv[2], std::atoi(argv[3])) << std::endl;
  } else if (argc == 3) {
    Train(std::chrono::milliseconds(std::atoi(argv[1])), argv[2]);
  } else {
    std::cerr << "rank: wrong arguments\n";
    return 2;
  }
  return 0;
} catch (const penstock::Error& error) {
  std::cerr << "rank: " << error.what() << '\n';
  return 1;
}
