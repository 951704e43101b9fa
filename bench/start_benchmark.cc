// How long does a rank that attaches to a new job wait for its first batch,
// beyond the unavoidable time of making one batch and getting the pages of one
// step from the kernel?
//
// Method. A penstockd with two workers that has no job; a rank attaches and
// takes its first batch: that is "all of it". Then it drains: the mean of the
// following batches is the making of one. The pages: a memfd of as many bytes
// as the step's slot, populated in the same way (MADV_HUGEPAGE,
// MADV_POPULATE_WRITE). "The rest" is the remaining time; the target is 50 ms.
// The parts in one round belong to one start.
//
// Isolation. Each run has a job of its own in a penstockd of its own; rows are
// made up (a hash, no storage), as large as pictures of 224 x 224 x 3.
//
// Limits: the child that populates (fork, oom_score_adj) and the planning; on a
// loaded machine the first time a thread gets a processor.
//
//   start_benchmark [--runs N] [--json]
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/job_ranks.h"
#include "bench/side_by_side.h"
#include "tests/support/broker_process.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kRowBytes = 224 * 224 * 3;

double MsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin)
      .count();
}

[[noreturn]] void Give(const char* what) {
  std::perror(what);
  std::exit(1);
}

double PopulateMs(uint64_t bytes) {
  const int fd = memfd_create("start_benchmark", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) Give("memfd");
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) Give("mmap");
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  const Clock::time_point begin = Clock::now();
  if (madvise(memory, bytes, MADV_POPULATE_WRITE) != 0) Give("populate");
  const double ms = MsSince(begin);
  munmap(memory, bytes);
  close(fd);
  return ms;
}

struct Start {
  double all_ms = 0;
  double attach_ms = 0;
  double making_ms = 0;
  double pages_ms = 0;
  double rest_ms() const { return all_ms - making_ms - pages_ms; }
};

Start Measure(int rows, bool tiny) {
  const BrokerProcess broker({"--workers", "2"});
  broker.RowsMade();  // answers when it is up
  Options options;
  options.socket = broker.socket();
  options.spec =
      "dataset: start\nsource: {synthetic: {records: 1000000, features: {x: "
      "{dtype: uint8, shape: [224, 224, 3]}}}}\nshuffle: {seed: 1}\nepochs: "
      "forever\nbatch: {size: " +
      std::to_string(rows) + "}\n";
  options.rank = 0;
  options.world_size = 1;
  options.timeout_s = 60;
  Start start;
  try {
    const Clock::time_point begin = Clock::now();
    Reader reader(options);
    start.attach_ms = MsSince(begin);
    Batch batch;
    reader.next(&batch);
    start.all_ms = MsSince(begin);
    batch.release();
    // What was made ahead comes at once.
    const int ahead = tiny ? 1 : 10;
    const int counted = tiny ? 1 : 20;
    for (int i = 0; i < ahead; ++i) {
      reader.next(&batch);
      batch.release();
    }
    const Clock::time_point drains = Clock::now();
    for (int i = 0; i < counted; ++i) {
      reader.next(&batch);
      batch.release();
    }
    start.making_ms = MsSince(drains) / counted;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(1);
  }
  start.pages_ms = PopulateMs(static_cast<uint64_t>(rows) * kRowBytes);
  return start;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  penstock::CommandLine line(
      "start_benchmark",
      "How long a rank waits for the first batch of a new job.");
  penstock::SideBySideOptions options;
  penstock::AddSideBySideOptions(line, &options);
  line.ParseOrExit(argc, argv);
  penstock::SideBySide small("attach to first batch, 8 rows (1.1 MiB)", "ms");
  penstock::SideBySide large("attach to first batch, 512 rows (74 MiB)", "ms");
  const auto add = [&](penstock::SideBySide* table, int rows) {
    using penstock::Start;
    // The parts of a round belong to one start: the first part that needs a new
    // one measures it.
    auto starts = std::make_shared<std::vector<Start>>();
    const auto row = [&, rows](const char* name, auto part) {
      table->Add(name,
                 [&options, rows, part, starts, next = size_t{0}]() mutable {
                   if (next == starts->size()) {
                     starts->push_back(penstock::Measure(rows, options.tiny));
                   }
                   return part((*starts)[next++]);
                 });
    };
    row("all of it", [](const Start& start) { return start.all_ms; });
    row("attach", [](const Start& start) { return start.attach_ms; });
    row("the making of one batch",
        [](const Start& start) { return start.making_ms; });
    row("its pages", [](const Start& start) { return start.pages_ms; });
    row("the rest", [](const Start& start) { return start.rest_ms(); });
  };
  add(&small, 8);
  add(&large, 512);
  penstock::RunSideBySide({&small, &large}, options);
}
