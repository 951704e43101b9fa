#include "client/private_broker/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "client/private_broker/table.h"
#include "common/format.h"

namespace penstock {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr int kBarColumns = 16;

bool StderrIsTerminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr &&
         std::string(term) != "dumb";
}

}  // namespace

std::string ProgressLine(const std::string& label, const std::string& unit,
                         uint64_t done, uint64_t total, double elapsed_s,
                         int columns) {
  std::string line = label;
  const std::string of_unit = unit.empty() ? "" : " " + unit;
  const double rate = elapsed_s > 0 ? done / elapsed_s : 0;
  if (total > 0) {
    const double part =
        std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const int filled = static_cast<int>(part * kBarColumns);
    line += Format(" [{}{}] {}% {}/{}{}", std::string(filled, '#'),
                   std::string(kBarColumns - filled, '.'),
                   static_cast<int>(part * 100), FormatCount(done),
                   FormatCount(total), of_unit);
  } else {
    line += Format(" {}{}", FormatCount(done), of_unit);
  }
  // The first second's rate is noise.
  if (elapsed_s >= 1 && done > 0) {
    line +=
        Format(", {}{}/s", FormatCount(static_cast<uint64_t>(rate)), of_unit);
    if (total > done) {
      line += Format(", {} left", FormatSeconds((total - done) / rate));
    }
  }
  // The last column stays free: some terminals wrap there.
  const size_t width = static_cast<size_t>(std::max(1, columns - 1));
  if (line.size() > width) line.resize(width);
  return line;
}

ProgressBar::ProgressBar(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      on_terminal_(StderrIsTerminal()) {}

ProgressBar::~ProgressBar() { Clear(); }

void ProgressBar::Update(uint64_t done, uint64_t total) {
  if (!on_terminal_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + kRedraw;
  drawn_ = true;
  Print(stderr, "\r{}\x1b[K",
        ProgressLine(label_, unit_, done, total,
                     std::chrono::duration<double>(now - begin_).count(),
                     TerminalColumns(STDERR_FILENO, 80)));
  std::fflush(stderr);
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  drawn_ = false;
  next_ = begin_;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace penstock
