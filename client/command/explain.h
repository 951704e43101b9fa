// What `penstock explain` has measured, and what follows from it: the stages of
// a dataset's way to its ranks side by side, the narrowest, and what would help
// first and by how much. Nothing here is guessed: a gain is that of the
// narrowest stage up to the next one (Amdahl's law on measured times).
#ifndef CLIENT_COMMAND_EXPLAIN_H_
#define CLIENT_COMMAND_EXPLAIN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

// Reads of records, and nothing else.
struct ReadRate {
  double per_s = 0;  // samples
  double sample_bytes = 0;
  double read_s = 0;  // one read, among many
};

// What a worker does for a sample.
struct PartTime {
  // As an answer to `measure` names it: "read", "unpack", ..., "step".
  std::string part;
  std::optional<uint64_t> step;  // its number in `map`
  std::string name;              // of the step
  double sample_s = 0;
};

struct Measurements {
  std::optional<ReadRate> cold;
  std::string cold_why;  // why there is none
  bool remote = false;   // what is cold is in object stores
  std::optional<ReadRate> cached;
  std::vector<PartTime> parts;
  uint32_t workers = 1;    // that made the rows
  bool processes = false;  // they wait for processes of Python
  double one_per_s = 0;    // samples/s with one worker; 0: not measured
  double made_per_s = 0;   // with all of them, of records in memory
  double whole_per_s = 0;  // with all of them, as the spec says
  double take_s = 0;       // of a rank that only reads a sample; 0: not known
  double row_bytes = 0;
  // What all ranks could take; 0: not known.
  double ranks_per_s = 0;
  // The same with pictures of another size, of step `step`.
  struct Smaller {
    uint64_t step = 0;
    std::string size;  // "112 x 112"
    double made_per_s = 0;
  };
  std::optional<Smaller> smaller;
  uint64_t data_bytes = 0;    // of all records, by the size of those read
  uint64_t memory_bytes = 0;  // of the machine, available; 0: not known
};

struct Stage {
  enum class Kind { kStorage, kCached, kMake, kTake, kRanks };
  Kind kind;
  std::string name;
  double per_s = 0;
};
// Those that are known. What is cached limits only where nothing is read cold.
std::vector<Stage> StagesOf(const Measurements& measured);
// Index of the stage that limits; stages is not empty.
size_t NarrowestOf(const std::vector<Stage>& stages);

// How many times more samples/s all stages give if one gives so many times
// more: up to the next stage, and which that is (nullptr: none limits).
struct Gain {
  double times = 1;
  const Stage* limit = nullptr;
};
Gain GainOf(const std::vector<Stage>& stages, size_t narrowest, double times);

// Sentences for people: what limits, and what would help first.
struct Advice {
  std::string limit;  // "storage", "step decode_image", "ranks", ...
  std::string text;
  double gain = 1;  // of the first remedy
};
Advice AdviceOf(const Measurements& measured);

// The table, with bars as wide as columns allow.
std::string ExplainTable(const Measurements& measured, int columns);
nlohmann::ordered_json ExplainJson(const Measurements& measured);

// ---- reading answers -------------------------------------------------------

// Seconds of a sample.
double SumOf(const std::vector<PartTime>& parts);
// The part that takes longest; nullptr: there are none.
const PartTime* LargestOf(const std::vector<PartTime>& parts);

// What passed between two answers to `measure`.
struct PartTimes {
  std::vector<PartTime> parts;
  uint64_t rows = 0;
};
PartTimes PartsBetween(const nlohmann::json& before,
                       const nlohmann::json& after);
// "cold" or "cached" of `penstockd --measure-reads`; nullopt: it has none.
std::optional<ReadRate> ReadRateOf(const nlohmann::json& read);

}  // namespace penstock
#endif  // CLIENT_COMMAND_EXPLAIN_H_
