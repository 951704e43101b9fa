// A progress line on stderr. Draws only on a terminal, not in a pipe or a log
// file.
#ifndef CLIENT_PRIVATE_BROKER_PROGRESS_BAR_H_
#define CLIENT_PRIVATE_BROKER_PROGRESS_BAR_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace penstock {

// One line without a newline: "indexing [#####.....] 50% 1,000/2,000 files, 500
// files/s, 2 s left", cut to columns. total 0: unknown, no bar.
std::string ProgressLine(const std::string& label, const std::string& unit,
                         uint64_t done, uint64_t total, double elapsed_s,
                         int columns);

class ProgressBar {
 public:
  // unit in the plural, or "".
  ProgressBar(std::string label, std::string unit);
  // Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws ten times a second at most.
  void Update(uint64_t done, uint64_t total);
  // Clears the line, for a message to be printed; Update draws it again.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  const std::string label_;
  const std::string unit_;
  const bool on_terminal_;
  bool drawn_ = false;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_;
};

}  // namespace penstock
#endif  // CLIENT_PRIVATE_BROKER_PROGRESS_BAR_H_
