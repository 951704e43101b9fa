// What one process of a rank leaves behind: a line for everything that happened
// to it, written before it goes on, so that a process that is killed anywhere
// has told all but its last moment.
//
// The process writes, one write() a line; the storm reads once it is dead, or
// while it runs. A last line without its end is left out.
#ifndef TESTS_STORM_RANK_LOG_H_
#define TESTS_STORM_RANK_LOG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/fd.h"

namespace penstock {

// Of CLOCK_MONOTONIC: the same for all processes.
uint64_t MonotonicNs();

struct LoggedBatch {
  uint64_t number = 0;  // in its process, from 0
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t skipped = 0;
  bool redelivered = false;
  std::vector<int64_t> ids;
  uint64_t taken_ns = 0;
  // It was going to be released, and it was: between the two nobody can know.
  std::optional<uint64_t> releasing_ns;
  std::optional<uint64_t> released_ns;
};

struct RankLog {
  uint32_t rank = 0;
  uint32_t restart = 0;
  std::optional<uint64_t> attached_ns;
  std::vector<LoggedBatch> batches;
  bool ended = false;  // it was told that the data are over
  uint64_t reconnects = 0;
  std::vector<std::string> torn;    // rows with other bytes than theirs
  std::vector<std::string> errors;  // what penstock refused
};

std::string RankLogName(uint32_t rank, uint32_t restart);
// All of the folder, by rank and restart.
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
#endif  // TESTS_STORM_RANK_LOG_H_
