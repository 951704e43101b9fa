#include "tests/crash/rank_log.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <tuple>

namespace penstock {
namespace {

// The first letter of a line.
constexpr char kAttached = 'A';
constexpr char kTook = 'T';
constexpr char kReleasing = 'r';
constexpr char kReleased = 'R';
constexpr char kEnded = 'E';
constexpr char kTorn = 'X';
constexpr char kError = 'F';

std::string Rest(std::istringstream& line) {
  std::string text;
  std::getline(line >> std::ws, text);
  return text;
}

void ReadLine(const std::string& text, RankLog* log) {
  std::istringstream line(text);
  char what = 0;
  uint64_t now_ns = 0;
  line >> what >> now_ns;
  switch (what) {
    case kAttached:
      log->attached_ns = now_ns;
      break;
    case kTook: {
      LoggedBatch& batch = log->batches.emplace_back();
      batch.taken_ns = now_ns;
      line >> batch.number >> batch.epoch >> batch.step >> batch.redelivered >>
          batch.skipped;
      batch.ids.assign(std::istream_iterator<int64_t>(line), {});
      break;
    }
    case kReleasing:
    case kReleased: {
      uint64_t number = 0;
      line >> number;
      LoggedBatch& batch = log->batches.at(number);
      (what == kReleasing ? batch.releasing_ns : batch.released_ns) = now_ns;
      break;
    }
    case kEnded:
      log->ended = true;
      line >> log->reconnects;
      break;
    case kTorn:
      log->torn.push_back(Rest(line));
      break;
    case kError:
      log->errors.push_back(Rest(line));
      break;
    default:
      throw std::runtime_error("a rank's log has the line '" + text + "'");
  }
}

}  // namespace

uint64_t MonotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(now.tv_nsec);
}

std::string RankLogName(uint32_t rank, uint32_t restart) {
  return "rank-" + std::to_string(rank) + "-restart-" + std::to_string(restart);
}

std::vector<RankLog> ReadRankLogs(const std::string& folder) {
  std::vector<RankLog> logs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    RankLog log;
    if (std::sscanf(entry.path().filename().c_str(), "rank-%u-restart-%u",
                    &log.rank, &log.restart) != 2) {
      continue;
    }
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    for (size_t begin = 0;;) {
      const size_t end = text.find('\n', begin);
      if (end == std::string::npos) break;
      ReadLine(text.substr(begin, end - begin), &log);
      begin = end + 1;
    }
    logs.push_back(std::move(log));
  }
  std::sort(logs.begin(), logs.end(), [](const RankLog& a, const RankLog& b) {
    return std::tie(a.rank, a.restart) < std::tie(b.rank, b.restart);
  });
  return logs;
}

RankLogWriter::RankLogWriter(const std::string& path)
    : file_(open(path.c_str(),
                 O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644)) {
  if (!file_) throw std::runtime_error("cannot write '" + path + "'");
}

void RankLogWriter::Write(char what, const std::string& text) {
  const std::string line = std::string(1, what) + " " +
                           std::to_string(MonotonicNs()) + " " + text + "\n";
  if (write(file_.get(), line.data(), line.size()) !=
      static_cast<ssize_t>(line.size())) {
    throw std::runtime_error("cannot write the rank's log");
  }
}

void RankLogWriter::Attached() { Write(kAttached, ""); }
void RankLogWriter::Took(const LoggedBatch& batch) {
  std::ostringstream text;
  text << batch.number << ' ' << batch.epoch << ' ' << batch.step << ' '
       << batch.redelivered << ' ' << batch.skipped;
  for (const int64_t id : batch.ids) text << ' ' << id;
  Write(kTook, text.str());
}
void RankLogWriter::Releasing(uint64_t number) {
  Write(kReleasing, std::to_string(number));
}
void RankLogWriter::Released(uint64_t number) {
  Write(kReleased, std::to_string(number));
}
void RankLogWriter::Ended(uint64_t reconnects) {
  Write(kEnded, std::to_string(reconnects));
}
void RankLogWriter::Torn(const std::string& what) { Write(kTorn, what); }
void RankLogWriter::Error(const std::string& what) { Write(kError, what); }

}  // namespace penstock
