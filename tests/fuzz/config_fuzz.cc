// The input is penstockd's configuration file. What is refused is refused with
// its place; what is read keeps to the documented bounds.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "broker/config.h"
#include "broker/memory/placement.h"
#include "broker/workers/worker_pool.h"
#include "common/fd.h"
#include "tests/fuzz/require.h"

namespace penstock {
namespace {

// A file in memory that every input is written to.
const std::string& PathOf(std::string_view text) {
  static const Fd file(memfd_create("penstockd.yaml", MFD_CLOEXEC));
  static const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  Require(ftruncate(file.get(), 0) == 0 &&
              pwrite(file.get(), text.data(), text.size(), 0) ==
                  static_cast<ssize_t>(text.size()),
          "the input can be written");
  return path;
}

void Check(std::string_view text) {
  const std::string& path = PathOf(text);
  const StatusOr<Config> config = LoadConfig(path);
  if (!config.ok()) {
    Require(config.status().code() == StatusCode::kInvalidArgument,
            "a text that is refused is an invalid argument");
    Require(config.status().message().rfind(path + ":", 0) == 0,
            "a refusal begins with file and place");
    return;
  }
  constexpr uint64_t kMs = 1'000'000;
  for (const uint64_t ns :
       {config->decode_timeout_ns, config->read_timeout_ns}) {
    Require(ns >= 100 * kMs && ns <= 24 * 3600 * 1000 * kMs,
            "times are from 100 ms to 24 h");
  }
  Require(config->workers <= kWorkersMax, "workers are bounded");
  Require(config->reserve_cores <= kWorkersMax, "reserved cores are bounded");
  Require(config->cpus.empty() || ParseCpuList(config->cpus).ok(),
          "cpus are a list");
  Require(config->read_depth <= 1024, "reads in flight are bounded");
  Require(config->memory_limit.value_or(1) > 0, "a limit is not zero");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Check({reinterpret_cast<const char*>(data), size});
  return 0;
}
