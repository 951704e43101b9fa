// The log of one process of a rank. Each event is written as a line before the
// process continues, so a process that is killed anywhere has logged all but
// its last event.
//
// The process writes each line with one write(). The storm reads the log while
// the process runs or after its death, and ignores an incomplete last line.
#ifndef TESTS_CRASH_RANK_LOG_H_
#define TESTS_CRASH_RANK_LOG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/fd.h"

namespace penstock {

// CLOCK_MONOTONIC, which is the same for all processes.
uint64_t MonotonicNs();

struct LoggedBatch {
  uint64_t number = 0;  // in its process, from 0
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t skipped = 0;
  bool redelivered = false;
  std::vector<int64_t> ids;
  uint64_t taken_ns = 0;
  // Before and after the call of release. For a process that died between the
  // two, it is unknown whether the batch was released.
  std::optional<uint64_t> releasing_ns;
  std::optional<uint64_t> released_ns;
};

struct RankLog {
  uint32_t rank = 0;
  uint32_t restart = 0;
  std::optional<uint64_t> attached_ns;
  std::vector<LoggedBatch> batches;
  bool ended = false;  // it got the end of the data
  uint64_t reconnects = 0;
  std::vector<std::string> torn;    // rows with wrong bytes
  std::vector<std::string> errors;  // what penstock refused
};

std::string RankLogName(uint32_t rank, uint32_t restart);
// All logs in the folder, by rank and restart.
std::vector<RankLog> ReadRankLogs(const std::string& folder);

class RankLogWriter {
 public:
  explicit RankLogWriter(const std::string& path);

  void Attached();
  void Took(const LoggedBatch& batch);
  void Releasing(uint64_t number);
  void Released(uint64_t number);
  void Ended(uint64_t reconnects);
  void Torn(const std::string& what);
  void Error(const std::string& what);

 private:
  void Write(char what, const std::string& text);
  Fd file_;
};

}  // namespace penstock
#endif  // TESTS_CRASH_RANK_LOG_H_
